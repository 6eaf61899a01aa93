"""Refuses ONNX graphs that refer to other files, hide their content, or run without a bound.

ONNX Runtime would follow a file name inside a graph, load any operator domain that it was built with, run a ``Loop`` as
often as the graph says, and make a ``Range`` as long as a number of a request says. The check reads the protobuf wire
format itself (https://protobuf.dev/programming-guides/encoding/), so that the runtime needs neither the `onnx` package
nor protobuf. Field numbers are from ``onnx.proto`` (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).

The check must never see less in a file than ONNX Runtime does. So it refuses a field that is not in the tables below
instead of skipping it, and a field that comes twice where it may come once: protobuf would merge the two into a message
that was not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from stablernn_runtime.errors import ModelLoadError, cut

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; the other ones are those of groups, which ONNX has none of."""
_SIZES = {FIXED64: 8, FIXED32: 4}
_LARGEST_SHIFT = 63
"""Of the last byte of a number of 64 bits, each byte of which holds seven."""

Value = int | memoryview
"""A number, or the bytes of a field of any other wire type."""
Field = tuple[int, int, Value, memoryview]
"""Number, wire type, value, and all bytes of a field, its tag included."""

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})
MINIMUM_OPSET = 18
MAXIMUM_DEPTH = 16  # graphs inside attributes of nodes; ours has three levels
BODIES = frozenset({"If", "Scan"})
"""Operators that may hold graphs. An If runs one of its graphs once, a Scan runs its graph once a step of an input."""
SIZE_OPERANDS: Mapping[str, Sequence[int]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "ImageDecoder": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Tile": (1,),
    "Upsample": (1,),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
}
"""Operators whose output may be larger than their inputs, and the positions of the inputs that say how large."""
SHAPE_OPERANDS: Mapping[str, Sequence[int]] = {
    "Compress": (1,),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "Reshape": (1,),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "StringSplit": (0,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
}
"""Operators whose output is no larger than their inputs, and the positions of the inputs by whose values its shape is
chosen; and of ``Reduce...``, the second."""
ORT_FORMAT = b"ORTM"
"""Bytes 4 to 8 of a model in ONNX Runtime's own flatbuffer format."""
_MAX_INT64 = 2**63 - 1

# Wire type by field number; fields that hold nothing to check are read as bytes. A repeated field of numbers may be
# packed, which makes it bytes.
_MODEL = {
    1: VARINT,  # ir_version
    2: BYTES,  # producer_name
    3: BYTES,  # producer_version
    4: BYTES,  # domain
    5: VARINT,  # model_version
    6: BYTES,  # doc_string
    7: BYTES,  # graph
    8: BYTES,  # opset_import
    14: BYTES,  # metadata_props
    20: BYTES,  # training_info
    25: BYTES,  # functions
    26: BYTES,  # configuration
}
_OPERATOR_SET = {1: BYTES, 2: VARINT}  # domain, version
_VALUE_INFO = {1: BYTES, 2: BYTES, 3: BYTES, 4: BYTES}  # name, type, doc_string, metadata_props
_GRAPH = {
    1: BYTES,  # node
    2: BYTES,  # name
    5: BYTES,  # initializer
    10: BYTES,  # doc_string
    11: BYTES,  # input
    12: BYTES,  # output
    13: BYTES,  # value_info
    14: BYTES,  # quantization_annotation: names only
    15: BYTES,  # sparse_initializer
    16: BYTES,  # metadata_props
}
_NODE = {
    1: BYTES,  # input
    2: BYTES,  # output
    3: BYTES,  # name
    4: BYTES,  # op_type
    5: BYTES,  # attribute
    6: BYTES,  # doc_string
    7: BYTES,  # domain
    8: BYTES,  # overload
    9: BYTES,  # metadata_props
    10: BYTES,  # device_configurations
}
_ATTRIBUTE = {
    1: BYTES,  # name
    2: FIXED32,  # f
    3: VARINT,  # i
    4: BYTES,  # s
    5: BYTES,  # t
    6: BYTES,  # g
    7: FIXED32,  # floats
    8: VARINT,  # ints
    9: BYTES,  # strings
    10: BYTES,  # tensors
    11: BYTES,  # graphs
    13: BYTES,  # doc_string
    14: BYTES,  # tp
    15: BYTES,  # type_protos
    20: VARINT,  # type
    21: BYTES,  # ref_attr_name
    22: BYTES,  # sparse_tensor
    23: BYTES,  # sparse_tensors
}
_TENSOR = {
    1: VARINT,  # dims
    2: VARINT,  # data_type
    4: FIXED32,  # float_data
    5: VARINT,  # int32_data
    6: BYTES,  # string_data
    7: VARINT,  # int64_data
    8: BYTES,  # name
    9: BYTES,  # raw_data
    10: FIXED64,  # double_data
    11: VARINT,  # uint64_data
    12: BYTES,  # doc_string
    13: BYTES,  # external_data
    14: VARINT,  # data_location
    16: BYTES,  # metadata_props
}
_REPEATED = {
    "model": {8, 14, 20, 25, 26},
    "operator set": set[int](),
    "value": {4},
    "graph": {1, 5, 11, 12, 13, 14, 15, 16},
    "node": {1, 2, 5, 9, 10},
    "attribute": {7, 8, 9, 10, 11, 15, 23},
    "tensor": {1, 4, 5, 6, 7, 10, 11, 13, 16},
}
_MESSAGES = {
    "model": _MODEL,
    "operator set": _OPERATOR_SET,
    "value": _VALUE_INFO,
    "graph": _GRAPH,
    "node": _NODE,
    "attribute": _ATTRIBUTE,
    "tensor": _TENSOR,
}

_FLOATS, _INT32S, _STRINGS, _INT64S, _RAW, _DOUBLES, _UINT64S = 4, 5, 6, 7, 9, 10, 11
_STRING_TYPE = 8
# TensorProto.DataType: bits of one element, and the field that holds elements where they are not in raw_data.
_TYPES: dict[int, tuple[int, int]] = {
    1: (32, _FLOATS),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), (8, _INT32S)),
    **dict.fromkeys((4, 5, 10, 16), (16, _INT32S)),
    6: (32, _INT32S),
    7: (64, _INT64S),
    _STRING_TYPE: (0, _STRINGS),
    11: (64, _DOUBLES),
    12: (32, _UINT64S),
    13: (64, _UINT64S),
    14: (64, _FLOATS),
    15: (128, _DOUBLES),
    **dict.fromkeys((21, 22, 23), (4, _INT32S)),
    **dict.fromkeys((25, 26), (2, _INT32S)),
}
_COMPLEX = (14, 15)

_VALUES, _SHAPE = 1, 3
"""Bits of a name: whether its values follow from those of a request, and whether its shape does, by which its values do
as well."""

_Fields = dict[int, list[Value]]
_Scope = dict[str, int]


def check_graph(content: bytes, label: str) -> None:
    """Raise unless ``content`` is one self-contained ONNX model of standard operators.

    Args:
        content: The bytes of the ``.onnx`` file.
        label: The graph as the error names it, such as ``"step.onnx of 'digits:1'"``.

    Raises:
        ModelLoadError: If it is not an ONNX model, its opset is older than 18, or it has what is not served: external
            data, functions, training information, sparse tensors, other domains, operators with a body except If and
            Scan, a Scan inside a Scan, an output as large as values of a request say, an operator that makes its output
            larger than its inputs in a branch that they choose, or a tensor that does not hold as
            many elements as it states.
    """
    # A file can be valid in both formats, and ONNX Runtime would decide for itself which of the two to read.
    if content[4:8] == ORT_FORMAT:
        raise ModelLoadError(
            f"{label} is in ONNX Runtime's own format, which cannot be checked; only ONNX graphs are served."
        )
    try:
        _check_model(memoryview(content), label)
    except (UnicodeDecodeError, WireError) as error:
        raise ModelLoadError(f"{label} is not an ONNX model: its bytes cannot be read as one.") from error


def _check_model(content: memoryview, label: str) -> None:
    fields = _read(content, "model", label)
    if 20 in fields:
        raise ModelLoadError(f"{label} holds training information; only graphs for inference are served.")
    if 25 in fields:
        raise ModelLoadError(f"{label} defines functions of its own; only standard ONNX operators are served.")
    opsets = []
    for message in fields.get(8, ()):
        operators = _read(as_bytes(message), "operator set", label)
        _check_domain(_text(operators.get(1)), label)
        opsets.append(_integer(operators.get(2)))
    if not opsets:
        raise ModelLoadError(f"{label} is not an ONNX model: it names no opset.")
    if min(opsets) < MINIMUM_OPSET:
        raise ModelLoadError(
            f"{label} uses opset {min(opsets)}; opset {MINIMUM_OPSET} or higher is served. Export it again."
        )
    for graph in fields.get(7, ()):
        _check_graph(as_bytes(graph), label, {}, _VALUES, depth=0, in_scan=False, is_chosen=False)


def _check_graph(
    graph: memoryview, label: str, outer: _Scope, inputs: int, depth: int, in_scan: bool, is_chosen: bool
) -> int:
    """Check a graph and those inside it.

    Args:
        graph: The bytes of the graph.
        label: The model as errors name it.
        outer: The bits of the names that it may use of the graphs around it.
        inputs: The bits of its inputs.
        depth: Number of graphs around it.
        in_scan: Whether one of them is that of a Scan.
        is_chosen: Whether it is run or not by values of a request, so that the trial opening may not have run it.

    Returns:
        The bits of its outputs, all together.

    Raises:
        ModelLoadError: If it is not served.
    """
    if depth > MAXIMUM_DEPTH:
        raise ModelLoadError(f"{label} nests graphs deeper than {MAXIMUM_DEPTH} levels.")
    fields = _read(graph, "graph", label)
    if 15 in fields:
        raise _sparse(label)
    scope = dict(outer)
    for tensor in fields.get(5, ()):
        scope[_check_tensor(as_bytes(tensor), label)] = 0
    # Last: an input of the name of an initializer replaces it.
    scope |= dict.fromkeys(_names(fields.get(11, ()), label), inputs)
    for node in fields.get(1, ()):
        _check_node(as_bytes(node), label, scope, depth, in_scan, is_chosen)
    bits = 0
    for name in _names(fields.get(12, ()), label):
        bits |= scope.get(name, _SHAPE)
    return bits


def _names(values: Iterable[Value], label: str) -> list[str]:
    return [_text(_read(as_bytes(value), "value", label).get(1)) for value in values]


def _check_node(node: memoryview, label: str, scope: _Scope, depth: int, in_scan: bool, is_chosen: bool) -> None:
    """Check a node and the graphs inside it, and add the bits of its outputs to ``scope``."""
    fields = _read(node, "node", label)
    operator = _text(fields.get(4))
    _check_domain(_text(fields.get(7)), label)
    # A trip count of 2^62 takes eight bytes, and nothing in the file or in a request bounds it.
    if operator == "Loop":
        raise ModelLoadError(
            f"{label} uses the operator 'Loop', whose running time has no bound; use Scan, which runs once a time step."
        )
    if operator == "Scan" and in_scan:
        raise ModelLoadError(f"{label} has a Scan inside a Scan; only one pass over the time steps is served.")
    # Graphs of cells whose state begins at a trained value expand it to the batch there.
    if operator in SIZE_OPERANDS and operator != "Expand" and is_chosen:
        raise ModelLoadError(
            f"{label} has a node '{cut(operator)}' in a branch of an If that values of a request choose, so that no "
            "trial tells how much memory it takes; move it in front of the If."
        )
    operands = [_operand_bits(scope, _text([name]), label) for name in fields.get(1, ())]
    bits = _output_bits(operator, operands, label)
    for attribute in fields.get(5, ()):
        parts = _read(as_bytes(attribute), "attribute", label)
        if 22 in parts or 23 in parts:
            raise _sparse(label)
        for tensor in (*parts.get(5, ()), *parts.get(10, ())):
            _check_tensor(as_bytes(tensor), label)
        for graph in (*parts.get(6, ()), *parts.get(11, ())):
            if operator not in BODIES:
                raise ModelLoadError(
                    f"{label} uses the operator '{cut(operator)}', which has a graph inside; of such operators only "
                    f"{' and '.join(sorted(BODIES))} are served."
                )
            bits |= _body_bits(as_bytes(graph), label, scope, operator, operands, depth + 1, in_scan, is_chosen)
    scope |= dict.fromkeys((_text([name]) for name in fields.get(2, ())), bits)


def _operand_bits(scope: _Scope, name: str, label: str) -> int:
    if not name:
        # An optional input that is left out.
        return 0
    if name not in scope:
        raise ModelLoadError(f"{label} uses the value '{cut(name)}' before a node computes it; sort its nodes.")
    return scope[name]


def _output_bits(operator: str, operands: Sequence[int], label: str) -> int:
    """Return the bits of the outputs of a node without the graphs inside it.

    Raises:
        ModelLoadError: If values of a request say how large its output is.
    """
    if any(operands[position] for position in SIZE_OPERANDS.get(operator, ()) if position < len(operands)):
        raise ModelLoadError(
            f"{label} has a node '{operator}' whose output is as large as values of a request say; compute the size "
            "from the shapes of the inputs, or make it constant."
        )
    if operator in ("Shape", "Size"):
        return _VALUES if _SHAPE in operands else 0
    bits = 0
    for operand in operands:
        bits |= operand
    positions = (1,) if operator.startswith("Reduce") else SHAPE_OPERANDS.get(operator, ())
    if any(operands[position] for position in positions if position < len(operands)):
        bits |= _SHAPE
    return bits


def _body_bits(
    graph: memoryview,
    label: str,
    scope: _Scope,
    operator: str,
    operands: Sequence[int],
    depth: int,
    in_scan: bool,
    is_chosen: bool,
) -> int:
    """Check a graph inside a node, and return the bits of the outputs that it adds to the node's."""
    if operator == "If":
        return _check_graph(graph, label, scope, 0, depth, in_scan, is_chosen or any(operands))
    bits = 0
    for operand in operands:
        bits |= operand
    # The states of a Scan go from its outputs to its inputs.
    while (outputs := bits | _check_graph(graph, label, scope, bits, depth, True, is_chosen)) != bits:
        bits = outputs
    return bits


def _check_tensor(tensor: memoryview, label: str) -> str:
    """Check a tensor and return its name."""
    fields = _read(tensor, "tensor", label)
    if 13 in fields or _integer(fields.get(14)) != 0:
        raise ModelLoadError(f"{label} refers to external data; only graphs in a single file are served.")
    data_type = _integer(fields.get(2))
    if data_type not in _TYPES:
        raise ModelLoadError(f"{label} holds a tensor of the type {data_type}, which is none of ONNX's.")
    elements = 1
    for size in read_integers(fields.get(1, ())):
        # A negative size is a varint of 2^63 or more.
        elements *= size
        if size > _MAX_INT64 or elements > _MAX_INT64:
            raise ModelLoadError(f"{label} holds a tensor of a size that no memory has.")
    bits, typed = _TYPES[data_type]
    stored = [number for number in (_FLOATS, _INT32S, _STRINGS, _INT64S, _RAW, _DOUBLES, _UINT64S) if number in fields]
    if len(stored) > 1 or not set(stored) <= {typed, _RAW} or (data_type == _STRING_TYPE and _RAW in fields):
        raise ModelLoadError(f"{label} holds a tensor whose data is not of its type.")
    if data_type == _STRING_TYPE:
        count, needed = len(fields.get(_STRINGS, ())), elements
    elif _RAW in fields:
        count, needed = len(as_bytes(fields[_RAW][0])), -(-elements * bits // 8)
    else:
        count, needed = _count(fields.get(typed, ()), _TENSOR[typed]), elements
        if bits < 8:
            # Several elements in a byte.
            needed = -(-elements * bits // 8)
        elif data_type in _COMPLEX:
            # A real and an imaginary part.
            needed = 2 * elements
    if count != needed:
        raise ModelLoadError(f"{label} holds a tensor of {elements} elements with the data of another number of them.")
    return _text(fields.get(8))


def _check_domain(domain: str, label: str) -> None:
    if domain not in STANDARD_DOMAINS:
        raise ModelLoadError(
            f"{label} uses the operator domain '{cut(domain)}'; only standard ONNX operators are served."
        )


def _sparse(label: str) -> ModelLoadError:
    return ModelLoadError(
        f"{label} holds a sparse tensor, whose size its data does not bound; store it as a dense one."
    )


def _read(message: memoryview, kind: str, label: str) -> _Fields:
    """Return the values of a message by field number, in their order.

    Args:
        message: The bytes of the message.
        kind: A key of ``_MESSAGES``.
        label: The graph as errors name it.

    Raises:
        ModelLoadError: If it has a field that is not in the table of its kind.
    """
    table, repeated = _MESSAGES[kind], _REPEATED[kind]
    fields: _Fields = {}
    for number, wire, value, _ in read_fields(message):
        # protobuf may pack repeated numbers into one field of bytes.
        is_packed = wire == BYTES and number in repeated
        if number in table and wire != table[number] and not is_packed:
            raise WireError(f"field {number} of a {kind} has the wire type {wire}")
        if number in fields and number not in repeated:
            raise WireError(f"field {number} of a {kind} comes twice")
        fields.setdefault(number, []).append(value)
    # Last: bytes that are no message at all get the error for that.
    if unknown := sorted(fields.keys() - table.keys()):
        raise ModelLoadError(
            f"{label} has a field {unknown[0]} in a {kind} that this server does not know and cannot check. Export it "
            "again for an older version of ONNX."
        )
    return fields


def _text(values: list[Value] | None) -> str:
    """Return the text of a field that comes once at most; empty where it is absent."""
    return bytes(as_bytes(values[0])).decode() if values else ""


def _integer(values: list[Value] | None) -> int:
    """Return the number of a field that comes once at most; 0 where it is absent."""
    value = values[0] if values else 0
    if not isinstance(value, int):
        raise WireError("a message where a number belongs")
    return value


def _count(values: Iterable[Value], wire: int) -> int:
    """Return how many numbers a repeated field holds, packed or not."""
    count = 0
    for value in values:
        if isinstance(value, int):
            count += 1
        elif wire == VARINT:
            # Each number ends with its only byte without the high bit.
            count += int(np.count_nonzero(np.frombuffer(value, np.uint8) < 0x80))
        else:
            count += len(value) // (4 if wire == FIXED32 else 8)
    return count


class WireError(ValueError):
    """Bytes that are not a message of the expected kind."""


def read_fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in their order.

    Raises:
        WireError: If a field does not end within the message, or has another wire type.
    """
    position = 0
    while position < len(message):
        start = position
        tag, position = read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        value: Value
        if wire == VARINT:
            value, position = read_varint(message, position)
        else:
            if wire == BYTES:
                size, position = read_varint(message, position)
            elif wire in _SIZES:
                size = _SIZES[wire]
            else:
                raise WireError(f"wire type {wire} is not used by ONNX")
            if position + size > len(message):
                raise WireError("a field is longer than its message")
            value = message[position : position + size]
            position += size
        yield number, wire, value, message[start:position]


def read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the number that begins at ``position``, seven bits a byte from the lowest on, and the position behind.

    Raises:
        WireError: If the message ends within it, or it is longer than 64 bits.
    """
    value = shift = 0
    while position < len(message):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        # The last byte of a number has no high bit.
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _LARGEST_SHIFT:
            raise WireError("a number is longer than 64 bits")
    raise WireError("a number is longer than its message")


def as_bytes(value: Value) -> memoryview:
    """Return the value of a field that holds a message, a text or bytes.

    Raises:
        WireError: If it is a number.
    """
    if isinstance(value, int):
        raise WireError("a number where a message belongs")
    return value


def read_integers(values: Iterable[Value]) -> Iterator[int]:
    """Yield the numbers of a repeated field, packed or not.

    Raises:
        WireError: If packed ones do not end within their field.
    """
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        position = 0
        while position < len(value):
            number, position = read_varint(value, position)
            yield number


def encode_field(number: int, content: bytes | memoryview) -> bytes:
    """Return a field of bytes."""
    return _encode_varint(number << 3 | BYTES) + _encode_varint(len(content)) + bytes(content)


def _encode_varint(value: int) -> bytes:
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
