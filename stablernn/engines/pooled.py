"""All steps of the fixed kernels of ``rocket`` at once: a product for each group of kernels, and no loop over time.

A group reads one sum of channels at nine shifts, so that its outputs at all steps are one product. They are compared
with thresholds, or in a contest with each other, and counted over time in tiles that stay in the cache of a core. Sums
of numbers of the grid have no rounding error, so that the bits are those of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from stablernn.cells import StableCell, State, Weights
from stablernn.cells.rocket import KERNELS, MOST_STEPS, RIVALS, RocketCell
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
        known = torch.unflatten(history, 1, (cell.memory - 1, -1))
        samples = torch.cat([known, cell.with_differences(drive, history, steps)], dim=1)
        hits = torch.round(share * steps) + count_hits(cell, weights, samples, valid)
        counts = steps + lengths
        # Without any step there is nothing to divide by.
        share = torch.where(counts > 0, hits / counts.clamp(min=1), share)
        kept = lengths.long() + torch.arange(cell.memory - 1, device=drive.device)
        history = samples.gather(1, kept[..., None].expand(-1, -1, cell.width)).flatten(1)
        return None, (share, counts, history)


def count_hits(cell: RocketCell, weights: Weights, samples: Tensor, valid: Tensor | None) -> Tensor:
    """Return the number of valid steps at which each feature has a hit, ``(batch, hidden_size)``.

    Args:
        cell: The cell.
        weights: Its matrices.
        samples: ``(batch, memory - 1 + time, width)``, the history first.
        valid: ``(batch, time)``, or None if all steps count.
    """
    history = cell.memory - 1
    batch, time = len(samples), samples.shape[1] - history
    counts = []
    rows_of_tile, steps_of_tile = max(1, TILE_STEPS // time), min(time, TILE_STEPS)
    for row in range(0, batch, rows_of_tile):
        rows = slice(row, row + rows_of_tile)
        count = samples.new_zeros(len(samples[rows]), cell.hidden_size)
        for start in range(0, time, steps_of_tile):
            steps = slice(start, start + steps_of_tile)
            mask = None if valid is None or bool(valid[rows, steps].all()) else valid[rows, steps].to(samples)
            tile = samples[rows, start : start + steps_of_tile + history]
            # (features, rows): the last group and contest may have fewer features than kernels.
            parts = [*_exceeding(cell, weights, tile, mask), *_winning(cell, weights, tile, mask)]
            count += torch.cat(parts)[: cell.hidden_size].T
        counts.append(count)
    return torch.cat(counts)


def _exceeding(cell: RocketCell, weights: Weights, tile: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """Yield the number of steps of a tile at which the kernels of each group exceed their thresholds."""
    patterns, _, channels, threshold = weights
    # Groups of equal taps and channels differ in their thresholds alone. Of one channel they are neighbors.
    taps = list(zip(cell.distances, channels.flatten(1).tolist(), strict=True))
    outputs = exceeded = tile.new_empty(0)
    for group, levels in enumerate(torch.split(threshold, KERNELS)):
        if not group or taps[group] != taps[group - 1]:
            # (KERNELS, rows, steps): sums over time are then over neighbors in memory.
            tapped = cell.group_taps(tile, channels, group)
            outputs = torch.unflatten(patterns.T @ tapped.flatten(1), 1, tapped.shape[1:])
            exceeded = torch.empty_like(outputs)
        torch.gt(outputs[: len(levels)], levels[:, None, None], out=exceeded[: len(levels)])
        yield _count(exceeded[: len(levels)], mask)


def _winning(cell: RocketCell, weights: Weights, tile: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """Yield the number of steps of a tile at which each kernel of a contest has the largest output, or the least."""
    _, rivals, channels, _ = weights
    for contest, kernels in enumerate(rivals[..., :RIVALS]):
        tapped = cell.group_taps(tile, channels, cell.groups + contest)
        outputs = torch.unflatten(kernels.T @ tapped.flatten(1), 1, tapped.shape[1:])
        yield _count(torch.ge(outputs, outputs.amax(dim=0)).to(tile), mask)
        yield _count(torch.le(outputs, outputs.amin(dim=0)).to(tile), mask)


def _count(hits: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of hits at valid steps, of ``(features, rows, steps)``."""
    return (hits if mask is None else hits * mask).sum(dim=2)


register_engine(PooledEngine())
