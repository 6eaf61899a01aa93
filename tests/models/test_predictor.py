"""Answers at every step: one step after the other equals the whole sequence, and the units are raw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from stablernn.cells import list_cells
from stablernn.data.step_data import NO_TARGET
from stablernn.errors import ConfigError
from stablernn.nn.models import SequencePredictor, build_model
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


@pytest.mark.parametrize("cell", list_cells())
def test_every_cell_goes_on_from_a_state_as_if_there_had_been_no_cut(cell: str) -> None:
    model = predictor("tokens", cell, hidden_size=8)
    x = inputs_of(model, time=11)
    whole, end = model.answers(x)
    first, state = model.answers(x[:, :4])
    second, last = model.answers(x[:, 4:], state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-10, atol=1e-12)
    for one, other in zip(last, end, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_built_again_from_its_config(kind: str) -> None:
    model = predictor(kind)
    again = build_model(model.config()).double().eval()
    again.load_state_dict(model.state_dict())
    x = inputs_of(model)
    assert isinstance(again, SequencePredictor)
    assert torch.equal(again(x), model(x))


def silent(model: SequencePredictor) -> SequencePredictor:
    """The same model with a head of zeros, whose answer is what it starts from."""
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    return model


def test_a_head_of_zeros_answers_the_mean_of_the_targets() -> None:
    model = silent(predictor("numbers"))
    answers = model(inputs_of(model))
    torch.testing.assert_close(answers, model.targets.mean.expand_as(answers))
    assert model.targets.mean.mean() == pytest.approx(-4, abs=1)


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


def test_a_uniform_model_has_the_logarithm_of_its_classes_as_loss() -> None:
    model = silent(predictor("tokens"))
    x = inputs_of(model)
    y = x.roll(-1, dims=1)
    y[:, -1] = NO_TARGET
    batch = Batch(x, torch.full((3,), 9), y)
    assert float(PredictNextObjective("nll").loss(model, batch).detach()) == pytest.approx(math.log(5))


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


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "readout": ((2, 2), {"readout": "mean"}, ConfigError, "An answer at every step has readout='last', got 'mean'."),
    "scaling": (
        (2, 2),
        {"scaling": "window", "window": 4},
        ConfigError,
        "An answer at every step has scaling='standard', got 'window'.",
    ),
    "patches": ((2, 2), {"patch_size": 4}, ConfigError, "An answer at every step has patch_size=1, got 4."),
    "members": ((2, 2), {"members": 3}, ConfigError, "An answer at every step has members=1, got 3."),
    "output": (
        (2, 2),
        {"output": "categoric"},
        ConfigError,
        "Unknown output 'categoric'. Did you mean 'categorical'? It is one of categorical, bernoulli, real.",
    ),
    "mask": (
        (2, 2),
        {"tokens": True, "mask_channel": True},
        ConfigError,
        "mask_channel tells which numbers are missing; tokens have none. Leave it out.",
    ),
    "embedding": (
        (2, 2),
        {"embedding_size": 8},
        ConfigError,
        "embedding_size is for tokens, got embedding_size=8 for numbers.",
    ),
    "change": (
        (2, 3),
        {"output": "real", "predict_change": True},
        ConfigError,
        "predict_change needs outputs that are the input's channels, one step on: real, and as many as inputs.",
    ),
    "classes": ((2, 1), {}, ValueError, "num_outputs must be 2 or more for a categorical output, got 1."),
    "vocabulary": (
        (0, 2),
        {"tokens": True},
        ValueError,
        "Tokens need a vocabulary of 1 or more and an embedding_size of 0 or more, got 0 and 0.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_settings(case: str) -> None:
    sizes, options, kind, sentence = REFUSED[case]
    with pytest.raises(kind) as caught:
        SequencePredictor("gru", *sizes, **options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("kind", "x", "sentence"),
    [
        ("tokens", torch.tensor([[0, 5]]), "tokens must be from 0 to 4, got 5."),
        ("tokens", torch.tensor([[0, -1]]), "tokens must be from 0 to 4, got -1."),
        (
            "tokens",
            torch.zeros(1, 2, 5, dtype=torch.int64),
            "input has shape (1, 2, 5), the model expects tokens (shape (batch, time)).",
        ),
        ("tokens", torch.zeros(1, 2), "tokens must be torch.int64, got torch.float32; convert them with .long()."),
        (
            "numbers",
            torch.zeros(1, 2, 3).double(),
            "input has shape (1, 2, 3), the model expects input_size=2 (shape (batch, time, 2)).",
        ),
    ],
)
def test_refused_inputs(kind: str, x: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match="^") as caught:
        predictor(kind)(x)
    assert str(caught.value) == sentence
