"""States that the backward pass computes again give the same values and gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.nn.ensemble import Ensemble
from stablernn.training import load_config, train


def gradients(rnn: srn.StableRNN, x: Tensor, every: int | None, **inputs: Any) -> list[Tensor]:
    """Outputs, state and gradients of input and parameters, with the same random numbers each time."""
    rnn.recompute_every = every
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    output, state = rnn(x, **inputs)
    states = state if isinstance(state, tuple) else (state,)
    loss = output.square().sum() + torch.stack([tensor.sum() for tensor in states]).sum()
    return [output, *states, *torch.autograd.grad(loss, [x, *rnn.parameters()], materialize_grads=True)]


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("inputs", [{}, {"lengths": [10, 3, 0]}, {"dt": 2.5}], ids=["equal", "lengths", "dt"])
@pytest.mark.parametrize("cell", ["lipschitz", "lem", "noisy_rnn"])
def test_values_and_gradients_are_those_of_kept_states(cell: str, inputs: dict[str, Any], engine: str) -> None:
    # Noise is drawn in another order when drives are made part by part.
    options = {"additive_noise": 0.0, "multiplicative_noise": 0.0} if cell == "noisy_rnn" else {}
    rnn = srn.StableRNN(cell, 2, 5, 2, engine=engine, **options).double()
    x, given = torch.randn(3, 10, 2, dtype=torch.float64), dict(inputs)
    if "lengths" in given:
        given["lengths"] = torch.tensor(given["lengths"])
    if "dt" in given:
        given["dt"] = given["dt"] * torch.rand(3, 10, dtype=torch.float64)
    expected = gradients(rnn, x, None, **given)
    for every in (1, 4, 5, 10, 99):
        for value, reference in zip(gradients(rnn, x, every, **given), expected, strict=True):
            torch.testing.assert_close(value, reference, rtol=1e-10, atol=1e-12)


def test_dropout_and_noise_are_drawn_once() -> None:
    rnn = srn.StableRNN("noisy_rnn", 2, 5, 2, dropout=0.5).double()
    rnn.recompute_every = 4
    x, bump = torch.randn(3, 10, 2, dtype=torch.float64), 1e-6

    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        value: Tensor = rnn(x)[0].square().sum()
        return value

    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    for index in itertools.product((0, 2), (0, 5, 9), (1,)):
        shift = torch.zeros_like(x)
        shift[index] = bump
        slope = (loss(x + shift) - loss(x - shift)).detach() / (2 * bump)
        torch.testing.assert_close(gradient[index], slope, rtol=1e-6, atol=1e-8)


def test_members_of_an_ensemble() -> None:
    ensemble = Ensemble(3, "lipschitz", 2, 5, 2).double()
    x, results = torch.randn(3, 10, 2, dtype=torch.float64), []
    for every in (None, 4):
        ensemble.recompute_every(every)
        _, state = ensemble.run(x, tuple(h.double() for h in ensemble.initial_state(3)), every_output=False)
        loss = torch.stack([tensor.square().sum() for tensor in state]).sum()
        results.append(torch.autograd.grad(loss, list(ensemble.parameters())))
    for value, reference in zip(*results, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-10, atol=1e-12)


def test_less_is_kept() -> None:
    kept = {}
    for every in (None, 8):
        rnn, sizes = srn.StableRNN("lipschitz", 1, 16, recompute_every=every), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.numel()), lambda _: _
        ):
            rnn.run(torch.randn(4, 64, 1), rnn.initial_state(4), every_output=False)
        kept[every] = sum(sizes)
    # 64 steps of drive, state and activation, and of 8 parts the states in which they begin.
    assert kept[None] > 3 * 64 * 4 * 16
    assert kept[8] < kept[None] / 4


def test_a_run_trains_the_same(tmp_path: Any) -> None:
    tiny = ["data.source=digits", "model.cell=lipschitz", "model.hidden_size=6", "training.max_steps=2"]
    losses = []
    for name, more in (("kept", []), ("again", ["training.recompute_every=3"])):
        run = load_config(None, [*tiny, "training.plots=false", *more])
        losses.append(train(run, tmp_path / name)["metrics"]["test"]["log_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
