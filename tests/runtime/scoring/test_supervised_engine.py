"""The supervisor of engines starts one again after a known error of the engine alone."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from supervised_engine import MAX_RESTARTS, QUIX_RECOVERY_ERROR, SupervisedEngine

# Takes as many words as it starts, each of them the error of one start; it goes on without one.
PROGRAM = """
import sys, time
from pathlib import Path
starts = Path("starts")
count = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (count + 1))
if count < len(sys.argv) - 1:
    exec(sys.argv[count + 1])
Path("works").touch()
time.sleep(600)
"""
LIBRARY = "def recover(name):\n    del {}[name]\n"
RECOVERY = "from quixstreams.recovery import recover; recover('changelog__events')"


def supervise(folder: Path, *errors: str) -> SupervisedEngine:
    """Start a program with these errors, and check it until it works."""
    (folder / "quixstreams").mkdir()
    (folder / "quixstreams" / "recovery.py").write_text(LIBRARY)
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", *errors]
    engine = SupervisedEngine(command, folder / "log", os.environ, folder, QUIX_RECOVERY_ERROR)
    engine.start()
    try:
        while not (folder / "works").exists():
            engine.check()
            time.sleep(0.01)
    finally:
        engine.kill()
    return engine


def test_it_is_started_again_after_the_known_error(tmp_path: Path) -> None:
    assert supervise(tmp_path, RECOVERY, RECOVERY).restarts == 2
    assert (tmp_path / "starts").read_text() == "xxx"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("{}['changelog__events']", "status 1, after 1 restarts:\n.*KeyError: 'changelog__events'"),
        ("from quixstreams.recovery import recover; recover('key')", "status 1, after 1 restarts:\n.*KeyError: 'key'"),
        (f"try:\n    {RECOVERY}\nexcept KeyError:\n    1 / 0", "status 1, after 1 restarts:\n.*ZeroDivisionError"),
        ("sys.exit(3)", "status 3, after 1 restarts"),
        ("sys.exit()", "status 0, after 1 restarts"),
        ("import os; os.kill(os.getpid(), 9)", "status -9, after 1 restarts"),
    ],
    ids=["ours", "other-key", "while-handling", "status", "done", "killed"],
)
def test_any_other_end_fails(tmp_path: Path, error: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=rf"(?s)^The engine ended by itself with {sentence}"):
        supervise(tmp_path, RECOVERY, error)


def test_an_engine_that_never_recovers_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=rf"again, status 1, after {MAX_RESTARTS} restarts:"):
        supervise(tmp_path, *[RECOVERY] * (MAX_RESTARTS + 1))
    assert len((tmp_path / "starts").read_text()) == MAX_RESTARTS + 1
