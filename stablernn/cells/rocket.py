"""Pooled features of fixed kernels: Dempster, Schmidt, Webb, "MiniRocket: a very fast (almost) deterministic transform
for time series classification", KDD 2021, and "Hydra: competing convolutional kernels for fast and accurate time series
classification", DMKD 37, 2023; several channels as in the authors' code."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.step_bound import Ball, StepBound
from stablernn.cells._base import StableCell, State, Weights, check_at_least, check_whole_number, empty_parameter
from stablernn.cells._catalog import register_cell

GRID = 2**8
"""Steps of a scaled sample, which is rounded to multiples of 1 / GRID: sums of such numbers have no rounding error, in
any order, so that every engine and runtime decides alike on which side of a threshold they lie."""
LARGEST_SAMPLE = 64.0
"""Modulus at which a scaled sample is cut off. With at most MOST_CHANNELS channels of differences, and weights whose
moduli add up to 56 at most, a kernel's output is a whole number of less than 2^24 grid steps: float32 holds it."""
MOST_CHANNELS = 9
"""Channels that a kernel reads at most, as in the authors' code."""
MOST_STEPS = 2**22
"""Count of steps at which it is halved, and with it the weight of all steps so far: up to there a share times the count
is off by less than half, so that the number of hits comes back exactly."""
MOST_STATES = 2**14
"""Numbers in the state of a stream up to which the recommended memory grows: 64 kB."""
DEFAULT_MEMORY = 129
TAPS = 9
KERNELS = 84
"""Ways to choose three of nine taps."""
RIVALS = 7
"""Kernels that compete with each other: each for the largest output, and each for the least one."""
WEIGHT_SUM = 48
"""Sum of the moduli of a competing kernel's weights, before they are rounded to whole numbers, nine halves off at most.
"""
FIT_STEPS = 1024
"""Steps of training sequences at which the outputs of a group of kernels are computed to take thresholds from."""


class RocketWeights(NamedTuple):
    patterns: Tensor
    """The weights of the kernels with thresholds, -1 and 2, (TAPS, KERNELS)."""
    rivals: Tensor
    """Those of the kernels of each contest, and the same with the other sign, (contests, TAPS, 2 * RIVALS)."""
    channels: Tensor
    """1 for what a group or contest reads of a remembered sample, else 0, (groups + contests, 1, width)."""
    threshold: Tensor
    """Half way between two numbers of the grid, (features with thresholds,)."""


@register_cell(
    "rocket",
    title="MiniRocket and Hydra: shares of the steps at which fixed kernels exceed thresholds or rivals",
    paper="Dempster et al.: MiniRocket: A Very Fast (Almost) Deterministic Transform (KDD 2021)",
    year=2021,
    guarantee="every state stays within a ball by construction; a sample is never forgotten, its weight is 1/steps",
    equation=(
        "window <- last samples and differences, x; a_f = weighted sum of nine taps of the window at a distance; "
        "hit_f = a_f > threshold_f or >= those of six rivals; n <- n + 1; share_f <- share_f + (hit_f - share_f) / n"
    ),
    paper_source=(
        "9,996 features and kernels with and without padding, which would not be causal; here any number of features, "
        "half of them of competing kernels (Hydra, DMKD 2023), zeros before the first sample, and a ridge readout by "
        "leave-one-out as in the paper."
    ),
    training={"practical": {"lr": 0.001}, "paper": {"lr": 0.001}},
)
class RocketCell(StableCell):
    r"""Shares of the steps so far at which the outputs of fixed kernels exceed thresholds, or those of their rivals.

    .. math::
        a_f(t) = \sum_{j=0}^{8} w_{f, j} \sum_{c \in C(f)} x_c(t - d(f) (8 - j)), \quad
        p_f(t) = \frac{1}{t} \sum_{s \le t} \mathbf{1}[a_f(s) > b_f] \quad \text{or} \quad
        \frac{1}{t} \sum_{s \le t} \mathbf{1}[a_f(s) \ge a_g(s), g \in R(f)]

    Half of the features are of groups of 84 kernels with thresholds b, whose weights are three times 2 and six times
    -1. The others are of contests, each between seven kernels R of random whole weights: at every step one of them has
    the largest output, and one the least. Every second contest reads differences of successive samples. Each group and
    each contest has a distance of taps d (dilation), spread exponentially from 1 to what ``memory`` allows, and a
    random set of channels. Samples and differences before the first sample are zeros, the mean of scaled data.

    With more channels than groups and contests, the sum of each one's channels is remembered in place of the channels.
    Samples are rounded to multiples of 1/256 and cut off at 64, and thresholds lie half way between such numbers.
    Sums are then exact in float32: a step, a whole sequence and any runtime agree to the last bit.

    Nothing is trained by gradients. Thresholds are quantiles of the kernels' outputs on training sequences
    (:meth:`fit_inputs`), and ridge regression solves for the head.

    Guarantee:
        By construction all states are bounded: shares within 0 to 1, samples by 64 and sums of them by 576, their
        differences by twice as much, the count by 2^22, at which it is halved. Nothing contracts: after t steps a
        sample has the weight 1/t in every share, and an arbitrarily small change of a sample can change what a kernel
        exceeds. No rate is proved.

    Args:
        input_size: Channels.
        hidden_size: Features; 2,520 are 15 groups of all kernels and 90 contests.
        memory: Samples that the longest kernel spans at most, 9 or more; None: 129. A run takes the length of the
            longest training sequence, if the state then has at most 16,384 numbers.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: share ``(batch, hidden_size)``, steps ``(batch, 1)`` and history ``(batch, (memory - 1) * width)``, the
          last samples and their differences, with a width of twice ``input_size``, or of twice the number of groups and
          contests, whichever is less; without ``batch`` for one; zeros when omitted
        - output: the next share, steps and history

    Raises:
        ValueError: If ``memory`` is no whole number of 9 or more.

    Example:
        >>> share, steps, history = RocketCell(input_size=1, hidden_size=168, memory=20)(torch.zeros(2, 1))
        >>> share.shape, history.shape
        (torch.Size([2, 168]), torch.Size([2, 38]))

    References:
        The kernels, distances, quantiles and thresholds of the paper, and of its code the random sets of channels. Of
        the alternation between padded and shortened outputs only causal ones are left, and kernels of a group share
        their set of channels. Hydra's contests are counted at both ends, where it sums the largest outputs.
    """

    state_names = ("share", "steps", "history")
    is_fixed = True
    patterns: Tensor
    rivals: Tensor
    """Weights of the kernels of each contest, whole numbers, (contests, TAPS, RIVALS)."""
    taps: Tensor
    """Index in the window of each tap of each group and contest, int64 (groups * TAPS,), the latest last."""
    channels: Tensor
    """1 for the channels of each group and contest, else 0, (groups + contests, input_size)."""

    def __init__(self, input_size: int, hidden_size: int, *, memory: int | None = None) -> None:
        super().__init__(input_size, hidden_size)
        check_whole_number(self, "memory", memory)
        self.memory = DEFAULT_MEMORY if memory is None else int(memory)
        check_at_least(self, TAPS, memory=self.memory)
        self.groups = math.ceil(hidden_size / (2 * KERNELS))
        thresholds = min(hidden_size, self.groups * KERNELS)
        self.contests = math.ceil((hidden_size - thresholds) / (2 * RIVALS))
        self.distances = tap_distances(self.groups, self.memory) + tap_distances(self.contests, self.memory)
        self.threshold = empty_parameter(thresholds)
        patterns = torch.full((TAPS, KERNELS), -1.0)
        for kernel, taps in enumerate(itertools.combinations(range(TAPS), 3)):
            patterns[list(taps), kernel] = 2.0
        before = torch.tensor(self.distances)[:, None] * torch.arange(TAPS - 1, -1, -1)
        # These follow from sizes and options; the others are drawn.
        self.register_buffer("patterns", patterns, persistent=False)
        self.register_buffer("taps", (self.memory - 1 - before).flatten(), persistent=False)
        self.register_buffer("rivals", torch.empty(self.contests, TAPS, RIVALS))
        self.register_buffer("channels", torch.empty(self.groups + self.contests, input_size))
        self.reset_parameters()

    @property
    def channels_kept(self) -> int:
        """Channels that are remembered, or sums of them."""
        return min(self.input_size, self.groups + self.contests)

    @property
    def width(self) -> int:
        """Numbers of a remembered sample: the channels that are kept, and their differences."""
        return 2 * self.channels_kept

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, 1, (self.memory - 1) * self.width)

    def recommended_options(self, steps: int, channels: int) -> dict[str, int]:
        # All of the longest sequence, if the state of a stream stays small.
        most = (MOST_STATES - self.hidden_size) // (2 * min(channels, self.groups + self.contests))
        return {"memory": max(TAPS, min(steps, most))}

    def reset_parameters(self) -> None:
        # Each number of channels is half as likely as half of it.
        limit = math.log2(min(self.input_size, MOST_CHANNELS) + 1)
        counts = (2 ** (limit * torch.rand(len(self.channels)))).long()
        ranks = torch.rand_like(self.channels).argsort(dim=1).argsort(dim=1)
        with torch.no_grad():
            self.channels.copy_(ranks < counts[:, None])
            # Until they are fitted: the distribution of a kernel's outputs on white noise of variance 1.
            deviation = (18 * self.channels.sum(dim=1)).sqrt().repeat_interleave(KERNELS)[: len(self.threshold)]
            self.threshold.copy_(deviation * torch.randn(len(self.threshold)))
            weights = torch.randn_like(self.rivals)
            weights -= weights.mean(dim=1, keepdim=True)
            self.rivals.copy_(torch.round(WEIGHT_SUM * nn.functional.normalize(weights, p=1.0, dim=1)))

    @torch.no_grad()
    def fit_inputs(self, x: Tensor, lengths: Tensor) -> None:
        """Set thresholds to quantiles of the kernels' outputs at steps that are drawn from training sequences.

        Args:
            x: ``(batch, time, input_size)``, what the cell is to read.
            lengths: ``(batch,)``, steps from which on there is padding.
        """
        samples = nn.functional.pad(self.drive(x), (0, 0, self.memory - 1, 0))
        steps = (torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]).nonzero()
        # Multiples of the golden ratio less whole numbers, which fill the range of 0 to 1 evenly.
        numbers = torch.arange(len(self.threshold))
        levels = torch.frac((1 + numbers.double()) * (math.sqrt(5) - 1) / 2)
        ranks = (levels * FIT_STEPS).long().to(x.device)
        for group, features in enumerate(torch.split(numbers.to(x.device), KERNELS)):
            row, time = steps[torch.randint(len(steps), (FIT_STEPS,)).to(x.device)].T
            taps = self.taps[group * TAPS : (group + 1) * TAPS]
            # (FIT_STEPS, TAPS, channels_kept)
            tapped = samples[row[:, None], time[:, None] + taps]
            channels = self.read_channels()[group, 0, : self.channels_kept]
            outputs = (tapped @ channels @ self.patterns).sort(dim=0).values
            # Numbers of the grid, which materialize() takes half a step up.
            self.threshold[features] = outputs[ranks[features], features % KERNELS]

    def read_channels(self) -> Tensor:
        """Return 1 for what each group and contest reads of a remembered sample, else 0, ``(both, 1, width)``."""
        is_summed = self.input_size > self.channels_kept
        channels = torch.eye(self.channels_kept).to(self.channels) if is_summed else self.channels
        # Every second contest.
        is_difference = (torch.arange(len(channels)) - self.groups).clamp(min=0).remainder(2)[:, None].to(channels)
        return torch.cat([channels * (1 - is_difference), channels * is_difference], dim=1)[:, None]

    def with_differences(self, drive: Tensor, history: Tensor, steps: Tensor) -> Tensor:
        """Return drives and their differences from the ones before, ``(batch, time, width)``.

        Args:
            drive: ``(batch, time, channels_kept)``.
            history: The state of that name before the first of them.
            steps: The state of that name; at 0, the first difference is 0.
        """
        last = torch.unflatten(history, -1, (-1, self.width))[:, -1:, : self.channels_kept]
        # The sign of the count is 1 if there is a sample before the first.
        before = torch.cat([drive[:, :1] + (last - drive[:, :1]) * torch.sign(steps)[..., None], drive[:, :-1]], dim=1)
        return torch.cat([drive, drive - before], dim=-1)

    def group_taps(self, samples: Tensor, channels: Tensor, group: int) -> Tensor:
        """Return the taps of a group or contest at every step, ``(TAPS, batch, time)``.

        Args:
            samples: ``(batch, memory - 1 + time, width)``, the history first.
            channels: As :meth:`read_channels` returns them.
            group: Its number; contests are counted after the groups.
        """
        mixed = samples @ channels[group, 0]
        steps = samples.shape[1] - (self.memory - 1)
        starts = self.taps[group * TAPS : (group + 1) * TAPS].tolist()
        return torch.stack([mixed[:, start : start + steps] for start in starts])

    def materialize(self) -> RocketWeights:
        threshold = (torch.floor(self.threshold * GRID) + 0.5) / GRID
        rivals = torch.cat([self.rivals, -self.rivals], dim=2)
        return RocketWeights(self.patterns, rivals, self.read_channels(), threshold)

    def step_bound(self) -> StepBound:
        return StepBound(
            balls=(
                Ball("share", "linf", 1.0),
                Ball("steps", "linf", float(MOST_STEPS)),
                Ball(
                    "history",
                    "linf",
                    LARGEST_SAMPLE * (2 if self.channels_kept == self.input_size else 2 * MOST_CHANNELS),
                ),
            )
        )

    def drive(self, x: Tensor) -> Tensor:
        samples = torch.clamp(torch.round(x * GRID) / GRID, -LARGEST_SAMPLE, LARGEST_SAMPLE)
        return samples if self.channels_kept == self.input_size else nn.functional.linear(samples, self.channels)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        share, steps, history = state
        patterns, rivals, channels, threshold = weights
        window = torch.cat([history, self.with_differences(drive[:, None], history, steps).flatten(1)], dim=-1)
        # (batch, groups + contests, TAPS, width), of which each reads a part.
        tapped = torch.unflatten(torch.unflatten(window, -1, (self.memory, -1))[:, self.taps], 1, (-1, TAPS))
        mixed = (tapped * channels).sum(dim=-1)
        outputs = torch.matmul(mixed[:, : self.groups], patterns).flatten(1)[:, : len(threshold)]
        # The sign, unlike a comparison, has a gradient: zero.
        hits = torch.relu(torch.sign(outputs - threshold))
        if self.contests:
            competing = torch.unflatten(torch.matmul(mixed[:, self.groups :, None], rivals), -1, (2, RIVALS))
            winners = 1 + torch.sign(competing - competing.amax(dim=-1, keepdim=True))
            hits = torch.cat([hits, winners.flatten(1)], dim=1)[:, : self.hidden_size]
        hits = hits + torch.round(share * steps)
        count = steps + 1
        return hits / count, torch.where(count < MOST_STEPS, count, count / 2), window[:, self.width :]


def tap_distances(groups: int, memory: int) -> list[int]:
    """Return the distance of the taps of each group, spread exponentially up to the longest that fits the memory."""
    exponents = np.linspace(0, math.log2((memory - 1) / (TAPS - 1)), groups)
    # A whole number may come back from its logarithm a little smaller.
    return [int(distance + 1e-9) for distance in np.exp2(exponents)]
