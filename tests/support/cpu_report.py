"""A pytest plugin that prints the processor time of a run, by folder of tests, so that its growth is seen.

Wall time depends on the load of the machine and on the number of workers; processor time much less so. Subprocesses
count once they have ended, in the folder of the test during which they did.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_seconds: Counter[str] = Counter()
"""Processor seconds by folder: of this process, and in the controller of pytest-xdist of its workers."""
_OTHER = "collection and the rest"


def _cpu_seconds(*, with_children: bool = True) -> float:
    """Return the processor time of this process and of its children that have ended, in seconds."""
    times = os.times()
    children = times.children_user + times.children_system if with_children else 0.0
    return times.user + times.system + children


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = _cpu_seconds()
    try:
        return (yield)
    finally:
        folders = item.nodeid.split("/")[1:-1]
        _seconds[folders[0] if folders else "top level"] += _cpu_seconds() - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        _seconds[_OTHER] = _cpu_seconds() - _seconds.total()
        session.config.workeroutput["cpu_seconds"] = dict(_seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the report of a pytest-xdist worker that has ended; one that crashed has none."""
    _seconds.update(getattr(node, "workeroutput", {}).get("cpu_seconds", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.getoption("dist", "no") == "no":
        _seconds[_OTHER] = _cpu_seconds() - _seconds.total()
    else:
        # The workers are children of this process, and have reported their own time.
        _seconds[_OTHER] += _cpu_seconds(with_children=False)
    folders = ", ".join(f"{name} {seconds:.0f}" for name, seconds in _seconds.most_common() if seconds >= 1)
    terminalreporter.write_line(f"processor time: {_seconds.total():.0f} s ({folders})")
    if (path := os.environ.get("STABLERNN_CPU_SECONDS")) is not None:
        Path(path).write_text(f"{_seconds.total():.0f}\n", encoding="utf-8")
