"""The plain loop under autograd: the oracle that every other engine is compared with. It has a double backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stablernn.cells import StableCell, State


class LoopEngine:
    """Runs any cell, one step after the other."""

    name = "loop"

    def supports(self, cell: StableCell, drive: Tensor) -> bool:
        return True

    def run(
        self,
        cell: StableCell,
        weights: tuple[Tensor, ...],
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
    ) -> tuple[Tensor, State]:
        outputs = []
        # unbind, not drive[:, t]: the backward of indexing writes a full-size gradient a step, 10 to 30 times slower.
        steps = drive.unbind(dim=1)
        keeps: list[Tensor | None] = [None] * len(steps)
        if valid is not None:
            # Up to the shortest length no state needs holding.
            shortest = int(valid.sum(dim=1).min())
            keeps[shortest:] = valid[:, shortest:, None].unbind(dim=1)
        times: Sequence[Tensor | None] = [None] * len(steps) if dt is None else dt[..., None].unbind(dim=1)
        for step, keep, time in zip(steps, keeps, times, strict=True):
            following = cell.advance(weights, state, step, time, substeps)
            if keep is not None:
                following = tuple(torch.where(keep, new, old) for new, old in zip(following, state, strict=True))
            state = following
            outputs.append(state[0])
        return torch.stack(outputs, dim=1), state
