"""Locks of jobs: who gets one, when it is taken over, and what an owner that lost it can still write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stablernn.training.jobs as module
from stablernn.atomic_files import read_json, write_json
from stablernn.training.jobs import AbandonedJob, JobLocks, LostLock


class Clock:
    """The monotonic clock of this process, which a test turns forward."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._monotonic = time.monotonic

    def __call__(self) -> float:
        return self._monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock)
    return clock


def watch(locks: JobLocks, clock: Clock, seconds: float = 70.0) -> None:
    """Look at the lock for some time, every five seconds."""
    locks.owner("a")
    for _ in range(round(seconds / 5)):
        clock.ahead += 5.0
        locks.owner("a")


@pytest.fixture
def locks(tmp_path: Path) -> JobLocks:
    return JobLocks(tmp_path / ".locks", seconds=10.0)


def lock_file(locks: JobLocks, number: int = 0) -> Path:
    return locks.folder / f"a.{number}.lock"


def lay(locks: JobLocks, **changes: Any) -> Path:
    """A lock of another machine."""
    owner = {"host": "node7", "pid": 12, "machine": "other", "token": "t", "seconds": 10.0}
    locks.folder.mkdir(exist_ok=True)
    path = lock_file(locks)
    path.write_text(json.dumps({**owner, "deaths": 0, "checkpoint": None, **changes}))
    return path


def test_one_process_has_a_lock_until_it_gives_it_back(locks: JobLocks) -> None:
    lock = locks.claim("a")
    assert lock is not None
    assert locks.claim("a") is None
    assert locks.owner("a") == f"process {os.getpid()} on {module.socket.gethostname()}"
    assert locks.claim("a.1") is not None
    with lock.held():
        pass
    assert locks.owner("a") is None
    assert locks.claim("a") is not None


def assert_taken_between(locks: JobLocks, clock: Clock, held: float, taken: float) -> None:
    """A lock that is watched is still held after ``held`` seconds, and taken over after ``taken`` ones."""
    watch(locks, clock, held)
    assert locks.claim("a") is None
    watch(locks, clock, taken - held)
    assert locks.claim("a") is not None


@pytest.mark.parametrize(("seconds", "is_taken"), [(55.0, False), (65.0, True)])
def test_a_lock_of_another_machine_is_taken_after_six_missing_heartbeats(
    locks: JobLocks, clock: Clock, seconds: float, is_taken: bool
) -> None:
    path = lay(locks)
    told: list[str] = []
    watch(locks, clock, seconds)
    lock = locks.claim("a", report=told.append)
    assert (lock is not None) is is_taken
    assert (path.exists(), lock_file(locks, 1).exists()) == (not is_taken, is_taken)
    taken = ["Taking over a from process 12 on node7, which is dead or suspended."]
    assert told == (taken if is_taken else [])


@pytest.mark.parametrize("offset", [-1e6, 1e6])
def test_clocks_of_machines_need_not_agree(locks: JobLocks, clock: Clock, offset: float) -> None:
    path = lay(locks)
    for beat in range(20):
        os.utime(path, (offset + beat, offset + beat))
        assert locks.claim("a") is None
        clock.ahead += 10.0
    # A clock that stands still, or that jumps back.
    os.utime(path, (offset, offset))
    assert_taken_between(locks, clock, 55.0, 65.0)


def test_time_in_which_nobody_watches_counts_one_heartbeat(locks: JobLocks, clock: Clock) -> None:
    lay(locks)
    assert locks.claim("a") is None
    # This process was suspended, or the file server away, and the owner may just not have come to touch its lock.
    clock.ahead += 3600.0
    assert locks.claim("a") is None
    assert_taken_between(locks, clock, 45.0, 55.0)


def test_a_touched_lock_stays(locks: JobLocks) -> None:
    ours, other = JobLocks(locks.folder, seconds=0.1), JobLocks(locks.folder, seconds=0.1)
    lock = ours.claim("a")
    assert lock is not None
    with lock.held():
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert other.claim("a") is None
            time.sleep(other.poll_seconds)


def test_the_lock_of_a_process_of_this_machine_that_died_is_taken_at_once(locks: JobLocks) -> None:
    code = (
        "import os, sys; from pathlib import Path; from stablernn.training.jobs import JobLocks\n"
        "assert JobLocks(Path(sys.argv[1])).claim('a'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, locks.folder], check=True)
    assert lock_file(locks).exists()
    if module._machine() is not None:
        assert locks.claim("a") is not None


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[1]", b'{"host": 1}', b"{" * 5000])
def test_a_damaged_lock_counts_until_it_is_old(locks: JobLocks, clock: Clock, content: bytes) -> None:
    path = lay(locks)
    path.write_bytes(content)
    assert locks.claim("a") is None
    assert locks.owner("a") == "an unknown process"
    watch(locks, clock)
    assert locks.claim("a") is not None


def test_one_of_many_takes_over(locks: JobLocks, clock: Clock) -> None:
    for number in range(20):
        lay(locks, token=str(number))
        watch(locks, clock)
        taken: list[object] = []
        gate = threading.Barrier(8)

        def take(taken: list[object], gate: threading.Barrier) -> None:
            gate.wait()
            taken.append(locks.claim("a"))

        threads = [threading.Thread(target=take, args=(taken, gate)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = (lock for lock in taken if lock is not None)
        winner.check()  # type: ignore[attr-defined]
        winner.release()  # type: ignore[attr-defined]
        assert not list(locks.folder.iterdir())


def interleave(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let others act when a process has looked at a lock and is about to create its own."""
    create = JobLocks._create

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(JobLocks, "_create", create)
        act()
        return create(*arguments)

    monkeypatch.setattr(JobLocks, "_create", late)


def test_who_comes_late_to_a_dead_lock_leaves_the_new_owner_alone(
    locks: JobLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(locks)
    watch(locks, clock)
    others = []

    def take_release_and_take() -> None:
        first = locks.claim("a")
        assert first is not None
        first.release()
        others.append(locks.claim("a"))

    interleave(monkeypatch, take_release_and_take)
    assert locks.claim("a") is None
    others[0].check()


def test_an_owner_that_lost_its_lock_writes_nothing(locks: JobLocks, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    lock = locks.claim("a")
    assert lock is not None
    with lock.held():
        write_json(path, 1)
    lock = locks.claim("a")
    assert lock is not None
    lock_file(locks).rename(lock_file(locks, 1))
    with pytest.raises(LostLock), lock.held():
        write_json(path, 2)
    assert read_json(path) == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".locks", "result.json"]
    # The lock of the other one is still there.
    assert lock_file(locks, 1).exists()
    write_json(path, 3)
    assert read_json(path) == 3


def test_what_one_process_at_a_time_may_do_is_done_again_if_the_lock_was_lost(locks: JobLocks, tmp_path: Path) -> None:
    calls = []

    def work() -> int:
        calls.append(1)
        if len(calls) == 1:
            lock_file(locks).unlink()
        write_json(tmp_path / "result.json", len(calls))
        return len(calls)

    assert locks.exclusively("a", work) == 2
    assert read_json(tmp_path / "result.json") == 2


def test_a_job_that_kills_its_owners_is_not_tried_endlessly(locks: JobLocks, tmp_path: Path) -> None:
    checkpoint = tmp_path / "last"

    def die() -> None:
        lock = locks.claim("a", checkpoint)
        assert lock is not None
        # The operating system frees it.
        os.close(lock._descriptor)  # type: ignore[arg-type]

    for _ in range(3):
        die()
    with pytest.raises(AbandonedJob, match=r"^The processes that ran a died 3 times in a row without a new checkpoint"):
        locks.claim("a", checkpoint)
    # With progress the count begins anew.
    checkpoint.touch()
    for _ in range(2):
        die()
    lock_file(locks, 4).unlink()
    assert locks.claim("a", checkpoint) is not None


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from stablernn.training.jobs import JobLocks\n"
        "os.getuid() or os.setuid(65534)\n"
        "JobLocks(Path(sys.argv[1])).claim('a')"
    )
    tmp_path.chmod(0o555)
    try:
        command = [sys.executable, "-c", code, tmp_path / ".locks"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        tmp_path.chmod(0o755)
    assert (
        f"ConfigError: Cannot write to the folder '{tmp_path}': Permission denied. Each machine that" in result.stderr
    )
    assert "or name another folder with --output." in result.stderr
