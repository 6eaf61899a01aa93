"""Fitting a model: epochs of shuffled mini-batches, the best weights kept, any step a place to stop and go on from.

Everything that decides the numbers of the steps to come is in :meth:`Trainer.checkpoint`, so a run that was stopped and
resumed equals one that was not, to the last bit where the arithmetic itself repeats (the CPU).
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from stablernn.cells import recommended_training
from stablernn.certificates.projection import project
from stablernn.data.arrays import Samples
from stablernn.data.windows import WindowSet
from stablernn.errors import ConfigError, TrainingError
from stablernn.nn.models import SequenceModel, States
from stablernn.training.batches.losses import Batch, PredictNextTask, Task, task_for
from stablernn.training.batches.minibatches import Feed, Piece
from stablernn.training.evaluation.evaluate import Scorer, Source, TorchPredictor, predict
from stablernn.training.evaluation.evaluate_predict_next import StepScorer
from stablernn.training.loop.certificate_log import StabilityLog
from stablernn.training.loop.checkpoint import Checkpoint, optimizer_state, restore_optimizer
from stablernn.training.loop.optim import Plateau, build_optimizer, build_schedule
from stablernn.training.settings.config import TrainingConfig
from stablernn.training.settings.resolve import FALLBACK, FALLBACK_LR

DIVERGED = 3.0
"""Multiple of the first training loss, or of its unit, above which training counts as diverged at its end. Runs that
learn nothing stay near 1; those whose rate is too high by orders of magnitude end above 10."""
SAVE_SECONDS = 300.0
"""Longest time between two saves inside an epoch: what a power cut may cost."""

_GATHERED_BYTES = 2**30
"""Samples up to this size are gathered once; larger ones, such as many overlapping windows, batch by batch."""


class Progress(NamedTuple):
    """Where a run is, after each optimizer step and each validation."""

    epoch: int
    """The epoch that is being trained, from 1."""
    epochs: int
    step: int
    """Optimizer steps done."""
    total_steps: int
    loss: float
    """Mean training loss of the epoch so far."""
    metric_name: str
    """The validation metric that the best weights are chosen by."""
    metric: float | None
    """Its latest value; None before the first validation."""
    best: float | None
    """Its best value."""


class Journal(Protocol):
    """Where a trainer leaves what it did."""

    def record(self, line: dict[str, Any]) -> None:
        """Figures of an epoch."""

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """A checkpoint called ``last`` or ``best``, or ``epoch-1`` and so on."""


@dataclass
class Position:
    """How far a run is, in numbers that JSON can hold."""

    epoch: int = 0
    """Whole epochs done."""
    batch: int = 0
    """Steps done in the epoch after them."""
    step: int = 0
    lr: float = 0.0
    """Of the last step."""
    loss_sum: float = 0.0
    """Sum over the samples of the unfinished epoch, or over the numbers that were predicted."""
    seen: int = 0
    """How many these are."""
    metric: float | None = None
    best: float | None = None
    best_epoch: int = 0
    best_step: int = 0
    stale: int = 0
    """Epochs since the best value was last exceeded."""
    seconds: float = 0.0
    first_loss: float | None = None
    """Of the first step, before the parameters were changed."""
    last_loss: float | None = None
    """Mean of the last epoch, as far as it went."""


class Batches:
    """Samples of a source as batches of tensors on a device, cut to the longest sequence of the batch.

    Args:
        source: Numbered samples.
        device: Where the tensors go.
        keep: Whether samples are gathered once, if they are not too many.
    """

    def __init__(self, source: Source, device: torch.device, *, keep: bool = True) -> None:
        self._source = source
        self._device = device
        self._whole: Batch | None = None
        one = source.gather(np.arange(min(1, len(source))))
        if keep and (one.x.nbytes + one.y.nbytes) * len(source) <= _GATHERED_BYTES:
            self._whole = self._gather(np.arange(len(source)))

    def __len__(self) -> int:
        return len(self._source)

    def take_longer(self, indices: Tensor, extra: int, multiple: int) -> Batch:
        """Windows with longer contexts, see :meth:`WindowSet.gather_longer`."""
        assert isinstance(self._source, WindowSet)
        return _cut(self._moved(self._source.gather_longer(indices.numpy(), extra, multiple)))

    def take(self, indices: Tensor) -> Batch:
        """The samples with these numbers, an int64 tensor on the CPU."""
        if self._whole is None:
            return _cut(self._gather(indices.numpy()))
        chosen = indices.to(self._device)
        x, lengths, y, *further = self._whole
        rest = (None if part is None else part[chosen] for part in further)
        return _cut(Batch(x[chosen], lengths[chosen], y[chosen], *rest))

    def _gather(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Batch:
        return self._moved(self._source.gather(indices))

    def _moved(self, found: Samples) -> Batch:
        x, lengths, y = (torch.from_numpy(part).to(self._device) for part in found[:3])
        rest = (None if part is None else torch.from_numpy(part).to(self._device) for part in found[3:])
        return Batch(x, lengths, y, *rest)


def _cut(batch: Batch) -> Batch:
    longest = int(batch.lengths.max())
    if longest == batch.x.shape[1]:
        return batch
    return batch._replace(x=batch.x[:, :longest], dt=None if batch.dt is None else batch.dt[:, :longest])


class SampleFeed(Feed):
    """Samples of a source, drawn anew into batches each epoch.

    Args:
        source: Numbered samples.
        batch_size: Samples in a step.
        device: Where they go.
        warm_up: Steps by which the contexts of windows are longer, at random up to this, a number for each batch.
        multiple: Of what they are longer by whole numbers.
    """

    def __init__(
        self, source: Source, batch_size: int, device: torch.device, *, warm_up: int = 0, multiple: int = 1
    ) -> None:
        self._warm_up = warm_up // multiple
        self._multiple = multiple
        # Longer contexts are cut anew for each batch.
        self._batches = Batches(source, device, keep=not self._warm_up)
        self._size = batch_size
        self._order = torch.arange(len(source))
        self.steps = math.ceil(len(source) / batch_size)

    def shuffle(self, generator: torch.Generator) -> None:
        self._order = torch.randperm(len(self._batches), generator=generator)

    def take(self, number: int) -> Piece:
        chosen = self._order[number * self._size : (number + 1) * self._size]
        if not self._warm_up:
            return Piece(self._batches.take(chosen), len(chosen), first=True)
        extra = self._multiple * int(torch.randint(self._warm_up + 1, ()))
        return Piece(self._batches.take_longer(chosen, extra, self._multiple), len(chosen), first=True)


class Trainer:
    """Fits a model to the samples of a source.

    Args:
        model: With its scaling fitted, on the device on which it is to be trained.
        source: Training samples, or a feed that cuts them into steps in a way of its own.
        scorer: Of the validation split.
        settings: Resolved settings.
        journal: Receives epochs and checkpoints.
        task: What it is trained for; the model's, as it comes, when omitted.

    Raises:
        ConfigError: If early stopping or the schedule ``plateau`` is asked for and there is nothing to validate on.
    """

    def __init__(
        self,
        model: SequenceModel,
        source: Source | Feed,
        scorer: Scorer | StepScorer,
        settings: TrainingConfig,
        journal: Journal,
        task: Task | None = None,
    ) -> None:
        if settings.patience is not None and not scorer.samples:
            raise ConfigError(
                f"training.patience needs a validation split and there is none, got patience={settings.patience}."
            )
        if settings.schedule == "plateau" and not scorer.samples:
            raise ConfigError("training.schedule='plateau' needs a validation split and there is none.")
        assert settings.batch_size is not None
        self.model = model
        self.settings = settings
        self.position = Position()
        self.task = task or task_for(model, scorer.headline if isinstance(scorer, StepScorer) else None)
        self._journal = journal
        self._scorer = scorer
        self._device = next(model.parameters()).device
        self._feed = source if isinstance(source, Feed) else SampleFeed(source, settings.batch_size, self._device)
        self._carried: States | None = None
        self.epoch_steps = self._feed.steps
        self.total_steps = settings.max_steps or (settings.epochs or 0) * self.epoch_steps
        self._optimizer = build_optimizer(model.parameter_groups(), settings)
        self._schedule = build_schedule(
            self._optimizer, settings, total_steps=self.total_steps, epoch_steps=self.epoch_steps
        )
        self._shuffle = torch.Generator().manual_seed(settings.seed)
        self._shuffle_start = self._shuffle.get_state()
        self._best: dict[str, Tensor] = {}
        self._saved_at = time.monotonic()
        self._log = StabilityLog(model, each=settings.certified)
        self._project()

    @property
    def is_done(self) -> bool:
        patience = self.settings.patience
        stopped_early = patience is not None and self.position.batch == 0 and self.position.stale >= patience
        return self.position.step >= self.total_steps or stopped_early

    @property
    def epochs_begun(self) -> int:
        return self.position.epoch + (self.position.batch > 0)

    def fit(self, progress: Callable[[Progress], None] | None = None) -> bool:
        """Train until the settings say to stop, or until the user does (SIGINT, SIGTERM).

        Either way ``last`` is saved at the step that was reached.

        Args:
            progress: Called after each step and each validation.

        Returns:
            Whether the run is done; False when it was interrupted.

        Raises:
            TrainingError: If the loss is not finite; ``last`` is then from before. If no epoch left weights that give
                finite answers.
        """
        report = progress or (lambda _: None)
        self._saved_at = time.monotonic()
        with stop_signals() as stop:
            while not self.is_done:
                self._epoch(report, stop)
                if stop.is_set():
                    return False
        if self.position.batch:
            # max_steps ended inside an epoch. ``last`` was saved before this validation, so that a resumed run with
            # more steps goes on as if it had never stopped here.
            self._validate(report)
        if not self._best:
            raise TrainingError(
                f"No epoch left a model that can be used: {self._missing()}. Set {self.stabilizing_advice()}."
            )
        return True

    def _epoch(self, report: Callable[[Progress], None], stop: threading.Event) -> None:
        position = self.position
        self._shuffle.set_state(self._shuffle_start)
        self._feed.shuffle(self._shuffle)
        started = time.monotonic()
        while position.batch < self.epoch_steps and position.step < self.total_steps:
            piece = self._feed.take(position.batch)
            loss = self._step(piece)
            # A checkpoint from before this was stored goes on without: a later loss is no first one.
            is_first = not position.epoch and not position.seen and position.first_loss is None
            if is_first and piece.weight:
                position.first_loss = loss
            position.loss_sum += loss * piece.weight
            position.seen += piece.weight
            position.batch += 1
            position.step += 1
            report(self._progress())
            now = time.monotonic()
            position.seconds += now - started
            started = now
            if stop.is_set() or now - self._saved_at > SAVE_SECONDS:
                self._save_last()
            if stop.is_set():
                return
        if position.batch < self.epoch_steps:
            self._save_last()
            return
        self._validate(report)
        position.seconds += time.monotonic() - started
        position.epoch += 1
        position.batch = 0
        position.loss_sum = 0.0
        position.seen = 0
        self._shuffle_start = self._shuffle.get_state()
        self._save_last()

    def _step(self, piece: Piece) -> float:
        self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(piece)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(self._not_finite(value))
        self.position.lr = float(self._optimizer.param_groups[0]["lr"])
        # A stretch of sequences without any target only moves the state.
        if piece.weight:
            loss.backward()  # type: ignore[no-untyped-call]
            if self.settings.clip_norm:
                for parameters in self.model.member_parameters():
                    clip_grad_norm_(parameters, self.settings.clip_norm)
        self._optimizer.step()
        self.model.after_step(self.position.step + 1, self.total_steps)
        self._project()
        self._schedule.step()
        return value

    def _project(self) -> None:
        if self.settings.certified:
            for cell in self.model.rnn.cells:
                project(cell, self.settings.certified_margin or 0.0)

    def _loss(self, piece: Piece) -> Tensor:
        if not isinstance(self.task, PredictNextTask):
            return self.task.loss(self.model, piece.batch)
        rows = len(piece.batch.x)
        before = None if piece.first or self._carried is None else tuple(state[:rows] for state in self._carried)
        loss, self._carried = self.task.follow(self.model, piece.batch, before)
        return loss

    def _not_finite(self, value: float) -> str:
        position, rate = self.position, self._optimizer.param_groups[0]["lr"]
        return (
            f"The training loss became {value} at step {position.step + 1} (epoch {position.epoch + 1}) at a learning "
            f"rate of {rate:.3g}. Set {self.stabilizing_advice()}."
        )

    def _missing(self) -> str:
        if not self._scorer.samples:
            return "its weights are not finite"
        return f"the validation metric '{self.task.headline}' was never finite, last {self.position.metric}"

    @property
    def is_diverged(self) -> bool:
        """True if the training loss ended far above where it began, and above its unit.

        Losses are in units of the scaling, or nats: of a loss that begins near 0, a multiple says little.
        """
        first, last = self.position.first_loss, self.position.last_loss
        return first is not None and last is not None and last > DIVERGED * max(first, 1.0)

    def stabilizing_advice(self) -> str:
        """Return the settings that keep the loss from growing, as the object of "Set ..."."""
        clip = "a smaller training.clip_norm" if self.settings.clip_norm else "training.clip_norm=1"
        recommended = recommended_training(self.model.rnn.first.cell, self.model.preset)
        optimizer = self.settings.optimizer or FALLBACK["optimizer"]
        # A rate that was found for one optimizer says nothing about another.
        is_recommended = "lr" in recommended and recommended.get("optimizer", FALLBACK["optimizer"]) == optimizer
        usual = recommended["lr"] if is_recommended else FALLBACK_LR[optimizer]
        return f"a lower training.lr, such as {min((self.settings.lr or usual) / 10, usual):g}, or {clip}"

    def _validate(self, report: Callable[[Progress], None]) -> None:
        position, name = self.position, self.task.headline
        position.last_loss = position.loss_sum / max(1, position.seen)
        scores: dict[str, Any] = {}
        if self._scorer.samples:
            scores = self._scores()
        position.metric = scores.get(name)
        if self._is_best(position.metric):
            position.best = position.metric
            position.best_epoch, position.best_step = self.epochs_begun, position.step
            self._best = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
            self._journal.save("best", self.best())
        if self.settings.keep_epochs:
            self._journal.save(f"epoch-{self.epochs_begun}", self._now())
        if isinstance(self._schedule, Plateau):
            self._schedule.validated(is_better=position.stale == 0)
        self._journal.record(
            {
                "epoch": self.epochs_begun,
                "step": position.step,
                "lr": position.lr,
                "train_loss": position.last_loss,
                "validation": {key: value for key, value in scores.items() if key not in self._scorer.naive},
                "seconds": round(position.seconds, 3),
                **self._log.entry(self.epochs_begun),
            }
        )
        report(self._progress())

    def _scores(self) -> dict[str, Any]:
        predictor = TorchPredictor(self.model)
        if isinstance(self._scorer, StepScorer):
            return self._scorer.score_of(predictor)
        return self._scorer.score(predict(predictor, self._scorer.source))

    def _is_best(self, metric: float | None) -> bool:
        """Whether to keep these weights. A tie goes to the later epoch, but counts as no progress."""
        position = self.position
        if not self._scorer.samples:
            return all(bool(torch.isfinite(weights).all()) for weights in self.model.state_dict().values())
        if metric is None or not math.isfinite(metric):
            position.stale += 1
            return False
        sign = 1 if self.task.mode == "max" else -1
        exceeded = position.best is None or sign * metric > sign * position.best
        position.stale = 0 if exceeded else position.stale + 1
        return exceeded or metric == position.best

    def _progress(self) -> Progress:
        position = self.position
        return Progress(
            epoch=self.epochs_begun,
            epochs=math.ceil(self.total_steps / self.epoch_steps),
            step=position.step,
            total_steps=self.total_steps,
            loss=position.loss_sum / max(1, position.seen),
            metric_name=self.task.headline,
            metric=position.metric,
            best=position.best,
        )

    def _save_last(self) -> None:
        self._journal.save("last", self.checkpoint())
        self._saved_at = time.monotonic()

    def best(self, weights: Mapping[str, Tensor] | None = None) -> Checkpoint:
        """The weights with the best validation metric; without a validation split the latest ones.

        Args:
            weights: What calibration made of them, in their place.
        """
        position = self.position
        return self._scored(weights or self._best, position.best_epoch, position.best_step, position.best)

    def _now(self) -> Checkpoint:
        """The weights as they are, just validated."""
        return self._scored(self.model.state_dict(), self.epochs_begun, self.position.step, self.position.metric)

    def _scored(self, weights: Mapping[str, Tensor], epoch: int, step: int, value: float | None) -> Checkpoint:
        state = {
            "model": self.model.config(),
            "epoch": epoch,
            "step": step,
            "metric": self.task.headline,
            "value": value,
        }
        return Checkpoint({f"model.{name}": weight for name, weight in weights.items()}, state)

    def checkpoint(self) -> Checkpoint:
        """All that the steps to come depend on."""
        moments, optimizer = optimizer_state(self._optimizer)
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self._best.items()}
        tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
        tensors |= {f"carried.{number}": state for number, state in enumerate(self._carried or ())}
        tensors |= {"random.shuffle": self._shuffle_start, "random.cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self._device)
        state = {
            "model": self.model.config(),
            "position": asdict(self.position),
            "optimizer": optimizer,
            "schedule": self._schedule.state_dict(),
        }
        return Checkpoint(tensors, state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a state that :meth:`checkpoint` gave; the settings must be the same, but for the length."""
        self.model.load_state_dict(checkpoint.group("model"))
        restore_optimizer(self._optimizer, checkpoint.group("optimizer"), checkpoint.state["optimizer"])
        self._schedule.load_state_dict(checkpoint.state["schedule"])
        self.position = Position(**checkpoint.state["position"])
        self._best = {name: value.to(self._device) for name, value in checkpoint.group("best").items()}
        carried = checkpoint.group("carried")
        # Copied, since a product may round in another way where a tensor lies at an address of the file's.
        states = (carried[str(number)].to(self._device, copy=True) for number in range(len(carried)))
        self._carried = tuple(states) or None
        random = checkpoint.group("random")
        self._shuffle_start = random["shuffle"]
        torch.set_rng_state(random["cpu"])
        if self._device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self._device)

    def load_best(self) -> None:
        """Put the best weights into the model."""
        self.model.load_state_dict(self._best)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into an event; a second one does what it always does.

    Python handles signals in the main thread only, so a run in another thread cannot be stopped this way.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        for number in before:
            signal.signal(number, ask_to_stop)
        yield stop
    finally:
        restore()
