"""The engine ``cuda-graph`` without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def run_again(function: Callable[[], list[Tensor]], pool: Any, /) -> tuple[list[Tensor], Callable[[], None], Any]:
    """A capture without a GPU: what is replayed runs again, and its results go to the same places in memory."""
    results, has_grad = function(), torch.is_grad_enabled()

    def replay() -> None:
        with torch.set_grad_enabled(has_grad):
            again = function()
        for result, value in zip(results, again, strict=True):
            result.copy_(value)

    return results, replay, pool
