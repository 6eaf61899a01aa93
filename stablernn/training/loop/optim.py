"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, OneCycleLR, StepLR

from stablernn.training.settings.config import TrainingConfig


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
