"""Failed allocations, for which ONNX Runtime has no exception of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Messages of its arena with and without a limit, of its CPU allocator, and of the CUDA runtime and cuBLAS.
_MARKS = (
    "bad_alloc",
    "Failed to allocate memory",
    "is smaller than requested bytes",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_LIMITED = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")
_REQUESTED = re.compile(r"requested buffer of size (\d+)")


@dataclass(frozen=True)
class RunSize:
    """Size of a run.

    Attributes:
        rows: Sequences or streams.
        steps: Time steps of the longest sequence; None for one step of streams.
    """

    rows: int
    steps: int | None

    def halve(self) -> RunSize | None:
        """Return the size of half as many sequences, or of one of half as many steps; None below one of one step."""
        if self.rows > 1:
            return RunSize(self.rows // 2, self.steps)
        return RunSize(1, self.steps // 2) if (self.steps or 1) > 1 and self.steps is not None else None

    def __str__(self) -> str:
        if self.steps is None:
            return f"one step of {self.rows} stream{'s' if self.rows > 1 else ''}"
        steps = f"{self.steps} time step{'s' if self.steps > 1 else ''}"
        return f"one sequence of {steps}" if self.rows == 1 else f"{self.rows} sequences of {steps}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a failed allocation, or was caused by one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or any(mark in str(cause) for mark in _MARKS):
            return True
        cause = cause.__cause__
    return False


def describe(
    error: BaseException, ref: str, size: RunSize, memory_limit: int | None = None, fit: RunSize | None = None
) -> str:
    """Return the sentence of an :class:`~stablernn_runtime.errors.OutOfMemoryError`.

    Args:
        error: The failed allocation.
        ref: ``NAME:VERSION`` of the model.
        size: Size of the run.
        memory_limit: Limit of the memory on a GPU in bytes; None without one.
        fit: A size that fits; None where none is known.
    """
    figures = ""
    if (match := _LIMITED.search(str(error))) is not None:
        figures = f" ({match[2]} bytes were asked for, {match[1]} are left)"
    elif (match := _REQUESTED.search(str(error))) is not None:
        figures = f" ({match[1]} bytes were asked for)"
    advice = "send fewer streams at a time" if size.steps is None else "send fewer or shorter series at a time"
    if fit is not None:
        advice = f"{fit} fit{'s' if fit.rows == 1 else ''}: {advice}"
    or_raise = "" if memory_limit is None else f", or raise the limit of {memory_limit} bytes (--gpu-mem-limit)"
    return f"Model '{ref}' has too little memory for {size}{figures}; {advice}{or_raise}."
