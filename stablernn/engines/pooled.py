"""All steps of the fixed kernels of ``rocket`` at once: a product for each group of kernels, and no loop over time.

A group reads one sum of channels at nine shifts, so that its outputs at all steps are one product. They are compared
with thresholds and counted over time in tiles that stay in the cache of a core. Sums of numbers of the grid have no
rounding error, so that the bits are those of the steps.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from stablernn.cells import StableCell, State, Weights
from stablernn.cells.rocket import KERNELS, MOST_STEPS, RocketCell
from stablernn.engines.base import Result, register_engine, run_steps
from stablernn.transforms import is_transformed

TILE_STEPS = 2**13
"""Steps of all sequences of a tile: the outputs of all kernels at so many take 2.8 MB in float32."""


class PooledEngine:
    """Runs ``rocket`` where only the state after the last step is needed, and no gradient; else step after step.

    While a program transforms or records the operations, ``auto`` takes the loop.
    """

    name = "pooled"

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return isinstance(cell, RocketCell) and drive.dtype in (torch.float32, torch.float64) and not is_transformed()

    def run(
        self,
        cell: StableCell,
        weights: Weights,
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> Result:
        assert isinstance(cell, RocketCell)
        share, steps, history = state
        if every_output or torch.is_grad_enabled() or float(steps.max()) + drive.shape[1] >= MOST_STEPS:
            return run_steps(cell, weights, drive, state, valid, dt, substeps, every_output=every_output)
        lengths = torch.full_like(steps, drive.shape[1]) if valid is None else valid.sum(dim=1, keepdim=True).to(steps)
        # (batch, memory - 1 + time, width)
        samples = torch.cat([torch.unflatten(history, 1, (cell.memory - 1, -1)), drive], dim=1)
        hits = torch.round(share * steps) + count_hits(cell, weights, samples, valid)
        counts = steps + lengths
        # Without any step there is nothing to divide by.
        share = torch.where(counts > 0, hits / counts.clamp(min=1), share)
        kept = lengths.long() + torch.arange(cell.memory - 1, device=drive.device)
        history = samples.gather(1, kept[..., None].expand(-1, -1, drive.shape[2])).flatten(1)
        return None, (share, counts, history)


def count_hits(cell: RocketCell, weights: Weights, samples: Tensor, valid: Tensor | None) -> Tensor:
    """Return the number of valid steps at which each feature exceeds its threshold, ``(batch, hidden_size)``.

    Args:
        cell: The cell.
        weights: Its matrices.
        samples: ``(batch, memory - 1 + time, width)``, the history first.
        valid: ``(batch, time)``, or None if all steps count.
    """
    kernels, channels, threshold = weights
    history = cell.memory - 1
    batch, time = len(samples), samples.shape[1] - history
    hits = samples.new_zeros(batch, cell.groups * KERNELS)
    # The last group may have fewer features than kernels: what is counted of the others is cut off.
    thresholds = torch.nn.functional.pad(threshold, (0, hits.shape[1] - len(threshold))).view(-1, KERNELS, 1, 1)
    # Groups of equal taps and channels differ in their thresholds alone. Of one channel they are neighbors.
    taps = list(zip(cell.distances, channels.flatten(1).tolist(), strict=True))
    rows_of_tile, steps_of_tile = max(1, TILE_STEPS // time), min(time, TILE_STEPS)
    for row, start in itertools.product(range(0, batch, rows_of_tile), range(0, time, steps_of_tile)):
        rows, steps = slice(row, row + rows_of_tile), slice(start, start + steps_of_tile)
        tile = samples[rows, start : start + steps_of_tile + history]
        mask = None if valid is None or bool(valid[rows, steps].all()) else valid[rows, steps].to(samples)
        outputs = exceeded = samples.new_empty(0)
        for group, levels in enumerate(thresholds):
            if not group or taps[group] != taps[group - 1]:
                # (KERNELS, rows, steps): sums over time are then over neighbors in memory.
                tapped = cell.group_taps(tile, channels, group)
                outputs = torch.unflatten(kernels.T @ tapped.flatten(1), 1, tapped.shape[1:])
                exceeded = torch.empty_like(outputs)
            torch.gt(outputs, levels, out=exceeded)
            if mask is not None:
                exceeded *= mask
            hits[rows, group * KERNELS : (group + 1) * KERNELS] += exceeded.sum(dim=2).T
    return hits[:, : len(threshold)]


register_engine(PooledEngine())
