"""Recorded passes set the gradients of plain ones; without a GPU, a recording is a function that runs again."""

from __future__ import annotations

import logging
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_graphs import run_again
from stablernn.data import ClassificationData, SequenceSplit
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor, States
from stablernn.training.evaluation.scorers import ClassificationScorer
from stablernn.training.loop import trainer as graphed_passes
from stablernn.training.loop.augmentation import Mixup
from stablernn.training.loop.base_trainer import Progress
from stablernn.training.loop.checkpoint import Checkpoint
from stablernn.training.loop.losses import ClassifyObjective, ForecastObjective, Objective, PredictNextObjective
from stablernn.training.loop.minibatches import Batch, SampleMinibatches
from stablernn.training.loop.trainer import EAGER_PASSES, GraphedPasses, Trainer
from stablernn.training.settings.config import TrainingConfig

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
ROWS, STEPS = 6, 9


def passes_of(model: SequenceModel, objective: Objective, device: str) -> GraphedPasses:
    return GraphedPasses(model, objective) if device == "cuda" else GraphedPasses(model, objective, run_again)


def plain(model: SequenceModel, objective: Objective, batch: Batch, state: States | None = None) -> list[Tensor | None]:
    """The loss, the state after it and the gradients."""
    model.zero_grad()
    loss, after = objective.advance(model, batch, state)
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(after or ()), *(parameter.grad for parameter in model.parameters())]


def graphed(
    passes: GraphedPasses, model: SequenceModel, batch: Batch, state: States | None = None
) -> list[Tensor | None] | None:
    """The same by a recording; None if there is none."""
    model.zero_grad()
    result = passes.run(batch, state)
    if result is None:
        return None
    loss, after = result
    gradients = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    return [loss.clone(), *(after or ()), *gradients]


def classes(device: str, *, padded: bool = False) -> Batch:
    lengths = torch.randint(1, STEPS + 1, (ROWS,)) if padded else torch.full((ROWS,), STEPS)
    x = torch.randn(ROWS, STEPS, 2)
    return Batch(x.to(device), lengths.to(device), torch.randint(3, (ROWS,)).to(device), is_padded=padded)


def mixtures(device: str) -> Batch:
    return classes(device)._replace(
        partner_y=torch.randint(3, (ROWS,)).to(device),
        y_weight=torch.rand(ROWS).to(device),
        partner_weight=torch.rand(ROWS).to(device),
    )


def windows(device: str) -> Batch:
    y = torch.randn(ROWS, 4, 1)
    y[torch.rand(y.shape) < 0.2] = torch.nan
    lengths, future = torch.full((ROWS,), STEPS), torch.randn(ROWS, 4, 1)
    x = torch.randn(ROWS, STEPS, 2)
    return Batch(x.to(device), lengths.to(device), y.to(device), future=future.to(device), is_padded=False)


def frames(device: str) -> Batch:
    x, y = torch.randn(2, ROWS, STEPS, 2).to(device)
    y[torch.rand(y.shape, device=device) < 0.2] = torch.nan
    return Batch(x, torch.full((ROWS,), STEPS, device=device), y)


def recomputing(model: SequenceModel) -> SequenceModel:
    model.rnn.recompute_every(4)
    return model


CASES: dict[str, tuple[Any, Any, Any]] = {
    "classes": (lambda: Classifier("lru", 2, 3, 4), ClassifyObjective, classes),
    "padded": (lambda: Classifier("lru", 2, 3, 4), ClassifyObjective, lambda device: classes(device, padded=True)),
    "members": (lambda: Classifier("mingru", 2, 3, 4, members=2), ClassifyObjective, classes),
    "recomputed": (lambda: recomputing(Classifier("lru", 2, 3, 4)), ClassifyObjective, classes),
    "weights": (
        lambda: Classifier("minlstm", 2, 3, 4),
        lambda: ClassifyObjective(torch.tensor([0.5, 1.0, 2.0]), label_smoothing=0.1),
        classes,
    ),
    "mixtures": (lambda: Classifier("lru", 2, 3, 4), ClassifyObjective, mixtures),
    "direct": (lambda: Forecaster("lru", 2, 4, 4, future_indices=(1,)), ForecastObjective, windows),
    "recursive": (
        lambda: Forecaster("lru", 2, 4, 4, head="recursive", future_indices=(1,)),
        ForecastObjective,
        windows,
    ),
    "next": (lambda: SequencePredictor("lru", 2, 2, 4, output="real"), lambda: PredictNextObjective("mse"), frames),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_equals_plain_passes(case: str, device: str) -> None:
    build, build_objective, draw = CASES[case]
    model, objective = build().to(device), build_objective()
    model.rnn.use_engine("scan")
    passes = passes_of(model, objective, device)
    for number in range(EAGER_PASSES + 3):
        batch = draw(device)
        result, expected = graphed(passes, model, batch), plain(model, objective, batch)
        assert (result is None) == (number < EAGER_PASSES)
        if result is not None:
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
        # As an optimizer does, in place.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    assert passes.count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_segments_go_on_from_the_state_of_the_one_before(device: str) -> None:
    model, objective = SequencePredictor("lru", 2, 2, 4, output="real").to(device), PredictNextObjective("mse")
    model.rnn.use_engine("scan")
    passes = passes_of(model, objective, device)
    segments = [frames(device) for _ in range(EAGER_PASSES + 4)]
    expected: States | None = None
    state: States | None = None
    for number, batch in enumerate(segments):
        result = passes.run(batch, state)
        _, expected = objective.advance(model, batch, expected)
        state = result[1] if result is not None else objective.advance(model, batch, state)[1]
        # The first segment has a shape of its own, without a state.
        assert (result is None) == (number < 1 + EAGER_PASSES)
        torch.testing.assert_close(state, expected)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps which operations run, and the shapes of their tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, *(arg.shape for arg in args if isinstance(arg, Tensor))))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recompute_every", [None, 16])
@pytest.mark.parametrize("case", ["padded", "next"])
def test_operations_do_not_depend_on_lengths(case: str, recompute_every: int | None) -> None:
    """A GPU would be waited for, and a recording has those of one minibatch."""
    build, build_objective, draw = CASES[case]
    model, objective = build(), build_objective()
    model.rnn.use_engine("scan")
    model.rnn.recompute_every(recompute_every)
    # Long enough that the loop without recordings sorts the sequences and runs them in parts.
    batch = draw("cpu")
    batch = batch._replace(x=torch.randn(ROWS, 64, 2), y=batch.y if case == "padded" else torch.randn(ROWS, 64, 2))
    passes = GraphedPasses(model, objective, run_again)
    seen = []
    for shortest in (63, 63, 63, 63, 20):
        lengths = torch.full((ROWS,), shortest)
        lengths[0] = 64
        with Operations() as operations:
            result = graphed(passes, model, batch._replace(lengths=lengths))
        seen.append(operations.seen)
    assert result is not None
    assert seen[-1] == seen[-2]


class Recorder:
    """Keeps the last checkpoint of each name."""

    def __init__(self) -> None:
        self.saved: dict[str, Checkpoint] = {}

    def record(self, line: dict[str, Any]) -> None:
        pass

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        self.saved[name] = checkpoint


def trainer_of(
    cell: str, engine: str, device: str, *, is_graphed: bool, objective: Objective | None = None, dropout: float = 0.0
) -> tuple[Trainer, Recorder]:
    """A training of three epochs of four full minibatches and a smaller one."""
    random = np.random.default_rng(0)
    x = random.normal(size=(34, STEPS, 2)).astype(np.float32)
    names = tuple(str(number) for number in range(len(x)))
    split = SequenceSplit(x, np.full(len(x), STEPS), (x[:, -1, 0] > 0).astype(np.int64), names)
    data = ClassificationData("toy", ("no", "yes"), ("a", "b"), split, split, None, {}, "sha256:0")
    settings = {"batch_size": 8, "epochs": 3, "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant"}
    torch.manual_seed(3)
    model = Classifier(cell, 2, 2, 8, num_layers=2, dropout=dropout, engine=engine).to(device)
    recorder = Recorder()
    trainer = Trainer(
        model,
        SampleMinibatches(split, 8, torch.device(device)),
        objective or ClassifyObjective(),
        ClassificationScorer(data, "validation"),
        TrainingConfig.model_validate({**settings, "lr": 0.01, "clip_norm": 0.5}),
        recorder,
    )
    assert (trainer._graphed is not None) == (device == "cuda")
    trainer._graphed = passes_of(model, trainer.objective, device) if is_graphed else None
    return trainer, recorder


def fit(cell: str, engine: str, device: str, **options: Any) -> tuple[list[Tensor], int]:
    """Return the weights after training, and the number of recordings."""
    trainer, _ = trainer_of(cell, engine, device, **options)
    trainer.fit()
    return [*trainer.model.parameters()], 0 if trainer._graphed is None else trainer._graphed.count


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("cell", "engine"), [("lru", "scan"), ("gru", "torch-rnn"), ("rnn", "torch-rnn")])
def test_a_training_with_recorded_passes_equals_one_without(cell: str, engine: str, device: str) -> None:
    plain_weights, _ = fit(cell, engine, device, is_graphed=False)
    weights, count = fit(cell, engine, device, is_graphed=True)
    # Both shapes have come three times.
    assert count == 2
    torch.testing.assert_close(weights, plain_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_stop_forgets_the_minibatch_that_was_drawn_ahead(device: str) -> None:
    def objective() -> Objective:
        return ClassifyObjective(mixup=Mixup(0.5))

    expected, _ = fit("lru", "scan", device, is_graphed=True, objective=objective())
    stopped, recorder = trainer_of("lru", "scan", device, is_graphed=True, objective=objective())

    def stop(progress: Progress) -> None:
        if progress.step == 12:
            assert stopped._next is not None
            signal.raise_signal(signal.SIGINT)

    assert not stopped.fit(stop)
    assert stopped.position.batch == 2
    after = torch.get_rng_state()
    resumed, _ = trainer_of("lru", "scan", device, is_graphed=True, objective=objective())
    resumed.restore(recorder.saved["last"])
    assert torch.equal(torch.get_rng_state(), after)
    assert resumed.fit()
    torch.testing.assert_close([*resumed.model.parameters()], expected, rtol=1e-4, atol=1e-5)


def test_rare_shapes_and_those_beyond_the_limit_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_passes, "MOST_GRAPHS", 1)
    model = Classifier("lru", 2, 3, 4)
    model.rnn.use_engine("scan")
    passes = GraphedPasses(model, ClassifyObjective(), run_again)
    batch = classes("cpu")
    fewer = batch._replace(x=batch.x[1:], lengths=batch.lengths[1:], y=batch.y[1:])
    for _ in range(EAGER_PASSES + 1):
        passes.run(batch, None)
        passes.run(fewer, None)
    assert passes.count == 1
    assert passes.run(batch, None) is not None
    assert passes.run(fewer, None) is None


class _CountingObjective(ClassifyObjective):
    """Counts passes in a buffer of the model, and draws for each on the CPU if asked to."""

    def __init__(self, *, draws: bool) -> None:
        super().__init__()
        self._draws = draws

    def advance(self, model: SequenceModel, batch: Batch, state: States | None) -> tuple[Tensor, None]:
        model.get_buffer("passes").add_(1)
        factor = float(torch.rand(())) if self._draws else 1.0
        loss, after = super().advance(model, batch, state)
        return factor * loss, after


@pytest.mark.parametrize("device", DEVICES)
def test_a_pass_that_draws_on_the_cpu_is_refused_once(device: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Classifier("lru", 2, 3, 4).to(device)
    model.register_buffer("passes", torch.zeros((), device=device), persistent=False)
    model.rnn.use_engine("scan")
    passes = passes_of(model, _CountingObjective(draws=True), device)
    with caplog.at_level(logging.INFO, "stablernn.training"):
        for _ in range(EAGER_PASSES + 3):
            assert passes.run(classes(device), None) is None
    assert [record.message for record in caplog.records] == [
        "Training passes cannot be recorded as a CUDA graph: it draws random numbers on the CPU, which a replay would "
        "repeat"
    ]
    assert float(model.get_buffer("passes")) == 0
