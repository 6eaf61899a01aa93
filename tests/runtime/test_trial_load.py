"""A version is opened in a process of its own first: when it is not tried, and what becomes of the process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from published_models import Published, copy_registry, copy_version
from serving_helpers import until
from stablernn_registry import Registry
from stablernn_runtime import isolation, trial_load
from stablernn_runtime.errors import ModelLoadError, NotReadyError
from stablernn_runtime.isolation import Abort

GIB = 2**30


@pytest.fixture
def registry(tmp_path: Path, published: Published) -> Registry:
    return copy_registry(tmp_path / "registry", published)


def test_nothing_is_opened_in_another_process_after_an_abort(registry: Registry) -> None:
    abort = Abort()
    abort.set()
    untried = copy_version(registry, registry.get("animals:1"), parity_json=b"4")
    with pytest.raises(NotReadyError, match="'animals:3' is not open yet, and the server is shutting down"):
        trial_load.try_opening(untried, registry.root, 1, 60, 2 * GIB, abort)


def test_what_was_opened_in_time_is_not_tried_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    root = registry.root
    known = registry.get("animals:1")
    trial_load.try_opening(known, root, 1, 60, 2 * GIB)
    trial_load.close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    copy = copy_version(registry, known)
    trial_load.try_opening(copy, root, 1, 60, 2 * GIB)
    with pytest.raises(ModelLoadError) as caught:
        trial_load.try_opening(copy_version(registry, known, parity_json=b"{}"), root, 1, 60, 2 * GIB)
    assert str(caught.value).startswith("'animals:4' cannot be served: ")
    assert "the process for it does not start (No such file or directory)" in str(caught.value)


@pytest.mark.slow
def test_a_process_that_was_killed_is_replaced(registry: Registry) -> None:
    root, known = registry.root, registry.get("animals:1")
    pids = set()
    for number in (1, 2):
        trial_load.try_opening(copy_version(registry, known, parity_json=b"%d" % number), root, 1, 60, 2 * GIB)
        process = trial_load._process.idle[-1]
        pids.add(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert len(pids) == 2


@pytest.mark.slow
def test_a_process_without_work_is_ended_and_leaves_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_load.close()
    monkeypatch.setattr(isolation, "IDLE_SECONDS", 0.2)
    process_of_its_own = isolation.IsolatedProcess("stablernn_runtime.trial_load")
    known = registry.get("animals:1")
    request = {"root": str(registry.root), "ref": known.ref, "digest": known.digest, "threads": 1, "engine": "onnx"}
    assert process_of_its_own.ask(request, 60, 2 * GIB) == {}
    (process,) = process_of_its_own.idle
    until(lambda: process.returncode is not None)
    until(lambda: process.stdout is not None and process.stdout.closed)
    assert process.stdin is not None
    assert process.stdin.closed
    assert process_of_its_own.idle == ()


SECRETS = ("STABLERNN_STATE_KEY", "stablernn_state_key", "Stablernn_Infer_Tokens", "OTEL_EXPORTER_OTLP_HEADERS")


def test_the_process_is_not_told_what_the_server_keeps_secret(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_load.close()
    for name in SECRETS:
        monkeypatch.setenv(name, "a" * 64)
    known = registry.get("animals:1")
    trial_load.try_opening(copy_version(registry, known, parity_json=b"3"), registry.root, 1, 60, 2 * GIB)
    (process,) = trial_load._process.idle
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    assert [name for name in SECRETS if name.encode() in environment] == []
    assert b"a" * 64 not in environment
    assert b"PATH=" in environment
