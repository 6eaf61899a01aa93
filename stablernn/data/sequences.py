"""What readers of sequences have in common: their result, checks of numbers, words of labels, padding."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array
from stablernn.data.messages import counted, listing, quoted
from stablernn.data.types import Notes

#: Words that stand for a label that is not there.
NO_LABEL = ("", "?", "nan", "NaN")

# Whole numbers as archives write them, by %f or %e. Nothing else is rewritten: 1E2 or 1_000 may be names.
_WHOLE = re.compile(r"[+-]?(\d+\.0*|\d\.\d+e[+-]\d\d)")
# Rounding to float32 may move a value by this share of its column's spread: more, and the model sees steps, not data.
_COARSEST = 0.01
# What varies by no more than this share of its size is a constant with the rounding of float64 on it.
_FLAT = 1e-12


@dataclass(frozen=True, eq=False)
class Sequences:
    """What a reader found in one file.

    Attributes:
        name: The file's name, for messages.
        values: One float32 array (length, features) a sequence, NaN = missing.
        labels: A word a sequence; None when the file has none.
        features: Names of the channels.
        notes: What the reader counted.
        times: When each step was, float64 (length,) a sequence, never falling, in any unit; None when the file does
            not say.
        names: What each sequence is called; None when the file does not say.
        places: Where each sequence stands, such as ``line 4``, for messages.
    """

    name: str
    values: list[Float32Array]
    labels: list[str] | None
    features: tuple[str, ...]
    notes: Notes = field(default_factory=dict)
    times: list[npt.NDArray[np.float64]] | None = None
    names: tuple[str, ...] | None = None
    places: tuple[str, ...] | None = None


def channel_names(count: int) -> tuple[str, ...]:
    """Names for channels that have none in their file: ``value``, or ``channel_0``, ``channel_1``, ..."""
    return ("value",) if count == 1 else tuple(f"channel_{index}" for index in range(count))


def are_names(features: Sequence[str]) -> bool:
    """Whether these are names from a file, not those of :func:`channel_names`, which say nothing but the position."""
    return tuple(features) != channel_names(len(features))


def in_order(sequences: Sequences, features: Sequence[str]) -> Sequences | None:
    """The sequences with their channels in this order; None where they have others.

    Channels are found by name where file and order both have names. Else the position is all there is to go by: the
    number must be the same, and the names become those of ``features``.
    """
    names = tuple(features)
    if not (are_names(sequences.features) and are_names(names)):
        return replace(sequences, features=names) if len(sequences.features) == len(names) else None
    if sequences.features == names:
        return sequences
    if sorted(sequences.features) != sorted(names):
        return None
    order = [sequences.features.index(name) for name in names]
    return replace(sequences, values=[values[:, order] for values in sequences.values], features=names)


def for_model(sequences: Sequences, features: Sequence[str]) -> Sequences:
    """The sequences with the channels that a model expects, see :func:`in_order`.

    Raises:
        DataError: If they have others.
    """
    found = in_order(sequences, features)
    if found is None:
        raise wrong_features(sequences.name, sequences.features, features)
    return found


def wrong_features(name: str, found: Sequence[str], expected: Sequence[str]) -> errors.DataError:
    """The error for a file whose features are not those of the model."""
    return errors.DataError(
        f"'{name}' has {counted(len(found), 'feature')} ({listing(found)}), "
        f"the model expects {len(expected)} ({listing(expected)})."
    )


def finite_float32(values: npt.NDArray[Any], where: Callable[[tuple[int, ...]], str]) -> Float32Array:
    """The values as float32; NaN stays.

    Args:
        values: Numbers, any shape.
        where: Turns the index of a value into the words that tell the user where it stands.

    Raises:
        DataError: If a value is infinite or too large for float32.
    """
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    bad = np.isinf(result)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise errors.DataError(
            f"{where(index)} is {values[index]:g}. Values must be finite float32 numbers; write a missing one as NaN."
        )
    return result


def check_resolution(values: npt.NDArray[Any], where: Callable[[int], str]) -> None:
    """Refuse columns whose differences float32 cannot tell apart, see :class:`Resolution`.

    Args:
        values: Finite numbers in their own type, the columns last; NaN is passed over.
        where: Turns the number of a column into the words that tell the user which one it is.

    Raises:
        DataError: If rounding to float32 moves a value by more than a hundredth of its column's spread.
    """
    columns = values.reshape(-1, values.shape[-1])
    for index in range(columns.shape[1]):
        seen = Resolution()
        seen.add(columns[:, index])
        seen.check(where(index))


class Resolution:
    """What a column, seen in pieces, loses by rounding to float32.

    A counter that begins at 1,700,000,000 loses its differences: the model would see steps and not data.
    """

    def __init__(self) -> None:
        self._low, self._high, self._error = np.inf, -np.inf, 0.0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Take in finite numbers (n,) in their own type; NaN is passed over."""
        if np.can_cast(values.dtype, np.float32):
            return
        column = values.astype(np.float64, copy=False)
        column = column[~np.isnan(column)]
        if not len(column):
            return
        self._low, self._high = min(self._low, float(column.min())), max(self._high, float(column.max()))
        self._error = max(self._error, float(np.abs(column - column.astype(np.float32)).max()))

    def check(self, where: str) -> None:
        """Refuse a column that loses too much.

        Raises:
            DataError: If rounding moves a value by more than a hundredth of the column's spread.
        """
        low, high = self._low, self._high
        if low < high and high - low > _FLAT * max(abs(low), abs(high)) and self._error > _COARSEST * (high - low):
            raise errors.DataError(
                f"{where} goes from {low:.17g} to {high:.17g}, which float32 rounds by up to {self._error:.3g}. "
                f"Subtract an offset, such as {low:.17g}, from all of its values."
            )


def plain_words(name: str, labels: Sequence[str]) -> list[str]:
    """Labels of a text file as people write them: ``1.0000000e+00``, as some archives store the class 1, is ``1``.

    Raises:
        DataError: If two spellings in the file become the same word, since they may be two classes.
    """
    spelled: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        word = plain_word(label)
        other = spelled.setdefault(word, label)
        if other != label:
            raise errors.DataError(
                f"'{name}' has the labels {quoted(other)} and {quoted(label)}, which are the same number. "
                "Write it in one way, or use words."
            )
    return [plain_word(label) for label in labels]


def plain_word(label: str) -> str:
    """The label; a whole number with a decimal point without it."""
    if not _WHOLE.fullmatch(label) or not float(label).is_integer():
        return label
    return str(int(float(label)))


def sorted_labels(words: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels: in numeric order when all are numbers, else in alphabetical order."""
    distinct = sorted(set(words))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(distinct)


def regular_step(times: Sequence[npt.NDArray[np.float64]]) -> float | None:
    """The median time between two steps, those at the same time aside; None where no time passes at all."""
    gaps = np.concatenate([np.diff(one) for one in times])
    return float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else None


def time_steps(times: Sequence[npt.NDArray[np.float64]], step: float, time: int | None = None) -> Float32Array:
    """The time from the step before in units of ``step``, (n, time); 1 at the first step and behind the end."""
    width = time or max(len(one) for one in times)
    dt = np.ones((len(times), width), dtype=np.float32)
    for row, one in zip(dt, times, strict=True):
        row[1 : len(one)] = np.diff(one) / step
    return dt


def pad(values: Sequence[Float32Array], time: int | None = None) -> tuple[Float32Array, Int64Array]:
    """Sequences of unequal length as one array (n, time, features), zeros behind their end, and their lengths.

    Args:
        values: At least one array (length, features).
        time: Steps of the result; the longest sequence when omitted.
    """
    lengths = np.array([len(sequence) for sequence in values], dtype=np.int64)
    x = np.zeros((len(values), time or int(lengths.max()), values[0].shape[1]), dtype=np.float32)
    for row, sequence in zip(x, values, strict=True):
        row[: len(sequence)] = sequence
    return x, lengths
