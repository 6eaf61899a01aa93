"""Runs in TensorBoard: event files in the run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from stablernn.training.callbacks import Callback, numeric_metrics

FOLDER = "tensorboard"
"""Folder of the event files in a run directory; ``tensorboard --logdir runs`` finds those of all runs."""


class TensorBoardTracker(Callback):
    """Writes figures of each epoch by optimizer step, the settings as a text, and the final scores."""

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        self._step = 0
        self._writer = SummaryWriter(str(run_dir / FOLDER))
        # Indented text is shown as it is.
        lines = json.dumps(dict(config), indent=2, ensure_ascii=False).splitlines()
        self._writer.add_text("config", "\n".join(f"    {line}" for line in lines))

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        self._step = int(metrics["step"])
        for name, value in numeric_metrics(metrics).items():
            if name != "step":
                self._writer.add_scalar(name, value, self._step)
        # A training can be watched while it goes on.
        self._writer.flush()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        for name, value in numeric_metrics(summary["metrics"], "final/").items():
            self._writer.add_scalar(name, value, self._step)
        self._writer.close()

    def on_failure(self, error: BaseException) -> None:
        self._writer.close()
