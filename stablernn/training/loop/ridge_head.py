"""Heads that ridge regression solves for on the states of recurrent layers that are not trained.

Jaeger, "The echo state approach to analysing and training recurrent neural networks", GMD report 148, 2001;
Lukosevicius and Jaeger, "Reservoir computing approaches to recurrent neural network training", Computer Science Review
3, 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stablernn.cells import cached_weights
from stablernn.data.arrays import Samples
from stablernn.data.types import SequenceSplit
from stablernn.data.windows import WindowSet, batch_evenly_spaced
from stablernn.errors import TrainingError
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn.training.calibration.temperature import best_temperature
from stablernn.training.evaluation.ridge import Float64Array, RidgeRegression

MOST_ROWS = 20_000
"""Rows of a regression at most, evenly spread over the training samples: 20,000 rows of 768 columns take 120 MB and, on
a core, 3 s to solve."""
_BATCH = 256
_CONSTANT = 1e-6
"""Deviation of a column, as a share of its largest value, below which it is constant but for rounding in float32."""


class Solution(NamedTuple):
    """The result of solving for a head.

    Attributes:
        loss: Mean training loss.
        left_out: Classification: logits (samples, classes) of training sequences, of each by the fit to all others, and
            their classes (samples,); None for other tasks.
    """

    loss: float
    left_out: tuple[Float64Array, npt.NDArray[np.int64]] | None = None


def fit_class_head(model: Classifier, split: SequenceSplit) -> Solution:
    """Solve for the head of a classifier with one member, and scale its logits to probabilities.

    Targets are -1 and 1 for each class. The penalty is selected by leave-one-out, and of the decision values that every
    sequence gets from all others the temperature is fitted, so that the probabilities need no validation split.

    Args:
        model: In evaluation mode.
        split: Training sequences; of more than :data:`MOST_ROWS` evenly spaced ones are used.

    Returns:
        The loss is the mean log loss of the sequences, of each by the fit to all others.

    Raises:
        TrainingError: If all sequences are of one class, or a feature is not finite.
    """
    numbers = evenly_spaced(len(split), MOST_ROWS)
    weights = None if split.weights is None else split.weights[numbers].astype(np.float64)
    if weights is not None:
        numbers, weights = numbers[weights > 0], weights[weights > 0]
    parts: list[Tensor] = []
    with torch.no_grad(), cached_weights(model), inputs_of(model.head) as features:
        for start in range(0, len(numbers), _BATCH):
            x, lengths, dt = _tensors(split.gather(numbers[start : start + _BATCH]), model)
            model(x, lengths, dt)
            parts.append(features.pop())
    classes = np.asarray(split.y, dtype=np.int64)[numbers]
    if len(np.unique(classes)) < 2:
        raise TrainingError(
            "training.method=closed-form needs training sequences of two classes or more, and all are of one."
        )
    # A class without a sequence has -1 everywhere, of which the solution is the intercept alone.
    signs = np.where(classes[:, None] == np.arange(model.num_classes), 1.0, -1.0)
    ridge = RidgeRegression(design_matrix(parts), signs, weights)
    temperature, loss = best_temperature(ridge.left_out, classes)
    weight, bias = ridge.linear_map()
    # The temperature goes into the weights, so that a later calibration starts at 1, as for any other model.
    set_linear(_only_map(model.head), weight / temperature, bias / temperature)
    return Solution(loss, (ridge.left_out / temperature, classes))


def fit_forecast_head(model: Forecaster, windows: WindowSet) -> float:
    """Solve for what a forecaster with one member adds to its linear skip, and set its quantiles.

    With a skip, which has been solved for already, the layers add nothing to the mean: on states of random weights they
    forecast no better (docs/choosing.md). Without one the head is solved for. The network on known values of the steps
    ahead, if there is one, reads these and the static covariates alone, and is solved for on what remains. Quantiles
    lie at those of the training errors.

    Args:
        model: In evaluation mode.
        windows: Training windows; of more than :data:`MOST_ROWS` evenly spaced ones are used.

    Returns:
        The mean absolute error of the training windows, in units of the scaling.

    Raises:
        TrainingError: If no window has all its targets, or a feature is not finite.
    """
    head = _only_map(model.head)
    # Without these the forecast is that of the skip, whose errors are what remains to be solved for.
    set_linear(head, np.zeros(tuple(head.weight.shape)), np.zeros(len(head.bias)))
    known_map = _known_map(model)
    levels = 1 + len(model.quantiles)
    if model.skip is None:
        features, errors = _forecast_errors(model, windows, model.head)
        is_complete = ~np.isnan(errors).any(axis=(1, 2))
        weight, bias = _solve(features[is_complete], errors[is_complete].reshape(int(is_complete.sum()), -1))
        # The mean and all quantiles move together: (steps * targets) to (steps * targets * levels) rows.
        set_linear(head, np.repeat(weight, levels, axis=0), np.repeat(bias, levels))
    if known_map is not None:
        # (windows, steps, hidden): every step ahead of every window is a row.
        hidden, errors = _forecast_errors(model, windows, known_map)
        rows, targets = hidden.reshape(-1, hidden.shape[-1]), errors.reshape(-1, errors.shape[-1])
        is_complete = ~np.isnan(targets).any(axis=1)
        numbers = np.flatnonzero(is_complete)[evenly_spaced(int(is_complete.sum()), MOST_ROWS)]
        weight, bias = _solve(rows[numbers], targets[numbers])
        set_linear(known_map, np.repeat(weight, levels, axis=0), np.repeat(bias, levels))
    _, errors = _forecast_errors(model, windows, model.head)
    if np.isnan(errors).all():
        raise TrainingError(NO_ROWS)
    with torch.no_grad():
        # Rows of the head are (steps, targets, mean and quantiles); a view writes to the parameter.
        biases = head.bias.view(*errors.shape[1:], levels)
        for number, level in enumerate(model.quantiles, start=1):
            quantile = np.nan_to_num(np.nanquantile(errors, level, axis=0))
            biases[..., number] += torch.from_numpy(quantile).to(biases)
    return float(np.nanmean(np.abs(errors)))


def regression_bytes(model: SequenceModel) -> int:
    """Return the memory of the largest regression of a model at its peak: the rows in float64, three times."""
    columns = model.feature_size + (model.static_size if isinstance(model, Forecaster) else 0)
    # As the layers give them, standardized, and as left singular vectors.
    return 3 * 8 * MOST_ROWS * columns


NO_ROWS = (
    "training.method=closed-form needs two training samples or more with all their targets. Take "
    "training.method=gradient, or data with fewer gaps."
)


def _forecast_errors(model: Forecaster, windows: WindowSet, module: nn.Module) -> tuple[Float64Array, Float64Array]:
    """Return the inputs of a module and the errors of the mean forecast, truth minus forecast in units of the scaling.

    Returns:
        ``(windows, ...)`` and ``(windows, steps, targets)``, the latter NaN where a truth is missing.
    """
    parts: list[Tensor] = []
    errors: list[Float64Array] = []
    with torch.no_grad(), cached_weights(model), inputs_of(module) as inputs:
        for numbers in batch_evenly_spaced(windows, MOST_ROWS, _BATCH):
            samples = windows.gather(numbers)
            x, lengths, dt = _tensors(samples, model)
            arrays = {"static": samples.static, "future": samples.future}
            covariates = {name: torch.from_numpy(value).to(x) for name, value in arrays.items() if value is not None}
            if "future" in covariates:
                # A recursive head reads the known values of one step at a time.
                covariates["future"] = covariates["future"][:, : model.steps]
            change, location, scale = model.changes(model.final_state(x, lengths, dt=dt), **covariates)
            truth = torch.from_numpy(samples.y[:, : model.steps]).to(x)
            target = (model.scaling.transform(truth, model.target_indices) - location) / scale
            errors.append((target - change[:, 0, ..., 0]).double().numpy(force=True))
            parts.append(inputs.pop())
    if not parts:
        raise TrainingError(NO_ROWS)
    return design_matrix(parts), np.concatenate(errors)


def _known_map(model: Forecaster) -> nn.Linear | None:
    """Return the last map of the network on known values, set to 0, and keep the states out of its first one.

    Returns:
        None if the model takes no known values.
    """
    if model.known is None:
        return None
    first, last = model.known[0], model.known[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    size = model.feature_size
    with torch.no_grad():
        # Random maps of many state features would drown the few known values; those that remain get their share.
        first.weight[:, :size] = 0
        first.weight[:, size:] *= (first.in_features / (first.in_features - size)) ** 0.5
    set_linear(last, np.zeros(tuple(last.weight.shape)), np.zeros(len(last.bias)))
    return last


def _solve(x: Float64Array, targets: Float64Array) -> tuple[Float64Array, Float64Array]:
    if len(x) < 2:
        raise TrainingError(NO_ROWS)
    return RidgeRegression(x, targets).linear_map()


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of a module while models run."""
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        handle.remove()


def design_matrix(parts: Sequence[Tensor]) -> Float64Array:
    """Return the rows of a regression in float64, with 0 in place of columns that are constant but for rounding."""
    rows = torch.cat(list(parts)).double().numpy(force=True)
    if not np.isfinite(rows).all():
        raise TrainingError(
            "An output of the layers is not finite on the training data. Take a cell that is stable as it is drawn, "
            "such as lru."
        )
    shared = tuple(range(rows.ndim - 1))
    # Their coefficients would be huge in float32, and of no meaning.
    is_constant = rows.std(axis=shared) <= _CONSTANT * np.abs(rows).max(axis=shared, initial=0.0)
    rows[..., is_constant] = 0.0
    return np.asarray(rows)


def set_linear(linear: nn.Linear, weight: Float64Array, bias: Float64Array) -> None:
    # Into the tensors that are there: an engine or an ensemble may hold on to them.
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
        linear.bias.copy_(torch.from_numpy(bias))


def _only_map(head: nn.Module) -> nn.Linear:
    """Return the linear map of heads of one member."""
    (linear,) = (module for module in head.modules() if isinstance(module, nn.Linear))
    return linear


def evenly_spaced(count: int, limit: int) -> np.ndarray:
    # Files that are sorted by class or time give all of them.
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64))


def _tensors(samples: Samples, model: SequenceModel) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return ``x``, ``lengths`` and, for a model of irregular time, ``dt`` as tensors on the device of the model."""
    device = next(model.parameters()).device
    dt = None if samples.dt is None or model.max_dt is None else torch.from_numpy(samples.dt).to(device)
    return torch.from_numpy(samples.x).to(device), torch.from_numpy(samples.lengths).to(device), dt
