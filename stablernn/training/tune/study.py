"""A study of Optuna: its folder and storage, its trials as several processes and machines share them, its results.

The storage is a journal in the study's folder, or a database that several machines share. The folder also has the run
directories of the trials, results and figures.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import optuna
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from stablernn.atomic_files import read_json, to_json_types, write_json
from stablernn.errors import CheckpointError, ConfigError, TrainingError
from stablernn.plotting import BLACK, BLUE, ORANGE, _integer_ticks, _legend_below, _save, _style, new_figure
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.tune.space import Space
from stablernn.training.tune.trial import Outcome, Scores, is_locked

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


class _NumberedSampler(TPESampler):
    """A tree-structured Parzen estimator whose random numbers depend on the seed and on the number of the trial.

    A sampler with one seed for all would begin again with the same suggestions when a study is resumed, and two
    processes would suggest the same. With one worker, a resumed study equals one that was never stopped.
    """

    def __init__(self, seed: int) -> None:
        self._study_seed = seed
        self._seed_again(seed)

    def _seed_again(self, seed: int) -> None:
        with quiet():
            # Trials that are running count as bad ones, so that workers do not all try the same place.
            super().__init__(seed=seed, constant_liar=True)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._seed_again(int(np.random.SeedSequence([self._study_seed, trial.number]).generate_state(1)[0]))
        super().before_trial(study, trial)


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


HEARTBEAT_SECONDS = 60
"""Interval at which a machine tells a database that its trials are alive."""
GRACE_SECONDS = 300
"""Silence after which another machine takes a trial for dead: four heartbeats may be lost."""

OnStale = Callable[[Study, FrozenTrial], None]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what Optuna says about experimental arguments and in its log; errors still raise."""
    optuna.logging.disable_default_handler()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Heartbeats are recorded by the search here, which Optuna knows of its own loop only.
        warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed to be used")
        yield


class _JournalLock(JournalFileOpenLock):
    """A lock on a journal that the operating system frees with its process, however that ends.

    Optuna's own locks are files that a killed process leaves behind, and others wait half a minute for it.

    Args:
        path: The journal.
    """

    def __init__(self, path: Path) -> None:
        # Not the name of the files of Optuna's locks, which mean something by their existence.
        self._file_lock = filelock.FileLock(path.with_suffix(".lock"))

    def acquire(self) -> bool:
        self._file_lock.acquire()
        return True

    def release(self) -> None:
        self._file_lock.release()


def open_journal(path: Path) -> JournalStorage:
    """Return the storage of a journal, which is created.

    Raises:
        ConfigError: If it is not the journal of a study.
    """
    lock = _JournalLock(path)
    if path.is_file():
        lock.acquire()
        try:
            _drop_partial_line(path)
        finally:
            lock.release()
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"'{path}' is not the journal of a study, or is damaged: {error}. Restore the file, or name another folder "
            "with --output."
        ) from error


def _drop_partial_line(path: Path) -> None:
    """Cut off a last line that a power cut left unfinished: no line could be appended to it."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


def without_password(url: str) -> str:
    """Return the address of a database as messages and files may have it.

    Raises:
        ConfigError: If it is none.
    """
    # SQLAlchemy is imported where a database is used.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "--storage is the address of a database as SQLAlchemy takes it, such as sqlite:///study.db or "
            f"postgresql://user:password@host/database, got '{url}'. Leave it out for a journal in --output."
        ) from None


def open_database(url: str, on_stale: OnStale) -> RDBStorage:
    """Return the storage of a database, in which tables are created.

    Args:
        url: Its address.
        on_stale: Called with a trial that was marked as failed, since no machine has told that it is alive.

    Raises:
        ConfigError: If it cannot be opened.
    """
    from sqlalchemy.exc import SQLAlchemyError

    options: dict[str, Any] = {"heartbeat_interval": HEARTBEAT_SECONDS, "grace_period": GRACE_SECONDS}
    try:
        with quiet():
            return RDBStorage(url, **options, heartbeat_stale_trial_callback=on_stale)
    except ImportError as error:
        raise ConfigError(
            f"The database '{without_password(url)}' needs a driver that is not installed: {error.__cause__ or error}. "
            "Install it with pip."
        ) from error
    except (SQLAlchemyError, RuntimeError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        raise ConfigError(
            f"Cannot open the database '{without_password(url)}': {reason.removesuffix('.')}. Check its address and "
            "that it can be reached, or leave --storage out for a journal in --output."
        ) from error


JOURNAL = "journal"
"""Storage of a study that has no database."""


def default_output(source: str, cells: Sequence[str]) -> Path:
    """Return the default folder of a study, below ``tuning`` in the working directory.

    Args:
        source: Name of the dataset or path of the file.
        cells: Keys of the cells; empty for those of the recipes of `stablernn train`.
    """
    stem = Path(source).name.lower().removesuffix(".gz").rsplit(".", 1)[0]
    slug = re.sub(r"[^a-z0-9_-]+", "-", stem).strip("-") or "data"
    return Path("tuning") / "-".join([slug, *(cells or ("auto",))])


@dataclass(frozen=True)
class Identity:
    """The names that tie a folder to a study.

    Attributes:
        folder: Random name of the folder, by which its trials know it among those of other machines, wherever it lies.
        study: Name of the study.
        storage: ``journal``, or the address of the database without its password.
    """

    folder: str
    study: str
    storage: str


class StudyFolder:
    """Files of a study on this machine.

    Args:
        path: The folder, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity = path / "study.json"
        self.journal = path / "journal.log"
        self.trials = path / "trials"
        self.results = path / "results.json"
        self.plots = path / "plots"

    def run(self, name: str) -> Path:
        """Return the run directory of a trial by its name."""
        return self.trials / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from starting trials or declaring them dead; held for moments."""
        with filelock.FileLock(self.path / ".lock"):
            yield

    def check_storage(self, storage: str) -> None:
        """Refuse a storage other than that of the study, if there is one.

        Raises:
            ConfigError: If the folder belongs to a study in another storage.
        """
        if self.identity.is_file():
            self._read_identity(storage)

    def claim(self, storage: str) -> Identity:
        """Return the identity of the folder, which is created; its study is that of ``storage``.

        Args:
            storage: As of :class:`Identity`.

        Raises:
            ConfigError: If the folder cannot be created, or belongs to a study in another storage.
        """
        try:
            self.trials.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Cannot create the folder '{error.filename}': {error.strerror}.") from error
        with self.locked():
            if not self.identity.is_file():
                # The name is stored, so that the folder can be moved.
                identity = Identity(uuid.uuid4().hex, self.path.resolve().name, storage)
                write_json(self.identity, vars(identity))
                return identity
        return self._read_identity(storage)

    def _read_identity(self, storage: str) -> Identity:
        content = read_json(self.identity)
        try:
            identity = Identity(**content)
        except TypeError:
            raise CheckpointError(
                f"'{self.identity}' does not describe a study. Restore the file, or name another folder with --output."
            ) from None
        if identity.storage != storage:
            raise ConfigError(
                f"The study in '{self.path}' is stored in '{identity.storage}', got '{storage}'. Give the same "
                "--storage, or name another folder with --output."
            )
        return identity


Results = dict[str, Any]

_FEWEST_TRIALS = 10
"""Trials below which the importances of parameters are noise: the best tenth of fewer is no sample."""
_STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def write_results(study: TuningStudy, folder: StudyFolder, space: Space, metric: str, require: str) -> Results:
    """Write ``results.json`` and the figures, and return the content of the file.

    Raises:
        TrainingError: If no trial was successful.
    """
    trials = study.finished()
    best = study.best()
    if best is None:
        raise TrainingError(_describe_failure(trials, require))
    better = direction(metric) or "lower"
    documents = [_describe(trial, study, space) for trial in trials]
    importances = _importances(study)
    done = [document for document in documents if document["state"] == "done"]
    ranked = sorted(done, key=lambda document: document["value"], reverse=better == "higher")
    results: Results = {
        "study": study.study.study_name,
        "output": str(folder.path),
        "storage": study.storage_name,
        "metric": metric,
        "better": better,
        "require": require,
        "counts": {
            state: sum(document["state"] == state for document in documents) for state in ("done", "pruned", "failed")
        },
        "running": len(study.running()),
        "best": ranked[0],
        "ranked": [document["number"] for document in ranked],
        "importances": importances,
        "trials": documents,
    }
    write_json(folder.results, results)
    plot_history(folder.plots / "history.png", documents, metric, better)
    if importances:
        plot_importances(folder.plots / "importances.png", importances, len(done))
    return dict(to_json_types(results))


def _describe(trial: FrozenTrial, study: TuningStudy, space: Space) -> dict[str, Any]:
    facts = trial.user_attrs
    settings = space.settings(trial.params)
    return {
        "number": trial.number,
        "state": _STATES[trial.state],
        "value": trial.value if trial.state == TrialState.COMPLETE else None,
        "certificate": facts.get("kind"),
        "epochs": facts.get("epochs"),
        "reason": facts.get("reason") or ("its process died several times" if "status" not in facts else ""),
        "cell": settings["model.cell"],
        "settings": settings,
        "run": study.run_path(trial),
        "resumes": facts.get("resumes"),
    }


def _importances(study: TuningStudy) -> dict[str, float]:
    """Return the shares of the parameters in the score, the largest first; empty where there are too few trials."""
    values = [trial.value for trial in study.finished() if trial.state == TrialState.COMPLETE]
    if len(values) < _FEWEST_TRIALS or len(set(values)) < 2:
        return {}
    # PED-ANOVA needs no other package, and counts a parameter that some trials lack by those that have it.
    with quiet(), warnings.catch_warnings():
        # It warns of parameters with too few trials, whose importance is then 0.
        warnings.simplefilter("ignore")
        importances = get_param_importances(study.study, evaluator=PedAnovaImportanceEvaluator())
    return {name: round(value, 4) for name, value in importances.items()}


def _describe_failure(trials: list[FrozenTrial], require: str) -> str:
    if not trials:
        return "No trial was finished in the time. Run the same command again to go on, with a longer --timeout."
    reasons = [str(trial.user_attrs.get("reason") or "its process died several times") for trial in trials]
    most_frequent = max(dict.fromkeys(reasons), key=reasons.count)
    sentence = f"None of {len(trials)} trials was successful; most often: {most_frequent}."
    if any(trial.user_attrs.get("status") == "weaker" for trial in trials):
        sentence += (
            f" Search cells that training keeps '{require}' (docs/background/stability.md names them), with "
            "--set training.certified=true where that is not the default, or require less."
        )
    return sentence


def plot_history(path: Path, trials: Sequence[Mapping[str, Any]], metric: str, better: str) -> None:
    """Plot the score of each trial that is done, the best score so far, and the numbers of those that were pruned.

    Args:
        path: PNG file.
        trials: Trials as ``results.json`` has them.
        metric: Name of the score.
        better: ``higher`` or ``lower``.
    """
    _save(history_figure(trials, metric, better), path)


def history_figure(trials: Sequence[Mapping[str, Any]], metric: str, better: str) -> Figure:
    """Return the figure of :func:`plot_history`."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    _style(axes, f"trials of the search, {better} is better")
    done = [(trial["number"], trial["value"]) for trial in trials if trial["value"] is not None]
    numbers, values = [number for number, _ in done], [value for _, value in done]
    axes.plot(numbers, values, color=BLUE, marker="o", markersize=4, linestyle="none", label="done")
    best = list(accumulate(values, max if better == "higher" else min))
    axes.step(numbers, best, where="post", color=ORANGE, linewidth=1.4, label="best so far")
    ended = [trial["number"] for trial in trials if trial["value"] is None]
    if ended:
        # They have no score; their place is above the lower edge, where no tick covers them.
        edge = axes.get_xaxis_transform()
        axes.plot(ended, [0.03] * len(ended), "x", color=BLACK, markersize=6, transform=edge, label="pruned or failed")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"validation {metric.replace('_', ' ')}")
    _integer_ticks(axes.xaxis)
    _legend_below(figure, ncols=3)
    return figure


def plot_importances(path: Path, importances: Mapping[str, float], trials: int) -> None:
    """Plot the share of each parameter in the score.

    Args:
        path: PNG file.
        importances: Shares by parameter, the largest first.
        trials: Number of trials that they are estimated from.
    """
    names = list(importances)[::-1]
    figure = new_figure(7, 1.4 + 0.32 * len(names))
    axes = figure.subplots()
    _style(axes, f"importance of the parameters, PED-ANOVA of {trials} trials")
    axes.barh(names, [importances[name] for name in names], color=BLUE, height=0.6)
    axes.set_xlabel("share of the total importance")
    axes.set_xlim(left=0)
    _save(figure, path)
