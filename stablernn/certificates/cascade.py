"""A stack of layers as one step: the bounds of its layers combined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from stablernn.bounds.intervals import Box
from stablernn.bounds.linalg import EPSILON, Matrix, norm_upper_bound
from stablernn.bounds.lure import GivenNorm, given_norms
from stablernn.bounds.step_bound import Hypothesis, StepBound
from stablernn.cells import StableCell

_HUGE = 1e150
"""As good as no bound; its square overflows float64."""
_COUNTED_STEPS = 100_000
"""Steps up to which they are counted one by one."""


@dataclass(frozen=True)
class Cascade:
    """Bounds on what a step of a stack does to differences.

    Let ``e`` be the sizes of the layers' differences before a step, each in the norm of its layer, and ``d`` the
    2-norm of the difference of the inputs. After the step the sizes are at most ``step @ e + input_gains * d``, and the
    outputs differ by at most ``output @ e + feedthrough * d`` in the 2-norm.

    Attributes:
        bounds: Of the layers, from the input on.
        step: ``(layers, layers)``, lower triangular, not negative.
        input_gains: ``(layers,)``.
        output: ``(layers,)``.
        feedthrough: Of an input on the output of the same step.
        diameters: ``(layers,)``, how far apart two reachable states of a layer can be; infinity if that is not known.
        in_other_norms: The same stack, with layers in other norms of theirs.
    """

    bounds: tuple[StepBound, ...]
    step: Matrix
    input_gains: Matrix
    output: Matrix
    feedthrough: float
    diameters: Matrix
    in_other_norms: tuple[Cascade, ...] = ()

    @property
    def rate(self) -> float:
        """The largest rate of a layer, at which differences decay in the end."""
        return max(bound.rate for bound in self.bounds)

    @property
    def is_contracting(self) -> bool:
        """True if every layer contracts: a triangular step then has weights in which all of it does."""
        return self.rate < 1 and bool(np.isfinite(self.step).all())

    def weights(self) -> Matrix | None:
        """Return weights of the layers for which the largest weighted size shrinks in every step.

        Each size is divided by its weight. ``(layers,)``, the largest is 1; None if no such weights are proved.
        """
        if not self.is_contracting:
            return None
        # Between the layers' rate and 1: at the rate itself a coupled stack has no finite weights.
        rate = self.rate + 0.1 * (1 - self.rate)
        solution = np.linalg.solve(rate * np.eye(len(self.step)) - self.step, np.ones(len(self.step)))
        weights: Matrix = solution / solution.max()
        return weights

    def step_rate(self) -> float:
        """Return the factor of one step in the norm of the layer, or of the largest of the sizes over their weights."""
        if len(self.bounds) == 1:
            return self.rate
        weights = self.weights()
        if weights is None:
            return math.inf
        return float((self.step @ weights / weights).max()) * (1 + 8 * len(weights) * EPSILON)

    def total_gain(self) -> float:
        """Return the gain of the input on the output over any time; infinity if none is proved.

        It holds for the largest step as well as for sums of squares.
        """
        if not self.is_contracting or not np.isfinite(self.input_gains).all():
            return math.inf
        return math.prod(_total_gain(bound) for bound in self.bounds) * (1 + 1e-9)

    def state_gains(self) -> list[float]:
        """Return the gains of the input on each layer's state over any time, in the layer's norm; infinity for none."""
        if not self.is_contracting or not np.isfinite(self.input_gains).all():
            return [math.inf] * len(self.bounds)
        gains, input_gain = [], 1.0 + 1e-9
        for bound in self.bounds:
            gains.append(input_gain * bound.gain / (1 - bound.rate))
            # Of the layers below any norm will do: the one in which the layer's rate is smallest can be stretched.
            input_gain *= _total_gain(bound)
        return gains

    def gains(self, steps: int) -> tuple[float, float]:
        """Return the gains of all inputs of a sequence, in the 2-norm of all values, on its last and on all outputs."""
        (only,) = self.bounds if len(self.bounds) == 1 else (None,)
        responses = np.array([1.0])
        with np.errstate(over="ignore", invalid="ignore"):
            for bound in self.bounds:
                responses = np.convolve(responses, _response_norms(bound, steps))[:steps]
        # Also false for NaN, which infinity times 0 has left.
        if not (responses < _HUGE).all():
            return math.inf, math.inf
        safe = 1 + 8 * steps * EPSILON * len(self.bounds)
        last_gain, all_gain = float(np.linalg.norm(responses)) * safe, float(responses.sum()) * safe
        if only is not None and only.impulse_response is not None:
            response = only.impulse_response
            return min(last_gain, response.last_output_gain(steps)), min(all_gain, response.all_outputs_gain(steps))
        return last_gain, all_gain

    def missing_data_error(self, steps: int, tolerance: float = 0.0) -> float:
        """Bound the error of the output, during a gap and after it, whose inputs are off by at most 1 in the 2-norm.

        Of a layer that does not contract for 100,000 steps afterwards.

        That is the cost of filling in missing samples, for each unit by which a sample that is filled in is wrong.
        Infinity if none is proved.

        Args:
            steps: Of the gap, 1 or more.
            tolerance: By how much the rate of a single layer may exceed 1, where rounding its matrix makes it do so.
        """
        return min(stack._missing_data_error(steps, tolerance) for stack in (self, *self.in_other_norms))

    def _missing_data_error(self, steps: int, tolerance: float) -> float:
        """Return :meth:`missing_data_error` in the layers' own norms."""
        is_lasting = len(self.step) == 1 and self.rate <= 1 + tolerance
        if not np.isfinite(self.input_gains).all() or not (self.is_contracting or is_lasting):
            return math.inf
        effect, largest_error = np.zeros(len(self.step)), 0.0
        for _ in range(steps):
            largest_error = float(self.output @ effect) + self.feedthrough
            effect = self.step @ effect + self.input_gains
        if is_lasting:
            # It fades, stays, or grows by what rounding has made of an orthogonal matrix.
            growth = max(self.rate, 1.0) ** _COUNTED_STEPS
            return min(max(largest_error, float(self.output @ effect)) * growth * (1 + 1e-9), self.total_gain())
        weights = np.linalg.solve(np.eye(len(self.step)) - self.step, np.maximum(effect, EPSILON))
        for _ in range(_COUNTED_STEPS):
            # step @ weights is less than weights: what is below a multiple of them stays below it.
            if float((effect / weights).max()) * float(self.output @ weights) <= largest_error:
                return min(largest_error * (1 + 1e-9), self.total_gain())
            largest_error = max(largest_error, float(self.output @ effect))
            effect = self.step @ effect
        return self.total_gain()

    def settling_time_in_balls(self, share: float) -> int | None:
        """Return :meth:`settling_time` of any two starts within the balls, in whichever norms they settle first.

        The share is of the smallest bound, in any norms, on what two starts could move the output at once.

        Args:
            share: Greater than 0, less than 1.
        """
        stacks = [
            stack
            for stack in (self, *self.in_other_norms)
            if stack.is_contracting and np.isfinite([stack.diameters, stack.output]).all()
        ]
        initial_effect = min((float(stack.output @ stack.diameters) for stack in stacks), default=math.inf)
        times = [stack.settling_time(share, stack.diameters, initial_effect=initial_effect) for stack in stacks]
        return shortest(times)

    def forgetting_time(self, share: float) -> int | None:
        """Return the steps after which two states at a distance of 1 move no output by more than a share.

        Distances are 2-norms of all that the bounds cover, in all layers together.

        Args:
            share: Greater than 0, less than 1.

        Returns:
            As of :meth:`settling_time`, in whichever norms it is smallest.
        """
        times = []
        for stack in (self, *self.in_other_norms):
            # In a layer's own norm a difference of 1 can be larger or smaller.
            sizes = np.array([_norm_factor(bound) for bound in stack.bounds])
            if stack.is_contracting and np.isfinite(stack.output).all() and np.isfinite(sizes).all():
                times.append(stack.settling_time(share, sizes, initial_effect=1.0))
        return shortest(times)

    def settling_time(
        self,
        share: float,
        start: Matrix | None = None,
        max_steps: int = 100_000_000,
        *,
        initial_effect: float | None = None,
    ) -> int | None:
        """Return the steps after which two starts move the output by at most a share of what they could at once.

        Args:
            share: Greater than 0, less than 1.
            start: ``(layers,)``, the initial sizes of the layers' differences; None for equal ones.
            max_steps: Where the search ends.
            initial_effect: What two starts could move the output at once; None for what follows from ``start``.

        Returns:
            The number, exact up to 100,000 steps and not too small beyond; None if none up to ``max_steps`` is proved.
        """
        if not self.is_contracting or (start is not None and not np.isfinite(start).all()):
            return None
        if not self.output.any() or (start is not None and not start.any()):
            return 1
        sizes = np.ones(len(self.step)) if start is None else np.maximum(start, EPSILON * start.max())
        allowed = share * (float(self.output @ sizes) if initial_effect is None else initial_effect)
        # step @ w = w - sizes: what is below a multiple of w stays below it for good, whatever rises in between.
        weights = np.linalg.solve(np.eye(len(self.step)) - self.step, sizes)
        threshold = allowed / float(self.output @ weights)
        # Powers of two steps, up to one that is enough; then bisection by the smaller ones.
        powers, total = [self.step], 1
        while float((powers[-1] @ sizes / weights).max()) > threshold:
            powers.append(powers[-1] @ powers[-1])
            total *= 2
            if total > max_steps:
                return None
        steps, power = 0, np.eye(len(self.step))
        for exponent in reversed(range(len(powers))):
            longer_power = power @ powers[exponent]
            if float((longer_power @ sizes / weights).max()) > threshold:
                steps, power = steps + 2**exponent, longer_power
        if steps > _COUNTED_STEPS:
            return steps + 1
        effect, last = sizes, 0
        for step in range(steps + 1):
            last = step if float(self.output @ effect) > allowed else last
            effect = self.step @ effect
        return last + 1


def longest(times: Iterable[int | None]) -> int | None:
    """Return the last of some times; None if one of them is None, which stands for no time."""
    found = list(times)
    return None if None in found else max(steps for steps in found if steps is not None)


def shortest(times: Iterable[int | None]) -> int | None:
    """Return the first of some times; None if there is none."""
    return min((steps for steps in times if steps is not None), default=None)


def cascade(
    cells: Sequence[StableCell],
    *,
    max_dt: float | None = None,
    inputs: Box | None = None,
    norms: Sequence[Sequence[GivenNorm]] | None = None,
    on_layer: Callable[[int], None] | None = None,
) -> Cascade:
    """Return what is proved of a stack of layers, each of which reads the output of the one below.

    Args:
        cells: From the input on.
        max_dt: Longest step of a stack for irregular time, in regular ones; None if all steps are regular. Rates are
            then over the time of a regular step, and gains are those of a largest difference, not of sums of squares.
        inputs: Range of the first layer's inputs; those of the layers above follow from the balls below them. None for
            inputs of any size.
        norms: Of each layer, to take in place of a search (:func:`stablernn.bounds.lure.given_norms`); None to search.
        on_layer: Called with the index of each layer before it is bounded, which can take seconds.
    """
    bounds: tuple[StepBound, ...] = ()
    # Searches decompose thousands of small matrices, which takes several times as long on many threads as on one. On
    # one, the last digits of a bound do not depend on the machine's cores either.
    with threadpool_limits(1, user_api="blas"):
        for number, cell in enumerate(cells):
            if on_layer is not None:
                on_layer(number)
            with nullcontext() if norms is None else given_norms(norms[number]):
                bound = _layer_bound(cell, max_dt, inputs)
            bounds = (*bounds, bound)
            inputs = None if inputs is None else _output_range(cell, bound)
    # Norms end with the plainest. A layer of which no search found a better one has fewer, and keeps its first.
    others = [
        tuple(
            replace(bound.other_norms[-number], balls=bound.balls) if number <= len(bound.other_norms) else bound
            for bound in bounds
        )
        for number in range(1, 1 + max(len(bound.other_norms) for bound in bounds))
    ]
    return replace(_combined(cells, bounds), in_other_norms=tuple(_combined(cells, other) for other in others))


def _combined(cells: Sequence[StableCell], bounds: tuple[StepBound, ...]) -> Cascade:
    """Return the cascade of some bounds of the layers."""
    diameters = np.array([_diameter(cell, bound) for cell, bound in zip(cells, bounds, strict=True)])
    step, input_gains = np.zeros((len(bounds), len(bounds))), np.zeros(len(bounds))
    # The input of a layer differs by at most ``state_effect @ e + input_effect * d``.
    state_effect, input_effect = np.zeros(len(bounds)), 1.0
    for depth, bound in enumerate(bounds):
        step[depth] = _scaled(bound.gain, state_effect)
        step[depth, depth] += bound.rate
        input_gains[depth] = _scaled(bound.gain, np.array([input_effect]))[0]
        feedthrough = bound.output_input_gain
        state_effect = _scaled(bound.output_gain, step[depth]) + _scaled(feedthrough, state_effect)
        input_effect = float(_scaled(bound.output_gain, input_gains[[depth]])[0]) + feedthrough * input_effect
    return Cascade(bounds, step, input_gains, state_effect, input_effect, diameters)


def _layer_bound(cell: StableCell, max_dt: float | None, inputs: Box | None) -> StepBound:
    """Return the cell's bound; an empty one if float64 cannot decompose its matrices."""
    try:
        if max_dt is None:
            return cell.step_bound() if inputs is None else _bound_within(cell, inputs)
        bound = cell.irregular_bound()
        return bound if bound.norm is not None or bound.balls else replace(bound, hypotheses=_regular_only(max_dt))
    except np.linalg.LinAlgError:
        # Products of huge weights overflow, and numpy raises for what is not finite.
        return StepBound(hypotheses=(Hypothesis("matrices too large for float64 to decompose", math.inf, 0.0),))


def _bound_within(cell: StableCell, inputs: Box) -> StepBound:
    """Return the bound for inputs within a box, with the rate for all inputs if no smaller one is found."""
    bound = cell.step_bound_within(inputs)
    if type(cell).step_bound_within is StableCell.step_bound_within:
        return bound
    free = cell.step_bound()
    # Weights of coordinates are the result of a search, which may end at better ones without the range.
    return bound if bound.rate <= free.rate else replace(free, balls=bound.balls)


def _output_range(cell: StableCell, bound: StepBound) -> Box | None:
    """Return the range of a layer's output, its first state tensor; None if it has no ball."""
    name, size = cell.state_names[0], cell.state_sizes[0]
    for ball in bound.balls:
        if ball.state == name:
            # The infinity norm is at most the 2-norm.
            return ball.box or Box.around_zero(size, ball.radius)
    return None


def _regular_only(max_dt: float) -> tuple[Hypothesis, ...]:
    """Return the failing condition of a cell of which only regular steps are bounded."""
    # A step may have any length from 0 on.
    return (Hypothesis("regular steps: largest abs(dt - 1)", max(1.0, max_dt - 1), 0.0),)


def _diameter(cell: StableCell, bound: StepBound) -> float:
    """Return at least the size of the difference of two states in the balls; infinity if there are none."""
    balls = [ball for name in bound.covers for ball in bound.balls if ball.state == name]
    if bound.norm is None or len(balls) < len(bound.covers):
        return math.inf
    smallest_weight = 1.0 if bound.weights is None else float(bound.weights.min())
    if bound.norm == "linf" and all(ball.norm == "linf" for ball in balls):
        return 2 * max(ball.radius for ball in balls) / smallest_weight
    sizes = dict(zip(cell.state_names, cell.state_sizes, strict=True))
    # A cube of radius r and n dimensions lies in a 2-norm ball of radius r sqrt(n).
    radii = [ball.radius * (math.sqrt(sizes[ball.state]) if ball.norm == "linf" else 1.0) for ball in balls]
    longest = 2 * math.hypot(*radii) * (1 + 4 * EPSILON)
    if bound.norm == "linf":
        return longest / smallest_weight
    return longest * (1.0 if bound.metric is None else norm_upper_bound(bound.metric))


def _total_gain(bound: StepBound) -> float:
    """Return the sum of the effects of an input on the output over any time, of a layer that contracts."""
    totals = [
        norm.output_gain * norm.gain / (1 - norm.rate) + norm.output_input_gain
        for norm in (bound, *bound.other_norms)
        if norm.rate < 1
    ]
    if bound.impulse_response is not None:
        totals.append(bound.impulse_response.total_gain)
    return min(totals)


def _response_norms(bound: StepBound, steps: int) -> Matrix:
    """Return at least the effects of an input on the output k steps later, ``(steps,)``: the least of all norms."""
    if bound.impulse_response is not None:
        return bound.impulse_response.norms(steps)
    responses = []
    for norm in (bound, *bound.other_norms):
        # A rate above 1 overflows over a long sequence, and infinity times 0 is NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            response = norm.output_gain * norm.gain * np.power(norm.rate, np.arange(steps, dtype=np.float64))
        response[0] += norm.output_input_gain
        responses.append(response)
    # What is no number bounds nothing, and infinity takes its place.
    smallest: Matrix = np.min(np.nan_to_num(responses, nan=math.inf, posinf=math.inf), axis=0)
    return smallest


def _scaled(factor: float, vector: Matrix) -> Matrix:
    """Return a product in which 0 times infinity is 0."""
    with np.errstate(invalid="ignore"):
        return np.where((vector == 0) | (factor == 0), 0.0, factor * vector)


def _norm_factor(bound: StepBound) -> float:
    """Return the largest size, in the norm of a bound, of a difference whose 2-norm is 1."""
    if bound.metric is not None:
        return norm_upper_bound(bound.metric)
    # No coordinate exceeds the 2-norm.
    return 1.0 if bound.weights is None else 1 / float(bound.weights.min())
