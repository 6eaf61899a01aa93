"""Objectives of the tasks: the loss to train on, and the validation metric to choose the best weights by."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from stablernn.data.step_data import NO_TARGET
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor, States
from stablernn.training.loop.augmentation import Augmentation, Mixup
from stablernn.training.loop.minibatches import Batch


class Objective(ABC):
    """Loss and headline metric of a training.

    Attributes:
        headline: Validation metric by which early stopping and the best checkpoint choose.
    """

    headline: str

    def loss(self, model: SequenceModel, batch: Batch) -> Tensor:
        """Return the mean training loss of a batch, the cells' penalties and random changes of the batch included."""
        return self.advance(model, self.prepare(model, batch), None)[0]

    def prepare(self, model: SequenceModel, batch: Batch) -> Batch:
        """Return a whole batch with its random changes, drawn before the batch is shared by several processes."""
        return batch

    @abstractmethod
    def advance(self, model: SequenceModel, batch: Batch, state: States | None) -> tuple[Tensor, States | None]:
        """Return the mean loss of a minibatch that goes on from a state, and the state after it.

        Samples are whole sequences, so no state is carried from one minibatch to the next; objectives of segments carry
        one.

        Args:
            model: The model.
            batch: The minibatch, or some of its rows, as :meth:`prepare` returned it.
            state: State after the minibatch before; None to start from zero.
        """

    @abstractmethod
    def normalizer(self, model: SequenceModel, batch: Batch) -> float:
        """Return the number that the sum of losses is divided by for the mean of :meth:`advance`, up to a factor.

        The mean over a batch is that of the means over its parts, weighted by this number.
        """


class _Constant:
    """Numbers as a tensor like another one. Its copies are kept, since one to a GPU for each batch would wait for it.

    Args:
        values: The numbers.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, tensor: Tensor) -> Tensor:
        """Return the numbers on the device and in the dtype of a tensor."""
        key = tensor.device, tensor.dtype
        if key not in self._copies:
            # The next call may be of training, which takes no tensor that was made in inference mode.
            with torch.inference_mode(False):
                self._copies[key] = self.values.to(*key, copy=True)
        return self._copies[key]


class ClassifyObjective(Objective):
    """Cross entropy, of each ensemble member alone; the headline is accuracy.

    Args:
        class_weights: ``(classes,)``, weight of a sequence of each class; equal when omitted.
        label_smoothing: Share of a label that is spread over all classes, 0 to 1.
        augmentation: Random change of the sequences each time they are trained on; none when omitted.
        mixup: Mixing of pairs of sequences and of their labels, after ``augmentation``; none when omitted.
    """

    headline = "accuracy"

    def __init__(
        self,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        augmentation: Augmentation | None = None,
        mixup: Mixup | None = None,
    ) -> None:
        self._weights = None if class_weights is None else _Constant(class_weights)
        self._smoothing = label_smoothing
        self._augmentation = augmentation
        self._mixup = mixup

    def prepare(self, model: SequenceModel, batch: Batch) -> Batch:
        if self._augmentation is None and self._mixup is None:
            return batch
        scaling = model.scaling
        # In the units of the mean and the scale, which may be logarithms.
        x = scaling.transform(batch.x)
        if self._augmentation is not None:
            x = self._augmentation(x, batch.lengths, *model.feature_scaling())
        if self._mixup is None:
            return batch._replace(x=scaling.inverse(x))
        mixture = self._mixup(x, batch.lengths, is_padded=batch.is_padded)
        weight = torch.ones_like(mixture.weights) if batch.y_weight is None else batch.y_weight
        return batch._replace(
            x=scaling.inverse(mixture.x),
            lengths=mixture.lengths,
            y_weight=mixture.weights * weight,
            partner_y=batch.y[mixture.partners],
            partner_weight=(1 - mixture.weights) * weight[mixture.partners],
        )

    def advance(self, model: SequenceModel, batch: Batch, state: States | None) -> tuple[Tensor, None]:
        assert isinstance(model, Classifier)
        # (batch, members, classes): every member learns from its own loss, not from that of the averaged answer.
        logits = model.member_logits(model.final_state(batch.x, batch.valid_lengths, dt=batch.dt))
        if batch.y_weight is not None:
            return _with_penalty(self._weighted_loss(logits, batch), model), None
        weights = None if self._weights is None else self._weights.like(logits)
        truth = batch.y[:, None].expand(-1, logits.shape[1]).flatten()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), truth, weight=weights, label_smoothing=self._smoothing)
        return _with_penalty(loss, model), None

    def normalizer(self, model: SequenceModel, batch: Batch) -> float:
        if self._weights is None and batch.y_weight is None:
            return len(batch.y)
        by_class = None if self._weights is None else self._weights.values.to(batch.y.device, torch.float64)
        total = 0.0
        for labels, weights in _weighted_labels(batch):
            shares = torch.ones(len(labels), device=labels.device) if weights is None else weights
            total += float((shares.double() if by_class is None else shares * by_class[labels]).sum())
        return total

    def _weighted_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the weighted mean of the losses against the labels of samples, or against both labels of mixtures.

        With class weights a label weighs what its class does, too. ``cross_entropy`` of targets that are probabilities
        would divide by the number of sequences instead.
        """
        class_weights = logits.new_ones(logits.shape[2]) if self._weights is None else self._weights.like(logits)
        total, weight = logits.new_zeros(()), logits.new_zeros(())
        for labels, shares in _weighted_labels(batch):
            assert shares is not None
            # Classes are the second dimension of the logits: (batch, classes, members).
            losses = nn.functional.cross_entropy(
                logits.transpose(1, 2),
                labels[:, None].expand(-1, logits.shape[1]),
                weight=class_weights,
                reduction="none",
                label_smoothing=self._smoothing,
            )
            total = total + (shares[:, None] * losses).sum()
            weight = weight + (shares * class_weights[labels]).sum() * logits.shape[1]
        # A batch of samples that all weigh nothing has no loss.
        return total / weight.clamp_min(torch.finfo(weight.dtype).tiny)


def _weighted_labels(batch: Batch) -> list[tuple[Tensor, Tensor | None]]:
    """Return the labels of a batch, and those that were mixed in, each with their weights, None where they are 1."""
    partners = [] if batch.partner_y is None else [(batch.partner_y, batch.partner_weight)]
    return [(batch.y, batch.y_weight), *partners]


class ForecastObjective(Objective):
    """Absolute error of the mean plus pinball losses of the quantiles, in units of the scaling.

    The absolute error makes the point forecast a median, the best one for every metric that is a mean of absolute
    errors (MAE, MASE, WAPE).

    Args:
        headline: ``mae`` or ``mase``.
    """

    def __init__(self, headline: str = "mae") -> None:
        self.headline = headline
        # By the quantiles of a model.
        self._levels: dict[tuple[float, ...], _Constant] = {}

    def advance(self, model: SequenceModel, batch: Batch, state: States | None) -> tuple[Tensor, None]:
        assert isinstance(model, Forecaster)
        quantiles = self._quantile_levels(model)
        final = model.final_state(batch.x, batch.valid_lengths, dt=batch.dt)
        if model.head_kind == "direct":
            loss, count = _quantile_loss(model, quantiles, final, batch.y, batch.covariates)
        else:
            # A recursive head answers one step from each state that it is rolled out to.
            parts = [
                _quantile_loss(model, quantiles, state, batch.y[:, step : step + 1], covariates)
                for step, (state, covariates) in enumerate(model.roll_out(final, **batch.covariates))
            ]
            loss, count = (torch.stack(numbers).sum() for numbers in zip(*parts, strict=True))
        # A batch may have no observed target at all.
        return _with_penalty(loss / count.clamp_min(1), model), None

    def normalizer(self, model: SequenceModel, batch: Batch) -> float:
        return float((~torch.isnan(batch.y)).sum())

    def _quantile_levels(self, model: Forecaster) -> _Constant:
        """Return the levels that are trained, the median of the point forecast first."""
        quantiles = tuple(model.quantiles)
        if quantiles not in self._levels:
            self._levels[quantiles] = _Constant(torch.tensor([0.5, *quantiles], dtype=torch.float64))
        return self._levels[quantiles]


class PredictNextObjective(Objective):
    """Answers at each step against the targets there; steps without a target do not count.

    Categorical: cross entropy, the mean over the steps. Bernoulli: the negative log-likelihood, summed over the binary
    targets, the mean over the steps. Real: the mean squared error over the observed numbers, in units of the targets'
    mean variance, or of the variance of each.

    Args:
        headline: The metric to choose by.
        by_output: Whether the error of each number is in units of its own variance, for numbers of different units.
    """

    def __init__(self, headline: str, *, by_output: bool = False) -> None:
        self.headline = headline
        self._by_output = by_output

    def advance(self, model: SequenceModel, batch: Batch, state: States | None) -> tuple[Tensor, States]:
        """Return the loss of a segment of sequences from a state on, and the state after it.

        No gradient flows through the returned state (truncated backpropagation). The loss of a segment without any
        target is the penalty alone.
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
            is_observed = ~torch.isnan(y)
            # NaN times a mask of 0 would still be NaN, in the gradient too.
            targets = torch.where(is_observed, y, 0)
            if model.output == "bernoulli":
                count = is_observed.all(dim=-1).sum()
                losses = nn.functional.binary_cross_entropy_with_logits(answers, targets, reduction="none")
                is_observed = is_observed.all(dim=-1, keepdim=True)
            else:
                count = is_observed.sum()
                variance = model.targets.scale.square()
                losses = (answers - targets).square() / (variance if self._by_output else variance.mean())
            total = torch.where(is_observed, losses, 0).sum()
        return _with_penalty(total / count.clamp_min(1), model), carried

    def normalizer(self, model: SequenceModel, batch: Batch) -> float:
        assert isinstance(model, SequencePredictor)
        if model.output == "categorical":
            return float((batch.y != NO_TARGET).sum())
        is_observed = ~torch.isnan(batch.y)
        return float((is_observed.all(dim=-1) if model.output == "bernoulli" else is_observed).sum())


def _quantile_loss(
    model: Forecaster, quantiles: _Constant, state: States, truth: Tensor, covariates: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the sum over observed targets of the mean pinball loss of levels and members, and their number."""
    change, location, scale = model.changes(state, **covariates)
    observed = ~torch.isnan(truth)
    # Missing values are replaced before the transform, whose logarithm takes positive numbers alone; the mask below
    # takes them out again.
    target = (model.scaling.transform(torch.where(observed, truth, 1), model.target_indices) - location) / scale
    # (batch, members, horizon, targets, levels); the point forecast is the first level, a median.
    error = target[:, None, ..., None] - change
    levels = quantiles.like(change)
    pinball = torch.maximum(levels * error, (levels - 1) * error).mean(dim=1) * observed[..., None]
    return 2 * pinball.sum() / len(levels), observed.sum()


def _with_penalty(loss: Tensor, model: SequenceModel) -> Tensor:
    penalty = model.penalty()
    return loss if penalty is None else loss + penalty
