"""The streams of one model version on a WebSocket, and how a binary frame advances them.

This is the fast path of streaming: all streams of a frame make one batch item, without a loop over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from stablernn_runtime.online_streams import OnlineUpdate
from stablernn_runtime.run_batch import BatchItem
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.arrays import Array
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.codecs.json_values import run_in_thread_if_large
from stablernn_server.codecs.stream_frames import LAST, TOKENS, Frame
from stablernn_server.errors import InputError
from stablernn_server.handlers.stream_inputs import check_sequence
from stablernn_server.handlers.stream_steps import calibrate_outputs, update_estimates
from stablernn_server.streams.stream import Stream
from stablernn_server.streams.stream_batch import Rows, StreamBatch

STREAMS_PER_KIB = 16
"""Streams whose estimates take about as long to update as parsing a KiB of JSON does."""


class VersionStreams:
    """The streams of one version on a socket.

    Attributes:
        model: The version.
        batch: Its streams.
        spec: Samples and outputs of the streams.
        outputs: Names of the outputs of each step, in the order of binary answers.
        step_bytes: Bytes of the outputs of one step of one stream.
    """

    def __init__(self, model: ServedModel, outputs: list[str] | None, max_streams: int) -> None:
        """Begin without streams.

        Args:
            model: The version.
            outputs: Names of the requested outputs; None: all.
            max_streams: Streams that a socket may carry.

        Raises:
            InputError: If the version does not have one of the outputs.
        """
        self.model = model
        self.batch = StreamBatch(model, max_streams)
        self.spec = self.batch.spec
        self.outputs = self.spec.select_outputs(outputs)
        self.step_bytes = sum(4 * prod(self.spec.outputs[name]) for name in self.outputs)
        self._graph_outputs = self.spec.graph_outputs(self.outputs)

    async def advance(
        self, frame: Frame, rows: Rows, positions: list[int], scheduler: Scheduler, caller: Caller
    ) -> PendingAdvance:
        """Run the samples of a frame; the streams stay where they are until the result is committed.

        Args:
            frame: The part of a frame that belongs to this version.
            rows: Rows of its streams, in the order of the frame.
            positions: Positions of its streams in the whole frame.
            scheduler: Runs the steps.
            caller: The client that waits.

        Raises:
            DuplicateStepError, SkippedStepError: If a sample is not the next one of its stream.
            InputError: If the samples do not fit the model, or lead to an output that is not finite.
            BusyError, TooManyError, DeadlineError, NotReadyError: As :meth:`.Scheduler.run`.
        """
        model, batch, spec, count, steps = self.model, self.batch, self.spec, frame.streams, frame.steps
        indices = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows
        if frame.sequence is not None:
            for number, row in zip(frame.sequence.tolist(), indices, strict=True):
                check_sequence(number, batch.steps[row])
        inputs = {model.input_name: frame.samples}
        if frame.dt is not None:
            inputs["dt"] = self._convert_dt(frame.dt, indices)
        states = batch.states(rows)
        updates: list[OnlineUpdate] = []
        if spec.patches is None:
            outputs, next_states = await self._run_rows(inputs, states, rows, frame, scheduler, caller, updates)
        else:
            collected = spec.collect(states, np.array([batch.steps[row] for row in indices]), inputs)
            results = []
            for group, patches in collected.groups():
                group_states = {name: value[group] for name, value in states.items()}
                group_rows = [indices[position] for position in group.tolist()]
                result = await self._run_rows(patches, group_states, group_rows, frame, scheduler, caller, updates)
                results.append((group, *result))
            outputs, next_states = collected.merge(states, results, {name: spec.outputs[name] for name in self.outputs})
        clocks = {}
        if batch.has_clocks:
            dt = inputs.get("dt")
            # float64, as the steps of a clock.
            elapsed_steps = [float(steps)] * count if dt is None else dt.sum(1, np.float64).tolist()
            clocks = batch.advance_clocks(frame.numbers, elapsed_steps)
        step_counts = [batch.steps[row] + steps for row in indices]
        arrays = [outputs[name] for name in self.outputs]
        # Tokens are signed with the answer, before the streams are committed.
        streams = batch.preview(rows, step_counts, next_states, clocks) if frame.flags & TOKENS else []
        return PendingAdvance(
            self, positions, rows, indices, step_counts, arrays, next_states, clocks, streams, updates
        )

    async def _run_rows(
        self,
        inputs: dict[str, Array],
        states: Mapping[str, Array],
        rows: Rows,
        frame: Frame,
        scheduler: Scheduler,
        caller: Caller,
        updates: list[OnlineUpdate],
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the requested outputs and the states of some streams after steps, and append their estimates.

        Args:
            inputs: Inputs of the step graph, ``(streams, steps, ...)``.
            states: States of the streams before.
            rows: Rows of the streams in the batch of the version.
            frame: The frame.
            scheduler: Runs the steps.
            caller: The client that waits.
            updates: Takes the estimates.
        """
        spec = self.spec
        x = inputs[self.model.input_name]
        streams, steps = x.shape[:2]
        if spec.static_size:
            # (streams, names) to (streams, steps, names), without a copy.
            static = np.broadcast_to(self.batch.static(rows)[:, None], (streams, steps, spec.static_size))
            inputs = {**inputs, "static": static}
        result = await self._run_steps(inputs, spec.model_states(states), frame, scheduler, caller)
        outputs = result.outputs if self.model.rollout is None else calibrate_outputs(spec, result.outputs)
        if spec.online is None:
            return outputs, result.states
        size = 1024 * steps * (1 + streams // STREAMS_PER_KIB)
        update = await run_in_thread_if_large(size, lambda: update_estimates(spec, states, x, outputs))
        updates.append(update)
        outputs = {name: value for name, value in (outputs | update.outputs).items() if name in self.outputs}
        if frame.flags & LAST:
            outputs = {name: value[:, -1:] for name, value in outputs.items()}
        return outputs, result.states | update.states

    async def _run_steps(
        self, inputs: dict[str, Array], states: dict[str, Array], frame: Frame, scheduler: Scheduler, caller: Caller
    ) -> InferenceResult:
        # Estimates are updated with the forecast after each sample, whichever of them are answered.
        every = self.spec.online is not None or not frame.flags & LAST
        streams, steps = inputs[self.model.input_name].shape[:2]
        if self.spec.accepts(inputs, streams, steps):
            batch_item = BatchItem({**inputs, **states}, streams, steps, self._graph_outputs, every)
            return await scheduler.step_prepared(self.model, batch_item, caller=caller)
        # The slow path repeats the checks and raises the error of the one that fails.
        if "static" in inputs:
            inputs["static"] = inputs["static"][:, 0]
        return await scheduler.step(self.model, inputs, states, self._graph_outputs, caller=caller, every=every)

    def _convert_dt(self, dt: Array, rows: Sequence[int]) -> Array:
        if not self.spec.takes_dt:
            raise InputError(
                f"dt: the model '{self.model.name}' was trained on regular steps and takes no dt; leave it out."
            )
        # A copy: the array of a frame is a view of its bytes.
        dt = dt.astype(np.float32)
        new_streams = [position for position, row in enumerate(rows) if not self.batch.steps[row]]
        ignore_first_dt(dt, new_streams, self.model.max_dt)
        return dt


@dataclass(slots=True)
class PendingAdvance:
    """Streams of one version as they will be once a binary frame is committed.

    Attributes:
        version: The streams of the version.
        positions: Positions of its streams in the frame.
        rows: Rows of the streams in the batch of the version.
        indices: The same rows as numbers.
        steps: Samples that each stream will have taken.
        outputs: ``(streams, steps, ...)`` each, in the order of the answer; of a model of patches, with a step for each
            patch, NaN where a stream has filled fewer than another.
        states: By input name.
        clocks: By stream number, of the streams that have one.
        streams: The streams as they will be, where their tokens are wanted.
        updates: The estimates of the streams; none without.
    """

    version: VersionStreams
    positions: list[int]
    rows: Rows
    indices: list[int]
    steps: list[int]
    outputs: list[Array]
    states: dict[str, Array]
    clocks: dict[int, Clock]
    streams: list[Stream]
    updates: list[OnlineUpdate]

    def commit(self) -> None:
        """Let the streams go on from here."""
        batch = self.version.batch
        batch.set_states(self.rows, self.states)
        for row, count in zip(self.indices, self.steps, strict=True):
            batch.steps[row] = count
        if self.clocks:
            batch.set_clocks(self.clocks)
        if self.version.spec.online is not None:
            for update in self.updates:
                self.version.spec.online.observer(update)
