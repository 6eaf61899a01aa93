"""Series of any lengths to one padded batch, and model outputs to the answers of ``/v1/timeseries``. No HTTP here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.calendar import advance, check_frequency, step_frequency
from stablernn_runtime.covariates import Covariates
from stablernn_runtime.engines.session import CancellationToken
from stablernn_runtime.run_batch import BatchResult
from stablernn_runtime.served_model import ServedModel
from stablernn_server.codecs.json_arrays import to_array
from stablernn_server.errors import InputError, TooLargeError
from stablernn_server.handlers.covariates import complete
from stablernn_server.schemas.timeseries import (
    MULTIVARIATE,
    UNIVARIATE,
    ClassifyRequest,
    ForecastOptions,
    ForecastRequest,
    SeriesInput,
)
from stablernn_server.settings import Settings

Array = NDArray[Any]
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Prepared:
    """A request as one padded batch, and what turns its answers into the body of the reply.

    Attributes:
        model: The model that answers.
        inputs: By name, as the graph over whole sequences takes them.
        rows: Series in the batch.
        finish: From the outputs by name, and the states that left their balls.
    """

    model: ServedModel
    inputs: Mapping[str, Array]
    rows: int
    finish: Callable[[Mapping[str, Array], Set[str]], dict[str, Any]]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs that are wanted: all but the states."""
        return [name for name in self.model.sequence.outputs if name not in self.model.sequence.state_outputs]

    def roll_out(self, stop: CancellationToken) -> BatchResult:
        """The answers of a recursive head over its whole horizon."""
        assert self.model.rollout is not None
        outside: set[str] = set()
        found = self.model.rollout.run(self.model, self.inputs, stop, outside)
        return BatchResult({name: found[name] for name in self.outputs}, violations=outside)


def prepare_forecast(model: ServedModel, request: ForecastRequest, settings: Settings) -> Prepared:
    """What a forecast request wants of its model.

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
    horizon, levels = _horizon(model, request.options), _levels(model, request.options)
    covariates = Covariates(model)
    observed = [_values(item, place, model, covariates.observed) for place, item in enumerate(request.inputs)]
    stamps = [_stamp(item, len(values), model) for item, values in zip(request.inputs, observed, strict=True)]
    # Trained on windows of context_length steps, and evaluated on them: a longer past would be another model.
    context = [values if manifest.context_length is None else values[-manifest.context_length :] for values in observed]
    x, lengths = pad(context, model, settings)
    x, further = complete(covariates, x, lengths, request.inputs, [len(values) for values in observed], horizon)
    further |= _times(model, request.inputs, [len(values) for values in observed], lengths, x.shape[1])
    targets = manifest.targets or []

    def finish(answers: Mapping[str, Array], outside: Set[str]) -> dict[str, Any]:
        outputs = []
        for place, item in enumerate(request.inputs):
            frequency, start = stamps[place]
            content = {
                "type": UNIVARIATE if len(targets) == 1 else MULTIVARIATE,
                "name": _name(item, place),
                "mean_forecast": _per_step(answers["mean"][place, :horizon]),
                "quantiles": {
                    str(level): _per_step(answers["quantiles"][place, :horizon, :, index]) for index, level in levels
                },
                "frequency": frequency,
                "start_timestamp": start,
                "targets": targets,
                "context_used": len(context[place]),
            }
            outputs.append(_output("time_series_forecast", content))
        return _response(model, outputs, outside)

    return Prepared(model, {model.input_name: x, "lengths": lengths, **further}, len(x), finish)


def prepare_classify(model: ServedModel, request: ClassifyRequest, settings: Settings) -> Prepared:
    """What a classification request wants of its model; see :func:`prepare_forecast`.

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
    observed = [_values(item, place, model, features) for place, item in enumerate(request.inputs)]
    x, lengths = pad(observed, model, settings)
    times = _times(model, request.inputs, [len(values) for values in observed], lengths, x.shape[1])

    def finish(answers: Mapping[str, Array], outside: Set[str]) -> dict[str, Any]:
        probabilities = answers["probabilities"]
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
        rows = zip(request.inputs, probabilities, order.tolist(), strict=True)
        outputs = [
            _output(
                "time_series_classification",
                {
                    "name": _name(item, place),
                    "label": labels[best[0]],
                    "probabilities": {labels[index]: row[index] for index in best},
                },
            )
            for place, (item, row, best) in enumerate(rows)
        ]
        return _response(model, outputs, outside)

    return Prepared(model, {model.input_name: x, "lengths": lengths, **times}, len(x), finish)


def pad(series: Sequence[Array], model: ServedModel, settings: Settings) -> tuple[Array, Array]:
    """Series ``(time, features)`` as one batch.

    Returns:
        ``x`` of shape ``(batch, longest, features)``, padded with zeros, and ``lengths`` of shape ``(batch,)``.

    Raises:
        InputError: If a series holds only missing values: its answer would rest on nothing.
        TooLargeError: If the batch is above a limit of the settings.
    """
    lengths = np.array([len(values) for values in series], np.int64)
    longest = int(lengths.max())
    check_size(model, len(series), longest, settings)
    x = np.zeros((len(series), longest, series[0].shape[1]), np.float32)
    features, targets = model.manifest.features, model.manifest.targets
    columns = [features.index(name) for name in targets if name in features] if features and targets else []
    for place, values in enumerate(series):
        if np.isnan(values[:, columns] if columns else values).all():
            of = f" of {', '.join(targets)}" if columns and targets and len(columns) < values.shape[1] else ""
            where = f" in the {len(values)} steps that the model looks at" if model.manifest.context_length else ""
            raise InputError(f"inputs.{place}.series holds only missing values{of}{where}; at least one must be there.")
        x[place, : len(values)] = values
    return x, lengths


def check_size(model: ServedModel, batch: int, time_steps: int, settings: Settings) -> None:
    """Raise if a run over ``batch`` sequences of ``time_steps`` is above a limit of the settings.

    Raises:
        TooLargeError: With the numbers.
    """
    # Time steps run one after another, whatever the batch: they are what takes long.
    if time_steps > settings.max_steps:
        raise TooLargeError(
            f"A sequence of {time_steps} time steps is longer than the limit of {settings.max_steps}; send it in "
            "parts, or its end."
        )
    elements = model.count_elements(batch, time_steps)
    if elements > settings.max_elements:
        raise TooLargeError(
            f"{batch} sequences padded to {time_steps} steps make {elements} numbers with outputs and states, the "
            f"limit is {settings.max_elements}; send fewer or shorter series at a time."
        )


def _values(item: SeriesInput, place: int, model: ServedModel, features: Sequence[str]) -> Array:
    """One input as ``(time, features)``, where the features are these."""
    what = f"inputs.{place}.series"
    values = to_array(item.series, what)
    if item.type == UNIVARIATE and values.ndim > 1:
        raise InputError(f"{what} must be a flat array of numbers for the type '{UNIVARIATE}'.")
    if item.type == MULTIVARIATE and values.ndim == 1 and values.size:
        raise InputError(f"{what} must be an array of arrays for the type '{MULTIVARIATE}'.")
    if values.size == 0:
        raise InputError(f"{what} is empty; a series needs at least one time step.")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise InputError(f"{what} must be flat, or an array of one array per time step, got {values.ndim} levels.")
    return model.check_values(what, values, features)


def _times(
    model: ServedModel, inputs: Sequence[SeriesInput], steps: Sequence[int], lengths: Array, longest: int
) -> dict[str, Array]:
    """``dt`` of shape ``(batch, longest)``, where a request says when its values were.

    Args:
        model: The model that answers.
        inputs: The series of the request.
        steps: How many values each has.
        lengths: How many of them, from the end, the model looks at.
        longest: The largest of these.

    Raises:
        InputError: If the model takes none, or there is not one for each value.
    """
    given = [(place, item.dt) for place, item in enumerate(inputs) if item.dt is not None]
    if not given:
        return {}
    if model.max_dt is None:
        raise InputError(
            f"inputs.{given[0][0]}.dt: the model '{model.name}' was trained on regular steps and takes no dt; "
            "leave it out."
        )
    dt = np.ones((len(inputs), longest), np.float32)
    for place, values in given:
        if len(values) != steps[place]:
            raise InputError(
                f"inputs.{place}.dt must hold a number for each of the {steps[place]} values of its series, "
                f"got {len(values)}."
            )
        # All of them, those too that are not used: what is not finite was never measured.
        if not all(abs(value) <= _LARGEST for value in values):
            worst = max(values, key=abs)
            raise InputError(f"inputs.{place}.dt must hold finite numbers within float32, got {worst:g}.")
        if min(values) < 0:
            raise InputError(
                f"inputs.{place}.dt must be 0 or more, the time since the step before, got {min(values):g}."
            )
        # A long gap may lie before what the model looks at, but none before the series.
        if values[0] > model.max_dt * (1 + 1e-6):
            raise InputError(
                f"inputs.{place}.dt must be at most {model.max_dt:g}, the longest step that the model takes, got "
                f"{values[0]:g} for the first value, which has none before it; leave it out or write 1."
            )
        # The first step of what the model looks at has no step before it.
        dt[place, 1 : lengths[place]] = values[steps[place] - int(lengths[place]) + 1 :]
    return {"dt": dt}


def _stamp(item: SeriesInput, steps: int, model: ServedModel) -> tuple[str | None, str | None]:
    """The frequency, and the time of the step after the last observed one."""
    frequency = item.frequency or model.manifest.frequency
    if item.frequency is not None:
        check_frequency(item.frequency, model.manifest.frequency)
    if item.start_timestamp is None:
        return frequency, None
    if frequency is None:
        raise InputError(
            f"start_timestamp needs a frequency: the model '{model.name}' was trained without one. Give frequency, or "
            "leave start_timestamp out."
        )
    return frequency, advance(item.start_timestamp, steps, step_frequency(item.frequency, frequency) or frequency)


def _horizon(model: ServedModel, options: ForecastOptions) -> int:
    trained = model.manifest.horizon or 0
    if options.horizon is not None and options.horizon > trained:
        raise InputError(
            f"options.horizon must be at most {trained}, what the model '{model.name}' was trained for, "
            f"got {options.horizon}."
        )
    return options.horizon or trained


def _levels(model: ServedModel, options: ForecastOptions) -> list[tuple[int, float]]:
    """Index and value of the quantiles to answer with."""
    trained = model.manifest.quantiles or []
    if options.quantiles is None:
        return list(enumerate(trained))
    levels = []
    for level in options.quantiles:
        if level not in trained:
            has = f"has {', '.join(map(str, trained))}" if trained else "has none"
            raise InputError(f"options.quantiles: the model '{model.name}' {has}, got {level}.")
        levels.append((trained.index(level), level))
    return levels


def _check_task(model: ServedModel, task: str) -> None:
    if model.manifest.task != task:
        other = {"forecast": "/v1/timeseries/forecast", "classify": "/v1/timeseries/classify"}
        path = other.get(model.manifest.task, f"/v2/models/{model.name}/infer")
        raise InputError(f"The model '{model.name}' was trained for '{model.manifest.task}', not '{task}'; use {path}.")


def _name(item: SeriesInput, place: int) -> str:
    return str(place) if item.name is None else item.name


def _per_step(values: Array) -> Array:
    """``(horizon, targets)``, or ``(horizon,)`` for a single target, as the JSON writer needs it."""
    return np.ascontiguousarray(values[:, 0] if values.shape[1] == 1 else values)


def _output(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "id": str(uuid.uuid4()), "status": "completed", "content": [content], "error": None}


def _response(model: ServedModel, outputs: list[dict[str, Any]], outside: Set[str]) -> dict[str, Any]:
    response = {
        "id": str(uuid.uuid4()),
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "model": model.name,
        "model_version": str(model.version),
        "outputs": outputs,
    }
    return response | ({"states_outside_ball": sorted(outside)} if outside else {})
