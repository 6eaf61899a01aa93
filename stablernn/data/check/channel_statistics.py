"""Statistics of channels over any number of arrays of any length, without a copy of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Float32Array, Int64Array
from stablernn.data.check.report import Column, Findings, Role
from stablernn.data.messages import format_names, pluralize

#: A value further than so many robust deviations from the median is more likely an error than a measurement. Mean and
#: standard deviation are no substitute: a code such as -999 moves them towards itself.
OUTLIER_DEVIATIONS = 10
# Nine of ten values of a normal distribution lie within 1.645 standard deviations. The median distance would work for
# it as well, but not for skewed values such as rain, or pixels that are dark most of the time.
_QUANTILE, _NORMAL_QUANTILE = 0.9, 1.645
# Maximum number of training rows for the median; of more, rows at regular distances are taken.
_MAX_ROWS = 1 << 20
_MOSTLY_MISSING = 0.5
_CHUNK_ROWS = 100_000


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Statistics of each channel, arrays of shape (channels,).

    Attributes:
        num_steps: Number of steps over all arrays.
        missing: Number of NaN values.
        low: Smallest value; NaN if there is none.
        high: Largest value; NaN if there is none.
        outliers: Number of values further than :data:`OUTLIER_DEVIATIONS` robust deviations from the median.
        constant: True if the channel has a single value in the training split.
    """

    num_steps: int
    missing: Int64Array
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    outliers: Int64Array
    constant: npt.NDArray[np.bool_]


def compute_statistics(
    arrays: Sequence[Float32Array], training: Sequence[Float32Array], *, own_scale: bool = False
) -> ChannelStatistics:
    """Compute statistics over arrays of shape (length, channels).

    Args:
        arrays: All of the data.
        training: The training split, whose median and deviation define outliers.
        own_scale: Compare each array with its own training part, as series of very different levels need;
            ``training`` then has one array for each of ``arrays``.
    """
    steps, missing = 0, np.zeros(training[0].shape[1], np.int64)
    for chunk in _chunks(arrays):
        steps += len(chunk)
        missing += np.isnan(chunk).sum(axis=0)
    if own_scale:
        counts = [_count_outliers([array], [part]) for array, part in zip(arrays, training, strict=True)]
        outliers = np.sum(counts, axis=0)
    else:
        outliers = _count_outliers(arrays, training)
    low, high = _range(arrays)
    training_low, training_high = _range(training)
    return ChannelStatistics(steps, missing, low, high, outliers, training_low == training_high)


def _range(arrays: Sequence[Float32Array]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the smallest and the largest value of each channel; NaN if there is none."""
    low, high = np.full(arrays[0].shape[1], np.nan), np.full(arrays[0].shape[1], np.nan)
    for chunk in _chunks(arrays):
        low, high = np.fmin(low, np.fmin.reduce(chunk)), np.fmax(high, np.fmax.reduce(chunk))
    return low, high


def _count_outliers(values: Sequence[Float32Array], training: Sequence[Float32Array]) -> Int64Array:
    """Count the values of each channel that are far from the training median."""
    stride = max(1, sum(map(len, training)) // _MAX_ROWS)
    rows = np.concatenate([array[::stride] for array in training]).astype(np.float64)
    median, deviation = np.array([robust_scale(column[~np.isnan(column)]) for column in rows.T]).T
    counts = np.zeros(len(median), np.int64)
    for chunk in _chunks(values):
        counts += (np.abs(chunk - median) > OUTLIER_DEVIATIONS * deviation).sum(axis=0)
    return counts


def robust_scale(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the median and the robust deviation from it.

    If nearly all values are equal, the deviation is the median distance of the others.
    """
    if not len(values):
        return np.nan, np.nan
    median = float(np.median(values))
    distances = np.abs(values - median)
    others = distances[distances > 0]
    if not len(others):
        return median, np.inf
    return median, float(np.quantile(distances, _QUANTILE) / _NORMAL_QUANTILE or np.median(others))


def build_columns(statistics: ChannelStatistics, names: Sequence[str], roles: Sequence[Role]) -> tuple[Column, ...]:
    """Return the report's column for each channel."""
    return tuple(
        Column(
            name=name,
            role=role,
            kind="empty" if statistics.missing[i] == statistics.num_steps else "numbers",
            missing=float(statistics.missing[i] / max(statistics.num_steps, 1)),
            low=None if np.isnan(statistics.low[i]) else _to_float(statistics.low[i]),
            high=None if np.isnan(statistics.high[i]) else _to_float(statistics.high[i]),
            outliers=int(statistics.outliers[i]),
        )
        for i, (name, role) in enumerate(zip(names, roles, strict=True))
    )


def warn_about_statistics(
    statistics: ChannelStatistics, names: Sequence[str], findings: Findings, *, num_computed: int = 0
) -> None:
    """Warn about missing values, constant channels and outliers.

    Args:
        statistics: Statistics of the channels.
        names: Names of the channels.
        findings: Gets warnings.
        num_computed: Number of channels that were computed, not read, and so have no missing values.
    """
    total = statistics.num_steps * (len(names) - num_computed)
    missing = int(statistics.missing.sum())
    if missing:
        share = f"{missing / total:.1%}" if missing >= total / 1000 else f"{missing / total:.1g}"
        findings.warn("missing_values", f"{_format_count(missing, 'value')} missing, of {total} ({share}).")
    limit = _MOSTLY_MISSING * statistics.num_steps
    sparse = [name for name, count in zip(names, statistics.missing, strict=True) if count > limit]
    if sparse:
        findings.warn("mostly_missing", f"More than half of the values are missing in {format_names(sparse)}.")
    constant = [name for name, is_constant in zip(names, statistics.constant, strict=True) if is_constant]
    if constant:
        findings.warn(
            "constant_column",
            f"{format_names(constant)} {'has' if len(constant) == 1 else 'have'} a single value in all of training "
            "(scale 0), from which nothing can be learnt.",
        )
    outliers = {name: int(count) for name, count in zip(names, statistics.outliers, strict=True) if count}
    if outliers:
        counts = format_names([f"{name} ({count})" for name, count in outliers.items()])
        findings.warn(
            "outliers",
            f"{pluralize(sum(outliers.values()), 'value')} further than {OUTLIER_DEVIATIONS} robust deviations from "
            f"the median: {counts}. Look whether they are real; a code such as -999 for a missing value is not.",
        )


def content_hash(values: npt.NDArray[np.generic]) -> bytes:
    """Return a hash of the shape and the content of an array."""
    digest = hashlib.blake2b(repr(values.shape).encode(), digest_size=16)
    # A view of the bytes, not a copy: a series may be larger than the memory.
    digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _chunks(arrays: Iterable[Float32Array]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the rows of all arrays in float64, in chunks of at least ``_CHUNK_ROWS`` rows but for the last."""
    buffer: list[Float32Array] = []
    rows = 0
    for array in arrays:
        for start in range(0, len(array), _CHUNK_ROWS):
            buffer.append(array[start : start + _CHUNK_ROWS])
            rows += len(buffer[-1])
            if rows >= _CHUNK_ROWS:
                yield np.concatenate(buffer).astype(np.float64)
                buffer, rows = [], 0
    if rows:
        yield np.concatenate(buffer).astype(np.float64)


def _to_float(value: np.float64) -> float:
    # The shortest decimal number that rounds to the float32, not the exact value of the float32.
    return float(str(np.float32(value)))


def _format_count(count: int, noun: str) -> str:
    return f"{pluralize(count, noun)} {'is' if count == 1 else 'are'}"
