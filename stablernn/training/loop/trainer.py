"""Fitting of a model: epochs of shuffled minibatches, the best weights kept, and a stop possible after any step.

Everything that decides the numbers of the steps to come is in :meth:`Trainer.checkpoint`, so a run that was stopped and
resumed equals one that was not, to the last bit where the arithmetic itself repeats (the CPU).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, OneCycleLR, StepLR

from stablernn.cells import recommended_training
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.projection import project_model
from stablernn.engines import ScanEngine, TorchRNNEngine
from stablernn.engines.cuda_graph import Capture, capture_on_gpu, device_of, failure_reason, refuse_waits
from stablernn.errors import ConfigError, TrainingError
from stablernn.nn.models import SequenceModel, States
from stablernn.nn.segments import recordable
from stablernn.terms import terms
from stablernn.training.evaluation.scorers import Scorer
from stablernn.training.loop.base_trainer import BaseTrainer, Position, Progress, RunRecorder
from stablernn.training.loop.checkpoint import Checkpoint, optimizer_state, restore_optimizer
from stablernn.training.loop.launch import stop_signals
from stablernn.training.loop.losses import Objective
from stablernn.training.loop.minibatches import Batch, Minibatch, Minibatches, read_scalar
from stablernn.training.loop.process_group import ProcessGroup
from stablernn.training.settings.config import TrainingConfig
from stablernn.training.settings.defaults import FALLBACK_LR, FALLBACK_OPTIMIZER

_LOG = logging.getLogger("stablernn.training")

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


def build_optimizer(groups: Mapping[str, Sequence[Parameter]], settings: TrainingConfig) -> Optimizer:
    """Return the optimizer that resolved settings name.

    Args:
        groups: Its parameters: those behind ``orthogonal`` matrices, those of a linear ``skip``, ``vectors``
            and all ``other`` ones. The first two have learning rates of their own; the first three have no weight
            decay, which would only pull matrices towards the identity, the skip away from its solution, and biases,
            gains and decay rates away from a scale of their own.
        settings: With ``optimizer``, ``lr``, ``weight_decay`` and, where they are used, ``momentum`` and
            ``orthogonal_lr`` filled in.
    """
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    # Later groups override single options; the order is that of checkpoints.
    parameters: list[dict[str, Any]] = [{"params": groups["other"]}]
    if groups.get("vectors"):
        parameters.append({"params": groups["vectors"], "weight_decay": 0.0})
    if groups.get("skip"):
        parameters.append({"params": groups["skip"], "lr": settings.skip_lr, "weight_decay": 0.0})
    if groups["orthogonal"]:
        parameters.append({"params": groups["orthogonal"], "lr": settings.orthogonal_lr, "weight_decay": 0.0})
    # On a GPU one kernel updates all parameters, if none is complex; None leaves the choice to torch.
    values = [parameter for group in parameters for parameter in group["params"]]
    fused = all(value.is_cuda and value.is_floating_point() for value in values) or None
    match settings.optimizer:
        case "adamw":
            return AdamW(parameters, fused=fused, **common)
        case "adam":
            return Adam(parameters, fused=fused, **common)
        case "sgd":
            return SGD(parameters, momentum=settings.momentum or 0.0, fused=fused, **common)
        case "rmsprop":
            return RMSprop(parameters, momentum=settings.momentum or 0.0, **common)
        case "adagrad":
            return Adagrad(parameters, **common)
    raise ValueError(f"The optimizer is not resolved: got {settings.optimizer!r}.")


class Schedule(Protocol):
    """A course of the learning rates of an optimizer."""

    def step(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Plateau:
    """Lowers the learning rates each time that the validation metric is no better than its best value.

    It has no state of its own: the lowered rates are part of the optimizer's.

    Args:
        optimizer: The optimizer.
        factor: Factor of the learning rates.
    """

    def __init__(self, optimizer: Optimizer, factor: float) -> None:
        self._optimizer = optimizer
        self._factor = factor

    def validated(self, *, is_better: bool) -> None:
        """Lower the rates after a validation that was not better."""
        if not is_better:
            for group in self._optimizer.param_groups:
                group["lr"] *= self._factor

    def step(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def build_schedule(optimizer: Optimizer, settings: TrainingConfig, *, total_steps: int, epoch_steps: int) -> Schedule:
    """Return the schedule that resolved settings name; it is stepped once after every optimizer step.

    Args:
        optimizer: The optimizer whose learning rates change.
        settings: With ``schedule`` filled in.
        total_steps: Optimizer steps of the whole run, over which ``cosine`` and ``one-cycle`` are laid out.
        epoch_steps: Optimizer steps of one epoch, in which ``step`` counts.
    """
    match settings.schedule:
        case "constant":
            # The factor of 1 leaves the rates as they are.
            return ConstantLR(optimizer, factor=1.0, total_iters=1)
        case "cosine":
            return CosineAnnealingLR(optimizer, T_max=total_steps)
        case "one-cycle":
            peaks = [group["lr"] for group in optimizer.param_groups]
            # Moving the momentum as well, torch's default, would override the momentum that the user set.
            return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_steps, cycle_momentum=False)
        case "step":
            # The schedule is stepped after each optimizer step, not after each epoch.
            every, factor = settings.step_epochs or 0, settings.lr_decay or 0.0
            return StepLR(optimizer, step_size=every * epoch_steps, gamma=factor)
        case "plateau":
            return Plateau(optimizer, settings.lr_decay or 0.5)
    raise ValueError(f"The schedule is not resolved: got {settings.schedule!r}.")


# torch's allocator has no exception of its own on the CPU; its message is the only mark.
_CPU_MARK = "can't allocate memory"


@contextmanager
def enough_memory(x: Tensor, step: int) -> Iterator[None]:
    """Turn a lack of memory into an error that names settings which take less.

    Args:
        x: The input of a minibatch, ``(batch, time, ...)``.
        step: The step of training, from 1.

    Raises:
        TrainingError: If memory runs out inside.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and _CPU_MARK not in str(error):
            raise
        rows, steps = x.shape[:2]
        interval = max(1, round(steps**0.5))
        fewer = f"training.batch_size={rows // 2} takes about half of it; " if rows > 1 else ""
        raise TrainingError(
            f"The memory of the device '{x.device.type}' ran out in step {step}, for a minibatch of {rows} "
            f"sequence{'s' if rows > 1 else ''} of {steps} samples. {fewer}training.recompute_every={interval} keeps "
            "fewer states of long sequences."
        ) from error


EAGER_PASSES = 2
"""Passes of a shape before it is recorded: to record takes as long as some passes, and many shapes come once."""
MOST_GRAPHS = 16
"""Shapes that are recorded; their recordings share the memory of activations."""
_ENGINES = (ScanEngine.name, "triton", "triton-tf32", "triton-bf16")
"""Engines that are recorded: those that issue few operations for a sequence, and record none themselves."""


class GraphedPasses:
    """Forward and backward passes of minibatches, each shape of which is a CUDA graph from its third pass on.

    The first two passes of a shape are the caller's. A pass that waits for the GPU, or draws random numbers on the CPU,
    cannot be recorded; the reason is logged once.

    Args:
        model: A model in training mode, whose parameters stay where they are in memory.
        objective: The loss.
        capture: Records a function.
    """

    def __init__(self, model: SequenceModel, objective: Objective, capture: Capture = capture_on_gpu) -> None:
        self._model, self._objective, self._capture = model, objective, capture
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Those of the pass that ran last, whichever graph it is.
        self._gradients: list[Tensor] = []
        self._graphs: dict[Any, _Graph | int] = {}
        self._memory: Any = None
        self._is_off = False

    @property
    def count(self) -> int:
        """The number of shapes that are recorded."""
        return sum(isinstance(entry, _Graph) for entry in self._graphs.values())

    def run(self, batch: Batch, state: States | None) -> tuple[Tensor, States | None] | None:
        """Set the gradients of the parameters to those of a minibatch's loss.

        Args:
            batch: The minibatch, as :meth:`Objective.advance` takes it.
            state: The state before its first step; None to start from zero.

        Returns:
            The loss, which the next run overwrites, and the state after the minibatch. None where nothing was done and
            the caller is to compute them.
        """
        if self._is_off or not self._can_record(batch):
            return None
        tensors = _tensors(batch, state)
        key = (batch.is_padded, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()))
        entry = self._graphs.get(key, 0)
        if isinstance(entry, int):
            if entry < EAGER_PASSES:
                self._graphs[key] = entry + 1
                return None
            graph = self._record(batch, state) if self.count < MOST_GRAPHS else None
            if graph is None:
                return None
            entry = self._graphs[key] = graph
        loss, after = entry.replay(tensors)
        for parameter, gradient, is_used in zip(self._parameters, self._gradients, entry.uses, strict=True):
            parameter.grad = gradient if is_used else None
        return loss, after

    def _can_record(self, batch: Batch) -> bool:
        engine = self._model.rnn.first.engine
        # Padded batches run by recordings of another engine there.
        return engine in _ENGINES or (engine == TorchRNNEngine.name and not batch.is_padded)

    def _record(self, batch: Batch, state: States | None) -> _Graph | None:
        if not self._gradients:
            self._gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
        try:
            with device_of(batch.x), _kept_state(self._model):
                graph = _Graph(self._model, self._objective, batch, state, self._parameters, self._gradients)
                self._memory = graph.record(self._capture, self._memory)
        # What a loss or a cell does may not be recordable.
        except RuntimeError as error:
            self._is_off = True
            # The passes of the caller may need the memory of the recordings.
            self._graphs, self._gradients, self._memory = {}, [], None
            # No variable may keep an error: its traceback, which keeps tensors, would keep the variable in turn.
            reason = failure_reason(error)
            _LOG.info(f"Training passes cannot be recorded as a CUDA graph: {reason}")
            return None
        return graph


class _Graph:
    """The pass of minibatches of one shape.

    Args:
        model: As for :class:`GraphedPasses`.
        objective: Likewise.
        batch: A minibatch of the shape.
        state: The state before it.
        parameters: The parameters that are trained.
        gradients: Tensors of their shapes, which each pass overwrites.
    """

    uses: list[bool]
    """For each parameter whether the loss depends on it."""

    def __init__(
        self,
        model: SequenceModel,
        objective: Objective,
        batch: Batch,
        state: States | None,
        parameters: list[torch.nn.Parameter],
        gradients: list[Tensor],
    ) -> None:
        self._model, self._objective = model, objective
        self._parameters, self._gradients = parameters, gradients
        parts: dict[str, Any] = batch._asdict()
        parts |= {name: part.clone() for name, part in parts.items() if isinstance(part, Tensor)}
        self._batch = Batch(**parts)
        self._state = None if state is None else tuple(tensor.clone() for tensor in state)
        self._inputs = _tensors(self._batch, self._state)

    def record(self, capture: Capture, memory: Any) -> Any:
        """Record the pass, and return the memory that it uses.

        Raises:
            RuntimeError: If it cannot be recorded.
        """
        device = self._batch.x.device
        before = _random_states(device)
        with refuse_waits(device):
            self._pass()
        has_drawn = [not torch.equal(*states) for states in zip(before, _random_states(device), strict=True)]
        if has_drawn[0]:
            raise RuntimeError("it draws random numbers on the CPU, which a replay would repeat")
        if any(has_drawn) and self._model.rnn.first.recompute_every is not None:
            raise RuntimeError("it draws random numbers, which computing states again would not repeat")
        results, self._replay, memory = capture(self._pass, memory)
        self._loss, *self._after = results
        return memory

    def replay(self, tensors: dict[str, Tensor]) -> tuple[Tensor, States | None]:
        """Run the pass for other tensors of the same shapes."""
        with device_of(self._batch.x), torch.no_grad():
            for name, tensor in tensors.items():
                self._inputs[name].copy_(tensor)
            self._replay()
            return self._loss, tuple(tensor.clone() for tensor in self._after) or None

    def _pass(self) -> list[Tensor]:
        # Lengths of batches were checked when the data were read.
        with torch.enable_grad(), recordable():
            loss, after = self._objective.advance(self._model, self._batch, self._state)
            # Not backward(): the nodes that add up gradients belong to the stream on which they were made.
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        self.uses = [gradient is not None for gradient in gradients]
        for mine, gradient in zip(self._gradients, gradients, strict=True):
            if gradient is not None:
                mine.copy_(gradient)
        return [loss.detach(), *(after or ())]


def _tensors(batch: Batch, state: States | None) -> dict[str, Tensor]:
    """Return the tensors of a minibatch and of the state before it, by name."""
    parts = {name: part for name, part in batch._asdict().items() if isinstance(part, Tensor)}
    return parts | {f"state.{number}": tensor for number, tensor in enumerate(state or ())}


@contextmanager
def _kept_state(model: SequenceModel) -> Iterator[None]:
    """Give the buffers of a model and the random generators the state again that they had before the ``with`` block.

    The runs that precede a recording would change what is drawn after them.
    """
    device = next(model.parameters()).device
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    on_cpu, *on_gpu = _random_states(device)
    try:
        yield
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)
        torch.set_rng_state(on_cpu)
        for state in on_gpu:
            torch.cuda.set_rng_state(state, device)


def _random_states(device: torch.device) -> list[Tensor]:
    """Return the states of the random generators of the CPU and, if the device is a GPU, of the GPU."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]
