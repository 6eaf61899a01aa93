"""Figures of channels over arrays of any number and length, without a copy of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Float32Array, Int64Array
from stablernn.data.check._report import Column, Findings, Role
from stablernn.data.messages import format_names, pluralize

#: Robust deviations from the median beyond which a value is more likely a mistake than a measurement. Mean and standard
#: deviation would not do: a code such as -999 moves them towards itself.
FAR = 10
# Nine of ten values of a normal distribution lie within so many standard deviations. The median distance would do for
# it as well, but not for skewed values, such as rain, or pixels that are dark most of the time.
_SHARE, _ROBUST = 0.9, 1.645
# Training rows that the median is taken of; of more, some at even distances.
_MOST_ROWS = 1 << 20
_MOSTLY = 0.5
_CHUNK_ROWS = 100_000


@dataclass(frozen=True, eq=False)
class ChannelFigures:
    """Figures of each channel, arrays of (channels,).

    Attributes:
        values: Steps looked at.
        missing: Values that are NaN.
        low: Smallest value; NaN where there is none.
        high: Largest value; NaN where there is none.
        outliers: Values further than :data:`FAR` robust deviations from the median.
        constant: Whether the channel has one value only in what is trained on.
    """

    values: int
    missing: Int64Array
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    outliers: Int64Array
    constant: npt.NDArray[np.bool_]


def channel_figures(
    everything: Sequence[Float32Array], training: Sequence[Float32Array], *, own_scale: bool = False
) -> ChannelFigures:
    """Figures over all arrays (length, channels).

    Args:
        everything: All of the data.
        training: The part that is trained on, against whose median and deviation outliers are held.
        own_scale: Whether each array is held against its own part of training, as series of very different levels
            must be; there are as many of them then.
    """
    steps, missing = 0, np.zeros(training[0].shape[1], np.int64)
    for chunk in _chunks(everything):
        steps += len(chunk)
        missing += np.isnan(chunk).sum(axis=0)
    if own_scale:
        found = [_outliers([one], [known]) for one, known in zip(everything, training, strict=True)]
        outliers = np.sum(found, axis=0)
    else:
        outliers = _outliers(everything, training)
    low, high = _range(everything)
    lowest, highest = _range(training)
    return ChannelFigures(steps, missing, low, high, outliers, lowest == highest)


def _range(arrays: Sequence[Float32Array]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Smallest and largest value of each channel; NaN where there is none."""
    low, high = np.full(arrays[0].shape[1], np.nan), np.full(arrays[0].shape[1], np.nan)
    for chunk in _chunks(arrays):
        low, high = np.fmin(low, np.fmin.reduce(chunk)), np.fmax(high, np.fmax.reduce(chunk))
    return low, high


def _outliers(values: Sequence[Float32Array], training: Sequence[Float32Array]) -> Int64Array:
    """Values of each channel far from the median of training."""
    stride = max(1, sum(map(len, training)) // _MOST_ROWS)
    rows = np.concatenate([one[::stride] for one in training]).astype(np.float64)
    middle, deviation = np.array([_robust(column[~np.isnan(column)]) for column in rows.T]).T
    found = np.zeros(len(middle), np.int64)
    for chunk in _chunks(values):
        found += (np.abs(chunk - middle) > FAR * deviation).sum(axis=0)
    return found


def _robust(known: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Median, and robust deviation from it; of what has one value nearly always, the median distance of the others."""
    if not len(known):
        return np.nan, np.nan
    middle = float(np.median(known))
    distances = np.abs(known - middle)
    others = distances[distances > 0]
    if not len(others):
        return middle, np.inf
    return middle, float(np.quantile(distances, _SHARE) / _ROBUST or np.median(others))


def figures_as_columns(figures: ChannelFigures, names: Sequence[str], roles: Sequence[Role]) -> tuple[Column, ...]:
    """A column for each channel."""
    return tuple(
        Column(
            name=name,
            role=role,
            kind="empty" if figures.missing[i] == figures.values else "numbers",
            missing=float(figures.missing[i] / max(figures.values, 1)),
            low=None if np.isnan(figures.low[i]) else _short(figures.low[i]),
            high=None if np.isnan(figures.high[i]) else _short(figures.high[i]),
            outliers=int(figures.outliers[i]),
        )
        for i, (name, role) in enumerate(zip(names, roles, strict=True))
    )


def warn_of_figures(figures: ChannelFigures, names: Sequence[str], findings: Findings, *, made: int = 0) -> None:
    """Warnings about missing, constant and far values; ``made`` channels were computed and not read."""
    total = figures.values * (len(names) - made)
    missing = int(figures.missing.sum())
    if missing:
        share = f"{missing / total:.1%}" if missing >= total / 1000 else f"{missing / total:.1g}"
        findings.warn("missing_values", f"{_are(missing, 'value')} missing, of {total} ({share}).")
    sparse = [name for name, count in zip(names, figures.missing, strict=True) if count > _MOSTLY * figures.values]
    if sparse:
        findings.warn("mostly_missing", f"More than half of the values are missing in {format_names(sparse)}.")
    constant = [name for name, flat in zip(names, figures.constant, strict=True) if flat]
    if constant:
        findings.warn(
            "constant_column",
            f"{format_names(constant)} {'has' if len(constant) == 1 else 'have'} a single value in all of training "
            "(scale "
            "0), from which nothing can be learnt.",
        )
    far = {name: int(count) for name, count in zip(names, figures.outliers, strict=True) if count}
    if far:
        words = format_names([f"{name} ({count})" for name, count in far.items()])
        findings.warn(
            "outliers",
            f"{pluralize(sum(far.values()), 'value')} further than {FAR} robust deviations from the median: {words}. "
            "Look whether they are real; a code such as -999 for a missing value is not.",
        )


def content_hash(values: npt.NDArray[np.generic]) -> bytes:
    """The same bytes for arrays of the same shape and content."""
    digest = hashlib.blake2b(repr(values.shape).encode(), digest_size=16)
    # A view of the bytes and no copy: a series may be larger than the memory.
    digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _chunks(arrays: Iterable[Float32Array]) -> Iterator[npt.NDArray[np.float64]]:
    """The rows of all arrays in pieces that numpy is fast on, in double precision."""
    held: list[Float32Array] = []
    rows = 0
    for array in arrays:
        for start in range(0, len(array), _CHUNK_ROWS):
            held.append(array[start : start + _CHUNK_ROWS])
            rows += len(held[-1])
            if rows >= _CHUNK_ROWS:
                yield np.concatenate(held).astype(np.float64)
                held, rows = [], 0
    if rows:
        yield np.concatenate(held).astype(np.float64)


def _short(value: np.float64) -> float:
    # The shortest figure that stands for the float32 in the file, not its expansion.
    return float(str(np.float32(value)))


def _are(count: int, word: str) -> str:
    return f"{pluralize(count, word)} {'is' if count == 1 else 'are'}"
