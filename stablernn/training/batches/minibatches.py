"""Minibatches of an epoch by number, among them segments of long sequences whose state is carried on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stablernn.data.arrays import Int64Array, Samples
from stablernn.data.segments import count_targets, segment, streams
from stablernn.data.step_data import StepSplit
from stablernn.training.batches.losses import Batch
from stablernn.training.batches.transfers import move_to

Array = npt.NDArray[Any]


class Minibatch(NamedTuple):
    """Data of one optimizer step."""

    batch: Batch
    weight: int
    """Its weight in the mean loss of the epoch: samples, or numbers that are predicted."""
    is_first: bool
    """True if the state starts from zero; else it is that after the minibatch before, of its first rows."""


class Minibatches(ABC):
    """The minibatches of an epoch by number, in an order that is drawn again for each epoch.

    Attributes:
        steps: Minibatches of an epoch; the same for every epoch.
    """

    steps: int

    @abstractmethod
    def shuffle(self, generator: torch.Generator) -> None:
        """Draw the order of an epoch."""

    @abstractmethod
    def take(self, number: int) -> Minibatch:
        """Return the minibatch with this number, from 0, in the order drawn last."""


class SegmentMinibatches(Minibatches):
    """Sequences with a target at each step, in batches that are cut into segments for truncated backpropagation.

    A running text is one batch of parallel streams, in the order of the text. Other sequences are drawn again into
    batches each epoch, among those with the same number of segments, so that little is padding and every epoch has as
    many steps.

    Args:
        split: The sequences.
        batch_size: Streams, or sequences in a batch.
        bptt_steps: Longest segment; 0 for whole sequences.
        continuous: True if the split is one running text.
        device: Device of the tensors.
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
        # The batch that was gathered last: its segments are taken one after the other.
        self._cached_samples: tuple[int, Samples] | None = None

    def shuffle(self, generator: torch.Generator) -> None:
        self._cached_samples = None
        if self._streams is not None:
            return
        order = torch.randperm(len(self._lengths), generator=generator).numpy()
        batches = self._batches(order)
        # A second draw: without it, an epoch would go from the longest batches to the shortest.
        self._order = [batches[number] for number in torch.randperm(len(batches), generator=generator)]

    def take(self, number: int) -> Minibatch:
        position = 0
        while number >= self._order[position][1]:
            number -= self._order[position][1]
            position += 1
        rows = self._order[position][0]
        part = segment(self._samples(position), rows, number * self._bptt, self._bptt)
        dt = None if part.dt is None else self._tensor(part.dt)
        batch = Batch(self._tensor(part.x), self._tensor(part.lengths), self._tensor(part.y), dt)
        return Minibatch(batch, count_targets(part.y), is_first=number == 0)

    def _batches(self, order: Int64Array) -> list[tuple[Int64Array, int]]:
        """Return the numbers of the sequences of each batch, the longest first, and its segments."""
        if self._streams is not None:
            return [(order, int(self._counts.max()))]
        # A stable sort by segments alone leaves the drawn order among sequences with as many.
        order = order[np.argsort(-self._counts[order], kind="stable")]
        batches = [order[start : start + self._size] for start in range(0, len(order), self._size)]
        sorted_batches = [batch[np.argsort(-self._lengths[batch], kind="stable")] for batch in batches]
        return [(batch, int(self._counts[batch[0]])) for batch in sorted_batches]

    def _samples(self, position: int) -> Samples:
        if self._streams is not None:
            return self._streams
        if self._cached_samples is None or self._cached_samples[0] != position:
            self._cached_samples = position, self._split.gather(self._order[position][0])
        return self._cached_samples[1]

    def _tensor(self, array: Array) -> torch.Tensor:
        return move_to(self._device, torch.from_numpy(np.ascontiguousarray(array)))


def count_segment_minibatches(split: StepSplit, batch_size: int, bptt_steps: int, *, continuous: bool) -> int:
    """Return the steps of an epoch of :class:`SegmentMinibatches`, without reading the sequences."""
    lengths = np.asarray(split.lengths)
    if continuous:
        steps = -(-int(lengths.sum()) // batch_size)
        return -(-steps // bptt_steps) if bptt_steps else 1
    counts = np.sort(-(-lengths // (bptt_steps or int(lengths.max()))))[::-1]
    # As many as the longest sequence of each batch has.
    return int(counts[::batch_size].sum())
