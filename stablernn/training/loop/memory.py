"""Training that takes more memory than a device has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from stablernn.errors import TrainingError

# torch's allocator has no exception of its own on the CPU; its message is the only mark.
_CPU_MARK = "can't allocate memory"


@contextmanager
def enough_memory(x: Tensor, step: int) -> Iterator[None]:
    """Turn a lack of memory into an error that names settings which take less.

    Args:
        x: The input of a minibatch, ``(batch, time, ...)``.
        step: The step of training, from 1.

    Raises:
        TrainingError: If memory runs out inside.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and _CPU_MARK not in str(error):
            raise
        rows, steps = x.shape[:2]
        interval = max(1, round(steps**0.5))
        fewer = f"training.batch_size={rows // 2} takes about half of it; " if rows > 1 else ""
        raise TrainingError(
            f"The memory of the device '{x.device.type}' ran out in step {step}, for a minibatch of {rows} "
            f"sequence{'s' if rows > 1 else ''} of {steps} samples. {fewer}training.recompute_every={interval} keeps "
            "fewer states of long sequences."
        ) from error
