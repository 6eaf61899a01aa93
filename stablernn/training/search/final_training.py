"""The training that follows a search: what the rest of the budget is spent on."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from stablernn.data.options import TaskName
from stablernn.terms import terms
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate, held_out_temperature, merged
from stablernn.training.settings.config import Config
from stablernn.training.settings.resolve import described_cell

_LOG = logging.getLogger("stablernn.training")

_MEMBERS = (8, 4, 2)
"""Sizes of an ensemble that are tried, if the budget allows."""
_SEARCHED_NORM_SECONDS = 8.0
"""Time of the search for a norm that certifies a layer of 64 units."""
_KEPT_NORM_SECONDS = 2.0
"""Time of certifying a layer of up to 128 units in the norm in which its training kept it contracting."""


@dataclass(frozen=True)
class RemainingBudget:
    """The rest of a budget, in optimizer steps of the training that it is for.

    Attributes:
        affordable_steps: Optimizer steps that the rest of the budget pays for.
        step_seconds: Time of one.
        budget: The budget of the search and this training together.
    """

    affordable_steps: float
    step_seconds: float
    budget: Budget

    def describe_excess(self, recommended_steps: int) -> str:
        """Return what the budget lacks for the recommended training."""
        steps = recommended_steps - max(1, int(self.affordable_steps))
        return f"{steps:,} steps" if self.budget.seconds is None else f"about {math.ceil(steps * self.step_seconds)} s"


def final_settings(
    config: Config, task: TaskName, candidate: Candidate, remaining: RemainingBudget
) -> tuple[Config, dict[str, Any]]:
    """Return the settings of the training that follows, and those of them that neither user nor recipe has set.

    Where the budget does not pay for the recommended steps, the training is cut. What it pays for beyond them goes into
    more epochs, where the recipe has a use for them, and then into members.

    Args:
        config: Settings of the user.
        task: Task of the data.
        candidate: The network to train.
        remaining: What the training may take.
    """
    recommended, affordable_steps = candidate.recommended, remaining.affordable_steps
    changes: dict[str, Any] = {}
    if (temperature := held_out_temperature(candidate)) is not None:
        changes["training.temperature"] = temperature
    if affordable_steps < recommended.steps and not has_length(config):
        steps = changes["training.max_steps"] = max(1, int(affordable_steps))
        _LOG.warning(
            f"The budget of {remaining.budget} leaves {steps:,} of the {recommended.steps:,} optimizer steps of "
            f"'{candidate.recipe.name}', so that the model may be poor. Its whole training needs "
            f"{remaining.describe_excess(recommended.steps)} more."
        )
        return merged(candidate.config, changes), changes
    if affordable_steps < recommended.steps:
        _LOG.warning(
            f"The training takes {remaining.describe_excess(recommended.steps)} more than the budget of "
            f"{remaining.budget} leaves. Leave {terms().key('training.epochs')} and "
            f"{terms().key('training.max_steps')} out for one that fits."
        )
    # A step of an ensemble that the user sets trains all of its members, and each of them has a certificate.
    certificate_steps = candidate.config.model.members * _certificate_steps(candidate, remaining)
    steps = recommended.steps
    additions: list[str] = []
    if recommended.epochs and not has_length(config):
        longer, steps = _longer(candidate, affordable_steps - certificate_steps)
        changes |= longer
        if "training.epochs" in longer:
            additions.append(f"{longer['training.epochs']:,} epochs in place of the recommended {recommended.epochs:,}")
        elif longer:
            additions.append(f"{steps:,} steps in place of the recommended {recommended.steps:,}")
    if not _has_fixed_members(config, task):
        cost = steps + certificate_steps
        members = next((count for count in _MEMBERS if count * cost <= affordable_steps), 1)
        if members > 1:
            changes["model.members"] = members
            additions.insert(0, f"{members} members")
    if additions:
        _LOG.info(f"The rest of the budget pays for {' and '.join(additions)}.")
    return merged(candidate.config, changes), changes


def most_useful_steps(config: Config, task: TaskName, candidate: Candidate, remaining: RemainingBudget) -> float:
    """Return the optimizer steps of the longest training that follows, certificates included, however much is left."""
    recommended = candidate.recommended
    steps = recommended.steps if has_length(config) else recommended.most_steps
    cost = steps + candidate.config.model.members * _certificate_steps(candidate, remaining)
    return cost if _has_fixed_members(config, task) else _MEMBERS[0] * cost


def recommended_cost(candidate: Candidate, remaining: RemainingBudget) -> float:
    """Return the optimizer steps of the recommended training, certificates included."""
    return candidate.recommended.steps + candidate.config.model.members * _certificate_steps(candidate, remaining)


def _has_fixed_members(config: Config, task: TaskName) -> bool:
    return "members" in config.model.model_fields_set or task == "predict-next"


def _longer(candidate: Candidate, affordable_steps: float) -> tuple[dict[str, int], int]:
    """Return the settings of a training that is longer than recommended, and its steps; no settings if none is."""
    recommended = candidate.recommended
    epoch_steps = recommended.steps // recommended.epochs
    # Of a few long epochs, a part of one is worth having.
    if candidate.recipe.most_epochs is not None and recommended.steps < affordable_steps < recommended.most_steps:
        steps = int(affordable_steps)
        return {"training.max_steps": steps}, steps
    epochs = min(recommended.most_epochs, int(affordable_steps / epoch_steps))
    if epochs <= recommended.epochs:
        return {}, recommended.steps
    return {"training.epochs": epochs}, epochs * epoch_steps


def has_length(config: Config) -> bool:
    """Return True if the user sets a length of the training, which is kept, whatever it takes."""
    return not config.training.model_fields_set.isdisjoint({"epochs", "max_steps"})


def _certificate_steps(candidate: Candidate, remaining: RemainingBudget) -> float:
    """Return the time of certifying a network at the end, in optimizer steps."""
    cell = described_cell(candidate.config.model)
    if remaining.budget.seconds is None or cell.lure_system() is None:
        return 0.0
    if candidate.proof != "none":
        return _KEPT_NORM_SECONDS * max(1.0, cell.hidden_size / 128) ** 2 / remaining.step_seconds
    return _SEARCHED_NORM_SECONDS * (cell.hidden_size / 64) ** 2 / remaining.step_seconds
