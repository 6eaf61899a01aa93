"""Callbacks of training: the start of a run, each epoch and the end, for trackers of experiments and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablernn.training.loop.base_trainer import RunRecorder
    from stablernn.training.loop.checkpoint import Checkpoint


class Callback:
    """Base class of callbacks; every method does nothing unless it is overridden.

    An exception in a callback ends the training, which can then be resumed like one that was interrupted. A search for
    settings (cell ``auto``) calls none: only the training after it does.

    Example:
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
