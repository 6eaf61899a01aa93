"""The plain loop under autograd: the reference for every other engine. It has a double backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stablernn.cells import StableCell, State


class LoopEngine:
    """Runs any cell, one step after the other."""

    name = "loop"

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
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
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        # Before the shortest length every step is valid, and no state is held.
        shortest = 0 if valid is None else int(valid.sum(dim=1).min())
        return run_steps(cell, weights, drive, state, valid, dt, substeps, every_output=every_output, shortest=shortest)


def run_steps(
    cell: StableCell,
    weights: tuple[Tensor, ...],
    drive: Tensor,
    state: State,
    valid: Tensor | None,
    dt: Tensor | None = None,
    substeps: int = 1,
    *,
    every_output: bool = True,
    shortest: int = 0,
) -> tuple[Tensor | None, State]:
    """Run every step without a look at the values; arguments and results are those of :meth:`Engine.run`.

    Args:
        cell: As for :meth:`Engine.run`.
        weights: Likewise.
        drive: Likewise.
        state: Likewise.
        valid: Likewise.
        dt: Likewise.
        substeps: Likewise.
        every_output: Likewise.
        shortest: A number of steps that no sequence has fewer of.
    """
    outputs = []
    # unbind, not drive[:, t]: the backward of indexing writes a full-size gradient a step, 10 to 30 times slower.
    steps = drive.unbind(dim=1)
    valid_steps: list[Tensor | None] = [None] * len(steps)
    if valid is not None:
        # Each is (batch, 1), to broadcast over the state.
        valid_steps[shortest:] = valid[:, shortest:, None].unbind(dim=1)
    times: Sequence[Tensor | None] = [None] * len(steps) if dt is None else dt[..., None].unbind(dim=1)
    for step, is_valid, time in zip(steps, valid_steps, times, strict=True):
        next_state = cell.advance(weights, state, step, time, substeps)
        if is_valid is not None:
            next_state = tuple(torch.where(is_valid, new, old) for new, old in zip(next_state, state, strict=True))
        state = next_state
        if every_output:
            outputs.append(state[0])
    return torch.stack(outputs, dim=1) if every_output else None, state
