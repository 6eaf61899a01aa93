"""A training loop of one's own: what a cell promises does not rest on calls that the loop may leave out."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

import stablernn as srn
from stablernn import StableRNN, list_cells
from stablernn.cells import StableCell, cell_info
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


@pytest.mark.parametrize(
    "key", [key for key in list_cells() if cell_info(key).cell.after_step is not StableCell.after_step]
)
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


@pytest.mark.parametrize("cell", [IndRNNCell(3, 6), NAISNetCell(3, 6)])
def test_a_parameter_outside_is_still_trained(cell: IndRNNCell | NAISNetCell) -> None:
    with torch.no_grad():
        cell.weight_hh.fill_(5.0)
    used = cell.recurrent_weights() if isinstance(cell, IndRNNCell) else cell.projected()
    (gradient,) = torch.autograd.grad(used.sum(), cell.weight_hh)
    assert torch.equal(gradient, torch.ones_like(gradient))
    assert float(used.detach().abs().max()) <= 1


def backward(layer: nn.Module, times: int) -> None:
    for _ in range(times):
        layer(torch.zeros(2, 4, 3))[0].sum().backward()


@pytest.mark.parametrize(
    ("key", "options", "period"), [("fastgrnn", {}, 1), ("dtriv", {"rebase": 3}, 3), ("fc_urnn", {"rebase": 2}, 2)]
)
def test_a_missed_schedule_is_warned_of_when_it_was_due(key: str, options: dict[str, int], period: int) -> None:
    layer = StableRNN(key, 3, 6, num_layers=2, **options)
    backward(layer.eval(), period)
    backward(layer.train(), period - 1)
    assert warnings_of(lambda: srn.certify(layer)) == []
    backward(layer, 1)
    (warning,) = warnings_of(lambda: srn.certify(layer))
    assert f"'{key}' was trained without after_step" in warning
    layer.after_step(1, 10)
    assert warnings_of(lambda: srn.certify(layer)) == []


VALUES = [np.arange(9.0)[:, None]]
UNFITTED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "standard": (lambda: srn.Classifier("rnn", 1, 2, 4), ["scaling"]),
    "window": (lambda: srn.Classifier("rnn", 1, 2, 4, scaling="window", window=4), ["scaling"]),
    "context": (lambda: srn.Classifier("rnn", 1, 2, 4, scaling="context", window=4), ["scaling"]),
    "none": (lambda: srn.Classifier("rnn", 1, 2, 4, scaling="none"), []),
    "targets": (lambda: srn.SequencePredictor("rnn", 1, 1, 4, output="real"), ["scaling", "targets"]),
    "change": (lambda: srn.SequencePredictor("rnn", 1, 1, 4, output="real", predict_change=True), ["scaling"]),
    "static": (lambda: srn.Forecaster("rnn", 1, 2, 4, static_size=1), ["scaling", "static"]),
    "tokens": (lambda: srn.SequencePredictor("rnn", 5, 5, 4, tokens=True), []),
}


@pytest.mark.parametrize(("make", "calls"), UNFITTED.values(), ids=UNFITTED)
def test_an_unfitted_scaling_is_warned_of(make: Callable[[], Any], calls: list[str]) -> None:
    model, loaded = make(), make()
    fits = {"scaling": VALUES, "targets": VALUES, "static": np.array([[3.0]])}
    missing = list(calls)
    for name in calls:
        caught = warnings_of(lambda: srn.certify(model))
        assert len(caught) == len(missing)
        assert all(f"fit_{call}(" in warning for call, warning in zip(missing, caught, strict=True))
        getattr(model, f"fit_{name}")(fits[name])
        missing.remove(name)
    assert warnings_of(lambda: srn.certify(model)) == []
    loaded.load_state_dict(model.state_dict())
    assert warnings_of(lambda: srn.certify(loaded)) == []


def test_data_that_needs_no_scaling_counts_as_fitted_and_so_does_its_export() -> None:
    model = srn.Classifier("rnn", 1, num_classes=2, hidden_size=4)
    model.fit_scaling([np.array([[-1.0], [1.0]])])
    assert float(model.scaling.mean) == 0
    assert float(model.scaling.scale) == 1
    assert warnings_of(lambda: srn.certify(model)) == []
    assert warnings_of(lambda: srn.certify(model_of_export(model))) == []


def model_of_export(model: srn.Classifier) -> Any:
    return reload(json.dumps({"model": model.config()}).encode(), save(model.state_dict()))
