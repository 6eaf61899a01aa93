"""Looks for trajectories of layers and models that do what their certificate says none does."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bounds.step_search import (
    NOISE,
    Seen,
    displaced,
    driven,
    exact,
    from_norm,
    length_of,
    pulled,
    size_of,
    towards,
)
from stablernn import StableRNN
from stablernn.cells import StableCell
from stablernn.cells._base import State
from stablernn.certificates.cascade import Cascade
from stablernn.certificates.certificate import SETTLED_SHARE, Certificate, certify
from stablernn.nn.models import SequenceModel

GOALS = ("approach", "share remembered", "gain on the last output", "gain on all outputs", "gap", "largest gain")
"""Of which the first two are of two starts under one input, the others of two inputs from one start."""
GAP = 10
"""Steps of the gaps: one of the lengths of which a certificate tells the cost."""


class Stack:
    """Layers one above the other as one step, in float64 on their float32 matrices.

    Args:
        cells: From the input on.
        max_dt: Longest step of those that are then drawn, which are of any length; None where all steps are regular.
    """

    def __init__(self, cells: Sequence[StableCell], max_dt: float | None = None) -> None:
        self.cells = [exact(cell, timed=max_dt is not None) for cell in cells]
        self.input_size = cells[0].input_size
        self.max_dt = max_dt
        self.used = [cell.weights(timed=max_dt is not None) for cell in self.cells]
        self.generator = torch.Generator()
        self.rewind()

    def rewind(self) -> None:
        """Let the lengths of steps come again from the first."""
        self.generator.manual_seed(0)
        self.lengths: list[Tensor] = []

    def initial_state(self, batch_size: int) -> State:
        return tuple(part for cell in self.cells for part in cell.initial_state(batch_size))

    def weights(self) -> tuple[Tensor, ...]:
        return ()

    def drive(self, x: Tensor) -> Tensor:
        return x

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor) -> State:
        following: list[Tensor] = []
        dt = None if self.max_dt is None else self._length(len(drive))
        for cell, used, part in zip(self.cells, self.used, self.parts(state), strict=True):
            substeps = 1 if self.max_dt is None else cell.substeps(self.max_dt)
            after = cell.advance(used, part, cell.drive(drive), dt, substeps)
            following += after
            drive = after[0]
        return tuple(following)

    def _length(self, rows: int) -> Tensor:
        """Of a step, ``(rows, 1)``: short, longest, or anything; both halves of the rows, which are pairs, alike."""
        assert self.max_dt is not None
        draw = torch.rand(rows // 2, 2, generator=self.generator, dtype=torch.float64)
        anything = torch.where(draw[:, :1] < 0.4, self.max_dt, self.max_dt * draw[:, 1:])
        self.lengths.append(torch.where(draw[:, :1] < 0.2, 0.01, anything).repeat(2, 1))
        return self.lengths[-1]

    def parts(self, state: Sequence[Tensor]) -> list[State]:
        """A flat state, layer by layer."""
        left = list(state)
        return [tuple(left.pop(0) for _ in cell.state_names) for cell in self.cells]

    def output(self, state: State) -> Tensor:
        return self.parts(state)[-1][0]


def checked_module(
    module: nn.Module, certificate: Certificate | None = None, *, steps: int = 24, pairs: int = 8, searches: int = 4
) -> list[Seen]:
    """Every claim of a certificate, as its document states it, beside the worst that was found.

    Args:
        module: A cell, layers or a model.
        certificate: Right or wrong; None for its own.
        steps: Of the trajectories.
        pairs: Of them, for each claim.
        searches: Steps of each search.
    """
    certificate = certify(module, stored=False) if certificate is None else certificate
    document = certificate.document()
    seen: list[Seen] = []
    first = len(module.patches.state_roles()) if isinstance(module, SequenceModel) else 0
    balls = {ball["state"]: ball for ball in document["state_balls"]}
    for cells, proved in zip(stacks_of(module), certificate.stacks, strict=True):
        stack = Stack(cells, certificate.max_dt)
        names = [f"state_{first + place}" for place in range(len(stack.initial_state(1)))]
        first += len(names)
        if balls.keys() & set(names):
            most = driven(stack, 2 * steps, searches=searches)
            seen += [_within(balls[name], far) for name, far in zip(names, most, strict=True) if name in balls]
        if document["kind"] in ("contracting", "non-expansive"):
            seen += checked_stack(
                stack,
                proved,
                rate=document["contraction_rate"],
                gain=document["gains"]["input_to_output"],
                forgotten=document["forgetting"]["steps"],
                gap={gap["steps"]: gap["output_error"] for gap in document["gaps"]}[GAP],
                state_gains=document["gains"]["input_to_state"],
                steps=steps,
                pairs=pairs,
                searches=searches,
            )
    if isinstance(module, SequenceModel) and balls:
        seen += _model_balls(module, balls, steps)
    return seen


def stacks_of(module: nn.Module) -> list[list[StableCell]]:
    """The layers of each member."""
    if isinstance(module, StableCell):
        return [[module]]
    if isinstance(module, StableRNN):
        return [module.cells]
    return [stack.cells for stack in module.modules() if isinstance(stack, StableRNN)]


def checked_stack(
    stack: Stack,
    proved: Cascade,
    *,
    rate: float,
    gain: float | None,
    forgotten: int | None,
    gap: float | None = None,
    state_gains: Sequence[float | None] = (),
    steps: int,
    pairs: int,
    searches: int,
    seed: int = 0,
) -> list[Seen]:
    """What is claimed of pairs of trajectories, beside the worst that was found.

    Args:
        stack: The layers.
        proved: Of them.
        rate: By which a step multiplies a difference in the norm of the layers.
        gain: Of the inputs on the outputs over any time; None for none.
        forgotten: Steps after which the share ``SETTLED_SHARE`` of a difference is left; None for none.
        gap: How far off outputs can be by ``GAP`` inputs, each of which is off by 1; None for none.
        state_gains: Of the inputs on the states of each layer over any time.
        steps: Of the trajectories.
        pairs: Of them, for each claim.
        searches: Steps of each search.
        seed: Of what is drawn.
    """
    search = _Search(stack, proved, rate, forgotten, steps, pairs, seed)
    for turn in range(searches + 1):
        search.turn(climb=turn < searches)
    worst = search.worst
    last, every = proved.gains(steps)
    seen = []
    if stack.max_dt is None or len(stack.cells) == 1:
        seen.append(Seen("approach", 1.0, worst["approach"]))
    if np.isfinite(last) and stack.max_dt is None:
        seen += [
            Seen("gain on the last output", last, worst["gain on the last output"]),
            Seen("gain on all outputs", every, worst["gain on all outputs"]),
        ]
    if gain is not None:
        seen.append(Seen("largest gain", gain, worst["largest gain"]))
        if stack.max_dt is None:
            seen.append(Seen("gain over any time", gain, worst["gain on all outputs"]))
    if gap is not None and steps > GAP:
        seen.append(Seen("gap", gap, worst["gap"]))
    seen += [
        Seen(f"gain on the state of layer {layer}", value, found)
        for layer, (value, found) in enumerate(zip(state_gains, search.state_gains, strict=False))
        if value is not None
    ]
    if forgotten is not None and bool(search.late.any()):
        seen.append(Seen("share remembered", SETTLED_SHARE, worst["share remembered"]))
    return seen


class _Search:
    """Pairs of trajectories, a block of rows for each goal, that climb towards what the goal is about."""

    def __init__(
        self, stack: Stack, proved: Cascade, rate: float, forgotten: int | None, steps: int, pairs: int, seed: int
    ) -> None:
        self.stack, self.proved, self.pairs = stack, proved, pairs
        self.rate, self.widths = _norm_of(proved, rate)
        self.sizes = [size_of(cell, bound) for cell, bound in zip(stack.cells, proved.bounds, strict=True)]
        self.back = [from_norm(bound) for bound in proved.bounds]
        self.worst = dict.fromkeys(GOALS, 0.0)
        self.state_gains = [0.0] * len(stack.cells)
        generator = torch.Generator().manual_seed(seed)
        rows = pairs * len(GOALS)
        self.of_starts = torch.arange(rows) < 2 * pairs
        stack.rewind()
        if stack.max_dt is None:
            self.elapsed = torch.arange(1, steps + 1, dtype=torch.float64).expand(rows, steps)
        else:
            self.elapsed = torch.cat([stack._length(2 * rows)[:rows] for _ in range(steps)], dim=1).cumsum(dim=1)
        self.late = torch.zeros_like(self.elapsed) if forgotten is None else (self.elapsed >= forgotten + 1).double()

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        def spread(low: float, high: float) -> Tensor:
            return torch.logspace(low, high, pairs, dtype=torch.float64).repeat(len(GOALS))[:, None]

        state = stack.initial_state(rows)
        with torch.no_grad():
            for x in (draw(rows, 6, stack.input_size) * spread(-2, 1)[:, None]).unbind(dim=1):
                state = stack.step((), state, x)
        # Pairs of inputs: half of them from the start, where a sequence begins.
        fresh = ~self.of_starts & (torch.arange(rows) % 2 == 0)
        self.state = [torch.where(fresh[:, None], 0.0, part) for part in state]
        # Near the origin, where tanh is steep, and away from it, where what shrinks is steep.
        sizes = torch.where(torch.arange(rows)[:, None] % 4 < 2, spread(-3, -1), spread(-1, 1.5).flip(0))
        self.x = draw(rows, steps, stack.input_size) * sizes[:, None]
        widths = [
            sum(part[cell.state_names.index(name)].shape[1] for name in bound.covers)
            for cell, bound, part in zip(stack.cells, proved.bounds, stack.parts(state), strict=True)
        ]
        self.apart = [
            torch.where(self.of_starts[:, None], draw(rows, width) * spread(-2, 0.5), 0.0) for width in widths
        ]
        self.gap = (torch.arange(rows)[:, None] // pairs == GOALS.index("gap")) & (torch.arange(steps) >= GAP)
        unmoved = self.of_starts[:, None] | self.gap
        self.moved = torch.where(unmoved[..., None], 0.0, draw(*self.x.shape) * spread(-4, 0.5)[:, None])

    def turn(self, *, climb: bool) -> None:
        """Follow all pairs, note the worst, and let them climb."""
        leaves = [leaf.detach().requires_grad_() for leaf in (*self.state, self.x, self.moved, *self.apart)]
        count, layers = len(self.state), len(self.apart)
        state, self.x, self.moved, apart = leaves[:count], leaves[count], leaves[count + 1], leaves[-layers:]
        one, other = self._pair(state, apart)
        rows = len(self.x)
        before = self._distance(one, other)
        self.stack.rewind()
        pair = tuple(torch.cat(parts) for parts in zip(one, other, strict=True))
        outputs, distances, scales, layers_apart = [], [], [], []
        for x in torch.cat([self.x, self.x + self.moved]).unbind(dim=1):
            pair = self.stack.step((), pair, x)
            first, second = tuple(part[:rows] for part in pair), tuple(part[rows:] for part in pair)
            outputs.append((self.stack.output(first) - self.stack.output(second)).norm(dim=-1))
            sizes = self._sizes(first, second)
            distances.append((sizes / torch.tensor(self.widths)).amax(dim=-1))
            layers_apart.append(sizes.detach())
            scales.append(torch.cat([part.detach().abs() for part in pair], dim=-1).amax(dim=-1))
        factors = self._factors(before, torch.stack(outputs, dim=1), torch.stack(distances, dim=1))
        scale = 1 + torch.stack(scales, dim=1).amax(dim=1).reshape(2, rows).amax(dim=0) + self.x.detach().abs().amax()
        self._note(before.detach(), factors.detach(), torch.stack(layers_apart, dim=1).amax(dim=1), scale)
        if climb:
            # What is largest at some time grows best at the last one, to which all inputs lead.
            at_end = outputs[min(GAP, len(outputs) - 1)][-2 * self.pairs : -self.pairs], outputs[-1][-self.pairs :]
            goals = torch.cat([factors[: -2 * self.pairs], *at_end])
            slopes = torch.autograd.grad(
                goals.clamp_min(1e-300).log().sum(), leaves, allow_unused=True, materialize_grads=True
            )
            self._climb(leaves, [slope.nan_to_num() for slope in slopes])

    def _pair(self, state: list[Tensor], apart: list[Tensor]) -> tuple[State, State]:
        """Two states, equal but for what the layers' rates are of, inside the balls."""
        one: list[Tensor] = []
        other: list[Tensor] = []
        for cell, bound, part, move, back in zip(
            self.stack.cells, self.proved.bounds, self.stack.parts(state), apart, self.back, strict=True
        ):
            held = _inside(cell, bound, list(part), part)
            one += held
            other += _inside(cell, bound, displaced(cell, bound, held, back(move)), part)
        return tuple(one), tuple(other)

    def _sizes(self, one: State, other: State) -> Tensor:
        """How far apart two states are layer by layer, each in its norm, ``(rows, layers)``."""
        pairs = zip(self.sizes, self.stack.parts(one), self.stack.parts(other), strict=True)
        return torch.stack([size(a, b) for size, a, b in pairs], dim=-1)

    def _distance(self, one: State, other: State) -> Tensor:
        """The largest of the layers' distances, each divided by its width."""
        return (self._sizes(one, other) / torch.tensor(self.widths)).amax(dim=-1)

    def _factors(self, before: Tensor, outputs: Tensor, distances: Tensor) -> Tensor:
        """What each row is to make large, ``(rows,)``; of the distances the worst time counts."""
        at = [slice(number * self.pairs, (number + 1) * self.pairs) for number in range(len(GOALS))]
        given = self.moved.norm(dim=-1)
        energy = given.norm(dim=-1).clamp_min(1e-300)
        powers = self.rate**self.elapsed
        # Rounding stays where all else has gone.
        rounding = 100 * NOISE * (1 + distances.detach().amax(dim=1, keepdim=True))
        shrunk = ((distances - rounding).clamp_min(1e-300) / powers.clamp_min(1e-200)).amax(dim=1)
        left = (outputs * self.late).amax(dim=1)
        if len(self.sizes) > 1:
            # Of several layers the share is of what any two starts within the balls can do.
            stacks = (self.proved, *self.proved.in_other_norms)
            effects = [float(stack.output @ stack.diameters) for stack in stacks]
            at_once = left.new_tensor(max(min(effects), 1e-300))
        else:
            at_once = before[at[1]] * float(self.proved.output.sum())
        return torch.cat(
            [
                shrunk[at[0]] / before[at[0]].clamp_min(1e-300),
                left[at[1]] / at_once.clamp_min(1e-300),
                outputs[at[2], -1] / energy[at[2]],
                outputs[at[3]].norm(dim=-1) / energy[at[3]],
                *(outputs[rows].amax(dim=-1) / given[rows].amax(dim=-1).clamp_min(1e-300) for rows in at[4:]),
            ]
        )

    def _note(self, before: Tensor, factors: Tensor, apart: Tensor, scale: Tensor) -> None:
        moved = self.moved.detach().norm(dim=-1).amax(dim=-1)
        started = torch.where(self.of_starts, before, moved)
        counts = started > 1e9 * NOISE * scale
        for number, goal in enumerate(GOALS):
            block = slice(number * self.pairs, (number + 1) * self.pairs)
            found = float(torch.where(counts[block], factors[block], 0.0).max())
            self.worst[goal] = max(self.worst[goal], found) if np.isfinite(found) else np.inf
        of_inputs = counts & ~self.of_starts
        if bool(of_inputs.any()):
            found_now = (apart[of_inputs] / moved[of_inputs, None]).amax(dim=0).tolist()
            self.state_gains = [max(pair) for pair in zip(self.state_gains, found_now, strict=True)]

    def _climb(self, leaves: list[Tensor], slopes: list[Tensor]) -> None:
        count, layers = len(self.state), len(self.apart)
        with torch.no_grad():
            *state, self.x = [
                leaf + 0.1 * leaf.abs().flatten(1).mean(dim=1).clamp_min(1e-3).reshape(-1, *[1] * (leaf.dim() - 1))
                * torch.sign(slope)
                for leaf, slope in zip(leaves[: count + 1], slopes[: count + 1], strict=True)
            ]  # fmt: skip
            fresh = ~self.of_starts & (torch.arange(len(self.x)) % 2 == 0)
            self.state = [torch.where(fresh[:, None], 0.0, part) for part in state]
            # Of the inputs the direction over all steps counts; for the largest one each step has its own.
            moved, slope = self.moved.detach(), slopes[count + 1]
            radial = moved / moved.flatten(1).norm(dim=1).clamp_min(1e-300).square()[:, None, None]
            whole = towards(moved.flatten(1), (slope + radial).flatten(1), "l2").reshape(moved.shape)
            lengths = moved.norm(dim=-1).amax(dim=-1)[:, None, None]
            single = towards(moved / length_of(moved, "l2") * lengths, slope, "l2")
            largest = (torch.arange(len(moved)) >= 4 * self.pairs)[:, None, None]
            moved = torch.where(largest, single, whole)
            self.moved = torch.where(self.gap[..., None], 0.0, moved)
            self.apart = [
                towards(leaf.detach(), slope + leaf / length_of(leaf, "l2").square(), str(bound.norm))
                for leaf, slope, bound in zip(leaves[-layers:], slopes[-layers:], self.proved.bounds, strict=True)
            ]


def _norm_of(proved: Cascade, rate: float) -> tuple[float, list[float]]:
    """The rate and the widths by which layers' sizes are divided: of several layers as close to the rate as one likes.

    With ``step w <= r w`` a step multiplies the largest of ``e / w`` by ``r`` or less.
    """
    layers = len(proved.bounds)
    if layers == 1:
        return rate, [1.0]
    looser = (1 + rate) / 2
    widths = np.linalg.solve(looser * np.eye(layers) - proved.step, np.ones(layers))
    return looser, [float(width) for width in widths / widths.max()]


def _inside(cell: StableCell, bound: Any, state: list[Tensor], flags: State) -> State:
    """:func:`bounds.step_search.pulled`, with the flags that were reached."""
    held = pulled(cell, bound, state, 1)
    return tuple(
        flag if name == "started" else part for name, part, flag in zip(cell.state_names, held, flags, strict=True)
    )


def _within(ball: dict[str, Any], far: tuple[float, float]) -> Seen:
    return Seen(f"ball of {ball['state']}", ball["radius"], far[0] if ball["norm"] == "linf" else far[1])


def _model_balls(model: SequenceModel, balls: dict[str, dict[str, Any]], steps: int) -> list[Seen]:
    """Raw inputs of every size, one in twenty missing, through the whole model in float64."""
    double = copy.deepcopy(model).double().eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 4 * steps, model.input_size, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-2, 5, 24, dtype=torch.float64)[:, None, None]
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.05, torch.nan, x)
    most: dict[str, tuple[float, float]] = dict.fromkeys(balls, (0.0, 0.0))
    with torch.no_grad():
        for length in range(4, 4 * steps + 1, steps):
            state = double.final_state(x[:, :length])
            for name, (largest, norm) in most.items():
                part = state[int(name.removeprefix("state_"))]
                most[name] = (max(largest, float(part.abs().max())), max(norm, float(part.norm(dim=-1).max())))
    return [_within(ball, most[name]) for name, ball in balls.items()]
