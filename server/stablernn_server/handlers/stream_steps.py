"""Steps of one stream, whatever they came by: from what a client sent to arrays, through the graph, to what it gets.

No HTTP here. The fast lane of many streams in one binary frame is :mod:`stablernn_server.handlers.stream_connection`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from stablernn_runtime.stream_clock import Clock, Moment, as_moments, checked
from stablernn_runtime.stream_spec import StreamSpec, stream_spec
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.codecs.json_arrays import MAX_LEVELS, to_array
from stablernn_server.codecs.json_values import json_body
from stablernn_server.errors import DuplicateStepError, InputError, SkippedStepError, TooLargeError
from stablernn_server.handlers.covariates import read_future, read_static
from stablernn_server.http.offload import offload
from stablernn_server.schemas.sessions import Samples
from stablernn_server.settings import Settings
from stablernn_server.streams.stream import Stream, owned

Array = NDArray[Any]
_NUMBERS_AT_ONCE = 2**14
_STEPS_AT_ONCE = 256
"""What is written at once, at most: the writer of JSON lets no other thread run meanwhile."""


@dataclass(slots=True)
class Ready:
    """Samples that were found right.

    Attributes:
        inputs: Of the step graph, with axes over the one row and the steps.
        future: What is known of the whole horizon after the last sample, ``(1, horizon, names)``; for roll-outs.
        clock: Of the stream after them.
        count: How many.
    """

    inputs: dict[str, Array]
    future: Array | None
    clock: Clock
    count: int


@dataclass(slots=True)
class Stepped:
    """What came of samples.

    Attributes:
        outputs: JSON: an array of an object for each answered step, its outputs by name and the label of a classifier.
        last: The object of the last step; it keeps nothing else alive.
        outside: States that came to lie outside their certified balls.
        work: How long the runs waited and took, those of a roll-out together; without their arrays.
    """

    outputs: orjson.Fragment
    last: dict[str, Any]
    outside: list[str]
    work: InferenceResult


async def advance(
    scheduler: Scheduler,
    stream: Stream,
    request: Samples,
    settings: Settings,
    caller: Caller,
    names: Sequence[str] | None = None,
    *,
    size: int = 0,
) -> Stepped:
    """Lead a stream on; it is changed only when all of it went well.

    Args:
        scheduler: Runs the steps.
        stream: The stream; nobody else may lead it on at the same time.
        request: The samples, and how to answer.
        settings: The limits of one request.
        caller: Who waits.
        names: The wanted outputs; default: all.
        size: Bytes that the request came in: large ones are checked on a thread.

    Raises:
        DuplicateStepError: If the stream has taken the first of the samples already.
        SkippedStepError: If samples before them are missing.
        TimeOrderError: If a time does not lie after the one before, or on no regular step.
        MissingStepsError: If regular steps are left out.
        InputError: If the samples do not fit the model, or lead to an output that is not finite.
        TooLargeError: If they are above a limit.
    """
    model, plan = stream.model, stream_spec(stream.model)
    check_sequence(request.sequence, stream.step)
    count = _count(plan, request.values)
    check_size(plan, 1, count, settings)
    # A number, and a time, are about so long as text.
    size = max(size, count * (8 * prod(plan.sample_shape) + 32))
    ready = await offload(size, lambda: _ready(plan, stream, request, count))
    horizon = _horizon(plan, request, ready.count)
    wanted = list(plan.outputs) if names is None else list(names)
    # A roll-out feeds the mean back, whether it is asked for or not.
    run = wanted if horizon <= 1 or "mean" in wanted else [*wanted, "mean"]
    first = await scheduler.step(
        model, ready.inputs, stream.states, run, caller=caller, every=request.every and horizon <= 1
    )
    answers = [first]
    if horizon > 1:
        outputs = await _rolled_out(scheduler, plan, answers, ready, horizon, caller)
    else:
        outputs = calibrated(plan, first.outputs)
    given = None if request.horizon is None or model.rollout is not None else request.horizon
    chosen = {name: outputs[name] for name in wanted}
    # Each object and each array in it costs about as much as so many bytes of numbers.
    size = sum(value.nbytes + 64 * value.shape[1] for value in chosen.values())
    content, last = await offload(size, lambda: _written(plan, chosen, given))
    stream.states = owned(first.states)
    stream.clock = ready.clock
    stream.step += ready.count
    outside = set[str]().union(*(answer.violations for answer in answers))
    return Stepped(orjson.Fragment(content), last, sorted(outside), _together(answers))


def check_sequence(number: int | None, step: int) -> None:
    """Raise unless ``number`` is the next sample of a stream that has taken ``step``.

    Raises:
        DuplicateStepError: If it was taken already.
        SkippedStepError: If others are due before it.
    """
    if number is None or number == step + 1:
        return
    if number <= step:
        raise DuplicateStepError(
            f"The stream has taken {step} samples, sample {number} among them; it was not taken again. Go on with "
            f"sequence {step + 1}."
        )
    raise SkippedStepError(
        f"The stream has taken {step} samples, so sequence must be {step + 1}, got {number}: send the samples between "
        "first, with null values where there are none."
    )


def calibrated(plan: StreamSpec, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of steps, with what calibration adds to the quantiles of a recursive head."""
    found = dict(outputs)
    if plan.model.rollout is not None and "quantiles" in found:
        found["quantiles"] = plan.model.rollout.calibrated(found["quantiles"])
    return found


def as_objects(plan: StreamSpec, outputs: Mapping[str, Array], horizon: int | None = None) -> list[dict[str, Any]]:
    """Outputs ``(1, steps, ...)`` as one object for each step, for JSON.

    Args:
        plan: Of the model.
        outputs: By name.
        horizon: Steps ahead to answer with; default: all.
    """
    cut = {
        name: value[0] if horizon is None else np.ascontiguousarray(value[0, :, :horizon])
        for name, value in outputs.items()
    }
    steps = len(next(iter(cut.values())))
    objects: list[dict[str, Any]] = [{name: value[step] for name, value in cut.items()} for step in range(steps)]
    scores = cut.get("probabilities", cut.get("logits"))
    if plan.labels is not None and scores is not None:
        for found, best in zip(objects, scores.argmax(axis=-1).tolist(), strict=True):
            found["label"] = plan.labels[best]
    return objects


def _written(plan: StreamSpec, outputs: Mapping[str, Array], horizon: int | None) -> tuple[bytes, dict[str, Any]]:
    """The objects of all steps as JSON, and the last of them by itself."""
    steps = next(iter(outputs.values())).shape[1]
    parts: list[bytes] = []
    last: dict[str, Any] = {}
    numbers = sum(value.size // steps for value in outputs.values())
    most = min(_STEPS_AT_ONCE, max(1, _NUMBERS_AT_ONCE // numbers))
    for at in range(0, steps, most):
        objects = as_objects(plan, {name: value[:, at : at + most] for name, value in outputs.items()}, horizon)
        parts.append(json_body(objects)[1:-1])
        last = objects[-1]
    # Views would keep the outputs of all steps, and of all that ran with them, for as long as a session lives.
    last = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in last.items()}
    return b"[" + b",".join(parts) + b"]", last


def _together(answers: Sequence[InferenceResult]) -> InferenceResult:
    return InferenceResult(
        {},
        {},
        set(),
        sum(answer.queue_ns for answer in answers),
        sum(answer.compute_ns for answer in answers),
        max(answer.batch_rows for answer in answers),
    )


def _ready(plan: StreamSpec, stream: Stream, request: Samples, count: int) -> Ready:
    values = _values(plan, request.values, count)
    dt, clock, seconds = _times(plan, stream, request, count)
    x, waves = values, None if seconds is None else plan.covariates.waves(seconds)
    ahead = plan.model.manifest.horizon or 0
    if waves is not None:
        features = plan.model.manifest.features
        x = np.zeros((count, *plan.graph_shape), np.float32)
        x[..., [features.index(name) for name in plan.covariates.observed]] = values
        made = waves[: count * plan.readings].reshape(*x.shape[:-1], -1)
        x[..., [features.index(name) for name in plan.covariates.made]] = made
    inputs = {plan.model.input_name: x[None]}
    if dt is not None:
        inputs["dt"] = dt[None]
    if stream.static is not None:
        inputs["static"] = stream.static
    future = _future(plan, request, count)
    if waves is not None:
        ends = [(step + 1) * plan.readings for step in range(count)]
        future = plan.covariates.with_waves(future, np.stack([waves[end : end + ahead] for end in ends]))
    if not plan.model.manifest.future:
        return Ready(inputs, None, clock, count)
    inputs["future"] = future[None, :, : 1 if plan.model.rollout else None]
    return Ready(inputs, future[None, -1], clock, count)


def static_values(plan: StreamSpec, static: dict[str, Any] | None) -> Array:
    """Return static values by name as ``(1, names)``, NaN where one is not known.

    Raises:
        InputError: If a name is unknown or a value is no number.
    """
    return np.array([read_static(plan.covariates, static, "static")], np.float32)


def check_size(plan: StreamSpec, rows: int, steps: int, settings: Settings) -> None:
    """Raise if ``steps`` samples of each of ``rows`` streams are above a limit of the settings.

    Raises:
        TooLargeError: With the numbers.
    """
    if steps > settings.max_steps:
        raise TooLargeError(f"{steps} samples at a time are more than the limit of {settings.max_steps}; send fewer.")
    if (elements := rows * steps * plan.model.step_numbers) > settings.max_elements:
        raise TooLargeError(
            f"{steps} samples of {rows} streams make {elements} numbers with outputs and states, the limit is "
            f"{settings.max_elements}; send fewer at a time."
        )


def _count(plan: StreamSpec, given: Any) -> int:
    """How many samples ``values`` of a request are, by the lengths of its first arrays: no number is looked at."""
    shape = plan.sample_shape
    form = f"[{', '.join(map(str, shape))}]" if shape else "one whole number"
    if given is None:
        raise InputError(f"values is missing: give one sample, {form}, or an array of samples.")
    if not isinstance(given, list):
        return 1
    got: list[int] = []
    level: Any = given
    while isinstance(level, list) and len(got) <= MAX_LEVELS:
        got.append(len(level))
        level = level[0] if level else None
    if 0 not in got:
        if shape and got == list(shape):
            return 1
        if got[1:] == list(shape):
            return got[0]
    names = plan.covariates.observed
    listed = f" ({', '.join(names)})" if shape and len(names) <= 8 else ""
    raise InputError(
        f"values must be one sample of the shape {form}{listed} for {plan.model.described}, or an array of several, "
        f"one level more; got the shape {got}."
    )


def _values(plan: StreamSpec, given: Any, count: int) -> Array:
    """``values`` of a request as ``(steps, *sample_shape)``."""
    shape = plan.sample_shape
    array = to_array(given if shape or isinstance(given, list) else [given], "values").reshape(count, *shape)
    if shape:
        return plan.model.check_values("values", array, plan.covariates.observed)
    if array.dtype.kind != "i":
        raise InputError("values must be whole numbers, the places of tokens in the vocabulary, without a point.")
    return array


def _times(plan: StreamSpec, stream: Stream, request: Samples, count: int) -> tuple[Array | None, Clock, Array | None]:
    """``dt`` ``(steps, ...)`` where one is told, the clock after the samples, and the seconds of readings and horizon.

    The last are there for models that are told where in the calendar each step lies.
    """
    model, frequency, readings = plan.model, plan.frequency, count * plan.readings
    given = [] if request.time is None else as_moments(request.time, readings)
    first = stream.step == 0
    dt: Array | None = None
    if request.dt is not None:
        if not plan.takes_dt:
            raise InputError(
                f"dt: the model '{model.name}' was trained on regular steps and takes no dt; leave it out."
            )
        if given:
            raise InputError("time and dt are both given; leave one of them out.")
        dt = _distances(request.dt, plan, count)
        if first:
            ignore_first_dt(dt.reshape(1, -1), [0], model.max_dt)
        clock = _moved(stream.clock, float(dt.sum(dtype=np.float64)))
    elif not plan.takes_dt:
        if len(given) not in (0, 1, count):
            raise InputError(
                f"time must be that of the first of {count} samples, or an array of {count}, got {len(given)} times."
            )
        clock = stream.clock.regular(given, plan.readings, count, frequency)
    elif given:
        if len(given) != readings:
            raise InputError(f"time must hold that of each of the {readings} readings, got {len(given)}.")
        dt, clock = stream.clock.elapsed(given, first, frequency)
        dt = dt.reshape(count, *plan.graph_shape[:-1])
    else:
        clock = _moved(stream.clock, float(readings))
    if not plan.covariates.made:
        return dt, clock, None
    return dt, clock, _seconds(plan, given, clock, readings)


def _seconds(plan: StreamSpec, given: Sequence[Moment], clock: Clock, readings: int) -> Array:
    """Times of the readings and of the steps after the last one, for the calendar."""
    if clock.origin is None:
        periods = " and the ".join(period.name for period in plan.model.manifest.calendar or ())
        raise InputError(
            f"time is missing: the model '{plan.model.name}' is told where in the {periods} each step lies. Give the "
            "time of the sample, at least of the first of the stream."
        )
    ahead = plan.model.manifest.horizon or 0
    if not plan.takes_dt:
        return clock.seconds(1 - readings, readings + ahead, plan.frequency)
    if not given:
        raise InputError(
            "time is missing: give the time of each reading, from which its place in the calendar follows."
        )
    past = [checked(moment, plan.frequency) for moment in given]
    return np.concatenate([past, clock.seconds(1, ahead, plan.frequency)])


def _distances(given: Any, plan: StreamSpec, count: int) -> Array:
    """``dt`` of a request as ``(steps, ...)``."""
    shape = (count, *plan.graph_shape[:-1])
    array = to_array(given if isinstance(given, list) else [given], "dt")
    if array.size != count * plan.readings or array.ndim > len(shape):
        each = "sample" if plan.readings == 1 else "reading"
        raise InputError(
            f"dt must hold a number for each {each}, in the shape {list(shape)}, got the shape {list(array.shape)}."
        )
    if not np.isfinite(array).all():
        raise InputError("dt must hold finite numbers, the time since the reading before; none can be missing.")
    # What float32 cannot hold becomes infinite, which no step may be.
    with np.errstate(over="ignore"):
        return array.astype(np.float32).reshape(shape)


def _moved(clock: Clock, steps: float) -> Clock:
    return clock if clock.origin is None else Clock(clock.origin, clock.steps + steps)


def _future(plan: StreamSpec, request: Samples, count: int) -> Array:
    """What the client says of the steps ahead of each sample, ``(steps, horizon, names)``."""
    given = request.future
    if given is None:
        unknown = read_future(plan.covariates, None, "future", 0)
        return np.broadcast_to(unknown, (count, *unknown.shape))
    items: list[Any] = given if isinstance(given, list) else [given]
    if len(items) != count:
        raise InputError(
            f"future must be an array of one object for each of the {count} samples, got {len(items)}; null is not "
            "known."
        )
    asked = request.horizon or (1 if plan.model.rollout else plan.model.manifest.horizon or 0)
    rows = []
    for place, item in enumerate(items):
        what = "future" if count == 1 else f"future.{place}"
        if not isinstance(item, dict | None):
            raise InputError(f"{what} must be an object of arrays by name, or null, got {item!r:.60}.")
        rows.append(read_future(plan.covariates, item, what, asked))
    return np.stack(rows)


def _horizon(plan: StreamSpec, request: Samples, count: int) -> int:
    """Steps ahead to roll out; 0 where the graph answers them all."""
    if request.horizon is None:
        return 0
    model = plan.model
    if model.manifest.task != "forecast":
        raise InputError(f"horizon is for forecasts; the model '{model.name}' was trained for '{model.manifest.task}'.")
    trained = model.manifest.horizon or 1
    if request.horizon > trained:
        raise InputError(
            f"horizon must be at most {trained}, what the model '{model.name}' was trained for, got {request.horizon}."
        )
    if model.rollout is None:
        return 0
    if request.every and count > 1 and request.horizon > 1:
        raise InputError(
            "A recursive head looks further than one step ahead after the last sample alone; send every=false with "
            "horizon, or one sample at a time."
        )
    return request.horizon


async def _rolled_out(
    scheduler: Scheduler, plan: StreamSpec, answers: list[InferenceResult], ready: Ready, horizon: int, caller: Caller
) -> dict[str, Array]:
    """Outputs over the horizon after the last sample, ``(1, 1, horizon, ...)``; the stream's own state stays there.

    Args:
        scheduler: Runs the steps.
        plan: Of the model.
        answers: That of the last sample; those of the steps ahead are put behind it.
        ready: The samples.
        horizon: Steps ahead, 2 or more.
        caller: Who waits.
    """
    model, rollout = plan.model, plan.model.rollout
    assert rollout is not None
    steps = {name: [value[:, 0]] for name, value in answers[0].outputs.items()}
    constant = {name: value for name, value in ready.inputs.items() if name == "static"}
    for step in range(1, horizon):
        before = answers[-1]
        future = ready.future if rollout.known else None
        given = rollout.next_inputs(model, before.outputs["mean"][:, 0], future, step)
        inputs = {name: value[:, None] for name, value in given.items()} | constant
        answers.append(await scheduler.step(model, inputs, before.states, list(steps), caller=caller))
        for name, values in steps.items():
            values.append(answers[-1].outputs[name][:, 0])
    return {name: value[:, None] for name, value in rollout.joined(steps).items()}
