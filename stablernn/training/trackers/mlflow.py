"""Runs in MLflow: settings as parameters, figures as metrics, the small files of the run as artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow

from stablernn.training.callbacks import Callback, numeric_metrics

_ARTIFACTS = ("config.yaml", "summary.json")


class MlflowTracker(Callback):
    """Starts a run of its own, or logs to the active one, which it then leaves open.

    Server, experiment and run are those of ``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME`` and ``MLFLOW_RUN_ID``.
    """

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        self._run_dir, self._step = run_dir, 0
        self._is_own_run = mlflow.active_run() is None
        if self._is_own_run:
            mlflow.start_run(run_name=run_dir.name)
        mlflow.log_params(dict(config))

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        self._step = int(metrics["step"])
        numbers = numeric_metrics(metrics)
        del numbers["step"]
        mlflow.log_metrics(numbers, step=self._step)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        mlflow.log_metrics(numeric_metrics(summary["metrics"], "final/"), step=self._step)
        for name in _ARTIFACTS:
            mlflow.log_artifact(str(self._run_dir / name))
        self._end("FINISHED")

    def on_failure(self, error: BaseException) -> None:
        self._end("FAILED")

    def _end(self, status: str) -> None:
        if self._is_own_run:
            mlflow.end_run(status)
