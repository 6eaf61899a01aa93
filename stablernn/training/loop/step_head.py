"""Heads that answer at every step, solved for on the states of recurrent layers that are not trained.

Numbers are those of a ridge regression. For classes and binary targets a regression has no closed form: the logistic
one is convex, and iterated to its optimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stablernn.cells import cached_weights
from stablernn.data.step_data import NO_TARGET, Output, StepSplit
from stablernn.errors import TrainingError
from stablernn.nn.models import SequencePredictor
from stablernn.training.evaluation.ridge import Float64Array, RidgeRegression
from stablernn.training.loop.ridge_head import (
    MOST_ROWS,
    NO_ROWS,
    design_matrix,
    evenly_spaced,
    inputs_of,
    set_linear,
)

STRETCH = 512
"""Steps of a sequence that are run at most; of a longer one, such as a text, there are several stretches."""
_WARM_UP = 64
"""First steps of a stretch within a sequence that are left out: states there have not seen what came before."""
_PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4)
"""Penalties on the squared weights of standardized columns, the strongest first, in units of the loss of a step."""
_HELD_OUT = 0.2
"""Share of the rows, the last ones, by which the penalty of a logistic regression is chosen."""
_ITERATIONS = 20

Targets = npt.NDArray[Any]


def fit_step_head(model: SequencePredictor, split: StepSplit) -> float:
    """Solve for the head of a model that answers at every step.

    Args:
        model: In evaluation mode.
        split: Training sequences, of which evenly spaced stretches of :data:`MOST_ROWS` steps together are used.

    Returns:
        The mean loss of a step: the squared error, of each step by the fit to all others, in units of the scaling, or
        the log loss in nats.

    Raises:
        TrainingError: If fewer than two steps have their targets, or a feature is not finite.
    """
    features, targets = _collect(model, split)
    assert isinstance(model.head, nn.Linear)
    if model.output == "real":
        ridge = RidgeRegression(features, targets)
        set_linear(model.head, *ridge.linear_map())
        return float(np.mean((ridge.left_out - targets) ** 2))
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    fit = _Logistic((features - mean) / scale, targets, model.output, model.head.bias)
    weight = fit.weight / scale
    set_linear(model.head, weight, fit.bias - weight @ mean)
    return fit.loss


class _Logistic:
    """Logistic regression of classes, or of binary targets each by itself, on standardized columns.

    The mean loss of a step plus half the penalty times the squared weights is minimized by L-BFGS; the penalty is the
    one with the least loss on rows that are held out.

    Args:
        x: (rows, columns), standardized.
        targets: Classes (rows,), or 0 and 1 (rows, outputs).
        output: ``categorical`` or ``bernoulli``.
        bias: (outputs,), the bias to start from.

    Attributes:
        weight: float64 (outputs, columns).
        bias: float64 (outputs,).
        loss: Mean log loss of the rows.
    """

    def __init__(self, x: Float64Array, targets: Targets, output: Output, bias: Tensor) -> None:
        self._is_categorical = output == "categorical"
        # The optimum is flat: float32 takes half the time and finds the same.
        rows, truth = torch.from_numpy(x).float(), torch.from_numpy(targets)
        truth = truth if self._is_categorical else truth.float()
        start = bias.detach().float().cpu()
        count = max(1, round((1 - _HELD_OUT) * len(x)))
        weights = torch.zeros(len(start), x.shape[1]), start
        best: tuple[float, float, tuple[Tensor, Tensor]] | None = None
        for penalty in _PENALTIES:
            # A weaker penalty begins at the solution of the stronger one.
            weights = self._minimize(rows[:count], truth[:count], penalty, weights)
            error = float(self._loss(rows[count:], truth[count:], *weights))
            if best is not None and not error < best[0]:
                break
            best = error, penalty, weights
        assert best is not None
        weight, solved_bias = self._minimize(rows, truth, best[1], best[2])
        self.weight, self.bias = weight.double().numpy(), solved_bias.double().numpy()
        self.loss = float(self._loss(rows, truth, weight, solved_bias))

    def _loss(self, x: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = x @ weight.T + bias
        if self._is_categorical:
            return nn.functional.cross_entropy(logits, targets)
        # Binary targets of a step belong together, so that their losses add up.
        return nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1).mean()

    def _minimize(
        self, x: Tensor, targets: Tensor, penalty: float, start: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        weight, bias = (tensor.clone().requires_grad_() for tensor in start)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss = self._loss(x, targets, weight, bias) + 0.5 * penalty * weight.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            optimizer.step(evaluate)  # type: ignore[no-untyped-call]
        return weight.detach(), bias.detach()


def _collect(model: SequencePredictor, split: StepSplit) -> tuple[Float64Array, Targets]:
    """Return the inputs of the head and the targets of the steps that have them, numbers in units of the scaling.

    Raises:
        TrainingError: If fewer than two have them, or an input is not finite.
    """
    assert isinstance(model.head, nn.Linear)
    device = model.head.weight.device
    if model.output == "real":
        # Without a head the answer is the mean of the targets, or the last value.
        set_linear(model.head, np.zeros(tuple(model.head.weight.shape)), np.zeros(len(model.head.bias)))
    scaling = model.scaling if model.predict_change else model.targets
    rows: list[Tensor] = []
    targets: list[Targets] = []
    with torch.no_grad(), cached_weights(model), inputs_of(model.head) as features:
        for x, y, warm_up in _stretches(split):
            answer = model(torch.from_numpy(x[None]).to(device))[0]
            if model.output == "real":
                y = (y - answer.double().numpy(force=True)) / scaling.scale.double().numpy(force=True)
            has_target: Targets = np.asarray(y != NO_TARGET if y.ndim == 1 else ~np.isnan(y).any(axis=1))
            has_target[:warm_up] = False
            rows.append(features.pop()[0, torch.from_numpy(has_target)])
            targets.append(y[has_target])
    truth = np.concatenate(targets)
    if len(truth) < 2:
        raise TrainingError(NO_ROWS)
    used_rows = evenly_spaced(len(truth), MOST_ROWS)
    truth = truth[used_rows]
    return design_matrix(rows)[used_rows], truth.astype(np.int64 if truth.ndim == 1 else np.float64)


def _stretches(split: StepSplit) -> Iterator[tuple[Targets, Targets, int]]:
    """Yield inputs and targets of stretches of sequences, and the number of their first steps to leave out."""
    lengths = np.asarray(split.lengths)
    count = max(1, round(MOST_ROWS / float(np.minimum(lengths, STRETCH).mean())))
    numbers = evenly_spaced(len(split), count)
    # Of few long sequences each gives several stretches.
    per_sequence = max(1, count // len(numbers))
    for number in numbers:
        sample = split.gather([int(number)])
        length = int(sample.lengths[0])
        starts = evenly_spaced(max(1, length - STRETCH + 1), per_sequence)
        for start in starts:
            stretch = slice(int(start), min(length, int(start) + STRETCH))
            yield sample.x[0, stretch], sample.y[0, stretch], _WARM_UP if start else 0
