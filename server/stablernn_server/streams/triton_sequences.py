"""Sequences of the v2 protocol (Triton's sequence extension): states kept between requests by ``sequence_id``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from stablernn_runtime.served_model import ServedModel
from stablernn_server.batching.types import Caller
from stablernn_server.errors import InputError, OtherModelError, UnknownSequenceError, cut
from stablernn_server.settings import Settings
from stablernn_server.streams.sessions import check_one_process
from stablernn_server.streams.stream import owned
from stablernn_server.streams.ttl_cache import TtlCache

Array = NDArray[Any]
SequenceId = int | str


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence.

    Attributes:
        model: The model that it began with; requests that follow are answered by it.
        rows: Series in each of its requests.
        states: By input name, ``(rows, ...)``; none at the beginning, which is zeros.
    """

    model: ServedModel
    rows: int
    states: dict[str, Array] = field(default_factory=dict)

    def keep(self, states: Mapping[str, Array]) -> None:
        """Go on from ``states`` next time, by the names of the inputs that they feed."""
        self.states = owned(states)


class SequenceTable:
    """The sequences of one process, bounded as sessions are."""

    def __init__(self, settings: Settings) -> None:
        self._processes = settings.workers
        self._kept: TtlCache[tuple[str, type, SequenceId], Sequence] = TtlCache(
            settings.session_ttl_seconds, settings.max_sessions, settings.max_session_queue
        )

    def __len__(self) -> int:
        return len(self._kept)

    def sequences(self) -> list[Sequence]:
        """Every sequence that has begun and not ended."""
        return self._kept.values()

    def model_of(self, name: str, version: int) -> ServedModel | None:
        """Return the model of a sequence that has begun with a version, which need not be served any more."""
        models = (sequence.model for sequence in self._kept.values())
        return next((model for model in models if (model.name, model.version) == (name, version)), None)

    def drop_gone(self) -> None:
        """Let those requests go that wait for their turn and whose clients are gone."""
        self._kept.turns.drop_gone()

    @asynccontextmanager
    async def turn(
        self,
        model: ServedModel,
        identity: SequenceId,
        rows: int,
        *,
        caller: Caller,
        start: bool,
        end: bool,
        by_version: bool = False,
    ) -> AsyncIterator[Sequence]:
        """A sequence for this block alone: its requests run in the order that they came, whatever begins or ends.

        The block runs ``sequence.model`` from ``sequence.states`` and hands what follows to :meth:`Sequence.keep`; if
        it fails, the sequence stays where it was, and one that was to begin has not begun.

        Args:
            model: The model that the request found.
            identity: ``sequence_id`` of the request, whole number or text.
            rows: Series in the request.
            caller: Who waits.
            start: Whether it begins; what was kept under the name is forgotten.
            end: Whether it ends, so that nothing is kept afterwards.
            by_version: Whether the request itself named the version by its number.

        Raises:
            UnknownSequenceError: If it was not begun, has ended or has expired, and this is no start.
            OtherModelError: If it belongs to another version than the one that the request names.
            OneProcessError: If other processes share the port.
            InputError: If it has another number of series.
            TooManyError: If too many requests wait for it already.
            DeadlineError: If the caller's deadline passes before its turn comes.
            ClientGoneError: If the caller goes away before.
        """
        check_one_process(self._processes, "Sequences are kept")
        key = (model.name, type(identity), identity)
        async with self._kept.turn(key, "sequence", caller):
            # Only now is it known what the requests before this one have left.
            entry = self._kept.get(key)
            if start:
                sequence = Sequence(model, rows)
            elif entry is None:
                raise self._unknown(model.name, key)
            else:
                sequence = replace(entry.value)
                _check(sequence, model, identity, rows, by_version)
            try:
                yield sequence
            except BaseException:
                if entry is None:
                    self._kept.drop(key, "was not begun, its first request failed")
                raise
            if end:
                self._kept.drop(key, "has ended")
            else:
                self._kept.put(key, sequence)

    def _unknown(self, name: str, key: tuple[str, type, SequenceId]) -> UnknownSequenceError:
        identity = repr(key[2]) if isinstance(key[2], int) else f"'{cut(key[2])}'"
        why = self._kept.why_gone(key) or "was not begun in this server process"
        return UnknownSequenceError(
            f"The sequence {identity} of the model '{name}' {why}. Begin it with sequence_start=true and send its "
            "series from the first step on."
        )


def _check(sequence: Sequence, model: ServedModel, identity: SequenceId, rows: int, by_version: bool) -> None:
    if by_version and sequence.model.digest != model.digest:
        raise OtherModelError(
            f"The sequence '{cut(str(identity))}' belongs to {sequence.model.described}, the request names version "
            f"{model.version}; leave the version out, or begin with sequence_start=true."
        )
    if sequence.rows != rows:
        raise InputError(
            f"The sequence '{cut(str(identity))}' has {sequence.rows} series in a request, got {rows}; send the same "
            "ones each time, or begin with sequence_start=true."
        )
