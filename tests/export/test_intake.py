"""Scaling and missing values in front of the Scan: every way through the sequence graph gives a step's bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import stablernn as srn
from exports import scan_bodies
from stablernn.export.parity import open_session
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts, fuse_sums, state_names
from stablernn.nn.models import SequenceModel

MODELS: dict[str, Any] = {
    "one feature": lambda: srn.Classifier("antisymmetric", 1, 2, 5),
    "which were observed": lambda: srn.Classifier("gru", 2, 3, 5, mask_channel=True, readout="all"),
    "missing stay missing": lambda: srn.Classifier("gru_d", 2, 3, 5),
    "missing stay missing, and which": lambda: srn.Classifier("gru_d", 2, 3, 5, mask_channel=True),
    "patches": lambda: srn.Classifier("lstm", 2, 3, 5, patch_size=3),
    "patches at the end": lambda: srn.Forecaster("gru", 2, 4, 5, patch_size=3, mask_channel=True),
    "times": lambda: srn.Classifier("cfc", 2, 3, 5, max_dt=3.0),
    "answers at every step": lambda: srn.SequencePredictor("lipschitz", 2, 3, 5, output="real"),
}
QUICK = ("one feature", "patches at the end")
TIME = 9

Arrays = dict[str, np.ndarray]


class Graphs:
    """Both graphs of a model, and their states."""

    def __init__(self, model: SequenceModel) -> None:
        self.model = model
        self.exported = export_parts(model)
        assert self.exported.input_stage is not None
        self.step_model, self.sequence_model = step_graph(self.exported), sequence_graph(self.exported)
        self.step = open_session(self.step_model.SerializeToString())
        self.sequence = open_session(self.sequence_model.SerializeToString())
        sizes = [size for _, size in model.state_roles()]
        draw = np.random.default_rng(5)
        self.state = {
            name: draw.normal(size=(1, size)).astype(np.float32)
            for name, size in zip(state_names(model), sizes, strict=True)
        }
        if model.readout != "last":
            self.state[state_names(model)[-1]][:] = 2

    def repeated(self, rows: int) -> Arrays:
        return {name: np.repeat(value, rows, axis=0) for name, value in self.state.items()}

    def run(self, graph: ort.InferenceSession, feeds: Arrays) -> Arrays:
        known = {
            value.name: np.full((len(feeds["x"]), *value.shape[1:]), np.nan, np.float32)
            for value in graph.get_inputs()
            if value.name in self.model.known_inputs
        }
        if self.model.max_dt is not None:
            feeds = {**feeds, "dt": np.full(feeds["x"].shape[:-1], 1.5, np.float32)}
        names = [output.name for output in graph.get_outputs()]
        return dict(zip(names, graph.run(names, {**feeds, **known}), strict=True))

    def stepped(self, x: np.ndarray) -> Arrays:
        """The answers of one sequence ``(time, F)``, from the step graph alone."""
        state, stride = self.state, self.model.patches.stride
        missing = np.full((-len(x) % stride, x.shape[1]), np.nan, np.float32)
        x = np.concatenate([missing, x] if self.model.patches.end_aligned else [x, missing])
        answers = {}
        for start in range(0, len(x), stride):
            sample = x[start : start + stride] if stride > 1 else x[start]
            answers = self.run(self.step, {"x": sample[None], **state})
            state = {name: answers[f"{name}_out"] for name in state}
        return answers


@functools.cache
def made(kind: str) -> Graphs:
    """The graphs of a model, exported once for all tests: they hold no state of their own."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    model.fit_scaling([np.random.default_rng(0).normal(5, 3, (50, model.input_size))])
    return Graphs(model.eval().requires_grad_(False))


@pytest.mark.parametrize(
    "kind", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
@pytest.mark.parametrize("gaps", ["none", "some", "from the first on", "all"])
def test_every_way_through_the_sequence_graph_gives_the_bits_of_its_steps(kind: str, gaps: str) -> None:
    graphs = made(kind)
    draw = np.random.default_rng(1)
    x = draw.normal(5, 3, (4, TIME, graphs.model.input_size)).astype(np.float32)
    if gaps == "some":
        x[1:][draw.random(x[1:].shape) < 0.3] = np.nan
    elif gaps == "from the first on":
        x[:, :3] = np.nan
    elif gaps == "all":
        x[:] = np.nan
    for lengths in ([TIME] * 4, [TIME, 1, 5, 7]):
        answers = graphs.run(graphs.sequence, {"x": x, "lengths": np.array(lengths), **graphs.repeated(4)})
        for row, length in enumerate(lengths):
            for name, value in graphs.stepped(x[row, :length]).items():
                got = answers[name][row : row + 1]
                if graphs.model.every_step and name in graphs.model.output_names:
                    got = got[:, length - 1]
                np.testing.assert_array_equal(got, value, f"{name} of row {row}, lengths {lengths}")


def test_behind_the_end_of_a_sequence_nothing_counts() -> None:
    graphs = made("one feature")
    x = np.random.default_rng(1).normal(size=(2, 6, 1)).astype(np.float32)
    lengths = np.array([6, 3])
    before = graphs.run(graphs.sequence, {"x": x, "lengths": lengths, **graphs.repeated(2)})
    for behind in (np.nan, np.inf, 7.0):
        x[1, 3:] = behind
        after = graphs.run(graphs.sequence, {"x": x, "lengths": lengths, **graphs.repeated(2)})
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value, f"{name}, {behind} behind the end")


def test_a_sequence_of_no_steps_ends_where_it_began() -> None:
    graphs = made("one feature")
    x = np.ones((2, 4, 1), np.float32)
    answers = graphs.run(graphs.sequence, {"x": x, "lengths": np.array([0, 0]), **graphs.repeated(2)})
    for name, value in graphs.repeated(2).items():
        np.testing.assert_array_equal(answers[f"{name}_out"], value)


@pytest.mark.parametrize(("length", "meant"), [(50, 5), (-1, 0), (-50, 0)])
def test_lengths_beyond_the_samples_count_what_there_is(length: int, meant: int) -> None:
    graphs = made("one feature")
    x = np.random.default_rng(1).normal(size=(2, 5, 1)).astype(np.float32)
    exact, beyond = (
        graphs.run(graphs.sequence, {"x": x, "lengths": np.array([5, length]), **graphs.repeated(2)})
        for length in (meant, length)
    )
    for name, value in exact.items():
        np.testing.assert_array_equal(beyond[name], value)


@pytest.mark.slow
def test_a_large_recurrence_stands_in_the_file_once() -> None:
    model = srn.Classifier("lstm", 2, 3, 260).eval().requires_grad_(False)
    graphs = Graphs(model)
    graph = graphs.sequence_model
    assert [node.op_type for node in graph.graph.node].count("Scan") == 1
    assert graph.ByteSize() < 1.1 * graphs.exported.recurrence.ByteSize()
    x = np.random.default_rng(1).normal(size=(2, 6, 2)).astype(np.float32)
    for lengths in ([6, 6], [6, 2]):
        answers = graphs.run(graphs.sequence, {"x": x, "lengths": np.array(lengths), **graphs.repeated(2)})
        for row, length in enumerate(lengths):
            for name, value in graphs.stepped(x[row, :length]).items():
                np.testing.assert_array_equal(answers[name][row : row + 1], value)


@pytest.mark.parametrize("kind", ["patches at the end", pytest.param("answers at every step", marks=pytest.mark.slow)])
def test_a_name_stands_for_one_value_in_all_nested_graphs(kind: str) -> None:
    def written(graph: onnx.GraphProto) -> list[str]:
        inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
        own = [name for node in graph.node for name in node.output] + [value.name for value in graph.input]
        # What the two branches hold never meets.
        return own + sorted({name for part in inner for name in written(part)})

    names = written(made(kind).sequence_model.graph)
    assert len(names) == len(set(names))


def test_the_body_of_a_scan_holds_the_cell_alone() -> None:
    """Each node costs its call at every step, which is most of a small cell's time."""
    bodies = scan_bodies(made("one feature").sequence_model)
    nodes = {name: [node.op_type for node in body.node] for name, body in bodies.items()}
    assert nodes == {
        "short": ["Gemm", "Tanh", "Mul", "Add"],
        "whole": ["Gemm", "Gemm", "Tanh", "Mul", "Add"],
        "padded": ["Gemm", "Gemm", "Tanh", "Mul", "Add", "Where"],
    }


def summed(added: list[int | str | None], *, again: bool = False, first: bool = False) -> onnx.ModelProto:
    """``x @ W + c``, where c has the given shape; ``again`` reads the product a second time."""
    nodes = [
        helper.make_node("Gemm", ["x", "weight"], ["product"], transB=1),
        helper.make_node("Add", ["c", "product"] if first else ["product", "c"], ["y"]),
        helper.make_node("Tanh", ["product"] if again else ["y"], ["z"]),
    ]
    inputs = [("x", ["batch", 3]), ("c", added)]
    outputs = [("y", ["batch", 4]), ("z", ["batch", 4])]
    graph = helper.make_graph(
        nodes,
        "sum",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3) - 5, "weight")],
        value_info=[helper.make_tensor_value_info("product", TensorProto.FLOAT, ["batch", 4])],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def test_a_product_that_a_branch_reads_stays() -> None:
    model = summed(["batch", 4])
    same = helper.make_node("Identity", ["product"], ["inner"])
    branch = helper.make_graph([same], "branch", [], [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)])
    always = numpy_helper.from_array(np.array(True), "always")
    model.graph.initializer.append(always)
    model.graph.node.append(helper.make_node("If", ["always"], ["chosen"], then_branch=branch, else_branch=branch))
    assert "Add" in [node.op_type for node in fuse_sums(model).graph.node]


def test_a_product_that_is_an_output_stays() -> None:
    model = summed(["batch", 4])
    model.graph.output.append(helper.make_tensor_value_info("product", TensorProto.FLOAT, ["batch", 4]))
    assert "Add" in [node.op_type for node in fuse_sums(model).graph.node]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("added", "again", "nodes"),
    [
        (["batch", 4], False, ["Gemm", "Tanh"]),
        # Without a shape that is known to be the product's: another batch, or spread over it.
        (["batch", 1], False, ["Gemm", "Add", "Tanh"]),
        (["rows", 4], False, ["Gemm", "Add", "Tanh"]),
        ([None, 4], False, ["Gemm", "Add", "Tanh"]),
        (["batch", 4], True, ["Gemm", "Add", "Tanh"]),
    ],
)
def test_a_product_takes_what_is_added_to_it_along(
    added: list[int | str | None], again: bool, nodes: list[str], first: bool
) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    c = np.random.default_rng(1).normal(size=[2 if isinstance(n, str | None) else n for n in added]).astype(np.float32)
    before = summed(added, again=again, first=first)
    expected = open_session(before.SerializeToString()).run(None, {"x": x, "c": c})
    after = fuse_sums(before)
    assert [node.op_type for node in after.graph.node] == nodes
    onnx.checker.check_model(after, full_check=True)
    for have, want in zip(open_session(after.SerializeToString()).run(None, {"x": x, "c": c}), expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)
