"""What is said over one WebSocket: a frame in, its answer out.

Knows frames and models, but nothing of ASGI; :mod:`stablernn_server.routes.stream` brings the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from stablernn_server.answers import json_body
from stablernn_server.body import parse_object
from stablernn_server.context import Context
from stablernn_server.errors import InputError, OtherModelError, sentence_of
from stablernn_server.frames import LAST, TOKENS, Frame, Layout, encode
from stablernn_server.offloading import OFFLOAD_BYTES, offload
from stablernn_server.runtime.batch import Part
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.scheduler import Answer, Caller
from stablernn_server.schemas.sessions import TextFrame
from stablernn_server.stepping import Stepped, advance, calibrated, check_sequence, check_size
from stablernn_server.stream_table import Rows, StreamTable
from stablernn_server.streams import Stream, resumed

Array = NDArray[Any]

# What :func:`offload` asks for are bytes of JSON. Arrays are copied many times as fast, and to sign a token
# takes as long as a KiB more would.
ARRAY_BYTES_PER_BYTE = 16
BYTES_PER_TOKEN = 1024


class Conversation:
    """What one socket says and is told: a frame in, its answer out.

    One frame at a time: a frame that fails, or whose task is cancelled, leaves the streams as they were.

    Attributes:
        streams: The streams of the socket.
        outputs: Names of what each step answers with, in the order of binary answers.
        caller: Who waits for the frame in hand, and for how long.
    """

    def __init__(self, model: OnnxModel, outputs: list[str] | None, context: Context, client: str) -> None:
        """Begin without streams.

        Args:
            model: The model.
            outputs: Names of the wanted outputs; None: all.
            context: Of the application.
            client: What tells the client from others.

        Raises:
            InputError: If an output is asked for that the model does not have.
        """
        self.streams = StreamTable(model, context.settings.max_streams)
        self.outputs = self.streams.plan.chosen(outputs)
        self.caller = Caller(client)
        self._model = model
        self._context = context
        self._step_bytes = sum(4 * prod(self.streams.plan.outputs[name]) for name in self.outputs)
        self._layout = Layout(self.streams.plan.graph_shape, self.streams.plan.dtype)

    def hello(self) -> bytes:
        """What the server says first."""
        plan = self.streams.plan
        return json_body(
            {
                "model": self._model.name,
                "model_version": str(self._model.version),
                "digest": self._model.digest,
                "sample_shape": list(plan.sample_shape),
                "datatype": plan.datatype,
                "outputs": [{"name": name, "shape": list(plan.outputs[name])} for name in self.outputs],
                "max_streams": self.streams.most,
            }
        )

    async def goodbye(self) -> str:
        """What the server says last: a token of each stream that has begun, by its number."""
        table = self.streams
        begun = {str(number): stream for number in table.numbers if (stream := table.stream(number)).step}

        def text() -> str:
            tokens = {number: self._token(stream) for number, stream in begun.items()}
            return json_body({"closing": True, "state_tokens": tokens}).decode()

        return await offload(BYTES_PER_TOKEN * len(begun), text)

    async def binary(self, content: bytes) -> bytes:
        """The answer to a binary frame.

        Raises:
            ServerError: Whatever stands in the way.
        """
        table, plan = self.streams, self.streams.plan
        flags, count, steps = self._layout.head(content)
        check_size(plan, count, steps, self._context.settings)
        # Before anything of that size is read.
        table.check_room(count)
        if plan.covariates.made:
            raise InputError(
                f"The model '{self._model.name}' is told where in the calendar each step lies, which a binary frame "
                "does not say; send text frames with time."
            )
        frame = self._layout.read(content, flags, count, steps)
        given: dict[int, Stream] = {}
        if frame.tokens is not None:
            texts = {number: token for number, token in zip(frame.numbers, frame.tokens, strict=True) if token}
            given = dict(zip(texts, await self._resumed(list(texts.values())), strict=True))
        began = len(table)
        rows = table.claim(frame.numbers)
        before = {number: table.copy(number) for number in given}
        try:
            for number, stream in given.items():
                table.put(number, stream)
            return await self._advanced(frame, rows)
        except BaseException:
            for number, stream in before.items():
                table.put(number, stream)
            table.shrink(began)
            raise

    async def _advanced(self, frame: Frame, rows: Rows) -> bytes:
        table, plan, count, steps = self.streams, self.streams.plan, frame.streams, frame.steps
        indices = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows
        if frame.sequence is not None:
            for number, row in zip(frame.sequence.tolist(), indices, strict=True):
                check_sequence(number, table.steps[row])
        inputs = {self._model.input_name: frame.samples}
        if frame.dt is not None:
            inputs["dt"] = self._distances(frame, indices)
        if plan.static_size:
            static = table.static(rows)
            inputs["static"] = np.broadcast_to(static[:, None], (count, steps, plan.static_size))
        answer = await self._stepped(inputs, table.states(rows), count, steps, not frame.flags & LAST)
        outputs = answer.outputs if self._model.rollout is None else calibrated(plan, answer.outputs)
        clocks = {}
        if table.has_clocks:
            dt = inputs.get("dt")
            regular = [float(steps * plan.readings)] * count
            told = regular if dt is None else dt.reshape(count, -1).sum(1, np.float64).tolist()
            clocks = table.ticked(frame.numbers, told)
        taken = [table.steps[row] + steps for row in indices]
        chosen = [outputs[name] for name in self.outputs]
        after = table.after(rows, taken, answer.states, clocks) if frame.flags & TOKENS else []
        size = count * steps * self._step_bytes // ARRAY_BYTES_PER_BYTE + BYTES_PER_TOKEN * len(after)
        if size <= OFFLOAD_BYTES:
            encoded = self._encoded(frame.flags, taken, chosen, after)
        else:
            encoded = await offload(size, lambda: self._encoded(frame.flags, taken, chosen, after))
        # Last, and without a pause: until the answer is there, the frame may still fail or be cancelled.
        table.keep(rows, answer.states)
        for row, step in zip(indices, taken, strict=True):
            table.steps[row] = step
        if clocks:
            table.set_clocks(clocks)
        return encoded

    async def _stepped(
        self, inputs: dict[str, Array], states: dict[str, Array], count: int, steps: int, every: bool
    ) -> Answer:
        scheduler = self._context.scheduler
        # What fails goes the long way, which knows the sentence.
        if self.streams.plan.accepts(inputs, count, steps):
            part = Part({**inputs, **states}, count, steps, self.outputs, every)
            return await scheduler.step_part(self._model, part, caller=self.caller)
        if "static" in inputs:
            inputs["static"] = inputs["static"][:, 0]
        return await scheduler.step(self._model, inputs, states, self.outputs, caller=self.caller, every=every)

    def _encoded(self, flags: int, taken: list[int], outputs: list[Array], after: list[Stream]) -> bytes:
        return encode(flags, taken, outputs, [self._token(stream) for stream in after])

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
        number = frame.stream
        head: dict[str, Any] = {"stream": number} | ({} if frame.id is None else {"id": frame.id})
        if frame.close and frame.values is None:
            _check_close(frame)
            if number not in self.streams:
                raise InputError(f"The stream {number} is not open on this socket; there is nothing to close.")
            if not frame.token:
                return json_body(head | {"step": self.streams.drop(number), "closed": True}).decode()
        began = len(self.streams)
        try:
            stream = self.streams.stream(number)
            if frame.state_token is not None:
                (stream,) = await self._resumed([frame.state_token])
            stepped = await self._moved(frame, stream, size)
            answer = self._described(head, frame, stream, stepped)
            if frame.close:
                self.streams.drop(number)
            else:
                self.streams.put(number, stream)
        except BaseException:
            self.streams.shrink(began)
            raise
        return answer

    async def _moved(self, frame: TextFrame, stream: Stream, size: int) -> Stepped | None:
        """Do to a stream what a text frame says."""
        if frame.static is not None:
            if stream.step:
                raise InputError(
                    f"static is for the beginning of a stream, and stream {frame.stream} has taken {stream.step} "
                    "samples; leave it out."
                )
            stream.static = self.streams.plan.static(frame.static)
        if frame.values is None:
            if frame.state_token is None and frame.static is None and not frame.token:
                raise InputError("The frame says nothing: give values, state_token, static, token or close.")
            return None
        context = self._context
        settings, names = context.settings, self.outputs
        return await advance(context.scheduler, stream, frame, settings, self.caller, names, size=size)

    def _described(self, head: dict[str, Any], frame: TextFrame, stream: Stream, stepped: Stepped | None) -> str:
        head |= {"model": self._model.name, "model_version": str(self._model.version)}
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
        size = sum(map(len, tokens)) + BYTES_PER_TOKEN * len(tokens)
        return await offload(size, lambda: [self._stream(token) for token in tokens])

    def _stream(self, token: str) -> Stream:
        portable = self._context.state_keys.read(token)
        if portable.digest != self._model.digest:
            raise OtherModelError(
                f"The state token is of '{portable.model}', this socket streams {self._model.described}; open one with "
                f"model={portable.model}."
            )
        return resumed(portable, self._model)

    def _token(self, stream: Stream) -> str:
        return self._context.state_keys.issue(stream.portable())

    def _distances(self, frame: Frame, rows: Sequence[int]) -> Array:
        if not self.streams.plan.takes_dt:
            raise InputError(
                f"dt: the model '{self._model.name}' was trained on regular steps and takes no dt; leave it out."
            )
        assert frame.dt is not None
        dt = frame.dt.astype(np.float32)
        flat = dt.reshape(len(dt), -1)
        for place, row in enumerate(rows):
            if not self.streams.steps[row]:
                flat[place, 0] = 1.0  # of the first reading of a stream there is none
        return dt


def _check_close(frame: TextFrame) -> None:
    """Raise if a frame without values says something that the end of the stream would make void."""
    said = frame.model_dump(exclude_defaults=True).keys() - {"stream", "id", "token", "close"}
    for name in TextFrame.model_fields:
        if name in said:
            raise InputError(f"close ends the stream, and without values {name} has no effect; leave it out.")


def parse_frame(text: str) -> dict[str, Any]:
    """A text frame as JSON.

    Raises:
        InputError: If it is none, or no object.
    """
    return parse_object(text.encode())
