"""Graphs made to get past the check: as bytes to the check itself, and as published versions through the real path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from hostile_graphs import in_ort_format, ort_and_onnx, with_contrib_operator
from published_models import Published, copy_registry, copy_version
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.session import Placement, open_session
from stablernn_runtime.errors import ModelLoadError
from stablernn_runtime.graph_safety import check_graph, encode_field

NOT_ONNX = "g is not an ONNX model: its bytes cannot be read as one."
EXTERNAL = "g refers to external data; only graphs in a single file are served."
SPARSE = "g holds a sparse tensor, whose size its data does not bound; store it as a dense one."


@pytest.fixture(scope="module")
def step(published: Published) -> bytes:
    return published.registry.get("animals:1").read("step.onnx")


@pytest.fixture(scope="module")
def both(step: bytes) -> bytes:
    """A file of two models: without a format named, ONNX Runtime takes that with the operator of ``com.microsoft``."""
    return ort_and_onnx(in_ort_format(with_contrib_operator(step)), onnx.load_from_string(step))


def first_output(session: ort.InferenceSession) -> np.ndarray:
    feeds = {
        value.name: np.zeros([size if isinstance(size, int) else 1 for size in value.shape], np.float32)
        for value in session.get_inputs()
    }
    return np.asarray(session.run(None, feeds)[0])


def test_a_file_that_is_a_flatbuffer_and_protobuf_is_refused(step: bytes, both: bytes) -> None:
    unnamed = ort.InferenceSession(both, providers=["CPUExecutionProvider"])
    honest = ort.InferenceSession(step, providers=["CPUExecutionProvider"])
    assert np.array_equal(first_output(unnamed), -first_output(honest))
    with pytest.raises(ModelLoadError, match="g is in ONNX Runtime's own format, which cannot be checked"):
        check_graph(both, "g")


def test_a_session_reads_what_was_checked_whatever_the_first_bytes_say(step: bytes, both: bytes) -> None:
    session = open_session(both, "g", Placement("cpu"), 1)
    assert np.array_equal(first_output(session), first_output(open_session(step, "g", Placement("cpu"), 1)))
    with pytest.raises(ModelLoadError, match=r"^g cannot be opened by ONNX Runtime "):
        open_session(in_ort_format(with_contrib_operator(step)), "g", Placement("cpu"), 1)


def test_a_published_file_of_two_formats_is_not_served(published: Published, tmp_path: Path, both: bytes) -> None:
    registry = copy_registry(tmp_path / "registry", published)
    version = copy_version(registry, published.registry.get("animals:1"), step_onnx=both)
    with pytest.raises(ModelLoadError, match=r"step\.onnx of 'animals:3' is in ONNX Runtime's own format, which"):
        ServedModel.load(version, "cpu")


def _training(model: onnx.ModelProto) -> None:
    tensor = model.training_info.add().initialization.initializer.add(dims=[1], data_type=1)
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"


def _external_in_an_attribute_list(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="tensors", type=onnx.AttributeProto.TENSORS)
    attribute.tensors.add(dims=[1], data_type=1, data_location=TensorProto.EXTERNAL)


def _initializer(**fields: object) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(onnx.TensorProto(name="added", **fields))  # type: ignore[arg-type]

    return change


def _sparse_initializer(model: onnx.ModelProto) -> None:
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2**60]))


def _sparse_attribute(model: onnx.ModelProto) -> None:
    _sparse_initializer(model)
    attribute = model.graph.node[0].attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(model.graph.sparse_initializer.pop())


def _body(operator: str) -> onnx.NodeProto:
    inner = helper.make_graph([], "inner", [], [])
    return helper.make_node(operator, [], [], body=inner)


def _loop_in_a_branch(model: onnx.ModelProto) -> None:
    branch = helper.make_graph([_body("Loop")], "branch", [], [])
    model.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch))


def _scan_in_a_scan(model: onnx.ModelProto) -> None:
    branch = helper.make_graph([_body("Scan")], "branch", [], [])
    inner = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=branch)], "inner", [], [])
    model.graph.node.append(helper.make_node("Scan", [], [], body=inner))


def _sequence_map(model: onnx.ModelProto) -> None:
    model.graph.node.append(_body("SequenceMap"))


UNEVEN = "g holds a tensor of {} elements with the data of another number of them."
HUGE = "g holds a tensor of a size that no memory has."
CASES: list[tuple[Callable[[onnx.ModelProto], None], str]] = [
    (_training, "g holds training information; only graphs for inference are served."),
    (_external_in_an_attribute_list, EXTERNAL),
    (_initializer(dims=[2**60], data_type=1, raw_data=b"\0" * 4), UNEVEN.format(2**60)),
    (_initializer(dims=[-4], data_type=1, raw_data=b""), HUGE),
    (_initializer(dims=[4], data_type=1), UNEVEN.format(4)),
    (_initializer(dims=[4], data_type=1, float_data=[1.0] * 3), UNEVEN.format(4)),
    (_initializer(dims=[3], data_type=8, string_data=[b"a"]), UNEVEN.format(3)),
    (_initializer(dims=[1], data_type=1, int64_data=[1]), "g holds a tensor whose data is not of its type."),
    (_initializer(dims=[1], data_type=99), "g holds a tensor of the type 99, which is none of ONNX's."),
    (_sparse_initializer, SPARSE),
    (_sparse_attribute, SPARSE),
    (
        _loop_in_a_branch,
        "g uses the operator 'Loop', whose running time has no bound; use Scan, which runs once a time step.",
    ),
    (_scan_in_a_scan, "g has a Scan inside a Scan; only one pass over the time steps is served."),
    (
        _sequence_map,
        "g uses the operator 'SequenceMap', which has a graph inside; of such operators only If and Scan are served.",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), CASES)
def test_what_hides_or_has_no_bound_is_refused(
    step: bytes, change: Callable[[onnx.ModelProto], None], sentence: str
) -> None:
    model = onnx.load_from_string(step)
    change(model)
    with pytest.raises(ModelLoadError) as caught:
        check_graph(model.SerializeToString(), "g")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "change",
    [
        _initializer(dims=[], data_type=1, float_data=[1.0]),
        _initializer(dims=[0, 2**40], data_type=1),
        _initializer(dims=[2], data_type=14, float_data=[1.0] * 4),
        _initializer(dims=[5], data_type=22, raw_data=b"\0\0\0"),
        _initializer(dims=[2], data_type=8, string_data=[b"a", b""]),
    ],
)
def test_tensors_that_hold_what_they_state_pass(step: bytes, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load_from_string(step)
    change(model)
    check_graph(model.SerializeToString(), "g")


def test_a_field_that_the_check_does_not_know_is_refused(step: bytes) -> None:
    # Field 99 of the model, with one byte in it.
    with pytest.raises(ModelLoadError, match="g has a field 99 in a model that this server does not know and cannot"):
        check_graph(step + b"\x9a\x06\x01a", "g")


def test_messages_that_protobuf_would_merge_are_refused(step: bytes) -> None:
    # A second graph would be added to the first, and a tensor that is split in two is sound in each half.
    half = onnx.TensorProto(dims=[2], data_type=1, raw_data=b"\0" * 8).SerializeToString()
    tensors = [half, half + half]
    for tensor, is_sound in zip(tensors, (True, False), strict=True):
        graph = b"\x2a" + bytes([len(tensor)]) + tensor
        content = onnx.ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 18)]).SerializeToString()
        content += b"\x3a" + bytes([len(graph)]) + graph
        if is_sound:
            check_graph(content, "g")
            content += b"\x3a" + bytes([len(graph)]) + graph
        with pytest.raises(ModelLoadError) as caught:
            check_graph(content, "g")
        assert str(caught.value) == NOT_ONNX


def test_an_attribute_with_two_graphs_is_refused() -> None:
    # Each is sound, and protobuf would merge them.
    graph = helper.make_graph([], "g", [], []).SerializeToString()
    attribute = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH).SerializeToString()
    for count in (1, 2):
        node = onnx.NodeProto(op_type="If").SerializeToString() + encode_field(
            5, attribute + count * encode_field(6, graph)
        )
        model = onnx.ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 18)]).SerializeToString()
        model += encode_field(7, encode_field(1, node))
        if count == 1:
            check_graph(model, "g")
    with pytest.raises(ModelLoadError):
        check_graph(model, "g")


def _graph(nodes: Sequence[onnx.NodeProto], sizes: Sequence[int] = (4,)) -> bytes:
    """A graph from ``x`` (float32) and ``n`` (int64), whose constant ``sizes`` has the numbers given."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "time"]),
        helper.make_tensor_value_info("n", TensorProto.INT64, [1]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [helper.make_tensor("sizes", TensorProto.INT64, [len(sizes)], list(sizes))]
    graph = helper.make_graph(list(nodes), "g", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def _scan(inner: onnx.NodeProto, initial: str) -> onnx.NodeProto:
    """A Scan over ``x`` whose state begins with ``initial``, with one node that makes ``out`` from ``state``."""
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("state", "row", "out")]
    after = helper.make_node("Cast", ["row"], ["next"], to=TensorProto.INT64)
    following = helper.make_tensor_value_info("next", TensorProto.INT64, None)
    body = helper.make_graph([inner, after], "body", values[:2], [following, values[2]])
    return helper.make_node("Scan", [initial, "x"], ["last", "y"], body=body, num_scan_inputs=1)


_node = helper.make_node
LARGE = {
    "a count": [_node("ConstantOfShape", ["n"], ["y"])],
    "a range": [_node("Squeeze", ["n"], ["end"]), _node("Range", ["end", "end", "end"], ["y"])],
    "an expansion by what it is computed from": [
        _node("Mul", ["n", "sizes"], ["m"]),
        _node("Expand", ["x", "m"], ["y"]),
    ],
    "the number of values that are not zero": [
        _node("NonZero", ["x"], ["places"]),
        _node("Shape", ["places"], ["count"]),
        _node("Mul", ["count", "sizes"], ["m"]),
        _node("ConstantOfShape", ["m"], ["y"]),
    ],
    "the sum of as many constants": [
        _node("Slice", ["sizes", "n", "n"], ["some"]),
        _node("ReduceSum", ["some"], ["sum"]),
        _node("ConstantOfShape", ["sum"], ["y"]),
    ],
    "a state of a scan that begins constant": [_scan(_node("ConstantOfShape", ["state"], ["out"]), "sizes")],
    "a branch": [
        _node("Cast", ["n"], ["is_true"], to=TensorProto.BOOL),
        _node(
            "If",
            ["is_true"],
            ["size"],
            then_branch=helper.make_graph(
                [_node("Identity", ["sizes"], ["a"])], "a", [], [helper.make_tensor_value_info("a", 7, None)]
            ),
            else_branch=helper.make_graph(
                [_node("Identity", ["sizes"], ["b"])], "b", [], [helper.make_tensor_value_info("b", 7, None)]
            ),
        ),
        _node("ConstantOfShape", ["size"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", LARGE)
def test_an_output_as_large_as_values_say_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError, match="whose output is as large as values of a request say"):
        check_graph(_graph(LARGE[name]), "g")


def test_a_branch_that_values_choose_makes_nothing_larger() -> None:
    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    def choice(larger: onnx.NodeProto, condition: str) -> bytes:
        branches = {"then_branch": branch("a", larger), "else_branch": branch("b", _node("Identity", ["x"], ["b"]))}
        node = _node("If", ["is_true"], ["y"], **branches)
        return _graph([_node("Cast", [condition], ["is_true"], to=TensorProto.BOOL), node])

    check_graph(choice(_node("Identity", ["x"], ["a"]), "n"), "g")
    check_graph(choice(_node("Tile", ["x", "sizes"], ["a"]), "sizes"), "g")
    # As in the exports of cells with a trained initial state.
    check_graph(choice(_node("Expand", ["x", "sizes"], ["a"]), "n"), "g")
    with pytest.raises(ModelLoadError, match="'Tile' in a branch of an If"):
        check_graph(choice(_node("Tile", ["x", "sizes"], ["a"]), "n"), "g")


def test_an_output_as_large_as_the_inputs_is_served() -> None:
    nodes = [
        _node("Shape", ["x"], ["shape"]),
        _node("ConstantOfShape", ["shape"], ["zeros"]),
        _node("Tile", ["x", "sizes"], ["tiled"]),
        _node("Add", ["x", "zeros"], ["sum"]),
        _node("Slice", ["sum", "n", "n"], ["part"]),
        _node("Expand", ["n", "shape"], ["y"]),
    ]
    check_graph(_graph(nodes, [1, 2]), "g")


def test_a_value_that_is_used_before_it_is_computed_is_refused() -> None:
    nodes = [_node("ConstantOfShape", ["m"], ["y"]), _node("Identity", ["n"], ["m"])]
    with pytest.raises(ModelLoadError, match="'m' before"):
        check_graph(_graph(nodes), "g")
