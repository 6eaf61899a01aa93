"""The parts of a call run at the same time, on the OpenMP threads of torch or on threads of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from step_forms import needs_native

pytestmark = needs_native

with contextlib.suppress(ImportError):
    from stablernn_native import bindings

COUNT = 3


@pytest.fixture(params=["OpenMP", "started"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "started":
        monkeypatch.setattr(bindings, "_openmp_team", lambda: None)
    elif bindings._openmp_team() is None:
        pytest.skip("torch has no OpenMP runtime with GNU's interface here")
    return str(request.param)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(COUNT)
    yield
    torch.set_num_threads(before)


def test_every_part_runs_once_and_has_its_status(kind: str) -> None:
    for count in (2, 3, 8):
        seen: list[int] = []

        def kernel(part: int, seen: list[int] = seen) -> int:
            seen.append(part)
            return part * part

        assert bindings.run_parts(kernel, range(count)) == [part * part for part in range(count)]
        assert sorted(seen) == list(range(count))


def test_parts_run_at_the_same_time(kind: str) -> None:
    # A part that waits for the others never ends if they come after it.
    barrier = threading.Barrier(COUNT, timeout=60)

    def kernel(part: int) -> int:
        barrier.wait()
        return 0

    assert bindings.run_parts(kernel, range(COUNT)) == [0] * COUNT


def test_an_error_in_a_part_is_raised_after_all_have_ended() -> None:
    if bindings._openmp_team() is None:
        pytest.skip("torch has no OpenMP runtime with GNU's interface here")
    ended = []

    def kernel(part: int) -> int:
        if part == 0:
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append(part)
        return 0

    with pytest.raises(KeyboardInterrupt):
        bindings.run_parts(kernel, range(COUNT))
    assert sorted(ended) == [1, 2]


def test_threads_that_have_started_end_before_an_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """They write into the arrays of the call, which nobody holds any more after it."""
    started: list[threading.Thread] = []

    class Scarce(threading.Thread):
        def start(self) -> None:
            if started:
                raise RuntimeError("can't start new thread")
            started.append(self)
            super().start()

    monkeypatch.setattr(bindings, "_openmp_team", lambda: None)
    monkeypatch.setattr(bindings.threading, "Thread", Scarce)
    ended = []

    def kernel(part: int) -> int:
        time.sleep(0.05)
        ended.append(part)
        return 0

    with pytest.raises(RuntimeError, match="can't start new thread"):
        bindings.run_parts(kernel, range(COUNT))
    assert [thread.is_alive() for thread in started] == [False]
    assert ended
    assert ended == sorted(ended)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process")
def test_an_interrupt_ends_a_training_step_on_two_threads() -> None:
    code = (
        "import signal, torch, stablernn as srn\n"
        # A shell starts background jobs with SIGINT ignored, which processes inherit.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "torch.set_num_threads(2)\n"
        "rnn = srn.StableRNN('rnn', 1, 64, engine='native')\n"
        "x = torch.randn(64, 256, 1)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    rnn(x)[0].sum().backward()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.5)
            os.kill(process.pid, signal.SIGINT)
            error = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert error.strip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in error
