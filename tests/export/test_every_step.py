"""Graphs with an output at every step: a stream, a whole sequence, a padded batch and torch say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import stablernn as srn
from exports import scan_bodies
from stablernn.errors import ParityError
from stablernn.export import export
from stablernn.export.parity import check_parity, open_session
from stablernn.export.scan import sequence_graph, step_graph
from stablernn.export.step import export_parts
from stablernn.nn.models import SequencePredictor

# One cell of each kind of step, and both shapes of the first; all of them are run with the slow tests.
SOME = (("lstm", "tokens"), ("gru_d", "frames"))
SHAPES: dict[str, dict[str, Any]] = {
    "tokens": {"input_size": 5, "num_outputs": 5, "tokens": True},
    "frames": {"input_size": 2, "num_outputs": 2, "output": "real", "predict_change": True},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "embedding-two-layers": {
        "input_size": 30, "num_outputs": 4, "tokens": True, "embedding_size": 6, "num_layers": 2, "dropout": 0.2,
    },
    "switches-mask": {"input_size": 3, "num_outputs": 6, "output": "bernoulli", "mask_channel": True},
    "numbers-dt": {"input_size": 2, "num_outputs": 1, "output": "real", "max_dt": 3.0},
    "tokens-dt": {"input_size": 4, "num_outputs": 4, "tokens": True, "max_dt": 2.0},
    "members": {"input_size": 2, "num_outputs": 2, "output": "real", "members": 3, "saturation": True},
    "one": {"input_size": 1, "num_outputs": 1, "output": "real", "hidden_size": 1},
}  # fmt: skip


def predictor(cell: str, hidden_size: int = 9, **options: Any) -> SequencePredictor:
    torch.manual_seed(0)
    model = SequencePredictor(cell, options.pop("input_size"), options.pop("num_outputs"), hidden_size, **options)
    random = np.random.default_rng(0)
    if not model.tokens:
        model.fit_scaling([random.normal(3.0, 2.0, (50, model.input_size))])
    if model.output == "real":
        model.fit_targets([random.normal(-5.0, 4.0, (50, model.num_outputs))])
    return model.eval().requires_grad_(False)


def check(model: SequencePredictor, folder: Path) -> None:
    parity = export(model, folder, formats=("onnx", "torchscript")).parity
    assert parity["stream_equals_sequence"] is True
    assert parity["batch_equals_single"] is True
    assert parity["step_rel_error"] <= 1e-5
    assert all(row["torchscript_rel_error"] <= row["allowed_rel_error"] <= 1e-3 for row in parity["compared"])


@pytest.mark.parametrize(
    ("cell", "shape"),
    [
        pytest.param(cell, shape, marks=[] if (cell, shape) in SOME else pytest.mark.slow)
        for cell in srn.list_cells()
        for shape in SHAPES
    ],
)
def test_every_cell_exports_to_both_formats_with_parity(cell: str, shape: str, tmp_path: Path) -> None:
    check(predictor(cell, **SHAPES[shape]), tmp_path)


@pytest.mark.parametrize(
    "variant", [name if name == "tokens-dt" else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_every_part_of_a_model_exports_with_parity(variant: str, tmp_path: Path) -> None:
    check(predictor("lipschitz", **VARIANTS[variant]), tmp_path)


def graphs(model: SequencePredictor) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    exported = export_parts(model)
    return step_graph(exported), sequence_graph(exported)


def test_padding_and_what_stands_in_it_change_nothing() -> None:
    model = predictor("gru", **SHAPES["frames"])
    runtime = open_session(graphs(model)[1].SerializeToString())
    x = np.random.default_rng(0).normal(size=(1, 9, 2)).astype(np.float32)
    state = {f"state_{n}": value.numpy() for n, value in enumerate(model.initial_state(1))}
    short, *end = runtime.run(None, {"x": x, "lengths": np.array([9]), **state})
    for filling in (0.0, 1e30, np.nan, np.inf):
        padded = np.concatenate([x, np.full((1, 5, 2), filling, np.float32)], axis=1)
        long, *after = runtime.run(None, {"x": padded, "lengths": np.array([9]), **state})
        assert np.array_equal(long[:, :9], short), filling
        assert np.array_equal(long[:, 9:], np.repeat(short[:, 8:], 5, axis=1)), filling
        assert all(np.array_equal(one, other) for one, other in zip(after, end, strict=True)), filling


def test_an_emission_that_reads_another_state_fails_parity() -> None:
    """The sequence answers from the state before each step: every answer is compared, not only the last state."""
    model = predictor("gru", **SHAPES["tokens"])
    step, sequence = graphs(model)
    for body in scan_bodies(sequence).values():
        before = body.input[0].name
        written = {body.output[0].name, "transition.state_0_out"}
        for node in body.node:
            if node.name.startswith("emission.") or any(name.startswith("emission.") for name in node.input):
                node.input[:] = [before if name in written else name for name in node.input]
    with pytest.raises(ParityError) as caught:
        check_parity(model, step.SerializeToString(), sequence.SerializeToString())
    assert "differ" in str(caught.value)
