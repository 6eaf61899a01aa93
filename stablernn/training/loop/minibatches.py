"""Minibatches of an epoch by number: whole samples, or segments of long sequences whose state is carried on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.data.arrays import Int64Array, Samples
from stablernn.data.step_data import StepSplit, count_targets, segment, streams
from stablernn.data.windows import SampleSource, WindowSet
from stablernn.nn.models import SequenceModel

Array = npt.NDArray[Any]


class Batch(NamedTuple):
    """Sequences and their targets, as tensors."""

    x: Tensor
    """``(batch, time, features)`` float32 in raw units, NaN where missing."""
    lengths: Tensor
    """``(batch,)`` int64: steps from there on are padding."""
    y: Tensor
    """Classify: ``(batch,)`` int64. Forecast: ``(batch, horizon, targets)`` float32 in raw units, NaN where missing."""
    dt: Tensor | None = None
    """``(batch, time)`` float32, the time from the step before in regular steps; None where it is not used."""
    static: Tensor | None = None
    """``(batch, covariates)`` float32, constants of each series; None where there are none."""
    future: Tensor | None = None
    """``(batch, horizon, channels)`` float32, known values of the steps ahead; None where there are none."""
    y_weight: Tensor | None = None
    """``(batch,)`` float32, the weight of ``y`` in the loss: that of its sample, times its share in a mixture."""
    partner_y: Tensor | None = None
    """``(batch,)`` int64, the label of the sequence that was mixed in; None where none was."""
    partner_weight: Tensor | None = None
    """``(batch,)``, the weight of ``partner_y`` in the loss."""
    is_padded: bool = True
    """False if all sequences are known to be as long as ``x``, so that nothing waits for ``lengths`` from the GPU."""

    @property
    def valid_lengths(self) -> Tensor | None:
        """The lengths; None where no sequence has padding."""
        return self.lengths if self.is_padded else None

    @property
    def covariates(self) -> dict[str, Tensor]:
        """Inputs of the head in addition to the model's state, by name."""
        tensors = {"static": self.static, "future": self.future}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}


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


class ModelInputs(NamedTuple):
    """Samples as a model takes them, on its device."""

    x: Tensor
    lengths: Tensor
    dt: Tensor | None
    """Time between steps; None where the samples have none, or the model takes none."""
    covariates: dict[str, Tensor]


def model_inputs(samples: Samples, model: SequenceModel) -> ModelInputs:
    """Return samples on the device of a model."""
    device = next(model.parameters()).device
    arrays = {name: getattr(samples, name) for name in ("x", "lengths", "dt", "static", "future")}
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items() if array is not None}
    dt = tensors.pop("dt", None)
    return ModelInputs(tensors.pop("x"), tensors.pop("lengths"), None if model.max_dt is None else dt, tensors)


def move_to(device: torch.device, tensor: Tensor) -> Tensor:
    """Return a tensor of the CPU on a device. A GPU gets it in the order of its work, and the CPU goes on at once."""
    if device.type != "cuda":
        return tensor.to(device)
    # A copy from memory that the system may swap out waits for all that the GPU was given before.
    return tensor.pin_memory().to(device, non_blocking=True)


def move_like(x: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor of the CPU on the device of ``x`` and in its dtype, as :func:`move_to` does."""
    return move_to(x.device, tensor).to(x.dtype)


def read_scalar(value: Tensor) -> Callable[[], float]:
    """Return a function that returns the number in a tensor, and waits for the work before this call alone.

    ``float(value)`` in its place would also wait for what the GPU is given in between.
    """
    if not value.is_cuda:
        number = float(value)
        return lambda: number
    on_cpu = torch.empty((), dtype=value.dtype, pin_memory=True)
    on_cpu.copy_(value, non_blocking=True)
    is_copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_copied.record(torch.cuda.current_stream(value.device))

    def read() -> float:
        is_copied.synchronize()
        return float(on_cpu)

    return read
