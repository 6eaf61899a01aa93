"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, OneCycleLR, StepLR

from stablernn.training.config import TrainingConfig


def build_optimizer(groups: Mapping[str, Sequence[Parameter]], settings: TrainingConfig) -> Optimizer:
    """The optimizer that resolved settings name.

    Args:
        groups: What it moves: the parameters behind ``orthogonal`` matrices, and all ``other`` ones. The first have
            their own learning rate and no weight decay, which would only pull their matrices towards the identity.
        settings: With ``optimizer``, ``lr``, ``weight_decay`` and, where they are used, ``momentum`` and
            ``orthogonal_lr`` filled in.
    """
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    parameters: list[dict[str, Any]] = [{"params": groups["other"]}]
    if groups["orthogonal"]:
        parameters.append({"params": groups["orthogonal"], "lr": settings.orthogonal_lr, "weight_decay": 0.0})
    match settings.optimizer:
        case "adamw":
            return AdamW(parameters, **common)
        case "adam":
            return Adam(parameters, **common)
        case "sgd":
            return SGD(parameters, momentum=settings.momentum or 0.0, **common)
        case "rmsprop":
            return RMSprop(parameters, momentum=settings.momentum or 0.0, **common)
    raise ValueError(f"The optimizer is not resolved: got {settings.optimizer!r}.")


def build_schedule(
    optimizer: Optimizer, settings: TrainingConfig, *, total_steps: int, epoch_steps: int
) -> LRScheduler:
    """The schedule that resolved settings name; it is stepped once after every optimizer step.

    Args:
        optimizer: Whose learning rates move.
        settings: With ``schedule`` filled in.
        total_steps: Optimizer steps of the whole run, over which ``cosine`` and ``one-cycle`` are laid out.
        epoch_steps: Optimizer steps of one epoch, in which ``step`` counts.
    """
    match settings.schedule:
        case "constant":
            return ConstantLR(optimizer, factor=1.0, total_iters=1)
        case "cosine":
            return CosineAnnealingLR(optimizer, T_max=total_steps)
        case "one-cycle":
            peaks = [group["lr"] for group in optimizer.param_groups]
            # Moving the momentum as well, torch's default, would override the momentum that the user set.
            return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_steps, cycle_momentum=False)
        case "step":
            every, factor = settings.step_epochs or 0, settings.lr_decay or 0.0
            return StepLR(optimizer, step_size=every * epoch_steps, gamma=factor)
    raise ValueError(f"The schedule is not resolved: got {settings.schedule!r}.")
