"""Runs of a comparison: one contender on one problem with one seed, in a run directory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json, write_json
from stablernn.compare.contenders import Contender, Problem
from stablernn.compare.step_time import step_milliseconds
from stablernn.errors import TrainingError
from stablernn.training import load_run, train
from stablernn.training.settings.config import Config
from stablernn.training.trackers import open_trackers


@dataclass(frozen=True)
class ComparedRun:
    """A run of a comparison.

    Attributes:
        problem: The problem.
        contender: The contender.
        seed: Seed of the training.
        config: Its settings, not resolved.
        path: The run directory.
        figures: File with the figures of the run.
        track: Names of trackers that the run is logged to.
    """

    problem: Problem
    contender: Contender
    seed: int
    config: Config
    path: Path
    figures: Path
    track: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.contender.name} on {self.problem.name}, seed {self.seed}"

    @property
    def is_done(self) -> bool:
        return has_metrics(self.figures)


def has_metrics(figures: Path) -> bool:
    """Return whether a file has the figures of a run that is done, and not only of an interrupted one."""
    return figures.is_file() and "metrics" in read_json(figures)


def train_and_measure(run: ComparedRun) -> None:
    """Train a run, or resume it, and write its figures.

    A training that fails, since it diverges or leaves less proved than it has to, is a result too.
    """
    # Of a run that was interrupted the time is that of all its parts.
    spent = read_json(run.figures)["cpu_seconds"] if run.figures.is_file() else 0.0
    began = time.process_time()

    def cpu_seconds() -> float:
        return round(spent + time.process_time() - began, 3)

    try:
        is_begun = (run.path / "config.yaml").is_file()
        summary = train(run.config, run.path, resume=is_begun, callbacks=open_trackers(run.track))
    except TrainingError as error:
        write_json(run.figures, {"cpu_seconds": cpu_seconds(), "error": str(error), "metrics": {}})
        return
    except BaseException:
        write_json(run.figures, {"cpu_seconds": cpu_seconds()})
        raise
    figures = {"cpu_seconds": cpu_seconds(), **_figures(summary)}
    model = load_run(run.path).model
    # A model of complete sequences has no step.
    if model.resampling is None:
        figures["step_ms"] = round(step_milliseconds(model), 5)
    write_json(run.figures, figures)


def _figures(summary: Any) -> dict[str, Any]:
    return {
        **{key: summary[key] for key in ("task", "parameters", "engine", "epochs", "steps", "seconds", "diverged")},
        "certificate": summary.get("certificate"),
        "metrics": summary["metrics"],
    }
