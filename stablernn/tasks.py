"""What a task trains for and is judged by."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stablernn.models import Classifier, Forecaster, SequenceModel


class Batch(NamedTuple):
    """Sequences and what is to be said of them."""

    x: Tensor
    """``(batch, time, features)`` float32 in raw units, NaN where missing."""
    lengths: Tensor
    """``(batch,)`` int64: steps from there on are padding."""
    y: Tensor
    """Classify: ``(batch,)`` int64. Forecast: ``(batch, horizon, targets)`` float32 in raw units, NaN where missing."""
    dt: Tensor | None = None
    """``(batch, time)`` float32, the time from the step before in regular steps; None where it is not used."""


class Task(Protocol):
    """Loss and headline figure of a task."""

    headline: ClassVar[str]
    """The validation metric by which early stopping and the best checkpoint choose."""
    mode: ClassVar[Literal["max", "min"]]

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        """Mean training loss of a batch, the cells' penalties included."""
        ...


class ClassifyTask:
    """Cross entropy; judged by accuracy."""

    headline: ClassVar[str] = "accuracy"
    mode: ClassVar[Literal["max", "min"]] = "max"

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        return _with_penalty(nn.functional.cross_entropy(model(batch.x, batch.lengths, batch.dt), batch.y), model)


class ForecastTask:
    """Absolute error of the mean plus pinball losses of the quantiles, in units of the scaling; judged by MAE.

    The absolute error makes the point forecast a median, the best one for every metric that is a mean of absolute
    errors (MAE, MASE, WAPE).
    """

    headline: ClassVar[str] = "mae"
    mode: ClassVar[Literal["max", "min"]] = "min"

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        assert isinstance(model, Forecaster)
        change, location, scale = model.changes(model.final_state(batch.x, batch.lengths, dt=batch.dt))
        observed = ~torch.isnan(batch.y)
        target = (torch.where(observed, batch.y, 0) - location) / scale
        error = target[..., None] - change
        levels = change.new_tensor([0.5, *model.quantiles])
        pinball = torch.maximum(levels * error, (levels - 1) * error) * observed[..., None]
        return _with_penalty(2 * pinball.sum() / (observed.sum().clamp_min(1) * len(levels)), model)


def task_for(model: SequenceModel) -> Task:
    """The task that a model was built for."""
    return ClassifyTask() if isinstance(model, Classifier) else ForecastTask()


def _with_penalty(loss: Tensor, model: SequenceModel) -> Tensor:
    penalty = model.penalty()
    return loss if penalty is None else loss + penalty
