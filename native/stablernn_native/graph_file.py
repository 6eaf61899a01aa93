"""Reads what the server engine needs of an ONNX file: metadata, constants, and a part of its graph.

The caller has made sure that the file is a single self-contained graph, see ``stablernn_runtime.graph_safety``. Field
numbers are from ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.graph_safety import Field, as_bytes, encode_field, read_fields, read_integers

Array = NDArray[Any]

_GRAPH, _METADATA = 7, 14  # of a model
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12  # of a graph
_NODE_INPUT, _NODE_OUTPUT = 1, 2
_DIMS, _DATA_TYPE, _FLOAT_DATA, _TENSOR_NAME, _RAW_DATA = 1, 2, 4, 8, 9
_VALUE_NAME = 1
_KEY, _VALUE = 1, 2
_FLOAT = 1


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
            self._fields = list(read_fields(memoryview(content)))
            self.metadata = {_text(part, _KEY): _text(part, _VALUE) for part in _parts(self._fields, _METADATA)}
            (graph,) = _parts(self._fields, _GRAPH)
            self._graph = list(read_fields(graph))
            self._tensors = {_text(part, _TENSOR_NAME): part for part in _parts(self._graph, _INITIALIZER)}
            self._constants: dict[str, Array] = {}
        except ValueError as error:
            raise ValueError("its step.onnx is not an ONNX model") from error

    def constant(self, name: str, start: int, end: int) -> Array:
        """Return some rows of an initializer in float32, as an array of their own.

        Args:
            name: Its name.
            start: First row.
            end: Row after the last one.

        Raises:
            ValueError: If there is no initializer of this name, it has another type, or no rows.
        """
        if name not in self._constants:
            self._constants[name] = self._parse(name)
        array = self._constants[name]
        if array.ndim == 0:
            raise ValueError(f"the initializer '{name}' of its step.onnx has no rows")
        # A copy, since the bytes of the file are not aligned; of these rows only, since the members of an ensemble may
        # share an initializer.
        return array[start:end].astype(np.float32)

    def _parse(self, name: str) -> Array:
        """Return an initializer, whose memory is that of the file where it is in one piece there."""
        if name not in self._tensors:
            raise ValueError(f"its step.onnx has no initializer '{name}'")
        fields = list(read_fields(self._tensors[name]))
        if _number(fields, _DATA_TYPE) != _FLOAT:
            raise ValueError(f"the initializer '{name}' of its step.onnx is not of the type float32")
        shape = list(_numbers(fields, _DIMS))
        # One of both holds the values.
        pieces = list(_parts(fields, _RAW_DATA)) or list(_parts(fields, _FLOAT_DATA))
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return np.frombuffer(data, "<f4").reshape(shape)

    def extract_model(self, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """Return a model of the nodes that compute some outputs of the graph from other values of it.

        Args:
            inputs: Names of values that are inputs or outputs of the graph.
            outputs: Names of outputs of the graph.
        """
        needed, nodes = set(outputs), []
        # The nodes are in topological order.
        for node in reversed(list(_parts(self._graph, _NODE))):
            fields = list(read_fields(node))
            node_outputs = {bytes(name).decode() for name in _parts(fields, _NODE_OUTPUT)}
            if node_outputs & needed and not node_outputs & set(inputs):
                nodes.append(node)
                needed.update(bytes(name).decode() for name in _parts(fields, _NODE_INPUT))
        values = {_text(value, _VALUE_NAME): value for value in _parts(self._graph, _INPUT, _OUTPUT)}
        graph = [
            *(encode_field(_NODE, node) for node in reversed(nodes)),
            encode_field(_GRAPH_NAME, b"extracted"),
            *(encode_field(_INITIALIZER, tensor) for name, tensor in self._tensors.items() if name in needed),
            *(encode_field(_INPUT, values[name]) for name in inputs if name in needed),
            *(encode_field(_OUTPUT, values[name]) for name in outputs),
        ]
        others = [encoded for number, _, _, encoded in self._fields if number not in (_GRAPH, _METADATA)]
        return b"".join([*others, encode_field(_GRAPH, b"".join(graph))])


def _parts(fields: Sequence[Field], *numbers: int) -> Iterator[memoryview]:
    for number, _, value, _ in fields:
        if number in numbers:
            yield as_bytes(value)


def _text(message: memoryview, number: int) -> str:
    return b"".join(_parts(list(read_fields(message)), number)).decode()


def _number(fields: Sequence[Field], number: int) -> int:
    return next(_numbers(fields, number), 0)


def _numbers(fields: Sequence[Field], number: int) -> Iterator[int]:
    """Yield the numbers of a repeated field."""
    return read_integers(value for other, _, value, _ in fields if other == number)
