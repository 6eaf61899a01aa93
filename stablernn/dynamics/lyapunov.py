"""Lyapunov exponents along trajectories, by QR: what was observed there, and no proof of what happens elsewhere.

The method is that of Benettin and others (Meccanica 15, 1980) and of Shimada and Nagashima (Prog. Theor. Phys. 61,
1979); of recurrent networks see Vogt, Puelma Touzel, Shlizerman, Lajoie, "On Lyapunov exponents for RNNs" (Front. Appl.
Math. Stat. 2022), and Engelken, Wolf, Abbott, "Lyapunov spectra of chaotic recurrent neural networks" (Phys. Rev.
Research 5, 2023).
"""

from __future__ import annotations

import math
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
"""The states ``(batch, n)`` after step ``t`` (from 0) from those before it; of each row alone."""
Push = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""The states after step ``t``, and the products of its Jacobians with tangents ``(batch, m, k)``."""


@dataclass(frozen=True)
class LyapunovSpectrum:
    """Exponents in nats a step, or a unit of time, the largest first.

    Attributes:
        exponents: ``(k,)``, the mean over the sequences; minus infinity where a direction is forgotten at once.
        standard_error: ``(k,)``, of these means; NaN for one sequence, and beside an infinite exponent.
        size: Directions there are; ``k`` may be less.
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
        """The Kaplan-Yorke dimension; None where more exponents would be needed."""
        return kaplan_yorke(self.exponents.tolist(), self.size)

    @property
    def entropy_rate(self) -> float | None:
        """The sum of the positive exponents; None where a further one may be positive."""
        return entropy_rate(self.exponents.tolist(), self.size)

    def document(self) -> dict[str, Any]:
        """The figures as JSON types; what is not finite is None."""
        return {
            "exponents": [_known(one) for one in self.exponents],
            "standard_error": [_known(one) for one in self.standard_error],
            "kaplan_yorke": self.kaplan_yorke,
            "entropy_rate": self.entropy_rate,
            "size": self.size,
            "sequences": self.sequences,
            "steps": self.steps,
            "warm_up": self.warm_up,
        }


def tangent_map(step: Step) -> Push:
    """The step together with its derivative along any number of tangents, by forward differentiation."""

    def push(t: int, state: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        def along(tangent: Tensor) -> Tensor:
            pushed: Tensor = torch.func.jvp(lambda at: step(t, at), (state,), (tangent,))[1]
            return pushed

        return step(t, state), torch.func.vmap(along, in_dims=-1, out_dims=-1)(tangents)

    return push


def lyapunov_spectrum(
    push: Push,
    start: Tensor,
    steps: int,
    *,
    size: int | None = None,
    count: int | None = None,
    warm_up: int = 0,
    every: int = 1,
    time_step: float = 1.0,
    lengths: Sequence[int] | None = None,
    seed: int = 0,
) -> LyapunovSpectrum:
    """The leading Lyapunov exponents of a map, averaged over trajectories of it.

    Orthonormal tangents are pushed along each trajectory and made orthonormal again by QR with a positive diagonal,
    whose logarithms are added up.

    Args:
        push: The map, see :func:`tangent_map`.
        start: ``(batch, n)`` float64, where the trajectories start.
        steps: Length of the longest of them.
        size: Length ``m`` of a tangent; ``n`` when omitted.
        count: Exponents to find, up to ``size``; all when omitted.
        warm_up: First steps, in which the tangents turn to where they grow, that are not counted.
        every: Steps between two QR. Exponents further apart than ``36 / every`` lose their digits.
        time_step: Units of time of a step.
        lengths: Steps of each trajectory; ``steps`` when omitted. Those no longer than ``warm_up`` are left out.
        seed: Of the first tangents.

    Raises:
        ValueError: If ``count`` or ``every`` is out of range, or no trajectory is longer than ``warm_up``.
    """
    size = start.shape[1] if size is None else size
    count = size if count is None else count
    ends = np.full(len(start), steps) if lengths is None else np.asarray(lengths)
    if not 1 <= count <= size or every < 1:
        raise ValueError(
            f"count must be from 1 to {size}, the directions there are, and every 1 or more; got count={count} and "
            f"every={every}."
        )
    if not (ends > warm_up).any():
        raise ValueError(f"warm_up must be less than the longest trajectory's {int(ends.max())} steps, got {warm_up}.")
    generator = torch.Generator().manual_seed(seed)
    tangents, _ = torch.linalg.qr(torch.randn(len(start), size, count, generator=generator, dtype=torch.float64))
    growth, measured = torch.zeros(len(start), count, dtype=torch.float64), np.zeros(len(start), dtype=np.int64)
    state, since = start, 0
    with torch.no_grad():
        for t in range(steps):
            state, tangents = push(t, state, tangents)
            since += 1
            if t + 1 != warm_up and t + 1 != steps and since < every:
                continue
            tangents, logarithms = _orthonormal(tangents)
            if t >= warm_up:
                inside = ends > t
                growth += torch.where(torch.from_numpy(inside)[:, None], logarithms, 0.0)
                measured += inside * since
            since = 0
    found = growth.numpy()[measured > 0] / (measured[measured > 0, None] * time_step)
    mean = found.mean(axis=0)
    order = np.argsort(-mean, kind="stable")
    with np.errstate(invalid="ignore"):
        spread = found.std(axis=0, ddof=1) if len(found) > 1 else np.full(count, math.nan)
    return LyapunovSpectrum(
        exponents=mean[order],
        standard_error=(spread / math.sqrt(len(found)))[order],
        size=size,
        sequences=len(found),
        steps=int(measured.sum()),
        warm_up=warm_up,
    )


def kaplan_yorke(exponents: Sequence[float], size: int | None = None) -> float | None:
    """The dimension ``j + (l_1 + ... + l_j) / |l_(j+1)|``, with ``j`` the most exponents whose sum is not negative.

    Args:
        exponents: The largest first.
        size: How many there are in all; as many as are given when omitted.

    Returns:
        0 where the largest exponent is negative; None where those that are given do not tell. Kaplan, Yorke 1979.
    """
    sums = list(accumulate(exponents))
    for place, total in enumerate(sums):
        if total < 0 or math.isnan(total):
            before = sums[place - 1] if place else 0.0
            return None if math.isnan(total) else place + before / abs(exponents[place])
    return float(len(sums)) if size is None or size == len(sums) else None


def entropy_rate(exponents: Sequence[float], size: int | None = None) -> float | None:
    """The sum of the positive exponents, at least the metric entropy (Ruelle 1978); arguments as `kaplan_yorke`."""
    if any(math.isnan(one) for one in exponents):
        return None
    is_whole = size is None or size == len(exponents) or exponents[-1] <= 0
    return math.fsum(one for one in exponents if one > 0) if is_whole else None


def _orthonormal(tangents: Tensor) -> tuple[Tensor, Tensor]:
    """An orthonormal base of the tangents, and the logarithms of how long they are in it."""
    base, triangle = torch.linalg.qr(tangents)
    diagonal = triangle.diagonal(dim1=-2, dim2=-1)
    return base * torch.where(diagonal < 0, -1.0, 1.0)[:, None], diagonal.abs().log()


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
