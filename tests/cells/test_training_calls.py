"""A training loop of one's own: what a cell promises does not rest on calls that the loop may leave out."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

import stablernn as srn
from stablernn import StableRNN, list_cells
from stablernn.cells.fastrnn import FastGRNNCell
from stablernn.cells.indrnn import IndRNNCell
from stablernn.cells.nais_net import NAISNetCell
from stablernn.certificates.certificate import KINDS, prove
from stablernn.errors import UntrainedWarning
from stablernn.export.load_exported import reload

STEPS = 20


def trained(key: str, *, with_after_step: bool, lr: float = 0.5) -> StableRNN:
    """A layer after plain SGD on a loss that drives every parameter outwards."""
    torch.manual_seed(0)
    layer = StableRNN(key, 3, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    x = torch.randn(2, 5, 3)
    for step in range(STEPS):
        optimizer.zero_grad()
        outwards = sum(parameter.square().sum() for parameter in layer.parameters())
        ((layer(x)[0] - 1).square().mean() - outwards).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        if with_after_step:
            layer.after_step(step + 1, STEPS)
    return layer


def warnings_of(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UntrainedWarning)
        call()
    return [str(entry.message) for entry in caught if entry.category is UntrainedWarning]


@pytest.mark.parametrize("key", list_cells())
def test_a_plain_loop_keeps_the_kind_of_certificate_or_is_warned(key: str) -> None:
    plain = trained(key, with_after_step=False)
    careful = trained(key, with_after_step=True)
    kinds: list[str] = []
    assert warnings_of(lambda: kinds.append(srn.certify(careful).kind)) == []
    missed = warnings_of(lambda: kinds.append(srn.certify(plain).kind))
    assert missed or KINDS.index(kinds[1]) <= KINDS.index(kinds[0])


@pytest.mark.parametrize("key", ["indrnn", "nais_net"])
def test_a_plain_loop_leaves_the_region_and_the_matrices_do_not(key: str) -> None:
    plain, careful = (trained(key, with_after_step=called) for called in (False, True))
    outside = plain.cells[0]
    projected = copy.deepcopy(outside)
    with torch.no_grad():
        projected.after_step(1, 1)
    assert not torch.allclose(projected.get_parameter("weight_hh"), outside.get_parameter("weight_hh"), rtol=1e-3)
    torch.testing.assert_close(projected.materialize()[0], outside.materialize()[0])
    assert prove(careful).kind == prove(plain).kind == "non-expansive"


@pytest.mark.parametrize("cell", [IndRNNCell(3, 6, max_length=10), NAISNetCell(3, 6, margin=0.2)])
def test_a_projected_parameter_is_used_as_it_is(cell: IndRNNCell | NAISNetCell) -> None:
    with torch.no_grad():
        cell.weight_hh.normal_()
        cell.after_step(1, 1)
    used = cell.recurrent_weights() if isinstance(cell, IndRNNCell) else cell.projected()
    assert torch.equal(used, cell.weight_hh)
    weight = torch.randn_like(used)
    (gradient,) = torch.autograd.grad((used * weight).sum(), cell.weight_hh)
    assert torch.equal(gradient, weight)


@pytest.mark.parametrize("cell", [IndRNNCell(3, 6), NAISNetCell(3, 6)])
def test_a_parameter_outside_is_still_trained(cell: IndRNNCell | NAISNetCell) -> None:
    with torch.no_grad():
        cell.weight_hh.fill_(5.0)
    used = cell.recurrent_weights() if isinstance(cell, IndRNNCell) else cell.projected()
    (gradient,) = torch.autograd.grad(used.sum(), cell.weight_hh)
    assert torch.equal(gradient, torch.ones_like(gradient))
    assert float(used.detach().abs().max()) <= 1


SCHEDULED = [
    ("fastgrnn", {}, 1, "have set the smallest weights to zero, so that training sees the sparse matrices that "
     "evaluation uses"),
    ("dtriv", {"rebase": 3}, 3, "have moved the base of the recurrent matrix every 3 steps"),
    ("fc_urnn", {"rebase": 2}, 2, "have moved the base of the recurrent matrix every 2 steps"),
]  # fmt: skip


def backward(layer: nn.Module, times: int) -> None:
    for _ in range(times):
        layer(torch.zeros(2, 4, 3))[0].sum().backward()


@pytest.mark.parametrize(("key", "options", "period", "missed"), SCHEDULED, ids=[row[0] for row in SCHEDULED])
def test_a_missed_schedule_is_warned_of_when_it_was_due(
    key: str, options: dict[str, int], period: int, missed: str
) -> None:
    layer = StableRNN(key, 3, 6, num_layers=2, **options)
    backward(layer, period - 1)
    assert warnings_of(lambda: srn.certify(layer)) == []
    backward(layer, 1)
    assert warnings_of(lambda: srn.certify(layer)) == [
        f"The cell '{key}' was trained without after_step, which should {missed}. Call after_step(step, total_steps) "
        "of the model after each optimizer step."
    ]
    layer.after_step(1, 10)
    assert warnings_of(lambda: srn.certify(layer)) == []


def test_evaluation_is_no_training() -> None:
    layer = StableRNN("fastgrnn", 3, 6).eval()
    backward(layer, 2)
    assert warnings_of(lambda: srn.certify(layer)) == []


def test_a_dense_fastgrnn_has_no_schedule() -> None:
    cell = FastGRNNCell(3, 6, recurrent_kept=1.0)
    cell(torch.zeros(2, 3)).sum().backward()
    assert cell.missed_schedule() is None


UNFITTED = (
    "The model's scaling was never fitted, so that the layers see raw values divided by 1. Call "
    "fit_scaling(sequences) of the model with the training sequences before training."
)
TARGETS = (
    "The scaling of the model's targets was never fitted, so that answers are in units of 1. Call "
    "fit_targets(targets) of the model with the training targets before training."
)
STATIC = (
    "The scaling of the model's static covariates was never fitted, so that they are divided by 1. Call "
    "fit_static(static) of the model with those of the training series before training."
)


@pytest.mark.parametrize("scaling", ["standard", "window", "context"])
def test_an_unfitted_scaling_is_warned_of(scaling: str, tmp_path: Path) -> None:
    window = None if scaling == "standard" else 4
    model = srn.Classifier("rnn", 1, num_classes=2, hidden_size=4, scaling=scaling, window=window)
    assert warnings_of(lambda: srn.certify(model)) == [UNFITTED]
    if scaling == "standard":
        assert warnings_of(lambda: srn.export(model, tmp_path)) == [UNFITTED]
    loaded = copy.deepcopy(model)
    model.fit_scaling([np.arange(9.0)[:, None]])
    assert warnings_of(lambda: srn.certify(model)) == []
    loaded.load_state_dict(model.state_dict())
    assert warnings_of(lambda: srn.certify(loaded)) == []


def test_a_model_without_scaling_counts_as_fitted() -> None:
    model = srn.Classifier("rnn", 1, num_classes=2, hidden_size=4, scaling="none")
    assert warnings_of(lambda: srn.certify(model)) == []


def test_data_that_needs_no_scaling_counts_as_fitted() -> None:
    model = srn.Classifier("rnn", 1, num_classes=2, hidden_size=4)
    model.fit_scaling([np.array([[-1.0], [1.0]])])
    assert float(model.scaling.mean) == 0
    assert float(model.scaling.scale) == 1
    assert warnings_of(lambda: srn.certify(model)) == []


def test_targets_and_static_covariates_are_scalings_too() -> None:
    values = [np.arange(9.0)[:, None]]
    predictor = srn.SequencePredictor("rnn", 1, num_outputs=1, hidden_size=4, output="real")
    assert warnings_of(lambda: srn.certify(predictor)) == [UNFITTED, TARGETS]
    predictor.fit_scaling(values)
    predictor.fit_targets(values)
    assert warnings_of(lambda: srn.certify(predictor)) == []
    forecaster = srn.Forecaster("rnn", 1, horizon=2, hidden_size=4, static_size=1)
    forecaster.fit_scaling(values)
    assert warnings_of(lambda: srn.certify(forecaster)) == [STATIC]
    forecaster.fit_static(np.array([[3.0]]))
    assert warnings_of(lambda: srn.certify(forecaster)) == []


def test_a_predicted_change_needs_no_scaling_of_targets() -> None:
    predictor = srn.SequencePredictor("rnn", 1, num_outputs=1, hidden_size=4, output="real", predict_change=True)
    assert warnings_of(lambda: srn.certify(predictor)) == [UNFITTED]
    predictor.fit_scaling([np.arange(9.0)[:, None]])
    assert warnings_of(lambda: srn.certify(predictor)) == []


def test_an_exported_model_counts_as_fitted() -> None:
    # Its values need no scaling, so that nothing in the weights says that it was fitted.
    model = srn.Classifier("rnn", 1, num_classes=2, hidden_size=4)
    model.fit_scaling([np.array([[-1.0], [1.0]])])
    exported = reload(json.dumps({"model": model.config()}).encode(), save(model.state_dict()))
    assert warnings_of(lambda: srn.certify(exported)) == []


def test_tokens_have_no_scaling_to_fit() -> None:
    model = srn.SequencePredictor("rnn", 5, num_outputs=5, hidden_size=4, tokens=True)
    assert warnings_of(lambda: srn.certify(model)) == []
