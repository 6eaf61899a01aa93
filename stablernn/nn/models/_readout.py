"""Statistics of the last layer's outputs so far, which the readouts ``mean``, ``max`` and ``all`` keep in the state."""

from __future__ import annotations

import torch
from torch import Tensor

READOUTS = ("last", "mean", "max", "all")
STATISTICS = {"last": (), "mean": ("mean",), "max": ("max",), "all": ("mean", "max")}
"""The statistics in the state of each readout; a count of the outputs follows them if there are any."""


def step_statistics(readout: str, output: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the statistics after one more output.

    Args:
        readout: One of ``READOUTS`` that keeps statistics.
        output: The last layer's output, ``(batch, output_size)``.
        state: The statistics before, each ``(batch, output_size)``, and the count, ``(batch, 1)``.
    """
    *statistics, count = state
    # A maximum of no outputs is none: the zeros of the initial state must not enter it.
    updated = [
        value + (output - value) / (count + 1)
        if statistic == "mean"
        else torch.where(count > 0, torch.maximum(value, output), output)
        for statistic, value in zip(STATISTICS[readout], statistics, strict=True)
    ]
    return (*updated, count + 1)


def sequence_statistics(
    readout: str, outputs: Tensor, state: tuple[Tensor, ...], valid: Tensor | None
) -> tuple[Tensor, ...]:
    """Return the statistics after the outputs of further steps.

    Args:
        readout: One of ``READOUTS`` that keeps statistics.
        outputs: The last layer's outputs, ``(batch, time, output_size)``.
        state: As :func:`step_statistics` takes it.
        valid: A mask of the steps that count, ``(batch, time)``; None if all do.
    """
    *statistics, count = state
    steps = outputs.new_full(count.shape, outputs.shape[1]) if valid is None else valid.sum(1, True).to(count.dtype)
    updated = []
    for statistic, value in zip(STATISTICS[readout], statistics, strict=True):
        if statistic == "mean":
            masked = outputs if valid is None else outputs * valid[..., None]
            updated.append((value * count + masked.sum(dim=1)) / (count + steps).clamp_min(1))
            continue
        masked = outputs if valid is None else outputs.masked_fill(~valid[..., None], -torch.inf)
        # A sequence of no steps leaves its maximum, and the first outputs replace the initial zeros.
        largest = torch.where(steps > 0, masked.amax(dim=1), value)
        updated.append(torch.where(count > 0, torch.maximum(value, largest), largest))
    return (*updated, count + steps)
