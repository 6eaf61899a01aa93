"""Sequences with a target at every step: texts, notes, frames, and the memory tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Samples
from stablernn.data.types import Notes, check_split

Output = Literal["categorical", "bernoulli", "real"]

NO_TARGET = -1
"""Class of a step that is not scored; NaN where targets are numbers."""

MOST_NUMBERS = 2**25
MOST_SEQUENCES = 5000
"""Training inputs that are looked at to find their scale, so that none is made or read for that alone."""


class StepSplit(Protocol):
    """Numbered sequences of one split, stored or generated on demand.

    Attributes:
        lengths: int64 (samples,), steps of each sequence.
    """

    @property
    def lengths(self) -> Int64Array: ...

    def __len__(self) -> int: ...

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """The sequences with these numbers, padded with zeros, and their targets, padded with "no target".

        Returns:
            ``x`` (n, time, features) float32, or (n, time) int64 where the inputs are tokens; ``y`` (n, time) int64 of
            classes, :data:`NO_TARGET` where none, or (n, time, outputs) float32, NaN where none.
        """
        ...


@dataclass(frozen=True, eq=False)
class StoredSteps:
    """Sequences that lie in memory.

    Attributes:
        inputs: A sequence each: float32 (length, features), or whole numbers (length,) of any integer type.
        targets: A sequence each: whole numbers (length,), or float32 (length, outputs).
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
        chosen = np.asarray(indices, dtype=np.int64)
        lengths = self.lengths[chosen]
        x = _padded([self.inputs[i] for i in chosen], 0)
        y = _padded([self.targets[i] for i in chosen], None)
        return Samples(x, lengths, y)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class StepData:
    """Sequences to be followed step by step: at each step the model says what comes next, or what the target is.

    Attributes:
        name: The dataset's name.
        output: What is said at a step: one of several classes (``categorical``), which of several switches are on
            (``bernoulli``), or numbers (``real``).
        tokens: Whether inputs are whole numbers below ``len(features)`` in place of numbers on channels.
        features: Names of the input channels; of tokens the vocabulary, in order.
        outputs: Names of the classes, switches or numbers.
        train: What is fitted.
        validation: What the best weights are chosen by.
        test: What is scored at the end.
        continuous: Whether each split is one running text, cut into parallel streams whose state is carried on from
            batch to batch, and not sequences of their own.
        headline: The metric to choose by: ``bpc``, ``perplexity``, ``nll``, ``mse``, ``loss`` or ``accuracy``.
        answer_steps: How many steps at the end hold the answer, over which alone accuracy is counted; None: all.
        notes: What was counted, cut or skipped, as JSON types.
        fingerprint: ``sha256:`` of the content, or of what generates it.
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
    task: Literal["predict-next"] = "predict-next"

    def split(self, name: str) -> StepSplit:
        """One of the splits train, validation and test.

        Raises:
            UnknownNameError: If there is no split of that name.
        """
        return {"train": self.train, "validation": self.validation, "test": self.test}[check_split(name)]

    def training_values(self) -> list[Float32Array]:
        """Inputs (length, features) that scaling may be fitted on; tokens have none."""
        if self.tokens:
            raise errors.ConfigError(f"'{self.name}' has tokens as inputs, which are not scaled.")
        return [np.asarray(x, dtype=np.float32) for x, _ in self.training_sequences()]

    def training_sequences(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Training inputs and targets, a sequence each, from which scaling, frequencies and means are taken.

        Where they are more than :data:`MOST_NUMBERS` or :data:`MOST_SEQUENCES`, some at even distances stand for all.
        """
        lengths = np.asarray(self.train.lengths)
        numbers = int(lengths.sum()) * (1 if self.tokens else len(self.features))
        stride = max(1, -(-numbers // MOST_NUMBERS), -(-len(lengths) // MOST_SEQUENCES))
        for index in range(0, len(lengths), stride):
            sample = self.train.gather([index])
            length = int(sample.lengths[0])
            yield sample.x[0, :length], sample.y[0, :length]


def _padded(sequences: Sequence[np.ndarray], value: float | None) -> Float32Array | Int64Array:
    """Sequences (length, ...) as one array; ``value`` None stands for "no target" of their kind."""
    whole = sequences[0].dtype.kind in "iub" and sequences[0].ndim == 1
    fill = value if value is not None else (NO_TARGET if whole else np.nan)
    longest = max(len(sequence) for sequence in sequences)
    shape = (len(sequences), longest, *sequences[0].shape[1:])
    result: Float32Array | Int64Array = (
        np.full(shape, fill, dtype=np.int64) if whole else np.full(shape, fill, dtype=np.float32)
    )
    for row, sequence in zip(result, sequences, strict=True):
        row[: len(sequence)] = sequence
    return result
