"""How an epoch is cut into optimizer steps: shuffled samples, or pieces of long sequences whose state is carried on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stablernn.data.arrays import Int64Array, Samples
from stablernn.data.step_data import NO_TARGET, StepSplit
from stablernn.training.batches.losses import Batch

Array = npt.NDArray[Any]


class Piece(NamedTuple):
    """What one optimizer step is made of."""

    batch: Batch
    weight: int
    """What it counts in the mean loss of the epoch: samples, or numbers that are predicted."""
    first: bool
    """Whether the state starts anew; else it is that of the piece before, of as many sequences as are still going."""


class Feed(ABC):
    """The pieces of an epoch by number, in an order that is drawn anew for each epoch."""

    steps: int
    """Pieces of an epoch; the same for every epoch."""

    @abstractmethod
    def shuffle(self, generator: torch.Generator) -> None:
        """Draw the order of an epoch."""

    @abstractmethod
    def take(self, number: int) -> Piece:
        """The piece with this number, from 0, in the order drawn last."""


class Segment(NamedTuple):
    """A stretch of some sequences. Those that have ended are left out; as rows fall by length, the first ones remain.

    Attributes:
        x: (rows, steps, features), or (rows, steps) of tokens.
        lengths: int64 (rows,), steps of the stretch that are no padding, 1 or more.
        y: Targets of the stretch.
        dt: (rows, steps) or None.
        start: Steps of the sequences before the stretch.
        left: int64 (rows,), steps from the beginning of the stretch to the end of each sequence.
        rows: int64 (rows,), the sequences' numbers.
    """

    x: Array
    lengths: Int64Array
    y: Array
    dt: Array | None
    start: int
    left: Int64Array
    rows: Int64Array


def streams(split: StepSplit, count: int) -> Samples:
    """All sequences of a split behind each other, cut into ``count`` rows of equal length; nothing is left out.

    The last row may be shorter, and of very short splits there are fewer.
    """
    parts = [split.gather([index]) for index in range(len(split))]
    x: Array = np.concatenate([part.x[0, : int(part.lengths[0])] for part in parts])
    y: Array = np.concatenate([part.y[0, : int(part.lengths[0])] for part in parts])
    steps = -(-len(x) // count)
    lengths = np.array([min(steps, len(x) - start) for start in range(0, len(x), steps)], dtype=np.int64)
    short = steps - int(lengths[-1])
    missing = NO_TARGET if y.dtype.kind == "i" else np.nan
    x = np.concatenate([x, np.zeros((short, *x.shape[1:]), x.dtype)])
    y = np.concatenate([y, np.full((short, *y.shape[1:]), missing, y.dtype)])
    rows = len(lengths)
    return Samples(x.reshape(rows, steps, *x.shape[1:]), lengths, y.reshape(rows, steps, *y.shape[1:]))


def segments(samples: Samples, rows: Int64Array, steps: int) -> Iterator[Segment]:
    """Sequences that fall in length as stretches of ``steps`` steps, one behind the other.

    Args:
        samples: The sequences, the longest first.
        rows: Their numbers.
        steps: Length of a stretch.
    """
    for start in range(0, int(samples.lengths[0]), steps):
        yield segment(samples, rows, start, steps)


def segment(samples: Samples, rows: Int64Array, start: int, steps: int) -> Segment:
    """One stretch of :func:`segments`."""
    going = int((samples.lengths > start).sum())
    left = np.asarray(samples.lengths[:going] - start)
    lengths = np.minimum(left, steps)
    part = slice(start, start + int(lengths[0]))
    dt = None if samples.dt is None else samples.dt[:going, part]
    return Segment(samples.x[:going, part], lengths, samples.y[:going, part], dt, start, left, rows[:going])


def scored_entries(y: Array) -> int:
    """Targets that there are: classes, or numbers."""
    return int((y != NO_TARGET).sum() if y.dtype.kind == "i" else (~np.isnan(y)).sum())


class StepFeed(Feed):
    """Sequences with a target at each step, in batches that are cut into stretches for truncated backpropagation.

    A running text is one batch of parallel streams, in the order of the text. Other sequences are drawn anew into
    batches each epoch, among those with as many stretches, so that little is padding and every epoch has as many steps.

    Args:
        split: The sequences.
        batch_size: Streams, or sequences in a batch.
        bptt_steps: Longest stretch; 0 for whole sequences.
        continuous: Whether the split is one running text.
        device: Where the tensors go.
    """

    def __init__(
        self, split: StepSplit, batch_size: int, bptt_steps: int, *, continuous: bool, device: torch.device
    ) -> None:
        self._split = split
        self._size = batch_size
        self._device = device
        self._streams = streams(split, batch_size) if continuous else None
        self._lengths = self._streams.lengths if self._streams is not None else np.asarray(split.lengths)
        self._bptt = bptt_steps or int(self._lengths.max())
        self._counts = -(-self._lengths // self._bptt)
        self._order = self._batches(np.arange(len(self._lengths)))
        self.steps = sum(count for _, count in self._order)
        self._held: tuple[int, Samples] | None = None

    def shuffle(self, generator: torch.Generator) -> None:
        self._held = None
        if self._streams is not None:
            return
        order = torch.randperm(len(self._lengths), generator=generator).numpy()
        batches = self._batches(order)
        self._order = [batches[number] for number in torch.randperm(len(batches), generator=generator)]

    def take(self, number: int) -> Piece:
        place = 0
        while number >= self._order[place][1]:
            number -= self._order[place][1]
            place += 1
        rows = self._order[place][0]
        part = segment(self._samples(place), rows, number * self._bptt, self._bptt)
        dt = None if part.dt is None else self._tensor(part.dt)
        batch = Batch(self._tensor(part.x), self._tensor(part.lengths), self._tensor(part.y), dt)
        return Piece(batch, scored_entries(part.y), number == 0)

    def _batches(self, order: Int64Array) -> list[tuple[Int64Array, int]]:
        """Numbers of the sequences of each batch, the longest first, and its stretches."""
        if self._streams is not None:
            return [(order, int(self._counts.max()))]
        # Sorted by their stretches only: which sequences with as many come together is left to the order given.
        order = order[np.argsort(-self._counts[order], kind="stable")]
        batches = [order[start : start + self._size] for start in range(0, len(order), self._size)]
        sorted_ = [batch[np.argsort(-self._lengths[batch], kind="stable")] for batch in batches]
        return [(batch, int(self._counts[batch[0]])) for batch in sorted_]

    def _samples(self, place: int) -> Samples:
        if self._streams is not None:
            return self._streams
        if self._held is None or self._held[0] != place:
            self._held = place, self._split.gather(self._order[place][0])
        return self._held[1]

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def feed_steps(split: StepSplit, batch_size: int, bptt_steps: int, *, continuous: bool) -> int:
    """Optimizer steps in an epoch of a :class:`StepFeed` with these settings, without reading the sequences."""
    lengths = np.asarray(split.lengths)
    if continuous:
        steps = -(-int(lengths.sum()) // batch_size)
        return -(-steps // bptt_steps) if bptt_steps else 1
    counts = np.sort(-(-lengths // (bptt_steps or int(lengths.max()))))[::-1]
    return int(counts[::batch_size].sum())
