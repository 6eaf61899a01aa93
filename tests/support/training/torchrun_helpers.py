"""Jobs of torchrun: how tests start them, find their processes and compare their runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RUN = [
    "--data", "digits", "--cell", "lipschitz", "--hidden-size", "16", "--epochs", "8", "--device", "cpu",
    "--set", "training.plots=false", "--set", "training.keep_epochs=true",
]  # fmt: skip
STEPS = 8 * 34
"""Optimizer steps of :data:`RUN`."""


def torchrun(processes: int, *arguments: str, max_restarts: int = 0) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    launcher += ["--max-restarts", str(max_restarts)]
    return subprocess.Popen(
        [sys.executable, *launcher, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(process: subprocess.Popen[str]) -> str:
    """Standard error of a job that must end well."""
    with process:
        try:
            _, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    assert process.returncode == 0, errors
    return errors


def scores(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["validation"] | {"step": line["step"], "loss": line["train_loss"]} for line in lines]


def assert_equal_runs(run: Path, other: Path) -> None:
    """The same figures in every epoch, to the rounding of sums in another order over hundreds of steps."""
    for line, expected in zip(scores(run), scores(other), strict=True):
        assert line == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert json.loads((run / "summary.json").read_text())["steps"] == STEPS


def children(process: subprocess.Popen[str]) -> Iterator[int]:
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def rank_of(child: int) -> str:
    variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    return next((entry[5:].decode() for entry in variables if entry.startswith(b"RANK=")), "")


def wait_for_epoch(process: subprocess.Popen[str], epoch: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"epoch {epoch}/"):
            return
    pytest.fail("the job ended before the epoch")
