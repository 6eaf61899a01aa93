"""Training in closed form: the head is solved for on the states of recurrent layers that are not trained.

Heads of a whole sequence, and numbers at every step, are those of a ridge regression. For classes and binary targets at
every step a regression has no closed form: the logistic one is convex, and iterated to its optimum.

Jaeger, "The echo state approach to analysing and training recurrent neural networks", GMD report 148, 2001.
Lukosevicius and Jaeger, "Reservoir computing approaches to recurrent neural network training", Computer Science Review,
2009.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stablernn.cells import cached_weights
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.projection import project_model
from stablernn.data.step_data import NO_TARGET, Output, StepSplit
from stablernn.data.types import SequenceSplit
from stablernn.data.windows import WindowSet, batch_evenly_spaced, evenly_spaced
from stablernn.errors import TrainingError
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor
from stablernn.training.calibration import MOST_SMOOTHED_VALUES, best_temperature
from stablernn.training.evaluation.baselines import Float64Array, RidgeRegression
from stablernn.training.evaluation.scorers import Scorer
from stablernn.training.loop.base_trainer import BaseTrainer, Progress, RunRecorder
from stablernn.training.loop.checkpoint import Checkpoint
from stablernn.training.loop.losses import Objective
from stablernn.training.loop.minibatches import model_inputs
from stablernn.training.settings.config import TrainingConfig


class ClosedFormTrainer(BaseTrainer):
    """Fits the head of a model with random recurrent weights, an echo state network (Jaeger, GMD report 148, 2001).

    There is one pass over the training data, which counts as an epoch, and no optimizer step. It is not stored before
    it is done: a run that was stopped in it begins again, and a finished one that is resumed repeats it with the same
    numbers.

    Args:
        model: With its scaling fitted, on the device on which it is to run.
        objective: Names the metric in which the model is scored.
        scorer: Scorer of the validation split.
        settings: Resolved settings.
        recorder: Receives the epoch and the weights.
        solve: Function that sets the head.
        inputs: Range of the raw inputs, on which the certified region of some cells depends; None if there is none.
        certify_epochs: Whether the figures of the epoch say what is proved of the model.
    """

    total_steps = 0

    def __init__(
        self,
        model: SequenceModel,
        objective: Objective,
        scorer: Scorer,
        settings: TrainingConfig,
        recorder: RunRecorder,
        solve: Callable[[], Solution],
        *,
        inputs: InputRange | None = None,
        certify_epochs: bool = True,
    ) -> None:
        super().__init__(model, objective, scorer, settings, recorder, certify_epochs=certify_epochs)
        self._solve = solve
        if settings.certified:
            # Nothing moves the layers later, so that once is enough.
            project_model(model, settings.certified_margin or 0.0, inputs)

    @property
    def is_diverged(self) -> bool:
        # Nothing was iterated.
        return False

    def fit(self, progress: Callable[[Progress], None] | None = None) -> bool:
        report, position = progress or (lambda _: None), self.position
        # Both reports are of step 0: a line is printed for the second, which has the metric.
        started = time.monotonic()
        report(self._progress())
        # Dropout would make the features of a regression noisy.
        self.model.eval()
        position.last_loss, self.left_out = self._solve()
        position.epoch = 1
        position.seconds = time.monotonic() - started
        self._score()
        if not self._best:
            raise TrainingError(
                f"No head of finite weights solves the regression: {self._unusable_reason()}. Set "
                f"{self.stabilizing_advice()}."
            )
        report(self._progress())
        return True

    def restore(self, checkpoint: Checkpoint) -> None:
        raise TrainingError(
            "The run has a checkpoint 'last', which training.method=closed-form never writes: its files are of two "
            "runs. Start a new run."
        )

    def stabilizing_advice(self) -> str:
        return "training.method=gradient, or another training.seed"

    def _progress(self) -> Progress:
        position = self.position
        return Progress(
            epoch=1,
            epochs=1,
            step=0,
            total_steps=0,
            loss=position.last_loss or 0.0,
            metric_name=self.objective.headline,
            metric=position.metric,
            best=position.best,
        )


MOST_ROWS = 20_000
"""Rows of a regression at most, evenly spread over the training samples: 20,000 rows of 768 columns take 120 MB and, on
a core, 3 s to solve."""
_MOST_NUMBERS = 2**25
"""Numbers in the rows of a regression at most, 268 MB: 13,315 rows of 2,520 columns, which take 10 s to solve."""
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
        split: Training sequences; of more than :data:`MOST_ROWS`, or of fewer with many features, evenly spaced ones
            are used.

    Returns:
        The loss is the mean log loss of the sequences, of each by the fit to all others.

    Raises:
        TrainingError: If all sequences are of one class, or a feature is not finite.
    """
    numbers = evenly_spaced(len(split), _most_rows(model.feature_size))
    weights = None if split.weights is None else split.weights[numbers].astype(np.float64)
    if weights is not None:
        numbers, weights = numbers[weights > 0], weights[weights > 0]
    parts: list[Tensor] = []
    with torch.no_grad(), cached_weights(model), inputs_of(model.head) as features:
        for start in range(0, len(numbers), _BATCH):
            x, lengths, dt, _ = model_inputs(split.gather(numbers[start : start + _BATCH]), model)
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
    forecast no better (docs/guides/choosing.md). Without one the head is solved for. The network on known values of the
    steps ahead, if there is one, reads these and the static covariates alone, and is solved for on what remains.
    Quantiles lie at those of the training errors, and a forecast of data with many zeros below the regression's.

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
    if model.rnn.cells[0].is_forecast:
        _pick_targets(model, head)
    elif model.skip is None:
        features, errors, _ = _forecast_errors(model, windows, model.head)
        is_complete = ~np.isnan(errors).any(axis=(1, 2))
        weight, bias = _solve(features[is_complete], errors[is_complete].reshape(int(is_complete.sum()), -1))
        # The mean and all quantiles move together: (steps * targets) to (steps * targets * levels) rows.
        set_linear(head, np.repeat(weight, levels, axis=0), np.repeat(bias, levels))
    if known_map is not None:
        # (windows, steps, hidden): every step ahead of every window is a row, and once more with some values left out:
        # the forecast without one is fitted, too.
        parts = [_forecast_errors(model, windows, known_map, unknown=share) for share in (0.0, _UNKNOWN)]
        hidden, errors, _ = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        rows, targets = hidden.reshape(-1, hidden.shape[-1]), errors.reshape(-1, errors.shape[-1])
        is_complete = ~np.isnan(targets).any(axis=1)
        numbers = np.flatnonzero(is_complete)[evenly_spaced(int(is_complete.sum()), MOST_ROWS)]
        weight, bias = _solve(rows[numbers], targets[numbers])
        set_linear(known_map, np.repeat(weight, levels, axis=0), np.repeat(bias, levels))
    _, errors, heights = _forecast_errors(model, windows, model.head)
    if np.isnan(errors).all():
        raise TrainingError(NO_ROWS)
    with torch.no_grad():
        # Rows of the head are (steps, targets, mean and quantiles); a view writes to the parameter.
        biases = head.bias.view(*errors.shape[1:], levels)
        shift = median_shift(errors, heights) if model.non_negative else 0.0
        biases[..., 0] -= shift
        for number, level in enumerate(model.quantiles, start=1):
            quantile = np.nan_to_num(np.nanquantile(errors, level, axis=0))
            if shift > 0 and level <= 0.5:
                # None up to the median is above it.
                quantile = np.minimum(quantile, -shift)
            biases[..., number] += torch.from_numpy(quantile).to(biases)
    return float(np.nanmean(np.abs(errors)))


def median_shift(errors: Float64Array, heights: Float64Array) -> float:
    """Return by how much forecasts that are cut off at zero are to be lowered for the least mean absolute error.

    A regression forecasts a mean, which lies above the median of data with many zeros: where most values are zero, the
    forecast with the least absolute error is zero, too.

    Args:
        errors: Truth minus forecast, NaN where missing, in units of the scaling.
        heights: Forecasts above zero in these units, of the same shape.

    Returns:
        The shift; 0 where fewer than a tenth of the truths are zero.
    """
    is_observed = ~np.isnan(errors)
    errors, heights = errors[is_observed], heights[is_observed]
    is_zero = errors + heights <= _ZERO * np.abs(heights).max(initial=0.0)
    if not len(errors) or is_zero.mean() < _FREQUENT_ZEROS:
        return 0.0
    shifts = np.quantile(heights.clip(0.0), np.linspace(0, 1, 21))
    losses = [float(np.abs(errors + np.minimum(shift, heights)).mean()) for shift in (0.0, *shifts)]
    return float((0.0, *shifts)[int(np.argmin(losses))])


_FREQUENT_ZEROS = 0.1
"""Share of zeros from which on a forecast is lowered to the median."""
_ZERO = 1e-5
"""What counts as zero after the rounding of float32, as a share of the highest forecast."""


def _pick_targets(model: Forecaster, head: nn.Linear) -> None:
    """Let the head return the forecasts of the targets that the cell makes of all channels."""
    levels = 1 + len(model.quantiles)
    weight = np.zeros((model.horizon, len(model.target_indices), levels, head.in_features))
    for number, index in enumerate(model.target_indices):
        for step in range(model.horizon):
            weight[step, number, :, index * model.horizon + step] = 1.0
    set_linear(head, weight.reshape(-1, head.in_features), np.zeros(len(head.bias)))


def regression_bytes(model: SequenceModel) -> int:
    """Return the memory of the largest regression of a model at its peak: the rows in float64, three times."""
    columns = model.feature_size + (model.static_size if isinstance(model, Forecaster) else 0)
    # As the layers give them, standardized, and as left singular vectors.
    return 3 * 8 * _most_rows(columns) * columns


def _most_rows(columns: int) -> int:
    return min(MOST_ROWS, _MOST_NUMBERS // columns)


NO_ROWS = (
    "training.method=closed-form needs two training samples or more with all their targets. Take "
    "training.method=gradient, or data with fewer gaps."
)


_UNKNOWN = 0.2
"""Share of the known values that are left out of the rows by which the forecast without them is fitted."""


def _forecast_errors(
    model: Forecaster, windows: WindowSet, module: nn.Module, *, unknown: float = 0.0
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return the inputs of a module, the errors of the mean forecast, truth minus forecast, and its heights above zero.

    Args:
        model: The forecaster.
        windows: The windows.
        module: The module.
        unknown: Share of the known values of the steps ahead that are taken for unknown, at random.

    Returns:
        ``(windows, ...)`` and twice ``(windows, steps, targets)``, in units of the scaling; errors are NaN where a
        truth is missing.
    """
    parts: list[Tensor] = []
    errors: list[Float64Array] = []
    heights: list[Float64Array] = []
    # Smoothing reads a window in as many steps as it is long, and few errors tell its quantiles.
    is_smoothing = model.rnn.cells[0].is_forecast
    most_rows = MOST_SMOOTHED_VALUES // windows.context_length if is_smoothing else MOST_ROWS
    generator = np.random.default_rng(0)
    with torch.no_grad(), cached_weights(model), inputs_of(module) as inputs:
        for numbers in batch_evenly_spaced(windows, most_rows, _BATCH):
            samples = windows.gather(numbers)
            if unknown and samples.future is not None:
                is_unknown = generator.random(samples.future.shape) < unknown
                samples = samples._replace(future=np.where(is_unknown, np.float32(np.nan), samples.future))
            x, lengths, dt, covariates = model_inputs(samples, model)
            if "future" in covariates:
                # A recursive head reads the known values of one step at a time.
                covariates["future"] = covariates["future"][:, : model.steps]
            change, location, scale = model.changes(model.final_state(x, lengths, dt=dt), **covariates)
            truth = torch.from_numpy(samples.y[:, : model.steps]).to(x)
            target = (model.scaling.transform(truth, model.target_indices) - location) / scale
            forecast = change[:, 0, ..., 0]
            zero = (model.scaling.transform(torch.zeros_like(truth), model.target_indices) - location) / scale
            errors.append((target - forecast).double().numpy(force=True))
            heights.append((forecast - zero).double().numpy(force=True))
            parts.append(inputs.pop())
    if not parts:
        raise TrainingError(NO_ROWS)
    return design_matrix(parts), np.concatenate(errors), np.concatenate(heights)


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
