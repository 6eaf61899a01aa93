"""Pooled features of fixed kernels: Dempster, Schmidt, Webb, "MiniRocket: a very fast (almost) deterministic transform
for time series classification", KDD 2021; several channels as in the authors' code."""

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
"""Modulus at which a scaled sample is cut off. With at most MOST_CHANNELS channels a kernel's output is a whole number
of at most 2^22 grid steps, and twice its distance from a threshold is less than 2^24, which float32 holds exactly."""
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
FIT_STEPS = 1024
"""Steps of training sequences at which the outputs of a group of kernels are computed to take thresholds from."""


class RocketWeights(NamedTuple):
    kernels: Tensor
    """The weights of the kernels, -1 and 2, (TAPS, KERNELS)."""
    channels: Tensor
    """1 for what a group reads of a remembered sample, else 0, (groups, 1, width)."""
    threshold: Tensor
    """Half way between two numbers of the grid, (hidden,)."""


@register_cell(
    "rocket",
    title="MiniRocket: shares of the steps at which fixed kernels exceed thresholds",
    paper="Dempster et al.: MiniRocket: A Very Fast (Almost) Deterministic Transform (KDD 2021)",
    year=2021,
    guarantee="every state stays within a ball by construction; a sample is never forgotten, its weight is 1/steps",
    equation=(
        "window <- last samples, x; a_f = sum of nine taps of the window at a distance, weights -1 and 2; "
        "n <- n + 1; share_f <- share_f + ((1 if a_f > threshold_f else 0) - share_f) / n"
    ),
    paper_source=(
        "9,996 features and kernels with and without padding, which would not be causal; here any number of features, "
        "zeros before the first sample, and a ridge readout by leave-one-out as in the paper."
    ),
    training={"practical": {"lr": 0.001}, "paper": {"lr": 0.001}},
)
class RocketCell(StableCell):
    r"""Shares of the steps so far at which the outputs of fixed kernels exceed thresholds.

    .. math::
        a_f(t) = \sum_{j=0}^{8} w_{k(f), j} \sum_{c \in C(f)} x_c(t - d(f) (8 - j)), \quad
        p_f(t) = \frac{1}{t} \sum_{s \le t} \mathbf{1}[a_f(s) > b_f]

    The weights of the 84 kernels are three times 2 and six times -1. Each group of kernels has a distance of taps d
    (dilation) and a random set of channels. Distances are spread exponentially from 1 to what ``memory`` allows.
    Feature f is kernel ``f mod 84`` of group ``f // 84``. Samples before the first are zeros, the mean of scaled data.

    With more channels than groups, the sum of each group's channels is remembered in place of the channels. Samples
    are rounded to multiples of 1/256 and cut off at 64, and thresholds lie half way between such numbers.
    Sums are then exact in float32: a step, a whole sequence and any runtime agree to the last bit.

    Nothing is trained by gradients. Thresholds are quantiles of the kernels' outputs on training sequences
    (:meth:`fit_inputs`), and ridge regression solves for the head.

    Guarantee:
        By construction all states are bounded: shares within 0 to 1, samples by 64 and sums of them by 576, the count
        by 2^22, at which it is halved. Nothing contracts: after t steps a sample has the weight 1/t in every share, and
        an arbitrarily small change of a sample can change whether a threshold is exceeded. No rate is proved.

    Args:
        input_size: Channels.
        hidden_size: Features; 2,520 are 30 groups of all kernels.
        memory: Samples that the longest kernel spans at most, 9 or more; None: 129. A run takes the length of the
            longest training sequence, if the state then has at most 16,384 numbers.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: share ``(batch, hidden_size)``, steps ``(batch, 1)`` and history ``(batch, (memory - 1) * width)``, the
          last samples, with a width of ``input_size`` or of the number of groups, whichever is less; without ``batch``
          for one; zeros when omitted
        - output: the next share, steps and history

    Raises:
        ValueError: If ``memory`` is no whole number of 9 or more.

    Example:
        >>> share, steps, history = RocketCell(input_size=1, hidden_size=168, memory=20)(torch.zeros(2, 1))
        >>> share.shape, history.shape
        (torch.Size([2, 168]), torch.Size([2, 19]))

    References:
        The kernels, distances, quantiles and thresholds of the paper, and of its code the random sets of channels. Of
        the alternation between padded and shortened outputs only causal ones are left, and kernels of a group share
        their set of channels.
    """

    state_names = ("share", "steps", "history")
    is_fixed = True
    kernels: Tensor
    taps: Tensor
    """Index in the window of each tap of each group, int64 (groups * TAPS,), the latest last."""
    channels: Tensor

    def __init__(self, input_size: int, hidden_size: int, *, memory: int | None = None) -> None:
        super().__init__(input_size, hidden_size)
        check_whole_number(self, "memory", memory)
        self.memory = DEFAULT_MEMORY if memory is None else int(memory)
        check_at_least(self, TAPS, memory=self.memory)
        self.distances = tap_distances(self.groups, self.memory)
        self.threshold = empty_parameter(hidden_size)
        kernels = torch.full((TAPS, KERNELS), -1.0)
        for kernel, taps in enumerate(itertools.combinations(range(TAPS), 3)):
            kernels[list(taps), kernel] = 2.0
        before = torch.tensor(self.distances)[:, None] * torch.arange(TAPS - 1, -1, -1)
        # These follow from sizes and options; the channels are drawn.
        self.register_buffer("kernels", kernels, persistent=False)
        self.register_buffer("taps", (self.memory - 1 - before).flatten(), persistent=False)
        self.register_buffer("channels", torch.empty(self.groups, input_size))
        self.reset_parameters()

    @property
    def groups(self) -> int:
        """Number of groups of kernels."""
        return math.ceil(self.hidden_size / KERNELS)

    @property
    def width(self) -> int:
        """Numbers of a remembered sample."""
        return min(self.input_size, self.groups)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, 1, (self.memory - 1) * self.width)

    def recommended_options(self, steps: int, channels: int) -> dict[str, int]:
        # All of the longest sequence, if the state of a stream stays small.
        most = (MOST_STATES - self.hidden_size) // min(channels, self.groups)
        return {"memory": max(TAPS, min(steps, most))}

    def reset_parameters(self) -> None:
        # Each number of channels is half as likely as half of it.
        limit = math.log2(min(self.input_size, MOST_CHANNELS) + 1)
        counts = (2 ** (limit * torch.rand(self.groups))).long()
        ranks = torch.rand(self.groups, self.input_size).argsort(dim=1).argsort(dim=1)
        with torch.no_grad():
            self.channels.copy_(ranks < counts[:, None])
            # Until they are fitted: the distribution of a kernel's outputs on white noise of variance 1.
            deviation = (18 * self.channels.sum(dim=1)).sqrt().repeat_interleave(KERNELS)[: self.hidden_size]
            self.threshold.copy_(deviation * torch.randn(self.hidden_size))

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
        levels = torch.frac((1 + torch.arange(self.hidden_size, dtype=torch.float64)) * (math.sqrt(5) - 1) / 2)
        ranks = (levels * FIT_STEPS).long().to(x.device)
        for group, features in enumerate(torch.split(torch.arange(self.hidden_size, device=x.device), KERNELS)):
            row, time = steps[torch.randint(len(steps), (FIT_STEPS,)).to(x.device)].T
            taps = self.taps[group * TAPS : (group + 1) * TAPS]
            # (FIT_STEPS, TAPS, width)
            tapped = samples[row[:, None], time[:, None] + taps]
            outputs = (tapped @ self.read_channels()[group, 0] @ self.kernels).sort(dim=0).values
            # Numbers of the grid, which materialize() takes half a step up.
            self.threshold[features] = outputs[ranks[features], features % KERNELS]

    def read_channels(self) -> Tensor:
        """Return 1 for what a group reads of a remembered sample, else 0, ``(groups, 1, width)``."""
        is_summed = self.input_size > self.groups
        return (torch.eye(self.groups).to(self.channels) if is_summed else self.channels)[:, None]

    def group_taps(self, samples: Tensor, channels: Tensor, group: int) -> Tensor:
        """Return the taps of a group at every step, ``(TAPS, batch, time)``.

        Args:
            samples: ``(batch, memory - 1 + time, width)``, the history first.
            channels: As :meth:`read_channels` returns them.
            group: Number of the group.
        """
        mixed = samples @ channels[group, 0]
        steps = samples.shape[1] - (self.memory - 1)
        starts = self.taps[group * TAPS : (group + 1) * TAPS].tolist()
        return torch.stack([mixed[:, start : start + steps] for start in starts])

    def materialize(self) -> RocketWeights:
        threshold = (torch.floor(self.threshold * GRID) + 0.5) / GRID
        return RocketWeights(self.kernels, self.read_channels(), threshold)

    def step_bound(self) -> StepBound:
        return StepBound(
            balls=(
                Ball("share", "linf", 1.0),
                Ball("steps", "linf", float(MOST_STEPS)),
                Ball("history", "linf", LARGEST_SAMPLE * (1 if self.width == self.input_size else MOST_CHANNELS)),
            )
        )

    def drive(self, x: Tensor) -> Tensor:
        samples = torch.clamp(torch.round(x * GRID) / GRID, -LARGEST_SAMPLE, LARGEST_SAMPLE)
        return samples if self.width == self.input_size else nn.functional.linear(samples, self.channels)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        share, steps, history = state
        kernels, channels, threshold = weights
        window = torch.cat([history, drive], dim=-1)
        # (batch, groups, TAPS, width), of which a group reads a part.
        tapped = torch.unflatten(torch.unflatten(window, -1, (self.memory, -1))[:, self.taps], 1, (-1, TAPS))
        outputs = torch.matmul((tapped * channels).sum(dim=-1), kernels).flatten(1)[:, : self.hidden_size]
        # The sign, unlike a comparison, has a gradient: zero.
        hits = torch.round(share * steps) + torch.relu(torch.sign(outputs - threshold))
        count = steps + 1
        return hits / count, torch.where(count < MOST_STEPS, count, count / 2), window[:, self.width :]


def tap_distances(groups: int, memory: int) -> list[int]:
    """Return the distance of the taps of each group, spread exponentially up to the longest that fits the memory."""
    exponents = np.linspace(0, math.log2((memory - 1) / (TAPS - 1)), groups)
    # A whole number may come back from its logarithm a little smaller.
    return [int(distance + 1e-9) for distance in np.exp2(exponents)]
