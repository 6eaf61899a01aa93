"""A whole sequence as one node of the autograd graph, for cells whose step is a :class:`StepForm`.

The plain loop builds several nodes a step, each of which keeps tensors and allocates gradients. Here the forward pass
writes states and activations into buffers over all time steps, the backward pass walks back over them, and the
gradients of the matrices are one product over all time steps at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from stablernn.buffers import BufferPool, pool_of
from stablernn.cells import StableCell, State
from stablernn.cells._step_form import Family, StepForm
from stablernn.engines.fused_families import FAMILIES, FusedSteps
from stablernn.engines.fused_passes import Sequence, differentiable_gradients, run_backward, run_forward
from stablernn.engines.loop import LoopEngine
from stablernn.engines.select import register_engine
from stablernn.transforms import is_transformed

MAX_STACKED = 1 << 11
"""Numbers in the state of one member up to which an ensemble runs as one: larger ones gain nothing from it."""


_keeps_graph = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)


class FusedEngine:
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
        if not len(drive) or (dt is not None and dt.requires_grad):
            return LoopEngine().run(cell, weights, drive, state, valid, dt, substeps, every_output=every_output)
        form = cell.step_form(weights)
        assert form is not None
        (h,) = state
        # (time, batch, d): each step reads one block of memory.
        outputs, last = run_form(
            form,
            drive.transpose(0, 1),
            h,
            valid,
            dt,
            substeps,
            every_output=every_output,
            families=self.families,
            pool=pool_of(cell),
        )
        return None if outputs is None else outputs.transpose(0, 1), (last,)

    def stacks(self, batch: int, time: int, hidden: int) -> bool:
        """Return whether members of this size run as one, and not one after the other."""
        return batch * hidden <= MAX_STACKED

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
        batch, time, _ = drives[0].shape
        is_stacked = batch > 0 and self.stacks(batch, time, states[0][0].shape[1])
        if not is_stacked or (dt is not None and dt.requires_grad):
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
            families=self.families,
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


def run_form(
    form: StepForm,
    drives: Tensor,
    h: Tensor,
    valid: Tensor | None,
    dt: Tensor | None,
    substeps: int,
    *,
    every_output: bool,
    families: Mapping[Family, type[FusedSteps]],
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
        families: The steps of each family.
        pool: Where buffers come from.

    Returns:
        The states after every step in the shape of the drives, None if they are not needed; and the last state.
    """
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
    sequence = Sequence(form, families, repeats, ends, every_output, pool)
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
