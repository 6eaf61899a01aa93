"""Runs as the files of their directories describe them: facts, lists, comparisons and plots of several.

They are read without torch and without their weights. A damaged file does not hide a run: it has the facts of the other
files, and a sentence about the damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from stablernn.atomic_files import read_json
from stablernn.catalog import get_cell_facts
from stablernn.errors import CheckpointError, ConfigError, UnknownNameError, unknown
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.run_directory import RunDirectory, is_running
from stablernn.training.settings.config import AUTO, Config, DataConfig
from stablernn.training.settings.load import stored_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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

    ``radius`` is that of the largest ball of a model that is bounded, or of its output alone; older runs have none.
    ``bounded_inputs`` is what is proved for inputs within a range, where nothing is proved for all.
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
        facts = {name: value for name, value in vars(self).items() if name != "history"}
        started = None if self.started is None else self.started.isoformat()
        return facts | {"path": str(self.path), "started": started, "warnings": list(self.warnings)}


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


MOST_LEVELS = 6
"""Folders below the first one down to which runs are listed: twice what `reproduce` and searches nest them."""

_SORT_KEYS: dict[str, Callable[[StoredRun], Any]] = {
    "path": lambda run: str(run.path),
    "state": lambda run: run.state,
    "data": lambda run: run.data,
    "task": lambda run: run.task,
    "cell": lambda run: run.cell,
    "parameters": lambda run: run.parameters,
    "epochs": lambda run: run.epochs,
    "seconds": lambda run: run.seconds,
    "rate": lambda run: (run.certificate or {}).get("contraction_rate"),
    "started": lambda run: run.started,
}

SORT_KEYS = tuple(_SORT_KEYS)
"""Facts that runs can be sorted by, besides the metrics."""

_TEST_PREFIX = "test."


def list_runs(folders: Iterable[Path]) -> list[StoredRun]:
    """Return the runs in folders and below, the newest first.

    Args:
        folders: Folders that exist; a run directory is listed itself. A run that lies in several of them is listed
            once.
    """
    paths = {path.resolve(): path for folder in folders for path in find_runs(folder)}
    return sort_runs([read_run(path) for path in paths.values()])


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run directories in a folder and up to :data:`MOST_LEVELS` levels below, in alphabetical order.

    Links to folders are not followed, and hidden folders are left out, as are those inside a run.
    """
    for parent, names, files in os.walk(folder):
        path = Path(parent)
        if is_run_directory(path, {*names, *files}):
            names.clear()
            yield path
            continue
        depth = len(path.relative_to(folder).parts)
        # os.walk goes on with what is left in its list.
        names[:] = sorted(name for name in names if not name.startswith(".")) if depth < MOST_LEVELS else []


def is_run_directory(path: Path, entries: Iterable[str]) -> bool:
    """Return True for the directory of a run, damaged ones included.

    Args:
        path: The directory.
        entries: Names of its files and folders.
    """
    directory, names = RunDirectory(path), set(entries)
    others = (directory.data, directory.environment, directory.metrics, directory.summary)
    # A config.yaml alone may be anything, such as the settings for a run that is still to be trained.
    return directory.config.name in names and any(file.name in names for file in others)


def sort_runs(runs: Sequence[StoredRun], key: str = "started") -> list[StoredRun]:
    """Return runs in the order of a fact or of a metric.

    Args:
        runs: The runs.
        key: One of :data:`SORT_KEYS`, the smallest first, but the newest first for ``started``; or a metric of the
            validation split, of the test split with the prefix ``test.``, the best first. Runs without it come last.

    Raises:
        UnknownNameError: If it is neither, or no run has the metric.
    """
    if key in _SORT_KEYS:
        return _sorted(runs, _SORT_KEYS[key], is_descending=key == "started")
    split, metric = split_and_metric(key)
    if runs and all(run.score(split, metric) is None for run in runs):
        raise _unknown_key(runs, key)
    return _sorted(runs, lambda run: run.score(split, metric), is_descending=direction(metric) == "higher")


def split_and_metric(key: str) -> tuple[str, str]:
    """Return the split and the metric that a key of :func:`sort_runs` names."""
    is_test = key.startswith(_TEST_PREFIX)
    return ("test" if is_test else "validation"), key.removeprefix(_TEST_PREFIX)


def _sorted(runs: Sequence[StoredRun], fact: Callable[[StoredRun], Any], *, is_descending: bool) -> list[StoredRun]:
    with_fact = sorted((run for run in runs if fact(run) is not None), key=fact, reverse=is_descending)
    return with_fact + [run for run in runs if fact(run) is None]


def _unknown_key(runs: Sequence[StoredRun], key: str) -> UnknownNameError:
    """Return the error for a key that is neither a fact nor a metric of the runs."""
    # Scores of baselines are mappings, which no run is sorted by.
    metrics = dict.fromkeys(
        name
        for run in runs
        for scores in run.metrics.values()
        for name, value in scores.items()
        if isinstance(value, int | float)
    )
    names = [*SORT_KEYS, *metrics, *(_TEST_PREFIX + name for name in metrics)]
    hint = (
        f"It is one of {', '.join(SORT_KEYS)}, or a metric of the runs, for the test split with '{_TEST_PREFIX}' in "
        f"front: {', '.join(metrics) or 'they have none yet'}."
    )
    return unknown("key to sort runs by", key, names, hint)


_BY_DATA = ("epochs", "batch_size")
"""Recommendations of the catalog that a task adjusts to the number of samples."""


def read_settings(run: StoredRun) -> Config:
    """Return the resolved settings of a run; keys that its version did not have yet have their defaults.

    Raises:
        CheckpointError: If a file that they are read from is damaged.
    """
    try:
        return stored_settings(RunDirectory(run.path))
    except ConfigError as error:
        raise CheckpointError(
            f"The settings of the run in '{run.path}' cannot be read: {error} Restore its config.yaml, or train again."
        ) from error


def differing_settings(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Return the values of the settings that are not the same in all runs, by dotted key, in the order of the runs.

    None stands for a setting that is off, or that a cell of another run has.
    """
    settings = [_values(config) for config in configs]
    # The union in order of appearance: cells have different options.
    keys = dict.fromkeys(key for values in settings for key in values)
    rows = {key: [values.get(key) for values in settings] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def changed_settings(config: Config) -> dict[str, tuple[Any, Any]]:
    """Return value and default of the settings that differ from their defaults, by dotted key.

    A run stores resolved settings. Those whose default depends on the data, such as the number of epochs, do not show
    whether they were set, and are left out.
    """
    defaults = _known_defaults(config)
    # None stands for a setting of another optimizer or schedule. Options that the catalog does not have were set, too.
    return {
        key: (value, defaults.get(key))
        for key, value in _values(config).items()
        if (key in defaults or key.startswith("model.cell_options.")) and value not in (None, defaults.get(key))
    }


def _known_defaults(config: Config) -> dict[str, Any]:
    """Return the defaults that do not depend on the data: of the settings, and of the cell in the catalog."""
    fixed = Config(data=DataConfig(source=config.data.source)).by_key()
    # None and "auto" stand for values that the data decide; only the device stays as it was set.
    defaults = {
        key: value for key, value in fixed.items() if value is not None and (value != AUTO or key == "training.device")
    }
    try:
        cell = get_cell_facts(config.model.cell)
    except UnknownNameError:
        # A cell of another distribution, or of a version that had it.
        return defaults
    options: Mapping[str, Any] = cell["options"][config.model.preset]
    training: Mapping[str, Any] = cell["training"].get(config.model.preset, {})
    defaults |= {f"model.cell_options.{name}": value for name, value in options.items()}
    return defaults | {f"training.{key}": value for key, value in training.items() if key not in _BY_DATA}


def _values(config: Config) -> dict[str, Any]:
    # An empty object is no setting: the cell's options at their defaults.
    return {key: value for key, value in config.by_key().items() if value != {}}


def has_same_data(runs: Sequence[StoredRun]) -> bool:
    """Return True if all runs were trained on data of the same fingerprint."""
    fingerprints = {run.fingerprint for run in runs}
    return len(fingerprints) == 1 and None not in fingerprints


_LEGEND_COLUMNS = 3


def plot_runs(path: Path, runs: Sequence[StoredRun], names: Sequence[str]) -> None:
    """Draw training loss and validation metric of each epoch of several runs into a PNG file.

    A circle marks the best epoch of a run. If no run was validated, only the losses are drawn.

    Args:
        path: PNG file to write.
        runs: Runs with epochs.
        names: Their names in the legend.

    Raises:
        ConfigError: If a run has no epochs, or the runs were not validated by a common metric.
        CheckpointError: If the file cannot be written.
    """
    # Here and below: a list of runs waits for no plots.
    from stablernn.plotting import _epochs_axis, _legend_below, _save, new_figure

    for run in runs:
        if not run.history:
            raise ConfigError(f"The run in '{run.path}' has no epochs yet: there is nothing to draw. Leave it out.")
    metric = common_metric(runs)
    rows = -(-len(runs) // _LEGEND_COLUMNS)
    figure = new_figure(10 if metric else 6, 4 + 0.22 * rows)
    panels = figure.subplots(1, 2 if metric else 1, squeeze=False)[0]
    _draw_losses(panels[0], runs, names)
    if metric is not None:
        _draw_metric(panels[1], runs, metric)
    for axes in panels:
        _epochs_axis(axes)
    _legend_below(figure, ncols=_LEGEND_COLUMNS)
    _save(figure, path)


def common_metric(runs: Sequence[StoredRun]) -> str | None:
    """Return the metric to compare runs by: that of the first one, or another that all validated runs have.

    None if no run was validated.

    Raises:
        ConfigError: If validated runs have no metric in common.
    """
    validated = [run for run in runs if _metrics(run)]
    if not validated:
        return None
    headlines = [run.metric for run in validated if run.metric is not None]
    # Headlines come first; other metrics are tried in the order of the first run.
    for metric in (*headlines, *_metrics(validated[0])):
        if all(metric in _metrics(run) for run in validated):
            return metric
    first = validated[0]
    other = next(run for run in validated if not set(_metrics(run)) & set(_metrics(first)))
    raise ConfigError(
        f"The runs in '{first.path}' and '{other.path}' have no validation metric in common: they are for "
        f"'{first.task}' and '{other.task}'. Draw runs of one task."
    )


def _metrics(run: StoredRun) -> tuple[str, ...]:
    """Return the names of the scores of a run's epochs, in their order."""
    return tuple(dict.fromkeys(name for epoch in run.history for name in epoch.validation))


def _draw_losses(axes: Axes, runs: Sequence[StoredRun], names: Sequence[str]) -> None:
    from stablernn.plotting import _LOG_RATIO, _style, line_styles

    _style(axes, "training")
    every_loss: list[float] = []
    for run, name, (color, dash) in zip(runs, names, line_styles(len(runs)), strict=True):
        losses = {epoch.epoch: epoch.train_loss for epoch in run.history if epoch.train_loss is not None}
        every_loss += losses.values()
        axes.plot(
            list(losses), list(losses.values()), color=color, linestyle=dash, marker="o", markersize=3, label=name
        )
    if every_loss and min(every_loss) > 0 and max(every_loss) > _LOG_RATIO * min(every_loss):
        axes.set_yscale("log")
    axes.set_ylabel("training loss")


def _draw_metric(axes: Axes, runs: Sequence[StoredRun], metric: str) -> None:
    from stablernn.plotting import GREY, _format_name, _style, line_styles

    better = direction(metric)
    _style(axes, f"validation, {better} is better" if better else "validation")
    axes.set_title("circles: best epochs", loc="right", color=GREY, fontsize=9)
    for run, (color, dash) in zip(runs, line_styles(len(runs)), strict=True):
        scores = {epoch.epoch: epoch.validation[metric] for epoch in run.history if metric in epoch.validation}
        defined = {epoch: score for epoch, score in scores.items() if score is not None}
        axes.plot(list(defined), list(defined.values()), color=color, linestyle=dash, marker="o", markersize=3)
        if run.best_epoch in defined:
            axes.plot(
                run.best_epoch,
                defined[run.best_epoch],
                color=color,
                marker="o",
                markersize=9,
                markerfacecolor="none",
                markeredgewidth=2,
            )
    axes.set_ylabel(f"validation {_format_name(metric)}")
