"""Scans with fewer nodes than a step: residual states divided by their step size, and products in front of them."""

from __future__ import annotations

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

HALF = {"step_size": 0.5}


def classifier(cell: str, cell_options: Mapping[str, Any] | None = None, **options: Any) -> SequenceModel:
    """A classifier with trained biases: those of zero are left out of the graphs."""
    torch.manual_seed(0)
    model = srn.Classifier(cell, 2, 3, options.pop("hidden_size", 9), cell_options=cell_options, **options)
    with torch.no_grad():
        for parameter in model.rnn.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return mark_fitted(model).eval().requires_grad_(False)


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
    ("cell", "options", "short"),
    [
        ("antisymmetric", HALF, ["Gemm", "Tanh", "Add"]),
        ("antisymmetric", {"step_size": 0.3}, ["Gemm", "Tanh", "Mul", "Add"]),
        ("neural_ode_rnn", {"step_size": 0.25}, ["Gemm", "Tanh", "Add"]),
        ("lipschitz", HALF, ["Gemm", "Tanh", "Add", "Gemm"]),
        ("lipschitz", {"step_size": 0.3}, ["Gemm", "Tanh", "Mul", "Add", "Gemm"]),
        ("rnn", None, ["Gemm", "Tanh"]),
    ],
)
def test_a_step_in_the_scan_has_few_nodes(cell: str, options: Mapping[str, Any] | None, short: list[str]) -> None:
    nodes = operations(export_parts(classifier(cell, options)))
    assert nodes == {"short": short, "whole": ["Gemm", *short], "padded": ["Gemm", *short, "Where"]}


def test_both_stages_of_a_midpoint_step_lose_their_split() -> None:
    parts = export_parts(classifier("lipschitz_rk2", HALF))
    stage = ["Gemm", "Tanh", "Mul", "Add", "Gemm"]
    assert [node.op_type for node in parts.recurrence.graph.node] == ["Gemm", *stage, *stage]
    # Of more than MAX_STEP_NODES nodes, one less is not noticed.
    assert len(stage) * 2 > MAX_STEP_NODES
    assert operations(parts).keys() == {"whole", "padded"}


@pytest.mark.parametrize(
    "model",
    [
        classifier("antisymmetric", HALF),
        classifier("antisymmetric", {"step_size": 0.3}),
        classifier("lipschitz", HALF),
        classifier("lipschitz", {"step_size": 2.0}),
        classifier("neural_ode_rnn", {"step_size": 0.25}),
        classifier("antisymmetric", HALF, num_layers=3),
        classifier("antisymmetric", HALF, members=2),
        classifier("lipschitz", HALF, readout="all"),
        classifier("antisymmetric", HALF, patch_size=4, mask_channel=True),
    ],
    ids=["residual", "step size of .3", "linear term", "step of 2", "bias", "layers", "members", "readout", "patches"],
)
def test_a_reduced_scan_gives_the_bits_of_a_whole_one(model: SequenceModel) -> None:
    parts = export_parts(model)
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
    ("model", "scales"),
    [
        (classifier("antisymmetric", HALF, num_layers=2), {"state_1": 0.5, "state_2": 0.5}),
        (classifier("lipschitz", {"step_size": 4.0}), {"state_1": 4.0}),
        (classifier("antisymmetric", {"step_size": 0.3}), {}),
        (classifier("antisymmetric", {"step_size": 1.0}), {}),
        # The mean of the outputs reads the state itself.
        (classifier("antisymmetric", HALF, readout="mean"), {}),
        (classifier("antisymmetric", HALF, max_dt=2.0), {}),
        (classifier("gru"), {}),
    ],
    ids=["layers", "linear term", "no power of two", "step of 1", "readout", "dt", "another family"],
)
def test_states_are_scaled_by_powers_of_two_alone(model: SequenceModel, scales: dict[str, float]) -> None:
    recurrence = export_parts(model).recurrence
    before = recurrence.SerializeToString(deterministic=True)
    assert scale_states(recurrence)[1] == scales
    assert recurrence.SerializeToString(deterministic=True) == before


def test_a_state_is_not_scaled_where_a_weight_would_lose_bits() -> None:
    recurrence = export_parts(classifier("antisymmetric", HALF)).recurrence
    weight = next(tensor for tensor in recurrence.graph.initializer if "weight_0_0" in tensor.name)
    values = numpy_helper.to_array(weight).copy()
    # The smallest number of float32 has no half.
    values[0, 1] = 2.0**-149
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    assert scale_states(recurrence)[1] == {}


def test_outputs_at_every_step_read_states_as_they_are() -> None:
    torch.manual_seed(0)
    model = srn.SequencePredictor("antisymmetric", 2, 3, 9, output="real", cell_options=HALF).eval()
    bodies = scan_bodies(sequence_graph(export_parts(model.requires_grad_(False))))
    assert all("Mul" in [node.op_type for node in body.node] for body in bodies.values())


@pytest.mark.parametrize("branch", ["short", "whole", "padded"])
def test_parity_runs_every_branch(branch: str) -> None:
    model = classifier("antisymmetric", HALF)
    parts = export_parts(model)
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

    model = classifier("antisymmetric", HALF)
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
    parts = export_parts(classifier("rnn"))
    assert [node.op_type for node in parts.emission.graph.node] == ["Gemm", "Softmax"]
    assert [value.name for value in parts.emission.graph.output] == ["logits", "probabilities"]
    # With two members, the split and the axis are of use.
    nodes = [node.op_type for node in export_parts(classifier("rnn", members=2)).emission.graph.node]
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
