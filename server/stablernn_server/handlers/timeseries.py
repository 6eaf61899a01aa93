"""Forecasts and classifications of series: from a checked body to one padded batch, from outputs to a response body.

No HTTP here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn_runtime.calendar import advance, check_frequency, data_zone, step_frequency
from stablernn_runtime.covariates import Covariates
from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchResult
from stablernn_runtime.served_model import ServedModel
from stablernn_server.batching.types import Array
from stablernn_server.codecs.json_values import to_array
from stablernn_server.errors import InputError
from stablernn_server.handlers.covariates import add_covariates
from stablernn_server.schemas.timeseries import (
    MULTIVARIATE,
    UNIVARIATE,
    ClassifyRequest,
    ForecastOptions,
    ForecastRequest,
    SeriesInput,
)
from stablernn_server.settings import Settings

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class PreparedRequest:
    """A request as one padded batch, and the function that makes its response.

    Attributes:
        model: The model that answers.
        inputs: Inputs of the graph over whole sequences, by name.
        rows: Series in the batch.
        finish: Returns the response body, from the outputs by name and the names of states that left their balls.
    """

    model: ServedModel
    inputs: Mapping[str, Array]
    rows: int
    finish: Callable[[Mapping[str, Array], Set[str]], dict[str, Any]]

    @property
    def outputs(self) -> list[str]:
        """Names of the requested outputs: all but the states."""
        return [name for name in self.model.sequence.outputs if name not in self.model.sequence.state_outputs]

    def roll_out(self, cancellation: CancellationToken) -> BatchResult:
        """Return the outputs of a recursive head over its whole horizon."""
        assert self.model.rollout is not None
        violations: set[str] = set()
        outputs = self.model.rollout.run(self.model, self.inputs, cancellation, violations)
        return BatchResult({name: outputs[name] for name in self.outputs}, violations=violations)


def prepare_forecast(model: ServedModel, request: ForecastRequest, settings: Settings) -> PreparedRequest:
    """Prepare a forecast request.

    Args:
        model: The model that answers.
        request: The checked body.
        settings: The limits of one request.

    Raises:
        InputError: If the model does not forecast, or a series or an option does not fit it.
        TooLargeError: If the padded batch is too large.
    """
    _check_task(model, "forecast")
    manifest = model.manifest
    horizon, levels = _parse_horizon(model, request.options), _select_levels(model, request.options)
    covariates = Covariates(model)
    observed = [_parse_series(series, index, model, covariates.observed) for index, series in enumerate(request.inputs)]
    observed_steps = [len(values) for values in observed]
    stamps = [
        _forecast_start(series, len(values), model) for series, values in zip(request.inputs, observed, strict=True)
    ]
    # Trained on windows of context_length steps, and evaluated on them: a longer past would be another model.
    context = [values if manifest.context_length is None else values[-manifest.context_length :] for values in observed]
    x, lengths = pad(context, model, settings)
    x, other_inputs = add_covariates(covariates, x, lengths, request.inputs, observed_steps, horizon)
    other_inputs |= _parse_dt(model, request.inputs, observed_steps, lengths, x.shape[1])
    targets = manifest.targets or []

    def finish(results: Mapping[str, Array], violations: Set[str]) -> dict[str, Any]:
        outputs = []
        for index, series in enumerate(request.inputs):
            frequency, start = stamps[index]
            content = {
                "type": UNIVARIATE if len(targets) == 1 else MULTIVARIATE,
                "name": _series_name(series, index),
                "mean_forecast": _by_step(results["mean"][index, :horizon]),
                "quantiles": {
                    str(level): _by_step(results["quantiles"][index, :horizon, :, column]) for column, level in levels
                },
                "frequency": frequency,
                "start_timestamp": start,
                "targets": targets,
                "context_used": len(context[index]),
            }
            outputs.append(_output("time_series_forecast", content))
        return _response(model, outputs, violations, samples_outside)

    samples_outside = _check_range(model, x, lengths, settings)
    inputs = {model.input_name: x, "lengths": lengths, **other_inputs}
    return PreparedRequest(model, inputs, len(x), finish)


def prepare_classify(model: ServedModel, request: ClassifyRequest, settings: Settings) -> PreparedRequest:
    """Prepare a classification request; see :func:`prepare_forecast`.

    Raises:
        InputError: If the model does not classify, or a series or an option does not fit it.
        TooLargeError: If the padded batch is too large.
    """
    _check_task(model, "classify")
    labels = model.manifest.labels or []
    top_k = request.options.top_k or len(labels)
    if top_k > len(labels):
        raise InputError(f"options.top_k must be at most the {len(labels)} classes of '{model.name}', got {top_k}.")
    features = model.manifest.features
    observed = [_parse_series(series, index, model, features) for index, series in enumerate(request.inputs)]
    x, lengths = pad(observed, model, settings)
    dt = _parse_dt(model, request.inputs, [len(values) for values in observed], lengths, x.shape[1])

    def finish(results: Mapping[str, Array], violations: Set[str]) -> dict[str, Any]:
        probabilities = results["probabilities"]
        # Stable: classes of one probability stay in the order of the labels.
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
        rows = zip(request.inputs, probabilities, order.tolist(), strict=True)
        outputs = [
            _output(
                "time_series_classification",
                {
                    "name": _series_name(series, index),
                    "label": labels[best_classes[0]],
                    "probabilities": {labels[column]: row[column] for column in best_classes},
                },
            )
            for index, (series, row, best_classes) in enumerate(rows)
        ]
        return _response(model, outputs, violations, samples_outside)

    samples_outside = _check_range(model, x, lengths, settings)
    return PreparedRequest(model, {model.input_name: x, "lengths": lengths, **dt}, len(x), finish)


def pad(series: Sequence[Array], model: ServedModel, settings: Settings) -> tuple[Array, Array]:
    """Pad series ``(time, features)`` to one batch.

    Returns:
        ``x`` of shape ``(batch, longest, features)``, padded with zeros, and ``lengths`` of shape ``(batch,)``.

    Raises:
        InputError: If a series holds only missing values: its answer would rest on nothing.
        TooLargeError: If the batch is above a limit of the settings.
    """
    lengths = np.array([len(values) for values in series], np.int64)
    longest = int(lengths.max())
    settings.check_sequences(len(series), longest, model.count_elements(len(series), longest))
    x = np.zeros((len(series), longest, series[0].shape[1]), np.float32)
    features, targets = model.manifest.features, model.manifest.targets
    # The values of the targets decide, or those of all features where a model has no targets.
    columns = [features.index(name) for name in targets if name in features] if features and targets else []
    for index, values in enumerate(series):
        if np.isnan(values[:, columns] if columns else values).all():
            targets_text = f" of {', '.join(targets)}" if columns and targets and len(columns) < values.shape[1] else ""
            context_text = f" in the {len(values)} steps that the model uses" if model.manifest.context_length else ""
            raise InputError(
                f"inputs.{index}.series holds only missing values{targets_text}{context_text}; at least one must be "
                "there."
            )
        x[index, : len(values)] = values
    return x, lengths


def _parse_series(series: SeriesInput, index: int, model: ServedModel, features: Sequence[str]) -> Array:
    """Return the values of one series as ``(time, features)``."""
    label = f"inputs.{index}.series"
    values = to_array(series.series, label)
    if series.type == UNIVARIATE and values.ndim > 1:
        raise InputError(f"{label} must be a flat array of numbers for the type '{UNIVARIATE}'.")
    if series.type == MULTIVARIATE and values.ndim == 1 and values.size:
        raise InputError(f"{label} must be an array of arrays for the type '{MULTIVARIATE}'.")
    if values.size == 0:
        raise InputError(f"{label} is empty; a series needs at least one time step.")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise InputError(f"{label} must be flat, or an array of one array per time step, got {values.ndim} levels.")
    return model.check_values(label, values, features)


def _parse_dt(
    model: ServedModel, inputs: Sequence[SeriesInput], observed_steps: Sequence[int], lengths: Array, longest: int
) -> dict[str, Array]:
    """Return ``dt`` of shape ``(batch, longest)`` by name, where a request has the times between its values.

    Args:
        model: The model that answers.
        inputs: The series of the request.
        observed_steps: Number of values of each.
        lengths: Number of values, from the end, that the model uses.
        longest: The largest of these.

    Raises:
        InputError: If the model takes none, or there is not one for each value.
    """
    series_dt = [(index, series.dt) for index, series in enumerate(inputs) if series.dt is not None]
    if not series_dt:
        return {}
    if model.max_dt is None:
        raise InputError(
            f"inputs.{series_dt[0][0]}.dt: the model '{model.name}' was trained on regular steps and takes no dt; "
            "leave it out."
        )
    # 1, a regular step, for series without dt and for the first step.
    dt = np.ones((len(inputs), longest), np.float32)
    for index, entries in series_dt:
        values = to_array(entries, f"inputs.{index}.dt")
        if values.shape != (observed_steps[index],):
            raise InputError(
                f"inputs.{index}.dt must hold a number for each of the {observed_steps[index]} values of its series, "
                f"got {values.size}."
            )
        # All of them, those too that are not used: a time that is not finite was never measured.
        # NaN compares as false, and so is refused as well.
        is_finite = np.abs(values) <= _FLOAT32_MAX
        if not is_finite.all():
            raise InputError(
                f"inputs.{index}.dt must hold finite numbers within float32, got {values[~is_finite][0]:g}."
            )
        if values.min() < 0:
            raise InputError(
                f"inputs.{index}.dt must be 0 or more, the time since the step before, got {values.min():g}."
            )
        # A long gap may lie before the steps that the model uses, but none before the series.
        if values[0] > model.max_dt * (1 + 1e-6):
            raise InputError(
                f"inputs.{index}.dt must be at most {model.max_dt:g}, the longest step that the model takes, got "
                f"{values[0]:g} for the first value, which has none before it; leave it out or write 1."
            )
        # The first step that the model uses has no step before it.
        dt[index, 1 : lengths[index]] = values[observed_steps[index] - int(lengths[index]) + 1 :]
    return {"dt": dt}


def _forecast_start(series: SeriesInput, steps: int, model: ServedModel) -> tuple[str | None, str | None]:
    """Return the frequency, and the time of the step after the last observed one."""
    frequency = series.frequency or model.manifest.frequency
    if series.frequency is not None:
        check_frequency(series.frequency, model.manifest.frequency)
    if series.start_timestamp is None:
        return frequency, None
    if frequency is None:
        raise InputError(
            f"start_timestamp needs a frequency: the model '{model.name}' was trained without one. Give frequency, or "
            "leave start_timestamp out."
        )
    unit = step_frequency(series.frequency, frequency) or frequency
    return frequency, advance(series.start_timestamp, steps, unit, data_zone(model.manifest))


def _parse_horizon(model: ServedModel, options: ForecastOptions) -> int:
    trained_horizon = model.manifest.horizon or 0
    if options.horizon is not None and options.horizon > trained_horizon:
        raise InputError(
            f"options.horizon must be at most {trained_horizon}, which the model '{model.name}' was trained for, "
            f"got {options.horizon}."
        )
    return options.horizon or trained_horizon


def _select_levels(model: ServedModel, options: ForecastOptions) -> list[tuple[int, float]]:
    """Return index and value of the requested quantiles."""
    trained_levels = model.manifest.quantiles or []
    if options.quantiles is None:
        return list(enumerate(trained_levels))
    levels = []
    for level in options.quantiles:
        if level not in trained_levels:
            levels_text = f"has {', '.join(map(str, trained_levels))}" if trained_levels else "has none"
            raise InputError(f"options.quantiles: the model '{model.name}' {levels_text}, got {level}.")
        levels.append((trained_levels.index(level), level))
    return levels


def _check_task(model: ServedModel, task: str) -> None:
    if model.manifest.task != task:
        paths = {"forecast": "/v1/timeseries/forecast", "classify": "/v1/timeseries/classify"}
        path = paths.get(model.manifest.task, f"/v2/models/{model.name}/infer")
        raise InputError(f"The model '{model.name}' was trained for '{model.manifest.task}', not '{task}'; use {path}.")


def _series_name(series: SeriesInput, index: int) -> str:
    return str(index) if series.name is None else series.name


def _by_step(values: Array) -> Array:
    """Return ``(horizon, targets)``, or ``(horizon,)`` for a single target."""
    # The JSON writer takes contiguous arrays only.
    return np.ascontiguousarray(values[:, 0] if values.shape[1] == 1 else values)


def _output(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "id": str(uuid.uuid4()), "status": "completed", "content": [content], "error": None}


def _check_range(model: ServedModel, x: Array, lengths: Array, settings: Settings) -> int:
    """Return how many samples lie outside the range for which the model is certified.

    Raises:
        InputError: If there are any, and the settings refuse them.
    """
    return model.guard.inputs.check(x, lengths, model.ref, is_refused=settings.refuse_inputs_outside)


def _response(
    model: ServedModel, outputs: list[dict[str, Any]], violations: Set[str], samples_outside: int
) -> dict[str, Any]:
    response = {
        "id": str(uuid.uuid4()),
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "model": model.name,
        "model_version": str(model.version),
        "outputs": outputs,
    }
    if violations:
        response["states_outside_ball"] = sorted(violations)
    if samples_outside:
        response["samples_outside_range"] = samples_outside
    return response
