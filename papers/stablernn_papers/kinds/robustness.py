"""Tables of accuracy under attack and of the curvature of the loss, in two views of the same runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json, write_json
from stablernn.training.jobs import Job
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Outcome, Request, RunResult
from stablernn_papers.kinds.robustness_measurement import extract_figures, measure
from stablernn_papers.kinds.trained import TrainedKind
from stablernn_papers.plots import plot_robustness
from stablernn_papers.table import ProtocolName, Table
from stablernn_papers.tables import published_table

WHOLE, MATCHED = "whole", "matched"
"""Views of the same runs: the best weights, and those of the first epoch with a common validation accuracy."""


class RobustnessKind(TrainedKind):
    """Robustness reports of the best weights, and of those of the first epoch at a common validation accuracy."""

    views = (WHOLE, MATCHED)

    def work(self, request: Request) -> Outcome:
        table, folder = request.table, request.folder
        runs = self.train(request)
        target = request.match_accuracy or min(max(run.accuracies.values()) for run in runs)
        views = {run.path: _view_epochs(run, target) for run in runs}
        # By file, so that an epoch that is in both views is measured once.
        files = {
            folder.measurement(run, epoch): (run, epoch)
            for run in runs
            for epoch in views[run.path].values()
            if epoch is not None
        }
        jobs = [
            Job(
                f"{run.name}, epoch {epoch}",
                measure_run,
                (run.path, epoch, table.key, request.rules.name, path),
                key=f"measured-{path.stem}",
                is_done=path.is_file,
            )
            for path, (run, epoch) in files.items()
            if not path.is_file()
        ]
        request.run_remaining(jobs, "measured", len(files))
        return Outcome(
            [self._describe(request, run, views[run.path]) for run in runs],
            {"match": {"validation_accuracy": target, "given": request.match_accuracy is not None}},
        )

    def _describe(self, request: Request, run: Run, views: Mapping[str, int | None]) -> RunResult:
        epochs = sorted({epoch for epoch in views.values() if epoch is not None})
        measurements = [read_json(request.folder.measurement(run, epoch)) for epoch in epochs]
        return {
            **self.describe_training(request, run),
            "validation_accuracies": list(run.accuracies.values()),
            "views": dict(views),
            "measured": [
                {**measurement, "figures": extract_figures(measurement, request.table.headline)}
                for measurement in measurements
            ],
        }

    def draw(self, path: Path, table: Table, results: Mapping[str, Any]) -> None:
        plot_robustness(path, results)


def measure_run(directory: Path, epoch: int, key: str, protocol: ProtocolName, path: Path) -> None:
    """Measure a run after one epoch and write the measurement to a file."""
    write_json(path, measure(directory, epoch, published_table(key).protocol(protocol)))


def _view_epochs(run: Run, target_accuracy: float) -> dict[str, int | None]:
    """Return the epoch whose weights each view uses."""
    return {WHOLE: read_json(run.directory.summary)["best_epoch"], MATCHED: run.first_epoch_at(target_accuracy)}
