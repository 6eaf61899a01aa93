"""Layers one above the other, as one step: bounds on each put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stablernn.cells import StableCell
from stablernn.stability._linear import UNIT, Matrix
from stablernn.stability.bounds import Hypothesis, StepBound

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
    """

    bounds: tuple[StepBound, ...]
    step: Matrix
    given: Matrix
    output: Matrix
    passed: float

    @property
    def rate(self) -> float:
        """The largest rate of a layer: how fast differences die out in the end."""
        return max(bound.rate for bound in self.bounds)

    @property
    def is_contracting(self) -> bool:
        """Whether every layer contracts: a triangular step then has weights in which all of it does."""
        return self.rate < 1 and bool(np.isfinite(self.step).all())

    def total_gain(self) -> float:
        """Of the input on the output over any time, for the largest step as for sums of squares; infinity for none."""
        if not self.is_contracting or not np.isfinite(self.given).all():
            return math.inf
        settled = np.linalg.solve(np.eye(len(self.step)) - self.step, self.given)
        return (float(self.output @ settled) + self.passed) * (1 + 1e-9)

    def gains(self, steps: int) -> tuple[float, float]:
        """Of all inputs of a sequence (the 2-norm of all their values) on its last output, and on all of them."""
        effect, responses = self.given, [self.passed]
        if not all(np.isfinite(part).all() for part in (self.step, self.given, self.output)):
            return math.inf, math.inf
        for _ in range(steps - 1):
            responses.append(float(self.output @ effect))
            effect = self.step @ effect
            if not np.isfinite(effect).all():
                return math.inf, math.inf
        safe = 1 + 8 * steps * UNIT
        return float(np.linalg.norm(responses)) * safe, sum(responses) * safe

    def forgotten_after(self, share: float, most: int = 100_000_000) -> int | None:
        """Steps from which on two starts move the output by at most a share of what they can move it at once.

        Returns:
            The number, exact up to 100,000 steps and not too small beyond; None where none up to ``most`` is proved.
        """
        if not self.is_contracting:
            return None
        if not self.output.any():
            return 1
        allowed, ones = share * float(self.output.sum()), np.ones(len(self.step))
        # step @ w = w - 1: what is below a multiple of w stays below it for ever, whatever rises in between.
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
        max_dt: Longest step of a stack for irregular time, of which nothing is proved: a bound is of the regular step.
    """
    bounds = tuple(_bound(cell) if max_dt is None else _irregular(max_dt) for cell in cells)
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
    return Cascade(bounds, step, given, moved, driven)


def _bound(cell: StableCell) -> StepBound:
    """The cell's bound; nothing where float64 cannot decompose its matrices."""
    try:
        return cell.step_bound()
    except np.linalg.LinAlgError:
        return StepBound(hypotheses=(Hypothesis("matrices too large for float64 to decompose", math.inf, 0.0),))


def _irregular(max_dt: float) -> StepBound:
    # A step may have any length from 0 on.
    return StepBound(hypotheses=(Hypothesis("regular steps: largest abs(dt - 1)", max(1.0, max_dt - 1), 0.0),))


def _scaled(factor: float, vector: Matrix) -> Matrix:
    """A product in which nothing, however often, is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where((vector == 0) | (factor == 0), 0.0, factor * vector)
