"""Sequences of the v2 protocol (Triton's sequence extension): states kept between requests by ``sequence_id``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from stablernn_runtime.served_model import ServedModel
from stablernn_server.batching.types import Array, Caller
from stablernn_server.errors import InputError, OtherModelError, UnknownSequenceError, cut
from stablernn_server.settings import Settings
from stablernn_server.streams.sessions import check_one_process
from stablernn_server.streams.stream import copy_views
from stablernn_server.streams.ttl_cache import TtlCache

SequenceId = int | str
SequenceKey = tuple[str, str, type, SequenceId]
"""Who opened a sequence, the name of its model, and its identifier with its type."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence.

    Attributes:
        model: The model that it began with, which answers all its requests.
        rows: Series in each of its requests.
        owner: Name of the token that began it.
        states: By input name, ``(rows, ...)``, with the samples of unfinished patches; empty at the beginning, which
            stands for zeros.
        steps: Samples that each series has had, ``(rows,)``, of a model of patches; else 0.
    """

    model: ServedModel
    rows: int
    owner: str
    states: dict[str, Array] = field(default_factory=dict)
    steps: Array | int = 0

    def set_states(self, states: Mapping[str, Array]) -> None:
        """Set the states from which the next request goes on, by the names of the inputs that they feed."""
        self.states = copy_views(states)


class SequenceTable:
    """The sequences of one process, bounded as sessions are."""

    def __init__(self, settings: Settings) -> None:
        self._processes = settings.workers
        self._cache: TtlCache[SequenceKey, Sequence] = TtlCache(
            settings.session_ttl_seconds, settings.max_sessions, settings.max_session_queue
        )

    def __len__(self) -> int:
        return len(self._cache)

    def sequences(self) -> list[Sequence]:
        """Return all sequences that have begun and not ended."""
        return self._cache.values()

    def model_of(self, name: str, version: int, owner: str) -> ServedModel | None:
        """Return the model of an owner's sequence that has begun with a version, which may not be served any more."""
        # A scan, for requests that name a version which is not served.
        models = (sequence.model for sequence in self._cache.values() if sequence.owner == owner)
        return next((model for model in models if (model.name, model.version) == (name, version)), None)

    def drop_gone_clients(self) -> None:
        """Fail the requests that wait for a sequence and whose clients have gone."""
        self._cache.locks.drop_gone_clients()

    @asynccontextmanager
    async def hold(
        self,
        model: ServedModel,
        sequence_id: SequenceId,
        rows: int,
        *,
        caller: Caller,
        start: bool,
        end: bool,
        owner: str = "",
        by_version: bool = False,
    ) -> AsyncIterator[Sequence]:
        """Hold a sequence for the block; its requests run in the order in which they arrived, starts and ends included.

        The block runs ``sequence.model`` from ``sequence.states`` and hands the next states to
        :meth:`Sequence.set_states`. If it fails, the sequence stays where it was, and one that was to begin has not
        begun.

        Args:
            model: The model that the request was resolved to.
            sequence_id: ``sequence_id`` of the request, whole number or text.
            rows: Series in the request.
            caller: The client that waits.
            start: Whether the sequence begins; an earlier one of the same identifier is forgotten.
            end: Whether the sequence ends with this request.
            owner: Name of the token that began the sequence; other tokens have sequences of their own.
            by_version: Whether the request itself named the version by its number.

        Raises:
            UnknownSequenceError: If the owner has not begun it, or it has ended or expired, and this is no start.
            OtherModelError: If it belongs to another version than the one that the request names.
            OneProcessError: If other processes share the port.
            InputError: If it has another number of series.
            TooManyError: If too many requests wait for it already.
            DeadlineError: If the caller's deadline passes first.
            ClientGoneError: If the client disconnects first.
        """
        check_one_process(self._processes, "Sequences are kept")
        key = (owner, model.name, type(sequence_id), sequence_id)
        async with self._cache.hold(key, "sequence", caller):
            # Only now, since the requests before this one may have begun or ended it.
            entry = self._cache.get(key)
            if start:
                sequence = Sequence(model, rows, owner)
            elif entry is None:
                raise self._unknown(key)
            else:
                # A copy, which replaces the cached one only if the block succeeds.
                sequence = replace(entry.value)
                _check(sequence, model, sequence_id, rows, by_version)
            try:
                yield sequence
            except BaseException:
                if entry is None:
                    # For the errors of requests that follow.
                    self._cache.drop(key, "was not begun, its first request failed")
                raise
            if end:
                self._cache.drop(key, "has ended")
            else:
                self._cache.put(key, sequence)

    def _unknown(self, key: SequenceKey) -> UnknownSequenceError:
        _, name, _, identifier = key
        sequence_id = repr(identifier) if isinstance(identifier, int) else f"'{cut(identifier)}'"
        reason = self._cache.removal_reason(key) or "was not begun in this server process"
        return UnknownSequenceError(
            f"The sequence {sequence_id} of the model '{name}' {reason}. Begin it with sequence_start=true and send "
            "its series from the first step on."
        )


def _check(sequence: Sequence, model: ServedModel, sequence_id: SequenceId, rows: int, by_version: bool) -> None:
    if by_version and sequence.model.digest != model.digest:
        raise OtherModelError(
            f"The sequence '{cut(str(sequence_id))}' belongs to {sequence.model.label}, the request names version "
            f"{model.version}; leave the version out, or begin with sequence_start=true."
        )
    if sequence.rows != rows:
        raise InputError(
            f"The sequence '{cut(str(sequence_id))}' has {sequence.rows} series in a request, got {rows}; send the "
            "same ones each time, or begin with sequence_start=true."
        )
