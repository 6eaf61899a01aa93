"""Runs of several processes: signals, deaths in every phase, and resuming with another number of processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stablernn.training.loop.checkpoint import load_checkpoint
from torchrun_helpers import (
    RUN,
    STEPS,
    assert_equal_runs,
    children,
    finished,
    rank_of,
    torchrun,
    wait_for_epoch,
)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    command = [sys.executable, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return run


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_killed_process_ends_the_job_and_any_number_goes_on(tmp_path: Path, whole_run: Path, rank: str) -> None:
    run = tmp_path / "run"
    with torchrun(2, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run)) as process:
        wait_for_epoch(process, 2)
        (victim,) = (child for child in children(process) if rank_of(child) == rank)
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - killed < 10
        assert process.returncode != 0
    assert "bug in stablernn" not in errors
    assert load_checkpoint(run / "checkpoints/last.safetensors").state["position"]["epoch"] >= 1
    for processes in (1, 2, 3) if rank == "1" else (2,):
        copy = tmp_path / f"resumed-{processes}"
        shutil.copytree(run, copy)
        finished(torchrun(processes, "-m", "stablernn_cli", "train", "--resume", "--run-dir", str(copy)))
        assert_equal_runs(copy, whole_run)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_processes_at_the_same_step(tmp_path: Path, whole_run: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    with torchrun(2, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run)) as process:
        wait_for_epoch(process, 2)
        process.send_signal(number)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 10
    step = load_checkpoint(run / "checkpoints/last.safetensors").state["position"]["step"]
    assert errors.count(f"Stopped at step {step} of {STEPS}.") == 2, errors
    assert 2 * 34 <= step < STEPS
    finished(torchrun(2, "-m", "stablernn_cli", "train", "--resume", "--run-dir", str(run)))
    assert_equal_runs(run, whole_run)


@pytest.mark.slow
def test_only_the_first_process_prints_and_writes(tmp_path: Path, whole_run: Path) -> None:
    run = tmp_path / "run"
    process = torchrun(3, "-m", "stablernn_cli", "train", *RUN, "--run-dir", str(run), "--json")
    with process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    # One document, and one line of each epoch.
    assert json.loads(output)["steps"] == STEPS
    assert errors.count("epoch 8/8") == 1
    assert {path.name for path in run.rglob("*")} == {path.name for path in whole_run.rglob("*")}
    assert_equal_runs(run, whole_run)


@pytest.mark.slow
def test_a_machine_with_another_run_of_the_same_name_takes_the_weights_of_the_first(
    tmp_path: Path, whole_run: Path
) -> None:
    # Two machines that share no directory: on the second, the path is that of a run that is done.
    shutil.copytree(whole_run, tmp_path / "1/runs/digits-lipschitz-1")
    (tmp_path / "0").mkdir()
    script = tmp_path / "machine.py"
    script.write_text(
        "import os, sys\nfrom stablernn_cli.main import main\n"
        f"os.chdir({str(tmp_path)!r} + '/' + os.environ['RANK'])\nmain(sys.argv[1:])\n"
    )
    finished(torchrun(2, str(script), "train", *RUN))
    assert_equal_runs(tmp_path / "0/runs/digits-lipschitz-1", whole_run)
