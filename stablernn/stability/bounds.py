"""What can be proved of one step of a cell, for all states and all inputs.

Two tools do nearly all of it. :func:`sector_bound` is for steps that are linear but for nonlinearities with slopes
within 0 to 1 (tanh, ReLU, a shrinkage), written as a Lur'e system; it searches a quadratic form by which the step
contracts and checks a matrix inequality. :func:`gated_bound` is for gates, where products of states occur: it takes
bounds on the rows of the Jacobian and asks how a weighted largest coordinate shrinks.

Everything is computed in float64 on the matrices that the step uses, and rounded to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy import linalg, optimize
from torch import Tensor

from stablernn.stability._linear import UNIT, Matrix, norm_above, row_sum_above, slack, smallest_below

Norm = Literal["l2", "weighted-l2", "linf"]
FLOAT32 = float(np.finfo(np.float32).eps)
GELU_SLOPE = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi) + 4 * UNIT
"""The largest slope of GELU, at the root of 2, about 1.129; the smallest is 1 less this."""


def float64(tensor: Tensor) -> Matrix:
    """The numbers that a tensor holds, exactly."""
    return tensor.detach().cpu().double().numpy()


@dataclass(frozen=True)
class Hypothesis:
    """One condition of a proof.

    Attributes:
        name: What is compared, as a formula in the words of the cell's documentation.
        value: Its value.
        bound: What it must not exceed; with ``strict`` what it must be below.
        strict: Whether equality fails.
    """

    name: str
    value: float
    bound: float
    strict: bool = False

    @property
    def holds(self) -> bool:
        """Whether the condition is met; never for a value that is not a number."""
        return bool(self.value < self.bound if self.strict else self.value <= self.bound)


@dataclass(frozen=True)
class Ball:
    """A set that holds every state that can be reached from the origin, where sequences start, whatever the inputs.

    Attributes:
        state: The name of the state tensor, one of the cell's ``state_names``.
        norm: ``linf`` (largest coordinate) or ``l2``.
        radius: Its size; the centre is the origin.
    """

    state: str
    norm: Literal["l2", "linf"]
    radius: float


@dataclass(frozen=True)
class StepBound:
    """What is proved of one step.

    With ``e`` the difference of two states under one input and ``|e|`` its size in ``norm`` after multiplication by
    ``metric`` (l2) or division by ``weights`` (linf): a step makes of it at most ``rate * |e|``, and inputs that differ
    by ``d`` in the 2-norm add at most ``gain * d``.

    Attributes:
        covers: The state tensors that ``e`` is made of; the others are functions of these and the input.
        norm: Which norm; None where no rate is proved.
        rate: The factor; infinity where none is proved.
        gain: Of the input; infinity where none is proved.
        output_gain: At most the 2-norm of the change of the output (the first state tensor) for ``|e| = 1``.
        output_input_gain: The same for a change of the input of 2-norm 1, beside what goes by the state.
        metric: ``(n, n)``, in which norm ``weighted-l2`` is taken; None for the identity.
        weights: ``(n,)``, what coordinates are divided by in ``linf``; None for ones.
        balls: Sets that states stay in, one for each tensor of which that is known.
        hypotheses: What the proof rests on.
        local: Whether conditions on the Jacobian hold that say nothing of two states far apart.
        conditions: What papers ask for and what else is worth knowing, of which the rate is independent.
        figures: Further numbers that describe the step, by name.
    """

    covers: tuple[str, ...] = ()
    norm: Norm | None = None
    rate: float = math.inf
    gain: float = math.inf
    output_gain: float = math.inf
    output_input_gain: float = 0.0
    metric: Matrix | None = None
    weights: Matrix | None = None
    balls: tuple[Ball, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    local: bool = False
    conditions: tuple[Hypothesis, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sector:
    """A step ``h <- F h + G w + B x + c``, ``w = f(V h + D w + U x + d)``, with the slopes of ``f`` within 0 to 1.

    ``f`` acts coordinate by coordinate; or on groups of coordinates, where its Jacobian is symmetric with eigenvalues
    within 0 to 1, and no ``D`` is given.

    Attributes:
        F: ``(n, n)``.
        G: ``(n, q)``.
        V: ``(q, n)``.
        U: ``(q, m)``.
        D: ``(q, q)``, strictly lower triangular, so that ``w`` is computed in order; None for zeros.
        B: ``(n, m)``; None for zeros.
        c: ``(n,)``; None for zeros.
        reach: The largest modulus of ``f``, infinity where it has none.
    """

    F: Matrix
    G: Matrix
    V: Matrix
    U: Matrix
    D: Matrix | None = None
    B: Matrix | None = None
    c: Matrix | None = None
    reach: float = 1.0


def sector_bound(
    step: Sector,
    *,
    states: tuple[str, ...] = ("hidden",),
    output: int | None = None,
    hypotheses: tuple[Hypothesis, ...] = (),
    metrics: Sequence[Matrix] = (),
) -> StepBound:
    """The best rate that a few quadratic forms give, its input gain, and a ball where there is one.

    For differences of two states, ``w^T L (v - w) >= 0`` for ``L = l I``, ``l`` not negative. So a rate ``r`` in the
    norm ``|T e|`` is proved where, with ``P = T^T T``,

        [ r^2 P - F^T P F ,  -F^T P G - V^T L ;  .  ,  2 L - L D - D^T L - G^T P G ]  is positive semidefinite.

    Args:
        step: The step.
        states: The state tensors that ``h`` is made of, one after the other.
        output: How many of the first coordinates are the output; None for all.
        hypotheses: What else the proof rests on; where one fails nothing is proved.
        metrics: Further matrices ``T`` to try, of any scale.
    """
    if not all(one.holds for one in hypotheses):
        return StepBound(hypotheses=hypotheses)
    size = len(step.F)
    rate, metric = _best_multiplier(step.F, step.G, step.V, step.D, None, None)[0], None
    if rate > _least_rate(step) * (1 + 1e-6):
        for tried in [*_metrics(step), *(given / np.linalg.norm(given, 2) for given in metrics)]:
            form = _short(tried)
            if not smallest_below(form):
                continue
            proved, _ = _best_multiplier(step.F, step.G, step.V, step.D, form, form)
            if proved * (1 + 1e-6) < rate:
                rate, metric = proved, form
    gain, _ = _best_multiplier(
        np.zeros((size, step.U.shape[1])) if step.B is None else step.B, step.G, step.U, step.D, None, metric
    )
    return StepBound(
        covers=states,
        norm="l2" if metric is None else "weighted-l2",
        rate=rate,
        gain=gain,
        output_gain=1.0 if metric is None else norm_above(np.linalg.inv(metric)[:output]) * _inverse_error(metric),
        metric=metric,
        balls=_balls(step, states, rate, metric),
        hypotheses=hypotheses,
    )


def irregular(bound: StepBound) -> StepBound:
    """What holds of steps of any length, where a shorter step is a mean of the regular one and of the identity.

    A norm is convex: after ``dt`` of a regular step a difference is at most ``1 - dt (1 - rate)`` times as large. Over
    the time of a regular step, in parts of any lengths, that is at most ``exp(rate - 1)``, which is the rate given.
    No input moves a state further than in one regular step, and a ball that a regular step does not leave holds every
    mean of a state in it and of what the step makes of that.
    """
    return replace(bound, rate=math.exp(bound.rate - 1) * (1 + 4 * UNIT) if math.isfinite(bound.rate) else math.inf)


def sector_rate(step: Sector, metric: Matrix | None = None) -> float:
    """The rate that :func:`sector_bound` proves in one given norm ``|T e|``, the 2-norm for None."""
    return _best_multiplier(step.F, step.G, step.V, step.D, metric, metric)[0]


def largest_state(step: Sector, rate: float, metric: Matrix | None = None) -> float:
    """At least the 2-norm of every state that can be reached from the origin; infinity where inputs set no limit.

    Args:
        step: The step.
        rate: What :func:`sector_rate` proves of it.
        metric: In which norm.
    """
    (ball,) = _balls(step, ("",), rate, metric) or (Ball("", "l2", math.inf),)
    return ball.radius * (math.sqrt(len(step.F)) if ball.norm == "linf" else 1.0)


def sector_gain(F: Matrix, G: Matrix, V: Matrix, D: Matrix | None = None, *, metric: Matrix | None = None) -> float:
    """At least ``|F e + G w| / |T e|`` for differences ``w`` of neurons, ``f(V e + D w)`` as in :class:`Sector`.

    Args:
        F: ``(k, n)``.
        G: ``(k, q)``.
        V: ``(q, n)``.
        D: ``(q, q)``, strictly lower triangular; None for zeros.
        metric: ``T``, ``(n, n)``; None for the identity.
    """
    return _best_multiplier(F, G, V, D, metric, None)[0]


def factors_of(form: Matrix) -> list[Matrix]:
    """The matrix ``T`` with ``T^T T`` the symmetric part of a quadratic form; none where that is not positive."""
    try:
        return [np.linalg.cholesky((form + form.T) / 2).T.astype(np.float64)]
    except np.linalg.LinAlgError:
        return []


def dominance_bound(step: Sector, bound: StepBound) -> StepBound:
    """A bound of the largest coordinate, where that is a smaller rate than a given one above 1; else the given one.

    Each row of the Jacobian, ``F_i + s_i G_ii V_i`` with one slope ``s_i``, is longest at a slope of 0 or of 1. Where a
    step stays the same at slope 0 and the matrix is diagonally dominant, the rate is 1, which no quadratic form shows.

    Args:
        step: With a diagonal ``G``, and neither ``D`` nor ``B``.
        bound: What is proved of it otherwise.
    """
    if bound.norm is None or bound.rate <= 1:
        return bound
    lengths = np.diagonal(step.G)
    steepest = step.F + lengths[:, None] * step.V
    rows = np.concatenate([step.F, steepest])
    size = len(step.F)

    def rate(weights: Matrix) -> float:
        return row_sum_above(rows * weights[None] / np.tile(weights, 2)[:, None])

    weights = min((np.ones(size), _short(_perron(np.abs(steepest)))), key=rate)
    if rate(weights) * (1 + 1e-6) >= bound.rate:
        return bound
    return replace(
        bound,
        norm="linf",
        rate=rate(weights),
        gain=norm_above_rows(lengths[:, None] * step.U / weights[:, None]),
        output_gain=float(np.linalg.norm(weights)) * (1 + size * UNIT),
        metric=None,
        weights=None if (weights == 1).all() else weights,
    )


def gated_bound(
    image: Callable[[Matrix], Matrix],
    given: Matrix,
    *,
    covers: tuple[str, ...],
    output: slice,
    balls: tuple[Ball, ...] = (),
    hypotheses: tuple[Hypothesis, ...] = (),
) -> StepBound:
    """A rate from bounds on the moduli in each row of the Jacobian, which need not all be largest at once.

    For any positive weights ``w``, ``max_i image(w)_i / w_i`` bounds the factor by which a step changes
    ``max_i |e_i| / w_i``. Weights are searched.

    Args:
        image: Gives, for weights ``(n,)``, at least ``sum_j |d next_i / d state_j| w_j``, of each row ``i`` the largest
            over all states and inputs.
        given: ``(n,)``, at least the 2-norm of ``d next_i / d x``.
        covers: The state tensors that the ``n`` coordinates are, one after the other.
        output: Which coordinates are the output.
        balls: Where states can be.
        hypotheses: What else the proof rests on; where one fails no rate is proved.
    """
    if not all(one.holds for one in hypotheses) or not np.isfinite(image(np.ones(len(given)))).all():
        return StepBound(balls=balls, hypotheses=hypotheses)
    used = weights = np.ones(len(given))
    rate = _largest_ratio(image(used), used)
    # Coordinates that grow most get more weight, in strides of their own length: an excess can be tiny far from the
    # weights that remove it.
    for stride in np.geomspace(0.5, 0.002, 150):
        growth = image(weights) / weights
        spread = float(growth.max() - growth.min())
        if spread == 0:
            break
        weights = weights * (1 + stride * (growth - growth.min()) / spread)
        weights = np.maximum(weights / weights.max(), 1e-6)
        tried = _short(weights)
        ratio = _largest_ratio(image(tried), tried)
        if ratio < rate * (1 - 1e-6):
            used, rate = tried, ratio
    is_plain = bool((used == 1).all())
    return StepBound(
        covers=covers,
        norm="linf",
        rate=rate,
        gain=float((given / used).max()) * (1 + 4 * UNIT),
        output_gain=float(np.linalg.norm(used[output])) * (1 + len(used) * UNIT),
        weights=None if is_plain else used,
        balls=balls,
        hypotheses=hypotheses,
    )


def _short(form: Matrix) -> Matrix:
    """The nearest numbers of float32: any will do for a metric, and these are short to write down."""
    rounded: Matrix = form.astype(np.float32).astype(np.float64)
    return rounded


def _largest_ratio(image: Matrix, weights: Matrix) -> float:
    """At least the largest ratio, and 1 where none is above."""
    rate = float((image / weights).max()) * (1 + 4 * UNIT)
    return min(rate, 1.0) if (image <= weights).all() else rate


def largest_mix(kept: Matrix, replaced: Callable[[Matrix], Matrix], least: float = 0.0) -> Matrix:
    """At least ``s kept + (1 - s) replaced(s)`` for every share ``s`` from ``least`` to 1, coordinate by coordinate.

    Exactly ``kept`` where ``replaced(1)`` is smaller.

    Args:
        kept: ``(n,)``, not negative.
        replaced: Of shares ``(k, 1)`` what ``(k, n)`` is mixed in, not decreasing with the share.
        least: The smallest share, 0 to 1.
    """
    shares = np.linspace(least, 1, 257)[:, None]
    safe = 1 + 64 * len(kept) * UNIT
    # On a piece (1 - s) is largest at its start and what is mixed in at its end.
    excess = ((1 - shares[:-1]) * (replaced(shares[1:]) * safe - kept)).max(axis=0)
    return np.where(excess > 0, (kept + excess) * (1 + 4 * UNIT), kept)


def largest_bend(slope: Matrix, shift: Matrix) -> Matrix:
    """The largest of ``(1 - t^2) slope + t shift`` over ``t`` from 0 to 1, entry by entry, for entries not negative.

    With ``t`` the modulus of a tanh this is its slope beside what grows with its value.
    """
    inside = shift <= 2 * slope
    return np.where(inside, slope + shift * (shift / np.where(inside & (slope > 0), 4 * slope, 1.0)), shift)


def largest_gated(value: Matrix, change: Matrix) -> Matrix:
    """The largest of ``r value + r (1 - r) change`` over ``r`` from 0 to 1, entry by entry, for entries not negative.

    With ``r`` a sigmoid this is what it lets through beside what goes by its slope.
    """
    inside = value < change
    return np.where(inside, (value + change) ** 2 / np.where(inside, 4 * change, 1.0), value)


def norm_above_rows(matrix: Matrix) -> float:
    """At least the largest 2-norm of a row: how much a largest coordinate moves for an input of 2-norm 1."""
    if not matrix.size:
        return 0.0
    return float(row_norms(matrix).max())


def row_norms(matrix: Matrix) -> Matrix:
    """At least the 2-norm of each row."""
    norms: Matrix = np.linalg.norm(matrix, axis=1) * (1 + matrix.shape[1] * UNIT)
    return norms


def _least_rate(step: Sector) -> float:
    """What no norm proves less than: the largest spectral radius with all slopes at 0, or at 1."""
    inner = step.V if step.D is None else np.linalg.solve(np.eye(len(step.D)) - step.D, step.V)
    return max(float(np.abs(np.linalg.eigvals(one)).max()) for one in (step.F, step.F + step.G @ inner))


def _metrics(step: Sector) -> list[Matrix]:
    """Matrices ``T`` worth a try: the Lyapunov form of the middle of the sector, a diagonal one."""
    middle = step.F + step.G @ (step.V / 2)
    if step.D is not None:
        inner = np.linalg.solve(np.eye(len(step.D)) - step.D / 2, step.V)
        middle = step.F + step.G @ inner / 2
    found: list[Matrix] = []
    radius = float(np.abs(np.linalg.eigvals(middle)).max())
    for margin in (0.1, 0.5):
        scaled = middle / (radius + margin * max(1 - radius, 0.05))
        try:
            form = linalg.solve_discrete_lyapunov(scaled.T, np.eye(len(middle)))
            factor = np.linalg.cholesky((form + form.T) / 2).T
        except np.linalg.LinAlgError:
            continue
        found.append(factor / np.linalg.norm(factor, 2))
    bounded = np.abs(step.F) + np.abs(step.G) @ np.abs(step.V) if step.D is None else None
    if bounded is not None:
        left, right = _perron(bounded.T), _perron(bounded)
        found.append(np.diag(np.sqrt(left / right) / np.sqrt(left / right).max()))
    return found


def _perron(entries: Matrix) -> Matrix:
    """A positive vector close to the Perron vector of a non-negative matrix, its largest entry 1."""
    total = max(float(np.abs(entries).sum(axis=1).max()), UNIT)
    shifted = entries / total + np.full_like(entries, 1e-6 / len(entries))
    vector = np.ones(len(entries))
    for _ in range(200):
        following = shifted @ vector + 1e-3 * vector
        vector = following / following.max()
    return np.maximum(vector, 1e-6)


def _best_multiplier(
    F: Matrix, G: Matrix, V: Matrix, D: Matrix | None, before: Matrix | None, after: Matrix | None
) -> tuple[float, float]:
    """The least factor over multipliers ``L = l I``, and that ``l``; infinity where none proves anything."""
    outer = G if after is None else after @ G
    least = norm_above(outer) ** 2
    # No multiplier below half of it proves anything, unless neurons read one another.
    floor = 0.5 if D is None else 0.0

    def factor(exponent: float) -> float:
        value = _factor(F, G, V, D, before, after, least * (floor + math.exp(exponent)))
        # Too small a multiplier proves nothing; the search is to go on among larger ones.
        return value if math.isfinite(value) else 1e30 * (10 - exponent)

    if not least:
        return _factor(F, G, V, D, before, after, 1.0), 1.0
    best: Any = optimize.minimize_scalar(factor, bounds=(-7, 9), method="bounded", options={"xatol": 0.02})
    found = float(best.fun) if best.fun < 1e30 else math.inf, least * (floor + math.exp(float(best.x)))
    # Where V is a multiple of F^T P G, as of a gradient step, one multiplier cancels them: no search comes as close.
    cross = (F if after is None else after @ F).T @ outer
    level = -float((cross * V.T).sum()) / max(float((V * V).sum()), UNIT)
    return min(found, (_factor(F, G, V, D, before, after, level), level)) if level > least * floor else found


def _factor(
    F: Matrix, G: Matrix, V: Matrix, D: Matrix | None, before: Matrix | None, after: Matrix | None, multiplier: float
) -> float:
    """The least ``r`` of the matrix inequality for one multiplier, by its Schur complement."""
    Y, X = (F, G) if after is None else (after @ F, after @ G)
    corner = 2 * multiplier * np.eye(G.shape[1]) - X.T @ X
    if D is not None:
        corner = corner - multiplier * (D + D.T)
    side = Y.T @ X + multiplier * V.T
    values, vectors = np.linalg.eigh((corner + corner.T) / 2)
    lowest = (
        float(values[0]) - slack(X, X) - 8 * len(corner) * UNIT * multiplier * (2 + (0 if D is None else norm_above(D)))
    )
    if lowest <= 0:
        return math.inf
    # With every eigenvalue of the corner lowered by what rounding can have done, the complement only grows.
    half = (side @ vectors) / np.sqrt(values - (float(values[0]) - lowest))
    stacked: Matrix = np.concatenate([Y, half.T])
    if before is not None:
        stacked = stacked @ np.linalg.inv(before)
    sides = slack(Y, X) + multiplier * slack(V)
    spread = slack(stacked) + 2 * sides / math.sqrt(lowest) * (1.0 if before is None else _inverse_above(before))
    error = 1.0 if before is None else _inverse_error(before)
    return float(np.linalg.norm(stacked, 2)) * error + spread


def _inverse_above(matrix: Matrix) -> float:
    """At least the norm of the inverse."""
    return 1 / max(smallest_below(matrix), UNIT * norm_above(matrix))


def _inverse_error(matrix: Matrix) -> float:
    """By what factor the norm of a product with the computed inverse can be too small."""
    return 1 + 8 * len(matrix) * UNIT * norm_above(matrix) * _inverse_above(matrix)


def _balls(step: Sector, states: tuple[str, ...], rate: float, metric: Matrix | None) -> tuple[Ball, ...]:
    """What each state tensor stays in, from the origin: nothing where an input or a nonlinearity has no bound."""
    if not math.isfinite(step.reach) or (step.B is not None and step.B.any()):
        return ()
    pushed = step.G if metric is None else metric @ step.G
    constant = np.zeros(len(step.F)) if step.c is None else step.c
    moved = constant if metric is None else metric @ constant
    inverse = 1.0 if metric is None else _inverse_above(metric)
    push = norm_above(pushed) * step.reach * math.sqrt(step.G.shape[1]) + float(np.linalg.norm(moved))
    turned: Matrix = step.F if metric is None else metric @ step.F @ np.linalg.inv(metric)
    linear = norm_above(turned) * (1.0 if metric is None else _inverse_error(metric))
    widest = row_sum_above(step.G) * step.reach + float(np.abs(constant).max(initial=0.0))
    kept = row_sum_above(step.F)
    if kept < 1:
        return tuple(Ball(state, "linf", widest / (1 - kept)) for state in states)
    rest = min(linear, rate)
    if rest < 1:
        return tuple(Ball(state, "l2", inverse * push / (1 - rest)) for state in states)
    return ()
