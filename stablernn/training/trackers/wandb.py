"""Runs in Weights & Biases: settings, figures of each epoch, final scores as the summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from stablernn.training.callbacks import Callback, numeric_metrics

PROJECT = "stablernn"
"""Project where ``WANDB_PROJECT`` is not set."""


class WandbTracker(Callback):
    """Starts a run of its own, or logs to the active one, which it then leaves open.

    Mode, project, entity, folder and run are those of ``WANDB_MODE`` (``offline``), ``WANDB_PROJECT`` and so on.
    """

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        self._is_own_run = wandb.run is None
        if wandb.run is None:
            project = os.environ.get("WANDB_PROJECT", PROJECT)
            self._run = wandb.init(project=project, name=run_dir.name, config=dict(config))
        else:
            self._run = wandb.run
            self._run.config.update(dict(config))  # type: ignore[no-untyped-call]

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        numbers = numeric_metrics(metrics)
        self._run.log(numbers, step=int(numbers.pop("step")))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(numeric_metrics(summary["metrics"], "final/"))
        self._finish(0)

    def on_failure(self, error: BaseException) -> None:
        self._finish(1)

    def _finish(self, exit_code: int) -> None:
        if self._is_own_run:
            self._run.finish(exit_code=exit_code)
