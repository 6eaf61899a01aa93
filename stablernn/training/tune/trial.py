"""Trials of a study: ordinary runs whose validation metric is reported after each epoch, in processes of their own.

The test split is scored by the end of a run as in any other, and no part of the search sees it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import filelock

from stablernn.certificates.certificate import KINDS, prove
from stablernn.errors import CertificateError, ConfigError, InterruptedRun, StableRNNError, TrainingError
from stablernn.training.callbacks import open_trackers
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.loaded_run import load_run
from stablernn.training.loop.base_trainer import Progress
from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import Config
from stablernn.training.train_model import train

Status = Literal["done", "pruned", "weaker", "refused", "failed", "interrupted"]


@dataclass(frozen=True)
class Order:
    """A run to train.

    Attributes:
        config: Its settings, not resolved.
        directory: The run directory. A run in it is resumed.
        require: Weakest kind of certificate that is accepted.
        metric: Validation metric that models are chosen by.
        track: Names of trackers that the run is logged to.
    """

    config: Config
    directory: Path
    require: str
    metric: str
    track: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scores:
    """Validation scores so far.

    Attributes:
        values: Metric by the percent of the training after which it was computed, which is the same share of every
            run, however many epochs its cell is trained for.
    """

    values: dict[int, float]


@dataclass(frozen=True)
class Outcome:
    """The end of a trial.

    Attributes:
        status: ``done``; ``pruned`` by the scores of other trials; ``weaker`` where less is proved than is required;
            ``refused`` where the settings do not go together, or the training diverged; ``failed`` by any other error;
            ``interrupted`` by the user.
        value: Best value of the validation metric; None if there is none.
        kind: Kind of certificate of the best weights; None where it was not computed.
        epochs: Epochs that were trained.
        reason: Why it is not done.
        error: The error of a trial that failed, if the others would meet it too.
    """

    status: Status
    value: float | None = None
    kind: str | None = None
    epochs: int = 0
    reason: str = ""
    error: Exception | None = field(default=None, compare=False)


class _EndOfTrial(Exception):
    """Raised in the progress callback to end a training; the run can be resumed."""

    def __init__(self, status: Status, reason: str, kind: str | None = None) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = reason
        self.kind = kind


def run_trial(order: Order, report: Callable[[Scores], bool]) -> Outcome:
    """Train a run, or resume it.

    Args:
        order: The run.
        report: Called after each validation; False prunes the trial.
    """
    directory = RunDirectory(order.directory)
    try:
        watch = _Watch(order, directory, report)
        # A run that is resumed has its settings, with the data where they lie now.
        is_begun = directory.has_run
        callbacks = open_trackers(order.track)
        summary = train(None if is_begun else order.config, order.directory, is_begun, watch, callbacks=callbacks)
        kind = (summary["certificate"] or {}).get("kind") or proved_kind(order.directory)
        if is_weaker(kind, order.require):
            raise _EndOfTrial("weaker", _weaker(kind, order.require), kind)
    except _EndOfTrial as end:
        return _outcome(order, directory, end.status, end.reason, kind=end.kind)
    except InterruptedRun as error:
        return _outcome(order, directory, "interrupted", str(error))
    except (ConfigError, TrainingError) as error:
        return _outcome(order, directory, "refused", str(error))
    except Exception as error:
        # Errors of ours and of the file system end the study. Another one may be due to these settings alone; not
        # every exception can be sent to another process, but its text can.
        is_known = isinstance(error, StableRNNError | OSError)
        return Outcome("failed", reason=f"{type(error).__name__}: {error}", error=error if is_known else None)
    return _outcome(order, directory, "done", kind=kind)


def is_weaker(kind: str, require: str) -> bool:
    """Return True if a kind of certificate proves less than another."""
    return KINDS.index(kind) > KINDS.index(require)


def proved_kind(run_dir: Path) -> str:
    """Return the kind of certificate of a run's best weights so far, for inputs of any size.

    Raises:
        CheckpointError: If there are no such weights.
    """
    try:
        return prove(load_run(run_dir).model, stored=False).kind
    except CertificateError:
        # A weight is not finite.
        return "none"


def scores_of(directory: RunDirectory, metric: str) -> list[tuple[int, float]]:
    """Return the step and the value of each epoch of a run that has a finite value of a metric."""
    values = [(record["step"], record["validation"].get(metric)) for record in directory.records()]
    return [(step, value) for step, value in values if value is not None and math.isfinite(value)]


class _Watch:
    """A progress callback that reports scores, and ends a training that is pruned or proves too little."""

    def __init__(self, order: Order, directory: RunDirectory, report: Callable[[Scores], bool]) -> None:
        self._order = order
        self._directory = directory
        self._report = report
        self._last_step = -1
        # Epochs from before a run was resumed.
        self._scores = dict(scores_of(directory, order.metric))

    def __call__(self, progress: Progress) -> None:
        # A step is reported once, and again after a validation.
        is_validated, self._last_step = progress.step == self._last_step, progress.step
        if not is_validated:
            return
        # At epochs 1, 2, 4, 8 and so on: an early epoch shows most, and the rest costs a logarithm of them.
        if self._order.require != "none" and progress.epoch.bit_count() == 1:
            self._check_kind()
        if progress.metric is None or not math.isfinite(progress.metric):
            return
        self._scores[progress.step] = progress.metric
        values: dict[int, float] = {}
        for step, value in self._scores.items():
            # Of several epochs in one percent the first counts, so that a resumed run reports the same.
            values.setdefault(math.ceil(100 * step / progress.total_steps), value)
        if not self._report(Scores(values)):
            raise _EndOfTrial("pruned", "worse than the median of the others at the same share of the training")

    def _check_kind(self) -> None:
        """End the training if less is proved of its weights than is required.

        Raises:
            _EndOfTrial: If so.
        """
        require = self._order.require
        # The epoch was certified without a search for a norm, by which more may be proved.
        record = self._directory.records()[-1]
        quick = record.get("stability", {}).get("kind")
        if quick is not None and not is_weaker(quick, require):
            return
        if not self._directory.checkpoint("best").is_file():
            return
        kind = proved_kind(self._directory.path)
        if is_weaker(kind, require):
            raise _EndOfTrial("weaker", _weaker(kind, require), kind)


def _weaker(kind: str, require: str) -> str:
    return f"proved '{kind}', less than the '{require}' that is required"


def _outcome(
    order: Order, directory: RunDirectory, status: Status, reason: str = "", *, kind: str | None = None
) -> Outcome:
    records: list[Any] = directory.records()
    values = [value for _, value in scores_of(directory, order.metric)]
    best = max if direction(order.metric) == "higher" else min
    value = best(values) if values else None
    if status == "done" and value is None:
        status, reason = "refused", f"the metric '{order.metric}' was never a finite number"
    return Outcome(status, value, kind, len(records), reason)


STARTED = "started"
"""Message of a process that holds the lock of its run."""


def run_lock(directory: Path) -> filelock.BaseFileLock:
    """Return the lock that a process holds while it trains a run; the operating system frees it however that ends.

    The file lies next to the run directory: a file in it would be taken for one of the run's.
    """
    return filelock.FileLock(directory.with_name(f"{directory.name}.lock"))


def is_locked(directory: Path) -> bool:
    """Return True if a process trains the run."""
    lock = run_lock(directory)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        return True
    lock.release()
    return False


def train_trial(connection: Connection, order: Order) -> Outcome:
    """Train a run in a process of its own, which says :data:`STARTED` when it has the lock, and asks about scores."""

    def exchange(scores: Scores) -> bool:
        connection.send(scores)
        is_to_go_on: bool = connection.recv()
        return is_to_go_on

    order.directory.parent.mkdir(parents=True, exist_ok=True)
    with run_lock(order.directory):
        connection.send(STARTED)
        return run_trial(order, exchange)


def silence_log(connection: Connection) -> None:
    """Drop the warnings of a process: they are in the summary of a run, and from several at once they say nothing."""
    logging.getLogger("stablernn").addHandler(logging.NullHandler())
    logging.getLogger("stablernn").propagate = False
