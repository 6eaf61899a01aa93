"""The input's product over all time steps, in a buffer: to map fresh memory for it takes longer than the product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stablernn.buffers import MIN_BYTES, BufferPool, pool_of
from stablernn.transforms import is_transformed


def project_input(cell: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, like ``torch.nn.functional.linear``, in a buffer of the cell if it is large.

    Args:
        cell: The cell whose buffers are used.
        x: ``(..., input_size)``.
        weight: ``(d, input_size)``.
        bias: ``(d,)``; None for 0.
    """
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    # A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
    has_mode = torch._C._len_torch_dispatch_stack() > 0
    # The size last: while a program records the operations, it may be a symbol that must not be compared.
    if not is_plain or has_mode or is_transformed() or _result_bytes(x, weight) < MIN_BYTES:
        return nn.functional.linear(x, weight, bias)
    projection: Tensor = _InputProjection.apply(pool_of(cell), x, weight, bias)  # type: ignore[no-untyped-call]
    return projection


def _result_bytes(x: Tensor, weight: Tensor) -> int:
    return x[..., 0].numel() * len(weight) * x.element_size()


class _InputProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pool: BufferPool, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows = x.reshape(-1, x.shape[-1])
        out = pool.take(x, len(rows), len(weight))
        if bias is None:
            torch.mm(rows, weight.t(), out=out)
        else:
            torch.addmm(bias, rows, weight.t(), out=out)
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Every operation has a derivative, for a backward pass through this one.
        x, weight = ctx.saved_tensors
        gradient = grads[0].reshape(-1, len(weight))
        _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            None,
            (gradient @ weight).view_as(x) if needs_x else None,
            gradient.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
            gradient.sum(dim=0) if needs_bias else None,
        )
