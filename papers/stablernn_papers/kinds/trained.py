"""Kinds of tables whose models are trained."""

from __future__ import annotations

from functools import partial
from typing import Any

from stablernn.atomic_files import read_json
from stablernn.errors import ConfigError
from stablernn.training.jobs import Job
from stablernn.training.settings.load import load_config
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Kind, Request, RunResult
from stablernn_papers.training_runs import RunPlan, TrainingRuns, is_trained, takes_partial, train_run


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
