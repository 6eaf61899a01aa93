"""Padded batches in segments of time, over each of which fewer sequences run.

Over a batch of mixed lengths, products and elementwise operations on padding can take as long as those on steps. Sorted
by length, the sequences that still run are the first rows, so that each segment takes a smaller batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stablernn.cells import State
from stablernn.engines.base import Result
from stablernn.transforms import is_transformed

MAX_SEGMENTS = 8
"""Parts of equally many sequences that end: of padding, 1/16 of all steps is left where lengths are uniform."""
MIN_STEPS = 16
"""Time steps of a segment: what a segment costs beside its steps is less than what so many take."""
MIN_PADDING = 1 / 8
"""Share of the steps that is padding, from which on sorting pays."""


class Batch(NamedTuple):
    """The time steps that a stack, or each member of an ensemble, is to run.

    Attributes:
        inputs: ``(batch, time, input_size)`` for each member.
        states: The flat state of each.
        valid: ``(batch, time)``, False for padding; None if there is none.
        dt: ``(batch, time)``, or None.
    """

    inputs: Sequence[Tensor]
    states: Sequence[State]
    valid: Tensor | None
    dt: Tensor | None

    def rows(self, order: Tensor) -> Batch:
        """Return the batch in another order of the sequences."""
        return Batch(
            [x.index_select(0, order) for x in self.inputs],
            [tuple(tensor.index_select(0, order) for tensor in state) for state in self.states],
            None if self.valid is None else self.valid.index_select(0, order),
            None if self.dt is None else self.dt.index_select(0, order),
        )

    def segment(self, segment: Segment, states: Sequence[State]) -> Batch:
        """Return some time steps of the first sequences, with the states before them."""
        rows, times = slice(segment.rows), slice(segment.start, segment.end)
        return Batch(
            [x[rows, times] for x in self.inputs],
            states,
            self.valid[rows, times] if self.valid is not None and segment.has_padding else None,
            None if self.dt is None else self.dt[rows, times],
        )


class Segment(NamedTuple):
    """The time steps from ``start`` to ``end``, over which the first ``rows`` of the sorted sequences run."""

    start: int
    end: int
    rows: int
    has_padding: bool


Results = list[Result]
"""For each member the outputs of the last layer, ``(batch, time, size)``, and the flat state after the last step."""


_IS_RECORDED: ContextVar[bool] = ContextVar("is_recorded", default=False)


@contextmanager
def recordable() -> Iterator[None]:
    """Leave out what a CUDA graph cannot hold: looks at the values of lengths, and at the state of random generators.

    Lengths are known to be from 0 to the steps of the input. :func:`valid_steps` does not check them, and
    :func:`run_segments` does not sort by them: which operations run depends on shapes alone. Segments that are computed
    again draw other random numbers, so that none may be drawn in them.
    """
    token = _IS_RECORDED.set(True)
    try:
        yield
    finally:
        _IS_RECORDED.reset(token)


def run_segments(
    run: Callable[[Batch], Results], batch: Batch, recompute_every: int | None, output_index: int
) -> Results:
    """Run all layers over a batch, where it pays segment by segment.

    Args:
        run: Runs the layers over the time steps that it is given.
        batch: All time steps.
        recompute_every: Time steps after which only states are kept for the backward pass, see
            :class:`stablernn.StableRNN`; None keeps everything.
        output_index: Index in the flat state of the tensor that the outputs are.
    """
    size, time = batch.inputs[0].shape[:2]
    order, ends = None, [time]
    lengths = [time] * size
    # Where no length may be read, padding is run.
    if batch.valid is not None and not _IS_RECORDED.get():
        sorted_lengths, indices = batch.valid.sum(dim=1).sort(descending=True, stable=True)
        lengths = sorted_lengths.tolist()
        # A program that records the operations would record this order.
        if sum(lengths) <= (1 - MIN_PADDING) * size * time and lengths[0] and not is_transformed():
            order, ends = indices, segment_ends(lengths)
            batch = batch.rows(order)
    segments = []
    for start, end in pairwise([0, *ends]):
        rows = size if order is None else sum(length > start for length in lengths)
        depth = recompute_every or end - start
        for first in range(start, end, depth):
            last = min(first + depth, end)
            segments.append(Segment(first, last, rows, order is None or lengths[rows - 1] < last))
    if len(segments) == 1 and order is None:
        return run(batch)
    parts, states = _run_each(run, batch, segments, is_recomputed=recompute_every is not None)
    if order is None:
        return [
            (torch.cat(outputs, dim=1) if outputs else None, state)
            for outputs, state in zip(parts, states, strict=True)
        ]
    inverse = order.argsort()
    results: Results = []
    for outputs, state in zip(parts, states, strict=True):
        joined = None
        if outputs:
            joined = cast("Tensor", _SortedOutputs.apply(order, time, state[output_index], *outputs))  # type: ignore[no-untyped-call]
        results.append((joined, tuple(tensor.index_select(0, inverse) for tensor in state)))
    return results


def segment_ends(lengths: Sequence[int]) -> list[int]:
    """Return the ends of segments, up to the longest length, at which about equally many sequences have ended.

    Args:
        lengths: The lengths, falling.
    """
    count = len(lengths)
    candidates = [lengths[count - -(-part * count // MAX_SEGMENTS)] for part in range(1, MAX_SEGMENTS + 1)]
    ends = [0]
    for end in candidates:
        if end - ends[-1] >= MIN_STEPS and lengths[0] - end >= MIN_STEPS:
            ends.append(end)
    return [*ends[1:], lengths[0]]


def _run_each(
    run: Callable[[Batch], Results], batch: Batch, segments: Sequence[Segment], *, is_recomputed: bool
) -> tuple[list[list[Tensor]], list[State]]:
    """Run the segments one after the other.

    Returns:
        For each member the outputs of each segment, none unless needed, and the state after the last step of each
        sequence.
    """
    states = list(batch.states)
    outputs: list[list[Tensor]] = [[] for _ in states]
    # Of each member the states of the sequences that ended before each segment.
    ended: list[list[State]] = [[] for _ in states]
    for segment in segments:
        for member_ended, state in zip(ended, states, strict=True):
            member_ended.append(tuple(tensor[segment.rows :] for tensor in state))
        part = batch.segment(segment, [tuple(tensor[: segment.rows] for tensor in state) for state in states])
        if is_recomputed:
            results = checkpoint(run, part, use_reentrant=False, preserve_rng_state=not _IS_RECORDED.get())
        else:
            results = run(part)
        states = [state for _, state in results]
        for member_outputs, (output, _) in zip(outputs, results, strict=True):
            if output is not None:
                member_outputs.append(output)
    # The sequences that ended last come first.
    last = [
        tuple(torch.cat(tensors) for tensors in zip(state, *reversed(member_ended), strict=True))
        for state, member_ended in zip(states, ended, strict=True)
    ]
    return outputs, last


class _SortedOutputs(torch.autograd.Function):
    """The outputs of all time steps in the order of the batch; over padding each sequence repeats its last.

    One pass over memory, where concatenating and indexing would take three.
    """

    @staticmethod
    def forward(ctx: Any, order: Tensor, time: int, last: Tensor, *parts: Tensor) -> Tensor:
        """Return ``(batch, time, size)``.

        Args:
            ctx: Of autograd.
            order: The indices of the sorted sequences.
            time: Number of time steps.
            last: ``(batch, size)``, the last output of each, sorted.
            parts: ``(rows, steps, size)`` of each segment, sorted.
        """
        ctx.save_for_backward(order)
        ctx.sizes = [part.shape[:2] for part in parts]
        # Time comes first in memory, as in what the engines return.
        outputs = last.new_empty(time, *last.shape)
        start = 0
        for part in parts:
            rows, steps = part.shape[:2]
            segment = outputs[start : start + steps]
            segment.index_copy_(1, order[:rows], part.transpose(0, 1))
            segment[:, order[rows:]] = last[rows:]
            start += steps
        outputs[start:, order] = last
        return outputs.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (order,) = ctx.saved_tensors
        gradients = grads[0].transpose(0, 1)
        parts, of_last, start = [], [], 0
        for rows, steps in ctx.sizes:
            segment = gradients[start : start + steps]
            parts.append(segment.index_select(1, order[:rows]).transpose(0, 1))
            of_last.append(nn.functional.pad(segment.index_select(1, order[rows:]).sum(dim=0), (0, 0, rows, 0)))
            start += steps
        of_last.append(gradients[start:].sum(dim=0).index_select(0, order))
        return None, None, torch.stack(of_last).sum(dim=0), *parts


def valid_steps(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Return the mask ``(batch, time)`` of the steps of ``(batch, time, features)`` that are no padding; None for all.

    Raises:
        ValueError: If there is no step, or ``lengths`` are not one whole number from 0 to time for each sequence.
    """
    batch, time = x.shape[:2]
    if time < 1:
        raise ValueError(f"input has shape {tuple(x.shape)}, the time axis must hold 1 step or more.")
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths must be {batch} whole numbers, one for each sequence, "
            f"got shape {tuple(lengths.shape)} of {lengths.dtype}."
        )
    # No lengths have no minimum.
    if batch == 0:
        return None
    if not _IS_RECORDED.get():
        shortest, longest = int(lengths.min()), int(lengths.max())
        if shortest < 0 or longest > time:
            raise ValueError(f"lengths must be from 0 to {time}, the steps of the input, got {shortest} to {longest}.")
        if shortest == time:
            return None
    return torch.arange(time, device=x.device) < lengths.to(x.device)[:, None]
