"""One WebSocket stream connection: a frame in, its answer out.

It deals with frames and models, but not with ASGI: :mod:`stablernn_server.routes.stream` brings the frames.

A binary frame advances many streams of one version: all of a frame are one row each of stacked arrays, and their states
stay stacked from frame to frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from pydantic import ValidationError

from stablernn_registry import Version
from stablernn_runtime.online_streams import OnlineUpdate
from stablernn_runtime.run_batch import BatchItem
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import StreamFormat, class_labels, select_outputs
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import Array, Caller, InferenceResult
from stablernn_server.codecs.json_values import OFFLOAD_BYTES, json_body, run_in_thread_if_large
from stablernn_server.codecs.stream_frames import LAST, RESTORE, TOKENS, Frame, Layout, encode, stream_numbers
from stablernn_server.errors import InputError, OtherModelError, UnknownModelError, format_validation_error
from stablernn_server.handlers.stream_steps import (
    StepResult,
    advance_stream,
    calibrate_outputs,
    check_sequence,
    parse_static,
    update_estimates,
)
from stablernn_server.http.app_context import AppContext
from stablernn_server.schemas.sessions import TextFrame
from stablernn_server.streams.stream import (
    Rows,
    Stream,
    StreamBatch,
    check_stream_count,
    matches_reference,
    stream_from_snapshot,
)

STREAMS_PER_KIB = 16
"""Streams whose estimates take about as long to update as parsing a KiB of JSON does."""
# :func:`run_in_thread_if_large` counts bytes of JSON. Arrays are copied many times as fast, and signing a token takes
# as long as a KiB more would.
ARRAY_BYTES_PER_BYTE = 16
BYTES_PER_TOKEN = 1024


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
            return await scheduler.submit("step", self.model, batch_item, caller)
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


class StreamConnection:
    """The streams of one socket, and the answers to its frames.

    New streams begin with the version that the socket was opened for. A stream that is restored from a state token goes
    on with the token's version, so that streams of several versions may share a socket after an alias has moved.

    One frame at a time: a frame that fails, or whose task is cancelled, leaves the streams as they were.

    Attributes:
        caller: The client, with the deadline of the frame in flight.
    """

    def __init__(
        self, source: ServedModel | Version, reference: str, outputs: list[str] | None, context: AppContext, client: str
    ) -> None:
        """Begin without streams.

        Args:
            source: The version that new streams begin with; one that is not open carries only streams with tokens.
            reference: The reference by which the client named it.
            outputs: Names of the requested outputs; None: all.
            context: Context of the application.
            client: Identity of the client for limits.

        Raises:
            InputError: If the version does not have one of the outputs.
            ModelLoadError: If the version is not open, and its manifest does not describe its streams.
        """
        self.caller = Caller(client)
        self._source = source
        self._reference = reference
        self._context = context
        self._max_streams = context.settings.max_streams
        self._requested_outputs = outputs
        # By digest. The version of new streams stays; others go with their last stream and release their models.
        self._versions: dict[str, VersionStreams] = {}
        self._first: VersionStreams | None = None
        if isinstance(source, ServedModel):
            self._first = self._open_version(source)
            self._format, self._outputs = self._first.spec.format, self._first.outputs
        else:
            self._format = StreamFormat.of_version(source, context.settings.online_options)
            self._outputs = select_outputs(outputs, self._format.outputs, f"model '{source.ref}'")
        self._layout = Layout(self._format.graph_shape, self._format.dtype)

    def __len__(self) -> int:
        return sum(len(version.batch) for version in self._versions.values())

    @property
    def model(self) -> ServedModel | None:
        """The model of the socket's streams, for logs and metrics; None if there is none yet."""
        return next((version.model for version in self._versions.values()), None)

    def ready_message(self) -> bytes:
        """Return the first message of the server, which describes the streams."""
        source, outputs = self._source, self._format.outputs
        return json_body(
            {
                "model": source.name,
                "model_version": str(source.version),
                "digest": source.digest,
                "sample_shape": list(self._format.sample_shape),
                "patch_stride": self._format.patch_stride,
                "datatype": self._format.datatype,
                "outputs": [{"name": name, "shape": list(outputs[name])} for name in self._outputs],
                "labels": class_labels(source.manifest),
                "max_streams": self._max_streams,
                "new_streams": self._first is not None,
            }
        )

    async def drain_message(self) -> str:
        """Return the last message of the server, with a token of each stream that has begun, by its number."""
        # A stream without samples would begin as well without a token.
        streams = {
            str(number): stream
            for version in self._versions.values()
            for number in version.batch.numbers
            if (stream := version.batch.stream(number)).step
        }

        def write() -> str:
            tokens = {number: self._issue_token(stream) for number, stream in streams.items()}
            return json_body({"closing": True, "state_tokens": tokens}).decode()

        return await run_in_thread_if_large(BYTES_PER_TOKEN * len(streams), write)

    async def binary(self, content: bytes) -> bytes:
        """Return the answer to a binary frame.

        Raises:
            ServerError: If the frame is malformed, does not fit a model, or cannot be run.
        """
        flags, count, steps = self._layout.head(content)
        settings = self._context.settings
        # By the head alone: arrays of a size that is refused are not even read.
        if self._first is not None:
            settings.check_samples(count, steps, self._first.spec.count_elements(count, steps))
        check_stream_count(count, self._max_streams)
        numbers = stream_numbers(content, count)
        restored: dict[int, Stream] = {}
        if flags & RESTORE:
            texts = self._layout.tokens(content, flags, count, steps)
            tokens = {number: token for number, token in zip(numbers, texts, strict=True) if token}
            restored = dict(zip(tokens, await self._restore_streams(list(tokens.values())), strict=True))
        try:
            groups = self._group_by_version(numbers, restored)
            for version in groups:
                if version is not self._first:
                    self._check_layout(version)
                    settings.check_samples(count, steps, version.spec.count_elements(count, steps))
                if version.spec.covariates.calendar_features:
                    raise InputError(
                        f"The model '{version.model.name}' needs the position of each step in the calendar, which a "
                        "binary frame does not give; send text frames with time."
                    )
            frame = self._layout.read(content, flags, count, steps)
            return await self._advance(frame, groups, restored)
        finally:
            self._drop_empty_versions()

    async def _advance(
        self, frame: Frame, groups: Mapping[VersionStreams, list[int]], restored: Mapping[int, Stream]
    ) -> bytes:
        """Take a frame for all of its streams, or for none, and return the answer."""
        lengths = {version: len(version.batch) for version in groups}
        # Copies of streams that restored ones replace, to put back if the frame fails.
        replaced: dict[VersionStreams, list[tuple[int, Stream]]] = {version: [] for version in groups}
        advances = []
        try:
            for version, positions in groups.items():
                batch, part = version.batch, frame if len(groups) == 1 else frame.select(positions)
                restored_numbers = [number for number in part.numbers if number in restored] if restored else []
                replaced[version] = [(number, batch.copy(number)) for number in restored_numbers if number in batch]
                rows = batch.claim(part.numbers)
                for number in restored_numbers:
                    batch.put(number, restored[number])
                advances.append(await version.advance(part, rows, positions, self._context.scheduler, self.caller))
            answer = await self._encode(frame, advances)
        except BaseException:
            for version, copies in replaced.items():
                for number, stream in copies:
                    version.batch.put(number, stream)
                version.batch.truncate(lengths[version])
            raise
        # Last, and without an await: until the answer is encoded, the frame may still fail or be cancelled.
        for advance in advances:
            advance.commit()
        for number, stream in restored.items():
            self._drop_from_others(number, stream.model)
        return answer

    async def _encode(self, frame: Frame, advances: Sequence[PendingAdvance]) -> bytes:
        """Return the answer to a frame, whose streams may belong to several versions."""
        if len(advances) == 1:
            (advance,) = advances
            step_counts, outputs, streams = advance.steps, advance.outputs, advance.streams
        else:
            # Back from the order of the versions to that of the frame.
            order = np.argsort([position for advance in advances for position in advance.positions])
            all_steps = [count for advance in advances for count in advance.steps]
            all_streams = [stream for advance in advances for stream in advance.streams]
            step_counts = [all_steps[index] for index in order]
            outputs = [_concatenate(arrays)[order] for arrays in zip(*(each.outputs for each in advances), strict=True)]
            streams = [all_streams[index] for index in order] if all_streams else []

        def write() -> bytes:
            return encode(frame.flags, step_counts, outputs, [self._issue_token(stream) for stream in streams])

        output_bytes = frame.streams * frame.steps * advances[0].version.step_bytes
        size = output_bytes // ARRAY_BYTES_PER_BYTE + BYTES_PER_TOKEN * len(streams)
        # Small answers skip the coroutine of `run_in_thread_if_large`, too.
        return await run_in_thread_if_large(size, write) if size > OFFLOAD_BYTES else write()

    def _open_version(self, model: ServedModel) -> VersionStreams:
        """Return the streams of a version on this socket, begun with the first of them."""
        version = self._versions.get(model.digest)
        if version is None:
            version = self._versions[model.digest] = VersionStreams(model, self._requested_outputs, self._max_streams)
        return version

    def _group_by_version(
        self, numbers: Sequence[int], restored: Mapping[int, Stream]
    ) -> dict[VersionStreams, list[int]]:
        """Return the positions of streams in a frame by the version that they belong to.

        Raises:
            UnknownModelError: If a stream is new, and streams of the version do not begin here.
            TooManyError: If they would be more than a socket may carry.
        """
        if not restored:
            for version in self._versions.values():
                # The fast path: all streams are of one version, or begin with the only one.
                is_only = version is self._first and len(self._versions) == 1
                if is_only or all(map(version.batch.__contains__, numbers)):
                    return {version: list(range(len(numbers)))}
        groups: dict[VersionStreams, list[int]] = {}
        new_streams = 0
        for position, number in enumerate(numbers):
            current = self._find_version(number)
            new_streams += current is None
            if number in restored:
                current = self._open_version(restored[number].model)
            groups.setdefault(current or self._version_of_new(number), []).append(position)
        check_stream_count(len(self) + new_streams, self._max_streams)
        return groups

    def _find_version(self, number: int) -> VersionStreams | None:
        return next((version for version in self._versions.values() if number in version.batch), None)

    def _version_of_new(self, number: int) -> VersionStreams:
        """Return the version that a new stream begins with.

        Raises:
            UnknownModelError: If the socket's version is not served.
        """
        if self._first is None:
            source = self._source
            raise UnknownModelError(
                f"The stream {number} cannot begin: version {source.version} of the model '{source.name}' is not "
                "served any more, only its earlier streams go on. Give the stream's state_token, or open a socket with "
                f"model={source.name} for new streams."
            )
        return self._first

    def _check_layout(self, version: VersionStreams) -> None:
        """Raise unless binary frames of a version are laid out as the ready message says.

        Raises:
            OtherModelError: If they are not.
        """
        layouts = [
            (form.graph_shape, form.dtype, form.patch_stride, [(name, form.outputs[name]) for name in names])
            for form, names in ((self._format, self._outputs), (version.spec.format, version.outputs))
        ]
        if layouts[0] != layouts[1]:
            raise OtherModelError(
                f"Binary frames of this socket are laid out for model '{self._source.ref}', whose samples or outputs "
                f"are not those of {version.model.label}; send text frames, or open a socket with "
                f"model={version.model.ref}."
            )

    def _drop_from_others(self, number: int, model: ServedModel) -> None:
        """Drop the stream of a number from all versions but that of ``model``."""
        for digest, version in self._versions.items():
            if digest != model.digest:
                version.batch.drop(number)

    def _drop_empty_versions(self) -> None:
        if len(self._versions) > 1 or self._first is None:
            # A list, since entries are deleted in the loop.
            for digest, version in list(self._versions.items()):
                if version is not self._first and not len(version.batch):
                    del self._versions[digest]

    async def text(self, content: dict[str, Any], size: int, /) -> str:
        """Return the answer to a text frame.

        Args:
            content: From :func:`parse_frame`.
            size: Bytes of the frame.

        Raises:
            ServerError: As :meth:`binary`.
        """
        try:
            frame = TextFrame.model_validate(content)
        except ValidationError as error:
            raise InputError(format_validation_error(error, "the frame")) from error
        try:
            return await self._answer_text(frame, size)
        finally:
            self._drop_empty_versions()

    async def _answer_text(self, frame: TextFrame, size: int) -> str:
        number = frame.stream
        header: dict[str, Any] = {"stream": number} | ({} if frame.id is None else {"id": frame.id})
        version = self._find_version(number)
        if frame.close and frame.values is None:
            _check_close(frame)
            if version is None:
                raise InputError(f"The stream {number} is not open on this socket; there is nothing to close.")
            if not frame.token:
                return json_body(header | {"step": version.batch.drop(number), "closed": True}).decode()
        if version is None:
            check_stream_count(len(self) + 1, self._max_streams)
        if frame.state_token is not None:
            (stream,) = await self._restore_streams([frame.state_token])
            version = self._open_version(stream.model)
            length = len(version.batch)
        else:
            version = version or self._version_of_new(number)
            # Before `stream`, which begins a new one.
            length = len(version.batch)
            stream = version.batch.stream(number)
        try:
            result = await self._apply(frame, stream, version, size)
            answer = self._write_text(header, frame, stream, result)
            version.batch.put(number, stream)
        except BaseException:
            # A stream that began with this frame has not begun.
            version.batch.truncate(length)
            raise
        self._drop_from_others(number, stream.model)
        if frame.close:
            version.batch.drop(number)
        return answer

    async def _apply(self, frame: TextFrame, stream: Stream, version: VersionStreams, size: int) -> StepResult | None:
        """Set the static values of a text frame and run its samples; None without samples."""
        if frame.static is not None:
            if stream.step:
                raise InputError(
                    f"static is for the beginning of a stream, and stream {frame.stream} has taken {stream.step} "
                    "samples; leave it out."
                )
            stream.static = parse_static(version.spec, frame.static)
        if frame.values is None:
            if frame.state_token is None and frame.static is None and not frame.token:
                raise InputError("The frame is empty: give values, state_token, static, token or close.")
            return None
        context = self._context
        settings, names = context.settings, version.outputs
        return await advance_stream(context.scheduler, stream, frame, settings, self.caller, names, size=size)

    def _write_text(self, header: dict[str, Any], frame: TextFrame, stream: Stream, result: StepResult | None) -> str:
        content = header | {"model": stream.model.name, "model_version": str(stream.model.version)}
        if result is not None:
            content |= {"outputs": result.outputs, **result.warnings}
        content["step"] = stream.step
        if frame.token:
            content["state_token"] = self._issue_token(stream)
        if frame.close:
            content["closed"] = True
        return json_body(content).decode()

    async def _restore_streams(self, tokens: Sequence[str]) -> list[Stream]:
        """Return the streams of state tokens, each with the version that it began with.

        Raises:
            BadTokenError, ExpiredTokenError: As :meth:`.StateTokens.read`.
            OtherModelError: If a token is of another model than the socket.
            VersionGoneError, DeadlineError: As :meth:`.ModelRepository.find_by_digest`.
        """
        size = sum(map(len, tokens)) + BYTES_PER_TOKEN * len(tokens)
        snapshots = await run_in_thread_if_large(
            size, lambda: [self._context.state_keys.read(token) for token in tokens]
        )
        models: dict[str, ServedModel] = {digest: version.model for digest, version in self._versions.items()}
        for snapshot in snapshots:
            if not matches_reference(snapshot, self._reference):
                raise OtherModelError(
                    f"The state token is of '{snapshot.model}', this socket streams model '{self._source.ref}'; open "
                    f"one with model={snapshot.model}."
                )
            if snapshot.digest not in models:
                name, _, number = snapshot.model.rpartition(":")
                models[snapshot.digest] = await self._context.models.find_by_digest(
                    snapshot.digest, name, int(number), self.caller.deadline
                )
        return await run_in_thread_if_large(
            size, lambda: [stream_from_snapshot(snapshot, models[snapshot.digest]) for snapshot in snapshots]
        )

    def _issue_token(self, stream: Stream) -> str:
        return self._context.state_keys.issue(stream.snapshot())


def _concatenate(arrays: Sequence[Array]) -> Array:
    """Return ``(streams, steps, ...)`` of several versions in one array, NaN where one has fewer steps."""
    step_count = max(array.shape[1] for array in arrays)
    padded = np.full((sum(map(len, arrays)), step_count, *arrays[0].shape[2:]), np.nan, np.float32)
    start = 0
    for array in arrays:
        padded[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return padded


def _check_close(frame: TextFrame) -> None:
    """Raise if a frame without values has a field that the end of the stream makes void."""
    for name, field in TextFrame.model_fields.items():
        value = getattr(frame, name)
        # Arrays are no defaults, and have no truth value.
        is_set = isinstance(value, np.ndarray) or value != field.default
        if is_set and name not in ("stream", "id", "token", "close"):
            raise InputError(f"close ends the stream, and without values {name} has no effect; leave it out.")
