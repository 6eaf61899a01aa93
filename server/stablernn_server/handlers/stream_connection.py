"""What is said over one WebSocket: a frame in, its answer out.

Knows frames and models, but nothing of ASGI; :mod:`stablernn_server.routes.stream` brings the frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from stablernn_registry import Version
from stablernn_runtime.run_batch import BatchItem
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import StreamFormat, chosen_outputs, labels_of
from stablernn_runtime.validation import ignore_first_dt
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.codecs.json_values import json_body
from stablernn_server.codecs.stream_frames import LAST, RESTORE, TOKENS, Frame, Layout, encode, stream_numbers
from stablernn_server.errors import InputError, OtherModelError, TooManyError, UnknownModelError, sentence_of
from stablernn_server.handlers.stream_steps import (
    Stepped,
    advance,
    calibrated,
    check_sequence,
    check_size,
    static_values,
)
from stablernn_server.http.app_context import AppContext
from stablernn_server.http.offload import OFFLOAD_BYTES, offload
from stablernn_server.schemas.sessions import TextFrame
from stablernn_server.streams.stream import Stream, is_named, resumed
from stablernn_server.streams.stream_batch import Rows, StreamBatch

Array = NDArray[Any]

# What :func:`offload` asks for are bytes of JSON. Arrays are copied many times as fast, and to sign a token
# takes as long as a KiB more would.
ARRAY_BYTES_PER_BYTE = 16
BYTES_PER_TOKEN = 1024


class _VersionStreams:
    """The streams of one version on a socket.

    Attributes:
        model: The version.
        table: Its streams.
        plan: What they take and answer.
        outputs: Names of what each step answers with, in the order of binary answers.
        step_bytes: Bytes of the outputs of one step of one stream.
    """

    def __init__(self, model: ServedModel, outputs: list[str] | None, most: int) -> None:
        self.model = model
        self.table = StreamBatch(model, most)
        self.plan = self.table.plan
        self.outputs = self.plan.chosen(outputs)
        self.step_bytes = sum(4 * prod(self.plan.outputs[name]) for name in self.outputs)


@dataclass(slots=True)
class _Advance:
    """Streams of one version as they will be once a binary frame is taken.

    Attributes:
        streams: The streams of the version.
        places: Where they are in the frame.
        rows: Their rows in the table of the version.
        indices: Likewise, as numbers.
        taken: Samples that each has taken.
        outputs: ``(streams, steps, ...)``, in the order of the answer.
        states: By input name.
        clocks: Of those that have one, by stream number.
        snapshots: The streams themselves, where their tokens are wanted.
    """

    streams: _VersionStreams
    places: list[int]
    rows: Rows
    indices: list[int]
    taken: list[int]
    outputs: list[Array]
    states: dict[str, Array]
    clocks: dict[int, Clock]
    snapshots: list[Stream]

    def commit(self) -> None:
        """Let the streams go on from here."""
        table = self.streams.table
        table.keep(self.rows, self.states)
        for row, step in zip(self.indices, self.taken, strict=True):
            table.steps[row] = step
        if self.clocks:
            table.set_clocks(self.clocks)


class Conversation:
    """What one socket says and is told: a frame in, its answer out.

    New streams begin with the version that the socket was opened for. A stream that is restored from a state token goes
    on with the token's version, so that streams of several versions may share a socket after an alias has moved.

    One frame at a time: a frame that fails, or whose task is cancelled, leaves the streams as they were.

    Attributes:
        caller: Who waits for the frame in hand, and for how long.
    """

    def __init__(
        self, source: ServedModel | Version, reference: str, outputs: list[str] | None, context: AppContext, client: str
    ) -> None:
        """Begin without streams.

        Args:
            source: The version that new streams begin with; one that is not open carries only streams with tokens.
            reference: What the client called it.
            outputs: Names of the wanted outputs; None: all.
            context: Of the application.
            client: What tells the client from others.

        Raises:
            InputError: If an output is asked for that the version does not have.
            ModelLoadError: If the version is not open, and its manifest does not describe its streams.
        """
        self.caller = Caller(client)
        self._source = source
        self._reference = reference
        self._context = context
        self._most = context.settings.max_streams
        self._wanted_outputs = outputs
        # By digest. That of new streams stays, others go with their last stream and let go of their models.
        self._versions: dict[str, _VersionStreams] = {}
        self._first: _VersionStreams | None = None
        if isinstance(source, ServedModel):
            self._first = self._streams_of(source)
            self._format, self._outputs = self._first.plan.format, self._first.outputs
        else:
            self._format = StreamFormat.of_version(source)
            self._outputs = chosen_outputs(outputs, self._format.outputs, f"model '{source.ref}'")
        self._layout = Layout(self._format.graph_shape, self._format.dtype)

    def __len__(self) -> int:
        return sum(len(streams.table) for streams in self._versions.values())

    @property
    def model(self) -> ServedModel | None:
        """The model of the socket's streams, for logs and metrics; None if there is none yet."""
        return next((streams.model for streams in self._versions.values()), None)

    def hello(self) -> bytes:
        """What the server says first."""
        source, outputs = self._source, self._format.outputs
        return json_body(
            {
                "model": source.name,
                "model_version": str(source.version),
                "digest": source.digest,
                "sample_shape": list(self._format.sample_shape),
                "datatype": self._format.datatype,
                "outputs": [{"name": name, "shape": list(outputs[name])} for name in self._outputs],
                "labels": labels_of(source.manifest),
                "max_streams": self._most,
                "new_streams": self._first is not None,
            }
        )

    async def goodbye(self) -> str:
        """What the server says last: a token of each stream that has begun, by its number."""
        begun = {
            str(number): stream
            for streams in self._versions.values()
            for number in streams.table.numbers
            if (stream := streams.table.stream(number)).step
        }

        def text() -> str:
            tokens = {number: self._token(stream) for number, stream in begun.items()}
            return json_body({"closing": True, "state_tokens": tokens}).decode()

        return await offload(BYTES_PER_TOKEN * len(begun), text)

    async def binary(self, content: bytes) -> bytes:
        """The answer to a binary frame.

        Raises:
            ServerError: Whatever stands in the way.
        """
        flags, count, steps = self._layout.head(content)
        settings = self._context.settings
        if self._first is not None:
            check_size(self._first.plan, count, steps, settings)
        # Before anything of that size is read.
        self._check_room(count)
        numbers = stream_numbers(content, count)
        restored: dict[int, Stream] = {}
        if flags & RESTORE:
            texts = self._layout.tokens(content, flags, count, steps)
            tokens = {number: token for number, token in zip(numbers, texts, strict=True) if token}
            restored = dict(zip(tokens, await self._resumed(list(tokens.values())), strict=True))
        try:
            groups = self._groups(numbers, restored)
            for streams in groups:
                if streams is not self._first:
                    self._check_layout(streams)
                    check_size(streams.plan, count, steps, settings)
                if streams.plan.covariates.made:
                    raise InputError(
                        f"The model '{streams.model.name}' is told where in the calendar each step lies, which a "
                        "binary frame does not say; send text frames with time."
                    )
            frame = self._layout.read(content, flags, count, steps)
            return await self._taken(frame, groups, restored)
        finally:
            self._forget_empty()

    async def _taken(
        self, frame: Frame, groups: Mapping[_VersionStreams, list[int]], restored: Mapping[int, Stream]
    ) -> bytes:
        """Take a frame for all of its streams, or for none."""
        began = {streams: len(streams.table) for streams in groups}
        before: dict[_VersionStreams, list[tuple[int, Stream]]] = {streams: [] for streams in groups}
        advances = []
        try:
            for streams, places in groups.items():
                table, part = streams.table, frame if len(groups) == 1 else frame.of(places)
                resumed_here = [number for number in part.numbers if number in restored] if restored else []
                before[streams] = [(number, table.copy(number)) for number in resumed_here if number in table]
                rows = table.claim(part.numbers)
                for number in resumed_here:
                    table.put(number, restored[number])
                advances.append(await self._advanced(streams, part, rows, places))
            encoded = await self._encoded(frame, advances)
        except BaseException:
            for streams, copies in before.items():
                for number, stream in copies:
                    streams.table.put(number, stream)
                streams.table.shrink(began[streams])
            raise
        # Last, and without a pause: until the answer is there, the frame may still fail or be cancelled.
        for advance_ in advances:
            advance_.commit()
        for number, stream in restored.items():
            self._leave_others(number, stream.model)
        return encoded

    async def _advanced(self, streams: _VersionStreams, frame: Frame, rows: Rows, places: list[int]) -> _Advance:
        model, table, plan, count, steps = streams.model, streams.table, streams.plan, frame.streams, frame.steps
        indices = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows
        if frame.sequence is not None:
            for number, row in zip(frame.sequence.tolist(), indices, strict=True):
                check_sequence(number, table.steps[row])
        inputs = {model.input_name: frame.samples}
        if frame.dt is not None:
            inputs["dt"] = _distances(streams, frame.dt, indices)
        if plan.static_size:
            static = table.static(rows)
            inputs["static"] = np.broadcast_to(static[:, None], (count, steps, plan.static_size))
        answer = await self._stepped(streams, inputs, table.states(rows), count, steps, not frame.flags & LAST)
        outputs = answer.outputs if model.rollout is None else calibrated(plan, answer.outputs)
        clocks = {}
        if table.has_clocks:
            dt = inputs.get("dt")
            regular = [float(steps * plan.readings)] * count
            told = regular if dt is None else dt.reshape(count, -1).sum(1, np.float64).tolist()
            clocks = table.ticked(frame.numbers, told)
        taken = [table.steps[row] + steps for row in indices]
        chosen = [outputs[name] for name in streams.outputs]
        snapshots = table.after(rows, taken, answer.states, clocks) if frame.flags & TOKENS else []
        return _Advance(streams, places, rows, indices, taken, chosen, answer.states, clocks, snapshots)

    async def _stepped(
        self,
        streams: _VersionStreams,
        inputs: dict[str, Array],
        states: dict[str, Array],
        count: int,
        steps: int,
        every: bool,
    ) -> InferenceResult:
        scheduler = self._context.scheduler
        # What fails goes the long way, which knows the sentence.
        if streams.plan.accepts(inputs, count, steps):
            part = BatchItem({**inputs, **states}, count, steps, streams.outputs, every)
            return await scheduler.step_prepared(streams.model, part, caller=self.caller)
        if "static" in inputs:
            inputs["static"] = inputs["static"][:, 0]
        return await scheduler.step(streams.model, inputs, states, streams.outputs, caller=self.caller, every=every)

    async def _encoded(self, frame: Frame, advances: Sequence[_Advance]) -> bytes:
        """The answer to a frame, whose streams may belong to several versions."""
        if len(advances) == 1:
            (advance_,) = advances
            taken, outputs, snapshots = advance_.taken, advance_.outputs, advance_.snapshots
        else:
            order = np.argsort([place for each in advances for place in each.places])
            steps = [step for each in advances for step in each.taken]
            streams = [stream for each in advances for stream in each.snapshots]
            taken = [steps[place] for place in order]
            outputs = [np.concatenate(parts)[order] for parts in zip(*(each.outputs for each in advances), strict=True)]
            snapshots = [streams[place] for place in order] if streams else []

        def written() -> bytes:
            return encode(frame.flags, taken, outputs, [self._token(stream) for stream in snapshots])

        output_bytes = frame.streams * frame.steps * advances[0].streams.step_bytes
        size = output_bytes // ARRAY_BYTES_PER_BYTE + BYTES_PER_TOKEN * len(snapshots)
        return await offload(size, written) if size > OFFLOAD_BYTES else written()

    def _streams_of(self, model: ServedModel) -> _VersionStreams:
        """The streams of a version on this socket, begun with the first of them."""
        streams = self._versions.get(model.digest)
        if streams is None:
            streams = self._versions[model.digest] = _VersionStreams(model, self._wanted_outputs, self._most)
        return streams

    def _groups(self, numbers: Sequence[int], restored: Mapping[int, Stream]) -> dict[_VersionStreams, list[int]]:
        """The places of streams in a frame by the version that they belong to.

        Raises:
            UnknownModelError: If a stream is new, and streams of the version do not begin here.
            TooManyError: If they would be more than a socket may carry.
        """
        if not restored:
            for streams in self._versions.values():
                # The fast path: all streams are of one version, or begin with the only one.
                is_only = streams is self._first and len(self._versions) == 1
                if is_only or all(map(streams.table.__contains__, numbers)):
                    return {streams: list(range(len(numbers)))}
        groups: dict[_VersionStreams, list[int]] = {}
        new = 0
        for place, number in enumerate(numbers):
            carrying = self._carrying(number)
            new += carrying is None
            if number in restored:
                carrying = self._streams_of(restored[number].model)
            groups.setdefault(carrying or self._beginning(number), []).append(place)
        self._check_room(len(self) + new)
        return groups

    def _carrying(self, number: int) -> _VersionStreams | None:
        return next((streams for streams in self._versions.values() if number in streams.table), None)

    def _beginning(self, number: int) -> _VersionStreams:
        """The streams that a new one joins.

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

    def _check_layout(self, streams: _VersionStreams) -> None:
        """Raise unless binary frames of a version are laid out as the first message of the socket says.

        Raises:
            OtherModelError: If they are not.
        """
        theirs = streams.plan.format
        layouts = [
            (form.graph_shape, form.dtype, [(name, form.outputs[name]) for name in names])
            for form, names in ((self._format, self._outputs), (theirs, streams.outputs))
        ]
        if layouts[0] != layouts[1]:
            raise OtherModelError(
                f"Binary frames of this socket are laid out for model '{self._source.ref}', whose samples or outputs "
                f"are not those of {streams.model.described}; send text frames, or open a socket with "
                f"model={streams.model.ref}."
            )

    def _check_room(self, count: int) -> None:
        if count > self._most:
            raise TooManyError(
                f"A socket carries at most {self._most} streams, got {count}; close some of them, or open another "
                "socket."
            )

    def _leave_others(self, number: int, model: ServedModel) -> None:
        """Forget what a stream number stood for in other versions than that of ``model``."""
        for digest, streams in self._versions.items():
            if digest != model.digest:
                streams.table.drop(number)

    def _forget_empty(self) -> None:
        if len(self._versions) > 1 or self._first is None:
            for digest, streams in list(self._versions.items()):
                if streams is not self._first and not len(streams.table):
                    del self._versions[digest]

    async def text(self, given: dict[str, Any], size: int) -> str:
        """The answer to a text frame.

        Args:
            given: From :func:`parse_frame`.
            size: Bytes that it came in.

        Raises:
            ServerError: As :meth:`binary`.
        """
        try:
            frame = TextFrame.model_validate(given)
        except ValidationError as error:
            raise InputError(sentence_of(error, "the frame")) from error
        try:
            return await self._text(frame, size)
        finally:
            self._forget_empty()

    async def _text(self, frame: TextFrame, size: int) -> str:
        number = frame.stream
        head: dict[str, Any] = {"stream": number} | ({} if frame.id is None else {"id": frame.id})
        streams = self._carrying(number)
        if frame.close and frame.values is None:
            _check_close(frame)
            if streams is None:
                raise InputError(f"The stream {number} is not open on this socket; there is nothing to close.")
            if not frame.token:
                return json_body(head | {"step": streams.table.drop(number), "closed": True}).decode()
        if streams is None:
            self._check_room(len(self) + 1)
        if frame.state_token is not None:
            (stream,) = await self._resumed([frame.state_token])
            streams = self._streams_of(stream.model)
            began = len(streams.table)
        else:
            streams = streams or self._beginning(number)
            began = len(streams.table)
            stream = streams.table.stream(number)
        try:
            stepped = await self._moved(frame, stream, streams, size)
            answer = self._described(head, frame, stream, stepped)
            streams.table.put(number, stream)
        except BaseException:
            streams.table.shrink(began)
            raise
        self._leave_others(number, stream.model)
        if frame.close:
            streams.table.drop(number)
        return answer

    async def _moved(self, frame: TextFrame, stream: Stream, streams: _VersionStreams, size: int) -> Stepped | None:
        """Do to a stream what a text frame says."""
        if frame.static is not None:
            if stream.step:
                raise InputError(
                    f"static is for the beginning of a stream, and stream {frame.stream} has taken {stream.step} "
                    "samples; leave it out."
                )
            stream.static = static_values(streams.plan, frame.static)
        if frame.values is None:
            if frame.state_token is None and frame.static is None and not frame.token:
                raise InputError("The frame says nothing: give values, state_token, static, token or close.")
            return None
        context = self._context
        settings, names = context.settings, streams.outputs
        return await advance(context.scheduler, stream, frame, settings, self.caller, names, size=size)

    def _described(self, head: dict[str, Any], frame: TextFrame, stream: Stream, stepped: Stepped | None) -> str:
        head |= {"model": stream.model.name, "model_version": str(stream.model.version)}
        if stepped is not None:
            head["outputs"] = stepped.outputs
            if stepped.outside:
                head["states_outside_ball"] = stepped.outside
        head["step"] = stream.step
        if frame.token:
            head["state_token"] = self._token(stream)
        if frame.close:
            head["closed"] = True
        return json_body(head).decode()

    async def _resumed(self, tokens: Sequence[str]) -> list[Stream]:
        """The streams of state tokens, each with the version that it began with.

        Raises:
            BadTokenError, ExpiredTokenError: As :meth:`.StateTokens.read`.
            OtherModelError: If a token is of another model than the socket.
            VersionGoneError, DeadlineError: As :meth:`.ModelTable.by_digest`.
        """
        size = sum(map(len, tokens)) + BYTES_PER_TOKEN * len(tokens)
        portables = await offload(size, lambda: [self._context.state_keys.read(token) for token in tokens])
        models: dict[str, ServedModel] = {digest: streams.model for digest, streams in self._versions.items()}
        for portable in portables:
            if not is_named(portable, self._reference):
                raise OtherModelError(
                    f"The state token is of '{portable.model}', this socket streams model '{self._source.ref}'; open "
                    f"one with model={portable.model}."
                )
            if portable.digest not in models:
                name, _, number = portable.model.rpartition(":")
                deadline = self.caller.deadline
                model = await self._context.models.by_digest(portable.digest, name, int(number), deadline)
                models[portable.digest] = model
        return await offload(size, lambda: [resumed(portable, models[portable.digest]) for portable in portables])

    def _token(self, stream: Stream) -> str:
        return self._context.state_keys.issue(stream.portable())


def _distances(streams: _VersionStreams, dt: Array, rows: Sequence[int]) -> Array:
    if not streams.plan.takes_dt:
        raise InputError(
            f"dt: the model '{streams.model.name}' was trained on regular steps and takes no dt; leave it out."
        )
    dt = dt.astype(np.float32)
    begins = [position for position, row in enumerate(rows) if not streams.table.steps[row]]
    ignore_first_dt(dt, begins, streams.model.max_dt)
    return dt


def _check_close(frame: TextFrame) -> None:
    """Raise if a frame without values says something that the end of the stream would make void."""
    said = frame.model_dump(exclude_defaults=True).keys() - {"stream", "id", "token", "close"}
    for name in TextFrame.model_fields:
        if name in said:
            raise InputError(f"close ends the stream, and without values {name} has no effect; leave it out.")
