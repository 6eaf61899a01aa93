"""Looks for two states, or two inputs, that a step drives further apart than was proved."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.cells._base import State
from stablernn.stability.bounds import StepBound

Size = Callable[[State, State], Tensor]


def size_of(cell: StableCell, bound: StepBound) -> Size:
    """How far apart two states are, ``(batch,)``, in the norm of a bound."""
    places = [cell.state_names.index(name) for name in bound.covers]
    metric = None if bound.metric is None else torch.from_numpy(bound.metric)
    weights = None if bound.weights is None else torch.from_numpy(bound.weights)

    def size(one: State, other: State) -> Tensor:
        apart = torch.cat([one[place] - other[place] for place in places], dim=-1)
        if bound.norm == "linf":
            return (apart if weights is None else apart / weights).abs().amax(dim=-1)
        return (apart if metric is None else apart @ metric.T).norm(dim=-1)

    return size


def exact(cell: StableCell) -> StableCell:
    """The cell in float64, with the numbers that its float32 weights hold."""
    return copy.deepcopy(cell).float().double().eval()


def reached(cell: StableCell, inputs: Tensor) -> State:
    """The states after the inputs ``(batch, time, features)``, from the start."""
    state = cell.initial_state(len(inputs))
    with torch.no_grad():
        weights = cell.weights()
        for x in inputs.unbind(dim=1):
            state = cell.step(weights, state, cell.drive(x))
    return state


def worst_rate(cell: StableCell, bound: StepBound, pairs: int = 64, searches: int = 30, seed: int = 0) -> float:
    """The largest factor by which a step changed the size of a difference of two states under one input.

    Pairs that inputs lead to, far and near ones, are drawn; then gradient ascent looks for worse ones.
    """
    exactly, size = exact(cell), size_of(cell, bound)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    spread = torch.logspace(-3, 2, pairs, dtype=torch.float64)[:, None]
    start = reached(exactly, draw(pairs, 5, cell.input_size) * spread.flip(0)[:, None])
    first = [
        part + draw(*part.shape) * _room(cell, bound, place) * spread.clamp_max(1) for place, part in enumerate(start)
    ]
    moves = [draw(*part.shape) * spread.flip(0) for part in start]
    x = draw(pairs, cell.input_size) * 2
    leaves = [*first, *moves, x]
    weights = tuple(weight.detach() for weight in exactly.weights())
    worst, rates = 0.0, [0.02] * len(leaves)
    for _ in range(searches + 1):
        for leaf in leaves:
            leaf.requires_grad_(True)
        one = _kept(cell, bound, leaves[: len(first)])
        other = _kept(cell, bound, [state + move for state, move in zip(one, leaves[len(first) : -1], strict=True)])
        before = size(one, other)
        drive = exactly.drive(leaves[-1])
        after = size(exactly.step(weights, one, drive), exactly.step(weights, other, drive))
        factor = after / before.clamp_min(1e-9)
        # Of states that are all but equal the rounding is measured, not the step.
        apart = before.detach() > 1e-7 * (1 + max(float(part.detach().abs().max()) for part in one))
        worst = max([worst, *factor.detach()[apart].tolist()])
        gradients = torch.autograd.grad(factor.clamp_min(1e-12).log().sum(), leaves, allow_unused=True)
        with torch.no_grad():
            leaves = [
                leaf.detach() + (0 if slope is None else rate * leaf.abs().mean().clamp_min(1e-3) * torch.sign(slope))
                for leaf, slope, rate in zip(leaves, gradients, rates, strict=True)
            ]
    return worst


def worst_gain(cell: StableCell, bound: StepBound, pairs: int = 64, seed: int = 1) -> float:
    """The largest difference of two next states, for inputs that differ by 1 and the same state before."""
    exactly, size = exact(cell), size_of(cell, bound)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(pairs, cell.input_size, generator=generator, dtype=torch.float64)
    move = torch.randn(pairs, cell.input_size, generator=generator, dtype=torch.float64)
    move = move * torch.logspace(-3, 1, pairs, dtype=torch.float64)[:, None]
    state = reached(exactly, torch.randn(pairs, 5, cell.input_size, generator=generator, dtype=torch.float64))
    weights = exactly.weights()
    with torch.no_grad():
        one, other = (exactly.step(weights, state, exactly.drive(given)) for given in (x, x + move))
        return float((size(one, other) / move.norm(dim=-1)).max())


def farthest(cell: StableCell, steps: int = 200, seed: int = 2) -> list[tuple[float, float]]:
    """For each state tensor the largest coordinate and the largest 2-norm seen, under inputs of every size."""
    exactly = exact(cell)
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-2, 6, 33, dtype=torch.float64)[:, None, None]
    inputs = torch.randn(33, steps, cell.input_size, generator=generator, dtype=torch.float64)
    held = inputs[:, :1].expand_as(inputs)
    state = exactly.initial_state(66)
    weights, most = exactly.weights(), [(0.0, 0.0)] * len(state)
    with torch.no_grad():
        for x in (torch.cat([inputs, held]) * torch.cat([scale, scale])).unbind(dim=1):
            state = exactly.step(weights, state, exactly.drive(x))
            seen = [(float(part.abs().max()), float(part.norm(dim=-1).max())) for part in state]
            most = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(most, seen, strict=True)]
    return most


def _room(cell: StableCell, bound: StepBound, place: int) -> float:
    """How large states may be that are drawn: those of the ball, where there is one."""
    radii = [ball.radius for ball in bound.balls if ball.state == cell.state_names[place]]
    return min(radii[0], 3.0) if radii else 3.0


def _kept(cell: StableCell, bound: StepBound, state: list[Tensor]) -> State:
    """States pulled back into the bound's balls, outside which nothing was proved."""
    radii = {ball.state: ball for ball in bound.balls}
    kept = []
    for name, part in zip(cell.state_names, state, strict=True):
        ball = radii.get(name)
        if name == "started":
            # Both of two states that were reached have started: a flag, and no part of a difference.
            kept.append(torch.ones_like(part))
        elif ball is None:
            kept.append(part)
        elif ball.norm == "linf":
            kept.append(part.clamp(-ball.radius, ball.radius))
        else:
            kept.append(part * (ball.radius / part.norm(dim=-1, keepdim=True).clamp_min(ball.radius)))
    return tuple(kept)
