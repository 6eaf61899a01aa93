"""Linear diagonal recurrences of whole sequences by one kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from stablernn.engines.triton.launch import device_of
from stablernn.engines.triton.scan_kernel import scan_kernel

_BLOCK = 64
"""Units of sequences that a program runs."""
_STAGES = 6
"""Steps that are read ahead."""


def run_scan(states: Tensor, decay: Tensor, increment: Tensor, first: Tensor, *, reverse: bool) -> None:
    """Write the states after every step into ``states``; see :class:`stablernn.engines.scan.LinearScan`."""
    _launch(states, decay, increment, first, None, reverse=reverse)


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
    return _launch(gradients, decay, grad, torch.zeros_like(first), (states, first), reverse=reverse).sum(dim=0)


def _launch(
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
