"""Steps of one stream by any transport: from the samples of a request through the graph to the outputs as JSON.

No HTTP here. The fast path for many streams in one binary frame is :mod:`stablernn_server.handlers.stream_connection`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson

from stablernn_runtime.online_streams import QUANTILES, OnlineUpdate
from stablernn_runtime.stream_spec import StreamSpec, stream_spec
from stablernn_server.arrays import Array
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.codecs.json_values import json_body, run_in_thread_if_large
from stablernn_server.handlers.stream_inputs import (
    PreparedSamples,
    check_sequence,
    count_samples,
    parse_horizon,
    prepare_samples,
)
from stablernn_server.schemas.sessions import Samples
from stablernn_server.settings import Settings
from stablernn_server.streams.stream import Stream, copy_views

_NUMBERS_PER_CHUNK = 2**14
_STEPS_PER_CHUNK = 256
"""Most numbers and steps that are written at a time: the JSON writer holds the GIL, and no other thread runs."""


@dataclass(slots=True)
class StepResult:
    """The result of the samples of one request.

    Attributes:
        outputs: JSON: an array of an object for each answered step, its outputs by name and the label of a classifier;
            empty while a patch is not full.
        last_outputs: The object of the last answered step; its arrays are copies. None without one.
        violations: Names of states that left their certified balls.
        samples_outside: Samples of the request outside the certified range of inputs.
        drift_alarms: Alarms of the test for drift that the samples raised.
        inference: Queue and run times, those of a rollout added up; without arrays.
    """

    outputs: orjson.Fragment
    last_outputs: dict[str, Any] | None
    violations: list[str]
    samples_outside: int
    drift_alarms: int
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
    horizon = parse_horizon(spec, request, samples.count)
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
            return StepResult(orjson.Fragment(b"[]"), None, [], samples_outside, 0, inference)
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
    stream.step += samples.count
    violations = set[str]().union(*(result.violations for result in results))
    drift_alarms = 0 if update is None else int(update.alarms.sum())
    return StepResult(
        orjson.Fragment(content), last_outputs, sorted(violations), samples_outside, drift_alarms, _sum_times(results)
    )


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
