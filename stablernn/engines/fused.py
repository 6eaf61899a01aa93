"""A whole sequence as one node of the autograd graph, for cells whose step is a :class:`StepForm`.

The plain loop builds several nodes a step, each of which keeps tensors and allocates gradients. Here the forward pass
writes states and activations into buffers over all time steps, the backward pass walks back over them, and the
gradients of the matrices are one product over all time steps at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from stablernn.cells import StableCell, State
from stablernn.cells._step_form import StepForm
from stablernn.engines.buffers import BufferPool, pool_of
from stablernn.engines.fused_families import FAMILIES, FusedSteps, Lengths
from stablernn.engines.loop import LoopEngine
from stablernn.engines.select import register_engine

MAX_STACKED = 1 << 11
"""Numbers in the state of one member up to which an ensemble runs as one: larger ones gain nothing from it."""


class FusedEngine:
    """Runs cells of the families ``plain``, ``residual``, ``two-stage`` and ``shared gate`` on the CPU.

    A second derivative and the gradient by ``dt`` come from the plain loop. While a program transforms or records the
    operations (``torch.func``, forward-mode differentiation, ``torch.compile``, ``torch.jit.trace``), ``auto`` takes
    the loop.
    """

    name = "fused"

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        has_form = cell.has_timed_step_form if timed else cell.has_step_form
        is_supported = drive.device.type == "cpu" and drive.dtype in (torch.float32, torch.float64)
        return has_form and is_supported and not _is_transformed()

    def run(
        self,
        cell: StableCell,
        weights: tuple[Tensor, ...],
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        if dt is not None and dt.requires_grad:
            return LoopEngine().run(cell, weights, drive, state, valid, dt, substeps, every_output=every_output)
        form = cell.step_form(weights)
        assert form is not None
        (h,) = state
        # (time, batch, d): each step reads one block of memory.
        outputs, last = run_form(
            form, drive.transpose(0, 1), h, valid, dt, substeps, every_output=every_output, pool=pool_of(cell)
        )
        return None if outputs is None else outputs.transpose(0, 1), (last,)

    def run_ensemble(
        self,
        cells: list[StableCell],
        weights: list[tuple[Tensor, ...]],
        drives: list[Tensor],
        states: list[State],
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> list[tuple[Tensor | None, State]]:
        batch, hidden = states[0][0].shape
        if batch * hidden > MAX_STACKED or (dt is not None and dt.requires_grad):
            return [
                self.run(cell, matrices, drive, state, valid, dt, substeps, every_output=every_output)
                for cell, matrices, drive, state in zip(cells, weights, drives, states, strict=True)
            ]
        forms = [cell.step_form(matrices) for cell, matrices in zip(cells, weights, strict=True)]
        outputs, last = run_form(
            StepForm.stack([form for form in forms if form is not None]),
            StackedDrives.apply(pool_of(cells[0]), *[drive.transpose(0, 1) for drive in drives]),  # type: ignore[no-untyped-call]
            torch.stack([h for (h,) in states]),
            valid,
            dt,
            substeps,
            every_output=every_output,
            pool=pool_of(cells[0]),
        )
        by_member = [None] * len(cells) if outputs is None else [part.transpose(0, 1) for part in outputs.unbind(1)]
        return [(output, (h,)) for output, h in zip(by_member, last.unbind(), strict=True)]


class StackedDrives(torch.autograd.Function):
    """The drives of all members, ``(time, members, batch, d)``, in a buffer."""

    @staticmethod
    def forward(ctx: Any, pool: BufferPool, *drives: Tensor) -> Tensor:
        time, *shape = drives[0].shape
        return torch.stack(drives, dim=1, out=pool.take(drives[0], time, len(drives), *shape))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *gradients[0].unbind(1)


def run_form(
    form: StepForm,
    drives: Tensor,
    h: Tensor,
    valid: Tensor | None,
    dt: Tensor | None,
    substeps: int,
    *,
    every_output: bool,
    pool: BufferPool,
) -> tuple[Tensor | None, Tensor]:
    """Run every step of a cell, or of the members of an ensemble at once.

    Args:
        form: The step.
        drives: ``(time, batch, d)`` or ``(time, members, batch, d)``.
        h: The first state, ``(batch, hidden)`` or ``(members, batch, hidden)``.
        valid: As for :meth:`Engine.run`.
        dt: Likewise.
        substeps: Likewise.
        every_output: Likewise.
        pool: Where buffers come from.

    Returns:
        The states after every step in the shape of the drives, None if they are not needed; and the last state.
    """
    order, ends = None, [(h.shape[-2], len(drives))]
    if valid is not None:
        # Sorted by length, the sequences that still run are the first rows.
        lengths = valid.sum(dim=1)
        order = lengths.argsort(descending=True, stable=True)
        ends = rows_by_end(lengths[order])
        drives, h = drives[..., order, :], h[..., order, :]
        dt = None if dt is None else dt[order]
    step_lengths = None
    if dt is not None:
        step_lengths = (dt.t() * (form.step_size / substeps))[..., None].contiguous()
    sequence = Sequence(form, substeps if dt is not None else 1, ends, every_output, pool)
    outputs, last = cast(
        "tuple[Tensor, Tensor]",
        FusedSequence.apply(  # type: ignore[no-untyped-call]
            sequence, drives.contiguous(), h, form.recurrent, form.linear, form.bias, step_lengths
        ),
    )
    if order is not None:
        inverse = order.argsort()
        last = last[..., inverse, :]
        outputs = outputs[..., inverse, :] if every_output else outputs
    return outputs if every_output else None, last


def _is_transformed() -> bool:
    """Return whether operations are transformed or recorded, which the steps in place are not made for."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def rows_by_end(lengths: Tensor) -> list[tuple[int, int]]:
    """Return how many rows run up to each time at which some end, ``(rows, end)``, the earliest first.

    Args:
        lengths: The length of each row, falling.
    """
    values, counts = torch.unique_consecutive(lengths, return_counts=True)
    return [
        (rows, end) for rows, end in zip(counts.cumsum(0).tolist()[::-1], values.tolist()[::-1], strict=True) if end
    ]


@dataclass(frozen=True)
class Sequence:
    """A batch of sequences without its tensors: the form of the step, sub-steps, and where rows end.

    Attributes:
        form: The step; its tensors are replaced by the arguments of :class:`FusedSequence`.
        substeps: Equal parts of each time step.
        ends: Number of rows that run up to each time at which some end, the earliest first.
        every_output: Whether the outputs of all time steps are needed.
        pool: Buffers of the cell.
    """

    form: StepForm
    substeps: int
    ends: list[tuple[int, int]]
    every_output: bool
    pool: BufferPool

    def steps(self, recurrent: Tensor, linear: Tensor | None, bias: Tensor | None) -> FusedSteps:
        """Return the steps with these matrices."""
        form = replace(self.form, recurrent=recurrent, linear=linear, bias=bias)
        return FAMILIES[form.family](form)

    def segments(self) -> list[tuple[int, int, int]]:
        """Return the sub-steps between which no row ends, as ``(rows, first, end)``."""
        times = [0, *(end for _, end in self.ends)]
        return [
            (rows, start * self.substeps, end * self.substeps)
            for (rows, _), (start, end) in zip(self.ends, pairwise(times), strict=True)
        ]

    def ended(self, batch: int) -> list[tuple[slice, int]]:
        """Return which rows end before the last sub-step, and the sub-steps that they have."""
        counts = [batch, *(rows for rows, _ in self.ends), 0]
        ends = [0, *(end * self.substeps for _, end in self.ends)]
        return [(slice(after, before), end) for (before, after), end in zip(pairwise(counts), ends, strict=True)]

    def lengths(self, step_lengths: Tensor | None, rows: int, start: int, end: int) -> Lengths:
        """Return the lengths of the sub-steps of a segment."""
        if step_lengths is None:
            return self.form.step_size
        times = step_lengths[start // self.substeps : end // self.substeps, :rows].unbind()
        return [time for time in times for _ in range(self.substeps)]


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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_outputs, grad_last = gradients
        sequence: Sequence = ctx.sequence
        *inputs, states = ctx.saved_tensors[:7]
        saved = list(ctx.saved_tensors[7:])
        if torch.is_grad_enabled():
            # create_graph=True: a second derivative is taken of what the plain steps compute.
            return None, *differentiable_gradients(sequence, tuple(inputs), grad_outputs, grad_last), None
        steps, step_lengths = sequence.steps(*inputs[2:5]), inputs[5]
        outputs = grad_outputs if sequence.every_output else None
        return None, *run_backward(sequence, steps, states, saved, step_lengths, outputs, grad_last), None


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
        # Without a backward pass one slot of each kind is used again and again.
        state_views = (states[start : end + 1] if keeps_states else states)[..., :rows, :].unbind()
        if not keeps_states:
            state_views = tuple(state_views[index % 2] for index in range(start, end + 1))
        saved_views = [
            buffer[start:end, ..., :rows, :].unbind()
            if keeps_activations
            else (buffer[0, ..., :rows, :],) * (end - start)
            for buffer in saved
        ]
        drive_views = drives[start // repeats : end // repeats, ..., :rows, :].unbind()
        if repeats > 1:
            drive_views = tuple(drive for drive in drive_views for _ in range(repeats))
        steps.forward(state_views, drive_views, sequence.lengths(step_lengths, rows, start, end), saved_views)
        last[..., :rows, :] = state_views[-1]
    for ended, end in sequence.ended(h.shape[-2]):
        if sequence.every_output:
            # Sequences that have ended keep their state.
            states[end + 1 :, ..., ended, :] = last[..., ended, :]
        elif keeps_activations:
            # Their gradients are 0, and 0 times whatever was in the buffer may be NaN.
            states[end + 1 :, ..., ended, :].zero_()
        if keeps_activations:
            for buffer in saved:
                buffer[end:, ..., ended, :].zero_()
    return states, saved, last


def run_backward(
    sequence: Sequence,
    steps: FusedSteps,
    states: Tensor,
    saved: list[Tensor],
    step_lengths: Tensor | None,
    grad_outputs: Tensor | None,
    grad_last: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients by drives, first state, K, A and bias."""
    repeats, total, shape = sequence.substeps, len(states) - 1, states.shape[1:]
    take = sequence.pool.take
    arguments = [take(states, total, *shape) for _ in range(steps.arguments)]
    # The gradients by A h are kept where there is an A, whose gradient is their product with the states.
    depth = total if steps.linear is not None else 1
    velocities = [take(states, depth, *shape) for _ in range(steps.stages)]
    values = saved or [states[1:]]
    is_scaled = steps.saved > 0 and step_lengths is None
    scale = sequence.form.step_size if is_scaled else 1.0
    g = grad_last * scale
    for rows, end in sequence.ended(shape[-2]):
        # Sequences that have ended give nothing to the matrices, and pass on what their outputs get.
        for buffer in (*arguments, *(velocities if depth == total else ())):
            buffer[end:, ..., rows, :].zero_()
        if grad_outputs is not None:
            g[..., rows, :] += scale * grad_outputs[end // repeats :, ..., rows, :].sum(dim=0)
    for count, start, end in reversed(sequence.segments()):
        velocity_part = slice(start, end) if depth == total else slice(0, 1)
        steps.backward(
            g[..., :count, :],
            sequence.lengths(step_lengths, count, start, end),
            [buffer[start:end, ..., :count, :].unbind() for buffer in values],
            [buffer[start:end, ..., :count, :].unbind() for buffer in arguments],
            [buffer[velocity_part, ..., :count, :].unbind() for buffer in velocities],
            None if grad_outputs is None else output_gradients(sequence, grad_outputs, count, start, end),
        )
    # The states that the products with K and A read.
    read = [states[:-1], saved[2]] if steps.stages == 2 else [states[:-1]] * steps.arguments
    return (
        grad_of_drives(sequence, arguments),
        g / scale if scale != 1 else g,
        sum_of_products(arguments, read, sequence.pool),
        None if steps.linear is None else sum_of_products(velocities, read, sequence.pool),
        grad_of_bias(sequence, arguments, values),
    )


def output_gradients(sequence: Sequence, grad_outputs: Tensor, rows: int, start: int, end: int) -> list[Tensor | None]:
    """Return the gradient by the output of each sub-step of a segment; only the last of a time step has one."""
    repeats = sequence.substeps
    times = grad_outputs[start // repeats : end // repeats, ..., :rows, :].unbind()
    return [times[index // repeats] if (index + 1) % repeats == 0 else None for index in range(end - start)]


def sum_of_products(gradients: list[Tensor], inputs: list[Tensor], pool: BufferPool) -> Tensor:
    """Return the sum over all steps and rows of ``gradient input^T``: the gradient of a matrix, or of each member's."""
    flat = [(rows_of(left, pool).mT, rows_of(right, pool)) for left, right in zip(gradients, inputs, strict=True)]
    total = flat[0][0] @ flat[0][1]
    for left, right in flat[1:]:
        total += left @ right
    return total


def rows_of(buffer: Tensor, pool: BufferPool) -> Tensor:
    """Return the rows of all steps, ``(time * batch, d)`` or ``(members, time * batch, d)``."""
    if buffer.dim() == 3:
        return buffer.flatten(0, 1)
    by_member = buffer.movedim(1, 0)
    return pool.take(buffer, *by_member.shape).copy_(by_member).flatten(1, 2)


def grad_of_drives(sequence: Sequence, arguments: list[Tensor]) -> Tensor:
    """Return the gradient by the drives, which each sub-step and stage of a time step reads."""
    repeats = sequence.substeps
    if sequence.form.family == "shared gate":
        gradient = torch.cat(arguments, dim=-1)
    else:
        gradient = arguments[0] if len(arguments) == 1 else arguments[0] + arguments[1]
    return gradient if repeats == 1 else gradient.view(-1, repeats, *gradient.shape[1:]).sum(dim=1)


def grad_of_bias(sequence: Sequence, arguments: list[Tensor], values: list[Tensor]) -> Tensor | None:
    """Return the gradient by the bias inside of the nonlinearity."""
    bias = sequence.form.bias
    if bias is None:
        return None
    is_modrelu = sequence.form.nonlinearity in ("modrelu", "softshrink")
    sums = [
        (gradient * value.sign() if is_modrelu else gradient).sum(dim=(0, -2)).view_as(bias)
        for gradient, value in zip(arguments, values, strict=False)
    ]
    return sums[0] if len(sums) == 1 else sums[0] + sums[1]


def differentiable_gradients(
    sequence: Sequence, inputs: tuple[Tensor | None, ...], grad_outputs: Tensor, grad_last: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients by drives, first state, K, A and bias as functions that autograd can differentiate."""
    drives, h, recurrent, linear, bias, step_lengths = inputs
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
            moving = form.step(moving, drive[..., :active, :], length)
        state = torch.cat([moving, ended], dim=-2)
        outputs.append(state)
    results, gradients = [state], [grad_last]
    if sequence.every_output:
        results.append(torch.stack(outputs))
        gradients.append(grad_outputs)
    arguments = [tensor for tensor in inputs[:5] if tensor is not None and tensor.requires_grad]
    remaining = iter(torch.autograd.grad(results, arguments, gradients, create_graph=True, allow_unused=True))
    return tuple(next(remaining) if tensor is not None and tensor.requires_grad else None for tensor in inputs[:5])


register_engine(FusedEngine())
