"""A study: its definition, which never changes, and its trials, as several processes and machines share them."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.pruners import MedianPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from stablernn.atomic_files import to_json_types
from stablernn.errors import ConfigError
from stablernn.training.tune.folder import JOURNAL, StudyFolder
from stablernn.training.tune.objective import Outcome, Scores
from stablernn.training.tune.space import Space
from stablernn.training.tune.storage import open_database, open_journal, quiet, without_password
from stablernn.training.tune.workers import is_locked

MOST_ATTEMPTS = 3
"""Processes that may die over the same parameters before these are given up: they may take too much memory."""
_WARM_UP_PERCENT = 25
"""Share of a training before which no trial is pruned: schedules of the learning rate begin with a rise."""
_FIRST_TRIALS = 5
"""Finished trials before one is pruned."""
_CREATION_SECONDS = 10.0
"""Longest time that the creator of a study takes to define it."""

_DEFINITION = "stablernn"
"""User attribute of a study with its definition."""


class _NumberedSampler(BaseSampler):
    """A tree-structured Parzen estimator whose random numbers depend on the seed and on the number of the trial.

    A sampler with one seed for all would begin again with the same suggestions when a study is resumed, and two
    processes would suggest the same. With one worker, a resumed study equals one that was never stopped.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sampler = TPESampler(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        seed = int(np.random.SeedSequence([self._seed, trial.number]).generate_state(1)[0])
        with quiet():
            # Trials that are running count as bad ones, so that workers do not all try the same place.
            self._sampler = TPESampler(seed=seed, constant_liar=True)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._sampler.after_trial(study, trial, state, values)


@dataclass(frozen=True)
class StartedTrial:
    """A trial that a worker is to train.

    Attributes:
        trial: Optuna's object.
        number: Its number.
        run: Name of its run directory below ``trials``.
        resumes: Number of the trial whose run it goes on with; None for a new run.
    """

    trial: Trial
    number: int
    run: str
    resumes: int | None


class TuningStudy:
    """A study with its trials.

    Args:
        folder: Folder of this machine's trials.
        storage_url: Database; None for the journal in the folder.
        direction: ``higher`` or ``lower``: the better values of the metric.
        seed: Seed of the sampler.
        definition: All that decides its trials, as JSON types, by dotted key.
        first: Parameters of the first trials.

    Raises:
        ConfigError: If the study was begun with another definition, or the storage cannot be opened.
    """

    def __init__(
        self,
        folder: StudyFolder,
        storage_url: str | None,
        *,
        direction: str,
        seed: int,
        definition: Mapping[str, Any],
        first: Sequence[Mapping[str, Any]],
    ) -> None:
        self._folder = folder
        self.storage_name = JOURNAL if storage_url is None else without_password(storage_url)
        self._storage: BaseStorage
        if storage_url is None:
            self._identity = folder.claim(self.storage_name)
            self._storage = open_journal(folder.journal)
        else:
            folder.check_storage(self.storage_name)
            self._storage = open_database(storage_url, lambda _, trial: self._enqueue_again(trial, counts=True))
            # The folder of an address that cannot be opened stays free for the right one.
            self._identity = folder.claim(self.storage_name)
        sampler = _NumberedSampler(seed)
        pruner = MedianPruner(n_startup_trials=_FIRST_TRIALS, n_warmup_steps=_WARM_UP_PERCENT, n_min_trials=2)
        definition = dict(to_json_types(definition))
        with quiet(), folder.locked():
            try:
                self.study = optuna.create_study(
                    storage=self._storage,
                    sampler=sampler,
                    pruner=pruner,
                    study_name=self._identity.study,
                    direction="maximize" if direction == "higher" else "minimize",
                )
            except DuplicatedStudyError:
                self.study = optuna.load_study(
                    storage=self._storage, sampler=sampler, pruner=pruner, study_name=self._identity.study
                )
                self._compare(definition)
            else:
                for params in first:
                    self.study.enqueue_trial(dict(params))
                # Last: a study with a definition has its first trials.
                self.study.set_user_attr(_DEFINITION, definition)
        self._heartbeat_at = 0.0

    def _compare(self, definition: Mapping[str, Any]) -> None:
        """Refuse a definition that differs from the one with which the study was begun."""
        deadline = time.monotonic() + _CREATION_SECONDS
        # Another machine may be about to create it.
        while (stored := self.study.user_attrs.get(_DEFINITION)) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        where = f"'{self._folder.path}'" if self.storage_name == JOURNAL else f"'{self.storage_name}'"
        if stored is None:
            raise ConfigError(
                f"The study '{self._identity.study}' in {where} was not begun by `stablernn tune`. Name another folder "
                "with --output, which also names the study."
            )
        for key in [*stored, *definition]:
            before, after = stored.get(key), definition.get(key)
            if before != after:
                raise ConfigError(
                    f"The study in {where} was begun with {key}={before!r}, got {after!r}. Repeat its settings to go "
                    "on with it, or name another folder with --output."
                )

    def count_left(self, target: int | None, mine: Collection[int]) -> int | None:
        """Return how many trials are to be started, after those whose processes have died are marked to be repeated.

        The lock of the folder must be held.

        Args:
            target: Number of trials of the study, of all processes; None for no limit.
            mine: Numbers of the trials that run in this process.
        """
        self._repeat_dead(mine)
        return None if target is None else max(0, target - len(self.finished()) - len(self.running()))

    def start_trial(self, space: Space) -> StartedTrial:
        """Return a new trial, or one that is to be repeated.

        The lock of the folder must be held until a worker holds that of the run: others would take the trial for dead.
        """
        with quiet():
            trial = self.study.ask()
        space.suggest(trial)
        attributes = trial.user_attrs
        # The run of a trial that another machine had begun is not here, so that it is trained from the beginning.
        is_here = attributes.get("folder") == self._identity.folder
        run = attributes["run"] if is_here else str(trial.number)
        described = {"folder": self._identity.folder, "run": run, "host": socket.gethostname()}
        for key, value in {**described, "path": str(self._folder.run(run).resolve())}.items():
            trial.set_user_attr(key, value)
        self._record_heartbeat(trial.number)
        return StartedTrial(trial, trial.number, run, attributes.get("resumes") if is_here else None)

    def report(self, started: StartedTrial, scores: Scores) -> bool:
        """Store the scores of a trial; return False if it is pruned."""
        trial = started.trial
        reported = self.study.get_trials(deepcopy=False)[started.number].intermediate_values
        try:
            for percent, value in scores.values.items():
                if percent not in reported:
                    trial.report(value, percent)
        except UpdateFinishedTrialError:
            # This process was silent for so long that another machine has begun the trial again.
            return False
        return not trial.should_prune()

    def finish(self, started: StartedTrial, outcome: Outcome) -> None:
        """Store the end of a trial.

        Settings that cannot be trained, or prove too little, count as pruned: the sampler avoids them, and they are
        never the best.
        """
        states = {"done": TrialState.COMPLETE, "failed": TrialState.FAIL}
        state = states.get(outcome.status, TrialState.PRUNED)
        value = outcome.value if state == TrialState.COMPLETE else None
        try:
            for key in ("status", "kind", "epochs", "reason"):
                started.trial.set_user_attr(key, getattr(outcome, key))
            with quiet():
                self.study.tell(started.number, value, state, skip_if_finished=True)
        except UpdateFinishedTrialError:
            # As above.
            return

    def repeat(self, number: int, *, counts: bool = True) -> None:
        """Mark a trial as failed, and let another one go on with its run.

        Args:
            number: Number of the trial.
            counts: True if its process died, which is allowed a few times.
        """
        trial = self.study.get_trials(deepcopy=False)[number]
        # In this order, so that a kill between the two loses no parameters.
        self._enqueue_again(trial, counts=counts)
        with quiet():
            self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def _enqueue_again(self, trial: FrozenTrial, *, counts: bool) -> None:
        attempts = trial.user_attrs.get("attempts", 0) + counts
        if attempts >= MOST_ATTEMPTS or any(
            other.user_attrs.get("resumes") == trial.number for other in self.study.get_trials(deepcopy=False)
        ):
            return
        attributes: dict[str, Any] = {"resumes": trial.number, "attempts": attempts}
        attributes |= {key: trial.user_attrs[key] for key in ("folder", "run") if key in trial.user_attrs}
        self.study.enqueue_trial(trial.params, user_attrs=attributes)

    def _repeat_dead(self, mine: Collection[int]) -> None:
        """Repeat the trials whose processes have died."""
        for trial in self._trials(TrialState.RUNNING):
            if trial.number in mine:
                continue
            run = trial.user_attrs.get("run")
            if self.storage_name == JOURNAL:
                # A process that died while it started the trial left no run.
                is_dead = run is None or not is_locked(self._folder.run(run))
            else:
                # The heartbeats tell of the trials of other folders.
                is_here = trial.user_attrs.get("folder") == self._identity.folder
                is_dead = is_here and not is_locked(self._folder.run(str(run)))
            if is_dead:
                self.repeat(trial.number)
        if isinstance(self._storage, RDBStorage):
            with quiet():
                optuna.storages.fail_stale_trials(self.study)

    def keep_alive(self, mine: Collection[int], interval: float) -> None:
        """Tell a database that trials are alive, if the last time is longer ago than an interval in seconds."""
        if time.monotonic() - self._heartbeat_at >= interval:
            self._heartbeat_at = time.monotonic()
            for number in mine:
                self._record_heartbeat(number)

    def _record_heartbeat(self, number: int) -> None:
        if isinstance(self._storage, RDBStorage):
            study_id = self._storage.get_study_id_from_name(self._identity.study)
            self._storage.record_heartbeat(self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def finished(self) -> list[FrozenTrial]:
        """Return the trials that are done, pruned, or failed and not repeated, in their order."""
        repeated = {trial.user_attrs.get("resumes") for trial in self.study.get_trials(deepcopy=False)}
        ended = self._trials(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return [trial for trial in ended if trial.number not in repeated]

    def running(self) -> list[FrozenTrial]:
        """Return the trials that are being trained, by any process."""
        return self._trials(TrialState.RUNNING)

    def best(self) -> FrozenTrial | None:
        """Return the best trial that is done; None before there is one."""
        done = self._trials(TrialState.COMPLETE)
        if not done:
            return None
        is_higher_better = self.study.direction == optuna.study.StudyDirection.MAXIMIZE
        # Of equal ones the first.
        return max(done, key=lambda trial: (trial.value or 0.0) * (1 if is_higher_better else -1))

    def run_path(self, trial: FrozenTrial) -> str:
        """Return the run directory of a trial, after the name of its machine if it is in another folder."""
        facts = trial.user_attrs
        if facts.get("folder") == self._identity.folder:
            return str(self._folder.run(facts["run"]))
        return f"{facts.get('host')}:{facts.get('path')}"

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)
