"""Streams that go on, to the bit, after a lost connection.

The server's state lives as long as the socket. The client holds what is needed to build it again: the last state
tokens, and the samples sent since. Both are sent over a new socket before the streams go on, so that no step is lost
or taken twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from stablernn_client.errors import (
    BadRequest,
    Busy,
    ClientError,
    Conflict,
    ConnectionFailed,
    Deadline,
    NotFound,
    StreamLost,
)
from stablernn_client.parts import Part, merged
from stablernn_client.patience import Patience
from stablernn_client.results import Array, StepsResult
from stablernn_client.series import Constants, constants
from stablernn_client.state_token import version_of
from stablernn_client.stream_info import StreamInfo
from stablernn_client.tensors import Numbers
from stablernn_client.transport import Transport
from stablernn_client.wire import Wire, lost, open_wire

TOKEN_EVERY = 32
"""Steps after which the next state tokens are asked for: more than that are never sent again."""

TOKEN_SECONDS = 600.0
"""Or after that time, for streams with few steps: a token expires."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
Result = TypeVar("Result")


class Channel:
    """The streams 0 to ``count - 1`` of one socket, which take their steps together.

    Args:
        transport: How to reach the server.
        model: NAME, NAME:VERSION or NAME@ALIAS.
        count: How many streams.
        tokens: State tokens to go on from, one for each stream; None to begin from zeros.
        static: What never changes within a single stream that begins, by name.
        timeout: Seconds that one call may take, reconnecting included.
        token_every: Steps between state tokens.

    Raises:
        BadRequest: If an argument is out of its range.
    """

    def __init__(
        self,
        transport: Transport,
        model: str,
        *,
        count: int,
        tokens: Sequence[str] | None,
        static: Constants | None,
        timeout: float,
        token_every: int,
    ) -> None:
        if count < 1:
            raise BadRequest(f"count must be at least 1, got {count}.")
        if token_every < 1:
            raise BadRequest(f"token_every must be at least 1, got {token_every}.")
        if tokens is not None and len(tokens) != count:
            raise BadRequest(f"tokens must hold one for each of the {count} streams, got {len(tokens)}.")
        if tokens is not None and static is not None:
            raise BadRequest("static is given when a stream begins, and its token holds it; leave one of them out.")
        if not all(token and token.isascii() for token in tokens or ()):
            raise BadRequest("A state token must be the text that an earlier stream gave, got something else.")
        versions = {version_of(token) for token in tokens or ()}
        if len(versions) > 1:
            names = ", ".join(sorted(version or "an unknown version" for version in versions))
            raise BadRequest(f"tokens must all be of one version, got {names}; open the streams of each by themselves.")
        self._transport = transport
        self._model = _reference(model, *versions)
        self._count = count
        self._timeout = timeout
        self._token_every = token_every
        # The first message of the stream carries it, and any state token from then on.
        self._static = NOTHING if static is None else {"static": constants(static, "static")}
        self._info: StreamInfo | None = None
        self._labels: Array | None = None
        # What a new socket is brought up to date with. How many steps a token from elsewhere stands for is not known.
        self._tokens = None if tokens is None else list(tokens)
        # The state at zeros, with which streams that have no later token begin again once their version is not served.
        self._beginning: str | None = None
        self._steps: Array | None = np.zeros(count, np.int64) if tokens is None else None
        self._since: list[Part] = []
        self._kept_at = time.monotonic()
        # The socket at hand, and what is still to be sent over it.
        self._wire: Wire | None = None
        self._behind: list[Part] = []
        self._is_working = False

    @property
    def info(self) -> StreamInfo:
        """What the server says of the model.

        Raises:
            ClientError: If the stream was never open.
        """
        if self._info is None:
            raise ClientError("The stream is not open yet; enter it with `async with`, or take a step first.")
        return self._info

    async def open(self) -> StreamInfo:
        """Connect if it was never done, so that a wrong model or address is known before the first step."""
        if self._info is None:
            await self._persist(self._brought_up)
        return self.info

    async def step(
        self, values: Numbers, dt: Numbers | None = None, every: bool = True, beside: Mapping[str, Any] = NOTHING
    ) -> StepsResult:
        """One or several steps of all streams.

        Args:
            values: ``(streams, steps, *sample_shape)``; NaN is a missing value.
            dt: ``(streams, steps, *sample_shape[:-1])``, for models of irregular time.
            every: Whether every step's outputs come back, or the last one's.
            beside: What only a text message carries; of a single stream only.
        """
        info = await self.open()
        begins = self._tokens is None and not self._since
        part = Part.checked(values, dt, info, self._count, {**beside, **self._static} if begins else beside)
        steps = part.steps + sum(sent.steps for sent in self._since)
        want_tokens = steps >= self._token_every or time.monotonic() - self._kept_at >= TOKEN_SECONDS

        async def take(patience: Patience) -> StepsResult:
            wire = await self._brought_up(patience)
            answer = await wire.send(part, patience, want_tokens=want_tokens, every=every)
            self._since.append(part)
            if answer.tokens is not None:
                self._keep(answer.tokens, answer.steps)
            return StepsResult(answer.steps, answer.outputs, self._named(answer.outputs))

        return await self._persist(take)

    async def tokens(self) -> list[str]:
        """State tokens of the streams as they are now."""

        async def ask(patience: Patience) -> list[str]:
            wire = await self._brought_up(patience)
            tokens = [await wire.token_of(stream, patience) for stream in range(self._count)]
            assert wire.steps is not None
            self._keep(tokens, wire.steps)
            return tokens

        if self._tokens is not None and not self._since:
            return list(self._tokens)
        return await self._persist(ask)

    async def close(self) -> None:
        """Close the socket; the server forgets the streams."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    def _keep(self, tokens: list[str], steps: Array) -> None:
        """From now on, a new socket begins here."""
        self._tokens, self._steps, self._since = tokens, steps, []
        self._kept_at = time.monotonic()

    def _named(self, outputs: Mapping[str, Array]) -> Array | None:
        if self._labels is None or "probabilities" not in outputs:
            return None
        labels: Array = self._labels[outputs["probabilities"].argmax(-1)]
        return labels

    async def _persist(self, work: Callable[[Patience], Awaitable[Result]]) -> Result:
        """The result of ``work``, tried again where that can help, until the time is over."""
        if self._is_working:
            raise ClientError("A stream takes one step at a time; wait for the one before, or open another stream.")
        self._is_working = True
        patience = Patience(self._timeout)
        try:
            while True:
                try:
                    return await work(patience)
                except ConnectionFailed as error:
                    # An address that never answered is likelier wrong than a server on its way back.
                    if self._info is None:
                        raise
                    await self.close()
                    await self._transport.sleep(patience.pause(error))
                except (Busy, Deadline) as error:
                    await self._transport.sleep(patience.pause(error))
                except Conflict as error:
                    if error.code not in ("duplicate_step", "skipped_step"):
                        raise
                    # After a failure it may not be known whether a step was taken; a new socket begins from what is.
                    await self.close()
                    await self._transport.sleep(patience.pause(error))
        finally:
            self._is_working = False

    async def _brought_up(self, patience: Patience) -> Wire:
        """An open socket whose streams are as far as they are here."""
        if self._wire is not None and self._wire.is_in_flight:
            await self.close()
        if self._wire is None:
            self._wire = await self._connected(patience)
            self._behind = merged(self._since)
        while self._behind:
            await self._wire.send(self._behind[0], patience, want_tokens=False, every=False)
            del self._behind[0]
        return self._wire

    async def _connected(self, patience: Patience) -> Wire:
        before = self._info
        if before is None:
            return await self._first_connected(patience)
        # A stream goes on with the version that it began with, wherever an alias points by now.
        try:
            link, info = await open_wire(self._transport, f"{before.model}:{before.version}", patience)
        except NotFound as error:
            raise lost(error) from error
        if info.digest != before.digest:
            await link.close()
            raise StreamLost(
                f"The stream cannot go on where it was: {info.model}:{info.version} has the digest {info.digest} "
                f"now, not {before.digest}. Begin a new stream."
            )
        tokens = self._tokens
        if tokens is None and not info.has_new_streams and self._beginning is not None:
            tokens = [self._beginning] * self._count
        return Wire(link, info, tokens, self._steps)

    async def _first_connected(self, patience: Patience) -> Wire:
        link, info = await open_wire(self._transport, self._model, patience)
        try:
            if self._count > info.max_streams:
                raise BadRequest(f"count must be at most {info.max_streams} on this server, got {self._count}.")
            if self._tokens is None and not info.has_new_streams:
                raise NotFound(
                    f"The server does not serve version {info.version} of '{info.model}' any more, streams only go on "
                    f"from their state tokens; begin with '{info.model}' or give the token of a stream.",
                    status=404,
                    code="unknown_model",
                )
            wire = Wire(link, info, self._tokens, self._steps)
            if self._tokens is None:
                self._beginning = await wire.token_of(0, patience)
        except BaseException:
            await link.close()
            raise
        self._labels = None if info.labels is None else np.array(info.labels)
        self._info = info
        return wire


def _reference(model: str, version: str | None = None) -> str:
    """The reference to open a socket by: the version of the state tokens, where it is one of the model."""
    name = model.partition("@")[0]
    return version if version is not None and version.rpartition(":")[0] == name else model
