"""One WebSocket stream connection: a frame in, its answer out.

It deals with frames and models, but not with ASGI: :mod:`stablernn_server.routes.stream` brings the frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from stablernn_registry import Version
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_spec import StreamFormat, class_labels, select_outputs
from stablernn_server.arrays import Array
from stablernn_server.batching.types import Caller
from stablernn_server.codecs.json_values import OFFLOAD_BYTES, json_body, run_in_thread_if_large
from stablernn_server.codecs.stream_frames import RESTORE, Frame, Layout, encode, stream_numbers
from stablernn_server.errors import InputError, OtherModelError, UnknownModelError, format_validation_error
from stablernn_server.handlers.stream_inputs import parse_static
from stablernn_server.handlers.stream_steps import StepResult, advance_stream
from stablernn_server.handlers.version_streams import PendingAdvance, VersionStreams
from stablernn_server.http.app_context import AppContext
from stablernn_server.schemas.sessions import TextFrame
from stablernn_server.streams.stream import Stream, matches_reference, stream_from_snapshot
from stablernn_server.streams.stream_batch import check_stream_count

# :func:`run_in_thread_if_large` counts bytes of JSON. Arrays are copied many times as fast, and signing a token takes
# as long as a KiB more would.
ARRAY_BYTES_PER_BYTE = 16
BYTES_PER_TOKEN = 1024


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
            content["outputs"] = result.outputs
            if result.violations:
                content["states_outside_ball"] = result.violations
            if result.samples_outside:
                content["samples_outside_range"] = result.samples_outside
            if result.drift_alarms:
                content["drift_alarms"] = result.drift_alarms
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
