"""Layers one above the other, as one step: bounds on each put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stablernn.bounds.linalg import UNIT, Matrix, norm_above
from stablernn.bounds.step_bound import Hypothesis, StepBound
from stablernn.cells import StableCell

_HUGE = 1e150
"""What is as good as no bound, and has squares that float64 cannot hold."""
_COUNTED = 100_000
"""Steps up to which they are counted one by one."""


@dataclass(frozen=True)
class Cascade:
    """What a step of a stack makes of differences.

    Let ``e`` be the sizes of the layers' differences before a step, each in the norm of its layer, and ``d`` the
    2-norm of the difference of the inputs. After the step the sizes are at most ``step @ e + given * d``, and the
    outputs differ by at most ``output @ e + passed * d`` in the 2-norm.

    Attributes:
        bounds: Of the layers, from the input on.
        step: ``(layers, layers)``, lower triangular, not negative.
        given: ``(layers,)``.
        output: ``(layers,)``.
        passed: Of an input on the output of the same step.
        widths: ``(layers,)``, how far apart two states of a layer can be that inputs lead to; infinity where that is
            not known.
    """

    bounds: tuple[StepBound, ...]
    step: Matrix
    given: Matrix
    output: Matrix
    passed: float
    widths: Matrix

    @property
    def rate(self) -> float:
        """The largest rate of a layer: how fast differences die out in the end."""
        return max(bound.rate for bound in self.bounds)

    @property
    def is_contracting(self) -> bool:
        """Whether every layer contracts: a triangular step then has weights in which all of it does."""
        return self.rate < 1 and bool(np.isfinite(self.step).all())

    def weights(self) -> Matrix | None:
        """Weights for which the largest of the layers' parts, each divided by its own, shrinks in every step.

        ``(layers,)``, the largest is 1; None where no such weights are proved.
        """
        if not self.is_contracting:
            return None
        rate = self.rate + 0.1 * (1 - self.rate)
        found = np.linalg.solve(rate * np.eye(len(self.step)) - self.step, np.ones(len(self.step)))
        weights: Matrix = found / found.max()
        return weights

    def step_rate(self, weights: Matrix) -> float:
        """What one step makes of the largest of the layers' parts, each divided by a weight."""
        return float((self.step @ weights / weights).max()) * (1 + 8 * len(weights) * UNIT)

    def total_gain(self) -> float:
        """Of the input on the output over any time, for the largest step as for sums of squares; infinity for none."""
        if not self.is_contracting or not np.isfinite(self.given).all():
            return math.inf
        return math.prod(_total(bound) for bound in self.bounds) * (1 + 1e-9)

    def state_gains(self) -> list[float]:
        """Of the input on each layer's state over any time, in the norm of the layer; infinity for none."""
        if not self.is_contracting or not np.isfinite(self.given).all():
            return [math.inf] * len(self.bounds)
        settled = np.linalg.solve(np.eye(len(self.step)) - self.step, self.given)
        return [float(size) * (1 + 1e-9) for size in settled]

    def gains(self, steps: int) -> tuple[float, float]:
        """Of all inputs of a sequence (the 2-norm of all their values) on its last output, and on all of them."""
        (only,) = self.bounds if len(self.bounds) == 1 else (None,)
        responses = np.array([1.0])
        with np.errstate(over="ignore", invalid="ignore"):
            for bound in self.bounds:
                responses = np.convolve(responses, _responses(bound, steps))[:steps]
        if not (responses < _HUGE).all():
            return math.inf, math.inf
        safe = 1 + 8 * steps * UNIT * len(self.bounds)
        last, every = float(np.linalg.norm(responses)) * safe, float(responses.sum()) * safe
        if only is not None and only.response is not None:
            return min(last, only.response.last(steps)), min(every, only.response.every(steps))
        return last, every

    def gap_error(self, steps: int, tolerance: float = 0.0) -> float:
        """How far off the output can be, during a gap and after it, whose inputs are off by at most 1 in the 2-norm.

        Of a layer that does not contract for 100,000 steps afterwards.

        That is what filling in missing samples costs, for each unit by which a sample that is filled in is wrong.
        Infinity where none is proved.

        Args:
            steps: Of the gap, 1 or more.
            tolerance: By how much the rate of a single layer may exceed 1, where rounding its matrix makes it do so.
        """
        lasting = len(self.step) == 1 and self.rate <= 1 + tolerance
        if not np.isfinite(self.given).all() or not (self.is_contracting or lasting):
            return math.inf
        effect, worst = np.zeros(len(self.step)), 0.0
        for _ in range(steps):
            worst = float(self.output @ effect) + self.passed
            effect = self.step @ effect + self.given
        if lasting:
            # It fades, stays, or grows by what rounding has made of an orthogonal matrix.
            grown = max(self.rate, 1.0) ** _COUNTED
            return min(max(worst, float(self.output @ effect)) * grown * (1 + 1e-9), self.total_gain())
        weights = np.linalg.solve(np.eye(len(self.step)) - self.step, np.maximum(effect, UNIT))
        for _ in range(_COUNTED):
            # step @ weights is less than weights: what is below a multiple of them stays below it.
            if float((effect / weights).max()) * float(self.output @ weights) <= worst:
                return min(worst * (1 + 1e-9), self.total_gain())
            worst = max(worst, float(self.output @ effect))
            effect = self.step @ effect
        return self.total_gain()

    def forgotten_after(self, share: float, start: Matrix | None = None, most: int = 100_000_000) -> int | None:
        """Steps from which on two starts move the output by at most a share of what is proved that they could at once.

        Args:
            share: Greater than 0, less than 1.
            start: ``(layers,)``, the sizes of the layers' differences at first; None for equal ones.
            most: Steps up to which it is looked for.

        Returns:
            The number, exact up to 100,000 steps and not too small beyond; None where none up to ``most`` is proved.
        """
        if not self.is_contracting or (start is not None and not np.isfinite(start).all()):
            return None
        if not self.output.any() or (start is not None and not start.any()):
            return 1
        ones = np.ones(len(self.step)) if start is None else np.maximum(start, UNIT * start.max())
        allowed = share * float(self.output @ ones)
        # step @ w = w - start: what is below a multiple of w stays below it for ever, whatever rises in between.
        weights = np.linalg.solve(np.eye(len(self.step)) - self.step, ones)
        enough = allowed / float(self.output @ weights)
        powers, total = [self.step], 1
        while float((powers[-1] @ ones / weights).max()) > enough:
            powers.append(powers[-1] @ powers[-1])
            total *= 2
            if total > most:
                return None
        steps, reached = 0, np.eye(len(self.step))
        for exponent in reversed(range(len(powers))):
            further = reached @ powers[exponent]
            if float((further @ ones / weights).max()) > enough:
                steps, reached = steps + 2**exponent, further
        if steps > _COUNTED:
            return steps + 1
        effect, last = ones, 0
        for step in range(steps + 1):
            last = step if float(self.output @ effect) > allowed else last
            effect = self.step @ effect
        return last + 1


def cascade(cells: Sequence[StableCell], *, max_dt: float | None = None) -> Cascade:
    """What is proved of a stack of layers, of which each reads the output of the one below.

    Args:
        cells: From the input on.
        max_dt: Longest step of a stack for irregular time, in regular ones; None where all steps are regular. Rates are
            then over the time of a regular step, and gains are those of a largest difference, not of sums of squares.
    """
    bounds = tuple(_bound(cell, max_dt) for cell in cells)
    step, given = np.zeros((len(bounds), len(bounds))), np.zeros(len(bounds))
    # The input of a layer differs by at most ``moved @ e + driven * d``.
    moved, driven = np.zeros(len(bounds)), 1.0
    for depth, bound in enumerate(bounds):
        step[depth] = _scaled(bound.gain, moved)
        step[depth, depth] += bound.rate
        given[depth] = _scaled(bound.gain, np.array([driven]))[0]
        passed = bound.output_input_gain
        moved = _scaled(bound.output_gain, step[depth]) + _scaled(passed, moved)
        driven = float(_scaled(bound.output_gain, given[[depth]])[0]) + passed * driven
    widths = np.array([_width(cell, bound) for cell, bound in zip(cells, bounds, strict=True)])
    return Cascade(bounds, step, given, moved, driven, widths)


def _bound(cell: StableCell, max_dt: float | None) -> StepBound:
    """The cell's bound; nothing where float64 cannot decompose its matrices."""
    try:
        if max_dt is None:
            return cell.step_bound()
        bound = cell.irregular_bound()
        return bound if bound.norm is not None or bound.balls else replace(bound, hypotheses=_regular_only(max_dt))
    except np.linalg.LinAlgError:
        return StepBound(hypotheses=(Hypothesis("matrices too large for float64 to decompose", math.inf, 0.0),))


def _regular_only(max_dt: float) -> tuple[Hypothesis, ...]:
    # A step may have any length from 0 on.
    return (Hypothesis("regular steps: largest abs(dt - 1)", max(1.0, max_dt - 1), 0.0),)


def _width(cell: StableCell, bound: StepBound) -> float:
    """At least the size of the difference of two states in the balls; infinity where there are none."""
    balls = [ball for name in bound.covers for ball in bound.balls if ball.state == name]
    if bound.norm is None or len(balls) < len(bound.covers):
        return math.inf
    if bound.norm == "linf" and all(ball.norm == "linf" for ball in balls):
        return 2 * max(ball.radius for ball in balls) / (1.0 if bound.weights is None else float(bound.weights.min()))
    sizes = dict(zip(cell.state_names, cell.state_sizes, strict=True))
    radii = [ball.radius * (math.sqrt(sizes[ball.state]) if ball.norm == "linf" else 1.0) for ball in balls]
    longest = 2 * math.hypot(*radii) * (1 + 4 * UNIT)
    if bound.norm == "linf":
        return longest / (1.0 if bound.weights is None else float(bound.weights.min()))
    return longest * (1.0 if bound.metric is None else norm_above(bound.metric))


def _total(bound: StepBound) -> float:
    """The sum of what an input does to the output over any time, of a layer that contracts."""
    total = bound.output_gain * bound.gain / (1 - bound.rate) + bound.output_input_gain
    return total if bound.response is None else min(total, bound.response.total)


def _responses(bound: StepBound, steps: int) -> Matrix:
    """``(steps,)``, at least what an input does to the output k steps later."""
    if bound.response is not None:
        return bound.response.norms(steps)
    with np.errstate(over="ignore", invalid="ignore"):
        found = bound.output_gain * bound.gain * np.power(bound.rate, np.arange(steps, dtype=np.float64))
    found[0] += bound.output_input_gain
    return found


def _scaled(factor: float, vector: Matrix) -> Matrix:
    """A product in which nothing, however often, is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where((vector == 0) | (factor == 0), 0.0, factor * vector)
