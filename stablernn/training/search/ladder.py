"""Choice of settings by a ladder of models, all judged by the same parts of the training data.

Models in closed form are always compared on all parts, beside the naive answers. As far as the budget goes, networks
follow by successive halving: all on a few parts, the better half on more. What is left is for the training of what was
chosen, with more epochs or members.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from stablernn.data.options import TaskName
from stablernn.data.step_data import Data
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.errors import ConfigError, DataError, InterruptedRun
from stablernn.terms import terms
from stablernn.training.calibration import Conformal
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.jobs import open_workers
from stablernn.training.loop.launch import stop_signals
from stablernn.training.resolve import described_cell
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import (
    Candidate,
    find_closed_forms,
    find_networks,
    held_out_intervals,
    held_out_scores,
    held_out_temperature,
    keep_comparable,
    keep_leading,
    merge,
    open_settings,
    select,
)
from stablernn.training.search.speeds import Speeds
from stablernn.training.search.trial import (
    CROSS_VALIDATION,
    PARTS,
    Trial,
    TrialResult,
    TrialWorkers,
    load_all,
    resample,
)
from stablernn.training.settings.config import Config
from stablernn.training.settings.defaults import CLOSED_FORM
from stablernn.training.tasks import task_for

_LOG = logging.getLogger("stablernn.training")
_PROGRESS = logging.getLogger("stablernn.progress")


@dataclass(frozen=True)
class Choice:
    """Chosen settings, and how they were chosen.

    Attributes:
        config: The settings, not resolved, with a cell.
        document: What was tried, with scores, and why one was chosen, as ``choice.json`` of a run holds it.
        intervals: Offsets of a forecast's quantiles by what the parts held out; None where there are none.
    """

    config: Config
    document: dict[str, Any]
    intervals: Conformal | None = None


def choose_settings(config: Config, budget: Budget | None = None) -> Choice:
    """Choose the cell and other settings by cross-validation on the training data.

    A setting of the user is never changed, and the test split is in no part. What is chosen depends on counts of work
    and on speeds that were measured once (:mod:`stablernn.training.search.speeds`), not on how busy the machine is.

    Args:
        config: Settings, with the cell ``auto``.
        budget: What the search and the training after it may take; None: two minutes.

    Raises:
        ConfigError: If no recipe goes with the settings, or a budget is set for a fit in closed form, which takes none.
        DataError: If the data cannot be used.
        TrainingError: If a process died, or every recipe failed.
        InterruptedRun: If the user stopped the search before a model was compared.
    """
    if config.training.method == CLOSED_FORM and budget is not None:
        raise ConfigError(
            f"A budget is for comparing networks, and training.method={CLOSED_FORM} trains none, got a budget of "
            f"{budget}. Leave one of them out."
        )
    data, searched = load_searched(config)
    closed_forms = find_closed_forms(config, data)
    networks = [] if config.training.method == CLOSED_FORM else find_networks(config, data)
    with stop_signals() as stop, open_workers("stablernn-search") as workers:
        ladder = Ladder(config, searched, budget or Budget(), closed_forms, networks)
        return ladder.climb(TrialWorkers(workers, worker_count(config), stop), stop)


def load_searched(config: Config) -> tuple[Data, SearchedData]:
    """Return the data of a search, and what its ladder has to know of it."""
    # What this process did before, such as a notebook, is no part of the search.
    began = time.process_time()
    data = load_all(config)
    seconds = time.process_time() - began
    parts = first = 0
    try:
        parts = len(resample(data, PARTS, seed=config.training.seed, refit=config.training.refit))
        first = count_first_parts(data, parts)
    except DataError as refusal:
        _LOG.info(f"Nothing is compared: {refusal}")
    metric = task_for(data).objective(config.training).headline
    return data, SearchedData(data.task, data.fingerprint, metric, parts, first, seconds)


def worker_count(config: Config) -> int:
    """Return the number of processes of a search."""
    import torch

    # A GPU is shared badly.
    if config.training.device != "cpu" and torch.cuda.is_available():
        return 1
    return min(_MOST_WORKERS, available_cores())


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_MOST_WORKERS = 8
"""Processes at most: each takes some 300 MB, and a small search has no use for more."""
_MEASURED_STEPS = 25
"""Steps after which the speed of a training is known."""
_USED_SHARE = 0.8
"""Share of the processes' time that a search uses: the last trainings of a round leave processes idle."""
_FINALISTS = 3
"""Recipes that are compared on another draw of the folds."""
_MOST_DRAWS = 3
"""Draws of the folds; what a few dozen sequences tell about recipes is known by then."""
_RESERVE = 0.9
"""Share of the time that is left which the last training may take by its prediction."""
_LEAST_SECONDS = 1e-5
"""Time of a step that is too short to be measured, or that no training measured."""


class _SearchStopped(Exception):
    pass


@dataclass(frozen=True)
class SearchedData:
    """Facts of the data that a ladder plans by.

    Attributes:
        task: Their task.
        fingerprint: By which speeds are kept.
        metric: By which recipes are compared. A part with fewer series might have another one.
        parts: Number of parts, 0 if the data is too small for any.
        first_parts: Number of parts on which all networks are compared.
        seconds: Processor time of loading them.
    """

    task: TaskName
    fingerprint: str
    metric: str
    parts: int
    first_parts: int
    seconds: float


class Ladder:
    """A comparison of recipes within a budget.

    Times are predicted ones of a single core, so that they add up to what the command takes on an idle machine.

    Args:
        config: Settings of the user, with the cell ``auto``.
        data: What is known of the data.
        budget: What the search and the training after it may take.
        closed_forms: Recipes that take no optimizer steps.
        networks: The others, the default first.
        speeds: Speeds of this machine.
    """

    def __init__(
        self,
        config: Config,
        data: SearchedData,
        budget: Budget,
        closed_forms: list[Candidate],
        networks: list[Candidate],
        speeds: Speeds | None = None,
    ) -> None:
        self._config = config
        self._data = data
        self._budget = budget
        self._closed_forms = closed_forms
        self._networks = networks
        # The closed forms come last: of equals, a network that is proved as much goes before them.
        self._candidates = [*networks, *closed_forms]
        self._baseline_results: dict[int, TrialResult] = {}
        self._speeds = Speeds() if speeds is None else speeds
        self._share = 1.0
        self._steps = 0
        self._load_seconds = self._seconds = 0.0

    def climb(self, workers: TrialWorkers, stop: Event) -> Choice:
        """Compare the recipes and return the choice; raises as :func:`choose_settings`."""
        _PROGRESS.info("Comparing recipes ...")
        survivors: list[Candidate] = []
        try:
            self._count_start(workers)
            if self._data.parts:
                self._compare_closed_forms(workers, stop)
                survivors = self._compare_networks(workers, stop)
        except _SearchStopped:
            return self._choose_stopped()
        finally:
            self._speeds.store()
        compared = self._comparable(survivors)
        return self._choice_of(*self._select(compared)) if compared else self._choose_uncompared()

    def _count_start(self, workers: TrialWorkers) -> None:
        """Count what comes before the comparison."""
        if self._budget.seconds is None:
            return
        work = {"work": "start"}
        seconds = self._speeds.find(work)
        if seconds is None and (measured := workers.start_seconds()):
            seconds = self._speeds.keep(work, measured)
        load = {"work": "load", "data": self._data.fingerprint}
        self._load_seconds = self._speeds.keep(load, max(self._data.seconds, _LEAST_SECONDS))
        # This process and the others import one after another; what these load counts with their trials.
        self._seconds = 2 * (seconds or 0.0) + self._load_seconds

    def _compare_closed_forms(self, workers: TrialWorkers, stop: Event) -> None:
        """Score the baselines and train all models in closed form on all parts, whatever the budget."""
        parts = range(self._data.parts)
        config = [*self._closed_forms, *self._networks][0].config
        trials = [Trial(None, config, part) for part in parts] if self._data.task == "classify" else []
        self._run(workers, stop, trials + self._trials([(each, 1.0) for each in self._closed_forms], parts))
        if trials and len(self._baseline_results) == len(trials):
            work = {"work": "baselines", "data": self._data.fingerprint}
            self._count_parts(work, self._baseline_results.values(), workers.count)
        for candidate in self._closed_forms:
            # What failed on a part has the time of too few.
            if candidate.status != "failed":
                self._count_parts(
                    self._describe_work("all parts", candidate), candidate.results.values(), workers.count
                )
        if self._budget.seconds is not None and self._closed_forms and self._seconds > self._budget.seconds:
            _LOG.info(
                f"Loading the data and comparing the models in closed form took more than the budget of {self._budget}."
            )

    def _count_parts(self, work: Mapping[str, Any], results: Iterable[TrialResult], processes: int) -> None:
        """Count the time of trainings on all parts, as it was when they were first done."""
        measured = sum(result.seconds for result in results)
        self._seconds += self._speeds.keep(work, max(measured, _LEAST_SECONDS)) / processes

    def _compare_networks(self, workers: TrialWorkers, stop: Event) -> list[Candidate]:
        """Compare as many networks as the budget pays for, and return those that are left, with equally many parts."""
        self._measure(workers, stop)
        plan = self._plan(workers)
        if plan is None:
            if self._networks:
                _LOG.info(
                    f"The budget of {self._budget} compares no networks on this data; that needs "
                    f"{self._describe_least_budget(workers)}."
                )
            return []
        self._share = plan.share
        _LOG.info(
            f"Comparing {len(plan.recipes)} networks on up to {plan.rounds[-1][1]} parts of the training data, "
            + ("each trained in full" if plan.share == 1 else f"each for {plan.share:.0%} of its steps")
            + f"; budget {self._budget}."
        )
        survivors, done = list(plan.recipes), 0
        for count, upto in plan.rounds:
            if done:
                survivors = keep_leading(survivors, count)
            contenders = [(candidate, plan.share) for candidate in survivors]
            self._run(workers, stop, self._trials(contenders, range(done, upto)))
            self._count(survivors, upto - done, workers.count)
            survivors, done = keep_comparable(survivors), upto
            if not survivors:
                return []
        return self._run_further_draws(workers, stop, survivors)

    def _run_further_draws(self, workers: TrialWorkers, stop: Event, survivors: list[Candidate]) -> list[Candidate]:
        """Compare the best recipes on other draws of the folds, as far as the last training has no use for the budget.

        On few sequences, which recipe is best depends on which of them are in a fold.
        """
        parts = self._data.parts
        for done in range(parts, _MOST_DRAWS * parts, parts):
            finalists = keep_leading(survivors, _FINALISTS)
            is_complete = all(len(candidate.results) == done for candidate in finalists)
            if self._data.task != "classify" or not is_complete or len(finalists) < 2:
                break
            cost = sum(map(self._cost, finalists)) * self._share * parts
            if cost / (1 if self._budget.seconds is None else _USED_SHARE * workers.count) > self._excess_budget(
                finalists
            ):
                break
            names = ", ".join(f"'{candidate.recipe.name}'" for candidate in finalists)
            _LOG.info(f"Comparing {names} on another draw of {parts} parts.")
            rivals = [candidate for candidate in self._closed_forms if len(candidate.results) == done]
            contenders = [(candidate, self._share) for candidate in finalists] + [(rival, 1.0) for rival in rivals]
            self._run(workers, stop, self._trials(contenders, range(done, done + parts)))
            self._count(finalists, parts, workers.count)
            if not all(len(candidate.results) == done + parts for candidate, _ in contenders):
                # As where groups leave no fold with two classes. Without the draw nobody is left out for it.
                _LOG.info("That draw is left out, for it cannot be compared on all of its parts.")
                for candidate, _ in contenders:
                    candidate.status = "stopped"
                    candidate.results = {part: candidate.results[part] for part in range(done)}
                break
            survivors = finalists
        return survivors

    def _comparable(self, survivors: Sequence[Candidate]) -> list[Candidate]:
        """Return networks and models in closed form with results on the same parts, in the order of the recipes.

        Where only models in closed form are left and all have failed on a part, it is the one that got farthest.
        """
        closed_forms = [each for each in self._closed_forms if each.status != "failed"]
        if not survivors and not closed_forms:
            # The candidates keep what they finished.
            farthest = max(self._closed_forms, key=lambda each: len(each.results), default=None)
            return [farthest] if farthest is not None and farthest.results else []
        parts = set(survivors[0].results) if survivors else set(range(self._data.parts))
        closed_forms = [each for each in closed_forms if parts and parts <= each.results.keys()]
        for candidate in closed_forms:
            candidate.results = {part: candidate.results[part] for part in sorted(parts)}
        return sorted([*survivors, *closed_forms], key=self._candidates.index)

    def _trials(self, contenders: Sequence[tuple[Candidate, float]], parts: Sequence[int]) -> list[Trial]:
        """Return the trainings of recipes for a share of their steps, on parts that are numbered through all draws."""
        return [
            Trial(self._candidates.index(candidate), candidate.config, part, share, self._data.metric, draw=draw)
            for draw, part in (divmod(number, self._data.parts) for number in parts)
            for candidate, share in contenders
        ]

    def _run(self, workers: TrialWorkers, stop: Event, trials: Sequence[Trial]) -> None:
        """Run trials and give their results to the candidates."""
        for result in workers.run(trials):
            if result.trial.recipe is None:
                if result.status == "done":
                    self._baseline_results[result.trial.part] = result
                continue
            candidate = self._candidates[result.trial.recipe]
            self._steps += result.steps
            if result.status == "failed":
                candidate.status, candidate.reason = "failed", result.reason
            if result.status != "done":
                continue
            if candidate.status != "failed":
                candidate.status = "stopped"
            number = result.trial.draw * self._data.parts + result.trial.part
            candidate.results[number] = result
            _LOG.info(
                f"{candidate.recipe.name}, part {number + 1}: {result.metric} {result.score:.4g}, "
                f"{result.seconds:.1f} s"
            )
        if stop.is_set():
            raise _SearchStopped

    def _measure(self, workers: TrialWorkers, stop: Event) -> None:
        """Set the time of a step of each network, by a few steps of it where it was not measured before."""
        if self._budget.seconds is None:
            # The choice within a number of steps is the same on every machine.
            return
        for group in (self._networks[:1], self._networks[1:]):
            unknown = [each for each in group if self._speeds.find(self._describe_work("step", each)) is None]
            trials = [
                Trial(self._candidates.index(each), each.config, 0, most_steps=_MEASURED_STEPS) for each in unknown
            ]
            for result in workers.run(trials):
                assert result.trial.recipe is not None
                candidate = self._candidates[result.trial.recipe]
                if result.status == "failed":
                    candidate.status, candidate.reason = "failed", result.reason
                elif result.step_seconds > 0 and not stop.is_set():
                    # What a signal ended, or is too short to be measured, has no speed.
                    self._speeds.keep(self._describe_work("step", candidate), result.step_seconds)
            if stop.is_set():
                raise _SearchStopped
            for candidate in group:
                candidate.step_seconds = self._speeds.find(self._describe_work("step", candidate)) or _LEAST_SECONDS
                self._seconds += _MEASURED_STEPS * candidate.step_seconds / workers.count
            if self._plan(workers) is None:
                # Where the budget does not pay for the first one, the others are not measured.
                break

    def _plan(self, workers: TrialWorkers) -> Plan | None:
        networks = [candidate for candidate in self._networks if candidate.status != "failed"]
        if self._budget.seconds is None:
            assert self._budget.steps is not None
            affordable, most = SEARCH_SHARE * self._budget.steps, math.inf
        else:
            affordable = _USED_SHARE * workers.count * (SEARCH_SHARE * self._budget.seconds - self._seconds)
            most = SEARCH_SHARE * self._budget.seconds / LEAST_SHARE
        costs = [(candidate, self._cost(candidate)) for candidate in networks]
        first = self._data.first_parts
        # What one part tells apart needs no others, and what the budget does not compare on all it compares on few.
        for last in [first] if first == 1 else [min(first + _MORE_PARTS, self._data.parts), first]:
            # A process trains a network on one part after the other.
            plan = make_plan([each for each in costs if each[1] <= most / last], last, first, affordable)
            if plan is not None:
                return plan
        return None

    def _describe_least_budget(self, workers: TrialWorkers) -> str:
        """Return the budget with which the first network can be compared."""
        first = next((each for each in self._networks if each.status != "failed"), self._networks[0])
        work = LEAST_SHARE * self._cost(first) * self._data.first_parts
        if self._budget.seconds is None:
            return f"{math.ceil(work / SEARCH_SHARE):,} steps"
        processes = min(workers.count, self._data.first_parts)
        seconds = (self._seconds + work / (_USED_SHARE * processes)) / SEARCH_SHARE
        return f"about {math.ceil(seconds / 10) * 10} s"

    def _cost(self, candidate: Candidate) -> float:
        """Return what the whole training of a network takes of the budget, in its unit."""
        steps = candidate.recommended.steps
        return steps if self._budget.seconds is None else steps * candidate.step_seconds

    def _count(self, candidates: Sequence[Candidate], parts: int, processes: int) -> None:
        """Count the predicted time of trainings."""
        if self._budget.seconds is not None:
            self._seconds += sum(map(self._cost, candidates)) * self._share * parts / (_USED_SHARE * processes)

    def _excess_budget(self, finalists: Sequence[Candidate]) -> float:
        """Return what the budget has beyond the last training, in seconds or steps as the budget itself.

        That is the longest training of the default, and the recommended one of any other finalist, which gets fewer
        members if it is chosen.
        """
        spare = []
        for candidate in finalists:
            remaining = self._remaining(candidate)
            last_steps = candidate.recommended.steps + _certificate_steps(candidate, remaining)
            if candidate is finalists[0]:
                last_steps = most_useful_steps(self._config, self._data.task, candidate, remaining)
            steps = remaining.affordable_steps - last_steps
            spare.append(steps if self._budget.seconds is None else steps * remaining.step_seconds)
        return min(spare)

    def _remaining(self, candidate: Candidate) -> RemainingBudget:
        if self._budget.steps is not None:
            return RemainingBudget(max(1, self._budget.steps - self._steps), candidate.step_seconds, self._budget)
        assert self._budget.seconds is not None
        # The training that follows loads once more.
        left = max(0.0, self._budget.seconds - self._seconds - self._load_seconds)
        step_seconds = max(candidate.step_seconds, _LEAST_SECONDS)
        return RemainingBudget(_RESERVE * left / step_seconds, step_seconds, self._budget)

    def _describe_work(self, kind: str, candidate: Candidate) -> dict[str, Any]:
        """Return a description of work on the data, by which its speed is kept."""
        return {
            "work": kind,
            "settings": candidate.config.updated("training", seed=0).tree(),
            "data": self._data.fingerprint,
        }

    def _choose_uncompared(self) -> Choice:
        """Return the first recipe that did not fail, where there is nothing to compare on or nobody finished a part."""
        left = [each for each in (*self._closed_forms, *self._networks) if each.status != "failed"]
        if not left:
            failed = self._candidates[0]
            raise ConfigError(f"No recipe can be trained on this data. '{failed.recipe.name}': {failed.reason}")
        reason = f"nothing was compared within the budget of {self._budget}"
        if not self._data.parts:
            reason = "the data is too small to compare recipes on"
        _LOG.warning(f"Nothing was compared; '{left[0].recipe.name}' is trained.")
        return self._choice_of(left[0], reason)

    def _select(self, compared: list[Candidate]) -> tuple[Candidate, str]:
        """Return the one to train of candidates with results on the same parts, and why."""
        for candidate in compared:
            candidate.status = "compared"
        return select(compared, self._baselines())

    def _choose_stopped(self) -> Choice:
        """Return the best of what was compared when the user stopped the search, to be trained without additions."""
        compared = keep_comparable(self._candidates)
        if not compared:
            raise InterruptedRun("Stopped before a model was compared, so that there is none to keep.")
        best, reason = self._select(compared)
        _LOG.warning(f"Stopped: the best model so far, '{best.recipe.name}', is trained. Another Ctrl-C keeps none.")
        return self._choice_of(best, f"{reason}; the search was stopped", is_short=True)

    def _choice_of(self, candidate: Candidate, reason: str, *, is_short: bool = False) -> Choice:
        """Return the choice of a candidate with its settings for the training that follows.

        A short training has no more epochs and members than recommended.
        """
        candidate.status = "chosen"
        config = candidate.config
        added: dict[str, Any] = {}
        if candidate in self._networks:
            remaining = self._remaining(candidate)
            if is_short:
                steps = min(remaining.affordable_steps, candidate.recommended.steps)
                remaining = replace(remaining, affordable_steps=steps)
            config, added = final_settings(self._config, self._data.task, candidate, remaining)
        comparison: dict[str, Any] = {}
        if self._data.parts:
            # The baselines have it even where no recipe was compared.
            comparison = {"metric": self._data.metric, "better": direction(self._data.metric)}
        if candidate.results:
            comparison["share_of_steps"] = round(self._share, 4)
        if (scores := held_out_scores(candidate)) is not None:
            comparison[CROSS_VALIDATION] = scores
        return Choice(
            config,
            {
                "budget": None if self._config.training.method == CLOSED_FORM else str(self._budget),
                "parts": max(self._data.parts, *(len(each.results) for each in self._candidates)),
                "search_steps": self._steps,
                "chosen": candidate.recipe.name,
                "reason": reason,
                "settings": {**open_settings(self._config, candidate.recipe.settings), **added},
                "baselines": {name: list(scores.values()) for name, scores in self._baselines().items()},
                "recipes": [each.document() for each in self._candidates],
                **comparison,
            },
            held_out_intervals(candidate),
        )

    def _baselines(self) -> dict[str, dict[int, float]]:
        """Return the scores of the baselines by name and part."""
        metric = self._data.metric
        results = list(self._baseline_results.values())
        # Further draws would score them on the same sequences again.
        results += [
            each for candidate in self._candidates for each in candidate.results.values() if not each.trial.draw
        ]
        baselines: dict[str, dict[int, float]] = {}
        for result in sorted(results, key=lambda result: result.trial.part):
            for name, scores in result.scores.items():
                if isinstance(scores, Mapping) and isinstance(value := scores.get(metric), float):
                    baselines.setdefault(name, {})[result.trial.part] = value
        return baselines


SEARCH_SHARE = 0.6
"""Share of the budget for the comparison of all recipes; the rest is for the training that follows, and what that has
no use for goes to further draws of the folds."""
LEAST_SHARE = 0.5
"""Least share of its steps that a network is compared after, for one that learns longest is behind at the beginning.
Below it, fewer networks are compared instead."""
_SHARES = (1.0, 0.8, 0.65, LEAST_SHARE)
"""Shares that are planned: few, so that a small difference in speed leaves the plan as it is."""
_MOST_FIRST_PARTS = 3
"""Parts on which all networks are compared; on fewer, small data says too little."""
_ENOUGH_SCORED = 1000
"""Scored sequences on which all networks are compared if there are as many: the standard error of an accuracy of .75 is
.014 then."""
_ENOUGH_SERIES = 300
"""Scored series on which all networks are compared if there are as many: if errors of a network and a linear forecast
differ by a fifth in most of them, the standard error of the mean difference is 1 %."""
_MORE_PARTS = 2
"""Further parts for the better half."""


@dataclass(frozen=True)
class Plan:
    """Rounds of successive halving: all recipes on a few parts, the better half on more.

    Attributes:
        recipes: The recipes of the first round.
        rounds: Number of recipes, and of parts, in each round; parts of an earlier round are not repeated.
        share: Share of the whole training's optimizer steps in each training.
    """

    recipes: tuple[Candidate, ...]
    rounds: tuple[tuple[int, int], ...]
    share: float


def count_first_parts(data: Data, parts: int) -> int:
    """Return the number of parts on which all networks are compared.

    Args:
        data: The data. Groups differ too much for the number of their sequences to count.
        parts: Number of parts.
    """
    enough = _MOST_FIRST_PARTS
    if isinstance(data, ClassificationData) and data.train.groups is None:
        enough = math.ceil(_ENOUGH_SCORED * parts / (len(data.train) + len(data.validation)))
    elif isinstance(data, ForecastData):
        # Each part scores all of them.
        enough = math.ceil(_ENOUGH_SERIES / len(data.series))
    return min(_MOST_FIRST_PARTS, enough, parts)


def make_plan(costs: Sequence[tuple[Candidate, float]], parts: int, first: int, affordable: float) -> Plan | None:
    """Return the plan that a budget allows; None where not even one network can be compared.

    Args:
        costs: Recipes in their order, with what a whole training of each takes of the budget.
        parts: Parts of the data, 1 or more.
        first: Parts on which all recipes are compared.
        affordable: What the comparison may take of the budget.
    """
    for count in range(len(costs), 0, -1):
        first_costs = [cost for _, cost in costs[:count]]
        rounds = halving_rounds(count, parts, first)
        # Those that are left may be the slowest ones.
        slowest = sorted(first_costs, reverse=True)[: rounds[-1][0]]
        total = sum(first_costs) * first + sum(slowest) * (rounds[-1][1] - first)
        for share in _SHARES:
            if share * total <= affordable:
                return Plan(tuple(candidate for candidate, _ in costs[:count]), rounds, share)
    return None


def halving_rounds(recipes: int, parts: int, first: int) -> tuple[tuple[int, int], ...]:
    """Return how many recipes are compared on how many parts in each round, of which there are two at most."""
    rounds = [(recipes, first)]
    if parts > first:
        rounds.append((math.ceil(recipes / 2), parts))
    return tuple(rounds)


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
    if affordable_steps < recommended.steps:
        advice = (
            f"Leave {terms().key('training.epochs')} and {terms().key('training.max_steps')} out for one that fits."
        )
        if not has_length(config):
            changes["training.max_steps"] = max(1, int(affordable_steps))
            advice = "It is cut, so that the model may be poor."
        _LOG.warning(
            f"The training of '{candidate.recipe.name}' takes {remaining.describe_excess(recommended.steps)} more than "
            f"the budget of {remaining.budget} leaves. {advice}"
        )
        return merge(candidate.config, changes), changes
    certificate_steps = _certificate_steps(candidate, remaining)
    steps = recommended.steps
    if recommended.epochs and not has_length(config):
        longer, steps = _add_epochs(candidate, affordable_steps - certificate_steps)
        changes |= longer
    if not _has_fixed_members(config, task):
        cost = steps + certificate_steps
        members = next((count for count in _MEMBERS if count * cost <= affordable_steps), 1)
        changes |= {"model.members": members} if members > 1 else {}
    nouns = {"model.members": "members", "training.epochs": "epochs", "training.max_steps": "steps"}
    if additions := [f"{changes[key]:,} {noun}" for key, noun in nouns.items() if key in changes]:
        _LOG.info(f"The rest of the budget pays for {' and '.join(additions)}.")
    return merge(candidate.config, changes), changes


def most_useful_steps(config: Config, task: TaskName, candidate: Candidate, remaining: RemainingBudget) -> float:
    """Return the optimizer steps of the longest training that follows, certificates included, however much is left."""
    recommended = candidate.recommended
    steps = recommended.steps if has_length(config) else recommended.most_steps
    cost = steps + _certificate_steps(candidate, remaining)
    return cost if _has_fixed_members(config, task) else _MEMBERS[0] * cost


def _has_fixed_members(config: Config, task: TaskName) -> bool:
    return "members" in config.model.model_fields_set or task == "predict-next"


def _add_epochs(candidate: Candidate, affordable_steps: float) -> tuple[dict[str, int], int]:
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
    """Return the time of certifying all members that the user sets at the end, in optimizer steps."""
    cell = described_cell(candidate.config.model)
    if remaining.budget.seconds is None or cell.lure_system() is None:
        return 0.0
    seconds = _SEARCHED_NORM_SECONDS * (cell.hidden_size / 64) ** 2
    if candidate.proof != "none":
        seconds = _KEPT_NORM_SECONDS * max(1.0, cell.hidden_size / 128) ** 2
    return candidate.config.model.members * seconds / remaining.step_seconds
