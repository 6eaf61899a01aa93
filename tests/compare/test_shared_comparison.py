"""Comparisons in a folder that processes share which take themselves for different machines."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from comparison_helpers import write_waves
from machines import Machine, machines, stop_until_lost
from stablernn.compare import Comparison, compare
from stablernn.compare.run_comparison import make_contenders, make_problems

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waves")
    for part, seed in (("TRAIN", 0), ("TEST", 1)):
        write_waves(folder / f"short_{part}.npz", seed, 8)
    return folder / "short_TRAIN.npz"


def start(name: str, data: Path, output: Path, epochs: int) -> Machine:
    words = ["--cells", "lru", "--seeds", ",".join(map(str, SEEDS)), "--epochs", epochs, "--output", output]
    settings = ["--set", "model.hidden_size=4", "--set", "training.batch_size=8"]
    return Machine(name, "cli", "compare", "--data", data, *words, *settings)


def scores(output: Path) -> list[Any]:
    return [(run["seed"], run["steps"], run["metrics"]) for run in read(output / "results.json")["runs"]]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def run_of(output: Path, seed: int) -> Path:
    return output / "runs" / f"short-lru-{seed}"


def resumed(output: Path) -> list[int]:
    return [len(read(run_of(output, seed) / "env.json").get("resumed", [])) for seed in SEEDS]


def alone(data: Path, output: Path, epochs: int) -> list[Any]:
    """Return the scores of one process that nobody disturbs."""
    contenders = make_contenders(["lru"], [])
    overrides = ("model.hidden_size=4", "training.batch_size=8")
    compare(Comparison(make_problems([str(data)]), contenders, SEEDS, overrides=overrides, epochs=epochs), output)
    return scores(output)


def owner_in_training(output: Path, started: list[Machine]) -> tuple[int, Machine, Machine]:
    """Return a seed whose training has passed an epoch, its machine, and the other one."""
    end = time.monotonic() + 240
    while True:
        assert time.monotonic() < end
        for seed in SEEDS:
            lock = output / ".locks" / f"short-lru-{seed}.0.lock"
            if (run_of(output, seed) / "metrics.jsonl").is_file() and lock.is_file():
                first, second = started
                return (seed, first, second) if read(lock)["pid"] == first.pid else (seed, second, first)
        time.sleep(0.01)


@pytest.mark.slow
def test_a_suspended_machine_writes_nothing_into_a_run_that_was_taken_over(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "shared"
    with machines() as started:
        started += [start(name, data, output, 60) for name in ("a", "b")]
        seed, suspended, other = owner_in_training(output, started)
        stop_until_lost(suspended, output / ".locks" / f"short-lru-{seed}.0.lock")
        # Both train the run for a moment.
        suspended.signal(signal.SIGCONT)
        printed = suspended.wait()
        other.wait()
    assert f"Dropping lru on short, seed {seed}: another process has taken it over" in printed
    assert resumed(output) == [int(seed == number) for number in SEEDS]
    epochs = [json.loads(line)["epoch"] for line in (run_of(output, seed) / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 61))
    assert scores(output) == alone(data, tmp_path / "alone", 60)
