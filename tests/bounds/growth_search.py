"""Looks for inputs under which two states part, or stay apart, over many steps, whatever the norm of a certificate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bounds.step_search import exact
from stablernn.cells import StableCell

_APART = 1e-6
"""The size at which a difference is kept, relative to that of the state, so that rounding does not show."""


def worst_growth(
    cell: StableCell, covers: tuple[str, ...], *, steps: int = 60, rows: int = 8, searches: int = 40, seed: int = 0
) -> float:
    """Return the largest factor a step, in the 2-norm and on average over many steps, by which a difference changes.

    Differences are small and follow two trajectories under one input. Inputs, starts and first differences climb the
    gradient of the growth. Over ``T`` steps a rate ``r`` in the norm ``|T e|`` allows a factor of ``r`` times the
    ``T``-th root of the norm's condition number.

    Args:
        cell: Its float32 weights count.
        covers: The state tensors that differ.
        steps: Over which growth is averaged.
        rows: Trajectories that are followed.
        searches: Steps of the search.
        seed: Of what is drawn.
    """
    exactly = exact(cell)
    weights, places = exactly.weights(), [cell.state_names.index(name) for name in covers]
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scales = torch.logspace(-2, 1, rows, dtype=torch.float64)[:, None]
    start = exactly.initial_state(rows)
    if "started" in cell.state_names:
        # A sequence that has not started has no state to differ in.
        with torch.no_grad():
            start = exactly.step(weights, start, exactly.drive(torch.zeros(rows, cell.input_size, dtype=torch.float64)))
    sizes = [start[place].shape[1] for place in places]
    inputs = draw(rows, steps, cell.input_size) * scales[:, None]
    offsets, apart = draw(rows, sum(sizes)) * scales.clamp_max(1.0), draw(rows, sum(sizes))
    best = 0.0
    leaves = [inputs, offsets, apart]
    optimizer_state = [torch.zeros_like(leaf) for leaf in leaves]
    for search in range(searches + 1):
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        growth = _growth(exactly, weights, start, places, sizes, *leaves)
        finite = growth.detach()[torch.isfinite(growth.detach())]
        best = max(best, math.exp(float(finite.max()) / steps) if len(finite) else 0.0)
        if search == searches:
            break
        slopes = torch.autograd.grad(growth.nan_to_num(0.0, 0.0, 0.0).sum(), leaves)
        with torch.no_grad():
            for number, (leaf, slope) in enumerate(zip(leaves, slopes, strict=True)):
                # Signs with momentum: slopes differ by orders of magnitude between early and late inputs.
                optimizer_state[number] = 0.8 * optimizer_state[number] + 0.2 * torch.sign(slope.nan_to_num(0.0))
                leaves[number] = leaf + 0.2 * (1 - search / searches) * optimizer_state[number]
    return best


def _growth(
    cell: StableCell,
    weights: tuple[Tensor, ...],
    state: tuple[Tensor, ...],
    places: list[int],
    sizes: list[int],
    inputs: Tensor,
    offsets: Tensor,
    apart: Tensor,
) -> Tensor:
    """Return the logarithm of each row's growth over all steps, ``(rows,)``."""
    one = list(state)
    for place, offset in zip(places, offsets.split(sizes, dim=1), strict=True):
        one[place] = one[place] + offset
    total = inputs.new_zeros(len(inputs))
    for x in inputs.unbind(dim=1):
        with torch.no_grad():
            # A state that grows takes its rounding with it.
            scale = _APART * torch.cat([*one, x], dim=1).norm(dim=1, keepdim=True).clamp_min(1.0)
        apart = apart / apart.norm(dim=1, keepdim=True).clamp_min(1e-300) * scale
        other = list(one)
        for place, part in zip(places, apart.split(sizes, dim=1), strict=True):
            other[place] = one[place] + part
        pair = tuple(torch.cat(parts) for parts in zip(one, other, strict=True))
        after = cell.step(weights, pair, cell.drive(torch.cat([x, x])))
        halves = [part.chunk(2) for part in after]
        one = [first for first, _ in halves]
        apart = torch.cat([halves[place][1] - halves[place][0] for place in places], dim=1)
        total = total + (apart.norm(dim=1).clamp_min(1e-300) / scale[:, 0]).log()
    return total
