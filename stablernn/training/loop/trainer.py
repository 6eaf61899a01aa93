"""Fitting of a model: epochs of shuffled minibatches, the best weights kept, and a stop possible after any step.

Everything that decides the numbers of the steps to come is in :meth:`Trainer.checkpoint`, so a run that was stopped and
resumed equals one that was not, to the last bit where the arithmetic itself repeats (the CPU).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch.nn.utils import clip_grad_norm_

from stablernn.cells import recommended_training
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.projection import project_model
from stablernn.errors import ConfigError, TrainingError
from stablernn.nn.models import SequenceModel, States
from stablernn.terms import terms
from stablernn.training.batches.graphed_passes import GraphedPasses
from stablernn.training.batches.losses import Batch, Objective
from stablernn.training.batches.minibatches import Minibatch, Minibatches
from stablernn.training.batches.transfers import read_scalar
from stablernn.training.evaluation.scorers import Scorer
from stablernn.training.loop.base_trainer import BaseTrainer, Position, Progress, RunRecorder
from stablernn.training.loop.checkpoint import Checkpoint, optimizer_state, restore_optimizer
from stablernn.training.loop.memory import enough_memory
from stablernn.training.loop.optim import Plateau, build_optimizer, build_schedule
from stablernn.training.loop.process_group import ProcessGroup
from stablernn.training.loop.stop_signals import stop_signals
from stablernn.training.settings.config import TrainingConfig
from stablernn.training.settings.defaults import FALLBACK_LR, FALLBACK_OPTIMIZER

DIVERGED = 3.0
"""Multiple of the first training loss, or of its unit, above which training counts as diverged at its end. Runs that
learn nothing stay near 1; those whose rate is too high by orders of magnitude end above 10."""
SAVE_SECONDS = 300.0
"""Longest time between two saves inside an epoch: what a power cut may cost."""


class Trainer(BaseTrainer):
    """Fits a model to minibatches by gradients.

    Args:
        model: With its scaling fitted, on the device on which it is to be trained.
        minibatches: Minibatches of the training split.
        objective: The loss to train on and the metric to choose by.
        scorer: Scorer of the validation split.
        settings: Resolved settings.
        recorder: Receives epochs and checkpoints.
        inputs: Range of the raw inputs, on which the certified region of some cells depends; None if there is none.
        certify_epochs: Whether the figures of an epoch say what is proved of the model.
        processes: The processes that train the model together; only this one when omitted.

    Raises:
        ConfigError: If early stopping or the schedule ``plateau`` is asked for and there is nothing to validate on.
    """

    def __init__(
        self,
        model: SequenceModel,
        minibatches: Minibatches,
        objective: Objective,
        scorer: Scorer,
        settings: TrainingConfig,
        recorder: RunRecorder,
        *,
        inputs: InputRange | None = None,
        certify_epochs: bool = True,
        processes: ProcessGroup | None = None,
    ) -> None:
        for name in ("patience", "patience_steps"):
            value = getattr(settings, name)
            if value is not None and not scorer.samples:
                raise ConfigError(f"training.{name} needs a validation split and there is none, got {name}={value}.")
        if settings.schedule == "plateau" and not scorer.samples:
            raise ConfigError("training.schedule='plateau' needs a validation split and there is none.")
        super().__init__(
            model, objective, scorer, settings, recorder, certify_epochs=certify_epochs, processes=processes
        )
        self._inputs = inputs
        self._device = next(model.parameters()).device
        self._minibatches = minibatches
        # Only where one process trains: among several, each has a share of the loss and random numbers of its own.
        is_graphed = self._device.type == "cuda" and self._processes.world_size == 1
        self._graphed = GraphedPasses(model, objective) if is_graphed else None
        # The next minibatch of the epoch, where it was drawn ahead, and the state of the generator before.
        self._next: Minibatch | None = None
        self._state_before_next = torch.get_rng_state()
        # State after the last minibatch, of this process's rows, which the next one may go on from.
        self._carried: States | None = None
        self.epoch_steps = minibatches.steps
        self.total_steps = settings.max_steps or (settings.epochs or 0) * self.epoch_steps
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Gradients of each ensemble member are clipped alone: they are independent networks.
        self._member_parameters = model.member_parameters()
        self._optimizer = build_optimizer(model.parameter_groups(), settings)
        self._schedule = build_schedule(
            self._optimizer, settings, total_steps=self.total_steps, epoch_steps=self.epoch_steps
        )
        # A generator of its own: the order of an epoch is drawn again from its state at the beginning of that epoch
        # when a run is resumed in the middle of it.
        self._shuffle = torch.Generator().manual_seed(settings.seed)
        self._shuffle_start = self._shuffle.get_state()
        self._saved_at = time.monotonic()
        # First weights may lie outside the certified region.
        self._project()

    @property
    def is_done(self) -> bool:
        return self.position.step >= self.total_steps or self._is_out_of_patience

    @property
    def _is_out_of_patience(self) -> bool:
        settings, position = self.settings, self.position
        # Epochs are validated at their ends.
        if position.batch:
            return False
        if settings.patience_steps is not None:
            return position.step - position.progress_step >= settings.patience_steps
        return settings.patience is not None and position.stale >= settings.patience

    def fit(self, progress: Callable[[Progress], None] | None = None) -> bool:
        """Train until the settings say to stop, or until the user does (SIGINT, SIGTERM).

        Either way ``last`` is saved at the step that was reached.

        Args:
            progress: Called after each step and each validation.

        Returns:
            True if the run is done, False if it was interrupted.

        Raises:
            TrainingError: If the loss is not finite, or memory runs out; ``last`` is then from before. If no epoch left
                weights that give finite answers.
        """
        report = progress or (lambda _: None)
        self._saved_at = time.monotonic()
        self._processes.broadcast_state(self.model.state_dict().values())
        try:
            with stop_signals() as stop:
                while not self.is_done:
                    self._train_epoch(report, stop)
                    if self._processes.all_reduce_any(stop.is_set()):
                        return False
        finally:
            self._forget_next()
        if self.position.batch:
            # max_steps ended inside an epoch. ``last`` was saved before this validation, so that a resumed run with
            # more steps goes on as if it had never stopped here.
            self._validate(report)
        if not self._best:
            raise TrainingError(
                f"No epoch left a model that can be used: {self._unusable_reason()}. Set {self.stabilizing_advice()}."
            )
        return True

    def _train_epoch(self, report: Callable[[Progress], None], stop: threading.Event) -> None:
        position = self.position
        self._shuffle.set_state(self._shuffle_start)
        self._minibatches.shuffle(self._shuffle)
        started = time.monotonic()
        while position.batch < self.epoch_steps and position.step < self.total_steps:
            minibatch = self._draw(position.batch) if self._next is None else self._next
            self._next = None
            with enough_memory(minibatch.batch.x, position.step + 1):
                loss = self._step(minibatch)
            # A checkpoint from before this was stored goes on without: a later loss is no first one.
            is_first = not position.epoch and not position.seen and position.first_loss is None
            if is_first and minibatch.weight:
                position.first_loss = loss
            position.loss_sum += loss * minibatch.weight
            position.seen += minibatch.weight
            position.batch += 1
            position.step += 1
            report(self._progress())
            now = time.monotonic()
            position.seconds += now - started
            started = now
            is_stopped, is_save_due = self._processes.vote(stop.is_set(), now - self._saved_at > SAVE_SECONDS)
            if is_stopped or is_save_due:
                self._save_last()
            if is_stopped:
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

    def _draw(self, number: int) -> Minibatch:
        """Return a minibatch of the epoch, with the random changes of its batch."""
        minibatch = self._minibatches.take(number)
        step = self.position.step + 1 + number - self.position.batch
        with enough_memory(minibatch.batch.x, step):
            # Of the whole minibatch, so that the draws do not depend on the number of processes.
            return minibatch._replace(batch=self.objective.prepare(self.model, minibatch.batch))

    def _draw_next(self) -> None:
        """Draw the next minibatch while the GPU is at work on this one."""
        position = self.position
        if position.batch + 1 < self.epoch_steps and position.step + 1 < self.total_steps:
            self._state_before_next = torch.get_rng_state()
            self._next = self._draw(position.batch + 1)

    def _forget_next(self) -> None:
        """Forget a minibatch that was drawn ahead, and give the generator its state from before."""
        if self._next is not None:
            self._next = None
            torch.set_rng_state(self._state_before_next)

    def _step(self, minibatch: Minibatch) -> float:
        # Setting the mode walks through all modules, which is felt in a short step.
        if not self.model.training:
            self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        with self._processes.rank_rng(len(minibatch.batch.x), self.settings.seed, self.position.step):
            value = self._backward(minibatch)
        value = self._processes.all_reduce_gradients(self._parameters, value)
        if not math.isfinite(value):
            raise TrainingError(self._not_finite(value))
        self.position.lr = float(self._optimizer.param_groups[0]["lr"])
        if minibatch.weight and self.settings.clip_norm:
            for parameters in self._member_parameters:
                clip_grad_norm_(parameters, self.settings.clip_norm)
        self._optimizer.step()
        self.model.after_step(self.position.step + 1, self.total_steps)
        self._project()
        self._schedule.step()
        return value

    def _project(self) -> None:
        """Move the weights into the certified region, if they are to stay there."""
        if self.settings.certified:
            project_model(self.model, self.settings.certified_margin or 0.0, self._inputs)

    def _backward(self, minibatch: Minibatch) -> float:
        """Add this process's share of a minibatch to the gradients, and return its share of the mean loss."""
        batch = minibatch.batch
        part, total = self._processes.shard(batch), len(batch.x)
        state = None
        if not minibatch.is_first and self._carried is not None:
            # Sequences fall by length, so those that have ended are the last rows.
            state = tuple(tensor[: len(part.x)] for tensor in self._carried)
        if self._graphed is not None and minibatch.weight:
            graphed = self._graphed.run(part, state)
            if graphed is not None:
                loss, self._carried = graphed
                read_loss = read_scalar(loss)
                self._draw_next()
                return read_loss()
        loss, self._carried = self.objective.advance(self.model, part, state)
        shard_weight = self._shard_weight(batch, part)
        # The last minibatch of an epoch may have fewer rows than there are processes.
        if self._processes.is_shard_empty(total):
            shard_weight, self._carried = 0.0, None
        # A mean over no target may be NaN, which a factor of 0 would keep.
        if not shard_weight:
            return 0.0
        read_loss = read_scalar(loss.detach())
        # A segment of sequences without any target only moves the state. Gradients of a loss that is not finite are
        # never used.
        if minibatch.weight:
            loss.backward(torch.full_like(loss.detach(), shard_weight))  # type: ignore[no-untyped-call]
        return shard_weight * read_loss()

    def _shard_weight(self, batch: Batch, part: Batch) -> float:
        """Return the weight of the mean over this process's rows in the mean over all."""
        if self._processes.world_size == 1:
            return 1.0
        whole = self.objective.normalizer(self.model, batch)
        # A batch without any target has no loss but the penalty.
        return self.objective.normalizer(self.model, part) / whole if whole else len(part.x) / len(batch.x)

    def _not_finite(self, value: float) -> str:
        position, rate = self.position, self._optimizer.param_groups[0]["lr"]
        return (
            f"The training loss became {value} at step {position.step + 1} (epoch {position.epoch + 1}) at a learning "
            f"rate of {rate:.3g}. Set {self.stabilizing_advice()}."
        )

    @property
    def is_diverged(self) -> bool:
        """True if the training loss ended far above where it began, and above its unit.

        Losses are in units of the scaling, or nats: of a loss that begins near 0, a multiple says little.
        """
        first, last = self.position.first_loss, self.position.last_loss
        return first is not None and last is not None and last > DIVERGED * max(first, 1.0)

    def stabilizing_advice(self) -> str:
        """Return the settings that keep the loss from growing, as the object of "Set ..."."""
        clip = "a smaller training.clip_norm" if self.settings.clip_norm else terms().setting("training.clip_norm", 1)
        recommended = recommended_training(self.model.rnn.first.cell, self.model.preset)
        optimizer = self.settings.optimizer or FALLBACK_OPTIMIZER
        # A rate that was found for one optimizer says nothing about another.
        is_recommended = "lr" in recommended and recommended.get("optimizer", FALLBACK_OPTIMIZER) == optimizer
        usual = recommended["lr"] if is_recommended else FALLBACK_LR[optimizer]
        return (
            f"a lower {terms().key('training.lr')}, such as {min((self.settings.lr or usual) / 10, usual):g}, or {clip}"
        )

    def _validate(self, report: Callable[[Progress], None]) -> None:
        self._processes.broadcast_state(self.model.state_dict().values())
        self.position.last_loss = self.position.loss_sum / max(1, self.position.seen)
        self._score()
        if self.settings.keep_epochs:
            self._recorder.save(f"epoch-{self.epochs_begun}", self._current())
        if isinstance(self._schedule, Plateau):
            self._schedule.validated(is_better=self.position.stale == 0)
        report(self._progress())

    def _progress(self) -> Progress:
        position = self.position
        return Progress(
            epoch=self.epochs_begun,
            epochs=math.ceil(self.total_steps / self.epoch_steps),
            step=position.step,
            total_steps=self.total_steps,
            loss=position.loss_sum / max(1, position.seen),
            metric_name=self.objective.headline,
            metric=position.metric,
            best=position.best,
        )

    def _save_last(self) -> None:
        self._recorder.save("last", self.checkpoint())
        self._saved_at = time.monotonic()

    def checkpoint(self) -> Checkpoint:
        """Return everything that the steps to come depend on; all processes must call it."""
        moments, optimizer = optimizer_state(self._optimizer)
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self._best.items()}
        tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
        carried = self._processes.all_gather_states(self._carried) or ()
        tensors |= {f"carried.{number}": state for number, state in enumerate(carried)}
        random = torch.get_rng_state() if self._next is None else self._state_before_next
        tensors |= {"random.shuffle": self._shuffle_start, "random.cpu": random}
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
        """Go back to a state that :meth:`checkpoint` returned; the settings must be the same, but for the length."""
        self.model.load_state_dict(checkpoint.group("model"))
        restore_optimizer(self._optimizer, checkpoint.group("optimizer"), checkpoint.state["optimizer"])
        self._schedule.load_state_dict(checkpoint.state["schedule"])
        self.position = Position(**checkpoint.state["position"])
        self._best = {name: value.to(self._device) for name, value in checkpoint.group("best").items()}
        carried = checkpoint.group("carried")
        # Copied, since a product may round in another way where a tensor lies at an address of the file's.
        states = (carried[str(number)].to(self._device, copy=True) for number in range(len(carried)))
        self._carried = self._processes.shard_states(tuple(states) or None)
        random = checkpoint.group("random")
        self._shuffle_start = random["shuffle"]
        torch.set_rng_state(random["cpu"])
        if self._device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self._device)
