"""Sequences as readers return them, and shared helpers: checks of numbers, labels as text, padding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array
from stablernn.data.messages import format_names, pluralize, quote
from stablernn.data.types import Notes, StackedValues, lengths_of
from stablernn.terms import terms

#: Cells that stand for a missing label.
NO_LABEL = ("", "?", "nan", "NaN")

# Whole numbers as archives write them, by %f or %e. Nothing else is rewritten: 1E2 or 1_000 may be names.
_WHOLE_NUMBER = re.compile(r"[+-]?(\d+\.0*|\d\.\d+e[+-]\d\d)")


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of one file.

    Attributes:
        name: The file's name, for messages.
        values: One float32 array (length, features) per sequence, NaN = missing.
        labels: One label per sequence; None when the file has none.
        features: Names of the channels.
        notes: Counts of the reader.
        times: Time of each step, one float64 array (length,) per sequence, never falling, in any unit; None when the
            file has no times.
        names: Name of each sequence; None when the file has none.
        locations: Position of each sequence in the file, such as ``line 4``, for messages.
        groups: Name of the group of each sequence, such as a person, empty where it has none; None without groups.
        weights: float32 (sequences,), weight of each sequence in the loss; None where all weigh the same.
        categories: Columns of text that became channels, each with its categories.
        frequency: Frequency alias of the time grid of a table; None without one.
    """

    name: str
    values: Sequence[Float32Array]
    labels: list[str] | None
    features: tuple[str, ...]
    notes: Notes = field(default_factory=dict)
    times: list[npt.NDArray[np.float64]] | None = None
    names: tuple[str, ...] | None = None
    locations: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    weights: Float32Array | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    frequency: str | None = None


def default_channel_names(count: int) -> tuple[str, ...]:
    """Return names for channels that have none in their file: ``value``, or ``channel_0``, ``channel_1``, ..."""
    return ("value",) if count == 1 else tuple(f"channel_{index}" for index in range(count))


def has_feature_names(features: Sequence[str]) -> bool:
    """Return True for names from a file, False for :func:`default_channel_names`, which only give the position."""
    return tuple(features) != default_channel_names(len(features))


def reorder_features(sequences: Sequences, features: Sequence[str]) -> Sequences | None:
    """Return the sequences with their channels in this order; None where they have others.

    Channels are matched by name where both the file and the order have names. Otherwise they are matched by position:
    the number must be the same, and the names become those of ``features``.
    """
    names = tuple(features)
    if not (has_feature_names(sequences.features) and has_feature_names(names)):
        return replace(sequences, features=names) if len(sequences.features) == len(names) else None
    if sequences.features == names:
        return sequences
    if sorted(sequences.features) != sorted(names):
        return None
    order = [sequences.features.index(name) for name in names]
    return replace(sequences, values=[values[:, order] for values in sequences.values], features=names)


def match_features(sequences: Sequences, features: Sequence[str]) -> Sequences:
    """Return the sequences with the channels that a model expects, see :func:`reorder_features`.

    Raises:
        DataError: If they have others.
    """
    matched = reorder_features(sequences, features)
    if matched is None:
        raise wrong_features_error(sequences.name, sequences.features, features)
    return matched


def wrong_features_error(name: str, features: Sequence[str], expected: Sequence[str]) -> errors.DataError:
    """Return the error for a file whose features differ from those of the model."""
    return errors.DataError(
        f"{terms().file(name)} has {pluralize(len(features), 'feature')} ({format_names(features)}), the model expects "
        f"{len(expected)} ({format_names(expected)})."
    )


def plain_labels(name: str, labels: Sequence[str]) -> list[str]:
    """Return labels of a text file as people write them: ``1.0000000e+00``, as some archives store class 1, is ``1``.

    Raises:
        DataError: If two spellings in the file become the same label, since they may be two classes.
    """
    spellings: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        other = spellings.setdefault(plain_label(label), label)
        if other != label:
            raise errors.DataError(
                f"{terms().file(name)} has the labels {quote(other)} and {quote(label)}, which are the same number. "
                "Write it in one way, or use words."
            )
    return [plain_label(label) for label in labels]


def plain_label(label: str) -> str:
    """Return the label, a whole number without its decimal point."""
    if not _WHOLE_NUMBER.fullmatch(label) or not float(label).is_integer():
        return label
    return str(int(float(label)))


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct labels: in numeric order when all are numbers, else in alphabetical order."""
    distinct = sorted(set(labels))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        # A label is no number.
        return tuple(distinct)


def median_time_step(times: Sequence[npt.NDArray[np.float64]]) -> float | None:
    """Return the median time between two steps, without those at the same time; None where no time passes at all."""
    gaps = np.concatenate([np.diff(sequence) for sequence in times])
    return float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else None


def compute_dt(times: Sequence[npt.NDArray[np.float64]], step: float, time: int | None = None) -> Float32Array:
    """Return the time since the previous step in units of ``step``, (n, time); 1 at the first step and in padding."""
    width = time or max(len(sequence) for sequence in times)
    dt = np.ones((len(times), width), dtype=np.float32)
    for row, sequence in zip(dt, times, strict=True):
        row[1 : len(sequence)] = np.diff(sequence) / step
    return dt


def pad_sequences(values: Sequence[Float32Array], time: int | None = None) -> tuple[Float32Array, Int64Array]:
    """Return sequences as one array (n, time, features), padded with zeros after their end, and their lengths.

    Args:
        values: At least one array (length, features).
        time: Steps of the result; the longest sequence when omitted.
    """
    if isinstance(values, StackedValues) and time is None and (stacked := values.as_array()) is not None:
        return stacked, np.full(len(stacked), stacked.shape[1], dtype=np.int64)
    lengths = lengths_of(values)
    x = np.zeros((len(values), time or int(lengths.max()), values[0].shape[1]), dtype=np.float32)
    if (lengths == x.shape[1]).all():
        np.concatenate(values, out=x.reshape(-1, x.shape[2]))
        return x, lengths
    for row, sequence in zip(x, values, strict=True):
        row[: len(sequence)] = sequence
    return x, lengths
