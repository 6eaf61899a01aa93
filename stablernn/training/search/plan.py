"""The plan of a search: which recipes are trained on which parts of the data, and for how many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

SEARCH_SHARE = 0.6
"""Share of the budget for the search; the rest is for the training that follows."""
LEAST_SHARE = 0.2
"""Least share of its steps that a recipe is compared after: below it, fewer recipes are compared instead."""
_FEWEST_STEPS = 20
_FIRST_PARTS = 3
"""Parts on which all recipes are compared; on fewer, small data says too little."""


@dataclass(frozen=True)
class Plan:
    """Rounds of successive halving: all recipes on a few parts, the better half on all.

    Attributes:
        recipes: Number of recipes in the first round.
        rounds: Recipes and parts of each round; parts of an earlier round are not repeated.
        share: Share of the whole training's optimizer steps in each training.
    """

    recipes: int
    rounds: tuple[tuple[int, int], ...]
    share: float

    @property
    def trainings(self) -> int:
        """Number of trainings of the whole plan."""
        return count_trainings(self.rounds)


def make_plan(recipes: int, parts: int, affordable: float, whole_steps: int) -> Plan | None:
    """Return the plan that a budget allows; None where not even two recipes can be compared.

    Args:
        recipes: Number of recipes.
        parts: Parts of the data, 1 or more.
        affordable: Whole trainings that the budget of the search pays for.
        whole_steps: Optimizer steps of a whole training.
    """
    least = least_share(whole_steps)
    for count in range(recipes, 1, -1):
        rounds = halving_rounds(count, parts)
        share = min(1.0, affordable / count_trainings(rounds))
        if share >= least:
            return Plan(count, rounds, share)
    return None


def least_share(whole_steps: int) -> float:
    """Return the least share of a whole training after which recipes are compared."""
    return max(LEAST_SHARE, min(1.0, _FEWEST_STEPS / whole_steps))


def halving_rounds(recipes: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Return how many recipes are compared on how many parts in each round."""
    first = min(_FIRST_PARTS, parts)
    rounds = [(recipes, first)]
    if parts > first:
        rounds.append((math.ceil(recipes / 2), parts))
    return tuple(rounds)


def count_trainings(rounds: tuple[tuple[int, int], ...]) -> int:
    """Return the number of trainings of rounds, of which a later one goes on from an earlier one."""
    total, before = 0, 0
    for recipes, parts in rounds:
        total += recipes * (parts - before)
        before = parts
    return total
