"""The choice of tile sizes for a kernel: what stays on chip, and how much shared memory it takes."""

from __future__ import annotations

import functools
import logging
import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch

from stablernn.cells._step_form import Family

Precision = Literal["ieee", "tf32", "bf16"]
"""How the operands of a product are rounded; states, activations and sums are float32 in each."""

MAX_HIDDEN = 512
"""Units up to which a kernel runs: matrices of more take longer to stream for every step than a product of torch."""
MAX_RESIDENT = {"ieee": 128, "tf32": 128, "bf16": 256}
"""Units up to which a matrix is kept on chip."""
MIN_DOT_ROWS = 16
"""Rows of the smallest tile of the tensor cores."""
STREAMED_ROWS = 4
"""Most rows of a tile in ``ieee`` that share each tile of a matrix. More take more registers than a thread has."""
STREAMED_DEPTH = 16
"""Rows of the tiles in which a matrix is read. With 32, kernels of 16 warps spill hundreds of bytes of registers."""
MAX_STAGES = 3
"""Steps whose drives are read ahead: memory answers within about two steps of 128 units."""
SMALL_BYTES = 1024
"""Shared memory for the lengths of steps and rows."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """The sizes of a kernel.

    Attributes:
        rows: Rows of a tile, ``BLOCK_B``.
        columns: Units, padded to a power of two, ``BLOCK_N``.
        depth: Rows of the tiles in which a matrix is read, ``BLOCK_K``; 0 if the matrices stay on chip.
        stages: Steps that are read ahead, ``STAGES``.
        warps: Warps of a program.
        shared_bytes: Shared memory of a program, at most.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    shared_bytes: int

    @property
    def is_resident(self) -> bool:
        """True if the matrices stay on chip."""
        return self.depth == 0


@functools.lru_cache(maxsize=256)
def make_plan(
    precision: Precision,
    family: Family,
    hidden: int,
    has_linear: bool,
    *,
    is_backward: bool,
    limit: int | None,
    is_resident: bool = True,
    streamed_rows: int = STREAMED_ROWS,
) -> Plan | None:
    """Return the sizes of a kernel; None if none fits.

    Args:
        precision: Rounding of the operands.
        family: Family of the step.
        hidden: Units.
        has_linear: Whether there is a second matrix.
        is_backward: True for the backward pass.
        limit: Bytes of shared memory that a program may take; None for no limit.
        is_resident: Whether the matrices may stay on chip.
        streamed_rows: Rows of a tile in ``ieee`` if they do not, from :func:`count_streamed_rows`.
    """
    # A tile of the tensor cores has 16 columns.
    columns = max(16, 1 << (hidden - 1).bit_length())
    matrices = 2 if has_linear else 1
    if is_resident and hidden <= MAX_RESIDENT[precision]:
        rows = 1 if precision == "ieee" else MIN_DOT_ROWS
        for stages in range(MAX_STAGES, 0, -1):
            # Tiles that are read ahead, and the operand of a product.
            tiles = (_loads(family, is_backward) * stages if stages > 1 else 0) + 1
            warps = _warps(precision, columns, matrices)
            shared = _resident_bytes(precision, columns, matrices, warps) + 4 * rows * columns * tiles + SMALL_BYTES
            if limit is None or shared <= limit:
                return Plan(rows, columns, 0, stages, warps, shared)
    rows = streamed_rows if precision == "ieee" else MIN_DOT_ROWS
    # Two tiles of the matrix, of which one is read while the other is multiplied, and the vectors.
    shared = 4 * columns * (2 * STREAMED_DEPTH + rows) + SMALL_BYTES
    if hidden > MAX_HIDDEN or (limit is not None and shared > limit):
        return None
    # With fewer warps the sums take more registers than a thread has.
    return Plan(rows, columns, STREAMED_DEPTH, 1, 8 if rows * columns <= 1024 and precision == "ieee" else 16, shared)


def count_streamed_rows(batch: int, members: int, device: torch.device) -> int:
    """Return the rows of a tile whose matrices are streamed: as few as the processors of a GPU run at once.

    A processor multiplies its rows one after the other, while all of them read the matrix at the same time.
    """
    rows = 1
    while rows < STREAMED_ROWS and -(-batch // rows) * members > count_processors(device):
        rows *= 2
    return rows


def _loads(family: Family, is_backward: bool) -> int:
    """Return how many tiles a step reads from memory."""
    if is_backward:
        # The gradient by the output, and what was saved.
        return 2 if family in ("plain", "residual") else 3
    return 2 if family == "shared gate" else 1


def _resident_bytes(precision: Precision, columns: int, matrices: int, warps: int) -> int:
    """Return the shared memory that matrices on chip and their products take.

    Matrices in ``ieee`` stay in registers; of two, one passes through shared memory before the first step. Each warp
    writes a sum for every column.
    """
    if precision == "ieee":
        return 4 * columns * (columns * (matrices - 1) + warps)
    return (4 if precision == "tf32" else 2) * columns * columns * matrices


def _warps(precision: Precision, columns: int, matrices: int) -> int:
    """Return the warps of a program with resident matrices, so that at most 128 registers of a thread hold them."""
    if columns <= 64:
        return 4
    # Two float32 matrices of 128 units are 128 registers of each of 256 threads, and a step needs as many again.
    return 16 if precision == "ieee" and matrices == 2 else 8


def fits(precision: Precision, hidden: int, device: torch.device) -> bool:
    """Return whether the kernels of every family fit a GPU; if only its shared memory is too small, log this once."""
    if hidden > MAX_HIDDEN:
        return False
    limit = shared_limit(device)
    # No kernel takes more than the backward one of a two-stage step with both matrices.
    largest = functools.partial(make_plan, precision, "two-stage", hidden, True, is_backward=True)
    if largest(limit=limit) is not None:
        return True
    needed = largest(limit=None, is_resident=False)
    assert needed is not None
    assert limit is not None
    _log_misfit(torch.cuda.get_device_name(device), hidden, precision, needed.shared_bytes, limit)
    return False


def shared_limit(device: torch.device) -> int | None:
    """Return the bytes of shared memory that a program may take on a GPU; None on the CPU."""
    if device.type != "cuda":
        return None
    return _limit_of(device.index if device.index is not None else torch.cuda.current_device())


MIN_CAPABILITY = (8, 0)
"""Compute capability of the GPUs that kernels run on: Ampere and later."""


def runs_on(device: torch.device) -> bool:
    """Return whether kernels run on a GPU: it is NVIDIA's and recent enough, and Triton can compile them."""
    is_recent = torch.version.hip is None and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
    return is_recent and _can_compile()


@functools.cache
def _can_compile() -> bool:
    """Return whether the package triton is installed, and the C compiler that it needs; a lack of that is logged."""
    if find_spec("triton") is None:
        return False
    has_compiler = "CC" in os.environ or any(shutil.which(name) for name in ("gcc", "clang"))
    if not has_compiler:
        _log.warning(
            "Triton needs a C compiler to launch its kernels, and there is none: install gcc or clang, or set CC. "
            "Until then cells run without these kernels, more slowly."
        )
    return has_compiler


def count_processors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU, each of which runs a program; 1 on the CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def _limit_of(index: int) -> int:
    # torch has the first one for NVIDIA's GPUs only, and does not declare it.
    properties: Any = torch.cuda.get_device_properties(index)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


@functools.cache
def _log_misfit(gpu: str, hidden: int, precision: Precision, needed: int, limit: int) -> None:
    """Log a kernel that does not fit, once for each."""
    _log.warning(
        "The engine 'triton' cannot run %d units in %s on %s: its kernel needs %d bytes of shared memory, the GPU has "
        "%d for a block. 'auto' takes the next engine.",
        hidden,
        precision,
        gpu,
        needed,
        limit,
    )
