"""The samples of a stream in a request, checked and converted to the inputs of the step graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn_runtime.calendar import in_day_zone
from stablernn_runtime.stream_clock import Clock, Moment, as_moments, parse_moment
from stablernn_runtime.stream_spec import StreamSpec
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.arrays import Array
from stablernn_server.codecs.json_values import MAX_LEVELS, to_array
from stablernn_server.errors import DuplicateStepError, InputError, SkippedStepError
from stablernn_server.handlers.covariates import read_future, read_static
from stablernn_server.schemas.sessions import Samples
from stablernn_server.streams.stream import Stream


@dataclass(slots=True)
class PreparedSamples:
    """Checked samples of one stream.

    Attributes:
        inputs: Inputs of the step graph, with axes over the one stream and the samples; not yet collected to patches.
        future: Values that are known ahead, over the whole horizon after the last sample, ``(1, horizon, names)``; for
            rollouts. None where the model takes none.
        clock: The clock of the stream after the samples.
        count: Number of samples.
    """

    inputs: dict[str, Array]
    future: Array | None
    clock: Clock
    count: int


def check_sequence(number: int | None, step: int) -> None:
    """Raise unless ``number`` is the next sample of a stream that has taken ``step``.

    Raises:
        DuplicateStepError: If the stream has taken it already.
        SkippedStepError: If samples before it are missing.
    """
    if number is None or number == step + 1:
        return
    if number <= step:
        raise DuplicateStepError(
            f"The stream has taken {step} samples, sample {number} among them; it was not taken again. Continue with "
            f"sequence {step + 1}."
        )
    raise SkippedStepError(
        f"The stream has taken {step} samples, so sequence must be {step + 1}, got {number}: send the samples between "
        "first, with null values where there are none."
    )


def count_samples(spec: StreamSpec, values: Any) -> int:
    """Return the number of samples in ``values`` of a request, from the lengths of the first arrays at each level.

    Numbers are not looked at, so that the limits can be checked before the work of reading them.

    Raises:
        InputError: If there are no samples, or they have another shape than the model's.
    """
    shape = spec.sample_shape
    shape_text = f"[{', '.join(map(str, shape))}]" if shape else "one whole number"
    if values is None:
        raise InputError(f"values is missing: give one sample, {shape_text}, or an array of samples.")
    if not isinstance(values, list | np.ndarray):
        return 1
    lengths: list[int] = list(values.shape) if isinstance(values, np.ndarray) else []
    level: Any = values
    while isinstance(level, list) and len(lengths) <= MAX_LEVELS:
        lengths.append(len(level))
        level = level[0] if level else None
    # An empty array holds no sample, whatever the other axes are.
    if 0 not in lengths:
        if shape and lengths == list(shape):
            return 1
        if lengths[1:] == list(shape):
            return lengths[0]
    names = spec.covariates.observed
    # A longer list would hide the rest of the message.
    names_text = f" ({', '.join(names)})" if shape and len(names) <= 8 else ""
    raise InputError(
        f"values must be one sample of the shape {shape_text}{names_text} for {spec.model.label}, or an array of "
        f"several, one level more; got the shape {lengths}."
    )


def parse_static(spec: StreamSpec, static: dict[str, Any] | None) -> Array:
    """Return static values by name as ``(1, names)``, NaN where one is not known.

    Raises:
        InputError: If a name is unknown or a value is no number.
    """
    return np.array([read_static(spec.covariates, static, "static")], np.float32)


def parse_horizon(spec: StreamSpec, request: Samples, count: int) -> int:
    """Return the steps ahead to roll out; 0 where the graph answers them all.

    Raises:
        InputError: If the model does not forecast, or not that far, or not for these samples.
    """
    if request.horizon is None:
        return 0
    model = spec.model
    if model.manifest.task != "forecast":
        raise InputError(f"horizon is for forecasts; the model '{model.name}' was trained for '{model.manifest.task}'.")
    trained_horizon = model.manifest.horizon or 1
    if request.horizon > trained_horizon:
        raise InputError(
            f"horizon must be at most {trained_horizon}, which the model '{model.name}' was trained for, got "
            f"{request.horizon}."
        )
    if model.rollout is None:
        return 0
    if request.every and count > 1 and request.horizon > 1:
        raise InputError(
            "A recursive head looks further than one step ahead only after the last sample; send every=false with "
            "horizon, or one sample at a time."
        )
    return request.horizon


def prepare_samples(spec: StreamSpec, stream: Stream, request: Samples, count: int) -> PreparedSamples:
    """Check the samples of a request and convert them to inputs of the step graph.

    Args:
        spec: Samples and outputs of the model's streams.
        stream: The stream before the samples.
        request: The samples.
        count: Number of samples, from :func:`count_samples`.

    Raises:
        TimeOrderError: If a time does not lie after the one before, or on no regular step.
        MissingStepsError: If regular steps are left out.
        InputError: If the samples do not fit the model.
    """
    values = _parse_values(spec, request.values, count)
    dt, clock, seconds = _parse_times(spec, stream, request, count)
    x, waves = values, None if seconds is None else spec.covariates.calendar_waves(seconds)
    horizon = spec.model.manifest.horizon or 0
    if waves is not None:
        features = spec.model.manifest.features
        x = np.zeros((count, *spec.graph_shape), np.float32)
        x[..., [features.index(name) for name in spec.covariates.observed]] = values
        x[..., [features.index(name) for name in spec.covariates.calendar_features]] = waves[:count]
    # From here on with an axis over streams: (1, steps, ...).
    inputs = {spec.model.input_name: x[None]}
    if dt is not None:
        inputs["dt"] = dt[None]
    if stream.static is not None:
        inputs["static"] = stream.static
    future = _parse_future(spec, request, count)
    if waves is not None:
        # (samples, horizon, names)
        ahead = np.stack([waves[end : end + horizon] for end in range(1, count + 1)])
        future = spec.covariates.with_calendar(future, ahead)
    if not spec.model.manifest.future:
        return PreparedSamples(inputs, None, clock, count)
    # The graph of a recursive head takes one step ahead, and the rollout the others.
    inputs["future"] = future[None, :, : 1 if spec.model.rollout else None]
    return PreparedSamples(inputs, future[None, -1], clock, count)


def _parse_values(spec: StreamSpec, values: Any, count: int) -> Array:
    """Return ``values`` of a request as ``(steps, *sample_shape)``."""
    shape = spec.sample_shape
    array = to_array(values if shape or isinstance(values, list | np.ndarray) else [values], "values").reshape(
        count, *shape
    )
    if shape:
        return spec.model.check_values("values", array, spec.covariates.observed)
    if array.dtype.kind != "i":
        raise InputError("values must be integers, the indices of tokens in the vocabulary, without a decimal point.")
    return array


def _parse_times(
    spec: StreamSpec, stream: Stream, request: Samples, count: int
) -> tuple[Array | None, Clock, Array | None]:
    """Read when the samples were taken.

    Returns:
        ``dt`` as ``(samples,)``, None where the graph takes or gets none; the clock after the samples; and the times of
        all samples and of the horizon after them in seconds, None unless the model takes calendar features.
    """
    model, frequency = spec.model, spec.frequency
    moments = [] if request.time is None else as_moments(request.time, count)
    moments = [in_day_zone(moment, spec.day_zone) if isinstance(moment, str) else moment for moment in moments]
    is_first = stream.step == 0
    dt: Array | None = None
    if request.dt is not None:
        if not spec.takes_dt:
            raise InputError(
                f"dt: the model '{model.name}' was trained on regular steps and takes no dt; leave it out."
            )
        if moments:
            raise InputError("time and dt are both given; leave one of them out.")
        dt = _parse_dt(request.dt, count)
        if is_first:
            ignore_first_dt(dt.reshape(1, -1), [0], model.max_dt)
        # float64: a float32 sum would drift away from the times of the client.
        clock = _advance_clock(stream.clock, float(dt.sum(dtype=np.float64)))
    elif not spec.takes_dt:
        if len(moments) not in (0, 1, count):
            raise InputError(
                f"time must be that of the first of {count} samples, or an array of {count}, got {len(moments)} times."
            )
        clock = stream.clock.advance_regular(moments, count, frequency)
    elif moments:
        if len(moments) != count:
            raise InputError(f"time must hold that of each of the {count} samples, got {len(moments)}.")
        dt, clock = stream.clock.advance_irregular(moments, is_first, frequency)
    else:
        clock = _advance_clock(stream.clock, float(count))
    if not spec.covariates.calendar_features:
        return dt, clock, None
    return dt, clock, _calendar_seconds(spec, moments, clock, count)


def _calendar_seconds(spec: StreamSpec, moments: Sequence[Moment], clock: Clock, count: int) -> Array:
    """Return the times of the samples and of the steps of the horizon after them, in seconds."""
    if clock.origin is None:
        periods = " and the ".join(period.name for period in spec.model.manifest.calendar or ())
        raise InputError(
            f"time is missing: the model '{spec.model.name}' needs the position of each step in the {periods}. Give "
            "the time of the sample, at least of the first of the stream."
        )
    horizon = spec.model.manifest.horizon or 0
    if not spec.takes_dt:
        return clock.seconds(1 - count, count + horizon, spec.frequency)
    if not moments:
        raise InputError(
            "time is missing: give the time of each sample, from which its position in the calendar follows."
        )
    past = [parse_moment(moment, spec.frequency) for moment in moments]
    return np.concatenate([past, clock.seconds(1, horizon, spec.frequency)])


def _parse_dt(dt: Any, count: int) -> Array:
    """Return ``dt`` of a request as ``(samples,)``."""
    array = to_array(dt if isinstance(dt, list | np.ndarray) else [dt], "dt")
    if array.shape != (count,):
        raise InputError(
            f"dt must hold a number for each sample, in the shape [{count}], got the shape {list(array.shape)}."
        )
    if not np.isfinite(array).all():
        raise InputError("dt must hold finite numbers, the time since the sample before; none can be missing.")
    # A number that float32 cannot hold becomes infinite, which the check of the step's inputs refuses.
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _advance_clock(clock: Clock, steps: float) -> Clock:
    return clock if clock.origin is None else Clock(clock.origin, clock.steps + steps)


def _parse_future(spec: StreamSpec, request: Samples, count: int) -> Array:
    """Return the values that a client knows ahead of each sample, ``(steps, horizon, names)``."""
    future = request.future
    if future is None:
        # A view of one NaN, whatever the number of samples.
        horizon, names = spec.model.manifest.horizon or 0, spec.covariates.future_names
        return np.broadcast_to(np.float32(np.nan), (count, horizon, len(names)))
    entries: list[Any] = future if isinstance(future, list) else [future]
    if len(entries) != count:
        raise InputError(
            f"future must be an array of one object for each of the {count} samples, got {len(entries)}; use null for "
            "samples without any."
        )
    horizon = request.horizon or (1 if spec.model.rollout else spec.model.manifest.horizon or 0)
    rows = []
    for index, entry in enumerate(entries):
        label = "future" if count == 1 else f"future.{index}"
        if not isinstance(entry, dict | None):
            raise InputError(f"{label} must be an object of arrays by name, or null, got {entry!r:.60}.")
        rows.append(read_future(spec.covariates, entry, label, horizon))
    return np.stack(rows)
