"""Minibatches of shuffled samples: sequences with a label, or windows of series."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from stablernn.data.windows import Int64Array, Samples, SampleSource, WindowSet
from stablernn.training.batches.losses import Batch
from stablernn.training.batches.minibatches import Feed, Piece

_GATHERED_BYTES = 2**30
"""Size of samples up to which they are gathered once; larger sources, such as many overlapping windows, are gathered
batch by batch."""


class Batches:
    """Samples of a source as batches of tensors on a device, cut to the longest sequence of the batch.

    Args:
        source: Numbered samples.
        device: Where the tensors go.
        keep: Whether samples are gathered once, if they are not too many.
    """

    def __init__(self, source: SampleSource, device: torch.device, *, keep: bool = True) -> None:
        self._source = source
        self._device = device
        self._whole: Batch | None = None
        one = source.gather(np.arange(min(1, len(source))))
        if keep and (one.x.nbytes + one.y.nbytes) * len(source) <= _GATHERED_BYTES:
            self._whole = self._gather(np.arange(len(source)))

    def __len__(self) -> int:
        return len(self._source)

    def take_longer(self, indices: Tensor, extra: int, multiple: int) -> Batch:
        """Windows with longer contexts, see :meth:`WindowSet.gather_longer`."""
        assert isinstance(self._source, WindowSet)
        return _cut(self._moved(self._source.gather_longer(indices.numpy(), extra, multiple)))

    def take(self, indices: Tensor) -> Batch:
        """The samples with these numbers, an int64 tensor on the CPU."""
        if self._whole is None:
            return _cut(self._gather(indices.numpy()))
        chosen = indices.to(self._device)
        x, lengths, y, *further = self._whole
        rest = (None if part is None else part[chosen] for part in further)
        return _cut(Batch(x[chosen], lengths[chosen], y[chosen], *rest))

    def _gather(self, indices: Int64Array) -> Batch:
        return self._moved(self._source.gather(indices))

    def _moved(self, found: Samples) -> Batch:
        x, lengths, y = (torch.from_numpy(part).to(self._device) for part in found[:3])
        rest = (None if part is None else torch.from_numpy(part).to(self._device) for part in found[3:])
        return Batch(x, lengths, y, *rest)


def _cut(batch: Batch) -> Batch:
    longest = int(batch.lengths.max())
    if longest == batch.x.shape[1]:
        return batch
    return batch._replace(x=batch.x[:, :longest], dt=None if batch.dt is None else batch.dt[:, :longest])


class SampleFeed(Feed):
    """Samples of a source, drawn anew into batches each epoch.

    Args:
        source: Numbered samples.
        batch_size: Samples in a step.
        device: Where they go.
        warm_up: Steps by which the contexts of windows are longer, at random up to this, a number for each batch.
        multiple: Of what they are longer by whole numbers.
    """

    def __init__(
        self, source: SampleSource, batch_size: int, device: torch.device, *, warm_up: int = 0, multiple: int = 1
    ) -> None:
        self._warm_up = warm_up // multiple
        self._multiple = multiple
        # Longer contexts are cut anew for each batch.
        self._batches = Batches(source, device, keep=not self._warm_up)
        self._size = batch_size
        self._order = torch.arange(len(source))
        self.steps = math.ceil(len(source) / batch_size)

    def shuffle(self, generator: torch.Generator) -> None:
        self._order = torch.randperm(len(self._batches), generator=generator)

    def take(self, number: int) -> Piece:
        chosen = self._order[number * self._size : (number + 1) * self._size]
        if not self._warm_up:
            return Piece(self._batches.take(chosen), len(chosen), first=True)
        extra = self._multiple * int(torch.randint(self._warm_up + 1, ()))
        return Piece(self._batches.take_longer(chosen, extra, self._multiple), len(chosen), first=True)
