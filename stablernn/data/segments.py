"""Segments of long sequences whose state is carried on, and the parallel streams of a running text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Int64Array, Samples
from stablernn.data.step_data import NO_TARGET, StepSplit

Array = npt.NDArray[Any]


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
