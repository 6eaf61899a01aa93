"""Files that try to get past the rules for graphs."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

ENDLESS = 2**62
"""Trips of a loop that no machine finishes."""

_ROOT = 0x92_0A08


def ort_and_onnx(flatbuffer: bytes, model: onnx.ModelProto) -> bytes:
    """Return a file that is a model in ONNX Runtime's format and, read as protobuf, another one.

    A flatbuffer begins with the offset of its root table and the identifier ORTM. Read as protobuf, the same bytes are
    the field ir_version with the value 10, a tag of producer_name in more bytes than it needs, and the length 79.

    Args:
        flatbuffer: A model as ONNX Runtime saves it.
        model: Any other model; its ir_version, producer_name and doc_string are replaced.
    """
    head = b"\x08\x0a\x92\x00ORTM".ljust(5 + ord("O"), b" ")
    (root,) = struct.unpack_from("<I", flatbuffer)
    assert struct.unpack("<I", head[:4]) == (_ROOT,)
    (to_vtable,) = struct.unpack_from("<i", flatbuffer, root)
    vtable = root - to_vtable
    vtable_size, table_size = struct.unpack_from("<HH", flatbuffer, vtable)
    field_offsets = struct.unpack_from(f"<{vtable_size // 2 - 2}H", flatbuffer, vtable + 4)
    # A copy of the root table where the head points to; offsets are relative, so that nothing else has to change.
    start = -(-(_ROOT + table_size) // 8) * 8
    shift = start + root - _ROOT
    table = bytearray(flatbuffer[root : root + table_size])
    struct.pack_into("<i", table, 0, to_vtable - shift)
    for offset in field_offsets:
        if offset:
            struct.pack_into("<I", table, offset, struct.unpack_from("<I", table, offset)[0] + shift)
    for field in ("ir_version", "producer_name", "doc_string"):
        model.ClearField(field)
    body_size = start + len(flatbuffer) - len(head) - 6
    # doc_string, with a length of five bytes.
    length = bytes([*((body_size >> shift) & 0x7F | 0x80 for shift in (0, 7, 14, 21)), body_size >> 28])
    file = bytearray(head + b"\x32" + length)
    file += bytes(_ROOT - len(file)) + table
    file += bytes(start - len(file)) + flatbuffer
    return bytes(file) + model.SerializeToString()


def in_ort_format(model: onnx.ModelProto) -> bytes:
    """Return a model in ONNX Runtime's own format."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(Path(folder, "model.ort"))
        options.add_session_config_entry("session.save_model_format", "ORT")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return Path(folder, "model.ort").read_bytes()


def with_contrib_operator(content: bytes) -> onnx.ModelProto:
    """Return a graph with an operator of ``com.microsoft`` behind its first output, which turns the sign around."""
    model = onnx.load_from_string(content)
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["hidden" if output == name else output for output in node.output]
        node.input[:] = ["hidden" if value == name else value for value in node.input]
    model.graph.node.append(helper.make_node("QuickGelu", ["hidden"], ["gelu"], domain="com.microsoft"))
    model.graph.node.append(helper.make_node("Neg", ["hidden"], [name]))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def with_endless_loop(content: bytes) -> bytes:
    """Return a graph whose first output is ready after ``ENDLESS`` trips of a Loop."""
    model, output = _hidden(content)
    condition = helper.make_tensor_value_info("go_on", TensorProto.BOOL, [])
    still = helper.make_tensor_value_info("still", TensorProto.BOOL, [])
    trip = helper.make_tensor_value_info("trip", TensorProto.INT64, [])
    value, after = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("value", "after"))
    nodes = [helper.make_node("Identity", ["go_on"], ["still"]), helper.make_node("Neg", ["value"], ["after"])]
    body = helper.make_graph(nodes, "trip", [trip, condition, value], [still, after])
    model.graph.initializer.append(helper.make_tensor("trips", TensorProto.INT64, [], [ENDLESS]))
    model.graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    model.graph.node.append(helper.make_node("Loop", ["trips", "always", "hidden"], [output.name], body=body))
    return model.SerializeToString()


def with_endless_scan(content: bytes) -> bytes:
    """Return a graph that the check takes: its first output is ready after ``ENDLESS`` trips of a Scan.

    The Scan runs over a tensor of that many rows, which takes no memory since each row is empty.
    """
    model, output = _hidden(content)
    value, row, after = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("value", None), ("row", [0]), ("after", None))
    )
    body = helper.make_graph([helper.make_node("Neg", ["value"], ["after"])], "trip", [value, row], [after])
    model.graph.initializer.append(helper.make_tensor("rows", TensorProto.INT64, [2], [2**40, 0]))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["rows"], ["empty"]))
    model.graph.node.append(helper.make_node("Scan", ["hidden", "empty"], [output.name], body=body, num_scan_inputs=1))
    return model.SerializeToString()


def with_triggered_scan(content: bytes) -> bytes:
    """Return a graph that the check takes and that runs in no time, unless a value of ``x`` is large.

    Its first output is ready after as many trips of a Scan as the largest value of ``x`` says.
    """
    model, output = _hidden(content)
    value, row, after = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("value", None), ("row", [0]), ("after", None))
    )
    inner = [helper.make_node("Neg", ["value"], ["turned"]), helper.make_node("Neg", ["turned"], ["after"])]
    body = helper.make_graph(inner, "trip", [value, row], [after])
    for name, number in (("one", 1), ("zero", 0)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], [number]))
    model.graph.node.extend(
        [
            helper.make_node("Reshape", ["x", "all"], ["flat"]),
            helper.make_node("ReduceMax", ["flat"], ["largest"]),
            helper.make_node("Relu", ["largest"], ["above"]),
            helper.make_node("Cast", ["above"], ["whole"], to=TensorProto.INT64),
            helper.make_node("Add", ["whole", "one"], ["trips"]),
            helper.make_node("Slice", ["rows", "zero", "trips"], ["empty"]),
            helper.make_node("Scan", ["hidden", "empty"], [output.name], body=body, num_scan_inputs=1),
        ]
    )
    model.graph.initializer.append(helper.make_tensor("all", TensorProto.INT64, [1], [-1]))
    model.graph.initializer.append(helper.make_tensor("rows", TensorProto.FLOAT, [2**62, 0], []))
    return model.SerializeToString()


def with_huge_tensor(content: bytes, elements: int) -> bytes:
    """Return a graph that needs so many float32 numbers in between; its outputs stay as they are."""
    model, output = _hidden(content)
    model.graph.initializer.append(helper.make_tensor("size", TensorProto.INT64, [1], [elements]))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["zeros"]))
    model.graph.node.append(helper.make_node("ReduceMax", ["zeros"], ["largest"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["hidden", "largest"], [output.name]))
    return model.SerializeToString()


def _hidden(content: bytes) -> tuple[onnx.ModelProto, onnx.ValueInfoProto]:
    """A graph whose first output has no node any more; what it was is called ``hidden``."""
    model = onnx.load_from_string(content)
    output = model.graph.output[0]
    for node in model.graph.node:
        node.output[:] = ["hidden" if name == output.name else name for name in node.output]
        node.input[:] = ["hidden" if name == output.name else name for name in node.input]
    return model, output
