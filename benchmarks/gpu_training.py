"""Seconds of an epoch of ``stablernn.training.train`` on MNIST pixel by pixel, for ``benchmarks/gpu.py``."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu import NotMeasured

from stablernn.training import Progress, load_config, train

CELLS = ("antisymmetric", "lru")
EPOCHS, BATCH = 3, 128


def measure(has_cuda: bool) -> dict[str, Any]:
    """Return the seconds of each epoch by cell; without CUDA of a few steps on ``digits``, which needs no files."""
    return {"runs": [measure_cell(cell, has_cuda) for cell in CELLS]}


def measure_cell(cell: str, has_cuda: bool) -> dict[str, Any]:
    """Return the figures of the training of a cell."""
    if has_cuda:
        folder = os.environ.get("STABLERNN_DATA", "")
        if not folder or not (Path(folder) / "mnist").is_dir():
            raise NotMeasured("STABLERNN_DATA names no folder with mnist.")
        settings = ["data.source=mnist", "training.device=cuda", f"training.epochs={EPOCHS}"]
        settings += [f"training.batch_size={BATCH}", "model.hidden_size=128", "model.patch_size=1"]
    else:
        settings = ["data.source=digits", "training.device=cpu", "training.max_steps=4", "model.hidden_size=8"]
    # When the first step of each epoch was done.
    begins: dict[int, float] = {}
    started = time.perf_counter()

    def report(progress: Progress) -> None:
        begins.setdefault(progress.epoch, time.perf_counter())

    with tempfile.TemporaryDirectory() as place:
        summary = train(load_config(None, [f"model.cell={cell}", *settings]), Path(place) / "run", progress=report)
    moments = [*begins.values(), time.perf_counter()]
    seconds = [round(end - begin, 2) for begin, end in zip(moments, moments[1:], strict=False)]
    return {
        "data": "mnist" if has_cuda else "digits",
        "cell": cell,
        "engine": summary["engine"],
        "epochs": summary["epochs"],
        "steps": summary["steps"],
        "seconds_of_all": round(time.perf_counter() - started, 1),
        # The last one contains what a run does in the end: scores, certificate, figures.
        "seconds_of_epochs": seconds,
        "accuracy": summary["metrics"]["test"]["accuracy"],
    }
