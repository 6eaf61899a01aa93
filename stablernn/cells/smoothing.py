"""Exponential smoothing by a bank of discounted regressions: Brown, "Smoothing, Forecasting and Prediction of Discrete
Time Series", 1963; damped trends: Gardner and McKenzie, "Forecasting trends in time series", Management Science, 1985.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stablernn.cells._base import StableCell, State, Weights, check_at_least, check_whole_number, empty_parameter
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
    guarantee="levels, slopes and seasons are discounted sums and forget by construction; no rate is proved",
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
    state is that of simple smoothing and of Brown's and Holt's methods. Sums are divided by the sums of their weights,
    so that the first forecasts are those of plain means and lines: nothing is initialized, and a short series is
    forecast from what it has. A seasonal term is the discounted mean of distances from the mean of the season before,
    which a trend moves alike at all times of the season; terms are centered, so that they hold no level.

    Every member's absolute one-step errors are summed in the state. The weight of a member is its likelihood: after a
    few steps the best ones take it all, in each series, those never seen in training included. A missing value changes
    no sum and is a step in time.

    Guarantee:
        Sums of values are discounted, and forget at their discounts; the mixing weights are a function of sums of
        errors. The product of both has no Lipschitz constant for all states: no rate is proved.

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

    state_names = ("forecast", "history", "seasonal", "seen", "weights", "sums", "errors", "count")
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
            gains * self.season,
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

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        channels, gains, season = self.input_size, self.gains, self.season
        levels = len(DISCOUNTS)
        shapes: list[tuple[int, ...]] = [(-1,), (season,), (gains, season), (1 + gains, season)]
        shapes += [(3, levels), (2, 1 + gains, levels), (-1,), (1,)]
        _, history, seasonal, seen, moments, sums, errors, count = (
            torch.unflatten(tensor, -1, (channels, *shape)) for tensor, shape in zip(state, shapes, strict=True)
        )
        # (batch, channels, 1)
        observed = (~torch.isnan(drive)).to(drive.dtype)[..., None]
        value = torch.where(observed > 0, drive[..., None], 0.0)
        terms = self._terms(seasonal, seen)
        errors = self._errors(weights, value, observed, terms, moments, sums, errors)
        moments, sums = self._levels(weights, value, observed, terms, moments, sums)
        count = count + torch.where(count > 0, 1.0, observed)
        history = torch.cat([history[..., 1:], value], dim=-1)
        if gains:
            seasonal, seen = self._seasons(weights, history, observed, seasonal, seen, count)
        terms = self._terms(seasonal, seen)
        forecast = self._forecast(weights, terms, moments, sums, errors)
        after = (forecast, history, seasonal, seen, moments, sums, errors, count)
        return tuple(tensor.flatten(1) for tensor in after)

    def _terms(self, seasonal: Tensor, seen: Tensor) -> Tensor:
        """Return centered seasonal terms, those of no season first, ``(batch, channels, 1 + gains, season)``."""
        weight = seen[..., 1:, :]
        is_observed = torch.sign(weight)
        terms = seasonal / torch.where(weight > 0, weight, 1.0)
        center = terms.sum(dim=-1, keepdim=True) / is_observed.sum(dim=-1, keepdim=True).clamp_min(1.0)
        return torch.cat([torch.zeros_like(seen[..., :1, :]), (terms - center) * is_observed], dim=-2)

    def _members(self, moments: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return level and slope of the members, ``(batch, channels, trends, 1 + gains, levels)``, the latter not of
        each level."""
        weight, first, second = (moments[..., index, :] for index in range(3))
        weight = torch.where(weight > 0, weight, 1.0)
        age = first / weight
        spread = second / weight - age * age + SLOPE_PENALTY / weight
        mean = sums[..., 0, :, :] / weight[..., None, :]
        slope = (mean * age[..., None, :] - sums[..., 1, :, :] / weight[..., None, :]) / spread[..., None, :]
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
        discount = weights[0]
        # What a missing value leaves keeps its weight: a discount of almost 0 would lose the level.
        retention = torch.where(observed > 0, discount, 1.0)
        weight, first, second = (moments[..., index, :] for index in range(3))
        moments = torch.stack(
            [retention * weight + observed, retention * (first + weight), retention * (second + 2 * first + weight)],
            dim=-2,
        )
        deviation = observed[..., None] * (value[..., None] - terms[..., :1])
        plain, aged = sums[..., 0, :, :], sums[..., 1, :, :]
        retention = retention[..., None, :]
        return moments, torch.stack([retention * plain + deviation, retention * (aged + plain)], dim=-3)

    def _seasons(
        self, weights: Weights, history: Tensor, observed: Tensor, seasonal: Tensor, seen: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the seasonal sums and their weights after a value, turned on by one step."""
        gain = weights[1][:, None]
        flags = torch.cat([seen[..., :1, 1:], observed[..., None]], dim=-1)
        mean = history.sum(dim=-1, keepdim=True) / flags.sum(dim=-1).clamp_min(1.0)
        distance = (flags[..., 0, :] * (history - mean))[..., None, :]
        is_first = count[..., None] == self.season
        is_later = (count[..., None] > self.season).to(gain) * observed[..., None]
        last = (1 - gain * is_later) * seasonal[..., :1] + gain * is_later * distance[..., -1:]
        weight = (1 - gain * is_later) * seen[..., 1:, :1] + gain * is_later
        rotated_terms = torch.cat([seasonal[..., 1:], last], dim=-1)
        rotated_weights = torch.cat([seen[..., 1:, 1:], weight], dim=-1)
        # All terms of the first season at once, when it is complete.
        start = FIRST_SEASON * gain
        rotated_terms = torch.where(is_first, start * distance, rotated_terms)
        rotated_weights = torch.where(is_first, start * flags, rotated_weights)
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
        trend = (slopes[..., None, :] * weights[2]).sum(dim=-1)
        by_gain = share.transpose(-3, -2).flatten(-2).sum(dim=-1)
        season = (terms.transpose(-2, -1) * by_gain[..., None, :]).sum(dim=-1)
        repeats = math.ceil(self.hidden_size / self.season)
        ahead = torch.cat([season] * repeats, dim=-1)[..., : self.hidden_size]
        return (share * level).flatten(-3).sum(dim=-1, keepdim=True) + trend + ahead
