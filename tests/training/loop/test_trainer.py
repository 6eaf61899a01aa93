from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from stablernn.cells import ElmanRNNCell
from stablernn.data import ClassificationData, SequenceSplit
from stablernn.errors import TrainingError
from stablernn.nn.models import Classifier
from stablernn.training.evaluation.scorers import ClassificationScorer
from stablernn.training.loop.checkpoint import Checkpoint
from stablernn.training.loop.launch import Launch
from stablernn.training.loop.losses import ClassifyObjective
from stablernn.training.loop.minibatches import Batch, Minibatch, SampleMinibatches
from stablernn.training.loop.process_group import ProcessGroup
from stablernn.training.loop.trainer import Trainer
from stablernn.training.settings.config import TrainingConfig


def split(samples: int, seed: int, *, time: int = 6) -> SequenceSplit:
    """Sequences of two features and unequal lengths; the class is the sign of the last valid value of the first."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(samples, time, 2)).astype(np.float32)
    lengths = random.integers(1, time + 1, samples)
    y = (x[np.arange(samples), lengths - 1, 0] > 0).astype(np.int64)
    x[np.arange(time) >= lengths[:, None]] = 0
    return SequenceSplit(x, lengths, y, tuple(str(number) for number in range(samples)))


def data(train: int = 10, validation: int = 6) -> ClassificationData:
    return ClassificationData(
        "toy", ("no", "yes"), ("a", "b"), split(train, 1), split(validation, 2), None, {}, "sha256:0"
    )


class Recorder:
    """Keeps everything in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.saved: list[tuple[str, Checkpoint]] = []

    def record(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        self.saved.append((name, checkpoint))


def trainer(
    toy: ClassificationData | None = None, cell: str = "rnn", hidden_size: int = 5, members: int = 1, **given: Any
) -> tuple[Trainer, Recorder]:
    toy = toy if toy is not None else data()
    settings = {"batch_size": 4, "lr": 0.01, "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant"}
    if "max_steps" not in given:
        settings["epochs"] = 3
    torch.manual_seed(3)
    model = Classifier(cell, 2, 2, hidden_size, members=members)
    model.fit_scaling(toy.training_values())
    recorder = Recorder()
    chosen = TrainingConfig.model_validate({**settings, **given})
    minibatches = SampleMinibatches(toy.train, chosen.batch_size or 0, torch.device("cpu"))
    scorer = ClassificationScorer(toy, "validation")
    return Trainer(model, minibatches, ClassifyObjective(), scorer, chosen, recorder), recorder


def plain_loop(epochs: int) -> dict[str, torch.Tensor]:
    """The same training in the fewest lines."""
    toy = data()
    torch.manual_seed(3)
    model = Classifier("rnn", 2, 2, 5)
    model.fit_scaling(toy.training_values())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shuffle = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for chosen in torch.randperm(10, generator=shuffle).split(4):
            x, lengths, y = (torch.from_numpy(array[chosen.numpy()]) for array in toy.train.gather(range(10))[:3])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x, lengths), y).backward()
            optimizer.step()
    return model.state_dict()


def test_equals_a_plain_loop() -> None:
    ours, _ = trainer()
    assert ours.fit()
    for name, value in plain_loop(3).items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_cells_project_after_every_step_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(ElmanRNNCell, "after_step", lambda cell, *steps: seen.append((*steps, torch.is_grad_enabled())))
    trainer(epochs=2)[0].fit()
    assert seen == [(step, 6, False) for step in range(1, 7)]


def scored(ours: Trainer, accuracies: list[float]) -> list[float]:
    """Replace what validation says, and keep the first weight as it was at each validation."""
    weights: list[float] = []
    following = iter(accuracies)

    def score(outputs: object) -> dict[str, Any]:
        weights.append(float(next(ours.model.parameters()).detach().flatten()[0]))
        return {"accuracy": next(following)}

    ours._scorer.score = score  # type: ignore[method-assign]
    return weights


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [([0.1, 0.9, 0.5], 2), ([0.1, 0.9, 0.9], 3), ([math.nan, 0.2, 0.1], 2), ([0.3, math.nan, math.nan], 1)],
    ids=["best in the middle", "a tie goes to the later", "missing first", "missing later"],
)
def test_the_best_weights_are_kept(accuracies: list[float], best: int) -> None:
    ours, recorder = trainer(epochs=3)
    weights = scored(ours, accuracies)
    ours.fit()
    assert ours.position.best_epoch == best
    ours.load_best()
    assert float(next(ours.model.parameters()).detach().flatten()[0]) == weights[best - 1]
    name, checkpoint = [saved for saved in recorder.saved if saved[0] == "best"][-1]
    assert checkpoint.state["epoch"] == best


@pytest.mark.parametrize(
    ("patience", "accuracies", "epochs"),
    [
        (1, [0.5, 0.6, 0.6, 0.9], 3),
        (2, [0.5, 0.4, 0.3, 0.9], 3),
        (2, [0.5, 0.4, 0.6, 0.5, 0.6, 0.9], 5),
        (2, [0.5, math.nan, math.nan, 0.9], 3),
    ],
    ids=["a tie is no progress", "two worse", "starts again after a better one", "missing"],
)
def test_patience(patience: int, accuracies: list[float], epochs: int) -> None:
    ours, recorder = trainer(epochs=6, patience=patience)
    scored(ours, accuracies)
    assert ours.fit()
    assert len(recorder.lines) == epochs


@pytest.mark.parametrize(("least", "epochs"), [(1, 3), (2, 4)], ids=["one epoch", "two epochs"])
def test_patience_in_steps_ends_with_an_epoch(least: int, epochs: int) -> None:
    ours, recorder = trainer(epochs=6, patience_steps=1)
    steps = ours.epoch_steps
    ours, recorder = trainer(epochs=6, patience_steps=least * steps)
    scored(ours, [0.5, 0.6, 0.6, 0.6, 0.9])
    assert ours.fit()
    assert (len(recorder.lines), ours.position.progress_step) == (epochs, 2 * steps)


def test_a_loss_that_is_not_finite() -> None:
    ours, recorder = trainer(optimizer="sgd", lr=1e38)
    with pytest.raises(
        TrainingError, match=r"^The training loss became inf at step 2 \(epoch 1\) at a learning rate of"
    ):
        ours.fit()
    assert recorder.saved == []


def test_shares_of_a_loss_that_is_not_finite_in_one_process() -> None:
    """Their sum is what every process raises an error for, before any optimizer reads a gradient."""
    x, lengths, y = (torch.from_numpy(array) for array in data().train.gather(range(2))[:3])
    x[0, 0] = torch.inf
    shares = []
    for rank in range(3):
        ours, _ = trainer()
        ours._processes = ProcessGroup(Launch(rank, 3))
        shares.append(ours._backward(Minibatch(Batch(x, lengths, y), 2, is_first=True)))
        gradients = [parameter.grad for parameter in ours.model.parameters() if parameter.grad is not None]
        # The third process has no row.
        assert bool(gradients) is (rank < 2)
        assert all(gradient.isfinite().all() for gradient in gradients) is (rank > 0)
    assert math.isnan(shares[0])
    assert shares[1] > 0
    assert shares[2] == 0
    assert math.isnan(sum(shares))


@pytest.mark.parametrize("epochs", [1, 3])
def test_no_epoch_with_a_finite_metric(epochs: int) -> None:
    ours, recorder = trainer(epochs=epochs)
    scored(ours, [math.nan] * epochs)
    with pytest.raises(
        TrainingError, match="^No epoch left a model that can be used: the validation metric 'accuracy'"
    ):
        ours.fit()
    assert {name for name, _ in recorder.saved} == {"last"}


def test_clipping_bounds_a_step() -> None:
    lengths = {}
    for norm in (0, 1e-3):
        ours, _ = trainer(optimizer="sgd", lr=1.0, max_steps=1, clip_norm=norm)
        before = [parameter.detach().clone() for parameter in ours.model.parameters()]
        ours.fit()
        moved = [(after - old).flatten() for after, old in zip(ours.model.parameters(), before, strict=True)]
        lengths[norm] = float(torch.cat(moved).detach().norm())
    assert lengths[0] > 0.1
    assert lengths[1e-3] == pytest.approx(1e-3, rel=1e-3)


def test_each_member_is_clipped_alone() -> None:
    ours, _ = trainer(members=2, optimizer="sgd", lr=1.0, max_steps=1, clip_norm=1e-3)
    members = ours.model.member_parameters()
    before = [torch.nn.utils.parameters_to_vector(member).detach().clone() for member in members]
    ours.fit()
    after = [torch.nn.utils.parameters_to_vector(member).detach() for member in members]
    moved = [float((new - old).norm()) for new, old in zip(after, before, strict=True)]
    assert moved == pytest.approx([1e-3, 1e-3], rel=1e-3)


def test_long_epochs_are_saved_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stablernn.training.loop.trainer.SAVE_SECONDS", 0.0)
    ours, recorder = trainer(epochs=1)
    ours.fit()
    steps = [saved.state["position"]["step"] for name, saved in recorder.saved if name == "last"]
    assert steps == [1, 2, 3, 3]
