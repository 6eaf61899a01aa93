"""Sessions: streams that one server process keeps between requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn_runtime.stream_spec import stream_spec
from stablernn_server.batching.types import Caller
from stablernn_server.errors import OneProcessError, UnknownSessionError, cut
from stablernn_server.settings import Settings
from stablernn_server.streams.stream import Stream
from stablernn_server.streams.ttl_cache import Entry, TtlCache

_ADVICE = "begin a new one with POST /v1/sessions, with a state_token if you have one"


@dataclass(slots=True, eq=False)
class Session:
    """One session.

    Attributes:
        id: Random identifier, which cannot be guessed.
        stream: The stream; it keeps the model that it began with open.
        last_outputs: The outputs of the last step; None before it.
    """

    id: str
    stream: Stream
    last_outputs: dict[str, Any] | None = None


class SessionTable:
    """The sessions of one process, bounded in number and in idle time."""

    def __init__(self, settings: Settings) -> None:
        self._processes = settings.workers
        self._cache: TtlCache[str, Session] = TtlCache(
            settings.session_ttl_seconds, settings.max_sessions, settings.max_session_queue
        )

    def __len__(self) -> int:
        return len(self._cache)

    def sessions(self) -> list[Session]:
        """Return all open sessions."""
        return self._cache.values()

    def open(self, stream: Stream) -> Session:
        """Open a session that goes on from ``stream``.

        Raises:
            OneProcessError: If other processes share the port.
        """
        check_one_process(self._processes, "Sessions are kept")
        # 128 random bits.
        session = Session(secrets.token_urlsafe(16), stream)
        self._cache.put(session.id, session)
        return session

    def check(self, session_id: str) -> None:
        """Raise unless there is such a session; this counts as use.

        Raises:
            OneProcessError: If other processes share the port.
            UnknownSessionError: If there is none, or none any more.
        """
        self._get(session_id)

    def drop_gone_clients(self) -> None:
        """Fail the requests that wait for a session and whose clients have gone."""
        self._cache.locks.drop_gone_clients()

    @asynccontextmanager
    async def hold(self, session_id: str, caller: Caller) -> AsyncIterator[Session]:
        """Hold a session for the block; requests of one session run in the order in which they arrived.

        Args:
            session_id: Identifier of the session.
            caller: The client that waits.

        Raises:
            OneProcessError: If other processes share the port.
            UnknownSessionError: If there is none, or none any more.
            TooManyError: If too many requests wait for it already.
            DeadlineError: If the caller's deadline passes first.
            ClientGoneError: If the client disconnects first.
        """
        self._get(session_id)
        async with self._cache.hold(session_id, "session", caller):
            # It may have been closed while this request waited.
            yield self._get(session_id).value

    def ages(self, session_id: str) -> tuple[float, float, float]:
        """Return seconds since it was opened, since its last use, and until it expires; this does not count as use.

        Raises:
            UnknownSessionError: If there is no such session.
        """
        entry = self._cache.peek(session_id)
        if entry is None:
            raise self._unknown(session_id)
        now = time.monotonic()
        # A session that a request works on is not idle, however long that takes.
        idle = 0.0 if self._cache.locks.is_held(session_id) else now - entry.used
        return now - entry.created, idle, self._cache.ttl_seconds - idle

    def peek(self, session_id: str) -> Session:
        """Return a session as it is after its last finished step; this does not count as use.

        Raises:
            OneProcessError: If other processes share the port.
            UnknownSessionError: If there is none, or none any more.
        """
        check_one_process(self._processes, "Sessions are kept")
        entry = self._cache.peek(session_id)
        if entry is None:
            raise self._unknown(session_id)
        return entry.value

    def close(self, session_id: str) -> None:
        """Close a session."""
        self._cache.drop(session_id, "was closed")

    def _get(self, session_id: str) -> Entry[Session]:
        check_one_process(self._processes, "Sessions are kept")
        entry = self._cache.get(session_id)
        if entry is None:
            raise self._unknown(session_id)
        return entry

    def _unknown(self, session_id: str) -> UnknownSessionError:
        reason = self._cache.removal_reason(session_id)
        if reason is None:
            return UnknownSessionError(
                f"Unknown session '{cut(session_id)}': this server process has not opened it; {_ADVICE}."
            )
        return UnknownSessionError(f"The session '{cut(session_id)}' {reason}; {_ADVICE}.")


def check_one_process(processes: int, subject: str) -> None:
    """Raise where a request may come to another process than the one that keeps the state it asks for.

    Args:
        processes: Server processes that share the port.
        subject: Begin of the message, such as ``"Sessions are kept"``.

    Raises:
        OneProcessError: If there are several.
    """
    if processes > 1:
        raise OneProcessError(
            f"{subject} by one process, and {processes} share this port. Use state tokens (POST /v1/step) or a "
            "WebSocket (/v1/stream), or serve with one worker."
        )


def state_norms(stream: Stream) -> list[dict[str, Any]]:
    """Return the norm of each float state and the radius of the ball that its certificate says it stays in."""
    norms: list[dict[str, Any]] = []
    states = stream_spec(stream.model).model_states(stream.snapshot().states)
    for name, value in states.items():
        # Whole numbers, such as counters, have no ball.
        if value.dtype.kind != "f":
            continue
        ball = stream.model.guard.balls.get(name)
        if ball is None:
            size, radius = float(np.linalg.norm(value.astype(np.float64))), None
        else:
            # `distances` takes rows: (1, ...).
            size, radius = float(ball.distances(value[None])[0]), ball.radius
        ratio = None if not radius else size / radius
        norm = "l2" if ball is None else ball.norm
        norms.append({"state": name, "norm": norm, "size": size, "radius": radius, "ratio": ratio})
    return norms
