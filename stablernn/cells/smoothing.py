"""Exponential smoothing by a bank of discounted regressions: Brown, "Smoothing, Forecasting and Prediction of Discrete
Time Series", 1963; damped trends: Gardner and McKenzie, "Forecasting trends in time series", Management Science, 1985.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.step_bound import Ball, StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_at_least,
    check_whole_number,
    empty_parameter,
    float64,
)
from stablernn.cells._catalog import register_cell

DISCOUNTS = (0.02, 0.3, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99)
"""Weight of a value relative to the one after it in a level."""
GAINS = (0.1, 0.3, 0.6)
"""Weight of the latest season in a seasonal term."""
TRENDS = ((0, 0.0, 1.0), (7, 0.5, 1.0), (7, 1.0, 1.0), (5, 1.0, 0.9), (5, 1.0, 0.98), (3, 1.0, 0.85))
"""Place of a slope's discount among :data:`DISCOUNTS`, share of the slope that is added, and damping of it a step. No
trend; half the slope of a line, as in the Theta method (Hyndman and Billah 2003); all of it; three damped ones."""
ERROR_DISCOUNT = 0.995
"""Weight of a one-step error relative to the one after it."""
FIRST_SEASON = 0.5
"""Weight of the seasonal terms of the first season relative to later ones: a trend still tilts them."""
SLOPE_PENALTY = 0.5
"""Weight of a slope of zero in each regression, in squared steps."""
LEAST_ERROR = 1e-6
"""Error below which members are alike, in units of the input."""
MOST_AGE = 1000.0
"""Mean age of the values at which a gap ends the extrapolation of a slope, in steps."""
_ROUNDINGS = 256
"""More than the roundings of one step of a discounted mean or sum."""
_SLOPE_STEPS = 100
"""Values up to which the largest slope is found one by one."""


class SmoothingWeights(NamedTuple):
    discount: Tensor
    """(levels,), within 0 and 1."""
    gain: Tensor
    """(seasonal terms,), within 0 and 1."""
    growth: Tensor
    """Steps of a slope that each step ahead adds, (hidden, trends)."""


@register_cell(
    "smoothing",
    title="exponential smoothing: a bank of levels, damped trends and seasons, mixed by their one-step errors",
    paper="Brown: Smoothing, Forecasting and Prediction of Discrete Time Series (1963)",
    year=1963,
    guarantee="bounded by construction for inputs within a range; observed values are forgotten, a gap forgets nothing",
    equation=(
        "d = x - mean(last season); s_j <- s_j + g (d - s_j); z = x - s_j; level, slope: regression of z on time with "
        "weights a^age; y = sum_k w_k (level_k + growth_k slope_k + s_k), w ~ exp(-n log mean |one-step error|)"
    ),
    paper_source=(
        "one discount for level and slope, and constants chosen by hand; here a slope has its own discount, and "
        "members are mixed by their likelihood under errors of a Laplace distribution."
    ),
    training={"practical": {"lr": 0.001}, "paper": {"lr": 0.001}},
)
class SmoothingCell(StableCell):
    r"""A bank of exponential smoothing methods, whose forecasts are mixed by their one-step errors so far.

    .. math::
        (\ell, b) = \arg\min \sum_i a^{i} (z_{t-i} - \ell + i b)^2, \quad
        \hat y_{t+h} = \sum_k w_k (\ell_k + (\phi_k + ... + \phi_k^h) b_k + s_{k, (t + h) \bmod m})

    Levels are discounted means, and slopes discounted regressions on time, of values without their season. Their steady
    state is that of simple smoothing and of Brown's and Holt's methods. Means are over the weights so far, so that the
    first forecasts are those of plain means and lines: nothing is initialized, and a short series is forecast from what
    it has. A seasonal term is the discounted mean of distances from the mean of the season before, which a trend moves
    alike at all times of the season; terms are centered, so that they hold no level.

    Every member's absolute one-step errors are summed in the state. The weight of a member is its likelihood: after a
    few steps the best ones take it all, in each series, those never seen in training included. A missing value is a
    step in time, up to a mean age of 1,000 steps, and changes nothing else.

    Guarantee:
        For inputs within a range every state is bounded: means of values lie between values, a slope has a penalty, the
        forecast is a mean over the members, and sums of errors are discounted. Under the same observed values states
        from any two starts approach; their rate in the long run is the slowest of the discounts. A missing value
        forgets nothing, so that there is no rate for all inputs. Mixing weights are functions of errors with slopes of
        up to 1 / ``LEAST_ERROR``, so that this rate says nothing of the first steps.

    Args:
        input_size: Series, which do not act on each other.
        hidden_size: Steps ahead.
        season: Steps of a season; None or 1: no seasonal terms.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``, NaN where missing
        - state: forecast ``(batch, input_size * hidden_size)``, channel by channel, and the sums; without ``batch`` for
          one; zeros when omitted
        - output: the next forecast and sums

    Raises:
        ValueError: If ``season`` is no whole number of 1 or more.

    Example:
        >>> forecast, *sums = SmoothingCell(input_size=1, hidden_size=12, season=4)(torch.zeros(2, 1))
        >>> forecast.shape
        torch.Size([2, 12])

    References:
        Hyndman, Akram and Archibald, "The admissible parameter space for exponential smoothing models", 2008: seasonal
        terms that are not centered have the eigenvalue 1.
    """

    state_names = ("forecast", "history", "seasonal", "seasonal_weights", "weights", "sums", "errors", "count")
    is_fixed = True
    is_forecast = True
    takes_missing = True

    def __init__(self, input_size: int, hidden_size: int, *, season: int | None = None) -> None:
        super().__init__(input_size, hidden_size)
        check_whole_number(self, "season", season)
        self.season = 1 if season is None else int(season)
        check_at_least(self, 1, season=self.season)
        self.gains = len(GAINS) if self.season > 1 else 0
        # Logits of the discounts of the levels, then of the gains of the seasonal terms.
        self.constants = empty_parameter(len(DISCOUNTS) + len(GAINS))
        growth = [
            [share * sum(damping**step for step in range(1, ahead + 2)) for _, share, damping in TRENDS]
            for ahead in range(hidden_size)
        ]
        self.growth = growth
        self.reset_parameters()

    @property
    def members(self) -> int:
        """Number of methods."""
        return (1 + self.gains) * len(DISCOUNTS) * len(TRENDS)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        gains, levels = self.gains, len(DISCOUNTS)
        sizes = (
            self.hidden_size,
            self.season,
            # Without a season one zero: no runtime takes an empty state.
            max(1, gains) * self.season,
            (1 + gains) * self.season,
            3 * levels,
            2 * (1 + gains) * levels,
            self.members + 1,
            1,
        )
        return tuple(self.input_size * size for size in sizes)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.constants.copy_(torch.logit(torch.tensor([*DISCOUNTS, *GAINS])))

    def materialize(self) -> SmoothingWeights:
        constants = torch.sigmoid(self.constants)
        return SmoothingWeights(
            constants[: len(DISCOUNTS)], constants[len(DISCOUNTS) :], constants.new_tensor(self.growth)
        )

    def drive(self, x: Tensor) -> Tensor:
        return x

    def step_bound_within(self, inputs: Box) -> StepBound:
        constants = float64(torch.cat(self.materialize()[:2]))
        discounts, gains = constants[: len(DISCOUNTS)], constants[len(DISCOUNTS) :][: self.gains]
        # Of each discounted mean or sum the share that a step renews, to which rounding is relative.
        renewals = [*(1 - discounts), *gains, 1 - ERROR_DISCOUNT]
        rounding = _ROUNDINGS * FLOAT32_EPSILON / max(min(renewals), FLOAT32_EPSILON)
        if not inputs.is_finite or rounding >= 1:
            return StepBound()
        largest = float(inputs.modulus.max())
        width = float((inputs.upper - inputs.lower).max()) + rounding * largest
        # A centered term is the difference of two distances of values from a mean of values.
        term = 2 * width if self.gains else 0.0
        level, deviation = largest + term, width / 2 + term
        slope = deviation * max(_largest_slope(float(discounts[place])) for place, share, _ in TRENDS if share)
        start, growth = level + slope * MOST_AGE + term, float(np.max(self.growth[-1]))
        error = largest + start + slope * float(np.max(self.growth[0]))
        weight = 1 / (1 - float(discounts.max()))
        # Of two bounds, those of ages and those of values, each the product of a weight and a square.
        spread = weight * (MOST_AGE + 1) ** 2
        radii = {
            "forecast": start + slope * growth,
            "history": largest,
            "seasonal": width,
            "seasonal_weights": 1.0,
            "weights": spread,
            "sums": max(level, deviation * math.sqrt(weight * spread)),
            "errors": max(1.0, error) / (1 - ERROR_DISCOUNT),
            "count": self.season + 1.0,
        }
        forgetting = [*discounts, *((1 - gains) ** (1 / self.season)), ERROR_DISCOUNT]
        return StepBound(
            balls=tuple(Ball(name, "linf", radius * (1 + rounding)) for name, radius in radii.items()),
            figures={"rate at which observed values are forgotten": float(max(forgetting))},
        )

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        channels, gains, season = self.input_size, self.gains, self.season
        levels = len(DISCOUNTS)
        shapes: list[tuple[int, ...]] = [(-1,), (season,), (max(1, gains), season), (1 + gains, season)]
        shapes += [(3, levels), (2, 1 + gains, levels), (-1,), (1,)]
        _, history, seasonal, seasonal_weights, moments, sums, errors, count = (
            torch.unflatten(tensor, -1, (channels, *shape)) for tensor, shape in zip(state, shapes, strict=True)
        )
        # (batch, channels, 1)
        observed = (~torch.isnan(drive)).to(drive.dtype)[..., None]
        value = torch.where(observed > 0, drive[..., None], 0.0)
        terms = self._terms(seasonal, seasonal_weights)
        errors = self._errors(weights, value, observed, terms, moments, sums, errors)
        moments, sums = self._levels(weights, value, observed, terms, moments, sums)
        # Nothing depends on how much later than the first season it is.
        count = (count + torch.where(count > 0, 1.0, observed)).clamp_max(season + 1.0)
        history = torch.cat([history[..., 1:], value], dim=-1)
        if gains:
            seasonal, seasonal_weights = self._seasons(weights, history, observed, seasonal, seasonal_weights, count)
        terms = self._terms(seasonal, seasonal_weights)
        forecast = self._forecast(weights, terms, moments, sums, errors)
        after = (forecast, history, seasonal, seasonal_weights, moments, sums, errors, count)
        return tuple(tensor.flatten(1) for tensor in after)

    def _terms(self, seasonal: Tensor, seasonal_weights: Tensor) -> Tensor:
        """Return centered seasonal terms, those of no season first, ``(batch, channels, 1 + gains, season)``."""
        none = torch.zeros_like(seasonal_weights[..., :1, :])
        if not self.gains:
            return none
        return torch.cat([none, seasonal - _sum(seasonal)[..., None] / self.season], dim=-2)

    def _members(self, moments: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return level and slope of the members, ``(batch, channels, trends, 1 + gains, levels)``, the latter not of
        each level."""
        _, age, spread = moments.unbind(dim=-2)
        mean, covariance = sums.unbind(dim=-3)
        slope = -covariance / (spread + SLOPE_PENALTY)[..., None, :]
        # (batch, channels, trends, 1 + gains, 1)
        shared = torch.stack([slope[..., place] * float(share > 0) for place, share, _ in TRENDS], dim=-2)[..., None]
        return mean[..., None, :, :] + shared * age[..., None, None, :], shared

    def _errors(
        self,
        weights: Weights,
        value: Tensor,
        observed: Tensor,
        terms: Tensor,
        moments: Tensor,
        sums: Tensor,
        errors: Tensor,
    ) -> Tensor:
        """Return the discounted sums of absolute one-step errors, and of how many they are."""
        level, slope = self._members(moments, sums)
        ahead = level + slope * weights[2][0, :, None, None] + terms[..., None, :, :1]
        distance = (value[..., None, None] - ahead).abs().flatten(-3)
        # Before the first value there is no forecast.
        is_scored = observed * torch.sign(moments[..., 0, :1])
        one = torch.cat([distance, torch.ones_like(value)], dim=-1)
        return torch.where(is_scored > 0, ERROR_DISCOUNT * errors + one, errors)

    def _levels(
        self, weights: Weights, value: Tensor, observed: Tensor, terms: Tensor, moments: Tensor, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the moments of the ages of values, weight, mean and sum of squared distances, and of values without
        their season mean and sum of products with the ages, after a value of age 0."""
        weight, age, spread = moments.unbind(dim=-2)
        mean, covariance = sums.unbind(dim=-3)
        older, age = weights[0] * weight, age + 1.0
        total = older + 1.0
        share = older / total
        deviation = value[..., None] - terms[..., :1] - mean
        # A gap discounts nothing: a discount of almost 0 would lose the level.
        is_observed = observed > 0
        moments = torch.stack(
            [
                torch.where(is_observed, total, weight),
                torch.where(is_observed, share * age, age).clamp_max(MOST_AGE),
                torch.where(is_observed, weights[0] * spread + share * age * age, spread),
            ],
            dim=-2,
        )
        share, total = (share * age)[..., None, :], total[..., None, :]
        moved = torch.stack([mean + deviation / total, weights[0] * covariance - share * deviation], dim=-3)
        return moments, torch.where(is_observed[..., None, None], moved, sums)

    def _seasons(
        self,
        weights: Weights,
        history: Tensor,
        observed: Tensor,
        seasonal: Tensor,
        seasonal_weights: Tensor,
        count: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the seasonal means and their weights after a value, turned on by one step."""
        gain = weights[1][:, None]
        flags = torch.cat([seasonal_weights[..., :1, 1:], observed[..., None]], dim=-1)
        mean = _sum(history)[..., None] / _sum(flags).clamp_min(1.0)
        distance = (flags[..., 0, :] * (history - mean))[..., None, :]
        is_first = count[..., None] == self.season
        is_later = (count[..., None] > self.season).to(gain) * observed[..., None]
        added = gain * is_later
        weight = (1 - added) * seasonal_weights[..., 1:, :1] + added
        last = seasonal[..., :1] + added / torch.where(weight > 0, weight, 1.0) * (
            distance[..., -1:] - seasonal[..., :1]
        )
        rotated_terms = torch.cat([seasonal[..., 1:], last], dim=-1)
        rotated_weights = torch.cat([seasonal_weights[..., 1:, 1:], weight], dim=-1)
        # All terms of the first season at once, when it is complete.
        rotated_terms = torch.where(is_first, distance, rotated_terms)
        rotated_weights = torch.where(is_first, FIRST_SEASON * gain * flags, rotated_weights)
        return rotated_terms, torch.cat([flags, rotated_weights], dim=-2)

    def _forecast(self, weights: Weights, terms: Tensor, moments: Tensor, sums: Tensor, errors: Tensor) -> Tensor:
        """Return the mixed forecast, ``(batch, channels, hidden)``."""
        level, slope = self._members(moments, sums)
        count = errors[..., -1:]
        mean = errors[..., :-1] / count.clamp_min(1.0)
        share = torch.softmax(-count * torch.log(mean + LEAST_ERROR), dim=-1)
        share = torch.unflatten(share, -1, tuple(level.shape[-3:]))
        # Sums over the last axis alone: those over others depend on the size of the batch in their last bits.
        slopes = (share * slope).flatten(-2).sum(dim=-1)
        trend = _sum(slopes[..., None, :] * weights[2])
        by_gain = share.transpose(-3, -2).flatten(-2).sum(dim=-1)
        season = (terms.transpose(-2, -1) * by_gain[..., None, :]).sum(dim=-1)
        repeats = math.ceil(self.hidden_size / self.season)
        ahead = torch.cat([season] * repeats, dim=-1)[..., : self.hidden_size]
        return (share * level).flatten(-3).sum(dim=-1, keepdim=True) + trend + ahead


def _sum(values: Tensor) -> Tensor:
    """Return the sums over the last axis.

    They are padded with zeros to whole vector registers: the order in which others are added up depends on where a row
    begins in memory, and so on the rows before it.
    """
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % 8)).sum(dim=-1)


def _largest_slope(discount: float) -> float:
    """Return the largest modulus of a slope of values that differ by at most 1 from a number.

    By the inequality of Cauchy and Schwarz it is at most ``sqrt(weight * spread) / (spread + penalty)``. Gaps only make
    the spread of the ages larger.
    """
    weight = age = spread = largest = 0.0
    for step in range(_SLOPE_STEPS + 1):
        # The spread only grows with the number of values; all larger ones have at most the weight of any number.
        total = 1 / (1 - discount) if step == _SLOPE_STEPS else discount * weight + 1
        share = discount * weight / total
        spread = discount * spread + share * (age + 1) ** 2
        weight, age = total, share * (age + 1)
        root = math.sqrt(max(spread, SLOPE_PENALTY))
        largest = max(largest, math.sqrt(weight) * root / (root * root + SLOPE_PENALTY))
    return largest
