"""Weights in fewer bits: the outputs of a rounded copy never come further away than the certificate says."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bounds.specimens import sampled
from model_helpers import mark_fitted
from stablernn import StableRNN, create_cell
from stablernn.bounds.lure import LureSystem
from stablernn.cells import StableCell
from stablernn.certificates.cascade import cascade
from stablernn.certificates.certificate import certify, prove
from stablernn.certificates.quantization import (
    FORMATS,
    Format,
    QuantizationErrorBound,
    quantization_error_bound,
    quantize,
)
from stablernn.nn.models import Classifier

DAMPED = {"linear_damping": 0.5}
CONTRACTING = {
    "rnn": {},
    "identity_rnn": {},
    "rnn_orth": {},
    "soft_orth": {},
    "indrnn": {},
    "fastrnn": {},
    "lipschitz": DAMPED,
    "lipschitz_rk2": DAMPED,
    "noisy_rnn": DAMPED,
}


def contracting(key: str, layers: int = 1, hidden: int = 8) -> StableRNN:
    """Layers that contract, their matrices drawn small and their biases away from zero."""
    torch.manual_seed(hidden + layers)
    built = StableRNN(key, 3, hidden, layers, **CONTRACTING[key]).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if "bias" in name:
                parameter.normal_(std=0.3)
            elif "hh" in name and not CONTRACTING[key]:
                parameter.mul_(0.5)
    assert certify(built).kind == "contracting"
    return built


def farthest(one: StableRNN, other: StableRNN, size: float, searches: int = 8) -> float:
    """The largest distance of two outputs that was found, for inputs of at most a 2-norm."""
    one, other = copy.deepcopy(one).double(), copy.deepcopy(other).double()
    x = torch.randn(24, 25, one.input_size, dtype=torch.float64)
    x[8:16] = x[8:16, :1]
    x[16:] = x[16:].sign()
    worst = 0.0
    for _ in range(searches):
        x = (size * x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)).requires_grad_(True)
        apart = (one(x)[0] - other(x)[0]).norm(dim=-1)
        worst = max(worst, float(apart.detach().max()))
        (slope,) = torch.autograd.grad(apart.amax(dim=1).sum(), x)
        x = (x + 0.1 * size * slope / slope.norm(dim=-1, keepdim=True).clamp_min(1e-30)).detach()
    return worst


def bound_of(built: StableRNN, form: Format) -> QuantizationErrorBound:
    found = certify(built).quantization[form]
    assert found is not None
    return found


# The coarsest format errs most; all of them in the slow tests.
@pytest.mark.parametrize(
    "form", [form if form == "int8" else pytest.param(form, marks=pytest.mark.slow) for form in FORMATS]
)
@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("key", sampled(CONTRACTING, "identity_rnn", "lipschitz_rk2"))
def test_no_output_comes_further_away(key: str, layers: int, form: Format) -> None:
    built = contracting(key, layers)
    bound, short = bound_of(built, form), quantize(built, form)
    for size in (0.1, 3.0, 100.0):
        assert farthest(built, short, size) <= bound.error + bound.error_per_input * size + 1e-12


@pytest.mark.parametrize("form", FORMATS)
def test_the_bound_is_close_where_nothing_saturates(form: Format) -> None:
    built = contracting("identity_rnn")
    bound, short = bound_of(built, form), quantize(built, form)
    smaller = replace(bound, error_per_input=0.3 * bound.error_per_input)
    assert farthest(built, short, 10.0) > smaller.error + 10 * smaller.error_per_input


class Chain(StableCell):
    """One state behind ten neurons, of which each reads the one before and the input."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.weight_ih = nn.Parameter(torch.tensor([[0.01, 0.00303]]))

    def lure_system(self) -> LureSystem:
        unit = np.eye(10)
        inputs = np.ones((10, 1)) @ self.weight_ih.detach().double().numpy()
        return LureSystem(np.zeros((1, 1)), 0.1 * unit[9:], 0.1 * unit[:, :1], inputs, D=np.eye(10, k=-1))


def test_neurons_pass_the_errors_of_others_on() -> None:
    cell, size = Chain(), 0.01
    bound = quantization_error_bound([cell], cascade([cell]), "int8")
    assert bound is not None
    states = []
    for step in (cell.lure_system(), quantize(cell, "int8").lure_system()):
        h = 0.0
        for _ in range(20):
            # Along the input whose weight is rounded.
            neurons = [math.tanh(0.1 * h + size * step.U[0, 1])]
            for _ in range(9):
                neurons.append(math.tanh(neurons[-1] + size * step.U[0, 1]))
            h = 0.1 * neurons[-1]
        states.append(h)
    distance = abs(states[0] - states[1])
    assert 0.4 * bound.error_per_input * size < distance <= bound.error + bound.error_per_input * size


def test_a_rounded_copy_contracts_at_the_rate_given() -> None:
    built = contracting("lipschitz")
    norms = certify(built).document()["metrics"]
    for form in FORMATS:
        # In the norm of the layers themselves, in which the bound is.
        again = prove(quantize(built, form), norms=norms)
        assert again.rate == pytest.approx(bound_of(built, form).rate, rel=1e-9)


def test_what_the_formats_hold() -> None:
    cell = create_cell("rnn", 5, 7)
    weight: Tensor = cell.get_parameter("weight_hh").detach()
    half = quantize(cell, "float16").get_parameter("weight_hh").detach()
    assert torch.equal(half, half.half().float())
    assert float((half / weight - 1).abs().max()) <= 2**-11
    whole = quantize(cell, "int8").get_parameter("weight_hh").detach()
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    levels = whole / scale
    assert torch.allclose(levels, levels.round(), atol=1e-4)
    assert float(levels.abs().max()) == pytest.approx(127)
    assert float(((whole - weight) / scale).abs().max()) <= 0.5001
    assert torch.equal(quantize(cell, "int8").get_parameter("bias_ih"), cell.get_parameter("bias_ih"))
    assert not torch.equal(whole, weight)


@pytest.mark.parametrize(
    ("key", "options"), [("exprnn", {}), ("lstm", {}), ("lru", {}), ("ren", {}), ("antisymmetric", {})]
)
def test_where_nothing_is_proved_nothing_is_said(key: str, options: dict[str, float]) -> None:
    document = certify(create_cell(key, 3, 8, **options)).document()
    assert document["stored_weights"] == {"float16": None, "int8": None}


def test_numbers_beyond_the_format_prove_nothing() -> None:
    built = contracting("indrnn")
    with torch.no_grad():
        built.cells[0].get_parameter("weight_ih").mul_(1e6)
    document = certify(built).document()["stored_weights"]
    assert document["float16"] is None
    assert document["int8"]["error_per_input"] > 0


def test_the_worst_member_counts() -> None:
    torch.manual_seed(0)
    model = mark_fitted(Classifier("lipschitz", 2, 2, 4, members=2, cell_options=DAMPED)).eval()
    stored = certify(model).quantization["int8"]
    alone = [certify(stack).quantization["int8"] for stack in model.rnn.stacks]
    assert stored is not None
    assert stored.error == max(one.error for one in alone if one is not None)
    assert stored.error_per_input == max(one.error_per_input for one in alone if one is not None)


def test_irregular_time_is_not_told_of() -> None:
    built = StableRNN("lipschitz", 2, 4, max_dt=2.0, **DAMPED)
    assert certify(built).document()["stored_weights"] == {"float16": None, "int8": None}
