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
    """Budgets of the attacks, and sizes of the samples.

    Attributes:
        linf_budgets: Largest change of a value, in standard deviations of its feature; increasing.
        l2_budgets: Largest change of a sequence in the 2-norm of all its values, in the same unit; increasing.
        steps: Number of gradients of PGD, and of linearizations of DeepFool.
        step: Length of a step of PGD, as a fraction of the budget.
        random_start: Whether PGD starts at a random point within the budget.
        clip: Whether attacked values stay within the range of their feature in the training data.
        sequences: Number of sequences; a random sample if the split has more.
        draws: Draws of noise at each level, 2 or more.
        hessian: Whether to measure the curvature of the loss.
        seed: Seed of the sample and of all noise.

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
        # Increasing budgets: each attack starts from the result at the one before.
        for norm in NORMS:
            budgets = self.budgets(norm)
            ordered = all(low < high for low, high in zip(budgets, budgets[1:], strict=False))
            if not budgets or not ordered or not all(0 < budget < math.inf for budget in budgets):
                raise ConfigError(
                    f"Attack budgets are increasing numbers greater than 0, got {list(budgets)} for {norm}."
                )
        for name, minimum in (("steps", 1), ("sequences", 1), ("draws", 2)):
            if getattr(self, name) < minimum:
                raise ConfigError(
                    f"{name} of a robustness report must be {minimum} or more, got {getattr(self, name)}."
                )

    def budgets(self, norm: Norm) -> tuple[float, ...]:
        """Return the budgets in one norm."""
        return self.linf_budgets if norm == "linf" else self.l2_budgets
