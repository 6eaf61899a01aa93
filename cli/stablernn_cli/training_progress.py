"""Progress of a training run, and messages of the library, on stderr."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stablernn_cli.output import Output, figure, library_stages

if TYPE_CHECKING:
    from stablernn.training import Progress

_LONG_EPOCH_SECONDS = 10.0
"""Time without a line after which one is printed within an epoch."""


@contextmanager
def progress_report(output: Output) -> Iterator[Callable[[Progress], None] | None]:
    """Give the callback that training reports to: a progress bar in a terminal, else lines for stages and epochs."""
    if not output.is_live:
        with library_stages(output.note):
            yield None if output.quiet else _EpochLines(output)
        return
    # Under another name: `Progress` is the report of training here.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    bar = ProgressBar(
        TextColumn("{task.fields[stage]}", markup=False),
        TextColumn("{task.fields[epoch]}"),
        BarColumn(),
        TextColumn("{task.fields[scores]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    # The number of steps is known with the first report only.
    row = bar.add_task("", total=None, stage="", epoch="", scores="")
    with bar, library_stages(lambda text: bar.update(row, stage=text)):

        def report(progress: Progress) -> None:
            bar.update(
                row,
                completed=progress.step,
                total=progress.total_steps,
                stage="",
                epoch=f"epoch {progress.epoch}/{progress.epochs}",
                scores="  ".join(_scores(progress)),
            )

        yield report


@contextmanager
def library_messages(output: Output) -> Iterator[None]:
    """Print what the library logs: values filled, cut or skipped, automatic choices, and warnings of a run."""
    handler = _NoteHandler(output)
    loggers = [logging.getLogger(name) for name in ("stablernn.data", "stablernn.training")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        # The handler of the root logger would print each message a second time.
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


class _NoteHandler(logging.Handler):
    """A handler that prints log records as notes and warnings on stderr, each text once."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        # A search and the training after it both load the data, and find the same in it.
        if record.getMessage() in self._printed:
            return
        self._printed.add(record.getMessage())
        if record.levelno >= logging.WARNING:
            self._output.warn(record.getMessage())
        else:
            self._output.note(record.getMessage())


def _scores(progress: Progress) -> list[str]:
    """Return the scores so far as text; there is no metric where the validation split is trained on, too."""
    metric = [] if progress.metric is None else [f"validation {progress.metric_name} {figure(progress.metric)}"]
    return [f"loss {figure(progress.loss)}", *metric]


class _EpochLines:
    """A callback that prints a line for each validated epoch, and within long epochs one now and then."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last_step = -1
        self._start = time.monotonic()
        # From the first step on, before which a search may take long.
        self._last_line: float | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        epoch = f"epoch {progress.epoch}/{progress.epochs}"
        # A step is reported once; the second report of the same step comes after the epoch's validation.
        if progress.step == self._last_step:
            self._print([epoch, *_scores(progress)], now)
        elif self._last_line is None:
            self._last_line = now
        elif now - self._last_line > _LONG_EPOCH_SECONDS:
            # The metric is that of an earlier epoch.
            self._print(
                [epoch, f"step {progress.step:,} of {progress.total_steps:,}", f"loss {figure(progress.loss)}"], now
            )
        self._last_step = progress.step

    def _print(self, parts: list[str], now: float) -> None:
        self._output.note("  ".join([*parts, f"{now - self._start:.0f} s"]))
        self._last_line = now
