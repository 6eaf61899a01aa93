"""A whole sequence as one node of the autograd graph, for complex units whose matrix has a structure.

The plain loop multiplies by the real form of the matrix, ``(2 N, 2 N)``, and keeps a graph of every step. Here products
use the structure that the cell states (:mod:`stablernn.cells._structured_products`), and the gradients of what the
matrix is built from are those of one product over many time steps.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from stablernn.buffers import BufferPool, pool_of
from stablernn.cells import StableCell, State, Weights
from stablernn.cells._complex import FLOOR, ComplexCell, StructuredStep
from stablernn.engines.base import Result, differentiate_again, register_engine
from stablernn.parametrizations import complex_modrelu
from stablernn.transforms import is_transformed

MIN_HIDDEN = 256
"""Complex units from which on the structure takes less time than the matrix, multiplied out."""


class StructuredEngine:
    """Runs ``urnn`` and ``kru`` with :data:`MIN_HIDDEN` units or more.

    Second derivatives come from the plain steps. While a program transforms or records the operations, ``auto`` takes
    the loop.
    """

    name = "structured"

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        has_structure = isinstance(cell, ComplexCell) and cell.structured_product() is not None
        is_large = cell.hidden_size >= MIN_HIDDEN
        return has_structure and is_large and not timed and not is_transformed()

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
        assert isinstance(cell, ComplexCell)
        step = cell.structured_step(weights)
        assert step is not None
        h, flags = state[0], state[1:]
        has_steps = None if valid is None else valid.any(dim=1, keepdim=True)
        first = h
        if step.start is not None:
            first = torch.where(flags[0] > 0, h, step.start)
            if has_steps is not None:
                first = torch.where(has_steps, first, h)
            started = torch.ones_like(flags[0])
            flags = (started if has_steps is None else torch.where(has_steps, started, flags[0]),)
        outputs, last = cast(
            "tuple[Tensor, Tensor]",
            StructuredSequence.apply(  # type: ignore[no-untyped-call]
                step, pool_of(cell), valid, every_output, drive.transpose(0, 1), first, step.bias, *step.product.tensors
            ),
        )
        return outputs.transpose(0, 1) if every_output else None, (last, *flags)


class StructuredSequence(torch.autograd.Function):
    """All steps of a batch of sequences.

    Returns:
        The states after all time steps, ``(time, batch, 2 N)``, empty unless they are needed, and the last one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        step: StructuredStep,
        pool: BufferPool,
        valid: Tensor | None,
        every_output: bool,
        drives: Tensor,
        first: Tensor,
        bias: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        product = step.product.replace(tensors)
        is_training = any(ctx.needs_input_grad)
        time, parts = len(drives), (len(first), 2, len(bias))
        # Of what no backward pass reads, one slot is used again and again.
        slots = time if is_training else 1
        states = pool.take(first, time + 1 if is_training or every_output else 2, *first.shape)
        arguments, moduli = pool.take(first, slots, *first.shape), pool.take(first, slots, len(first), len(bias))
        masks, scale, shifted = _masks(valid, time), torch.empty_like(moduli[0]), torch.empty_like(moduli[0])
        states[0] = first
        for index, (drive, mask) in enumerate(zip(drives.unbind(), masks, strict=True)):
            old, new = states[index % len(states)], states[(index + 1) % len(states)]
            z, modulus = arguments[index % slots], moduli[index % slots]
            product.apply(old, drive, out=z)
            _modulus(z.view(parts), out=modulus)
            torch.add(modulus, bias, out=scale).relu_().div_(torch.add(modulus, step.offset, out=shifted))
            torch.mul(z.view(parts), scale[:, None], out=new.view(parts))
            if mask is not None:
                new.copy_(torch.where(mask, new, old))
        # A copy, which does not keep the states of all steps in memory.
        last = states[time % len(states)].clone()
        ctx.step, ctx.pool, ctx.masks, ctx.every_output = step, pool, masks, every_output
        if is_training:
            ctx.save_for_backward(drives, first, bias, states, arguments, moduli, *tensors)
        return (states[1:].clone() if every_output else first.new_empty(0)), last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_outputs, grad_last = grads
        drives, first, bias, states, arguments, moduli, *tensors = ctx.saved_tensors
        step: StructuredStep = ctx.step
        if torch.is_grad_enabled():
            # create_graph=True: a second derivative is taken of what the plain steps compute.
            outputs = grad_outputs if ctx.every_output else None
            return None, None, None, None, *_differentiable(ctx, [drives, first, bias, *tensors], outputs, grad_last)
        product, parts = step.product.replace(tensors), (len(first), 2, len(bias))
        of_arguments = ctx.pool.take(arguments, *arguments.shape)
        grad_bias = torch.zeros_like(bias)
        of_tensors = [torch.zeros_like(tensor) for tensor in tensors]
        # Kept for all steps: to map fresh memory takes longer than these operations.
        inverse, scale, slope, along, weighted = (torch.empty_like(moduli[0]) for _ in range(5))
        g = grad_last
        for index in range(len(drives) - 1, -1, -1):
            if ctx.every_output:
                g = g + grad_outputs[index]
            z, modulus, mask, g_parts = arguments[index].view(parts), moduli[index], ctx.masks[index], g.reshape(parts)
            torch.add(modulus, step.offset, out=inverse).reciprocal_()
            torch.add(modulus, bias, out=scale).relu_().mul_(inverse)
            # Of relu(modulus + bias) / (modulus + offset), without its second term: 0 where the units are off.
            torch.sign(scale, out=slope).mul_(inverse)
            torch.mul(z[:, 0], g_parts[:, 0], out=along).addcmul_(z[:, 1], g_parts[:, 1])
            if mask is not None:
                along.mul_(mask)
            grad_bias += torch.mul(along, slope, out=weighted).sum(dim=0)
            by_modulus = along.mul_(slope.addcmul_(scale, inverse, value=-1)).div_(modulus)
            gradient = torch.mul(z, by_modulus[:, None], out=of_arguments[index].view(parts))
            gradient.addcmul_(g_parts, (scale if mask is None else scale.mul_(mask))[:, None])
            back, of_product = product.backward(states[index], of_arguments[index])
            for total, part in zip(of_tensors, of_product, strict=True):
                total += part
            g = back if mask is None else torch.where(mask, back, g)
        return None, None, None, None, of_arguments, g, grad_bias, *of_tensors


def _masks(valid: Tensor | None, time: int) -> list[Tensor | None]:
    """Return the mask of each time step, ``(batch, 1)``; None where every sequence has it."""
    masks: list[Tensor | None] = [None] * time
    if valid is not None:
        shortest = int(valid.sum(dim=1).min())
        masks[shortest:] = valid[:, shortest:, None].unbind(dim=1)
    return masks


def _differentiable(
    ctx: Any, inputs: list[Tensor], grad_outputs: Tensor | None, grad_last: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients by drives, first state, bias and the tensors of the product, with a graph of their own."""

    def compute(views: list[Tensor | None]) -> list[Tensor]:
        drives, h, bias, *tensors = cast("list[Tensor]", views)
        product, outputs = ctx.step.product.replace(tensors), []
        for drive, mask in zip(drives.unbind(), ctx.masks, strict=True):
            new = complex_modrelu(product.apply(h, drive), bias, ctx.step.offset)
            h = new if mask is None else torch.where(mask, new, h)
            outputs.append(h)
        return [h] if grad_outputs is None else [h, torch.stack(outputs)]

    grads = [grad_last] if grad_outputs is None else [grad_last, grad_outputs]
    return tuple(differentiate_again(compute, inputs, grads))


def _modulus(z: Tensor, *, out: Tensor) -> Tensor:
    """Return the modulus of ``(batch, 2, N)`` as :func:`stablernn.parametrizations.complex_modrelu` computes it."""
    re, im = z.unbind(dim=1)
    torch.mul(re, re, out=out)
    return out.addcmul_(im, im).add_(FLOOR**2).sqrt_()


register_engine(StructuredEngine())
