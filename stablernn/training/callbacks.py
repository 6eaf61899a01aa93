"""Callbacks of training: the start of a run, each epoch and the end, for programs and for trackers of experiments.

The trackers are TensorBoard, MLflow and Weights & Biases. Each takes its settings from the environment variables of its
library, which is imported when a tracker is opened. ``docs/guides/tracking.md`` describes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stablernn.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from stablernn.training.loop.base_trainer import RunRecorder
    from stablernn.training.loop.checkpoint import Checkpoint

TENSORBOARD_FOLDER = "tensorboard"
"""Folder of the event files in a run directory; ``tensorboard --logdir runs`` finds those of all runs."""


class Callback:
    """Base class of callbacks; every method does nothing unless it is overridden.

    An exception in a callback ends the training, which can then be resumed like one that was interrupted. A search for
    settings (cell ``auto``) calls none: only the training after it does.

    Examples:
        >>> class Losses(Callback):
        ...     def __init__(self):
        ...         self.values = []
        ...
        ...     def on_epoch(self, metrics):
        ...         self.values.append(metrics["train_loss"])
    """

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        """Handle the start, after the data was loaded and the model built.

        Args:
            config: The resolved settings by dotted key, as JSON types.
            run_dir: Directory of the run.
        """

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Handle the end of an epoch.

        Args:
            metrics: The line of ``metrics.jsonl``: ``epoch`` from 1, ``step``, ``lr``, ``train_loss``, ``validation``
                (scores by name; empty without a validation split), ``seconds`` and, in some epochs, ``stability``.
        """

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Handle the end of a run that was finished.

        Args:
            summary: The content of ``summary.json``.
        """

    def on_failure(self, error: BaseException) -> None:
        """Handle the end of a run that failed or was interrupted; ``on_end`` is not called then."""


class CallbackRecorder:
    """A recorder that tells callbacks of each epoch.

    Args:
        recorder: Receives epochs and checkpoints.
        callbacks: Are told of an epoch after it was recorded.
    """

    def __init__(self, recorder: RunRecorder, callbacks: Sequence[Callback]) -> None:
        self._recorder = recorder
        self._callbacks = callbacks

    def record(self, line: dict[str, Any]) -> None:
        self._recorder.record(line)
        for callback in self._callbacks:
            callback.on_epoch(line)

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        self._recorder.save(name, checkpoint)


def numeric_metrics(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers in a nested record by path, ``validation/accuracy``, as trackers take them.

    Lists, texts and missing values are left out: tables of scores stay in the run directory.
    """
    numbers: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            numbers |= numeric_metrics(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[f"{prefix}{key}"] = float(value)
    return numbers


class TensorBoardTracker(Callback):
    """Writes figures of each epoch by optimizer step, the settings as a text, and the final scores."""

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._step = 0
        self._writer = SummaryWriter(str(run_dir / TENSORBOARD_FOLDER))
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


_ARTIFACTS = ("config.yaml", "summary.json")


class MlflowTracker(Callback):
    """Starts a run of its own, or logs to the active one, which it then leaves open.

    Server, experiment and run are those of ``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME`` and ``MLFLOW_RUN_ID``.
    """

    def __init__(self) -> None:
        import mlflow

        self._mlflow = mlflow

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        self._run_dir, self._step = run_dir, 0
        self._is_own_run = self._mlflow.active_run() is None
        if self._is_own_run:
            self._mlflow.start_run(run_name=run_dir.name)
        self._mlflow.log_params(dict(config))

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        self._step = int(metrics["step"])
        numbers = numeric_metrics(metrics)
        del numbers["step"]
        self._mlflow.log_metrics(numbers, step=self._step)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._mlflow.log_metrics(numeric_metrics(summary["metrics"], "final/"), step=self._step)
        for name in _ARTIFACTS:
            self._mlflow.log_artifact(str(self._run_dir / name))
        self._end("FINISHED")

    def on_failure(self, error: BaseException) -> None:
        self._end("FAILED")

    def _end(self, status: str) -> None:
        if self._is_own_run:
            self._mlflow.end_run(status)


PROJECT = "stablernn"
"""Project where ``WANDB_PROJECT`` is not set."""


class WandbTracker(Callback):
    """Starts a run of its own, or logs to the active one, which it then leaves open.

    Mode, project, entity, folder and run are those of ``WANDB_MODE`` (``offline``), ``WANDB_PROJECT`` and so on.
    """

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb

    def on_start(self, config: Mapping[str, Any], run_dir: Path) -> None:
        self._is_own_run = self._wandb.run is None
        if self._wandb.run is None:
            project = os.environ.get("WANDB_PROJECT", PROJECT)
            self._run = self._wandb.init(project=project, name=run_dir.name, config=dict(config))
        else:
            self._run = self._wandb.run
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


class _Tracker(NamedTuple):
    title: str
    """Name of its library in messages."""
    module: str
    """Module that the library installs."""
    callback: type[Callback]


TRACKERS = {
    "tensorboard": _Tracker("TensorBoard", "tensorboard", TensorBoardTracker),
    "mlflow": _Tracker("MLflow", "mlflow", MlflowTracker),
    "wandb": _Tracker("Weights & Biases", "wandb", WandbTracker),
}
"""Trackers by name, which is that of the extra, too."""


def open_trackers(names: Sequence[str]) -> list[Callback]:
    """Return the trackers of these names.

    Raises:
        ConfigError: If there is no tracker of a name, one is named twice, or its library is not installed.
    """
    callbacks: list[Callback] = []
    for index, name in enumerate(names):
        if name not in TRACKERS:
            raise ConfigError(
                f"Unknown tracker '{name}'.{did_you_mean(name, TRACKERS)} It is one of {', '.join(TRACKERS)}."
            )
        if name in names[:index]:
            raise ConfigError(f"The tracker '{name}' is named twice. Name it once.")
        tracker = TRACKERS[name]
        if find_spec(tracker.module) is None:
            raise ConfigError(f"The tracker '{name}' uses {tracker.title}, which the extra 'stablernn[{name}]' brings.")
        callbacks.append(tracker.callback())
    return callbacks
