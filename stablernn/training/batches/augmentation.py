"""Random changes of training sequences: values, size, start, window, speed, and which channels are seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stablernn.training.batches.interpolation import interpolate, take_steps
from stablernn.training.batches.transfers import move_like, move_to

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
