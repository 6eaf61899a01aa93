"""Launches of the kernels over whole buffers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from stablernn.cells._step_form import StepForm
from stablernn.engines.fused_families import FAMILIES
from stablernn.engines.triton.kernels import backward_kernel, forward_kernel, scan_kernel
from stablernn.engines.triton.plan import Plan, Precision, count_streamed_rows, make_plan, shared_limit

_BLOCK = 64
"""Units of sequences that a program runs."""
_STAGES = 6
"""Steps that are read ahead."""


@dataclass(frozen=True)
class Batch:
    """A batch of sequences, of one cell or of the members of an ensemble.

    Attributes:
        precision: Rounding of the operands of products.
        form: The step; of an ensemble its matrices are ``(members, hidden, hidden)``.
        substeps: Equal parts of each time step.
        step_lengths: ``(time, batch)``, the length of the sub-steps of each time step; None if steps are regular.
        lengths: ``(batch,)`` int32, the length of each sequence; None if all are as long as the drives.
    """

    precision: Precision
    form: StepForm
    substeps: int
    step_lengths: Tensor | None
    lengths: Tensor | None


def run_forward(
    batch: Batch, drives: Tensor, h: Tensor, *, keeps_states: bool, keeps_activations: bool
) -> tuple[Tensor | None, list[Tensor], Tensor]:
    """Run all steps.

    Args:
        batch: The step and its lengths.
        drives: ``(time, batch, d)`` or ``(time, members, batch, d)``, contiguous.
        h: The first state, ``(batch, hidden)`` or ``(members, batch, hidden)``, contiguous.
        keeps_states: Whether all states are needed.
        keeps_activations: Whether a backward pass will need the activations.

    Returns:
        The states before the first and after each sub-step, ``(n + 1, ..., batch, hidden)``, None unless they are
        kept; what the backward pass needs besides, ``(n, ..., batch, hidden)`` each; and the last state.
    """
    total = len(drives) * batch.substeps
    states = h.new_empty(total + 1, *h.shape) if keeps_states else None
    count = FAMILIES[batch.form.family].saved if keeps_activations else 0
    saved = [h.new_empty(total, *h.shape) for _ in range(count)]
    last = torch.empty_like(h)
    if h.numel() == 0:
        return states, saved, last
    form = batch.form
    _launch(
        forward_kernel,
        batch,
        h,
        len(drives),
        is_backward=False,
        drives=drives,
        first=h,
        recurrent=_operand(form.recurrent.mT, batch.precision),
        linear=None if form.linear is None else _operand(form.linear.mT, batch.precision),
        bias=None if form.bias is None else form.bias.contiguous(),
        states=states,
        **_numbered("saved", saved, 3),
        last=last,
        NONLINEARITY=form.nonlinearity,
        HAS_BIAS=form.bias is not None,
        KEEPS_STATES=keeps_states,
        KEEPS_ACTIVATIONS=keeps_activations,
    )
    return states, saved, last


def run_backward(
    batch: Batch, values: list[Tensor], grad_outputs: Tensor | None, grad_last: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Go back over all steps.

    Args:
        batch: The step and its lengths.
        values: What the forward pass saved; of a plain step the states after the sub-steps.
        grad_outputs: The gradient by the outputs, ``(time, ..., batch, hidden)``; None if there is none.
        grad_last: The gradient by the last state.

    Returns:
        The gradients by the arguments of nonlinearities and gates, and by ``A h`` for each stage if there is an A,
        ``(n, ..., batch, hidden)`` each; and the gradient by the first state.
    """
    form, family = batch.form, FAMILIES[batch.form.family]
    arguments = [torch.empty_like(values[0]) for _ in range(family.arguments)]
    velocities = [torch.empty_like(values[0]) for _ in range(family.stages if form.linear is not None else 0)]
    grad_first = torch.empty_like(grad_last, memory_format=torch.contiguous_format)
    if grad_last.numel() == 0:
        return arguments, velocities, grad_first
    _launch(
        backward_kernel,
        batch,
        grad_last,
        len(values[0]) // batch.substeps,
        is_backward=True,
        grad_last=grad_last.contiguous(),
        grad_outputs=None if grad_outputs is None else grad_outputs.contiguous(),
        recurrent=_operand(form.recurrent, batch.precision),
        linear=None if form.linear is None else _operand(form.linear, batch.precision),
        **_numbered("saved", values[:2], 2),
        **_numbered("arguments", arguments, 2),
        **_numbered("velocities", velocities, 2),
        grad_first=grad_first,
        NONLINEARITY=form.nonlinearity,
        HAS_OUTPUTS=grad_outputs is not None,
    )
    return arguments, velocities, grad_first


def _launch(kernel: Any, batch: Batch, like: Tensor, time: int, *, is_backward: bool, **arguments: Any) -> None:
    """Launch a kernel for a state like ``like``; tensors that are None are not read."""
    form, hidden = batch.form, like.shape[-1]
    members = len(like) if like.dim() == 3 else 1
    plan = make_plan(
        batch.precision,
        form.family,
        hidden,
        form.linear is not None,
        is_backward=is_backward,
        limit=shared_limit(like.device),
        streamed_rows=count_streamed_rows(like.shape[-2], members, like.device),
    )
    if plan is None:
        raise RuntimeError(f"No kernel of the engine 'triton' runs {hidden} units; 'supports' must be asked first.")
    grid = (-(-like.shape[-2] // plan.rows), members)
    tensors = {
        **arguments,
        "step_lengths": batch.step_lengths,
        "lengths": batch.lengths,
        "scratch": None if plan.is_resident else like.new_empty(grid[0] * members, plan.rows, plan.columns),
    }
    with device_of(like):
        kernel[grid](
            # The compiler never reads a tensor that is not there, and the interpreter takes no None.
            **{name: like if value is None else value for name, value in tensors.items()},
            # The lengths of irregular sub-steps contain the step size, which may be a whole number.
            step_size=float(form.step_size),
            time=time,
            batch=like.shape[-2],
            members=members,
            FAMILY=form.family,
            SUBSTEPS=batch.substeps,
            HAS_LINEAR=form.linear is not None,
            IS_TIMED=batch.step_lengths is not None,
            HAS_LENGTHS=batch.lengths is not None,
            PRECISION=batch.precision,
            **_sizes(plan, hidden),
        )


def _sizes(plan: Plan, hidden: int) -> dict[str, Any]:
    return {
        "HIDDEN": hidden,
        "BLOCK_B": plan.rows,
        "BLOCK_N": plan.columns,
        "BLOCK_K": plan.depth,
        "STAGES": plan.stages,
        "num_warps": plan.warps,
        # Of the loop over the tiles of a matrix; STAGES is that of the loop over steps.
        "num_stages": 3,
    }


def device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the GPU of a tensor is the current one; Triton launches on that."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _operand(matrix: Tensor, precision: Precision) -> Tensor:
    """Return a matrix as the kernels read it."""
    if precision == "bf16":
        # NumPy, by which the interpreter computes, has no bfloat16.
        rounded = matrix.to(torch.bfloat16)
        return (rounded if matrix.is_cuda else rounded.float()).contiguous()
    return matrix.contiguous()


def _numbered(name: str, tensors: list[Tensor], count: int) -> dict[str, Tensor | None]:
    """Return arguments ``name_0`` up to ``count`` of them, None where there are fewer tensors."""
    return {f"{name}_{index}": tensors[index] if index < len(tensors) else None for index in range(count)}


def run_scan(states: Tensor, decay: Tensor, increment: Tensor, first: Tensor, *, reverse: bool) -> None:
    """Write the states after every step into ``states``; see :class:`stablernn.engines.scan.LinearScan`."""
    _launch_scan(states, decay, increment, first, None, reverse=reverse)


def run_scan_backward(
    gradients: Tensor, decay: Tensor, grad: Tensor, states: Tensor, first: Tensor, *, reverse: bool
) -> Tensor:
    """Write the gradients by the states after every step into ``gradients``, and return the gradient by the decays.

    Args:
        gradients: ``(time, batch, parts, units)``.
        decay: The conjugates of the decays, ``(parts, units)``.
        grad: Gradients by the states as results, of the shape of ``gradients``.
        states: The states, likewise.
        first: The state before the first step, ``(batch, parts, units)``.
        reverse: The direction of the gradients, which is opposite to that of the states.

    Returns:
        ``(parts, units)``.
    """
    return _launch_scan(gradients, decay, grad, torch.zeros_like(first), (states, first), reverse=reverse).sum(dim=0)


def _launch_scan(
    states: Tensor,
    decay: Tensor,
    increment: Tensor,
    first: Tensor,
    other: tuple[Tensor, Tensor] | None,
    *,
    reverse: bool,
) -> Tensor:
    time, batch, parts, units = states.shape
    products = torch.empty((0 if other is None else batch, parts, units), dtype=states.dtype, device=states.device)
    # A kernel without products reads none of these.
    other_states, other_first = other or (states, first)
    constants: dict[str, Any] = {
        "UNITS": units,
        "PARTS": parts,
        "IS_CONSTANT": decay.dim() == 2,
        "IS_REVERSED": reverse,
        "HAS_PRODUCTS": other is not None,
        "BLOCK": _BLOCK,
        "STAGES": _STAGES,
        "num_warps": _BLOCK // 32,
    }
    with device_of(states):
        scan_kernel[(triton.cdiv(batch * units, _BLOCK),)](
            states,
            decay.contiguous(),
            increment.contiguous(),
            first.contiguous(),
            other_states.contiguous(),
            other_first.contiguous(),
            products,
            time,
            batch,
            **constants,
        )
    return products
