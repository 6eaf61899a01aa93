"""Tables of the scores of trained models: accuracy, bits per character, perplexity, log-likelihood, squared error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Outcome, Request, RunResult
from stablernn_papers.kinds.trained import TrainedKind
from stablernn_papers.plots import plot_curves, plot_sweeps
from stablernn_papers.table import Table


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
