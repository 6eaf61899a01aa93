"""Failed allocations, for which ONNX Runtime has no exception of its own, and the size of a run that would fit."""

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
        steps: Time steps of the longest; None for one step of streams.
    """

    rows: int
    steps: int | None

    @property
    def elements(self) -> int:
        """Rows times time steps, with which the memory of a run grows."""
        return self.rows * (self.steps or 1)

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


def fitting_size(error: BaseException, size: RunSize, memory_limit: int | None, largest_fit: RunSize | None) -> RunSize:
    """Estimate a size that fits, after a run that did not.

    Args:
        error: The failed allocation.
        size: Size of the run.
        memory_limit: Limit of the arena in bytes; None without one.
        largest_fit: Size of the largest run so far that did fit; None before the first one.

    Returns:
        The estimate, with as many time steps as ``size`` where a sequence of that length fits at all. It follows from
        the bytes in the message where it has a limit to compare them with, else it is half of ``size``, or
        ``largest_fit`` if that is more.
    """
    elements = size.elements
    if (match := _LIMITED.search(str(error))) is not None and memory_limit is not None:
        available, requested = (int(number) for number in match.groups())
        # What was taken and what was asked for last grow with the size of the run; more may have been to come.
        fitting = elements * memory_limit // (memory_limit - min(available, memory_limit) + requested)
    else:
        fits = 0 if largest_fit is None or largest_fit.elements >= elements else largest_fit.elements
        fitting = max(elements // 2, fits)
    fitting = max(1, min(fitting, elements - 1))
    if size.steps is None or fitting >= size.steps:
        return RunSize(max(1, fitting // (size.steps or 1)), size.steps)
    return RunSize(1, fitting)


def describe(error: BaseException, label: str, size: RunSize, fit: RunSize, memory_limit: int | None) -> str:
    """Return the sentence of an :class:`~stablernn_runtime.errors.OutOfMemoryError`.

    Args:
        error: The failed allocation.
        label: The model, as errors name it.
        size: Size of the run.
        fit: A size that fits.
        memory_limit: Limit of the arena in bytes; None without one.
    """
    figures = ""
    if (match := _LIMITED.search(str(error))) is not None:
        figures = f" ({match[2]} bytes were asked for, {match[1]} are left)"
    elif (match := _REQUESTED.search(str(error))) is not None:
        figures = f" ({match[1]} bytes were asked for)"
    or_raise = "" if memory_limit is None else f", or raise the limit of {memory_limit} bytes (--gpu-mem-limit)"
    subject = f"{label[:1].upper()}{label[1:]}"
    return f"{subject} has too little memory for {size}{figures}; send about {fit} at a time{or_raise}."
