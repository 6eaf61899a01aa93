"""Answers at every step: one step after the other equals the whole sequence, and the units are raw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from stablernn.data.step_data import NO_TARGET
from stablernn.nn.models import SequencePredictor
from stablernn.nn.models.predictor import target_frequencies
from stablernn.training.loop.losses import PredictNextObjective
from stablernn.training.loop.minibatches import Batch

FRAMES = [np.random.default_rng(seed).normal(5.0, 3.0, (40, 2)).astype(np.float32) for seed in (0, 1)]


def predictor(kind: str, cell: str = "lstm", hidden_size: int = 7) -> SequencePredictor:
    torch.manual_seed(1)
    shapes: dict[str, tuple[int, int, dict[str, Any]]] = {
        "tokens": (5, 5, {"tokens": True}),
        "embedded": (5, 3, {"tokens": True, "embedding_size": 4, "num_layers": 2}),
        "switches": (2, 4, {"output": "bernoulli", "mask_channel": True}),
        "numbers": (2, 3, {"output": "real"}),
        "change": (2, 2, {"output": "real", "predict_change": True}),
    }
    inputs, outputs, options = shapes[kind]
    model = SequencePredictor(cell, inputs, outputs, hidden_size, **options).double()
    if not model.tokens:
        model.fit_scaling(FRAMES)
    if model.output == "real":
        model.fit_targets([np.random.default_rng(2).normal(-4.0, 2.0, (50, outputs))])
    return model.eval()


KINDS = ("tokens", "embedded", "switches", "numbers", "change")


def inputs_of(model: SequencePredictor, batch: int = 3, time: int = 9) -> torch.Tensor:
    if model.tokens:
        return torch.randint(model.input_size, (batch, time))
    x = 5 + 3 * torch.randn(batch, time, model.input_size, dtype=torch.float64)
    x[0, 2:5, 0] = math.nan
    return x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", ["lstm", "gru_d"])
def test_step_by_step_equals_the_whole_sequence(kind: str, cell: str) -> None:
    model = predictor(kind, cell)
    x = inputs_of(model)
    outputs, final = model.run(x)
    (answers,) = outputs.values()
    state, weights = model.initial_state(len(x)), model.materialize()
    for time, sample in enumerate(x.unbind(1)):
        state = model.transition(weights, sample, state)
        torch.testing.assert_close(model.emit(state)[0], answers[:, time], rtol=1e-12, atol=1e-12)
    for one, other in zip(state, final, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_and_repeats_the_last_answer(kind: str) -> None:
    model = predictor(kind)
    x = inputs_of(model)
    lengths = torch.tensor([9, 4, 1])
    padded, state = model.answers(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, after = model.answers(x[row : row + 1, :length])
        torch.testing.assert_close(padded[row, :length], alone[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(padded[row, length:], alone[0, -1:].expand(9 - length, -1), rtol=1e-12, atol=1e-12)
        for one, other in zip(state, after, strict=True):
            torch.testing.assert_close(one[row], other[0], rtol=1e-12, atol=1e-12)


def silent(model: SequencePredictor) -> SequencePredictor:
    """The same model with a head of zeros, whose answer is what it starts from."""
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    return model


def test_a_head_of_zeros_answers_the_last_observed_value() -> None:
    model = silent(predictor("change"))
    x = inputs_of(model)
    expected = x.clone()
    expected[0, 2:5, 0] = x[0, 1, 0]
    torch.testing.assert_close(model(x), expected)


def test_an_untrained_bias_is_the_log_frequency() -> None:
    model = predictor("tokens")
    model.fit_targets([np.array([0, 0, 0, NO_TARGET, 1]), np.array([4, 4])])
    with torch.no_grad():
        model.head.weight.zero_()
    shares = torch.softmax(model(inputs_of(model)), dim=-1)[0, 0]
    assert shares.tolist() == pytest.approx([4 / 11, 2 / 11, 1 / 11, 1 / 11, 3 / 11])


def test_frequencies_of_switches_leave_out_steps_without_a_target() -> None:
    targets = [np.array([[1, 0], [1, 1], [np.nan, np.nan]], np.float32), np.array([[1, 0]], np.float32)]
    assert target_frequencies(targets, 2, "bernoulli").tolist() == [4 / 5, 2 / 5]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_without_a_target_do_not_count(kind: str) -> None:
    model = predictor(kind)
    x = inputs_of(model, time=6)
    count = model.num_outputs
    if model.output == "categorical":
        y = torch.randint(count, (3, 6))
        other = y.clone()
        other[:, 2:] = NO_TARGET
    else:
        y = torch.randint(2, (3, 6, count)).double()
        other = y.clone()
        other[:, 2:] = math.nan
    task = PredictNextObjective("nll")
    lengths = torch.full((3,), 6)
    model.requires_grad_(False)
    short = float(task.loss(model, Batch(x[:, :2], torch.full((3,), 2), y[:, :2])))
    assert float(task.loss(model, Batch(x, lengths, other))) == pytest.approx(short, rel=1e-12)
    assert float(task.loss(model, Batch(x, lengths, y))) != pytest.approx(short, rel=1e-6)


def test_losses_are_those_of_their_formulas() -> None:
    switches, numbers = predictor("switches"), predictor("numbers")
    x = inputs_of(switches)
    lengths = torch.full((3,), 9)
    y = torch.randint(2, (3, 9, 4)).double()
    share = torch.sigmoid(switches(x))
    expected = -(y * share.log() + (1 - y) * (1 - share).log()).sum(dim=2).mean()
    assert float(PredictNextObjective("nll").loss(switches, Batch(x, lengths, y)).detach()) == pytest.approx(
        float(expected.detach())
    )
    y = torch.randn(3, 9, 3, dtype=torch.float64)
    y[0, 0, 0] = math.nan
    unit = numbers.targets.scale.square().mean()
    expected = ((numbers(x) - y) ** 2).nansum() / (y.numel() - 1) / unit
    assert float(PredictNextObjective("mse").loss(numbers, Batch(x, lengths, y)).detach()) == pytest.approx(
        float(expected.detach())
    )


def test_a_stretch_without_targets_has_a_gradient_of_zero() -> None:
    model = predictor("numbers")
    x = inputs_of(model)
    y = torch.full((3, 9, 3), math.nan, dtype=torch.float64)
    loss, state = PredictNextObjective("mse").advance(model, Batch(x, torch.full((3,), 9), y), None)
    assert float(loss.detach()) == 0
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    torch.testing.assert_close(state, tuple(part.detach() for part in model.answers(x)[1]))


@pytest.mark.parametrize("kind", ["tokens", "numbers"])
def test_stretches_longer_than_the_sequence_give_the_whole_gradient(kind: str) -> None:
    """Truncated backpropagation with stretches of T steps is the full one; with shorter ones it is not."""
    model = predictor(kind, "antisymmetric")
    x = inputs_of(model)
    y = torch.randint(model.num_outputs, (3, 9)) if model.tokens else torch.randn(3, 9, 3, dtype=torch.float64)
    full = gradient(model, x, y, 9)
    torch.testing.assert_close(gradient(model, x, y, 20), full, rtol=1e-12, atol=1e-14)
    cut = gradient(model, x, y, 4)
    assert float((cut - full).abs().max()) > 1e-6


def gradient(model: SequencePredictor, x: torch.Tensor, y: torch.Tensor, steps: int) -> torch.Tensor:
    """That of the sum of all stretches' losses, each weighted by its targets."""
    model.zero_grad()
    task, state = PredictNextObjective("nll"), None
    for start in range(0, x.shape[1], steps):
        part = slice(start, start + steps)
        batch = Batch(x[:, part], torch.full((len(x),), x[:, part].shape[1]), y[:, part])
        loss, state = task.advance(model, batch, state)
        (loss * y[:, part].numel()).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
