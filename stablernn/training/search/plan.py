"""The plan of a search: which recipes are trained on which parts of the data, and for how many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

PARTS = 5
"""Parts of the data that are asked for."""
SEARCH_SHARE = 0.6
"""Share of the budget for the comparison of all recipes; the rest is for the training that follows, and what that has
no use for goes to further draws of the folds."""
LEAST_SHARE = 0.2
"""Least share of its steps that a recipe is compared after: below it, fewer recipes are compared instead."""
_FEWEST_STEPS = 20
_MOST_FIRST_PARTS = 3
"""Parts on which all recipes are compared; on fewer, small data says too little."""
_ENOUGH_SCORED = 1000
"""Scored sequences on which all recipes are compared if there are as many: the standard error of an accuracy of .75 is
.014 then."""
_MORE_PARTS = 2
"""Further parts for the better half."""


@dataclass(frozen=True)
class Plan:
    """Rounds of successive halving: all recipes on a few parts, the better half on more.

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


def first_parts(sequences: int | None, parts: int) -> int:
    """Return the number of parts on which all recipes are compared.

    Args:
        sequences: Sequences of all parts together; None where they differ too much for their number to count, as
            groups do, or where the parts are ends of series.
        parts: Number of parts.
    """
    if sequences is None:
        return min(_MOST_FIRST_PARTS, parts)
    return min(_MOST_FIRST_PARTS, math.ceil(_ENOUGH_SCORED * parts / sequences), parts)


def make_plan(
    recipes: int, parts: int, first: int, affordable: float, whole_steps: int, least: float = LEAST_SHARE
) -> Plan | None:
    """Return the plan that a budget allows; None where not even two recipes can be compared.

    Args:
        recipes: Number of recipes.
        parts: Parts of the data, 1 or more.
        first: Parts on which all recipes are compared.
        affordable: Whole trainings that the budget of the search pays for.
        whole_steps: Optimizer steps of a whole training.
        least: Least share of these after which recipes are compared.
    """
    least = least_share(whole_steps, least)
    for count in range(recipes, 1, -1):
        rounds = halving_rounds(count, parts, first)
        share = min(1.0, affordable / count_trainings(rounds))
        if share >= least:
            return Plan(count, rounds, share)
    return None


def least_share(whole_steps: int, least: float = LEAST_SHARE) -> float:
    """Return the least share of a whole training after which recipes are compared, which is not of a few steps."""
    return max(least, min(1.0, _FEWEST_STEPS / whole_steps))


def halving_rounds(recipes: int, parts: int, first: int) -> tuple[tuple[int, int], ...]:
    """Return how many recipes are compared on how many parts in each round, of which there are two at most."""
    rounds = [(recipes, first)]
    if parts > first:
        rounds.append((math.ceil(recipes / 2), min(first + _MORE_PARTS, parts)))
    return tuple(rounds)


def count_trainings(rounds: tuple[tuple[int, int], ...]) -> int:
    """Return the number of trainings of rounds, of which a later one goes on from an earlier one."""
    total, before = 0, 0
    for recipes, parts in rounds:
        total += recipes * (parts - before)
        before = parts
    return total
