"""Tables in a folder that processes share which take themselves for different machines."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from machines import Machine, machines, reproduce_small_table


def results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def figures(folder: Path) -> list[Any]:
    return [row["figures"] for row in results(folder)["views"]["best"]]


def alone(folder: Path) -> list[Any]:
    reproduce_small_table(folder)
    return figures(folder)


@pytest.mark.slow
def test_a_table_without_training_is_measured_by_one_of_two(tmp_path: Path) -> None:
    words = ["reproduce", "dynamics", "--rows", "g-imaginary,h-diffusion", "--output", tmp_path]
    with machines() as started:
        started += [Machine(name, "cli", *words) for name in ("a", "b")]
        printed = [machine.wait() for machine in started]
    assert sum(text.count("measured 2 of 2") for text in printed) == 1
    assert all("g-imaginary" in text for text in printed)
    assert len(results(tmp_path)["runs"]) == 2


@pytest.mark.slow
def test_two_machines_share_the_runs_and_measurements_of_a_table(tmp_path: Path) -> None:
    with machines() as started:
        started += [Machine(name, "reproduce", tmp_path / "shared") for name in ("a", "b")]
        printed = [machine.wait() for machine in started]
    assert all(text.count("trained ") == text.count("measured ") == 4 for text in printed)
    assert (results(tmp_path / "shared")["state"], results(tmp_path / "shared")["missing"]) == ("full", [])
    assert [run["resumed"] for run in results(tmp_path / "shared")["runs"]] == [0] * 4
    assert not list((tmp_path / "shared" / ".locks").iterdir())
    assert figures(tmp_path / "shared") == alone(tmp_path / "alone")


@pytest.mark.slow
def test_the_run_of_a_machine_that_dies_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with machines() as started:
        started += [Machine(name, "reproduce", folder) for name in ("a", "b")]
        end = time.monotonic() + 240
        begun: list[Path] = []
        while not begun:
            assert time.monotonic() < end
            time.sleep(0.01)
            begun = [path.parent for path in folder.glob("runs/*/metrics.jsonl")]
        owner = json.loads((folder / ".locks" / f"{begun[0].name}.0.lock").read_text())["pid"]
        dead, other = started if owner == started[0].pid else started[::-1]
        dead.signal(signal.SIGKILL)
        printed = other.wait()
    assert f"Taking over {begun[0].name} from process {dead.pid} on " in printed
    assert sum(run["resumed"] for run in results(folder)["runs"]) == 1
    assert figures(folder) == alone(tmp_path / "alone")
