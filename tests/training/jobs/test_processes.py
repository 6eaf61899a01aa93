"""Jobs in processes: all are done, errors arrive as they are, a stop ends all of them."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import pytest

from process_jobs import (
    ctrl_c,
    die,
    leave_a_file,
    log_a_stage,
    lose_the_exit,
    read_data,
    refuse,
    refuse_after,
    wait_long,
)
from stablernn.errors import ConfigError, InterruptedRun, TrainingError
from stablernn.training.jobs import Job, JobLocks, Workers, _run_job, run_jobs, unique_readings


def job(work, path: Path) -> Job:
    return Job(path.name, work, (path,), key=path.name, is_done=path.is_dir)


def locks_in(folder: Path) -> JobLocks:
    return JobLocks(folder / ".locks")


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_job_is_done_and_told(tmp_path: Path, at_once: int) -> None:
    told: list[str] = []
    jobs = [job(leave_a_file, tmp_path / name) for name in "abc"]
    run_jobs(jobs, at_once, locks_in(tmp_path), lambda one: told.append(one.name))
    assert sorted(told) == ["a", "b", "c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".locks", "a", "b", "c"]
    assert not list((tmp_path / ".locks").iterdir())


@pytest.mark.parametrize("at_once", [1, 2])
def test_stages_have_the_name_of_the_job(tmp_path: Path, at_once: int, caplog: pytest.LogCaptureFixture) -> None:
    progress = logging.getLogger("stablernn.progress")
    jobs = [job(log_a_stage, tmp_path / name) for name in "ab"]
    with caplog.at_level(logging.INFO, progress.name):
        run_jobs(jobs, at_once, locks_in(tmp_path), lambda job: progress.info("%s is done", job.name))
    assert sorted(caplog.messages) == ["a is done", "a: Stage of 100% ...", "b is done", "b: Stage of 100% ..."]
    # Without a listener that wants stages, those of other processes are not logged either.
    caplog.clear()
    with caplog.at_level(logging.WARNING, progress.name):
        run_jobs([job(log_a_stage, tmp_path / name) for name in "cd"], at_once, locks_in(tmp_path), lambda job: None)
    assert not caplog.messages


@pytest.mark.parametrize("at_once", [1, 2])
def test_data_that_several_jobs_read_is_logged_once(
    tmp_path: Path, at_once: int, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [job(read_data, tmp_path / name) for name in ("a1", "a2", "b1")]
    with caplog.at_level(logging.INFO, "stablernn.progress"):
        with unique_readings():
            run_jobs(jobs, at_once, locks_in(tmp_path), lambda job: None)
        readings = sorted(message.partition(": ")[2] for message in caplog.messages)
        assert readings == ["Reading a ...", "Reading b ..."]
        # Jobs outside of it log each reading.
        caplog.clear()
        run_jobs([job(read_data, tmp_path / name) for name in ("a3", "a4")], 1, locks_in(tmp_path), lambda job: None)
        assert caplog.messages == ["a3: Reading a ...", "a4: Reading a ..."]


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_error_of_a_job_is_the_error(tmp_path: Path, at_once: int) -> None:
    told: list[str] = []
    jobs = [job(refuse, tmp_path / "b"), job(leave_a_file, tmp_path / "c")]
    with pytest.raises(ConfigError, match=r"^No b today\.$"):
        run_jobs(jobs[:at_once], at_once, locks_in(tmp_path), lambda one: told.append(one.name))
    assert "b" not in told
    assert not list((tmp_path / ".locks").iterdir())


@pytest.mark.slow
def test_a_process_that_loses_the_exit_it_was_told_ends_after_its_job(tmp_path: Path) -> None:
    """As where the signal arrives in a callback of C code; the parent waits for the process, and it for a call."""
    jobs = [job(lose_the_exit, tmp_path / "a"), job(refuse_after, tmp_path / "b")]
    with pytest.raises(ConfigError, match=r"^No b today\.$"):
        run_jobs(jobs, 2, locks_in(tmp_path), lambda one: None)
    assert (tmp_path / "a").exists()


def test_a_process_that_dies_is_said_to_have_died_and_the_others_are_ended(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"^The process of a ended with exit code -9 and no result; "):
        run_jobs([job(die, tmp_path / "a"), job(wait_long, tmp_path / "b")], 2, locks_in(tmp_path), lambda one: None)


@pytest.mark.slow
def test_a_job_goes_on_when_the_process_that_started_it_was_killed(tmp_path: Path) -> None:
    """It logs a stage, which nobody reads any more, before it leaves its file."""
    worker = Workers("test").call(_run_job, job(log_a_stage, tmp_path / "a"), locks_in(tmp_path))
    # As the death of this process would.
    worker.connection.close()
    worker.process.join(timeout=120)
    assert worker.process.exitcode == 0
    assert (tmp_path / "a").exists()
    assert not list((tmp_path / ".locks").iterdir())


def test_ctrl_c_in_a_single_job_is_a_stop(tmp_path: Path) -> None:
    # A shell lets commands in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(
            InterruptedRun, match=r"^Stopped at a\. Run the same command again to go on; finished work "
        ):
            run_jobs([job(ctrl_c, tmp_path / "a")], 1, locks_in(tmp_path), lambda one: None)
    finally:
        signal.signal(signal.SIGINT, before)
