"""Training of the task 'predict-next': the carried state, losses, schedules, and what is learnt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from predict_next_helpers import frames, running, settings, trainer
from stablernn.data.step_data import StepData, StoredSteps, streams
from stablernn.nn.models import SequencePredictor
from stablernn.training.build import create_model
from stablernn.training.resolve import resolve
from stablernn.training.tasks import task_for


def plain_loop(data: StepData, epochs: int) -> dict[str, torch.Tensor]:
    """The same training of a text in the fewest lines."""
    torch.manual_seed(3)
    model = create_model(resolve(settings(), task_for(data)), data)
    assert isinstance(model, SequencePredictor)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    cut = streams(data.train, 4)
    x, y = torch.from_numpy(cut.x), torch.from_numpy(cut.y)
    for _ in range(epochs):
        state = None
        for start in range(0, x.shape[1], 5):
            logits, state = model.answers(x[:, start : start + 5], state=state)
            state = tuple(tensor.detach() for tensor in state)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[:, start : start + 5].flatten()).backward()
            optimizer.step()
    return model.state_dict()


def test_equals_a_plain_loop_that_carries_the_state() -> None:
    data = running(201)
    ours, _ = trainer(data)
    ours.fit()
    for name, value in plain_loop(data, 2).items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_a_restored_state_does_not_lie_where_the_file_put_it() -> None:
    """There it is not aligned as torch's own tensors are, and the products of the next step round in another way."""
    ours, _ = trainer(running(81))
    for number in range(2):
        ours._step(ours._minibatches.take(number))
    checkpoint = ours.checkpoint()
    again, _ = trainer(running(81))
    again.restore(checkpoint)
    assert again._carried is not None
    for number, state in enumerate(again._carried):
        saved = checkpoint.tensors[f"carried.{number}"]
        assert torch.equal(state, saved)
        assert state.data_ptr() != saved.data_ptr()


def test_a_stretch_without_targets_moves_no_weight() -> None:
    split = StoredSteps([np.ones((6, 2), np.float32)] * 4, [_last_only(6)] * 4)
    data = replace(frames(), train=split, outputs=("sum",), features=("a", "b"), validation=split, test=split)
    ours, _ = trainer(data, bptt_steps=2, epochs=1, weight_decay=0.5, optimizer="adamw")
    before = {name: value.clone() for name, value in ours.model.state_dict().items()}
    ours._minibatches.shuffle(torch.Generator())
    for number in range(2):
        ours._step(ours._minibatches.take(number))
        assert all(torch.equal(value, before[name]) for name, value in ours.model.state_dict().items())
    ours._step(ours._minibatches.take(2))
    assert any(not torch.equal(value, before[name]) for name, value in ours.model.state_dict().items())


def _last_only(length: int) -> np.ndarray:
    y = np.full((length, 1), np.nan, np.float32)
    y[-1] = 3
    return y


def test_plateau_halves_the_rate_when_the_headline_is_no_better() -> None:
    ours, recorder = trainer(running(80), schedule="plateau", epochs=6)
    values = iter([2.0, 2.1, 1.9, 1.9, 1.8, 1.7])
    ours._scorer.score_of = lambda predictor: {"bpc": next(values)}  # type: ignore[method-assign, union-attr]
    ours.fit()
    rates = [line["lr"] for line in recorder.lines]
    assert rates == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])
