"""A whole sequence as one node of the autograd graph, for cells whose step is a :class:`StepForm`.

The plain loop builds several nodes a step, each of which keeps tensors and allocates gradients. Here the forward pass
writes states and activations into buffers over all time steps, the backward pass walks back over them, and the
gradients of the matrices are one product over all time steps at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from stablernn.buffers import BufferPool, pool_of
from stablernn.cells import StableCell, State, Weights
from stablernn.cells._step_form import Family, StepForm
from stablernn.engines.base import LoopEngine, Result, differentiate_again, register_engine
from stablernn.engines.fused_families import FAMILIES, FusedSteps
from stablernn.transforms import is_transformed

CHUNK_ROWS = 1 << 12
"""States, over steps and sequences, of which the backward pass adds the products to the gradients of the matrices."""
MAX_STACKED = 1 << 11
"""Numbers in the state of one member up to which an ensemble runs as one: larger ones gain nothing from it."""


_keeps_graph = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)


@dataclass(frozen=True)
class Sequence:
    """A batch of sequences without its tensors: the form of the step, sub-steps, and where rows end.

    Attributes:
        form: The step; its tensors are replaced by the arguments of :class:`FusedSequence`.
        families: The steps of each family.
        substeps: Equal parts of each time step.
        ends: Number of rows that run up to each time at which some end, the earliest first.
        every_output: Whether the outputs of all time steps are needed.
        pool: Buffers of the cell.
    """

    form: StepForm
    families: Mapping[Family, type[FusedSteps]]
    substeps: int
    ends: list[tuple[int, int]]
    every_output: bool
    pool: BufferPool

    def steps(self, recurrent: Tensor, linear: Tensor | None, bias: Tensor | None) -> FusedSteps:
        """Return the steps with these matrices."""
        form = replace(self.form, recurrent=recurrent, linear=linear, bias=bias)
        return self.families[form.family](form)

    def segments(self) -> list[tuple[int, int, int]]:
        """Return the sub-steps between which no row ends, as ``(rows, first, end)``."""
        times = [0, *(end for _, end in self.ends)]
        return [
            (rows, start * self.substeps, end * self.substeps)
            for (rows, _), (start, end) in zip(self.ends, pairwise(times), strict=True)
        ]

    def chunks(self, depth: int) -> list[tuple[int, int, int]]:
        """Return the segments, cut into parts of up to ``depth`` sub-steps."""
        return [
            (rows, part, min(part + depth, end))
            for rows, start, end in self.segments()
            for part in range(start, end, depth)
        ]

    def ended(self, batch: int) -> list[tuple[slice, int]]:
        """Return which rows end before the last sub-step, and the sub-steps that they have."""
        counts = [batch, *(rows for rows, _ in self.ends), 0]
        ends = [0, *(end * self.substeps for _, end in self.ends)]
        return [(slice(after, before), end) for (before, after), end in zip(pairwise(counts), ends, strict=True)]

    def lengths(self, step_lengths: Tensor | None, rows: int, times: slice) -> float | Tensor:
        """Return the lengths of the sub-steps of some time steps."""
        # The step size may be a whole number.
        return float(self.form.step_size) if step_lengths is None else step_lengths[times, :rows]


def run_forward(
    sequence: Sequence,
    steps: FusedSteps,
    drives: Tensor,
    h: Tensor,
    step_lengths: Tensor | None,
    keeps_states: bool,
    keeps_activations: bool,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Run all steps.

    Returns:
        The states before the first and after each sub-step, ``(n + 1, batch, hidden)``, or two if they are not kept;
        activations and states halfway, ``(n, batch, hidden)``, or one of each; and the last state of each sequence.
    """
    repeats, take = sequence.substeps, sequence.pool.take
    total = len(drives) * repeats
    states = take(h, total + 1 if keeps_states else 2, *h.shape)
    saved = [take(h, total if keeps_activations else 1, *h.shape) for _ in range(steps.saved)]
    states[0] = h
    last = h.clone()
    for rows, start, end in sequence.segments():
        times = slice(start // repeats, end // repeats)
        # Without a backward pass one slot of each kind is used again and again.
        segment_states = states[start : end + 1, ..., :rows, :] if keeps_states else states[..., :rows, :]
        segment_saved = [
            buffer[start:end, ..., :rows, :] if keeps_activations else buffer[..., :rows, :] for buffer in saved
        ]
        lengths = sequence.lengths(step_lengths, rows, times)
        steps.forward(segment_states, drives[times, ..., :rows, :], lengths, segment_saved, repeats)
        last[..., :rows, :] = segment_states[(end - start) % len(segment_states)]
        if not keeps_states:
            # The next segment begins in the first slot.
            states[0] = last
    if sequence.every_output:
        for ended, end in sequence.ended(h.shape[-2]):
            # Sequences that have ended keep their state.
            states[end + 1 :, ..., ended, :] = last[..., ended, :]
    return states, saved, last


def run_backward(
    sequence: Sequence,
    steps: FusedSteps,
    states: Tensor,
    saved: list[Tensor],
    step_lengths: Tensor | None,
    grad_outputs: Tensor | None,
    grad_last: Tensor,
    overwrite: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients by drives, first state, K, A and bias.

    With ``overwrite`` the gradients by the arguments of nonlinearities take the place of the saved activations.
    """
    repeats, total, shape = sequence.substeps, len(states) - 1, states.shape[1:]
    take = sequence.pool.take
    values = saved[: steps.arguments] or [states[1:]]
    # The states, which the activations of a plain step are, are still needed.
    overwrites = overwrite and len(saved) > 0
    arguments = values if overwrites else [take(states, total, *shape) for _ in range(steps.arguments)]
    # The gradient of A is the product of these with the states, taken chunk by chunk.
    depth = max(1, CHUNK_ROWS * shape[-1] // shape.numel()) * repeats
    velocities = [take(states, depth if steps.linear is not None else 1, *shape) for _ in range(steps.stages)]
    is_scaled = steps.saved > 0 and step_lengths is None
    scale = sequence.form.step_size if is_scaled else 1.0
    g = grad_last * scale
    for ended, end in sequence.ended(shape[-2]):
        # Sequences that have ended pass on what their outputs get.
        for buffer in arguments:
            buffer[end:, ..., ended, :].zero_()
        if grad_outputs is not None:
            g[..., ended, :] += scale * grad_outputs[end // repeats :, ..., ended, :].sum(dim=0)
    sums = MatrixGradients(steps)
    for rows, start, end in reversed(sequence.chunks(depth)):
        times, part = slice(start // repeats, end // repeats), (slice(start, end), ..., slice(rows), slice(None))
        chunk_velocities = [buffer[: end - start, ..., :rows, :] for buffer in velocities]
        chunk_values, chunk_arguments = [buffer[part] for buffer in values], [buffer[part] for buffer in arguments]
        signs = sums.bias_signs(chunk_values)
        steps.backward(
            g[..., :rows, :],
            sequence.lengths(step_lengths, rows, times),
            chunk_values,
            chunk_arguments,
            chunk_velocities,
            None if grad_outputs is None else grad_outputs[times, ..., :rows, :],
            repeats,
        )
        read = [states[part], saved[2][part]] if steps.stages == 2 else [states[part]] * steps.arguments
        sums.add(chunk_arguments, chunk_velocities, read, signs)
    return (
        grad_of_drives(sequence, arguments),
        g / scale if scale != 1 else g,
        sums.recurrent,
        sums.linear,
        sums.bias,
    )


class MatrixGradients:
    """The gradients of K, A and bias, added up over chunks of steps that still are in the caches.

    Args:
        steps: The steps with their matrices.
    """

    def __init__(self, steps: FusedSteps) -> None:
        form = steps.form
        # A matrix may be a transpose, whose layout its gradient does not share.
        layout = torch.contiguous_format
        self.recurrent = torch.zeros_like(form.recurrent, memory_format=layout)
        self.linear = None if form.linear is None else torch.zeros_like(form.linear, memory_format=layout)
        self.bias = None if form.bias is None else torch.zeros_like(form.bias)
        self._add_gradient = steps.add_gradient
        # The first argument of a shared gate is that of the gate, which has no bias.
        self._stages = steps.stages
        self._has_signs = form.nonlinearity in ("modrelu", "softshrink")

    def bias_signs(self, values: list[Tensor]) -> list[Tensor] | None:
        """Return the signs of the values, by which the bias of modReLU acts; None where it is added."""
        if self.bias is None or not self._has_signs:
            return None
        return [value.sign() for value in values[-self._stages :]]

    def add(
        self, arguments: list[Tensor], velocities: list[Tensor], read: list[Tensor], signs: list[Tensor] | None
    ) -> None:
        """Add what a chunk gives.

        Args:
            arguments: The gradients by the arguments of nonlinearities and gates, ``(steps, rows, hidden)``.
            velocities: Those by A h.
            read: The states that each product with K read.
            signs: From :meth:`bias_signs`.
        """
        for gradient, state in zip(arguments, read, strict=True):
            self._add_gradient(self.recurrent, gradient, state)
        if self.linear is not None:
            for gradient, state in zip(velocities, read, strict=False):
                self._add_gradient(self.linear, gradient, state)
        if self.bias is not None:
            for number, gradient in enumerate(arguments[-self._stages :]):
                by_bias = gradient if signs is None else gradient * signs[number]
                self.bias += by_bias.sum(dim=(0, -2)).view_as(self.bias)


def grad_of_drives(sequence: Sequence, arguments: list[Tensor]) -> Tensor:
    """Return the gradient by the drives, which each sub-step and stage of a time step reads."""
    repeats = sequence.substeps
    if sequence.form.family == "shared gate":
        gradient = torch.cat(arguments, dim=-1)
    else:
        gradient = arguments[0] if len(arguments) == 1 else arguments[0] + arguments[1]
    return gradient if repeats == 1 else gradient.view(-1, repeats, *gradient.shape[1:]).sum(dim=1)


def differentiable_gradients(
    sequence: Sequence,
    inputs: tuple[Tensor | None, ...],
    grad_outputs: Tensor,
    grad_last: Tensor,
    valid: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients by drives, first state, K, A and bias as functions that autograd can differentiate.

    Args:
        sequence: The batch.
        inputs: Drives, first state, K, A, bias and the lengths of sub-steps.
        grad_outputs: The gradient by the outputs.
        grad_last: The gradient by the last state.
        valid: ``(time, batch)``, in which steps a row that is not sorted by its length moves; None if ``sequence``
            says where rows end.
    """

    def compute(views: list[Tensor | None]) -> list[Tensor]:
        drives, h, recurrent, linear, bias, step_lengths = views
        assert drives is not None
        assert h is not None
        assert recurrent is not None
        # The lengths of the sub-steps contain the step size.
        size = sequence.form.step_size if step_lengths is None else 1.0
        form = replace(sequence.form, recurrent=recurrent, linear=linear, bias=bias, step_size=size)
        outputs, state = [], h
        for time, drive in enumerate(drives.unbind()):
            active = next((rows for rows, end in sequence.ends if time < end), 0)
            moving, ended, length = state[..., :active, :], state[..., active:, :], None
            if step_lengths is not None:
                length = step_lengths[time, :active]
            for _ in range(sequence.substeps):
                after = form.step(moving, drive[..., :active, :], length)
                moving = after if valid is None else torch.where(valid[time, :active, None], after, moving)
            state = torch.cat([moving, ended], dim=-2)
            outputs.append(state)
        return [state, torch.stack(outputs)] if sequence.every_output else [state]

    grads = [grad_last, grad_outputs] if sequence.every_output else [grad_last]
    return tuple(differentiate_again(compute, inputs, grads)[:5])


class StepFormEngine:
    """An engine of whole sequences, for cells whose step is a :class:`StepForm`.

    The gradient by ``dt`` and a batch without rows come from the plain loop. Members of an ensemble run side by side.
    """

    def run_form(
        self,
        cell: StableCell,
        form: StepForm,
        drives: Tensor,
        h: Tensor,
        valid: Tensor | None,
        dt: Tensor | None,
        substeps: int,
        *,
        every_output: bool,
    ) -> tuple[Tensor | None, Tensor]:
        """Run every step of a cell, or of the members of an ensemble at once.

        Args:
            cell: The cell, or the first one of the ensemble.
            form: The step.
            drives: ``(time, batch, d)`` or ``(time, members, batch, d)``.
            h: The first state, ``(batch, hidden)`` or ``(members, batch, hidden)``.
            valid: As for :meth:`Engine.run`.
            dt: Likewise.
            substeps: Likewise.
            every_output: Likewise.

        Returns:
            The states after every step in the shape of the drives, None if they are not needed; and the last state.
        """
        raise NotImplementedError

    def stacks(self, batch: int, time: int, hidden: int) -> bool:
        """Return whether members of this size run as one, and not one after the other."""
        return True

    def stack_drives(self, cell: StableCell, drives: list[Tensor]) -> Tensor:
        """Return the drives of all members, each ``(time, batch, d)``, as ``(time, members, batch, d)``."""
        return torch.stack(drives, dim=1)

    def run(
        self,
        cell: StableCell,
        weights: Weights,
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> Result:
        if not len(drive) or (dt is not None and dt.requires_grad):
            return LoopEngine().run(cell, weights, drive, state, valid, dt, substeps, every_output=every_output)
        form = cell.step_form(weights)
        assert form is not None
        # (time, batch, d): each step reads one block of memory.
        drives = drive.transpose(0, 1)
        outputs, last = self.run_form(cell, form, drives, state[0], valid, dt, substeps, every_output=every_output)
        return None if outputs is None else outputs.transpose(0, 1), (last,)

    def run_ensemble(
        self,
        cells: list[StableCell],
        weights: list[Weights],
        drives: list[Tensor],
        states: list[State],
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> list[Result]:
        batch, time, _ = drives[0].shape
        is_stacked = batch > 0 and self.stacks(batch, time, states[0][0].shape[1])
        if not is_stacked or (dt is not None and dt.requires_grad):
            return [
                self.run(cell, matrices, drive, state, valid, dt, substeps, every_output=every_output)
                for cell, matrices, drive, state in zip(cells, weights, drives, states, strict=True)
            ]
        forms = [cell.step_form(matrices) for cell, matrices in zip(cells, weights, strict=True)]
        outputs, last = self.run_form(
            cells[0],
            StepForm.stack([form for form in forms if form is not None]),
            self.stack_drives(cells[0], [drive.transpose(0, 1) for drive in drives]),
            torch.stack([h for (h,) in states]),
            valid,
            dt,
            substeps,
            every_output=every_output,
        )
        by_member = [None] * len(cells) if outputs is None else [part.transpose(0, 1) for part in outputs.unbind(1)]
        return [(output, (h,)) for output, h in zip(by_member, last.unbind(), strict=True)]


class FusedEngine(StepFormEngine):
    """Runs cells of the families ``plain``, ``residual``, ``two-stage`` and ``shared gate`` on the CPU.

    A second derivative, the gradient by ``dt`` and a batch without rows come from the plain loop. While a program
    transforms or records the operations (``torch.func``, forward-mode differentiation, ``torch.compile``,
    ``torch.jit.trace``), ``auto`` takes the loop.
    """

    name = "fused"
    families: ClassVar[Mapping[Family, type[FusedSteps]]] = FAMILIES
    """The steps of each family."""

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        has_form = cell.has_timed_step_form if timed else cell.has_step_form
        is_supported = drive.device.type == "cpu" and drive.dtype in (torch.float32, torch.float64)
        return has_form and is_supported and not is_transformed()

    def stacks(self, batch: int, time: int, hidden: int) -> bool:
        return batch * hidden <= MAX_STACKED

    def stack_drives(self, cell: StableCell, drives: list[Tensor]) -> Tensor:
        return cast("Tensor", StackedDrives.apply(pool_of(cell), *drives))  # type: ignore[no-untyped-call]

    def run_form(
        self,
        cell: StableCell,
        form: StepForm,
        drives: Tensor,
        h: Tensor,
        valid: Tensor | None,
        dt: Tensor | None,
        substeps: int,
        *,
        every_output: bool,
    ) -> tuple[Tensor | None, Tensor]:
        pool = pool_of(cell)
        order, ends = None, [(h.shape[-2], len(drives))]
        if valid is not None:
            # Sorted by length, the sequences that still run are the first rows.
            lengths = valid.sum(dim=1)
            if bool((lengths[1:] > lengths[:-1]).any()):
                order = lengths.argsort(descending=True, stable=True)
                lengths = lengths[order]
                drives = cast("Tensor", SortedDrives.apply(pool, drives, order))  # type: ignore[no-untyped-call]
                h = h.index_select(-2, order)
                dt = None if dt is None else dt[order]
            ends = rows_by_end(lengths)
        step_lengths = None
        if dt is not None:
            step_lengths = (dt.t() * (form.step_size / substeps))[..., None].contiguous()
        repeats = substeps if dt is not None else 1
        sequence = Sequence(form, self.families, repeats, ends, every_output, pool)
        outputs, last = cast(
            "tuple[Tensor, Tensor]",
            FusedSequence.apply(  # type: ignore[no-untyped-call]
                sequence, drives.contiguous(), h, form.recurrent, form.linear, form.bias, step_lengths
            ),
        )
        if order is not None:
            inverse = order.argsort()
            last = last.index_select(-2, inverse)
            outputs = outputs.index_select(-2, inverse) if every_output else outputs
        return outputs if every_output else None, last


class StackedDrives(torch.autograd.Function):
    """The drives of all members, ``(time, members, batch, d)``, in a buffer."""

    @staticmethod
    def forward(ctx: Any, pool: BufferPool, *drives: Tensor) -> Tensor:
        time, *shape = drives[0].shape
        return torch.stack(drives, dim=1, out=pool.take(drives[0], time, len(drives), *shape))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *gradients[0].unbind(1)


class SortedDrives(torch.autograd.Function):
    """The drives with their rows in another order, ``(time, batch, d)`` or ``(time, members, batch, d)``, in a buffer.

    Indexing would add up the gradients of equal rows, of which there are none.
    """

    @staticmethod
    def forward(ctx: Any, pool: BufferPool, drives: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return torch.index_select(drives, -2, order, out=pool.take(drives, *drives.shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (order,) = ctx.saved_tensors
        return None, grads[0].index_select(-2, order.argsort()), None


def rows_by_end(lengths: Tensor) -> list[tuple[int, int]]:
    """Return how many rows run up to each time at which some end, ``(rows, end)``, the earliest first.

    Args:
        lengths: The length of each row, falling.
    """
    values, counts = torch.unique_consecutive(lengths, return_counts=True)
    return [
        (rows, end) for rows, end in zip(counts.cumsum(0).tolist()[::-1], values.tolist()[::-1], strict=True) if end
    ]


class FusedSequence(torch.autograd.Function):
    """All steps of a batch of sequences, of which the longest come first.

    Returns:
        The states after all time steps, ``(time, batch, hidden)``, empty unless they are needed, and the last one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sequence: Sequence,
        drives: Tensor,
        h: Tensor,
        recurrent: Tensor,
        linear: Tensor | None,
        bias: Tensor | None,
        step_lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        steps = sequence.steps(recurrent, linear, bias)
        is_training = any(ctx.needs_input_grad)
        keeps_states = is_training or sequence.every_output
        states, saved, last = run_forward(sequence, steps, drives, h, step_lengths, keeps_states, is_training)
        ctx.sequence = sequence
        if is_training:
            # By save_for_backward, so that the buffers are given back after the backward pass.
            ctx.save_for_backward(drives, h, recurrent, linear, bias, step_lengths, states, *saved)
        every = sequence.substeps
        return (states[every::every] if sequence.every_output else h.new_empty(0)), last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_outputs, grad_last = grads
        sequence: Sequence = ctx.sequence
        # Checkpointed tensors can be taken only once.
        tensors = ctx.saved_tensors
        inputs, states, saved = tensors[:6], tensors[6], list(tensors[7:])
        if torch.is_grad_enabled():
            # create_graph=True: a second derivative is taken of what the plain steps compute.
            return None, *differentiable_gradients(sequence, inputs, grad_outputs, grad_last), None
        steps, step_lengths = sequence.steps(*inputs[2:5]), inputs[5]
        outputs = grad_outputs if sequence.every_output else None
        # After this pass nobody reads what was saved, unless the graph is retained.
        overwrite = _keeps_graph is not None and not _keeps_graph()
        gradients = run_backward(sequence, steps, states, saved, step_lengths, outputs, grad_last, overwrite)
        return None, *gradients, None


register_engine(FusedEngine())
