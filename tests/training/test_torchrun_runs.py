"""Runs of several processes: signals, deaths in every phase, and resuming with another number of processes."""

from __future__ import annotations

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

SLOW_PHASE = Path(__file__).parents[1] / "support/training/slow_phase.py"


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.parametrize(
    ("phase", "call", "how", "victim", "processes"),
    [
        ("loading", 1, "python", "1", 2),
        ("step", 50, "python", "0", 2),
        ("validation", 2, "blocking", "1", 2),
        # The third process waits for the first one, which is alive, and has no connection to the second in use.
        ("validation", 2, "python", "1", 3),
        ("certificate", 2, "python", "1", 2),
        ("checkpoint", 2, "python", "0", 2),
        ("scoring", 1, "python", "1", 2),
    ],
)
def test_a_job_whose_process_is_killed_ends_within_ten_seconds_in_every_phase(
    tmp_path: Path, phase: str, call: int, how: str, victim: str, processes: int
) -> None:
    run = tmp_path / "run"
    arguments = (phase, str(call), how, *RUN, "--run-dir", str(run))
    with torchrun(processes, str(SLOW_PHASE), *arguments) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == f"{phase}\n"
        (process,) = (child for child in children(job) if rank_of(child) == victim)
        os.kill(process, signal.SIGKILL)
        _, errors = job.communicate(timeout=10)
        assert job.returncode != 0
    assert "bug in stablernn" not in errors
    last = run / "checkpoints/last.safetensors"
    if phase == "loading":
        assert not run.exists()
        return
    assert load_checkpoint(last).state["position"]["epoch"] == (8 if phase == "scoring" else 1)
    # A process that is killed, or hangs in a call, cannot remove what it was writing.
    is_cut_off = phase == "checkpoint" and (victim == "0" or how == "blocking")
    assert len(list(run.rglob(".*"))) == int(is_cut_off)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["end", "failure"])
def test_a_callback_at_the_end_is_not_interrupted_when_the_other_process_is_done(tmp_path: Path, ending: str) -> None:
    run, script = tmp_path / "run", tmp_path / "callback.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "from stablernn.training import load_config, train\n"
        "from stablernn.training.callbacks import Callback\n"
        "class Slow(Callback):\n"
        "    def on_epoch(self, metrics):\n"
        "        if sys.argv[2] == 'failure':\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "    def finish(self, *_):\n"
        "        for _ in range(50):\n"
        "            time.sleep(0.1)\n"
        "        open(sys.argv[3], 'w').close()\n"
        "    on_end = on_failure = finish\n"
        "config = load_config(overrides=['data.source=digits', 'model.cell=rnn', 'training.epochs=2', "
        "'training.device=cpu', 'training.plots=false'])\n"
        "train(config, sys.argv[1], callbacks=[Slow()])\n"
    )
    with torchrun(2, str(script), str(run), ending, str(tmp_path / "called")) as job:
        _, errors = job.communicate(timeout=120)
    assert (tmp_path / "called").exists(), errors
    assert "lost the connection" not in errors
    assert (job.returncode == 0) is (ending == "end")
