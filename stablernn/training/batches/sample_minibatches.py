"""Minibatches of shuffled samples: sequences with a label, or windows of series."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablernn.data.arrays import Int64Array, Samples
from stablernn.data.windows import SampleSource, WindowSet
from stablernn.training.batches.losses import Batch
from stablernn.training.batches.minibatches import Minibatch, Minibatches
from stablernn.training.batches.transfers import move_to

_GATHERED_BYTES = 2**30
"""Size of samples up to which they are gathered once; larger sources, such as many overlapping windows, are gathered
batch by batch."""


class TensorBatches:
    """Samples of a source as batches of tensors on a device, cut to the longest sequence of the batch.

    Args:
        source: Numbered samples.
        device: Device of the tensors.
        gather_once: True to gather all samples at the beginning, unless they are too large.
    """

    def __init__(self, source: SampleSource, device: torch.device, *, gather_once: bool = True) -> None:
        self._source = source
        self._device = device
        self._full_batch: Batch | None = None
        # On the CPU, so that the length of a batch need not be read from the GPU.
        self._lengths: Int64Array | None = None
        first = source.gather(np.arange(min(1, len(source))))
        if gather_once and (first.x.nbytes + first.y.nbytes) * len(source) <= _GATHERED_BYTES:
            samples = source.gather(np.arange(len(source)))
            # All of them once: a copy of so much memory that cannot be swapped out would gain nothing.
            self._full_batch, self._lengths = _batch_of(samples, lambda part: part.to(device)), samples.lengths

    def __len__(self) -> int:
        return len(self._source)

    def take(self, indices: Tensor) -> Batch:
        """Return the samples with these numbers, an int64 tensor on the CPU."""
        if self._full_batch is None or self._lengths is None:
            return self._to_batch(self._source.gather(indices.numpy()))
        rows = move_to(self._device, indices)
        parts: dict[str, Any] = self._full_batch._asdict()
        parts |= {name: part[rows] for name, part in parts.items() if isinstance(part, Tensor)}
        return _cut(Batch(**parts), self._lengths[indices.numpy()])

    def take_longer(self, indices: Tensor, extra: int, multiple: int) -> Batch:
        """Return windows with longer contexts, see :meth:`WindowSet.gather_longer`."""
        assert isinstance(self._source, WindowSet)
        return self._to_batch(self._source.gather_longer(indices.numpy(), extra, multiple))

    def _to_batch(self, samples: Samples) -> Batch:
        """Return samples as a batch, cut to the longest sequence."""
        return _cut(_batch_of(samples, partial(move_to, self._device)), samples.lengths)


def _batch_of(samples: Samples, move: Callable[[Tensor], Tensor]) -> Batch:
    # The fields of samples are the first ones of a batch.
    parts: list[Any] = [None if part is None else move(torch.from_numpy(part)) for part in samples]
    return Batch(*parts)


def _cut(batch: Batch, lengths: Int64Array) -> Batch:
    """Return a batch without the steps that are padding in all of its sequences, whose lengths these are."""
    longest = int(lengths.max())
    if longest < batch.x.shape[1]:
        batch = batch._replace(x=batch.x[:, :longest], dt=None if batch.dt is None else batch.dt[:, :longest])
    return batch._replace(is_padded=int(lengths.min()) < longest)


class SampleMinibatches(Minibatches):
    """Samples of a source, drawn again into minibatches each epoch.

    Args:
        source: Numbered samples.
        batch_size: Samples in a step.
        device: Device of the tensors.
        warm_up: Largest number of steps by which the contexts of windows are made longer, a random number for each
            minibatch.
        multiple: Number of steps of which the extension is a whole multiple.
    """

    def __init__(
        self, source: SampleSource, batch_size: int, device: torch.device, *, warm_up: int = 0, multiple: int = 1
    ) -> None:
        self._warm_up = warm_up // multiple
        self._multiple = multiple
        # Longer contexts have another length in each minibatch, so that nothing gathered before could be used again.
        self._batches = TensorBatches(source, device, gather_once=not self._warm_up)
        self._size = batch_size
        self._order = torch.arange(len(source))
        self.steps = math.ceil(len(source) / batch_size)

    def shuffle(self, generator: torch.Generator) -> None:
        self._order = torch.randperm(len(self._batches), generator=generator)

    def take(self, number: int) -> Minibatch:
        indices = self._order[number * self._size : (number + 1) * self._size]
        if not self._warm_up:
            return Minibatch(self._batches.take(indices), len(indices), is_first=True)
        # From torch's global generator, whose state a checkpoint holds: a resumed run draws the same numbers.
        extra = self._multiple * int(torch.randint(self._warm_up + 1, ()))
        return Minibatch(self._batches.take_longer(indices, extra, self._multiple), len(indices), is_first=True)
