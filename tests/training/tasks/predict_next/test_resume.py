"""Runs of the task 'predict-next' that are stopped and resumed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.errors import InterruptedRun
from stablernn.training import Progress, load_config, train

TINY = [
    "model.hidden_size=6",
    "training.device=cpu",
    "training.plots=false",
    "training.batch_size=3",
    "training.schedule=plateau",
]


def write_text(path: Path) -> None:
    letters = np.random.default_rng(0).integers(4, size=600)
    path.write_text("".join("abc\n"[letter] for letter in letters))


def contents(run: Path) -> dict[str, Any]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "best": (run / "checkpoints/best.safetensors").read_bytes(),
        "records": [{key: value for key, value in record.items() if key != "seconds"} for record in records],
        "metrics": json.loads((run / "summary.json").read_text())["metrics"],
    }


@pytest.mark.parametrize(
    ("kind", "stop"), [("text", 11), *(pytest.param("sequences", stop, marks=pytest.mark.slow) for stop in (4, 11))]
)
def test_a_stopped_run_goes_on_to_the_same_bits(kind: str, stop: int, tmp_path: Path) -> None:
    """Stopped in the middle of an epoch, with a state that is being carried, and with dropout that draws numbers."""
    if kind == "text":
        write_text(tmp_path / "notes.txt")
        source = "notes.txt"
    else:
        random = np.random.default_rng(0)
        lengths = random.integers(5, 30, 12)
        np.savez(tmp_path / "notes.npz", x=random.normal(size=(12, 30, 2)).astype(np.float32), lengths=lengths)
        source = "notes.npz"
    overrides = [
        f"data.source={tmp_path / source}", "task.name=predict-next", "model.cell=lstm", "model.num_layers=2",
        "model.dropout=0.3", "training.bptt_steps=11", "training.max_steps=26", *TINY,
    ]  # fmt: skip
    train(load_config(overrides=overrides), tmp_path / "whole")

    with pytest.raises(InterruptedRun):
        train(load_config(overrides=overrides), tmp_path / "part", progress=_stopping(stop))
    checkpoint = json.loads((tmp_path / "part/checkpoints/last.json").read_text())
    assert checkpoint["position"]["step"] == stop
    assert any(name.startswith("carried.") for name in checkpoint["tensors"])
    train(None, tmp_path / "part", resume=True)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def _stopping(step: int) -> Any:
    """Ask a run to stop at a step, as Ctrl-C does."""

    def report(progress: Progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return report
