"""Random changes of training sequences: values, size, start, window, speed, channels, and mixtures of two (mixup)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stablernn.training.loop.minibatches import move_like, move_to

_WAVES = 3
"""Half waves over the sequence of which a displacement is made, each as large as its number is small."""
_WARPED = 0.5
"""Share of the sequences that are warped: the others are seen as they are."""
_KNOTS = 6
"""Knots of the curve by which values are multiplied, both ends among them: four inside, as the authors draw it."""


@dataclass(frozen=True)
class Augmentation:
    """A random change of sequences each time they are trained on. Random numbers are torch's, on the CPU.

    Changes in time come first, then those of values; channels are dropped last, so that a dropped one has no noise.

    Attributes:
        time_warp: Standard deviation of the slowest wave by which half of the sequences are read too early or too late,
            as a share of their length.
        jitter: Standard deviation of the noise on every value, in units of the feature's.
        rescale: Standard deviation of the factor, around 1, on the distance of a sequence from the features' means.
        shift: Largest circular shift, either way, as a share of the length; 0.5 lets a sequence start anywhere.
        crop: Smallest share of a sequence that a random window holds, which is stretched to the length of the whole; 1
            for no windows.
        magnitude_warp: Standard deviation, at its knots, of a smooth curve around 1 that multiplies the distance of a
            sequence from the features' means.
        channel_dropout: Probability with which each channel of a sequence is set to its mean in all steps, less than 1.
    """

    time_warp: float = 0.0
    jitter: float = 0.0
    rescale: float = 0.0
    shift: float = 0.0
    crop: float = 1.0
    magnitude_warp: float = 0.0
    channel_dropout: float = 0.0

    def __call__(self, x: Tensor, lengths: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return changed sequences.

        Args:
            x: ``(batch, time, features)``, NaN where missing.
            lengths: ``(batch,)``; steps beyond them do not matter.
            mean: ``(features,)``, of the training data.
            scale: ``(features,)``, of the training data.
        """
        if self.shift:
            x = _shift(x, lengths, self.shift)
        if self.crop < 1:
            x = _crop(x, lengths, self.crop)
        if self.time_warp:
            x = _warp(x, lengths, self.time_warp)
        if self.magnitude_warp:
            x = mean + _curves(x, lengths, self.magnitude_warp) * (x - mean)
        if self.rescale:
            # One factor a sequence and feature, (batch, 1, features).
            factor = 1 + self.rescale * move_like(x, torch.randn(len(x), 1, x.shape[2]))
            x = mean + factor * (x - mean)
        if self.jitter:
            x = x + self.jitter * scale * move_like(x, torch.randn(x.shape))
        if self.channel_dropout:
            x = _drop_channels(x, self.channel_dropout, mean)
        return x


def _shift(x: Tensor, lengths: Tensor, largest: float) -> Tensor:
    """Return each sequence rotated by a random number of steps; what leaves it at one end enters at the other."""
    time = torch.arange(x.shape[1], device=x.device)
    length = lengths[:, None].to(x.device)
    # Uniform from -largest to largest, (batch, 1).
    share = largest * (2 * torch.rand(len(x), 1) - 1)
    steps = (move_like(x, share) * length).round().long()
    return take_steps(x, torch.where(time < length, (time + steps) % length, time))


def _crop(x: Tensor, lengths: Tensor, smallest: float) -> Tensor:
    """Return a random window of each sequence, stretched to the length of the whole by linear interpolation.

    Windows are the slices of Cui, Chen and Chen (2016) and of Le Guennec, Malinowski and Tavenard (2016), whose lengths
    are fixed. Here the share is uniform from ``smallest`` to 1, and the start uniform among those that it allows.
    """
    time = torch.arange(x.shape[1], device=x.device)
    last = (lengths[:, None] - 1).to(x.dtype)
    # Uniform numbers, (batch, 1).
    share = smallest + (1 - smallest) * torch.rand(len(x), 1)
    start = (1 - share) * torch.rand(len(x), 1)
    position = move_like(x, start) * last + move_like(x, share) * time
    # Rounding and the padding lead beyond the last step.
    return interpolate(x, lengths, torch.minimum(position, last))


def _warp(x: Tensor, lengths: Tensor, strength: float) -> Tensor:
    """Return each sequence read at times that run now faster, now slower; its beginning and end stay where they are.

    The displacement is a sum of half sine waves with normal amplitudes. Values between two samples are interpolated;
    where one of them is missing the nearer one is taken.
    """
    time = torch.arange(x.shape[1], device=x.device)
    length = lengths[:, None].to(x.dtype)
    # Every wave ends at the last step, not one step after it.
    phase = math.pi * time / (length - 1).clamp_min(1)
    amplitudes = [torch.randn(len(x), 1) / wave for wave in range(1, _WAVES + 1)]
    is_warped = (torch.rand(len(x), 1) < _WARPED).float()
    *amplitudes, is_warped = move_like(x, torch.stack([*amplitudes, is_warped])).unbind()
    # (batch, time)
    displacement = torch.zeros_like(x[..., 0])
    for wave, amplitude in enumerate(amplitudes, start=1):
        displacement = displacement + amplitude * torch.sin(wave * phase)
    displacement = displacement * is_warped
    position = (time + strength * length * displacement).clamp_min(0)
    # Rounding leaves a trace of the waves where they end.
    position = torch.where(time < length - 1, torch.minimum(position, length - 1), length - 1)
    return interpolate(x, lengths, position)


def _curves(x: Tensor, lengths: Tensor, strength: float) -> Tensor:
    """Return smooth random factors around 1, ``(batch, time, features)``: a curve for each sequence and feature.

    A curve is a cubic spline through normal numbers at equidistant steps from the first to the last (Um and others,
    ICMI 2017). Ours is the natural spline, which overshoots less at its ends than the authors' not-a-knot spline.
    """
    time = torch.arange(x.shape[1], device=x.device)
    last = (lengths[:, None] - 1).clamp_min(1)
    # In knots, (batch, time); the padding has the factors of the last step.
    position = (_KNOTS - 1) * (time / last).clamp_max(1).to(x.dtype)
    return _natural_spline(1 + strength * move_like(x, torch.randn(len(x), _KNOTS, x.shape[2])), position)


def _natural_spline(knots: Tensor, position: Tensor) -> Tensor:
    """Return natural cubic splines, ``(batch, time, features)``, through values at 0, 1, 2 and so on.

    Args:
        knots: Values, ``(batch, knots, features)``, three or more.
        position: ``(batch, time)``, each from 0 to the number of knots less 1.
    """
    count = knots.shape[1]
    # Second derivatives m solve m[i-1] + 4 m[i] + m[i+1] = 6 (y[i-1] - 2 y[i] + y[i+1]) inside and are 0 at both ends
    # (de Boor, A Practical Guide to Splines, chapter IV).
    differences = torch.diff(torch.eye(count), n=2, dim=0)
    # Solved on the CPU: a GPU takes longer for so small a system.
    inside = torch.linalg.solve(differences[:, 1:-1] + 6 * torch.eye(count - 2), 6 * differences)
    curvature = nn.functional.pad(move_like(knots, inside) @ knots, (0, 0, 1, 1))
    left = position.floor().clamp_max(count - 2).long()
    # Distance from the knot before, and to the one after, (batch, time, 1).
    ahead = (position - left)[..., None]
    back = 1 - ahead
    line = back * take_steps(knots, left) + ahead * take_steps(knots, left + 1)
    bend = (back**3 - back) * take_steps(curvature, left) + (ahead**3 - ahead) * take_steps(curvature, left + 1)
    return line + bend / 6


def _drop_channels(x: Tensor, probability: float, mean: Tensor) -> Tensor:
    """Return sequences with random channels set to their mean in all steps, but never all channels.

    Gaps are filled as well: where they lie would still carry information about the channel.
    """
    draws = torch.rand(len(x), x.shape[2])
    # The channel with the largest number stays, which makes a difference only where all would be dropped.
    is_dropped = (draws < probability) & (draws < draws.amax(dim=1, keepdim=True))
    return torch.where(move_to(x.device, is_dropped[:, None]), mean, x)


class MixedBatch(NamedTuple):
    """A batch of mixtures: each sequence with a partner from the same batch."""

    x: Tensor
    """``(batch, time, features)``, NaN where missing."""
    lengths: Tensor
    """``(batch,)`` int64."""
    partners: Tensor
    """``(batch,)`` int64, the row of each sequence's partner before mixing."""
    weights: Tensor
    """``(batch,)``, the share of each sequence and of its label, 0 to 1; the rest is its partner's."""


@dataclass(frozen=True)
class Mixup:
    """Mix each sequence of a batch with another one (Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018).

    Partners are a random permutation of the batch, in which a sequence can be its own. Each pair has a weight of its
    own. The paper's code shares one among all pairs of a batch; in the small batches of our defaults (8 to 32
    sequences) that single draw would decide how hard a whole step is.

    Sequences are mixed step by step. Two of unequal length are first stretched to the mean of their lengths by the same
    weights, so that a mixture lies between the two in length as well, and ends where both end.

    Random numbers are torch's, on the CPU.

    Attributes:
        alpha: Parameter of the symmetric Beta distribution of the weights, greater than 0: near 0 they are 0 or 1, at 1
            uniform, and around one half above.
    """

    alpha: float

    def __call__(self, x: Tensor, lengths: Tensor, *, is_padded: bool = True) -> MixedBatch:
        """Return a batch of mixtures.

        Args:
            x: ``(batch, time, features)``, NaN where missing. Where one of a pair is missing, the sequence with the
                larger weight decides: its value stands alone, or its gap stays.
            lengths: ``(batch,)`` int64; steps beyond them do not matter.
            is_padded: False if all lengths are known to be equal.
        """
        weights = move_like(x, _sample_symmetric_beta(self.alpha, len(x)))
        partners = move_to(x.device, torch.randperm(len(x)))
        other_x, other_lengths, mixed_lengths = x[partners], lengths[partners], lengths
        # Pairs of equal lengths keep theirs: rounding may move the mean, but not by half a step. On a GPU, to look for
        # other pairs would wait for its work, which takes longer than to stretch all.
        if is_padded and (lengths.is_cuda or not torch.equal(lengths, other_lengths)):
            mixed_lengths = (weights * lengths + (1 - weights) * other_lengths).round().long()
            x, other_x = _stretch(x, lengths, mixed_lengths), _stretch(other_x, other_lengths, mixed_lengths)
        mixed = mix(x, other_x, 1 - weights[:, None, None])
        return MixedBatch(mixed, mixed_lengths, partners, weights)


def _sample_symmetric_beta(alpha: float, count: int) -> Tensor:
    """Return samples of Beta(alpha, alpha), ``(count,)``.

    They are ratios of two Gamma samples, whose logarithms are taken from Gamma(alpha + 1) by ``log Gamma(alpha) = log
    Gamma(alpha + 1) + log(U) / alpha`` (Marsaglia and Tsang, ACM TOMS 2000, section 6). Both samples underflow
    otherwise where alpha is small: with 0.001, a quarter of the samples of ``torch.distributions.Beta`` are 0.5.
    """
    gamma = torch.distributions.Gamma(alpha + 1.0, 1.0).sample((2, count))
    # The logarithm of a uniform number is an exponential one with the other sign, and never infinite.
    logarithms = gamma.log() - torch.empty(2, count).exponential_() / alpha
    return torch.sigmoid(logarithms[0] - logarithms[1])


def _stretch(x: Tensor, lengths: Tensor, new_lengths: Tensor) -> Tensor:
    """Return sequences resampled to other lengths; what lies beyond them repeats the last sample.

    Args:
        x: ``(batch, time, features)``.
        lengths: ``(batch,)``.
        new_lengths: ``(batch,)``, at most ``time``.
    """
    time = torch.arange(x.shape[1], device=x.device)
    last, new_last = lengths[:, None].to(x.dtype) - 1, new_lengths[:, None].to(x.dtype) - 1
    # A ratio of equal lengths is exactly 1, which leaves the samples as they are.
    position = time * (last / new_last.clamp_min(1))
    # From the new end on the last sample itself: rounding could leave the position just before it.
    return interpolate(x, lengths, torch.where(time < new_last, torch.minimum(position, last), last))


def take_steps(x: Tensor, index: Tensor) -> Tensor:
    """Return the samples of ``(batch, time, features)`` at the steps ``(batch, steps)`` of each sequence."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def interpolate(x: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
    """Return sequences read at fractional steps, by linear interpolation.

    Args:
        x: ``(batch, time, features)``, NaN where missing.
        lengths: ``(batch,)``; no step from there on is read.
        position: ``(batch, steps)``, each from 0 to the length less 1.

    Returns:
        ``(batch, steps, features)``. Where one of two neighbors is missing, the nearer of them: gaps are moved and do
        not grow.
    """
    before = position.floor().long()
    after = torch.minimum(before + 1, lengths[:, None] - 1)
    return mix(take_steps(x, before), take_steps(x, after), (position - before)[..., None])


def mix(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Return ``first * (1 - share) + second * share``; where either is NaN, the one with the larger share.

    Args:
        first: Any shape.
        second: The shape of ``first``.
        share: That of ``second``, 0 to 1; broadcast to the others.
    """
    mixed = first * (1 - share) + second * share
    return torch.where(torch.isnan(mixed), torch.where(share > 0.5, second, first), mixed)
