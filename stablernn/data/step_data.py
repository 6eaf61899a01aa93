"""Sequences with a target at every step: texts, music, audio, and the memory tasks; their segments and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, Int64Array, Samples, SplitName
from stablernn.data.types import ClassificationData, ForecastData, Notes, any_missing, check_split
from stablernn.data.windows import SampleSource

Output = Literal["categorical", "bernoulli", "real"]

NO_TARGET = -1
"""Class of a step that is not scored; NaN where targets are numbers."""

MAX_NUMBERS = 2**25
MAX_SEQUENCES = 5000
"""Limits on the training inputs that the scale is fitted to: others are neither generated nor read for it."""

Array = npt.NDArray[Any]


class StepSplit(SampleSource, Protocol):
    """Numbered sequences of one split, stored or generated on demand.

    Attributes:
        lengths: int64 (samples,), steps of each sequence.
    """

    @property
    def lengths(self) -> Int64Array: ...

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Return the sequences with these numbers, padded with zeros, and their targets, padded with "no target".

        Returns:
            ``x`` (n, time, features) float32, or (n, time) int64 where the inputs are tokens; ``y`` (n, time) int64 of
            classes, :data:`NO_TARGET` where none, or (n, time, outputs) float32, NaN where none.
        """
        ...


@dataclass(frozen=True, eq=False)
class StoredSteps:
    """Sequences in memory.

    Attributes:
        inputs: Array of each sequence: float32 (length, features), or whole numbers (length,) of any integer type.
        targets: Array of each sequence: whole numbers (length,), or float32 (length, outputs).
    """

    inputs: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]

    @property
    def lengths(self) -> Int64Array:
        return self._lengths

    @cached_property
    def _lengths(self) -> Int64Array:
        return np.array([len(sequence) for sequence in self.inputs], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.inputs)

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        numbers = np.asarray(indices, dtype=np.int64)
        lengths = self.lengths[numbers]
        x = _pad([self.inputs[i] for i in numbers], 0)
        y = _pad([self.targets[i] for i in numbers], None)
        return Samples(x, lengths, y)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class StepData:
    """Sequences that are predicted step by step: at each step the next input, or a target of its own.

    Attributes:
        name: The dataset's name.
        output: Kind of the answer at a step: one of several classes (``categorical``), several binary targets
            (``bernoulli``), or numbers (``real``).
        tokens: Whether inputs are tokens (whole numbers below ``len(features)``) instead of numbers on channels.
        features: Names of the input channels; of tokens the vocabulary, in order.
        outputs: Names of the classes, binary targets or numbers.
        train: The split that a model is fitted to.
        validation: The split that selects the best weights.
        test: The split that is scored at the end.
        continuous: Whether each split is one running text, cut into parallel streams whose state is carried over from
            batch to batch, and not separate sequences.
        headline: The metric for model selection: ``bpc``, ``perplexity``, ``nll``, ``mse``, ``loss`` or ``accuracy``.
        answer_steps: Steps at the end that hold the answer, to which accuracy is limited; None: all steps.
        notes: Counts of what was read, cut or skipped, as JSON types.
        fingerprint: ``sha256:`` of the content, or of the settings that generate it.
    """

    name: str
    output: Output
    tokens: bool
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    train: StepSplit
    validation: StepSplit
    test: StepSplit
    continuous: bool
    headline: str
    notes: Notes
    fingerprint: str
    answer_steps: int | None = None
    task: Literal["predict-next", "simulate"] = "predict-next"

    def split(self, name: str) -> StepSplit:
        """Return one of the splits train, validation and test.

        Raises:
            UnknownNameError: If there is no split of that name.
        """
        return self.splits()[check_split(name)]

    def splits(self) -> dict[SplitName, StepSplit]:
        """Return the splits, by name."""
        return dict(zip(SPLITS, (self.train, self.validation, self.test), strict=True))

    @property
    def time_step(self) -> None:
        """The regular step: None, since steps of this task have no times."""
        return None

    @property
    def frequency(self) -> None:
        """Frequency alias of the time grid: None, since sequences are on none."""
        return None

    def with_time_step(self, time_step: float | None) -> StepData:
        """Return the data as it is: its steps have no times."""
        return self

    def longest_step(self) -> float:
        """Return the largest time between two steps, in steps."""
        return 1.0

    def without_validation(self) -> StepData:
        """Refuse to train on the validation split: the best weights are chosen by it.

        Raises:
            ConfigError: Always.
        """
        raise errors.ConfigError(f"training.refit is not used by the task 'predict-next', and '{self.name}' is for it.")

    def has_missing_inputs(self) -> bool:
        """Return True if any input of the training split is missing; tokens never are."""
        return not self.tokens and any_missing(self.training_values())

    @property
    def longest_input(self) -> int:
        """Steps of the longest training sequence."""
        return int(np.asarray(self.train.lengths).max())

    @property
    def held_bytes(self) -> int:
        """Memory that sequences take that lie in memory; those that are made on demand take none."""
        stored = [split for split in self.splits().values() if isinstance(split, StoredSteps)]
        # An array that two splits or inputs and targets share is counted once.
        arrays = {id(array): array for split in stored for array in (*split.inputs, *split.targets)}
        return sum(array.nbytes for array in arrays.values())

    def training_values(self) -> list[Float32Array]:
        """Return inputs (length, features) to fit the scaling on; tokens have none."""
        if self.tokens:
            raise errors.ConfigError(f"'{self.name}' has tokens as inputs, which are not scaled.")
        return [np.asarray(x, dtype=np.float32) for x, _ in self.training_sequences()]

    def training_sequences(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield inputs and targets of training sequences, for scaling, frequencies and means.

        If they are more than :data:`MAX_NUMBERS` or :data:`MAX_SEQUENCES`, only some, evenly spaced, are yielded.
        """
        lengths = np.asarray(self.train.lengths)
        numbers = int(lengths.sum()) * (1 if self.tokens else len(self.features))
        # The least stride that stays below both limits; -(-a // b) rounds up.
        stride = max(1, -(-numbers // MAX_NUMBERS), -(-len(lengths) // MAX_SEQUENCES))
        for index in range(0, len(lengths), stride):
            sample = self.train.gather([index])
            length = int(sample.lengths[0])
            yield sample.x[0, :length], sample.y[0, :length]


Data = ClassificationData | ForecastData | StepData
"""Loaded data of any task."""


def _pad(sequences: Sequence[np.ndarray], value: float | None) -> Float32Array | Int64Array:
    """Return sequences (length, ...) as one padded array; ``value`` None stands for "no target" of their kind."""
    is_integer = sequences[0].dtype.kind in "iub" and sequences[0].ndim == 1
    fill = value if value is not None else (NO_TARGET if is_integer else np.nan)
    longest = max(len(sequence) for sequence in sequences)
    shape = (len(sequences), longest, *sequences[0].shape[1:])
    result: Float32Array | Int64Array = (
        np.full(shape, fill, dtype=np.int64) if is_integer else np.full(shape, fill, dtype=np.float32)
    )
    for row, sequence in zip(result, sequences, strict=True):
        row[: len(sequence)] = sequence
    return result


class Segment(NamedTuple):
    """A segment of some sequences, without those that have ended: as rows fall by length, the first ones remain.

    Attributes:
        x: (rows, steps, features), or (rows, steps) of tokens.
        lengths: int64 (rows,), steps of the segment that are no padding, 1 or more.
        y: Targets of the segment.
        dt: (rows, steps) or None.
        start: Steps of the sequences before the segment.
        remaining: int64 (rows,), steps from the beginning of the segment to the end of each sequence.
        rows: int64 (rows,), the sequences' numbers.
    """

    x: Array
    lengths: Int64Array
    y: Array
    dt: Array | None
    start: int
    remaining: Int64Array
    rows: Int64Array


def streams(split: StepSplit, count: int) -> Samples:
    """Return all sequences of a split, concatenated and cut into ``count`` rows of equal length; nothing is left out.

    The last row may be shorter, and of very short splits there are fewer.
    """
    parts = [split.gather([index]) for index in range(len(split))]
    x: Array = np.concatenate([part.x[0, : int(part.lengths[0])] for part in parts])
    y: Array = np.concatenate([part.y[0, : int(part.lengths[0])] for part in parts])
    # Rounded up: the last row is filled with padding.
    steps = -(-len(x) // count)
    lengths = np.array([min(steps, len(x) - start) for start in range(0, len(x), steps)], dtype=np.int64)
    missing_steps = steps - int(lengths[-1])
    # Padding must not be scored: a class that is none, or NaN.
    no_target = NO_TARGET if y.dtype.kind == "i" else np.nan
    x = np.concatenate([x, np.zeros((missing_steps, *x.shape[1:]), x.dtype)])
    y = np.concatenate([y, np.full((missing_steps, *y.shape[1:]), no_target, y.dtype)])
    rows = len(lengths)
    return Samples(x.reshape(rows, steps, *x.shape[1:]), lengths, y.reshape(rows, steps, *y.shape[1:]))


def segments(samples: Samples, rows: Int64Array, steps: int) -> Iterator[Segment]:
    """Yield the segments of sequences, one after the other.

    Args:
        samples: The sequences, the longest first.
        rows: Their numbers.
        steps: Length of a segment.
    """
    for start in range(0, int(samples.lengths[0]), steps):
        yield segment(samples, rows, start, steps)


def segment(samples: Samples, rows: Int64Array, start: int, steps: int) -> Segment:
    """Return the segment of :func:`segments` that begins after ``start`` steps."""
    # Rows fall by length, so those that are still going are the first ones.
    count = int((samples.lengths > start).sum())
    remaining = np.asarray(samples.lengths[:count] - start)
    lengths = np.minimum(remaining, steps)
    columns = slice(start, start + int(lengths[0]))
    dt = None if samples.dt is None else samples.dt[:count, columns]
    return Segment(samples.x[:count, columns], lengths, samples.y[:count, columns], dt, start, remaining, rows[:count])


def count_targets(y: Array) -> int:
    """Return the number of targets that are there: classes, or numbers."""
    return int((y != NO_TARGET).sum() if y.dtype.kind == "i" else (~np.isnan(y)).sum())
