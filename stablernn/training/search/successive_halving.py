"""Successive halving of recipes: trainings on parts of the data, and the choice among those that are left."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from stablernn.data.options import TaskName
from stablernn.errors import ConfigError, InterruptedRun
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import (
    LEAST_STEP_SECONDS,
    Candidate,
    comparable,
    held_out_scores,
    is_clearly_better,
    keep_shared_parts,
    leading,
    open_settings,
    select,
)
from stablernn.training.search.final_training import (
    RemainingBudget,
    final_settings,
    has_length,
    most_useful_steps,
    recommended_cost,
)
from stablernn.training.search.plan import (
    LEAST_SHARE,
    PARTS,
    SEARCH_SHARE,
    Plan,
    count_trainings,
    halving_rounds,
    least_share,
    make_plan,
)
from stablernn.training.search.trial import CROSS_VALIDATION, Trial
from stablernn.training.search.workers import Workers
from stablernn.training.settings.config import Config

_LOG = logging.getLogger("stablernn.training")
_PROGRESS = logging.getLogger("stablernn.progress")

LEAST_TRAINED = 0.5
"""Share of its optimizer steps below which the first network is not trained, and the baseline is taken; and share from
which the two are compared. After a fifth of them the baseline is better on most sets, after half of them on some
(docs/choosing.md)."""
ENOUGH_STEPS = 1000
"""Optimizer steps that make a network better than the baseline, however many it has in all: on MNIST the baseline gets
93.3 % right, lru 93.0 % after 500 steps and 96.3 % after 1,500 (validation split; docs/choosing.md)."""
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

    def run(self, workers: Workers, stop: Event) -> Choice:
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
        self, workers: Workers, stop: Event, share: float, survivors: list[Candidate]
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

    def _measure(self, workers: Workers, stop: Event) -> tuple[float, int]:
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

    def _plan(self, workers: Workers, step_seconds: float, whole_steps: int) -> Plan | None:
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
        workers: Workers,
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
