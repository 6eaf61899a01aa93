"""Steps of one stream by any transport: from the samples of a request through the graph to the outputs as JSON.

No HTTP here. The fast path for many streams in one binary frame is :mod:`stablernn_server.handlers.stream_connection`.

Samples are checked and converted to the inputs of the step graph first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson

from stablernn_runtime.calendar import as_in_data
from stablernn_runtime.online_streams import QUANTILES, OnlineUpdate
from stablernn_runtime.stream_clock import Clock, Moment, as_moments, parse_moment
from stablernn_runtime.stream_spec import StreamSpec, stream_spec
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import Array, Caller, InferenceResult
from stablernn_server.codecs.json_values import MAX_LEVELS, json_body, run_in_thread_if_large, to_array
from stablernn_server.errors import DuplicateStepError, InputError, SkippedStepError
from stablernn_server.handlers.covariates import read_future, read_static
from stablernn_server.schemas.sessions import Samples
from stablernn_server.settings import Settings
from stablernn_server.streams.stream import Stream, copy_views

_NUMBERS_PER_CHUNK = 2**14
_STEPS_PER_CHUNK = 256
"""Most numbers and steps that are written at a time: the JSON writer holds the GIL, and no other thread runs."""


@dataclass(slots=True)
class PreparedSamples:
    """Checked samples of one stream.

    Attributes:
        inputs: Inputs of the step graph, with axes over the one stream and the samples; not yet collected to patches.
        future: Values that are known ahead, over the whole horizon after the last sample, ``(1, horizon, names)``; for
            rollouts. None where the model takes none.
        clock: The clock of the stream after the samples.
    """

    inputs: dict[str, Array]
    future: Array | None
    clock: Clock


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
        return PreparedSamples(inputs, None, clock)
    # The graph of a recursive head takes one step ahead, and the rollout the others.
    inputs["future"] = future[None, :, : 1 if spec.model.rollout else None]
    return PreparedSamples(inputs, future[None, -1], clock)


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
    moments = [as_in_data(moment, spec.data_zone) if isinstance(moment, str) else moment for moment in moments]
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


@dataclass(slots=True)
class StepResult:
    """The result of the samples of one request.

    Attributes:
        outputs: JSON: an array of an object for each answered step, its outputs by name and the label of a classifier;
            empty while a patch is not full.
        last_outputs: The object of the last answered step; its arrays are copies. None without one.
        warnings: Fields of the response on states that left their certified balls, samples outside the certified range
            of inputs, and alarms of the test for drift; none without any.
        inference: Queue and run times, those of a rollout added up; without arrays.
    """

    outputs: orjson.Fragment
    last_outputs: dict[str, Any] | None
    warnings: dict[str, Any]
    inference: InferenceResult


async def advance_stream(
    scheduler: Scheduler,
    stream: Stream,
    request: Samples,
    settings: Settings,
    caller: Caller,
    names: Sequence[str] | None = None,
    *,
    size: int = 0,
) -> StepResult:
    """Advance a stream by the samples of a request; it is changed only if all of them succeed.

    Args:
        scheduler: Runs the steps.
        stream: The stream; nobody else may advance it at the same time.
        request: The samples, and how to answer.
        settings: The limits of one request.
        caller: The client that waits.
        names: The requested outputs; default: all.
        size: Bytes of the request: large ones are checked on a thread.

    Raises:
        DuplicateStepError: If the stream has taken the first of the samples already.
        SkippedStepError: If samples before them are missing.
        TimeOrderError: If a time does not lie after the one before, or on no regular step.
        MissingStepsError: If regular steps are left out.
        InputError: If the samples do not fit the model, or lead to an output that is not finite.
        TooLargeError: If they are above a limit.
    """
    model, spec = stream.model, stream_spec(stream.model)
    check_sequence(request.sequence, stream.step)
    count = count_samples(spec, request.values)
    settings.check_samples(1, count, spec.count_elements(1, count))
    # A number, and a time, take about so many bytes as text.
    size = max(size, count * (8 * prod(spec.sample_shape) + 32))
    samples = await run_in_thread_if_large(size, lambda: prepare_samples(spec, stream, request, count))
    horizon = parse_horizon(spec, request, count)
    x = samples.inputs[model.input_name]
    samples_outside = model.guard.inputs.check(x, None, model.ref, is_refused=settings.refuse_inputs_outside)
    left_over: dict[str, Array] = {}
    if spec.patches is not None:
        collected = spec.collect(stream.states, np.array([stream.step]), samples.inputs)
        left_over = collected.states
        if not collected.counts[0]:
            stream.states = {**stream.states, **left_over}
            stream.clock, stream.step = samples.clock, stream.step + count
            inference = InferenceResult({}, {}, set(), 0, 0, 1)
            return StepResult(orjson.Fragment(b"[]"), None, _warnings(set(), samples_outside), inference)
        samples.inputs |= collected.inputs
        x = samples.inputs[model.input_name]
    output_names = list(spec.outputs) if names is None else list(names)
    # A rollout feeds the mean back, whether it is requested or not.
    run_names = output_names if horizon <= 1 or "mean" in output_names else [*output_names, "mean"]
    run_names = spec.graph_outputs(run_names)
    states = spec.model_states(stream.states)
    # Estimates are updated with the forecast after each sample, whichever of them are answered.
    every = spec.online is not None or (request.every and horizon <= 1)
    first = await scheduler.step(model, samples.inputs, states, run_names, caller=caller, every=every)
    results = [first]
    update = None
    if horizon > 1:
        outputs = await _roll_out(scheduler, spec, results, samples, horizon, caller)
    else:
        outputs = calibrate_outputs(spec, first.outputs)
    if spec.online is not None:
        # Each sample takes about as long as parsing a KiB of JSON.
        update = await run_in_thread_if_large(1024 * count, lambda: update_estimates(spec, stream.states, x, outputs))
        outputs = outputs | update.outputs
        if not request.every:
            outputs = {name: value[:, -1:] for name, value in outputs.items()}
    # A direct head answers its whole horizon: here it is cut to the requested one.
    horizon_limit = None if request.horizon is None or model.rollout is not None else request.horizon
    requested = {name: outputs[name] for name in output_names}
    # Each object and each array in it costs about as much as so many bytes of numbers.
    size = sum(value.nbytes + 64 * value.shape[1] for value in requested.values())
    content, last_outputs = await run_in_thread_if_large(size, lambda: _write_json(spec, requested, horizon_limit))
    # Last, so that the stream moves on only if everything above has succeeded.
    stream.states = copy_views(first.states) | left_over
    if spec.online is not None and update is not None:
        spec.online.observer(update)
        stream.states |= update.states
    stream.clock = samples.clock
    stream.step += count
    violations = set[str]().union(*(result.violations for result in results))
    warnings = _warnings(violations, samples_outside, 0 if update is None else int(update.alarms.sum()))
    return StepResult(orjson.Fragment(content), last_outputs, warnings, _sum_times(results))


def _warnings(violations: Set[str], samples_outside: int, drift_alarms: int = 0) -> dict[str, Any]:
    fields = {
        "states_outside_ball": sorted(violations),
        "samples_outside_range": samples_outside,
        "drift_alarms": drift_alarms,
    }
    return {name: value for name, value in fields.items() if value}


def update_estimates(
    spec: StreamSpec, states: Mapping[str, Array], x: Array, outputs: Mapping[str, Array]
) -> OnlineUpdate:
    """Return the estimates of streams after samples, without counting them: the request may still fail.

    Args:
        spec: Samples and outputs of the streams, which have estimates.
        states: States of the streams before the samples.
        x: The samples as the graph takes them, ``(streams, samples, ...)``.
        outputs: Outputs of the graph after each sample.
    """
    assert spec.online is not None
    return spec.online.advance(states, x, outputs[QUANTILES])


def calibrate_outputs(spec: StreamSpec, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of steps with the calibration of a recursive head's quantiles."""
    calibrated = dict(outputs)
    if spec.model.rollout is not None and "quantiles" in calibrated:
        calibrated["quantiles"] = spec.model.rollout.calibrate(calibrated["quantiles"])
    return calibrated


def _step_objects(spec: StreamSpec, outputs: Mapping[str, Array], horizon: int | None = None) -> list[dict[str, Any]]:
    """Return outputs ``(1, steps, ...)`` as one object for each step, for JSON.

    Args:
        spec: Samples and outputs of the model's streams.
        outputs: By name.
        horizon: Steps ahead to answer with; default: all.
    """
    # (steps, ...); the JSON writer takes contiguous arrays only.
    rows = {
        name: value[0] if horizon is None else np.ascontiguousarray(value[0, :, :horizon])
        for name, value in outputs.items()
    }
    steps = len(next(iter(rows.values())))
    objects: list[dict[str, Any]] = [{name: value[step] for name, value in rows.items()} for step in range(steps)]
    scores = rows.get("probabilities", rows.get("logits"))
    if spec.labels is not None and scores is not None:
        for step_object, best in zip(objects, scores.argmax(axis=-1).tolist(), strict=True):
            step_object["label"] = spec.labels[best]
    return objects


def _write_json(spec: StreamSpec, outputs: Mapping[str, Array], horizon: int | None) -> tuple[bytes, dict[str, Any]]:
    """Return the objects of all steps as JSON, and the last of them by itself."""
    steps = next(iter(outputs.values())).shape[1]
    parts: list[bytes] = []
    last: dict[str, Any] = {}
    numbers_per_step = sum(value.size // steps for value in outputs.values())
    chunk = min(_STEPS_PER_CHUNK, max(1, _NUMBERS_PER_CHUNK // numbers_per_step))
    for start in range(0, steps, chunk):
        objects = _step_objects(
            spec, {name: value[:, start : start + chunk] for name, value in outputs.items()}, horizon
        )
        # Without the brackets around the chunk.
        parts.append(json_body(objects)[1:-1])
        last = objects[-1]
    # Views would keep the outputs of all steps, and of all that ran with them, for as long as a session lives.
    last = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in last.items()}
    return b"[" + b",".join(parts) + b"]", last


def _sum_times(results: Sequence[InferenceResult]) -> InferenceResult:
    """Return one result with the times of all runs, and without their arrays."""
    return InferenceResult(
        {},
        {},
        set(),
        sum(result.queue_ns for result in results),
        sum(result.compute_ns for result in results),
        max(result.batch_rows for result in results),
    )


async def _roll_out(
    scheduler: Scheduler,
    spec: StreamSpec,
    results: list[InferenceResult],
    samples: PreparedSamples,
    horizon: int,
    caller: Caller,
) -> dict[str, Array]:
    """Return outputs over the horizon after the last sample, ``(1, 1, horizon, ...)``; the stream stays where it is.

    Args:
        scheduler: Runs the steps.
        spec: Samples and outputs of the model's streams.
        results: The result of the last sample; those of the steps ahead are appended.
        samples: The samples.
        horizon: Steps ahead, 2 or more.
        caller: The client that waits.
    """
    model, rollout = spec.model, spec.model.rollout
    assert rollout is not None
    # By output name, an array (1, 1, ...) for each step ahead.
    steps = {name: [value[:, 0]] for name, value in results[0].outputs.items()}
    static = {name: value for name, value in samples.inputs.items() if name == "static"}
    for step in range(1, horizon):
        previous = results[-1]
        future = samples.future if rollout.future_indices else None
        step_inputs = rollout.next_inputs(model, previous.outputs["mean"][:, 0], future, step)
        inputs = {name: value[:, None] for name, value in step_inputs.items()} | static
        results.append(await scheduler.step(model, inputs, previous.states, list(steps), caller=caller))
        for name, values in steps.items():
            values.append(results[-1].outputs[name][:, 0])
    return {name: value[:, None] for name, value in rollout.join_steps(steps).items()}
