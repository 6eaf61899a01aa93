"""Choice of settings by cross-validation on the training data, within a budget."""

from __future__ import annotations

import logging
import time

from stablernn.data.step_data import Data
from stablernn.errors import ConfigError
from stablernn.training.loop.stop_signals import stop_signals
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate, find_baseline, find_candidates, open_settings
from stablernn.training.search.plan import PARTS, first_parts
from stablernn.training.search.resampling import alike_sequences, resample
from stablernn.training.search.successive_halving import Choice, Search
from stablernn.training.search.trial import CROSS_VALIDATION, load_all
from stablernn.training.search.workers import MOST_WORKERS, available_cores, open_workers
from stablernn.training.settings.closed_form import CLOSED_FORM
from stablernn.training.settings.config import Config

_LOG = logging.getLogger("stablernn.training")


def choose_settings(config: Config, budget: Budget | None = None) -> Choice:
    """Choose the cell and other settings by cross-validation on the training data.

    A few recipes are trained on parts of the training data and scored on the rest, by successive halving: the worse
    ones are stopped after a few parts. A setting of the user is never changed, and the test split is in no part.

    Args:
        config: Settings, with the cell ``auto``.
        budget: What the search and the training after it may take; None: two minutes.

    Raises:
        ConfigError: If no recipe goes with the settings, or a budget is set for a fit in closed form, which takes none.
        DataError: If the data cannot be used, or has too few sequences or steps to compare settings on.
        TrainingError: If a process died, or every recipe failed.
        InterruptedRun: If the user stopped the search; its message has the best settings so far.
    """
    began = time.monotonic()
    data = load_all(config)
    if config.training.method == CLOSED_FORM:
        return _closed_form(config, data, budget)
    budget = budget or Budget()
    networks = find_candidates(config, data)
    parts = len(resample(data, PARTS, seed=config.training.seed, refit=networks[0].config.training.refit))
    first = first_parts(alike_sequences(data), parts)
    search = Search(config, data.task, budget, networks, _baseline_or_none(config, data), (parts, first), began)
    with stop_signals() as stop, open_workers(_worker_count(config), stop) as workers:
        return _with_score(config, search.run(workers, stop), data)


def _with_score(config: Config, choice: Choice, data: Data) -> Choice:
    """Return a choice with a validation split, where a search that compared nothing leaves none to score the model."""
    training = choice.config.training
    is_scored = CROSS_VALIDATION in choice.document or training.method == CLOSED_FORM or "test" in data.splits()
    if is_scored or not training.refit or "refit" in config.training.model_fields_set:
        return choice
    validated = choice.config.model_copy(update={"training": training.model_copy(update={"refit": False})})
    settings = {**choice.document["settings"], "training.refit": False}
    return Choice(validated, {**choice.document, "settings": settings})


def _closed_form(config: Config, data: Data, budget: Budget | None) -> Choice:
    """Return the only recipe of a fit in closed form, with nothing to compare it with."""
    if budget is not None:
        raise ConfigError(
            f"A budget is for comparing networks, and training.method={CLOSED_FORM} trains none, got a budget of "
            f"{budget}. Leave one of them out."
        )
    baseline = find_baseline(config, data)
    return Choice(
        baseline.config,
        {
            "budget": None,
            "parts": 0,
            "search_seconds": 0.0,
            "search_steps": 0,
            "chosen": baseline.recipe.name,
            "reason": f"the recipe of training.method={CLOSED_FORM}",
            "settings": open_settings(config, baseline.recipe.settings),
            "recipes": [baseline.document()],
        },
    )


def _baseline_or_none(config: Config, data: Data) -> Candidate | None:
    """Return the baseline; None where it does not go with the settings or the data."""
    try:
        return find_baseline(config, data)
    except ConfigError as refusal:
        _LOG.debug(f"There is no baseline in closed form: {refusal}")
        return None


def _worker_count(config: Config) -> int:
    import torch

    # A GPU is shared badly.
    if config.training.device != "cpu" and torch.cuda.is_available():
        return 1
    return min(MOST_WORKERS, available_cores())
