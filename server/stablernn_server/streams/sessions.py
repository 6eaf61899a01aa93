"""Sessions: streams that one server process keeps between requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn_server.batching.types import Caller
from stablernn_server.errors import OneProcessError, UnknownSessionError, cut
from stablernn_server.settings import Settings
from stablernn_server.streams.stream import Stream
from stablernn_server.streams.ttl_cache import Entry, TtlCache

_CONTINUE = "begin a new one with POST /v1/sessions, with a state_token if you kept one"


@dataclass(slots=True, eq=False)
class Session:
    """One session.

    Attributes:
        id: Its name, which cannot be guessed.
        stream: Where it is; it keeps the model that it began with open.
        last: The outputs of its last step.
    """

    id: str
    stream: Stream
    last: dict[str, Any] | None = None


class SessionTable:
    """The sessions of one process, bounded in number and in idle time."""

    def __init__(self, settings: Settings) -> None:
        self._processes = settings.workers
        self._kept: TtlCache[str, Session] = TtlCache(
            settings.session_ttl_seconds, settings.max_sessions, settings.max_session_queue
        )

    def __len__(self) -> int:
        return len(self._kept)

    def sessions(self) -> list[Session]:
        """Every open session."""
        return self._kept.values()

    def open(self, stream: Stream) -> Session:
        """A new session that goes on from ``stream``.

        Raises:
            OneProcessError: If other processes share the port.
        """
        check_one_process(self._processes, "Sessions are kept")
        session = Session(secrets.token_urlsafe(16), stream)
        self._kept.put(session.id, session)
        return session

    def check(self, identity: str) -> None:
        """Raise unless there is such a session.

        Raises:
            OneProcessError: If other processes share the port.
            UnknownSessionError: If there is none, or none any more.
        """
        self._find(identity)

    def drop_gone(self) -> None:
        """Let those requests go that wait for their turn and whose clients are gone."""
        self._kept.turns.drop_gone()

    @asynccontextmanager
    async def turn(self, identity: str, caller: Caller) -> AsyncIterator[Session]:
        """The session for this block alone; requests of one session run in the order that they came.

        Args:
            identity: Its name.
            caller: Who waits.

        Raises:
            OneProcessError: If other processes share the port.
            UnknownSessionError: If there is none, or none any more.
            TooManyError: If too many requests wait for it already.
            DeadlineError: If the caller's deadline passes before its turn comes.
            ClientGoneError: If the caller goes away before.
        """
        self._find(identity)
        async with self._kept.turn(identity, "session", caller):
            # It may have been closed while this request waited.
            yield self._find(identity).value

    def ages(self, identity: str) -> tuple[float, float, float]:
        """Seconds since it was opened, since its last use, and until it expires; looking does not count as use.

        Raises:
            UnknownSessionError: If there is no such session.
        """
        entry = self._kept.peek(identity)
        if entry is None:
            raise self._unknown(identity)
        now = time.monotonic()
        idle = 0.0 if self._kept.turns.is_taken(identity) else now - entry.used
        return now - entry.created, idle, self._kept.ttl_seconds - idle

    def look(self, identity: str) -> Session:
        """The session as it is after its last finished step; looking does not count as use.

        Raises:
            OneProcessError: If other processes share the port.
            UnknownSessionError: If there is none, or none any more.
        """
        check_one_process(self._processes, "Sessions are kept")
        entry = self._kept.peek(identity)
        if entry is None:
            raise self._unknown(identity)
        return entry.value

    def close(self, identity: str) -> None:
        """Forget a session."""
        self._kept.drop(identity, "was closed")

    def _find(self, identity: str) -> Entry[Session]:
        check_one_process(self._processes, "Sessions are kept")
        entry = self._kept.get(identity)
        if entry is None:
            raise self._unknown(identity)
        return entry

    def _unknown(self, identity: str) -> UnknownSessionError:
        why = self._kept.why_gone(identity)
        if why is None:
            return UnknownSessionError(
                f"Unknown session '{cut(identity)}': this server process opened none of that name; {_CONTINUE}."
            )
        return UnknownSessionError(f"The session '{cut(identity)}' {why}; {_CONTINUE}.")


def check_one_process(processes: int, what: str) -> None:
    """Raise where a request may come to another process than the one that keeps what it asks for.

    Raises:
        OneProcessError: If ``processes`` share the port.
    """
    if processes > 1:
        raise OneProcessError(
            f"{what} by one process, and {processes} share this port. Use state tokens (POST /v1/step) or a WebSocket "
            "(/v1/stream), or serve with one worker."
        )


def norms(stream: Stream) -> list[dict[str, Any]]:
    """The size of each float state against the ball that its certificate says it stays in."""
    found: list[dict[str, Any]] = []
    for name, value in stream.portable().states.items():
        if value.dtype.kind != "f":
            continue
        ball = stream.model.guard.balls.get(name)
        if ball is None:
            size, radius = float(np.linalg.norm(value.astype(np.float64))), None
        else:
            size, radius = float(ball.size(value[None])[0]), ball.radius
        ratio = None if not radius else size / radius
        norm = "l2" if ball is None else ball.norm
        found.append({"state": name, "norm": norm, "size": size, "radius": radius, "ratio": ratio})
    return found
