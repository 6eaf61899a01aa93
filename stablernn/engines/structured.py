"""A whole sequence as one node of the autograd graph, for complex units whose matrix has a structure.

The plain loop multiplies by the real form of the matrix, ``(2 N, 2 N)``, and keeps a graph of every step. Here states
are complex numbers, products use the structure that the cell states (:mod:`stablernn.cells._structured_products`), and
the gradients of what the matrix is built from are those of one product over many time steps.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from stablernn.buffers import BufferPool, pool_of
from stablernn.cells import StableCell, State
from stablernn.cells._complex import FLOOR, ComplexCell, StructuredStep
from stablernn.cells._structured_products import StructuredProduct
from stablernn.engines.select import register_engine
from stablernn.parametrizations import complex_modrelu
from stablernn.transforms import is_transformed

MIN_HIDDEN = 256
"""Complex units from which on the structure takes less time than the matrix, multiplied out."""
CHUNK_ROWS = 1 << 12
"""States, over steps and sequences, whose products are differentiated at once."""


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
        weights: tuple[Tensor, ...],
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
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
        time, h = len(drives), _as_complex(first)
        # Of what no backward pass reads, one slot is used again and again.
        slots = time if is_training else 1
        states = pool.take(h, time + 1 if is_training or every_output else 2, *h.shape)
        arguments, moduli = pool.take(h, slots, *h.shape), pool.take(first, slots, *h.shape)
        masks = _masks(valid, time)
        states[0] = h
        for index, (drive, mask) in enumerate(zip(drives.unbind(), masks, strict=True)):
            old, new = states[index % len(states)], states[(index + 1) % len(states)]
            z, modulus = arguments[index % slots], moduli[index % slots]
            torch.add(product.apply(old), _as_complex(drive), out=z)
            _modulus(z, out=modulus)
            torch.mul(z, (modulus + bias).relu_().div_(modulus + step.offset), out=new)
            if mask is not None:
                new.copy_(torch.where(mask, new, old))
        last = _as_real(states[time % len(states)])
        ctx.step, ctx.pool, ctx.masks, ctx.every_output = step, pool, masks, every_output
        if is_training:
            ctx.save_for_backward(drives, first, bias, states, arguments, moduli, *tensors)
        return (_as_real(states[1:]) if every_output else first.new_empty(0)), last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_outputs, grad_last = grads
        drives, first, bias, states, arguments, moduli, *tensors = ctx.saved_tensors
        step: StructuredStep = ctx.step
        if torch.is_grad_enabled():
            # create_graph=True: a second derivative is taken of what the plain steps compute.
            outputs = grad_outputs if ctx.every_output else None
            return None, None, None, None, *_differentiable(ctx, [drives, first, bias, *tensors], outputs, grad_last)
        product, time = step.product.replace(tensors), len(drives)
        of_arguments = ctx.pool.take(arguments, *arguments.shape)
        grad_bias = torch.zeros_like(bias)
        g = _as_complex(grad_last)
        for index in range(time - 1, -1, -1):
            if ctx.every_output:
                g = g + _as_complex(grad_outputs[index])
            z, modulus, mask = arguments[index], moduli[index], ctx.masks[index]
            inverse = (modulus + step.offset).reciprocal_()
            shifted = modulus + bias
            # Both are divided by the modulus and the offset; the slope is 0 where the units are off.
            slope = (shifted > 0) * inverse
            scale = shifted.relu_().mul_(inverse)
            along = (z.real * g.real).addcmul_(z.imag, g.imag)
            if mask is not None:
                along = along * mask
            grad_bias += (along * slope).sum(dim=0)
            by_modulus = along.mul_(slope - scale * inverse).div_(modulus)
            gradient = torch.mul(z, by_modulus, out=of_arguments[index])
            gradient += g * (scale if mask is None else scale * mask)
            back = product.adjoint(gradient)
            g = back if mask is None else torch.where(mask, back, g)
        of_tensors = _product_gradients(product, states[:-1], of_arguments)
        return None, None, None, None, _as_real(of_arguments), _as_real(g), grad_bias, *of_tensors


def _masks(valid: Tensor | None, time: int) -> list[Tensor | None]:
    """Return the mask of each time step, ``(batch, 1)``; None where every sequence has it."""
    masks: list[Tensor | None] = [None] * time
    if valid is not None:
        shortest = int(valid.sum(dim=1).min())
        masks[shortest:] = valid[:, shortest:, None].unbind(dim=1)
    return masks


def _product_gradients(product: StructuredProduct, states: Tensor, gradients: Tensor) -> list[Tensor]:
    """Return the gradients by the tensors of a product, added up over chunks of steps.

    Args:
        product: The product.
        states: What it was applied to, ``(time, batch, N)``.
        gradients: The gradients by its results.
    """
    sums = [torch.zeros_like(tensor) for tensor in product.tensors]
    depth = max(1, CHUNK_ROWS // max(1, states.shape[1]))
    for start in range(0, len(states), depth):
        part = slice(start, start + depth)
        for total, gradient in zip(sums, product.gradients(states[part], gradients[part]), strict=True):
            total += gradient
    return sums


def _differentiable(
    ctx: Any, inputs: list[Tensor], grad_outputs: Tensor | None, grad_last: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients by drives, first state, bias and the tensors of the product, with a graph of their own."""
    drives, h, bias, *tensors = inputs
    product, outputs = ctx.step.product.replace(tensors), []
    for drive, mask in zip(drives.unbind(), ctx.masks, strict=True):
        new = complex_modrelu(_as_real(product.apply(_as_complex(h))) + drive, bias, ctx.step.offset)
        h = new if mask is None else torch.where(mask, new, h)
        outputs.append(h)
    results, gradients = [h], [grad_last]
    if grad_outputs is not None:
        results.append(torch.stack(outputs))
        gradients.append(grad_outputs)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    remaining = iter(torch.autograd.grad(results, wanted, gradients, create_graph=True, allow_unused=True))
    return tuple(next(remaining) if tensor.requires_grad else None for tensor in inputs)


def _modulus(z: Tensor, *, out: Tensor) -> Tensor:
    """Return the modulus as :func:`stablernn.parametrizations.complex_modrelu` computes it."""
    torch.mul(z.real, z.real, out=out)
    return out.addcmul_(z.imag, z.imag).add_(FLOOR**2).sqrt_()


def _as_complex(h: Tensor) -> Tensor:
    """Return ``[Re | Im]``, ``(..., 2 N)``, as complex numbers."""
    return torch.complex(*h.chunk(2, dim=-1))


def _as_real(z: Tensor) -> Tensor:
    """Return complex numbers as ``[Re | Im]``."""
    return torch.cat([z.real, z.imag], dim=-1)


register_engine(StructuredEngine())
