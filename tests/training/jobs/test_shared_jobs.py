"""Jobs of a folder that processes share which take themselves for different machines."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from machines import STALE, Machine, machines, stop_until_lost
from stablernn.errors import TrainingError
from stablernn.training.jobs import Job, JobLocks, run_jobs


def log(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_machines_share_the_jobs(tmp_path: Path, processes: int) -> None:
    with machines() as started:
        started += [Machine(name, "jobs", tmp_path, 8, 0.2, processes) for name in ("a", "b")]
        printed = [machine.wait() for machine in started]
    done = [line for line in log(tmp_path) if line[-1] == "done"]
    assert sorted(line[0] for line in done) == [str(number) for number in range(8)]
    if processes == 1:
        assert {line[1] for line in done} == {str(machine.pid) for machine in started}
    assert len(log(tmp_path)) == 16
    for text in printed:
        assert text.count("done ") == 8
    assert not list((tmp_path / ".locks").iterdir())


def owner_of(folder: Path, key: str, started: list[Machine]) -> tuple[Machine, Machine]:
    """Return the machine that has begun a job, and the other one."""
    end = time.monotonic() + 240
    while not (folder / "log").exists() or not (pids := [line[1] for line in log(folder) if line[0] == key]):
        assert time.monotonic() < end
        time.sleep(0.01)
    first, second = started
    return (first, second) if pids[0] == str(first.pid) else (second, first)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("a", "b"), (None, None)], ids=["two machines", "one machine"])
def test_the_job_of_a_process_that_is_killed_is_taken_over(tmp_path: Path, names: tuple[Any, Any]) -> None:
    with machines() as started:
        started += [Machine(name, "jobs", tmp_path, 2, 1.0, 1) for name in names]
        dead, other = owner_of(tmp_path, "1", started)
        dead.signal(signal.SIGKILL)
        printed = other.wait()
    assert f"Taking over 1 from process {dead.pid} on " in printed
    assert json.loads((tmp_path / "1").read_text()) == other.pid
    assert [line for line in log(tmp_path) if line[0] == "1" and line[-1] == "done"] == [["1", str(other.pid), "done"]]
    assert not list((tmp_path / ".locks").iterdir())


@pytest.mark.slow
def test_a_suspended_process_that_lost_its_job_drops_the_result(tmp_path: Path) -> None:
    with machines() as started:
        started += [Machine(name, "jobs", tmp_path, 1, STALE, 1) for name in ("a", "b")]
        suspended, other = owner_of(tmp_path, "0", started)
        stop_until_lost(suspended, tmp_path / ".locks" / "0.0.lock")
        suspended.signal(signal.SIGCONT)
        printed = suspended.wait()
        other.wait()
    assert "Dropping 0: another process has taken it over, since this one gave no sign for too long." in printed
    assert json.loads((tmp_path / "0").read_text()) == other.pid
    assert [line for line in log(tmp_path) if line[-1] == "done"] == [["0", str(other.pid), "done"]]
    assert not list((tmp_path / ".locks").iterdir())


def test_other_jobs_are_done_before_one_that_kills_its_owners_is_an_error(tmp_path: Path) -> None:
    locks = JobLocks(tmp_path / ".locks", seconds=0.1)
    owner = {"host": "node7", "pid": 12, "machine": "other", "token": "t", "seconds": 0.1}
    locks.folder.mkdir()
    (locks.folder / "a.0.lock").write_text(json.dumps({**owner, "deaths": 2, "checkpoint": None}))
    told: list[str] = []
    jobs = [Job(name, touch, (tmp_path / name,), key=name, is_done=(tmp_path / name).is_file) for name in "ab"]
    with pytest.raises(TrainingError, match=r"ran a died 3 times .* the last one as process 12 on node7\. "):
        run_jobs(jobs, 1, locks, lambda job: told.append(job.name))
    assert told == ["b"]


def touch(path: Path) -> None:
    path.touch()
