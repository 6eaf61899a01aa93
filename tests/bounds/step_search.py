"""Looks for states and inputs of which a cell's step makes more than was proved.

Nothing is sampled that was not also searched: differences of states and of inputs go to where a step stretches them
most (of a fixed step this is the power method, in the norm of the bound), while states and inputs climb the gradient.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.cells._base import State

SLACK = 1e-6
"""What rounding in float64 may add to what is seen."""
NOISE = 4e-15
"""At least the rounding of what a step makes of numbers of size 1; differences 10^7 times larger are looked at."""

Size = Callable[[State, State], Tensor]


@dataclass(frozen=True)
class Seen:
    """What was found of one claim.

    Attributes:
        claim: What is bounded.
        certified: By how much.
        found: The most that was found.
    """

    claim: str
    certified: float
    found: float

    @property
    def is_violated(self) -> bool:
        """Whether more was found than was proved; also where that is no number."""
        return not self.found <= self.certified * (1 + SLACK)

    @property
    def share(self) -> float:
        """What was found as a share of what is proved: 1 is exact, above 1 is wrong."""
        return self.found / self.certified if self.certified else float(self.found > 0)


@dataclass(frozen=True)
class Worst:
    """The largest factors found of one step.

    Attributes:
        rate: Of the size of a difference of two states under one input.
        gain: Of the next states for two inputs, by the 2-norm of their difference.
        output_rate: Of the outputs, by the size of the difference of the states before.
        output_gain: Of the outputs, by the 2-norm of the difference of the inputs.
    """

    rate: float = 0.0
    gain: float = 0.0
    output_rate: float = 0.0
    output_gain: float = 0.0


GOALS = tuple(field.name for field in fields(Worst))


def violations(seen: list[Seen]) -> list[Seen]:
    """Those of which more was found than was proved."""
    return [one for one in seen if one.is_violated]


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


def exact(cell: StableCell, *, timed: bool = False) -> StableCell:
    """The cell in float64, with the numbers that its float32 weights and the matrices built from them hold.

    Args:
        cell: It is not changed.
        timed: Whether it will be given the lengths of steps.
    """
    single = copy.deepcopy(cell).float().eval()
    with torch.no_grad():
        built: Any = single.materialize_timed() if timed else single.materialize()
    double = single.double()
    held = [weight.to(torch.complex128 if weight.is_complex() else torch.float64) for weight in built]
    double.weight_cache.enable({timed: built._make(held) if hasattr(built, "_make") else tuple(held)})
    return double


def reached(cell: StableCell, inputs: Tensor) -> State:
    """The states after the inputs ``(batch, time, features)``, from the start."""
    state = cell.initial_state(len(inputs))
    with torch.no_grad():
        weights = cell.weights()
        for x in inputs.unbind(dim=1):
            state = cell.step(weights, state, cell.drive(x))
    return state


def checked(cell: StableCell, bound: StepBound, *, pairs: int = 12, searches: int = 5, steps: int = 40) -> list[Seen]:
    """Every claim of a bound beside the worst that was found.

    Args:
        cell: What it is of.
        bound: A bound, right or wrong.
        pairs: For each factor.
        searches: Steps of each search.
        steps: For which the states are driven outwards.
    """
    seen = []
    if bound.balls:
        most = farthest(cell, steps, searches=searches)
        for ball in bound.balls:
            largest, norm = most[cell.state_names.index(ball.state)]
            seen.append(Seen(f"ball of {ball.state}", ball.radius, largest if ball.norm == "linf" else norm))
    if bound.norm is None or not math.isfinite(bound.rate):
        return seen
    worst = worst_step(cell, bound, pairs=pairs, searches=searches)
    by_output = bound.output_gain * bound.rate
    claims = {
        "rate": bound.rate,
        "gain": bound.gain,
        "output_rate": by_output,
        "output_gain": bound.output_gain * bound.gain + bound.output_input_gain,
    }
    return seen + [Seen(name, value, getattr(worst, name)) for name, value in claims.items() if math.isfinite(value)]


def worst_rate(cell: StableCell, bound: StepBound, pairs: int = 64, searches: int = 30, seed: int = 0) -> float:
    """The largest factor by which a step was found to change the size of a difference of two states."""
    return worst_step(cell, bound, pairs=pairs, searches=searches, seed=seed, goals=("rate",)).rate


def worst_gain(cell: StableCell, bound: StepBound, pairs: int = 64, searches: int = 10, seed: int = 1) -> float:
    """The largest difference found of two next states, for inputs that differ by 1 and the same state before."""
    return worst_step(cell, bound, pairs=pairs, searches=searches, seed=seed, goals=("gain",)).gain


def worst_step(
    cell: StableCell,
    bound: StepBound,
    *,
    pairs: int = 64,
    searches: int = 30,
    seed: int = 0,
    goals: tuple[str, ...] = GOALS,
) -> Worst:
    """The worst of one step that was found: states that inputs lead to and others, near and far differences.

    Args:
        cell: Its float32 weights count.
        bound: Gives the norm, and the balls outside which nothing was proved.
        pairs: How many are followed for each goal.
        searches: Steps of the search.
        seed: Of what is drawn.
        goals: Which of :class:`Worst` are searched; the others stay at 0.
    """
    exactly, size = exact(cell), size_of(cell, bound)
    generator = torch.Generator().manual_seed(seed)
    rows = pairs * len(goals)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    spread = torch.logspace(-3, 2, pairs, dtype=torch.float64)[:, None].repeat(len(goals), 1)
    start = reached(exactly, draw(rows, 5, cell.input_size) * spread.flip(0)[:, None])
    rooms = [room_of(cell, bound, place) for place in range(len(start))]
    state = [part + draw(*part.shape) * room * spread.clamp_max(1) for part, room in zip(start, rooms, strict=True)]
    state = [torch.where(at_start(rows, pairs), 0.0, part) for part in state]
    x = draw(rows, cell.input_size) * torch.where(torch.arange(rows)[:, None] % 2 == 0, 2.0, spread.flip(0))
    apart = draw(rows, sum(start[cell.state_names.index(name)].shape[1] for name in bound.covers))
    apart = apart / length_of(apart, bound.norm) * spread.clamp_max(2 * min(rooms)).flip(0)
    moved = draw(rows, cell.input_size)
    moved = moved / length_of(moved, "l2") * spread.clamp_max(10)
    of_state = torch.tensor([goal.endswith("rate") for goal in goals]).repeat_interleave(pairs)[:, None]
    of_output = torch.tensor([goal.startswith("output") for goal in goals]).repeat_interleave(pairs)
    apart, moved = torch.where(of_state, apart, 0.0), torch.where(of_state, 0.0, moved)
    weights, back = exactly.weights(), from_norm(bound)
    worst = dict.fromkeys(goals, 0.0)
    for search in range(searches + 1):
        leaves = [leaf.detach().requires_grad_() for leaf in (*state, x, apart, moved)]
        held, x, apart, moved = leaves[:-3], *leaves[-3:]
        one = pulled(cell, bound, held, pairs)
        other = pulled(cell, bound, displaced(cell, bound, one, back(apart)), pairs)
        pair = tuple(torch.cat(parts) for parts in zip(one, other, strict=True))
        after = exactly.step(weights, pair, exactly.drive(torch.cat([x, x + moved])))
        nexts = tuple(part[:rows] for part in after), tuple(part[rows:] for part in after)
        before = torch.where(of_state[:, 0], size(one, other), moved.norm(dim=-1))
        changed = torch.where(of_output, (nexts[0][0] - nexts[1][0]).norm(dim=-1), size(*nexts))
        factor = changed / before.clamp_min(1e-300)
        with torch.no_grad():
            scale = 1 + torch.cat([part.abs() for part in (*one, *other, *nexts[0], *nexts[1], x)], dim=-1).amax(dim=-1)
            zeros = tuple(torch.zeros_like(part) for part in one)
            rounding = NOISE * scale * size(tuple(part + 1 for part in zeros), zeros).clamp_min(1)
            # Of states that are all but equal the rounding is measured, not the step.
            counts = before > 1e7 * rounding
            sure = torch.where(counts, (changed - rounding).clamp_min(0) / before.clamp_min(1e-300), 0.0)
            for number, goal in enumerate(goals):
                found = float(sure[number * pairs : (number + 1) * pairs].max())
                worst[goal] = max(worst[goal], found) if math.isfinite(found) else math.inf
        if search == searches:
            break
        slopes = torch.autograd.grad(
            factor.clamp_min(1e-300).log().sum(), leaves, allow_unused=True, materialize_grads=True
        )
        rate = 0.3 * 0.02 ** (search / max(searches - 1, 1))
        with torch.no_grad():
            *state, x = [
                leaf + rate * leaf.abs().mean(dim=-1, keepdim=True).clamp_min(1e-3) * torch.sign(slope.nan_to_num())
                for leaf, slope in zip(leaves[:-2], slopes[:-2], strict=True)
            ]
            apart = towards(apart, slopes[-2] + _radial(apart, bound), str(bound.norm))
            moved = towards(moved, slopes[-1] + moved / moved.norm(dim=-1, keepdim=True).square(), "l2")
    return Worst(**worst)


class Steps(Protocol):
    """What is stepped over time: a cell, or layers one above the other."""

    input_size: int

    def initial_state(self, batch_size: int) -> State: ...

    def weights(self) -> tuple[Tensor, ...]: ...

    def drive(self, x: Tensor) -> Tensor: ...

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor) -> State: ...


def farthest(cell: StableCell, steps: int = 200, seed: int = 2, searches: int = 0) -> list[tuple[float, float]]:
    """For each state tensor of a cell the largest coordinate and the largest 2-norm that :func:`driven` finds."""
    return driven(exact(cell), steps, seed, searches)


def driven(layers: Steps, steps: int = 200, seed: int = 2, searches: int = 0) -> list[tuple[float, float]]:
    """For each state tensor the largest coordinate and the largest 2-norm seen, from the start, for inputs of any size.

    Args:
        layers: In float64.
        steps: Of random inputs, changing ones and held ones.
        seed: Of what is drawn.
        searches: Steps of a search, through time, for inputs that lead further out; 0 for none.
    """
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-2, 6, 33, dtype=torch.float64)[:, None, None]
    inputs = torch.randn(33, steps, layers.input_size, generator=generator, dtype=torch.float64)
    held = inputs[:, :1].expand_as(inputs)
    state = layers.initial_state(66)
    weights, most = layers.weights(), [(0.0, 0.0)] * len(state)
    with torch.no_grad():
        for x in (torch.cat([inputs, held]) * torch.cat([scale, scale])).unbind(dim=1):
            state = layers.step(weights, state, layers.drive(x))
            most = _further(most, state)
    return most if not searches else _driven_out(layers, state, most, searches, generator)


def _driven_out(
    layers: Steps, state: State, most: list[tuple[float, float]], searches: int, generator: torch.Generator
) -> list[tuple[float, float]]:
    """Inputs that climb: a row for each tensor, norm and size of input, from the start and from states reached."""
    steps, weights = 8, layers.weights()
    rows = [(place, norm, scale) for place in range(len(state)) for norm in (0, 1) for scale in (0.3, 3.0, 100.0)]
    scales = torch.tensor([scale for *_, scale in rows], dtype=torch.float64).repeat(2)[:, None, None]
    x = torch.randn(2 * len(rows), steps, layers.input_size, generator=generator, dtype=torch.float64) * scales
    begun = torch.randint(len(state[0]), (len(rows),), generator=generator)
    first = tuple(torch.cat([torch.zeros_like(part[begun]), part[begun]]) for part in state)
    for search in range(searches + 1):
        x = x.detach().requires_grad_()
        states = first
        for given in x.unbind(dim=1):
            states = layers.step(weights, states, layers.drive(given))
            most = _further(most, states)
        reach = [
            states[place][row].abs().max() if norm else states[place][row].norm()
            for row, (place, norm, _) in enumerate(rows * 2)
        ]
        if search == searches or not any(one.requires_grad for one in reach):
            return most
        (slope,) = torch.autograd.grad(
            torch.stack(reach).clamp_min(1e-300).log().sum(), x, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            x = x + 0.5 * x.abs().mean(dim=(1, 2), keepdim=True) * torch.sign(slope.nan_to_num())
    return most


def _further(most: list[tuple[float, float]], state: State) -> list[tuple[float, float]]:
    with torch.no_grad():
        seen = [(float(part.abs().max()), float(part.norm(dim=-1).max())) for part in state]
    return [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(most, seen, strict=True)]


def at_start(rows: int, pairs: int) -> Tensor:
    """Which rows, ``(rows, 1)``, are at the start of a sequence: one in eight."""
    return (torch.arange(rows)[:, None] % pairs) % 8 == 7


def length_of(vectors: Tensor, norm: str | None) -> Tensor:
    lengths = vectors.abs().amax(dim=-1, keepdim=True) if norm == "linf" else vectors.norm(dim=-1, keepdim=True)
    return lengths.clamp_min(1e-300)


def towards(vectors: Tensor, slope: Tensor, norm: str) -> Tensor:
    """Vectors of the same lengths where a linear function with these slopes is largest."""
    best = torch.sign(slope) if norm == "linf" else slope
    best = torch.where(torch.isfinite(best), best, 0.0)
    # Squares of what fades over many steps would be nothing.
    largest = best.abs().amax(dim=-1, keepdim=True)
    best = best / largest.clamp_min(1e-300)
    return torch.where(largest > 1e-250, best / length_of(best, norm) * length_of(vectors, norm), vectors)


def _radial(apart: Tensor, bound: StepBound) -> Tensor:
    """What the slope of ``log(before)`` takes off the slope of ``log(after)``: of the numerator alone it is wanted."""
    if bound.norm == "linf":
        peak = apart.abs() == length_of(apart, "linf")
        return torch.where(peak, 1 / apart, 0.0) / peak.sum(dim=-1, keepdim=True)
    return apart / length_of(apart, "l2").square()


def from_norm(bound: StepBound) -> Callable[[Tensor], Tensor]:
    """Differences of states from vectors whose plain norm is the size of the difference."""
    metric = None if bound.metric is None else torch.from_numpy(bound.metric)
    weights = None if bound.weights is None else torch.from_numpy(bound.weights)
    if bound.norm == "linf":
        return lambda apart: apart if weights is None else apart * weights
    return lambda apart: apart if metric is None else torch.linalg.solve(metric, apart.T).T


def displaced(cell: StableCell, bound: StepBound, state: State, apart: Tensor) -> list[Tensor]:
    places = [cell.state_names.index(name) for name in bound.covers]
    parts = dict(zip(places, apart.split([state[place].shape[1] for place in places], dim=-1), strict=True))
    return [part + parts[place] if place in parts else part for place, part in enumerate(state)]


def room_of(cell: StableCell, bound: StepBound, place: int) -> float:
    """How large states may be that are drawn: those of the ball, where there is one."""
    radii = [ball.radius for ball in bound.balls if ball.state == cell.state_names[place]]
    return min(radii[0], 3.0) if radii else 3.0


def pulled(cell: StableCell, bound: StepBound, state: list[Tensor], pairs: int) -> State:
    """States pulled back into the bound's balls, outside which nothing was proved."""
    radii = {ball.state: ball for ball in bound.balls}
    kept = []
    for name, part in zip(cell.state_names, state, strict=True):
        ball = radii.get(name)
        if name == "started":
            # A flag, the same of both states of a pair.
            kept.append((~at_start(len(part), pairs)).to(part.dtype))
        elif ball is None:
            kept.append(part)
        elif ball.norm == "linf":
            kept.append(part.clamp(-ball.radius, ball.radius))
        else:
            kept.append(part * (ball.radius / part.norm(dim=-1, keepdim=True).clamp_min(ball.radius)))
    return tuple(kept)
