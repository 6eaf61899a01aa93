"""Choice of settings by cross-validation on the training data, within a budget.

Recipes are compared by successive halving: all on a few parts of the data, the better half on more. What is left of the
budget is for the training that follows.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from stablernn.data.options import TaskName
from stablernn.data.step_data import Data
from stablernn.errors import ConfigError, InterruptedRun
from stablernn.terms import terms
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.jobs import open_workers
from stablernn.training.loop.launch import stop_signals
from stablernn.training.resolve import described_cell
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import (
    LEAST_STEP_SECONDS,
    Candidate,
    comparable,
    find_baseline,
    find_candidates,
    held_out_scores,
    held_out_temperature,
    is_clearly_better,
    keep_shared_parts,
    leading,
    merged,
    open_settings,
    select,
)
from stablernn.training.search.trial import (
    CROSS_VALIDATION,
    PARTS,
    Trial,
    TrialWorkers,
    alike_sequences,
    load_all,
    resample,
)
from stablernn.training.settings.config import Config
from stablernn.training.settings.defaults import CLOSED_FORM

_LOG = logging.getLogger("stablernn.training")
_PROGRESS = logging.getLogger("stablernn.progress")


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
    with stop_signals() as stop, open_workers("stablernn-search") as workers:
        return _with_score(config, search.run(TrialWorkers(workers, _worker_count(config), stop), stop), data)


def _with_score(config: Config, choice: Choice, data: Data) -> Choice:
    """Return a choice with a validation split, where a search that compared nothing leaves none to score the model."""
    training = choice.config.training
    is_scored = CROSS_VALIDATION in choice.document or training.method == CLOSED_FORM or "test" in data.splits()
    if is_scored or not training.refit or "refit" in config.training.model_fields_set:
        return choice
    validated = choice.config.updated("training", refit=False)
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


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _worker_count(config: Config) -> int:
    import torch

    # A GPU is shared badly.
    if config.training.device != "cpu" and torch.cuda.is_available():
        return 1
    return min(_MOST_WORKERS, available_cores())


_MOST_WORKERS = 8
"""Processes at most: each takes some 300 MB, and a small search has no use for more."""
LEAST_TRAINED = 0.5
"""Share of its optimizer steps below which the first network is not trained, and the baseline is taken; and share from
which the two are compared. After a fifth of them the baseline is better on most sets, after half of them on some
(docs/guides/choosing.md)."""
ENOUGH_STEPS = 1000
"""Optimizer steps that make a network better than the baseline, however many it has in all: on MNIST the baseline gets
93.3 % right, lru 93.0 % after 500 steps and 96.3 % after 1,500 (validation split; docs/guides/choosing.md)."""
_MEASURED_STEPS = 25
"""Steps after which the speed of a training is known."""
_TRIAL_SHARE = 0.2
"""Share of the search's time that one training may take: a recipe that needs more cannot be compared on five parts."""
_SLOWEST_TRIAL = 5.0
"""Planned time of a training of the first recipe that one may take in any case, in multiples of it."""
_USED_SHARE = 0.6
"""Share of the processes' time that a search uses: the last trainings of a round leave processes idle."""
_FINALISTS = 3
"""Recipes that are compared on another draw of the folds."""
_MOST_DRAWS = 3
"""Draws of the folds; what a few dozen sequences tell about recipes is known by then."""
_RESERVE = 0.9
"""Share of the time that is left which the last training may take by its prediction."""


@dataclass(frozen=True)
class Choice:
    """Chosen settings, and how they were chosen.

    Attributes:
        config: The settings, not resolved, with a cell.
        document: What was tried, with scores, and why one was chosen, as ``choice.json`` of a run holds it.
    """

    config: Config
    document: dict[str, Any]


class Search:
    """A comparison of recipes within a budget.

    Args:
        config: Settings of the user, with the cell ``auto``.
        task: Task of the data.
        budget: What the search and the training after it may take.
        networks: The recipes to compare, the default first.
        baseline: The one in closed form; None where it does not go with the settings or the data.
        parts: Number of parts of the data, and of those on which all recipes are compared.
        began: Time of ``time.monotonic`` from which on the budget counts.
    """

    def __init__(
        self,
        config: Config,
        task: TaskName,
        budget: Budget,
        networks: list[Candidate],
        baseline: Candidate | None,
        parts: tuple[int, int],
        began: float,
    ) -> None:
        self._config = config
        self._task: TaskName = task
        self._budget = budget
        self._networks = networks
        self._baseline = baseline
        # The baseline comes last: a network that is as good goes before it.
        self._candidates = [*networks, *([] if baseline is None else [baseline])]
        # Of the data, and those on which all recipes are compared.
        self._parts, self._first_parts = parts
        self._began = began
        self._steps = 0
        # Loading and measuring, which come before a plan.
        self._preparation_seconds = 0.0
        self._processes = 1
        self._most_seconds: float | None = None

    def run(self, workers: TrialWorkers, stop: Event) -> Choice:
        """Compare the recipes and return the choice; raises as :func:`~stablernn.training.search.choose_settings`."""
        _PROGRESS.info("Comparing recipes ...")
        step_seconds, whole_steps = self._measure(workers, stop)
        plan = self._plan(workers, step_seconds, whole_steps)
        if plan is None:
            return self._without_search(step_seconds, whole_steps)
        _LOG.info(
            f"Comparing {plan.recipes} recipes on up to {plan.rounds[-1][1]} parts of the training data, "
            + ("each trained in full" if plan.share == 1 else f"each for {plan.share:.0%} of its steps")
            + f"; budget {self._budget}."
        )
        if self._budget.seconds is not None:
            # Few trainings may each take a large share of a small budget.
            planned = step_seconds * plan.share * whole_steps
            self._most_seconds = max(_TRIAL_SHARE * SEARCH_SHARE * self._budget.seconds, _SLOWEST_TRIAL * planned)
        survivors, done = self._networks[: plan.recipes], 0
        deadline = None if self._budget.seconds is None else self._began + SEARCH_SHARE * self._budget.seconds
        for recipes, upto in plan.rounds:
            if done:
                survivors = leading(survivors, recipes)
            self._run_round(workers, stop, plan.share, survivors, range(done, upto), deadline)
            survivors = comparable(survivors)
            done = upto
            if not survivors:
                return self._nothing_compared(plan, step_seconds, whole_steps)
        return self._select(self._run_further_draws(workers, stop, plan.share, survivors), plan)

    def _run_further_draws(
        self, workers: TrialWorkers, stop: Event, share: float, survivors: list[Candidate]
    ) -> list[Candidate]:
        """Compare the best recipes on other draws of the folds, as far as the last training has no use for the budget.

        On few sequences, which recipe is best depends on which of them are in a fold.
        """
        for done in range(self._parts, _MOST_DRAWS * self._parts, self._parts):
            finalists = leading(survivors, _FINALISTS)
            is_complete = all(len(candidate.results) == done for candidate in finalists)
            if self._task != "classify" or not is_complete or len(finalists) < 2:
                break
            spare = self._spare(finalists)
            if sum(self._cost(candidate) for candidate in finalists) * self._parts > spare:
                break
            names = ", ".join(f"'{candidate.recipe.name}'" for candidate in finalists)
            _LOG.info(f"Comparing {names} on another draw of {self._parts} parts.")
            deadline = None if self._budget.seconds is None else time.monotonic() + spare
            before = [(candidate, candidate.status, candidate.results) for candidate in finalists]
            for candidate in finalists:
                candidate.results = dict(candidate.results)
            self._run_round(workers, stop, share, finalists, range(done, done + self._parts), deadline)
            if not (left := keep_shared_parts(finalists)):
                # As where groups leave no fold with two classes; the draws before stand.
                for candidate, status, results in before:
                    candidate.status, candidate.reason, candidate.results = status, "", results
                break
            survivors = left
        return survivors

    def _spare(self, finalists: Sequence[Candidate]) -> float:
        """Return what the budget has beyond the last training, in seconds or steps as the budget itself.

        That is the longest training of the default, and the recommended one of any other finalist, which gets fewer
        members if it is chosen.
        """
        spare = []
        for candidate in finalists:
            remaining = self._remaining(candidate.step_seconds)
            if candidate is finalists[0]:
                last_steps = most_useful_steps(self._config, self._task, candidate, remaining)
            else:
                last_steps = recommended_cost(candidate, remaining)
            steps = remaining.affordable_steps - last_steps
            spare.append(steps if self._budget.seconds is None else steps * remaining.step_seconds)
        return min(spare)

    def _cost(self, candidate: Candidate) -> float:
        """Return what another training of a recipe on a part takes of the budget, in its unit."""
        results = candidate.results.values()
        if self._budget.seconds is None:
            return float(np.mean([result.steps for result in results]))
        # A draw that takes longer is ended in time, and recipes are compared on the parts that are done.
        return float(np.mean([result.seconds for result in results])) / self._processes

    def _select(self, survivors: list[Candidate], plan: Plan) -> Choice:
        """Return the choice among the networks that are left, and the baseline where it can be compared with them."""
        baseline = self._comparable_baseline(survivors[0])
        stopped = [candidate for candidate in self._networks if candidate not in survivors]
        # In the order of the recipes again, by which equals are told apart.
        contenders = sorted(survivors, key=self._candidates.index)
        network, _ = select(contenders)
        # A baseline has nothing more to learn; a network that gets more steps now than in the comparison has.
        is_fair = plan.share >= LEAST_TRAINED or self._final_share(network) < LEAST_TRAINED
        if baseline is not None and is_fair:
            contenders.append(baseline)
        for candidate in [*survivors, *([] if baseline is None else [baseline])]:
            candidate.status = "compared"
        selected, reason = select(contenders, stopped)
        selected.status = "chosen"
        if baseline is not None and not is_fair and is_clearly_better(baseline, selected):
            scores = f"{np.mean(baseline.scores):.4g} against {np.mean(selected.scores):.4g}"
            _LOG.warning(
                f"The baseline '{baseline.recipe.name}' is better than '{selected.recipe.name}' after {plan.share:.0%} "
                f"of its steps ({scores}), and the network gets more of them now. A larger budget compares them after "
                "half."
            )
        return self._choice(selected, reason, plan)

    def _measure(self, workers: TrialWorkers, stop: Event) -> tuple[float, int]:
        """Return the seconds of a step of the first recipe, and the steps of its whole training on a part."""
        # Of a budget in steps nothing is measured, so that the choice is the same on every machine.
        steps = 1 if self._budget.seconds is None else _MEASURED_STEPS
        first = Trial(0, self._networks[0].config, 0, PARTS, most_steps=steps)
        # One on each process, which load data and libraries at the same time.
        results = list(workers.run([first] * workers.count, None))
        if stop.is_set() or not results:
            raise self._interrupted()
        result = results[-1]
        if result.status == "failed":
            raise ConfigError(f"The recipe '{self._networks[0].recipe.name}' cannot be trained: {result.reason}")
        return max(result.step_seconds, LEAST_STEP_SECONDS), result.whole_steps

    def _plan(self, workers: TrialWorkers, step_seconds: float, whole_steps: int) -> Plan | None:
        if self._budget.steps is not None:
            affordable = SEARCH_SHARE * self._budget.steps / whole_steps
        else:
            assert self._budget.seconds is not None
            self._preparation_seconds, self._processes = time.monotonic() - self._began, workers.count
            left = SEARCH_SHARE * self._budget.seconds - self._preparation_seconds
            # The first recipe is among the fast ones.
            affordable = _USED_SHARE * self._processes * left / (step_seconds * whole_steps)
        return make_plan(
            len(self._networks), self._parts, self._first_parts, affordable, whole_steps, self._least_share
        )

    @property
    def _least_share(self) -> float:
        """Least share of their steps after which the recipes are compared."""
        # What learns longest is behind at the beginning.
        return LEAST_SHARE if self._networks[0].recipe.most_epochs is None else LEAST_TRAINED

    def _run_round(
        self,
        workers: TrialWorkers,
        stop: Event,
        share: float,
        survivors: Sequence[Candidate],
        parts: Sequence[int],
        deadline: float | None,
    ) -> None:
        """Train recipes on parts of the data, which are numbered through all draws."""
        # Part by part, so that what is out of time is a part and not a recipe. The baseline takes no steps that a share
        # could be of, and less time than any network.
        contenders = [(candidate, share) for candidate in survivors]
        if self._baseline is not None:
            contenders.insert(0, (self._baseline, 1.0))
        trials = [
            Trial(self._candidates.index(candidate), candidate.config, part, PARTS, of_steps, draw=draw)
            for draw, part in (divmod(number, self._parts) for number in parts)
            for candidate, of_steps in contenders
        ]
        for result in workers.run(trials, deadline, self._most_seconds):
            candidate = self._candidates[result.trial.recipe]
            self._steps += result.steps
            if result.status == "failed":
                candidate.status, candidate.reason = "failed", result.reason
            if result.status != "done" or candidate.status == "failed":
                continue
            candidate.status = "stopped"
            number = result.trial.draw * self._parts + result.trial.part
            candidate.results[number] = result
            _LOG.info(
                f"{candidate.recipe.name}, part {number + 1}: {result.metric} {result.score:.4g}, "
                f"{result.seconds:.1f} s"
            )
        if stop.is_set():
            raise self._interrupted()

    def _comparable_baseline(self, network: Candidate) -> Candidate | None:
        """Return the baseline with results on the parts of a network; None where it lacks any of them."""
        baseline = self._baseline
        if baseline is None or not network.results.keys() <= baseline.results.keys():
            return None
        # Where time ran out, it has been scored on more parts.
        baseline.results = {part: baseline.results[part] for part in network.results}
        return baseline

    def _choice(self, candidate: Candidate, reason: str, plan: Plan) -> Choice:
        metric = next(iter(candidate.results.values())).metric
        comparison = {"metric": metric, "better": direction(metric), "share_of_steps": round(plan.share, 4)}
        return self._choice_of(candidate, candidate.step_seconds, reason, comparison)

    def _choice_of(
        self, candidate: Candidate, step_seconds: float, reason: str, comparison: Mapping[str, Any]
    ) -> Choice:
        """Return the choice of a candidate with its settings for the training that follows."""
        config, added = self._final_settings(candidate, step_seconds)
        scores = held_out_scores(candidate)
        return Choice(
            config,
            {
                "budget": str(self._budget),
                **comparison,
                "parts": max(self._parts, *(len(each.results) for each in self._candidates)),
                "search_seconds": round(time.monotonic() - self._began, 1),
                "search_steps": self._steps,
                "chosen": candidate.recipe.name,
                "reason": reason,
                "settings": {**open_settings(self._config, candidate.recipe.settings), **added},
                "recipes": [each.document() for each in self._candidates],
                **({} if scores is None else {CROSS_VALIDATION: scores}),
            },
        )

    def _final_share(self, candidate: Candidate) -> float:
        """Return the share of its optimizer steps that a network would get in the training that follows."""
        if has_length(self._config):
            return 1.0
        return min(1.0, self._affordable_steps(candidate.step_seconds) / candidate.recommended.steps)

    def _final_settings(self, candidate: Candidate, step_seconds: float) -> tuple[Config, dict[str, Any]]:
        if candidate is self._baseline:
            return candidate.config, {}
        return final_settings(self._config, self._task, candidate, self._remaining(step_seconds))

    def _remaining(self, step_seconds: float) -> RemainingBudget:
        return RemainingBudget(self._affordable_steps(step_seconds), step_seconds, self._budget)

    def _affordable_steps(self, step_seconds: float) -> float:
        if self._budget.steps is not None:
            return max(1, self._budget.steps - self._steps)
        assert self._budget.seconds is not None
        left = self._budget.seconds - (time.monotonic() - self._began)
        return _RESERVE * max(0.0, left) / step_seconds

    def _without_search(self, step_seconds: float, whole_steps: int) -> Choice:
        first, recommended_steps = self._networks[0], self._networks[0].recommended.steps
        # Little is lost by a cut at the end of a schedule, much at its beginning.
        least_steps = min(LEAST_TRAINED * recommended_steps, ENOUGH_STEPS)
        if self._baseline is not None and self._affordable_steps(step_seconds) < least_steps:
            first = self._baseline
            needed = self._describe_whole(step_seconds, recommended_steps)
            reason = f"the budget of {self._budget} is too small to train a network on this data, which needs {needed}"
            _LOG.warning(
                f"{reason[0].upper()}{reason[1:]}, so that the baseline '{first.recipe.name}' is taken: random layers "
                "with a head that is solved for in one pass over the data."
            )
        else:
            needed = self._describe_least_budget(step_seconds, whole_steps)
            reason = f"the budget of {self._budget} compares no recipes on this data; that needs {needed}"
            extent = "for its whole length, which is set" if has_length(self._config) else "for as many steps as fit"
            _LOG.warning(f"Nothing was compared: {reason}. The recipe '{first.recipe.name}' is trained {extent}.")
        first.status = "chosen"
        return self._choice_of(first, step_seconds, reason, {})

    def _describe_whole(self, step_seconds: float, steps: int) -> str:
        """Return the budget with which a network is trained for all its steps, and nothing is compared."""
        if self._budget.seconds is None:
            return f"{steps + self._steps:,} steps"
        return f"about {math.ceil(time.monotonic() - self._began + steps * step_seconds / _RESERVE)} s"

    def _describe_least_budget(self, step_seconds: float, whole_steps: int) -> str:
        """Return the budget with which two recipes can be compared."""
        steps = (
            least_share(whole_steps, self._least_share)
            * whole_steps
            * count_trainings(halving_rounds(2, self._parts, self._first_parts))
        )
        if self._budget.seconds is None:
            return f"{math.ceil(steps / SEARCH_SHARE):,} steps"
        search_seconds = steps * step_seconds / (_USED_SHARE * self._processes)
        seconds = (self._preparation_seconds + search_seconds) / SEARCH_SHARE
        if seconds <= self._budget.seconds:
            # A search was planned, and its trainings took longer than the measured step predicts.
            seconds = 2 * self._budget.seconds
        return f"about {math.ceil(seconds / 10) * 10} s"

    def _nothing_compared(self, plan: Plan, step_seconds: float, whole_steps: int) -> Choice:
        failed = [candidate for candidate in self._candidates if candidate.status == "failed"]
        if len(failed) == len(self._candidates):
            raise ConfigError(f"No recipe can be trained on this data. '{failed[0].recipe.name}': {failed[0].reason}")
        if self._baseline is not None and self._baseline.results and len(failed) >= len(self._networks):
            self._baseline.status = "chosen"
            return self._choice(self._baseline, f"no network can be trained on this data: {failed[0].reason}", plan)
        return self._without_search(step_seconds, whole_steps)

    def _interrupted(self) -> InterruptedRun:
        done = comparable(self._candidates)
        if not done:
            return InterruptedRun("Stopped before any recipe was compared; nothing was kept.")
        best = min(done, key=lambda candidate: candidate.rank)
        settings = " ".join(
            f"--set {key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in open_settings(self._config, best.recipe.settings).items()
        )
        return InterruptedRun(
            f"Stopped while recipes were compared. The best so far, '{best.recipe.name}', is trained with {settings}"
        )


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
