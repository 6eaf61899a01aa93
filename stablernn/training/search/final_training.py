"""The training that follows a search: what the rest of the budget is spent on."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from stablernn.data.options import TaskName
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
class TrainingLength:
    """Optimizer steps that a training may take, and those that are recommended.

    Attributes:
        affordable_steps: Optimizer steps that the rest of the budget pays for.
        step_seconds: Time of one.
        whole_steps: Optimizer steps of the recommended training.
        whole_epochs: Its epochs, 0 where its length is a number of steps.
        budget: The budget of the search and this training together.
    """

    affordable_steps: float
    step_seconds: float
    whole_steps: int
    whole_epochs: int
    budget: Budget

    def describe_excess(self) -> str:
        """Return what the budget lacks for the recommended training."""
        steps = self.whole_steps - max(1, int(self.affordable_steps))
        return f"{steps:,} steps" if self.budget.seconds is None else f"about {math.ceil(steps * self.step_seconds)} s"


def final_settings(
    config: Config, task: TaskName, candidate: Candidate, length: TrainingLength
) -> tuple[Config, dict[str, Any]]:
    """Return the settings of the training that follows, and those of them that neither user nor recipe has set.

    Where the budget does not pay for the recommended steps, the training is cut. What it pays for beyond them goes into
    more epochs, where the recipe has a use for them, and then into members.

    Args:
        config: Settings of the user.
        task: Task of the data.
        candidate: The network to train.
        length: What the training may take.
    """
    changes: dict[str, Any] = {}
    if (temperature := held_out_temperature(candidate)) is not None:
        changes["training.temperature"] = temperature
    if length.affordable_steps < length.whole_steps and not has_length(config):
        steps = changes["training.max_steps"] = max(1, int(length.affordable_steps))
        _LOG.warning(
            f"The budget of {length.budget} leaves {steps:,} of the {length.whole_steps:,} optimizer steps of "
            f"'{candidate.recipe.name}', so that the model may be poor. Its whole training needs "
            f"{length.describe_excess()} more."
        )
        return merged(candidate.config, changes), changes
    certificate_steps = _certificate_steps(candidate, length)
    whole_steps = float(length.whole_steps)
    most_epochs = candidate.recipe.most_epochs
    if most_epochs is None:
        most_epochs = candidate.recipe.most_times * length.whole_epochs
    if length.whole_epochs and not has_length(config):
        epoch_steps = whole_steps / length.whole_epochs
        epochs = min(most_epochs, int((length.affordable_steps - certificate_steps) / epoch_steps))
        if epochs > length.whole_epochs:
            changes["training.epochs"] = epochs
            whole_steps = epochs * epoch_steps
    if "members" not in config.model.model_fields_set and task != "predict-next":
        cost = whole_steps + certificate_steps
        members = next((count for count in _MEMBERS if count * cost <= length.affordable_steps), 1)
        if members > 1:
            changes["model.members"] = members
    return merged(candidate.config, changes), changes


def has_length(config: Config) -> bool:
    """Return True if the user sets a length of the training, which is kept, whatever it takes."""
    return not config.training.model_fields_set.isdisjoint({"epochs", "max_steps"})


def _certificate_steps(candidate: Candidate, length: TrainingLength) -> float:
    """Return the time of certifying a network at the end, in optimizer steps."""
    cell = described_cell(candidate.config.model)
    if length.budget.seconds is None or cell.lure_system() is None:
        return 0.0
    if candidate.proof != "none":
        return _KEPT_NORM_SECONDS * max(1.0, cell.hidden_size / 128) ** 2 / length.step_seconds
    return _SEARCHED_NORM_SECONDS * (cell.hidden_size / 64) ** 2 / length.step_seconds
