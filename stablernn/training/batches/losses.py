"""What a task trains for and is judged by."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stablernn.data.step_data import NO_TARGET
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor, States
from stablernn.training.batches.augmentation import Augmentation


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
    static: Tensor | None = None
    """``(batch, covariates)`` float32, what is known of each series; None where there is nothing."""
    future: Tensor | None = None
    """``(batch, horizon, channels)`` float32, what is known of the steps ahead; None where there is nothing."""

    @property
    def known(self) -> dict[str, Tensor]:
        """What the model's outputs are made from beside its state."""
        found = {"static": self.static, "future": self.future}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


class Task(Protocol):
    """Loss and headline figure of a task."""

    headline: str
    """The validation metric by which early stopping and the best checkpoint choose."""
    mode: Literal["max", "min"]
    """Whether the larger or the smaller headline is the better."""

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        """Mean training loss of a batch, the cells' penalties included."""
        ...


class ClassifyTask:
    """Cross entropy, each member's alone; judged by accuracy.

    Args:
        class_weights: ``(classes,)``, how much a sequence of each class counts; all the same when omitted.
        label_smoothing: Share of a label that is spread over all classes, 0 to 1.
        augmentation: How sequences are changed each time they are trained on; not at all when omitted.
    """

    headline: str = "accuracy"
    mode: Literal["max", "min"] = "max"

    def __init__(
        self,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._weights = class_weights
        self._smoothing = label_smoothing
        self._augmentation = augmentation

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        assert isinstance(model, Classifier)
        x, scaling = batch.x, model.scaling
        if self._augmentation is not None:
            # In the units of the mean and the scale, which may be logarithms.
            x = self._augmentation(scaling.transform(x), batch.lengths, scaling.mean, scaling.scale)
            x = scaling.inverse(x)
        logits = model.member_logits(model.final_state(x, batch.lengths, dt=batch.dt))
        weights = None if self._weights is None else self._weights.to(logits)
        truth = batch.y[:, None].expand(-1, logits.shape[1]).flatten()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), truth, weight=weights, label_smoothing=self._smoothing)
        return _with_penalty(loss, model)


class ForecastTask:
    """Absolute error of the mean plus pinball losses of the quantiles, in units of the scaling; judged by MAE or MASE.

    The absolute error makes the point forecast a median, the best one for every metric that is a mean of absolute
    errors (MAE, MASE, WAPE).
    """

    mode: Literal["max", "min"] = "min"

    def __init__(self, headline: str = "mae") -> None:
        self.headline = headline

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        assert isinstance(model, Forecaster)
        final = model.final_state(batch.x, batch.lengths, dt=batch.dt)
        if model.head_kind == "direct":
            loss, count = _quantile_loss(model, final, batch.y, batch.known)
        else:
            parts = [
                _quantile_loss(model, state, batch.y[:, step : step + 1], known)
                for step, (state, known) in enumerate(model.rolled_out(final, **batch.known))
            ]
            loss, count = (torch.stack(numbers).sum() for numbers in zip(*parts, strict=True))
        return _with_penalty(loss / count.clamp_min(1), model)


class PredictNextTask:
    """What is said at each step against what is there; steps without a target do not count.

    Categorical: cross entropy, the mean over the steps. Bernoulli: the negative log-likelihood, summed over the
    switches, the mean over the steps. Real: the mean squared error over the numbers that are there, in units of the
    targets' mean variance.

    Args:
        headline: The metric to choose by.
    """

    def __init__(self, headline: str) -> None:
        self.headline = headline
        self.mode: Literal["max", "min"] = "max" if headline == "accuracy" else "min"

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        return self.follow(model, batch, None)[0]

    def follow(self, model: SequenceModel, batch: Batch, state: States | None) -> tuple[Tensor, States]:
        """The loss of a stretch of sequences from a state on, and the state behind it, from which no gradient flows.

        A stretch without any target has a loss of 0 that depends on nothing.
        """
        assert isinstance(model, SequencePredictor)
        answers, after = model.answers(batch.x, batch.lengths, state, batch.dt)
        carried = tuple(tensor.detach() for tensor in after)
        y = batch.y
        if model.output == "categorical":
            count = (y != NO_TARGET).sum()
            total = nn.functional.cross_entropy(
                answers.flatten(0, 1), y.flatten(), ignore_index=NO_TARGET, reduction="sum"
            )
        else:
            there = ~torch.isnan(y)
            known = torch.where(there, y, 0)
            if model.output == "bernoulli":
                count = there.all(dim=-1).sum()
                each = nn.functional.binary_cross_entropy_with_logits(answers, known, reduction="none")
                there = there.all(dim=-1, keepdim=True)
            else:
                count = there.sum()
                each = (answers - known).square() / model.targets.scale.square().mean()
            total = torch.where(there, each, 0).sum()
        if not bool(count):
            return answers.new_zeros(()), carried
        return _with_penalty(total / count, model), carried


def _quantile_loss(model: Forecaster, state: States, truth: Tensor, known: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Sum over the observed targets of the mean of all levels' pinball losses and members, and how many there are."""
    change, location, scale = model.changes(state, **known)
    observed = ~torch.isnan(truth)
    target = (model.scaling.transform(torch.where(observed, truth, 1), model.target_indices) - location) / scale
    error = target[:, None, ..., None] - change
    levels = change.new_tensor([0.5, *model.quantiles])
    pinball = torch.maximum(levels * error, (levels - 1) * error).mean(dim=1) * observed[..., None]
    return 2 * pinball.sum() / len(levels), observed.sum()


def task_for(model: SequenceModel, headline: str | None = None) -> Task:
    """The task that a model was built for.

    Args:
        model: The model.
        headline: For an answer at each step the metric to choose by; None: the one that goes with the output.
    """
    if isinstance(model, SequencePredictor):
        return PredictNextTask(headline or ("mse" if model.output == "real" else "nll"))
    return ClassifyTask() if isinstance(model, Classifier) else ForecastTask()


def _with_penalty(loss: Tensor, model: SequenceModel) -> Tensor:
    penalty = model.penalty()
    return loss if penalty is None else loss + penalty
