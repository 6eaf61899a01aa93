"""Large buffers that are used again: to map fresh memory for every minibatch takes as long as a third of the work."""

from __future__ import annotations

import math
import threading
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

MIN_BYTES = 1 << 20
"""Smaller tensors come from the allocator, which keeps their memory itself."""
MAX_BUFFERS = 8
"""Free buffers that are kept for a cell."""

_use_count = getattr(torch._C, "_storage_Use_Count", None)


class BufferPool:
    """Buffers of one cell, which last as long as it.

    A buffer is free once nothing else refers to its memory: no output, no view, and no graph that a backward pass could
    still walk. Several forward passes before a backward pass, ``retain_graph`` and threads therefore never share one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Flat, the most recently used last.
        self._buffers: list[Tensor] = []

    def take(self, like: Tensor, *shape: int) -> Tensor:
        """Return a tensor with any content, of the dtype of ``like``."""
        count = math.prod(shape)
        if _use_count is None or count * like.element_size() < MIN_BYTES:
            return like.new_empty(shape)
        with self._lock:
            # Much larger ones would keep their memory from a longer sequence that is yet to come.
            fitting = [
                buffer
                for buffer in self._buffers
                if buffer.dtype == like.dtype and count <= buffer.numel() <= 2 * count and _is_free(buffer)
            ]
            if fitting:
                best = min(fitting, key=Tensor.numel)
                self._buffers = [buffer for buffer in self._buffers if buffer is not best]
            else:
                # The next call may be of training, which takes no tensor that was made in inference mode.
                with torch.inference_mode(False):
                    best = torch.empty(count, dtype=like.dtype)
            self._buffers = [*self._buffers[1 - MAX_BUFFERS :], best]
            return best[:count].view(shape)


def _is_free(buffer: Tensor) -> bool:
    # The tensor in the list and the storage object of this expression.
    assert _use_count is not None
    return bool(_use_count(buffer.untyped_storage()._cdata) == 2)


_pools: WeakKeyDictionary[nn.Module, BufferPool] = WeakKeyDictionary()


def pool_of(cell: nn.Module) -> BufferPool:
    """Return the pool of a cell."""
    return _pools.setdefault(cell, BufferPool())
