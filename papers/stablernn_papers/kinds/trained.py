"""Tables of training runs: their settings, their length, and the scores of the trained models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json
from stablernn.data.catalog import dataset_info
from stablernn.data.step_data import Data
from stablernn.errors import ConfigError, DataError
from stablernn.training import load_run_data, train
from stablernn.training.jobs import Job
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import load_config, stored_settings, validate
from stablernn.training.tasks import Task, task_for
from stablernn.training.train_model import check_resumable
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Kind, Length, Outcome, Request, RunResult
from stablernn_papers.plots import plot_curves, plot_sweeps
from stablernn_papers.table import FULL, DataSet, ProtocolName, Row, Table


class TrainedKind(Kind):
    """A table of training runs."""

    def __init__(self) -> None:
        self._plans: list[RunPlan] = []

    def prepare(self, request: Request) -> dict[str, str]:
        if request.partial_data and not any(takes_partial(run.data) for run in request.runs):
            names = ", ".join(sorted({run.data.key for run in request.runs}))
            raise ConfigError(f"Partial data is for data sets of several files, which {names} is not; leave it out.")
        # Finished runs that were not asked for enter the table too, so that they are checked as well.
        requested = {run.path for run in request.runs}
        others = [run for run in request.folder.finished_runs() if run.path not in requested]
        runs = TrainingRuns(request.table, request.rules.name, request.length, partial_data=request.partial_data)
        self._plans, fingerprints = runs.plan([*request.runs, *others])
        return fingerprints

    def train(self, request: Request) -> list[Run]:
        """Train the runs that are not done, and return all that are and that were checked."""
        plans = self._plans[: len(request.runs)]
        request.run_remaining([_job(plan) for plan in plans if not plan.is_done], "trained", len(plans))
        # Another process may have finished others since, with other rows or seeds.
        checked = {plan.run.path for plan in self._plans}
        return [run for run in request.folder.finished_runs() if run.path in checked]

    def describe_training(self, request: Request, run: Run) -> RunResult:
        """Return the description of a finished run without its measurements."""
        plan = next(plan for plan in self._plans if plan.run.path == run.path)
        summary, first = read_json(run.directory.summary), read_json(run.directory.environment)
        training = {key: summary[key] for key in ("parameters", "seconds", "epochs", "steps", "best_epoch", "engine")}
        machine: dict[str, Any] = {key: first[key] for key in ("commit", "time", "device", "threads")}
        return {
            **request.describe(run),
            "run": str(run.path.relative_to(request.folder.path)),
            "hidden_size": load_config(run.directory.config).model.hidden_size,
            **training,
            **machine,
            "resumed": len(first.get("resumed", [])),
            "length": plan.length(summary["steps"]),
            "partial_data": summary["data_notes"].get("partial"),
        }


def _job(plan: RunPlan) -> Job:
    run = plan.run
    return Job(
        run.name,
        train_run,
        (plan.settings, run.path),
        key=run.path.name,
        is_done=partial(is_trained, run, plan.steps),
        checkpoint=run.directory.checkpoint("last"),
    )


@dataclass(frozen=True)
class RunPlan:
    """A run with its settings.

    Attributes:
        run: The run.
        settings: Settings of the training that was asked for, as a tree.
        resolved: Those of the whole run of the protocol, resolved.
        steps: Optimizer steps that were asked for.
        published_steps: Optimizer steps of the whole run.
        epoch_steps: Optimizer steps of an epoch.
    """

    run: Run
    settings: Mapping[str, Any]
    resolved: Config
    steps: int
    published_steps: int
    epoch_steps: int

    @property
    def is_done(self) -> bool:
        return is_trained(self.run, self.steps)

    def length(self, steps: int) -> dict[str, Any]:
        """Describe how much of the published training a number of steps is."""
        unit, scale = ("steps", 1) if self.resolved.training.epochs is None else ("epochs", self.epoch_steps)
        done, published = steps / scale, self.published_steps / scale
        return {
            "unit": unit,
            "done": int(done) if done.is_integer() else round(done, 2),
            "published": int(published) if published.is_integer() else round(published, 2),
            "share": min(1.0, steps / self.published_steps),
        }


class TrainingRuns:
    """Plans of the runs of a table.

    Args:
        table: The table.
        protocol: Name of the protocol.
        length: Length to which the runs are cut.
        partial_data: Whether a data set of which only a part is on disk is accepted.
    """

    def __init__(self, table: Table, protocol: ProtocolName, length: Length, *, partial_data: bool = False) -> None:
        self._table = table
        self._protocol: ProtocolName = protocol
        self._length = length
        self._partial_data = partial_data

    def plan(self, runs: Iterable[Run]) -> tuple[list[RunPlan], dict[str, str]]:
        """Return the plans of runs in their order, and the fingerprint of each data set by its key.

        Raises:
            DataError: If a data set is missing or cannot be used.
            ConfigError: If a run directory has other settings.
        """
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(run.data.key, []).append(run)
        plans: dict[Path, RunPlan] = {}
        fingerprints = {}
        for key, group in groups.items():
            # One data set is in memory at a time.
            data = self._load(group[0])
            fingerprints[key] = data.fingerprint
            sizes: dict[str, int] = {}
            for run in group:
                plans[run.path] = self._plan_run(run, data, sizes)
        return [plans[run.path] for run in runs], fingerprints

    def tree(self, run: Run, size: int) -> dict[str, Any]:
        """Return the settings of the whole run of the protocol."""
        tree = self._table.run_tree(run.row, run.data, self._protocol)
        if self._partial_data and takes_partial(run.data):
            tree["data"] = {**tree["data"], "partial": True}
        tree["model"] = {**tree["model"], "hidden_size": size}
        # The papers train freely, also the rows with our own settings.
        tree["training"] = {"certified": False, **tree["training"], "seed": run.seed}
        return tree

    def _load(self, run: Run) -> Data:
        try:
            # The hidden size does not matter for loading.
            return load_run_data(validate(self.tree(run, run.row.hidden_size or 1)))
        except DataError as error:
            # The option of a reproduction is another one than that of a training.
            sentence = str(error).replace("--set data.partial=true", "--partial-data")
            if self._table.short_data is not None and self._protocol == FULL:
                names = ", ".join(data.settings["data.source"].value for data in self._table.short_data)
                sentence += f" The short protocol (--short) takes '{names}' instead, which needs no files."
            raise DataError(sentence) from None

    def _plan_run(self, run: Run, data: Data, sizes: dict[str, int]) -> RunPlan:
        task = task_for(data)
        if run.row.key not in sizes:
            size = hidden_size(self._table, run.row, lambda row, units: self._parameters(task, run.data, row, units))
            largest = self._table.protocol(self._protocol).most_units
            sizes[run.row.key] = size if largest is None else min(size, largest)
        tree = self.tree(run, sizes[run.row.key])
        resolved = resolve(validate(tree), task)
        training = resolved.training
        assert training.batch_size is not None
        epoch_steps = task.steps_per_epoch(training.batch_size, training.bptt_steps or 0)
        published = training.max_steps or (training.epochs or 0) * epoch_steps
        steps = self._requested_steps(published, epoch_steps)
        plan = RunPlan(run, _cut(tree, resolved, steps, epoch_steps), resolved, steps, published, epoch_steps)
        _check_stored(plan)
        return plan

    def _parameters(self, task: Task, data: DataSet, row: Row, units: int) -> int:
        """Return the number of parameters of a row with some hidden size."""
        run = Run(row, data, 0, Path(), row.key)
        model = task.build_model(resolve(validate(self.tree(run, units)), task))
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)

    def _requested_steps(self, published: int, epoch_steps: int) -> int:
        steps = self._length.steps
        if self._length.epochs is not None:
            steps = self._length.epochs * epoch_steps
        return published if steps is None else min(steps, published)


def takes_partial(data: DataSet) -> bool:
    """Return whether a data set of a table may be used if only a part of it is on disk."""
    return "partial" in dataset_info(data.settings["data.source"].value).takes


def is_trained(run: Run, steps: int) -> bool:
    """Return whether a run is done with a number of optimizer steps or more."""
    summary = run.summary
    return summary is not None and summary["steps"] >= steps


def train_run(settings: Mapping[str, Any], directory: Path) -> None:
    """Train a run, or resume it after an interruption or with a greater length."""
    config = validate(settings)
    train(config, directory, resume=(directory / "config.yaml").exists())


def _cut(tree: Mapping[str, Any], resolved: Config, steps: int, epoch_steps: int) -> dict[str, Any]:
    """Return settings of which a run is the beginning of the published one."""
    training = {key: value for key, value in tree["training"].items() if key not in ("epochs", "max_steps")}
    if resolved.training.epochs is not None and steps % epoch_steps == 0:
        training["epochs"] = steps // epoch_steps
    else:
        training["max_steps"] = steps
    if resolved.training.schedule == "step":
        # The rate drops after as many epochs as in the whole run.
        training["step_epochs"] = resolved.training.step_epochs
    return {**tree, "training": training}


def _check_stored(plan: RunPlan) -> None:
    """Refuse a run directory that was trained with other settings.

    Raises:
        ConfigError: If it was.
    """
    if not plan.run.directory.has_run:
        return
    stored = stored_settings(plan.run.directory)
    length = {"epochs": stored.training.epochs, "max_steps": stored.training.max_steps}
    expected = plan.resolved.model_copy(update={"training": plan.resolved.training.model_copy(update=length)})
    try:
        check_resumable(stored, expected)
    except ConfigError as error:
        raise ConfigError(
            f"The run in '{plan.run.path}' is not the one of this table. {error} Move it away, or name another folder "
            "with --output."
        ) from None


def matched_hidden_size(count: Callable[[int], int], parameters: int) -> int:
    """Return the hidden size whose number of parameters is nearest to the given one; of two, the smaller.

    Args:
        count: Function from a hidden size to the number of parameters, which grows with it.
        parameters: The number to match.
    """
    # Double until it is reached, then bisect.
    above = 1
    while count(above) < parameters:
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if count(middle) < parameters else (below, middle)
    if below and parameters - count(below) <= count(above) - parameters:
        return below
    return above


def hidden_size(table: Table, row: Row, count: Callable[[Row, int], int]) -> int:
    """Return the hidden size of a row of a table.

    Args:
        table: The table.
        row: The row.
        count: Function from a row and a hidden size to the number of parameters.
    """
    if row.hidden_size is not None:
        return row.hidden_size
    reference = table.row(table.reference)
    assert reference.hidden_size is not None
    return matched_hidden_size(lambda size: count(row, size), count(reference, reference.hidden_size))


class ScoresKind(TrainedKind):
    """Scores of the weights that are best by validation, as the summary of each run has them.

    Figures are named by split and metric: ``test.accuracy``, ``validation.mse``.
    """

    views = ("best",)

    def work(self, request: Request) -> Outcome:
        return Outcome([self._describe(request, run) for run in self.train(request)])

    def draw(self, path: Path, table: Table, results: Mapping[str, Any]) -> None:
        if table.sweeps:
            plot_sweeps(path, table, results)
        else:
            plot_curves(path, table, results)

    def _describe(self, request: Request, run: Run) -> RunResult:
        document = self.describe_training(request, run)
        summary = run.summary
        assert summary is not None
        best = document["best_epoch"]
        certificate: dict[str, Any] = summary.get("certificate") or {}
        return {
            **document,
            "validation_curve": _validation_curve(run, request.table.columns_of(run.data)[0].figure),
            "views": {"best": best},
            "measured": [{"epoch": best, "kind": certificate.get("kind"), "figures": score_figures(summary)}],
        }


def _validation_curve(run: Run, figure: str) -> dict[str, Any]:
    """Return the validation score after each epoch that the log has, of the metric of a figure."""
    metric = figure.partition(".")[2]
    records = run.directory.records()
    return {
        "metric": metric,
        "epochs": [record["epoch"] for record in records],
        "values": [record["validation"][metric] for record in records],
    }


def score_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of a run's summary by split and metric, such as ``test.accuracy``."""
    return {
        f"{split}.{name}": value
        for split, scores in summary["metrics"].items()
        for name, value in scores.items()
        # Scores of baselines and tables stand under the same keys.
        if isinstance(value, int | float)
    }
