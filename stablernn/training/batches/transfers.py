"""Copies between the CPU and a GPU for which neither waits longer than it must."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


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
