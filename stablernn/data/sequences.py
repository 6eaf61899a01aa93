"""What readers of sequences have in common: their result, checks of numbers, words of labels, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.types import Notes
from stablernn.data.windows import Float32Array, Int64Array

#: Words that stand for a label that is not there.
NO_LABEL = ("", "?", "nan", "NaN")


@dataclass(frozen=True, eq=False)
class Sequences:
    """What a reader found in one file.

    Attributes:
        name: The file's name, for messages.
        values: One float32 array (length, features) a sequence, NaN = missing.
        labels: A word a sequence; None when the file has none.
        features: Names of the channels.
        notes: What the reader counted.
    """

    name: str
    values: list[Float32Array]
    labels: list[str] | None
    features: tuple[str, ...]
    notes: Notes = field(default_factory=dict)


def channel_names(count: int) -> tuple[str, ...]:
    """Names for channels that have none in their file: ``value``, or ``channel_0``, ``channel_1``, ..."""
    return ("value",) if count == 1 else tuple(f"channel_{index}" for index in range(count))


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


def plain_word(label: str) -> str:
    """The label as people write it: ``1.0000000e+00``, as some archives store the class 1, is ``1``."""
    try:
        number = float(label)
    except ValueError:
        return label
    return str(int(number)) if number.is_integer() and not label.lstrip("+-").isdigit() else label


def sorted_labels(words: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels: in numeric order when all are numbers, else in alphabetical order."""
    distinct = sorted(set(words))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(distinct)


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
