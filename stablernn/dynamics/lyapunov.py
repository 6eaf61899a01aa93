"""Lyapunov exponents along trajectories, by QR: an observation of these, and no proof about others.

The method is that of Benettin and others (Meccanica 15, 1980) and of Shimada and Nagashima (Prog. Theor. Phys. 61,
1979); of recurrent networks see Vogt, Puelma Touzel, Shlizerman, Lajoie, "On Lyapunov exponents for RNNs" (Front. Appl.
Math. Stat. 2022), and Engelken, Wolf, Abbott, "Lyapunov spectra of chaotic recurrent neural networks" (Phys. Rev.
Research 5, 2023).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
Step = Callable[[int, Tensor], Tensor]
"""The states ``(batch, n)`` after step ``t`` (from 0) from those before it; each row depends on its own alone."""
TangentMap = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""The states after step ``t``, and the products of its Jacobians with tangents ``(batch, m, k)``."""


@dataclass(frozen=True)
class LyapunovSpectrum:
    """Exponents in nats a step, the largest first.

    Attributes:
        exponents: ``(k,)``, the mean over the sequences; minus infinity for a direction that a single step erases.
        standard_error: ``(k,)``, of these means; NaN for one sequence, and for an infinite exponent.
        size: Number of directions; ``k`` may be less.
        sequences: How many were averaged.
        steps: How many steps of them were measured.
        warm_up: Steps before these, in each.
    """

    exponents: Array
    standard_error: Array
    size: int
    sequences: int
    steps: int
    warm_up: int

    @property
    def kaplan_yorke(self) -> float | None:
        """The Kaplan-Yorke dimension; None if more exponents would be needed."""
        return kaplan_yorke(self.exponents.tolist(), self.size)

    @property
    def entropy_rate(self) -> float | None:
        """The sum of the positive exponents; None if a further one may be positive."""
        return entropy_rate(self.exponents.tolist(), self.size)

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON types, None for those that are not finite."""
        return {
            "exponents": [_finite_or_none(exponent) for exponent in self.exponents],
            "standard_error": [_finite_or_none(error) for error in self.standard_error],
            "kaplan_yorke": self.kaplan_yorke,
            "entropy_rate": self.entropy_rate,
            "size": self.size,
            "sequences": self.sequences,
            "steps": self.steps,
            "warm_up": self.warm_up,
        }


def tangent_map(step: Step) -> TangentMap:
    """Return the step together with its derivative along any number of tangents, by forward differentiation."""

    _load_forward_mode()

    def push(t: int, state: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        def along(tangent: Tensor) -> Tensor:
            derivative: Tensor = torch.func.jvp(lambda point: step(t, point), (state,), (tangent,))[1]
            return derivative

        # Tangents are the columns of (batch, m, k).
        return step(t, state), torch.func.vmap(along, in_dims=-1, out_dims=-1)(tangents)

    return push


@functools.cache
def _load_forward_mode() -> None:
    """Let torch script the decompositions of forward mode, without its warning about itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.script` is (deprecated|not supported)")
        torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))


def lyapunov_spectrum(
    push: TangentMap,
    start: Tensor,
    steps: int,
    *,
    size: int | None = None,
    count: int | None = None,
    warm_up: int = 0,
    lengths: Sequence[int] | None = None,
) -> LyapunovSpectrum:
    """Return the leading Lyapunov exponents of a map, averaged over trajectories of it.

    Orthonormal tangents are pushed along each trajectory and made orthonormal again, after every step, by QR with a
    positive diagonal, whose logarithms are added up.

    Args:
        push: The map, see :func:`tangent_map`.
        start: ``(batch, n)`` float64, where the trajectories start.
        steps: Length of the longest of them.
        size: Length ``m`` of a tangent; ``n`` when omitted.
        count: Exponents to find, up to ``size``; all when omitted.
        warm_up: First steps, which are not counted: the tangents still turn to the directions of growth.
        lengths: Steps of each trajectory; ``steps`` when omitted. Those no longer than ``warm_up`` are left out.

    Raises:
        ValueError: If ``count`` is out of range, or no trajectory is longer than ``warm_up``.
    """
    size = start.shape[1] if size is None else size
    count = size if count is None else count
    ends = np.full(len(start), steps) if lengths is None else np.asarray(lengths)
    if not 1 <= count <= size:
        raise ValueError(f"count must be from 1 to {size}, the number of directions, got {count}.")
    if not (ends > warm_up).any():
        raise ValueError(f"warm_up must be less than the longest trajectory's {int(ends.max())} steps, got {warm_up}.")
    generator = torch.Generator().manual_seed(0)
    tangents, _ = torch.linalg.qr(torch.randn(len(start), size, count, generator=generator, dtype=torch.float64))
    log_growth = torch.zeros(len(start), count, dtype=torch.float64)
    state, measured_steps = start, np.maximum(np.minimum(ends, steps) - warm_up, 0)
    with torch.no_grad():
        for t in range(steps):
            state, tangents = push(t, state, tangents)
            tangents, log_lengths = _orthonormal(tangents)
            if t >= warm_up:
                log_growth += torch.where(torch.from_numpy(ends > t)[:, None], log_lengths, 0.0)
    is_measured = measured_steps > 0
    exponents = log_growth.numpy()[is_measured] / measured_steps[is_measured, None]
    mean = exponents.mean(axis=0)
    order = np.argsort(-mean, kind="stable")
    # The deviation of infinite exponents is NaN.
    with np.errstate(invalid="ignore"):
        deviation = exponents.std(axis=0, ddof=1) if len(exponents) > 1 else np.full(count, math.nan)
    return LyapunovSpectrum(
        exponents=mean[order],
        standard_error=(deviation / math.sqrt(len(exponents)))[order],
        size=size,
        sequences=len(exponents),
        steps=int(measured_steps.sum()),
        warm_up=warm_up,
    )


def kaplan_yorke(exponents: Sequence[float], size: int | None = None) -> float | None:
    """Return ``j + (l_1 + ... + l_j) / |l_(j+1)|``, with ``j`` the most exponents whose sum is not negative.

    Args:
        exponents: The largest first.
        size: Their total number; the length of ``exponents`` when omitted.

    Returns:
        0 if the largest exponent is negative; None if more exponents would be needed. Kaplan, Yorke 1979.
    """
    sums = list(accumulate(exponents))
    for index, total in enumerate(sums):
        if total < 0 or math.isnan(total):
            previous = sums[index - 1] if index else 0.0
            return None if math.isnan(total) else index + previous / abs(exponents[index])
    return float(len(sums)) if size is None or size == len(sums) else None


def entropy_rate(exponents: Sequence[float], size: int | None = None) -> float | None:
    """Return the sum of the positive exponents, at least the metric entropy (Ruelle 1978); args as `kaplan_yorke`."""
    if any(math.isnan(exponent) for exponent in exponents):
        return None
    # Exponents are sorted: behind one that is not positive there are no positive ones.
    is_complete = size is None or size == len(exponents) or exponents[-1] <= 0
    return math.fsum(exponent for exponent in exponents if exponent > 0) if is_complete else None


def _orthonormal(tangents: Tensor) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis of the tangents, and the logarithms of the diagonal of R."""
    basis, triangle = torch.linalg.qr(tangents)
    diagonal = triangle.diagonal(dim1=-2, dim2=-1)
    # LAPACK leaves the signs open: a positive diagonal makes the decomposition unique.
    return basis * torch.where(diagonal < 0, -1.0, 1.0)[:, None], diagonal.abs().log()


def _finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
