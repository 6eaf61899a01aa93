"""Many streams of one version with state by key, advanced together.

A step of 1,000 streams takes little longer than a step of one, so a program that reads events of many keys should
advance all keys that have one at once. A shard holds the states, orders the events of each key by their numbers, and
answers what comes again without a second step. It runs in any process: engines of streams call it with the events of
their partition and store its checkpoints.

>>> from stablernn_runtime.scoring import Scorer, StreamShard
>>> shard = StreamShard(Scorer.find("animals@production"))
>>> answers = shard.add(["hall", "yard"], [0, 0], [[0.1], [0.7]])
>>> answers.outputs["probabilities"].shape
(2, 4)
>>> shard.add(["yard"], [0], [[0.7]]).is_again
array([ True])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.errors import BadTokenError, CheckpointError, ConflictError, InputError
from stablernn_runtime.scoring.scorer import Scorer
from stablernn_runtime.scoring.shard_checkpoint import (
    Content,
    KeyBytes,
    check_arrays,
    pack_checkpoint,
    pack_keys,
    release_pages,
    unpack_checkpoint,
    unpack_keys,
)
from stablernn_runtime.scoring.stream_events import (
    MAX_NUMBER,
    Events,
    Key,
    SampleReader,
    StreamAnswers,
    StreamCounts,
    WaitingEvent,
    check_model,
    read_keys,
    read_numbers,
    split_events,
    split_rounds,
)
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.state_token import StateTokens, StreamSnapshot
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import stream_spec

Array = NDArray[Any]

STEP_ROWS = 4096
"""Streams that are advanced at once. Answers do not depend on it."""
_COPIED_ROWS = 1 << 16
_ANSWERED_ELSEWHERE = "This event was answered where the stream ran before; its state token holds no answer."


class StreamShard:
    """Streams of one version by key. For one thread at a time.

    Each event has a number within its key: 0, 1, 2 and so on. An event is processed when its number is the next one of
    its key. One that comes early waits for those before it, until an event of its key comes that is more than
    ``lateness`` numbers ahead of the next one: then the missing numbers are skipped, and the answer that follows says
    how many. The event that was processed last is answered again when it comes again; what is older is dropped and
    counted. A sample that cannot be taken has an error for an answer; its number is taken all the same, and the state
    stays as it was: the same sample would fail each time it comes, and those behind it would wait in vain.

    After an error other than :class:`.InputError` a part of the events may have been processed: go on from a
    checkpoint.

    Attributes:
        scorer: The version.
        lateness: Numbers by which an event may be ahead of the next one of its key without a gap.
        counts: What has come so far.
    """

    def __init__(self, scorer: Scorer, *, lateness: int = 16) -> None:
        """Open the version.

        Args:
            scorer: The version.
            lateness: Numbers by which an event may be ahead; 0 to wait for none.

        Raises:
            InputError: If the version reads future values or the calendar, or has a recursive head.
            NoStreamsError: If it needs complete sequences.
            RegistryError: As :meth:`Scorer.open`.
            ModelLoadError: Likewise.
        """
        if lateness < 0:
            raise InputError(f"lateness must be 0 or more, got {lateness}.")
        self.scorer = scorer
        self.lateness = lateness
        self.counts = StreamCounts()
        self._model = scorer.open()
        check_model(self._model)
        self._spec = stream_spec(self._model)
        self._reader = SampleReader(self._model)
        self._table = StreamTable(self._model)
        # Events before their turn, by row and number.
        self._waiting: dict[int, dict[int, WaitingEvent]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: Key) -> bool:
        return self._table.find(key) is not None

    def __repr__(self) -> str:
        return f"StreamShard('{self.scorer.model}', keys={len(self)}, waiting={self.waiting})"

    @property
    def keys(self) -> list[Key]:
        """The keys of all streams."""
        return list(self._table.keys)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self._reader.shape

    def sample_count(self, event: Any) -> int:
        """Return how many samples, and so numbers, an event has, which is a sample or an array of samples."""
        return self._reader.sample_count(event) or 1

    @property
    def waiting(self) -> int:
        """Number of events that wait for those before them."""
        return sum(map(len, self._waiting.values()))

    def next_number(self, key: Key) -> int:
        """Return the number after the highest one that has come for a key; 0 for a new key."""
        row = self._table.find(key)
        if row is None:
            return 0
        return max(int(self._table.last_numbers[row]), *self._waiting.get(row, {-1: None})) + 1

    def add(self, keys: Any, numbers: Any, samples: Any, *, dt: Any = None, static: Any = None) -> StreamAnswers:
        """Take events, and return the answers to those whose turn has come.

        Args:
            keys: Key of each event: text, bytes or a whole number. A key may have several events.
            numbers: Number of each event within its key, ``(events,)``; that of its first sample.
            samples: One of each event, ``(events, features)``, or ``(events,)`` of tokens; in lists, None is a missing
                value. An event may also have an array of samples, which count as events of their own with the
                numbers that follow.
            dt: Time from the sample before in regular steps, ``(events,)``, for versions that take it; default 1.
                That of the first sample of a stream does not count. For an event of several samples, an array.
            static: Values that never change within a stream, ``(events, names)``, NaN where not known. Those of the
                event with which a key begins here are stored.

        Returns:
            The answers. Their bits are those of the whole sequence of each key, whatever the calls.

        Raises:
            InputError: If arguments do not fit; nothing has been processed then.
        """
        names = read_keys(keys)
        order_numbers = read_numbers(numbers, len(names))
        names, order_numbers, samples, dt, static = split_events(
            self._reader, names, order_numbers, samples, dt, static
        )
        x, times, errors = self._reader.read(samples, dt, len(names))
        rows = self._table.claim(names, self._read_static(static, len(names)))
        self.counts.events += len(names)
        events = Events(rows, order_numbers, np.zeros(len(names), np.int64), x, times, errors)
        parts = [self._process(events.select(positions)) for positions in split_rounds(rows, order_numbers)]
        if self._waiting:
            parts += self._take_waiting(np.unique(rows).tolist(), self.lateness)
        return StreamAnswers.concatenate(parts) if parts else self._no_answers()

    def flush(self, keys: Iterable[Key] | None = None) -> StreamAnswers:
        """Process all events that wait, with gaps where others are missing.

        Args:
            keys: Streams to do it for; None for all.
        """
        rows: Iterable[int | None] = list(self._waiting) if keys is None else map(self._table.find, keys)
        parts = self._take_waiting([row for row in rows if row is not None], -1)
        return StreamAnswers.concatenate(parts) if parts else self._no_answers()

    def drop(self, key: Key) -> None:
        """Forget a stream and its events that wait; a key without a stream is ignored."""
        row = self._table.find(key)
        if row is None:
            return
        self._waiting.pop(row, None)
        last = self._table.drop(row)
        if last is not None and last in self._waiting:
            self._waiting[row] = self._waiting.pop(last)

    def token(self, key: Key, tokens: StateTokens) -> str:
        """Return a stream after its last processed event as a state token, which servers and clients continue.

        The token does not hold events that wait, nor the last answer.

        Args:
            key: The stream.
            tokens: Signs the token.

        Raises:
            InputError: If there is no such stream.
        """
        row = self._table.find(key)
        if row is None:
            raise InputError(f"The shard has no stream {key!r}; it has {len(self):,} others.")
        table = self._table
        states = {name: value[row] for name, value in table.states.items()}
        step = int(table.steps[row])
        snapshot = StreamSnapshot(
            self.scorer.model, self.scorer.digest, step, table.clock(row), table.static[row], states
        )
        return tokens.issue(snapshot)

    def put(self, key: Key, token: str, tokens: StateTokens, *, number: int | None = None) -> None:
        """Set a stream to what a state token holds.

        Args:
            key: The stream, which may be new.
            token: From :meth:`token`, a server or a client.
            tokens: Checks the token.
            number: Number of the last event that the stream has taken, where some were skipped; default: its samples
                less one.

        Raises:
            BadTokenError: If the token was not signed with this key, was changed, or is of another version.
            ExpiredTokenError: If it has expired.
            ConflictError: If events of the stream wait here.
            InputError: If the number is none.
        """
        read_keys([key])
        snapshot = tokens.read(token)
        if snapshot.digest != self.scorer.digest:
            raise BadTokenError(
                f"The state token is of '{snapshot.model}' ({snapshot.digest}), and this shard runs "
                f"'{self.scorer.model}' ({self.scorer.digest})."
            )
        snapshot = self._spec.check_token(snapshot)
        last = snapshot.step - 1 if number is None else number
        if not -1 <= last < MAX_NUMBER:
            raise InputError(f"number must be from -1, before the first event, to 2**62 - 1, got {number}.")
        row = self._table.find(key)
        if row in self._waiting:
            raise ConflictError(
                f"{len(self._waiting[row])} events of the stream {key!r} wait for others: flush() or drop() it first."
            )
        self.drop(key)
        (row,) = self._table.claim([key]).tolist()
        for name, value in snapshot.states.items():
            self._table.states[name][row] = value
        self._table.steps[row] = snapshot.step
        self._table.last_numbers[row] = last
        self._table.static[row] = snapshot.static if snapshot.static.size else np.nan
        self._table.set_clock(row, snapshot.clock)
        self._table.set_error(row, _ANSWERED_ELSEWHERE)

    def dump(self) -> bytes:
        """Return a checkpoint of all streams, with their events that wait; see :mod:`.shard_checkpoint`."""
        return b"".join(self.dump_parts())

    def dump_parts(self) -> Iterator[bytes | memoryview]:
        """Yield a checkpoint in parts that follow each other, which takes little memory: ``file.writelines`` them.

        The shard must not be used before the last part.
        """
        table = self._table
        waiting = [(row, number, event) for row, events in self._waiting.items() for number, event in events.items()]
        arrays: dict[str, Array | KeyBytes] = {**pack_keys(table.keys), **dict(table.arrays())}
        arrays["waiting rows"] = np.array([row for row, _, _ in waiting], np.int64)
        arrays["waiting numbers"] = np.array([number for _, number, _ in waiting], np.int64)
        if waiting:
            arrays["waiting samples"] = np.stack([event.sample for _, _, event in waiting])
            if self._reader.takes_dt:
                arrays["waiting dt"] = np.stack([event.dt for _, _, event in waiting if event.dt is not None])
        fields = {
            "model": self.scorer.model,
            "digest": self.scorer.digest,
            "lateness": self.lateness,
            "counts": asdict(self.counts),
            "errors": list(table.errors.items()),
            "clocks": [[row, clock.origin, clock.steps] for row, clock in table.clocks.items()],
            "waiting_errors": [event.error for _, _, event in waiting],
        }
        return pack_checkpoint(fields, arrays)

    @classmethod
    def load(cls, scorer: Scorer, content: Content) -> Self:
        """Return the shard of a checkpoint.

        Args:
            scorer: The version that made it.
            content: From :meth:`dump`, or a file of it that :func:`.map_checkpoint` mapped.

        Raises:
            CheckpointError: If it is no checkpoint, cut, damaged, or of another version.
            InputError: As the constructor; so are RegistryError and ModelLoadError.
        """
        fields, arrays = unpack_checkpoint(content)
        if fields["digest"] != scorer.digest:
            raise CheckpointError(
                f"The checkpoint is of '{fields['model']}' ({fields['digest']}), and the shard runs '{scorer.model}' "
                f"({scorer.digest}). Run that version, or begin new streams without the checkpoint."
            )
        shard = cls(scorer, lateness=fields["lateness"])
        shard.counts = StreamCounts(**fields["counts"])
        table = shard._table
        keys = unpack_keys(arrays)
        check_arrays(dict(table.arrays()), arrays, len(keys))
        table.restore(keys, arrays, lambda: release_pages(content))
        for row, text in fields["errors"]:
            table.errors[row] = text
            table.has_error[row] = True
        table.clocks |= {row: Clock(origin, steps) for row, origin, steps in fields["clocks"]}
        rows, numbers = arrays["waiting rows"].tolist(), arrays["waiting numbers"].tolist()
        for position, (row, number) in enumerate(zip(rows, numbers, strict=True)):
            dt = arrays["waiting dt"][position].copy() if "waiting dt" in arrays else None
            event = WaitingEvent(arrays["waiting samples"][position].copy(), dt, fields["waiting_errors"][position])
            shard._waiting.setdefault(row, {})[number] = event
        return shard

    def _read_static(self, static: Any, count: int) -> Array | None:
        if static is None:
            return None
        with np.errstate(over="ignore"):
            values = np.asarray(static, np.float32)
        expected = (count, self._spec.static_size)
        if not self._spec.static_size:
            raise InputError(f"{self._model.label} takes no static values.")
        if values.shape != expected or np.isinf(values).any():
            raise InputError(
                f"static must be finite or NaN in the shape {expected} for {self._model.label}, got {values.shape}."
            )
        return values

    def _process(self, events: Events) -> StreamAnswers:
        """Process events of different streams as far as it is their turn; the others wait or are dropped."""
        ahead = events.numbers - self._table.last_numbers[events.rows] - 1
        is_next = ahead == 0
        if is_next.all():
            self._take(events)
            return self._answers(events, np.zeros(len(events), bool))
        # Before the first event, the last number is -1, which no event has.
        is_again = ahead == -1
        self.counts.answered_again += int(is_again.sum())
        self.counts.late += int((ahead < -1).sum())
        for position in np.flatnonzero(ahead > 0).tolist():
            waiting = self._waiting.setdefault(int(events.rows[position]), {})
            number = int(events.numbers[position])
            if number in waiting:
                self.counts.duplicates += 1
            else:
                waiting[number] = events.waiting_event(position)
        if is_next.any():
            self._take(events.select(np.flatnonzero(is_next)))
        answered = np.flatnonzero(is_next | is_again)
        return self._answers(events.select(answered), is_again[answered])

    def _take_waiting(self, rows: Sequence[int], lateness: int) -> list[StreamAnswers]:
        """Process events that waited and whose turn has come, one of each stream at a time."""
        plans = [self._plan(row, lateness) for row in rows if row in self._waiting]
        parts = []
        for round_number in range(max(map(len, plans), default=0)):
            events = Events.of_waiting([plan[round_number] for plan in plans if len(plan) > round_number])
            self._take(events)
            parts.append(self._answers(events, np.zeros(len(events), bool)))
        return parts

    def _plan(self, row: int, lateness: int) -> list[tuple[int, int, int, WaitingEvent]]:
        """Take the events of a stream out of those that wait: row, number, gap before it, and event."""
        waiting = self._waiting[row]
        next_number = int(self._table.last_numbers[row]) + 1
        highest = max(waiting)
        plan = []
        for number in sorted(waiting):
            if number < next_number:
                # It came again together with the event before it, and was processed right away.
                self.counts.duplicates += 1
            elif number == next_number or highest - next_number > lateness:
                plan.append((row, number, number - next_number, waiting[number]))
                next_number = number + 1
            else:
                break
            del waiting[number]
        if not waiting:
            del self._waiting[row]
        return plan

    def _take(self, events: Events) -> None:
        """Advance streams by one event each, which has their next number or one after a gap."""
        self.counts.gaps += int(events.gaps.sum())
        self._table.gaps[events.rows] += events.gaps
        stepped = events
        if events.errors:
            stepped = events.select(np.setdiff1d(np.arange(len(events)), list(events.errors)))
            for position, text in events.errors.items():
                self._set_error(int(events.rows[position]), text)
        for start in range(0, len(stepped), STEP_ROWS):
            self._advance(stepped.select(np.arange(start, min(start + STEP_ROWS, len(stepped)))))
        self._table.last_numbers[events.rows] = events.numbers

    def _advance(self, events: Events) -> None:
        """Give streams a sample each; a model of patches steps those whose patch it fills."""
        table, rows, dt = self._table, events.rows, events.dt
        inputs = {self._model.input_name: events.samples}
        if dt is not None:
            # No sample lies before the first one.
            dt[table.steps[rows] == 0] = 1
            inputs["dt"] = dt
        if self._spec.patches is None:
            self._step(rows, inputs, {}, dt)
            return
        states = {name: table.states[name][rows] for name in self._spec.patches.state_shapes}
        # With an axis over the one sample of each stream.
        samples = {name: value[:, None] for name, value in inputs.items()}
        collected = self._spec.patches.collect(states, table.steps[rows], samples)
        is_begun = collected.counts == 0
        if is_begun.any():
            samples_so_far = {name: value[is_begun] for name, value in collected.states.items()}
            table.set_results(rows[is_begun], {}, samples_so_far, None if dt is None else dt[is_begun])
        for group, patches in collected.groups():
            left_over = {name: value[group] for name, value in collected.states.items()}
            patch = {name: value[:, 0] for name, value in patches.items()}
            self._step(rows[group], patch, left_over, None if dt is None else dt[group])

    def _step(self, rows: Array, inputs: Mapping[str, Array], left_over: Mapping[str, Array], dt: Array | None) -> None:
        """Step streams; one whose outputs are not finite has an error, and its state stays.

        Args:
            rows: Rows of the streams.
            inputs: Inputs of the step graph.
            left_over: States of the samples behind the last patch.
            dt: Time of the last sample of each.
        """
        table = self._table
        static = {"static": table.static[rows]} if self._spec.static_size else {}
        states = self._spec.model_states({name: value[rows] for name, value in table.states.items()})
        x = inputs[self._model.input_name]
        timed = {"dt": inputs["dt"]} if "dt" in inputs else {}
        try:
            outputs, next_states = self.scorer.advance(x, states, **static, **timed)
        except InputError as error:
            if len(rows) == 1:
                self._set_error(int(rows[0]), str(error))
                return
            for half in np.array_split(np.arange(len(rows)), 2):
                part = {name: value[half] for name, value in inputs.items()}
                left = {name: value[half] for name, value in left_over.items()}
                self._step(rows[half], part, left, None if dt is None else dt[half])
            return
        self._table.set_results(rows, outputs, {**next_states, **left_over}, dt)

    def _set_error(self, row: int, text: str) -> None:
        self.counts.errors += 1
        self._table.set_error(row, text)

    def _answers(self, events: Events, is_again: Array) -> StreamAnswers:
        """Return the last answers of streams, which are those to ``events``; some begin a patch and have none."""
        table = self._table
        is_answered = table.is_answered(events.rows)
        if not is_answered.all():
            events, is_again = events.select(np.flatnonzero(is_answered)), is_again[is_answered]
        rows = events.rows
        gaps = np.where(is_again, 0, table.gaps[rows])
        table.gaps[rows[~is_again]] = 0
        errors: list[str | None] = [None] * len(rows)
        for position in np.flatnonzero(table.has_error[rows]).tolist():
            errors[position] = table.errors[int(rows[position])]
        outputs = {name: value[rows] for name, value in table.answers.items()}
        names = table.keys
        keys = [names[row] for row in rows.tolist()]
        return StreamAnswers(keys, events.numbers, outputs, gaps, is_again, errors)

    def _no_answers(self) -> StreamAnswers:
        outputs = {name: value[:0].copy() for name, value in self._table.answers.items()}
        return StreamAnswers([], np.zeros(0, np.int64), outputs, np.zeros(0, np.int64), np.zeros(0, bool), [])


class StreamTable:
    """States and last answers of many streams. Its arrays grow by doubling, so the last rows may be unused.

    Attributes:
        keys: Keys by row.
        stride: Samples after which a stream has an answer.
        last_numbers: Number of the last event of each stream, -1 before the first, ``(capacity,)``.
        steps: Samples that each stream has taken, ``(capacity,)``.
        states: By the name of the input, ``(capacity, ...)``, with the samples of unfinished patches.
        gaps: Numbers that were skipped since the last answer, ``(capacity,)``.
        answers: Outputs for the last event by name, ``(capacity, ...)``.
        static: Values that never change within a stream, NaN where not known, ``(capacity, names)``.
        elapsed: Sum of ``dt`` since the time of :attr:`clocks`, ``(capacity,)``; without rows for models without.
        errors: Why the last event has no answer, by row.
        has_error: True for these rows, ``(capacity,)``.
        clocks: Times of streams that came from elsewhere with one, by row.
    """

    def __init__(self, model: ServedModel) -> None:
        spec = stream_spec(model)
        self.keys: list[Key] = []
        self._rows: dict[Key, int] = {}
        self.stride = spec.format.patch_stride
        self.last_numbers: Array = np.full(1, -1, np.int64)
        self.steps: Array = np.zeros(1, np.int64)
        self.states: dict[str, Array] = {
            state.input: np.zeros((1, *(int(size) for size in state.shape[1:])), np.dtype(state.dtype))
            for state in model.states
        }
        if spec.patches is not None:
            self.states |= {
                name: np.zeros((1, *shape), dtype) for name, (shape, dtype) in spec.patches.state_shapes.items()
            }
        self.gaps: Array = np.zeros(1, np.int64)
        outputs = {output.name: np.dtype(output.dtype) for output in model.step.signature.outputs}
        self.answers: dict[str, Array] = {
            name: np.zeros((1, *shape), outputs[name]) for name, shape in spec.format.outputs.items() if name in outputs
        }
        self.static: Array = np.full((1, spec.static_size), np.nan, np.float32)
        self.elapsed: Array | None = np.zeros(1, np.float64) if spec.takes_dt else None
        self.errors: dict[int, str] = {}
        self.has_error: Array = np.zeros(1, bool)
        self.clocks: dict[int, Clock] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays of a checkpoint by name, without unused rows."""
        count = len(self)
        yield "last_numbers", self.last_numbers[:count]
        yield "steps", self.steps[:count]
        yield "static", self.static[:count]
        if self.elapsed is not None:
            yield "elapsed", self.elapsed[:count]
        if self.stride > 1:
            yield "gaps", self.gaps[:count]
        for name, value in self.states.items():
            yield f"state {name}", value[:count]
        for name, value in self.answers.items():
            yield f"answer {name}", value[:count]

    def restore(self, keys: Sequence[Key], arrays: Mapping[str, Array], copied: Callable[[], None]) -> None:
        """Fill an empty table with the arrays of a checkpoint, whose shapes fit.

        Args:
            keys: Keys by row.
            arrays: The arrays by name.
            copied: Called each time that some rows of an array were copied.
        """
        self.claim(keys)
        for name, value in self.arrays():
            for start in range(0, len(value), _COPIED_ROWS):
                rows = slice(start, start + _COPIED_ROWS)
                value[rows] = arrays[name][rows]
                copied()

    def find(self, key: Key) -> int | None:
        """Return the row of a key; None if it has none."""
        return self._rows.get(key)

    def claim(self, keys: Sequence[Key], static: Array | None = None) -> Array:
        """Return the rows of keys, ``(keys,)``, and begin the streams that are new.

        Args:
            keys: The keys, which may repeat.
            static: Static values for streams that begin, ``(keys, names)``.
        """
        rows, first_new = self._rows, len(self)
        indices: list[Any] = list(map(rows.get, keys))
        if None in indices:
            positions = []
            for position, row in enumerate(indices):
                if row is not None:
                    continue
                key = keys[position]
                if key not in rows:
                    rows[key] = len(self.keys)
                    self.keys.append(key)
                    positions.append(position)
                indices[position] = rows[key]
            self._reserve(len(self.keys))
            if static is not None:
                self.static[first_new : len(self)] = static[positions]
        return np.array(indices, np.int64)

    def set_results(
        self, rows: Array, outputs: Mapping[str, Array], states: Mapping[str, Array], dt: Array | None
    ) -> None:
        """Store the answers and states of streams after one more sample; rows are unique.

        Without outputs, the sample has filled no patch. ``dt`` is the time of the sample.
        """
        if self.elapsed is not None and dt is not None:
            self.elapsed[rows] += dt
        for name, value in states.items():
            self.states[name][rows] = value
        for name, value in outputs.items():
            self.answers[name][rows] = value
        self.steps[rows] += 1
        for row in rows[self.has_error[rows]].tolist():
            self.has_error[row] = False
            del self.errors[row]

    def set_error(self, row: int, text: str) -> None:
        """Store that the last event of a stream has no answer."""
        self.errors[row] = text
        self.has_error[row] = True
        for value in self.answers.values():
            value[row] = np.nan if value.dtype.kind == "f" else 0

    def is_answered(self, rows: Array) -> Array:
        """Return True for streams whose last event has an answer or an error; others have begun a patch with it."""
        is_answered: Array = self.has_error[rows] | (self.steps[rows] % self.stride == 0)
        return is_answered

    def clock(self, row: int) -> Clock:
        """Return the time of the last reading of a stream."""
        clock = self.clocks.get(row)
        return Clock() if clock is None else Clock(clock.origin, clock.steps + self._elapsed_steps(row))

    def set_clock(self, row: int, clock: Clock) -> None:
        """Set the time of the last reading of a stream."""
        self.clocks.pop(row, None)
        if self.elapsed is not None:
            self.elapsed[row] = 0
        if clock.origin is not None:
            self.clocks[row] = Clock(clock.origin, clock.steps - self._elapsed_steps(row))

    def drop(self, row: int) -> int | None:
        """Remove a stream, whose row the last one takes. Return the last row; None if it was that of the stream."""
        last = len(self) - 1
        del self._rows[self.keys[row]]
        self.errors.pop(row, None)
        self.clocks.pop(row, None)
        for arrays, name, fill in self._row_arrays():
            arrays[name][row] = arrays[name][last]
            # A stream that begins later finds the row as a new one.
            arrays[name][last] = fill
        if row != last:
            self.keys[row] = self.keys[last]
            self._rows[self.keys[row]] = row
            if last in self.errors:
                self.errors[row] = self.errors.pop(last)
            if last in self.clocks:
                self.clocks[row] = self.clocks.pop(last)
        self.keys.pop()
        return None if row == last else last

    def _elapsed_steps(self, row: int) -> float:
        """Return regular steps that count from the clock of a stream on."""
        return float(self.steps[row]) if self.elapsed is None else float(self.elapsed[row])

    def _row_arrays(self) -> Iterator[tuple[dict[str, Any], str, float]]:
        """Yield where each array lies, by dictionary and key, and the value of its unused rows."""
        for name in ("last_numbers", "steps", "gaps", "static", "has_error", "elapsed"):
            if getattr(self, name) is not None:
                yield vars(self), name, {"last_numbers": -1, "static": np.nan}.get(name, 0)
        for arrays in (self.states, self.answers):
            for name in arrays:
                yield arrays, name, 0

    def _reserve(self, rows: int) -> None:
        capacity = len(self.steps)
        if rows > capacity:
            # One after the other, so that no two arrays are in memory twice.
            for arrays, name, fill in self._row_arrays():
                arrays[name] = _grow(arrays[name], max(rows, 2 * capacity), fill)


def _grow(value: Array, rows: int, fill: float = 0) -> Array:
    """Return a copy with more rows, the new ones filled."""
    shape = (rows, *value.shape[1:])
    # Unlike a fill, zeros take no memory until they are written.
    larger = np.zeros(shape, value.dtype) if fill == 0 else np.full(shape, fill, value.dtype)
    larger[: len(value)] = value
    return larger
