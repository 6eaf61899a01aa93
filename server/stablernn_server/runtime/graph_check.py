"""Refuses ONNX graphs that could reach outside themselves: external data, functions, operators of other domains.

ONNX Runtime would follow a file name inside a graph and load whatever operator domain it knows. The check reads the
protobuf wire format itself, so that the server needs neither the `onnx` package nor protobuf. Field numbers are from
``onnx.proto`` (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

from collections.abc import Iterator

from stablernn_server.errors import ModelLoadError

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})
MINIMUM_OPSET = 18
MAXIMUM_DEPTH = 16  # graphs inside attributes of nodes; ours has three levels


def check_graph(content: bytes, what: str) -> None:
    """Raise unless ``content`` is one self-contained ONNX model of standard operators.

    Args:
        content: The bytes of the ``.onnx`` file.
        what: What to call it in the error, such as ``"step.onnx of 'digits:1'"``.

    Raises:
        ModelLoadError: If it is not an ONNX model, or refers to external data, functions or other domains, or its opset
            is older than 18.
    """
    try:
        _check_model(memoryview(content), what)
    except (IndexError, UnicodeDecodeError, _WireError) as error:
        raise ModelLoadError(f"{what} is not an ONNX model: its bytes cannot be read as one.") from error


def _check_model(content: memoryview, what: str) -> None:
    opset = None
    for number, value in _fields(content):
        if number == 7:  # ModelProto.graph
            _check_graph(_message(value), what, depth=0)
        elif number == 8:  # ModelProto.opset_import
            fields = dict(_fields(_message(value)))
            domain = _text(fields.get(1, memoryview(b"")))
            _check_domain(domain, what)
            opset = fields.get(2)
        elif number == 25:  # ModelProto.functions
            raise ModelLoadError(f"{what} defines functions of its own; only standard ONNX operators are served.")
    if not isinstance(opset, int):
        raise ModelLoadError(f"{what} is not an ONNX model: it names no opset.")
    if opset < MINIMUM_OPSET:
        raise ModelLoadError(f"{what} uses opset {opset}; opset {MINIMUM_OPSET} or higher is served. Export it again.")


def _check_graph(graph: memoryview, what: str, depth: int) -> None:
    if depth > MAXIMUM_DEPTH:
        raise ModelLoadError(f"{what} nests graphs deeper than {MAXIMUM_DEPTH} levels.")
    for number, value in _fields(graph):
        if number == 1:  # GraphProto.node
            _check_node(_message(value), what, depth)
        elif number == 5:  # GraphProto.initializer
            _check_tensor(_message(value), what)
        elif number == 15:  # GraphProto.sparse_initializer
            _check_sparse(_message(value), what)


def _check_node(node: memoryview, what: str, depth: int) -> None:
    for number, value in _fields(node):
        if number == 7:  # NodeProto.domain
            _check_domain(_text(value), what)
        elif number == 5:  # NodeProto.attribute
            for kind, part in _fields(_message(value)):
                if kind in (5, 10):  # AttributeProto.t, tensors
                    _check_tensor(_message(part), what)
                elif kind in (6, 11):  # AttributeProto.g, graphs
                    _check_graph(_message(part), what, depth + 1)
                elif kind in (22, 23):  # AttributeProto.sparse_tensor, sparse_tensors
                    _check_sparse(_message(part), what)


def _check_sparse(sparse: memoryview, what: str) -> None:
    for number, value in _fields(sparse):
        if number in (1, 2):  # SparseTensorProto.values, indices
            _check_tensor(_message(value), what)


def _check_tensor(tensor: memoryview, what: str) -> None:
    for number, value in _fields(tensor):
        if number == 13 or (number == 14 and value == 1):  # TensorProto.external_data, data_location EXTERNAL
            raise ModelLoadError(f"{what} refers to external data; only graphs in a single file are served.")


def _check_domain(domain: str, what: str) -> None:
    if domain not in STANDARD_DOMAINS:
        raise ModelLoadError(f"{what} uses the operator domain '{domain}'; only standard ONNX operators are served.")


class _WireError(ValueError):
    pass


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values of one protobuf message; fixed-size numbers are skipped, nothing here is one."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
        elif kind == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise _WireError("a field is longer than its message")
            yield number, message[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _WireError(f"wire type {kind} is not used by ONNX")
    if at != len(message):
        raise _WireError("the message ends inside a field")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _WireError("a number is longer than 64 bits")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _WireError("a number where a message belongs")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_message(value)).decode()
