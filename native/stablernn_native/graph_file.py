"""Reads what the server engine needs of an ONNX file: metadata, constants, and the part of a graph behind some values.

Only protobuf's wire format is read, so that serving needs no package for it. The caller has made sure that the file is
a single self-contained graph, see ``stablernn_runtime.graph_safety``. Field numbers are from ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_GRAPH, _METADATA = 7, 14  # of a model
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12  # of a graph
_NODE_INPUT, _NODE_OUTPUT = 1, 2
_DIMS, _DATA_TYPE, _FLOAT_DATA, _TENSOR_NAME, _RAW_DATA = 1, 2, 4, 8, 9
_VALUE_NAME = 1
_KEY, _VALUE = 1, 2
_FLOAT = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LARGEST_SHIFT = 63
"""Of the last byte of a number of 64 bits, each byte of which holds seven."""


class GraphFile:
    """An ONNX model.

    Args:
        content: The bytes of the file.

    Attributes:
        metadata: The entries of ``metadata_props``.

    Raises:
        ValueError: If the bytes are no model.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._fields = list(_read(memoryview(content)))
            self.metadata = {_text(part, _KEY): _text(part, _VALUE) for part in _parts(self._fields, _METADATA)}
            (graph,) = _parts(self._fields, _GRAPH)
            self._graph = list(_read(graph))
            self._tensors = {_text(part, _TENSOR_NAME): part for part in _parts(self._graph, _INITIALIZER)}
        except (IndexError, UnicodeDecodeError, ValueError) as error:
            raise ValueError("its step.onnx is not an ONNX model") from error

    def constant(self, name: str) -> Array:
        """Return the value of an initializer in float32.

        Raises:
            ValueError: If there is none of this name, or it has another type.
        """
        if name not in self._tensors:
            raise ValueError(f"its step.onnx has no initializer '{name}'")
        fields = list(_read(self._tensors[name]))
        if _number(fields, _DATA_TYPE) != _FLOAT:
            raise ValueError(f"the initializer '{name}' of its step.onnx is not of the type float32")
        shape = list(_numbers(fields, _DIMS))
        # One of both holds the values.
        data = b"".join(_parts(fields, _RAW_DATA)) or b"".join(_parts(fields, _FLOAT_DATA))
        return np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)

    def behind(self, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """Return a model of the nodes that compute some outputs of the graph from other values of it.

        Args:
            inputs: Names of values that are inputs or outputs of the graph.
            outputs: Names of outputs of the graph.
        """
        needed, nodes = set(outputs), []
        # The nodes are in topological order.
        for node in reversed(list(_parts(self._graph, _NODE))):
            fields = list(_read(node))
            node_outputs = {bytes(name).decode() for name in _parts(fields, _NODE_OUTPUT)}
            if node_outputs & needed and not node_outputs & set(inputs):
                nodes.append(node)
                needed.update(bytes(name).decode() for name in _parts(fields, _NODE_INPUT))
        values = {_text(value, _VALUE_NAME): value for value in _parts(self._graph, _INPUT, _OUTPUT)}
        graph = [
            *(_field(_NODE, node) for node in reversed(nodes)),
            _field(_GRAPH_NAME, b"behind"),
            *(_field(_INITIALIZER, tensor) for name, tensor in self._tensors.items() if name in needed),
            *(_field(_INPUT, values[name]) for name in inputs if name in needed),
            *(_field(_OUTPUT, values[name]) for name in outputs),
        ]
        others = [raw for number, _, raw in self._fields if number not in (_GRAPH, _METADATA)]
        return b"".join([*others, _field(_GRAPH, b"".join(graph))])


_Field = tuple[int, int | memoryview, memoryview]
"""Number, value, and all bytes of a field."""


def _read(message: memoryview) -> Iterator[_Field]:
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        number, wire = tag >> 3, tag & 7
        value: int | memoryview
        if wire == _VARINT:
            value, position = _varint(message, position)
        else:
            size = {_FIXED32: 4, _FIXED64: 8}.get(wire, 0)
            if wire == _BYTES:
                size, position = _varint(message, position)
            elif not size:
                raise ValueError("unknown wire type")
            if position + size > len(message):
                raise ValueError("a field is longer than its message")
            value = message[position : position + size]
            position += size
        yield number, value, message[start:position]


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _LARGEST_SHIFT:
            raise ValueError("a number is longer than 64 bits")


def _parts(fields: Sequence[_Field], *numbers: int) -> Iterator[memoryview]:
    for number, value, _ in fields:
        if number in numbers:
            if isinstance(value, int):
                raise ValueError("a number where a message belongs")
            yield value


def _text(message: memoryview, number: int) -> str:
    return b"".join(_parts(list(_read(message)), number)).decode()


def _number(fields: Sequence[_Field], number: int) -> int:
    return next(iter(_numbers(fields, number)), 0)


def _numbers(fields: Sequence[_Field], number: int) -> Iterator[int]:
    """Yield the numbers of a repeated field, packed or not."""
    for other, value, _ in fields:
        if other != number:
            continue
        if isinstance(value, int):
            yield value
            continue
        position = 0
        while position < len(value):
            element, position = _varint(value, position)
            yield element


def _field(number: int, content: bytes | memoryview) -> bytes:
    """Return a field of bytes."""
    return _to_varint(number << 3 | _BYTES) + _to_varint(len(content)) + bytes(content)


def _to_varint(value: int) -> bytes:
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
