"""Scans with fewer nodes than a step: residual states divided by their step size, and products in front of them."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import stablernn as srn
from exports import scan_bodies
from model_helpers import mark_fitted
from stablernn.errors import ParityError
from stablernn.export.parity import check_parity, open_session
from stablernn.export.residual_steps import scale_states
from stablernn.export.scan import MAX_ELEMENTS, MAX_STEP_NODES, sequence_graph, step_graph
from stablernn.export.step import ModelParts, drop_identities, export_parts, state_names
from stablernn.nn.models import SequenceModel


def classifier(cell: str, cell_options: Mapping[str, Any] | None = None, **options: Any) -> SequenceModel:
    """A classifier with trained biases: those of zero are left out of the graphs."""
    torch.manual_seed(0)
    model = srn.Classifier(cell, 2, 3, options.pop("hidden_size", 9), cell_options=cell_options, **options)
    with torch.no_grad():
        for parameter in model.rnn.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return mark_fitted(model).eval().requires_grad_(False)


@functools.cache
def exported(cell: str, step_size: float | None = None, **options: Any) -> tuple[SequenceModel, ModelParts]:
    """A classifier and its parts, exported once for all tests, which leave the parts as they are."""
    model = classifier(cell, None if step_size is None else {"step_size": step_size}, **options)
    return model, export_parts(model)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def operations(parts: ModelParts) -> dict[str, list[str]]:
    return {name: [node.op_type for node in body.node] for name, body in scan_bodies(sequence_graph(parts)).items()}


def run(graph: onnx.ModelProto, model: SequenceModel, x: np.ndarray, lengths: list[int]) -> dict[str, np.ndarray]:
    """All outputs from random states, the same for each row."""
    session = open_session(graph.SerializeToString())
    generator = np.random.default_rng(3)
    states = {
        name: np.repeat(generator.normal(size=(1, size)).astype(np.float32), len(x), axis=0)
        for name, (_, size) in zip(state_names(model), model.state_roles(), strict=True)
    }
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x, "lengths": np.array(lengths), **states}), strict=True))


@pytest.mark.parametrize(
    ("cell", "step_size", "short"),
    [
        ("antisymmetric", 0.5, ["Gemm", "Tanh", "Add"]),
        slow("antisymmetric", 0.3, ["Gemm", "Tanh", "Mul", "Add"]),
        slow("neural_ode_rnn", 0.25, ["Gemm", "Tanh", "Add"]),
        ("lipschitz", 0.5, ["Gemm", "Tanh", "Add", "Gemm"]),
        slow("lipschitz", 0.3, ["Gemm", "Tanh", "Mul", "Add", "Gemm"]),
        ("rnn", None, ["Gemm", "Tanh"]),
    ],
)
def test_a_step_in_the_scan_has_few_nodes(cell: str, step_size: float | None, short: list[str]) -> None:
    nodes = operations(exported(cell, step_size)[1])
    assert nodes == {"short": short, "whole": ["Gemm", *short], "padded": ["Gemm", *short, "Where"]}


@pytest.mark.slow
def test_both_stages_of_a_midpoint_step_lose_their_split() -> None:
    _, parts = exported("lipschitz_rk2", 0.5)
    stage = ["Gemm", "Tanh", "Mul", "Add", "Gemm"]
    assert [node.op_type for node in parts.recurrence.graph.node] == ["Gemm", *stage, *stage]
    # Of more than MAX_STEP_NODES nodes, one less is not noticed.
    assert len(stage) * 2 > MAX_STEP_NODES
    assert operations(parts).keys() == {"whole", "padded"}


@pytest.mark.parametrize(
    ("cell", "step_size", "options"),
    [
        ("lipschitz", 0.5, {}),
        ("antisymmetric", 0.5, {"patch_size": 4, "mask_channel": True}),
        slow("antisymmetric", 0.5, {}),
        slow("antisymmetric", 0.3, {}),
        slow("lipschitz", 4.0, {}),
        slow("neural_ode_rnn", 0.25, {}),
        slow("antisymmetric", 0.5, {"num_layers": 2}),
        slow("antisymmetric", 0.5, {"members": 2}),
        slow("lipschitz", 0.5, {"readout": "all"}),
    ],
    ids=str,
)
def test_a_reduced_scan_gives_the_bits_of_a_whole_one(cell: str, step_size: float, options: dict[str, Any]) -> None:
    model, parts = exported(cell, step_size, **options)
    reduced, whole = sequence_graph(parts), sequence_graph(parts, is_reduced=False)
    x = np.random.default_rng(0).normal(size=(3, 11, 2)).astype(np.float32)
    x[1, 4] = np.nan
    for lengths in ([11, 11, 11], [11, 3, 7]):
        expected = run(whole, model, x, lengths)
        for name, value in run(reduced, model, x, lengths).items():
            np.testing.assert_array_equal(value, expected[name], f"{name}, lengths {lengths}")
    alone = run(reduced, model, x[:1], [11])
    copies = MAX_ELEMENTS // (9 * 2) // 11 + 2
    for name, value in run(reduced, model, np.repeat(x[:1], copies, axis=0), [11] * copies).items():
        np.testing.assert_array_equal(value, np.repeat(alone[name], copies, axis=0), f"{name} in a long batch")


@pytest.mark.parametrize(
    ("cell", "step_size", "options", "scales"),
    [
        ("lipschitz", 0.5, {}, {"state_1": 0.5}),
        slow("antisymmetric", 0.5, {"num_layers": 2}, {"state_1": 0.5, "state_2": 0.5}),
        slow("lipschitz", 4.0, {}, {"state_1": 4.0}),
        slow("antisymmetric", 0.3, {}, {}),
        slow("antisymmetric", 1.0, {}, {}),
        # The mean of the outputs reads the state itself.
        ("antisymmetric", 0.5, {"readout": "mean"}, {}),
        slow("antisymmetric", 0.5, {"max_dt": 2.0}, {}),
        slow("gru", None, {}, {}),
    ],
    ids=str,
)
def test_states_are_scaled_by_powers_of_two_alone(
    cell: str, step_size: float | None, options: dict[str, Any], scales: dict[str, float]
) -> None:
    recurrence = exported(cell, step_size, **options)[1].recurrence
    before = recurrence.SerializeToString(deterministic=True)
    assert scale_states(recurrence)[1] == scales
    assert recurrence.SerializeToString(deterministic=True) == before


def test_a_state_is_not_scaled_where_a_weight_would_lose_bits() -> None:
    recurrence = onnx.ModelProto()
    recurrence.CopyFrom(exported("antisymmetric", 0.5)[1].recurrence)
    weight = next(tensor for tensor in recurrence.graph.initializer if "weight_0_0" in tensor.name)
    values = numpy_helper.to_array(weight).copy()
    # The smallest number of float32 has no half.
    values[0, 1] = 2.0**-149
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    assert scale_states(recurrence)[1] == {}


@pytest.mark.parametrize("branch", ["short", "whole", "padded"])
def test_parity_runs_every_branch(branch: str) -> None:
    model, parts = exported("antisymmetric", 0.5)
    step, sequence = step_graph(parts).SerializeToString(), sequence_graph(parts)
    check_parity(model, step, sequence.SerializeToString())
    _spoil(scan_bodies(sequence)[branch])
    with pytest.raises(ParityError, match="not bitwise equal"):
        check_parity(model, step, sequence.SerializeToString())


def test_export_keeps_all_nodes_where_fewer_change_the_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def spoiled_graph(parts: ModelParts, *, is_reduced: bool = True) -> onnx.ModelProto:
        graph = sequence_graph(parts, is_reduced=is_reduced)
        if is_reduced:
            _spoil(scan_bodies(graph)["short"])
        return graph

    model = classifier("antisymmetric", {"step_size": 0.5})
    assert srn.export(model, tmp_path / "reduced").parity["reduced_scan"] is True
    monkeypatch.setattr(sys.modules["stablernn.export"], "sequence_graph", spoiled_graph)
    with caplog.at_level(logging.WARNING, logger="stablernn.export"):
        report = srn.export(model, tmp_path / "whole")
    assert report.parity["reduced_scan"] is False
    assert report.parity["stream_equals_sequence"] is True
    assert "keeps all nodes of a step" in caplog.text
    bodies = scan_bodies(onnx.load(tmp_path / "whole" / "sequence.onnx"))
    assert [node.op_type for node in bodies["whole"].node] == ["Gemm", "Gemm", "Tanh", "Mul", "Add"]


def _spoil(body: onnx.GraphProto) -> None:
    """Change weights of the recurrence in their last bits."""
    weight = next(tensor for tensor in body.initializer if "weight_0_0" in tensor.name)
    values = numpy_helper.to_array(weight) * np.float32(1 + 2.0**-22)
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))


def test_nodes_that_change_nothing_are_left_out() -> None:
    _, parts = exported("rnn")
    assert [node.op_type for node in parts.emission.graph.node] == ["Gemm", "Softmax"]
    assert [value.name for value in parts.emission.graph.output] == ["logits", "probabilities"]
    # With two members, the split and the axis are of use.
    nodes = [node.op_type for node in exported("rnn", members=2)[1].emission.graph.node]
    assert nodes.count("Unsqueeze") == 2
    assert nodes.count("Split") == 1


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("axes", [[0], [1]])
def test_an_axis_is_dropped_only_where_it_was_added(index: int, axes: list[int]) -> None:
    """``Gather(Unsqueeze(x))`` along axis 1 is x only if that is the new axis, and its only entry is taken."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["value"]),
        helper.make_node("Unsqueeze", ["value", "axes"], ["deeper"]),
        helper.make_node("Gather", ["deeper", "index"], ["y"], axis=1),
    ]
    constants = [numpy_helper.from_array(np.array(axes), "axes"), numpy_helper.from_array(np.array(index), "index")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y"))
    model = helper.make_model(helper.make_graph(nodes, "axis", [x], [y], constants))
    is_dropped = [node.op_type for node in drop_identities(model).graph.node] == ["Tanh"]
    assert is_dropped == (index == 0 and axes == [1])
    if is_dropped:
        assert model.graph.node[0].output[0] == "y"
        assert not model.graph.initializer
