"""Settings of a robustness report. Imports no torch, so that tables of them can be listed without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stablernn.errors import ConfigError

Norm = Literal["linf", "l2"]
NORMS: tuple[Norm, ...] = ("linf", "l2")
LINF_BUDGETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
L2_BUDGETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
DRAWS = 5
"""Draws of noise at each level."""


@dataclass(frozen=True)
class Settings:
    """How robustness is measured.

    Attributes:
        linf_budgets: Radii of the balls of attacks, in standard deviations of a feature, increasing.
        l2_budgets: The same in the 2-norm of all values of a sequence.
        steps: Gradients of PGD, and linearizations of DeepFool.
        step: Length of a step of PGD, as a share of the radius.
        random_start: Whether PGD begins at a random point of the ball.
        clip: Whether attacked values stay within the range of their feature in training.
        sequences: How many are measured; of more a random sample.
        draws: Of noise at each level, 2 or more.
        hessian: Whether curvature is measured.
        seed: Of the sample and of all noise.

    Raises:
        ConfigError: If one is out of its range.
    """

    linf_budgets: tuple[float, ...] = LINF_BUDGETS
    l2_budgets: tuple[float, ...] = L2_BUDGETS
    steps: int = 20
    step: float = 0.25
    random_start: bool = False
    clip: bool = False
    sequences: int = 200
    draws: int = DRAWS
    hessian: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for norm in NORMS:
            given = self.budgets(norm)
            ordered = all(low < high for low, high in zip(given, given[1:], strict=False))
            if not given or not ordered or not all(0 < budget < math.inf for budget in given):
                raise ConfigError(
                    f"Attack budgets are increasing numbers greater than 0, got {list(given)} for {norm}."
                )
        for name, least in (("steps", 1), ("sequences", 1), ("draws", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} of a robustness report must be {least} or more, got {getattr(self, name)}.")

    def budgets(self, norm: Norm) -> tuple[float, ...]:
        """Those of one norm."""
        return self.linf_budgets if norm == "linf" else self.l2_budgets
