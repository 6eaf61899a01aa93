"""Searches within boxes of states and inputs for steps that exceed a bound, and for trajectories that leave a box.

Jacobians are computed by autograd in float64 and climbed by projected gradient ascent; trajectories run in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from bounds.step_search import exact
from stablernn.bounds.intervals import Box
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell

SLACK = 1e-9
"""Relative rounding error of Jacobians in float64."""
Limits = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class WorstStep:
    """The largest rate and input gain found, each as a share of the claimed one; above 1 the claim is wrong."""

    rate: float = 0.0
    gain: float = 0.0

    @property
    def is_violation(self) -> bool:
        # Negated, so that NaN counts.
        return not (self.rate <= 1 + SLACK and self.gain <= 1 + SLACK)


def limits(box: Box) -> Limits:
    return torch.from_numpy(box.lower), torch.from_numpy(box.upper)


def state_limits(cell: StableCell, bound: StepBound) -> dict[str, Limits]:
    """Return the ends of each state tensor's box, by its name."""
    sizes = dict(zip(cell.state_names, cell.state_sizes, strict=True))
    return {ball.state: limits(ball.box or Box.around_zero(sizes[ball.state], ball.radius)) for ball in bound.balls}


def _draw(ends: Limits, rows: int, generator: torch.Generator) -> Tensor:
    """Return points ``(rows, n)`` of a box, a third of them its corners."""
    lower, upper = ends
    shares = torch.rand(rows, len(lower), generator=generator, dtype=torch.float64)
    shares[: rows // 3] = shares[: rows // 3].round()
    return lower + (upper - lower) * shares


def worst_step(
    cell: StableCell, bound: StepBound, inputs: Box, *, points: int = 48, searches: int = 15, seed: int = 0
) -> WorstStep:
    """Return the worst Jacobian found of steps within the boxes, half of the points searching for each claim.

    Args:
        cell: In any precision; its float32 weights count.
        bound: Right or wrong. Every state tensor that a step reads has a ball.
        inputs: Of the cell.
        points: Starting points.
        searches: Steps of the ascent.
        seed: Of the points.
    """
    double, generator = exact(cell), torch.Generator().manual_seed(seed)
    weights, by_name = double.weights(), state_limits(cell, bound)
    covered = [cell.state_names.index(name) for name in bound.covers]
    ends = [limits(inputs), *(by_name[name] for name in cell.state_names)]
    values = [_draw(end, points, generator) for end in ends]

    def next_states(x: Tensor, *state: Tensor) -> Tensor:
        after = double.step(weights, tuple(part[None] for part in state), double.drive(x[None]))
        return torch.cat([after[index][0] for index in covered])

    jacobians = vmap(jacrev(next_states, argnums=(0, *(1 + index for index in covered))))
    best, is_for_rate = [0.0, 0.0], torch.arange(points) % 2 == 0
    for search in range(searches + 1):
        values = [value.detach().requires_grad_() for value in values]
        by_input, *by_state = jacobians(*values)
        sizes = _sizes(bound, torch.cat(by_state, dim=-1), by_input)
        best = [max(old, float(size.detach().max())) for old, size in zip(best, sizes, strict=True)]
        if search < searches:
            goal = torch.where(is_for_rate, *sizes).clamp_min(1e-300).log().sum()
            slopes = torch.autograd.grad(goal, values, allow_unused=True, materialize_grads=True)
            stride = 0.2 * 0.9**search
            values = [
                torch.clamp(value.detach() + stride * (upper - lower) * slope.nan_to_num().sign(), lower, upper)
                for value, slope, (lower, upper) in zip(values, slopes, ends, strict=True)
            ]
    return WorstStep(*(_share(found, claim) for found, claim in zip(best, (bound.rate, bound.gain), strict=True)))


def _sizes(bound: StepBound, by_state: Tensor, by_input: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norms of Jacobians ``(points, n, n)`` and ``(points, n, features)`` in the norm of a bound."""
    if bound.norm == "linf":
        weights = torch.ones(by_state.shape[1], dtype=torch.float64)
        if bound.weights is not None:
            weights = torch.from_numpy(bound.weights)
        return (by_state.abs() @ weights / weights).amax(dim=-1), (by_input.norm(dim=-1) / weights).amax(dim=-1)
    if bound.metric is not None:
        metric = torch.from_numpy(bound.metric)
        by_input = metric @ by_input
        by_state = torch.linalg.solve(metric, metric @ by_state, left=False)
    return torch.linalg.matrix_norm(by_state, 2), torch.linalg.matrix_norm(by_input, 2)


def _share(found: float, claim: float) -> float:
    return found / claim if claim else float(found > 0)


def largest_escape(cell: StableCell, bound: StepBound, inputs: Box, *, steps: int = 300, seed: int = 0) -> float:
    """Return by how much float32 trajectories from the zero state leave the boxes, as a share; 0 or less if none does.

    Args:
        cell: In float32.
        bound: Right or wrong.
        inputs: Of the cell. A quarter of the trajectories has random ones, a quarter random corners, half of them
            corners that are held for many steps; a cell that takes missing values has some.
        steps: Length of the trajectories.
        seed: Of the inputs.
    """
    single, generator, rows = copy.deepcopy(cell).float().eval(), torch.Generator().manual_seed(seed), 64
    # Rounded towards zero, so that no input is outside.
    lower, upper = (end.float() * (1 - 1e-6) for end in limits(inputs))
    boxes, state, worst = state_limits(cell, bound), single.initial_state(rows), -1.0
    kind = (torch.arange(rows) % 4)[:, None]
    with torch.no_grad():
        weights = single.weights()
        for step in range(steps):
            shares = torch.rand(rows, len(lower), generator=generator)
            if step % 97 == 0:
                held = shares.round()
            shares = torch.where(kind == 0, shares, torch.where(kind == 1, shares.round(), held))
            x = lower + (upper - lower) * shares
            if cell.takes_missing:
                x = torch.where(torch.rand(x.shape, generator=generator) < 0.3, torch.nan, x)
            state = single.step(weights, state, single.drive(x))
            for name, (low, high) in boxes.items():
                part = state[cell.state_names.index(name)].double()
                size = torch.maximum(low.abs(), high.abs()).clamp_min(1e-300)
                worst = max(worst, float((torch.maximum(part - high, low - part) / size).max()))
    return worst


def worst_output_gain(cells: Sequence[StableCell], inputs: Box, *, steps: int = 12, searches: int = 12) -> float:
    """Return the largest difference of a stack's outputs found, by the largest 2-norm of a difference of its inputs.

    Both input sequences start at the zero state and stay in the box.
    """
    doubles, generator, rows = [exact(cell) for cell in cells], torch.Generator().manual_seed(1), 32
    used, (lower, upper) = [double.weights() for double in doubles], limits(inputs)

    def outputs(x: Tensor) -> Tensor:
        states, collected = [double.initial_state(rows) for double in doubles], []
        for value in x.unbind(dim=1):
            for layer, double in enumerate(doubles):
                states[layer] = double.step(used[layer], states[layer], double.drive(value))
                value = states[layer][0]
            collected.append(value)
        return torch.stack(collected, dim=1)

    first, second = (
        lower + (upper - lower) * torch.rand(rows, steps, len(lower), generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    # Near pairs as well as far ones.
    second = first + (second - first) * torch.logspace(-4, 0, rows, dtype=torch.float64)[:, None, None]
    best = 0.0
    for search in range(searches + 1):
        first, second = first.detach().requires_grad_(), second.detach().requires_grad_()
        distance = (first - second).norm(dim=-1).amax(dim=-1)
        ratio = (outputs(first) - outputs(second)).norm(dim=-1).amax(dim=-1) / distance
        best = max(best, float(ratio.detach().max()))
        slopes = torch.autograd.grad(ratio.clamp_min(1e-300).log().sum(), (first, second))
        first, second = (
            torch.clamp(x.detach() + 0.1 * 0.8**search * distance.detach()[:, None, None] * slope.sign(), lower, upper)
            for x, slope in zip((first, second), slopes, strict=True)
        )
    return best


def drawn_box(size: int, radius: float, seed: int = 0) -> Box:
    """Return a box that is not symmetric, and some of whose intervals do not hold zero."""
    generator = np.random.default_rng(seed)
    return Box(radius * generator.uniform(-1, 0.5, size), np.full(size, radius))
