"""Runs as the files of their directories describe them, read without torch and without their weights.

A damaged file does not hide a run: it has the facts of the other files, and a sentence about the damage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from stablernn.atomic_files import read_json
from stablernn.errors import CheckpointError
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.run_directory import RunDirectory
from stablernn.training.stored_runs.run_lock import is_running

State = Literal["done", "diverged", "running", "stopped", "damaged"]

# The parser in C takes a quarter of the time; not every build of PyYAML has it.
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Document(BaseModel):
    """The keys that are read from a file; there may be others."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _ModelSettings(_Document):
    cell: str


class _TrainingSettings(_Document):
    epochs: int | None = None


class _Settings(_Document):
    """``config.yaml``."""

    model: _ModelSettings
    training: _TrainingSettings = _TrainingSettings()


class _Environment(_Document):
    """``env.json``."""

    time: AwareDatetime


class _Description(_Document):
    """``data.json``."""

    name: str
    task: str
    fingerprint: str
    headline: str | None = None


class _Certificate(_Document):
    """A certificate in short, as :meth:`stablernn.training.loop.certificate_log.StabilityLog.prove_in_short` makes it.

    ``radius`` is that of the largest ball of a model that is bounded; older runs have none. ``bounded_inputs`` is what
    is proved for inputs within a range, where nothing is proved for all.
    """

    kind: str
    contraction_rate: float | None = None
    radius: float | None = None
    bounded_inputs: _Certificate | None = None


class _Summary(_Document):
    """``summary.json``."""

    parameters: int
    epochs: int
    steps: int
    seconds: float
    best_epoch: int
    metrics: dict[str, dict[str, Any]]
    certificate: _Certificate | None = None
    diverged: bool = False
    warnings: tuple[str, ...] = ()


class Epoch(_Document):
    """A line of ``metrics.jsonl``; a loss or a score that was not finite is None."""

    epoch: int
    step: int = 0
    lr: float | None = None
    train_loss: float | None = None
    validation: dict[str, Any] = {}
    seconds: float = 0.0
    stability: dict[str, Any] = {}


@dataclass(frozen=True)
class StoredRun:
    """A run as its files describe it; None stands for what is not known, or not yet.

    Attributes:
        path: The directory.
        state: ``done``; ``diverged``, done with a training loss that ended far above where it began; ``running``, on
            this machine; ``stopped``, not done and not running, so that it can be resumed; ``damaged``.
        problem: Sentence about the damage; None without any.
        started: Time at which it began.
        data: Name of the data.
        fingerprint: Fingerprint of the data.
        task: ``classify``, ``forecast`` or ``predict-next``.
        cell: Key of the cell.
        parameters: Number of trained parameters.
        epochs: Epochs done.
        planned_epochs: Epochs of the whole run; None also where its length is set in steps.
        steps: Optimizer steps done.
        best_epoch: Epoch of the best weights.
        seconds: Time of training.
        metric: Metric that selects the best weights.
        metrics: Scores by split; of an unfinished run those of the best epoch on the validation split.
        certificate: Certificate of the best weights in short: ``kind``, ``contraction_rate``, ``radius`` and
            ``bounded_inputs``.
        warnings: Sentences of the summary.
        history: The epochs.
    """

    path: Path
    state: State
    problem: str | None = None
    started: datetime | None = None
    data: str | None = None
    fingerprint: str | None = None
    task: str | None = None
    cell: str | None = None
    parameters: int | None = None
    epochs: int = 0
    planned_epochs: int | None = None
    steps: int = 0
    best_epoch: int | None = None
    seconds: float | None = None
    metric: str | None = None
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    certificate: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    history: tuple[Epoch, ...] = field(default=(), repr=False)

    def score(self, split: str, metric: str | None = None) -> float | None:
        """Return a metric on a split; None if there is no such score.

        Args:
            split: ``validation`` or ``test``.
            metric: Its name. Default: the metric that selects the best weights.
        """
        name = self.metric if metric is None else metric
        value = None if name is None else self.metrics.get(split, {}).get(name)
        return value if isinstance(value, int | float) else None

    def document(self) -> dict[str, Any]:
        """Return the facts as JSON types, without the history."""
        return {
            "path": str(self.path),
            "state": self.state,
            "problem": self.problem,
            "started": None if self.started is None else self.started.isoformat(),
            "data": self.data,
            "fingerprint": self.fingerprint,
            "task": self.task,
            "cell": self.cell,
            "parameters": self.parameters,
            "epochs": self.epochs,
            "planned_epochs": self.planned_epochs,
            "steps": self.steps,
            "best_epoch": self.best_epoch,
            "seconds": self.seconds,
            "metric": self.metric,
            "metrics": self.metrics,
            "certificate": self.certificate,
            "warnings": list(self.warnings),
        }


def read_run(path: Path) -> StoredRun:
    """Read a run from its directory; never raises for a damaged file."""
    directory = RunDirectory(path)
    files = _Files()
    settings = files.read(_Settings, directory.config, _read_yaml)
    environment = files.read(_Environment, directory.environment)
    description = files.read(_Description, directory.data)
    summary = files.read(_Summary, directory.summary) if directory.summary.exists() else None
    history = files.read_history(directory)
    metric = _headline(directory, description)
    best = _best_epoch(history, metric)
    facts: dict[str, Any] = {
        "epochs": history[-1].epoch if history else 0,
        "steps": history[-1].step if history else 0,
        "seconds": history[-1].seconds if history else None,
        "best_epoch": None if best is None else best.epoch,
        "metrics": {} if best is None else {"validation": best.validation},
    }
    if summary is not None:
        # Calibration and the scores of the test split come after the last epoch.
        facts = summary.model_dump(exclude={"diverged", "certificate"})
        facts["certificate"] = None if summary.certificate is None else summary.certificate.model_dump()
    return StoredRun(
        path=path,
        state=_state(path, files.problems, summary),
        problem=files.problems[0] if files.problems else None,
        started=None if environment is None else environment.time,
        data=None if description is None else description.name,
        fingerprint=None if description is None else description.fingerprint,
        task=None if description is None else description.task,
        cell=None if settings is None else settings.model.cell,
        planned_epochs=None if settings is None else settings.training.epochs,
        metric=metric,
        history=history,
        **facts,
    )


_D = TypeVar("_D", bound=_Document)


class _Files:
    """Reader of the files of a run, which collects what is wrong with them.

    Attributes:
        problems: A sentence for each file that cannot be read.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, kind: type[_D], path: Path, parse: Callable[[Path], Any] = read_json) -> _D | None:
        """Return the content of a file; None if it cannot be read."""
        try:
            return kind.model_validate(parse(path))
        except CheckpointError as error:
            self.problems.append(str(error))
        except ValidationError as error:
            self.problems.append(f"'{path}' does not describe a run: {_first_reason(error)}.")
        return None

    def read_history(self, directory: RunDirectory) -> tuple[Epoch, ...]:
        """Return the epochs; none if one of them cannot be read."""
        try:
            return tuple(Epoch.model_validate(record) for record in directory.records())
        except CheckpointError as error:
            self.problems.append(str(error))
        except ValidationError as error:
            self.problems.append(f"'{directory.metrics}' does not describe epochs: {_first_reason(error)}.")
        return ()


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML_LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"'{path}' cannot be read as YAML: {reason}.") from error


def _first_reason(error: ValidationError) -> str:
    details = error.errors()[0]
    key = ".".join(map(str, details["loc"]))
    if details["type"] == "missing":
        return f"it has no '{key}'"
    # Without a key, the whole document is of another type.
    return f"'{key}': {details['msg']}" if key else details["msg"]


def _state(path: Path, problems: list[str], summary: _Summary | None) -> State:
    if problems:
        return "damaged"
    if summary is not None:
        return "diverged" if summary.diverged else "done"
    return "running" if is_running(path) else "stopped"


def _headline(directory: RunDirectory, description: _Description | None) -> str | None:
    """Return the name of the metric that selects the best weights; None before the first validation."""
    try:
        # The copy of the checkpoint's metadata: its numbers may be one epoch behind, but the name stays the same.
        checkpoint = read_json(directory.checkpoint("best").with_suffix(".json"))
    except CheckpointError:
        checkpoint = None
    metric = checkpoint.get("metric") if isinstance(checkpoint, dict) else None
    if isinstance(metric, str):
        return metric
    return None if description is None else description.headline


def _best_epoch(history: tuple[Epoch, ...], metric: str | None) -> Epoch | None:
    """Return the epoch with the best value of a metric; None if no epoch has one."""
    if metric is None:
        return None
    sign = 1 if direction(metric) == "higher" else -1
    scored = [epoch for epoch in history if isinstance(epoch.validation.get(metric), int | float)]
    # As in training, a tie goes to the later epoch.
    return max(scored, key=lambda epoch: (sign * epoch.validation[metric], epoch.epoch), default=None)
