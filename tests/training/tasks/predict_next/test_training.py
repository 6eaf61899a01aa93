"""Training of the task 'predict-next': the carried state, losses, schedules, and what is learnt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from predict_next_helpers import CPU, Recorder, frames, running, settings, trainer
from stablernn.data.step_data import StepData, StoredSteps, streams
from stablernn.errors import ConfigError
from stablernn.nn.models import SequencePredictor
from stablernn.training import TorchPredictor
from stablernn.training.build import create_model
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.loop.losses import PredictNextObjective
from stablernn.training.loop.minibatches import SegmentMinibatches
from stablernn.training.loop.trainer import Trainer, build_optimizer, build_schedule
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import TrainingConfig
from stablernn.training.tasks import task_for
from stablernn.training.tasks.predict_next import StepScorer, evaluate_steps


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


def test_the_training_loss_is_the_mean_over_the_targets() -> None:
    data = frames(output="categorical")
    ours, recorder = trainer(data, lr=1e-30, bptt_steps=2, epochs=1)
    expected = evaluate_steps(TorchPredictor(ours.model), data, "train")["nll"]
    ours.fit()
    assert recorder.lines[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


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


def test_the_headline_of_the_data_chooses_the_best_weights() -> None:
    ours, recorder = trainer(running(80), epochs=3)
    ours.fit()
    assert ours.objective.headline == "bpc"
    assert ours.position.best == min(line["validation"]["bpc"] for line in recorder.lines)
    assert "frequencies" not in recorder.lines[-1]["validation"]


def test_plateau_halves_the_rate_when_the_headline_is_no_better() -> None:
    ours, recorder = trainer(running(80), schedule="plateau", epochs=6)
    values = iter([2.0, 2.1, 1.9, 1.9, 1.8, 1.7])
    ours._scorer.score_of = lambda predictor: {"bpc": next(values)}  # type: ignore[method-assign, union-attr]
    ours.fit()
    rates = [line["lr"] for line in recorder.lines]
    assert rates == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])


def test_plateau_needs_a_validation_split() -> None:
    data = replace(running(80), validation=StoredSteps([], []))
    with pytest.raises(
        ConfigError, match=r"^training\.schedule='plateau' needs a validation split and there is none\."
    ):
        trainer(data, schedule="plateau")


def test_plateau_takes_its_own_factor() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    chosen = TrainingConfig.model_validate(
        {"lr": 1.0, "optimizer": "sgd", "weight_decay": 0.0, "schedule": "plateau", "lr_decay": 0.1}
    )
    optimizer = build_optimizer({"other": [weight], "orthogonal": []}, chosen)
    schedule = build_schedule(optimizer, chosen, total_steps=9, epoch_steps=3)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 1.0
    schedule.validated(is_better=False)  # type: ignore[attr-defined]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_periodic_text_is_learnt() -> None:
    data = running(400, period=4)
    config = resolve(settings("training.epochs=15", "model.hidden_size=16", "training.lr=0.02"), task_for(data))
    torch.manual_seed(0)
    model = create_model(config, data)
    minibatches = SegmentMinibatches(data.train, 2, 20, continuous=True, device=CPU)
    chosen = config.training.model_copy(update={"batch_size": 2, "bptt_steps": 20})
    ours = Trainer(
        model, minibatches, PredictNextObjective(data.headline), StepScorer(data, "train"), chosen, Recorder()
    )
    ours.fit()
    ours.load_best()
    scores = evaluate_steps(TorchPredictor(model), data, "train")
    assert scores["bpc"] < 0.1
    assert scores["accuracy"] > 0.97
    assert scores["frequencies"]["bpc"] > 1


def test_a_few_symbols_are_copied() -> None:
    """Three symbols, a delay, a marker; the symbols are to be said again at the end."""

    def split(count: int, seed: int) -> StoredSteps:
        symbols = np.random.default_rng(seed).integers(1, 4, (count, 3))
        read, said = np.zeros((2, count, 8), np.int64)
        read[:, :3], read[:, 4], said[:, -3:] = symbols, 4, symbols
        return StoredSteps(list(read), list(said))

    data = replace(
        running(), features=tuple("_abc!"), outputs=tuple("_abc"), continuous=False, answer_steps=3,
        headline="accuracy", train=split(500, 0), validation=split(50, 1), test=split(50, 2),
    )  # fmt: skip
    config = resolve(settings("model.hidden_size=32", "training.lr=0.02", "training.epochs=20"), task_for(data))
    torch.manual_seed(0)
    model = create_model(config, data)
    minibatches = SegmentMinibatches(data.train, 25, 0, continuous=False, device=CPU)
    ours = Trainer(
        model,
        minibatches,
        PredictNextObjective(data.headline),
        StepScorer(data, "validation"),
        config.training,
        Recorder(),
    )
    ours.fit()
    ours.load_best()
    assert direction(ours.objective.headline) == "higher"
    assert evaluate_steps(TorchPredictor(model), data)["accuracy"] > 0.9
