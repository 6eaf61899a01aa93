"""A tracer of the files that work passes on its way through the project."""

from __future__ import annotations

import functools
import gc
import inspect
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("stablernn", "registry", "runtime", "client", "server", "cli")
#: Files that every flow uses: errors, options, settings, logs, observability.
_NOT_COUNTED = re.compile(
    r"(^|/)(errors\.py|options\.py|settings(\.py|/)|access_log\.py|stablernn_registry/(log|log_cache|authorship)\.py|observability/|_lazy\.py)"
)


class FlowTracer:
    """Records in which files of the project a function runs, in the order of their first calls.

    Traces the thread that enters :meth:`installed` and the threads that start in its block.

    Attributes:
        files: The files since the last :meth:`record`, relative to the root of the project.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self._is_recording = False
        self._start: str | None = None

    @contextmanager
    def installed(self) -> Iterator[FlowTracer]:
        """Trace this thread and those that start in the block."""
        before, before_threads = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield self
        finally:
            sys.setprofile(before)
            threading.setprofile(before_threads)

    @contextmanager
    def record(self, start: str | None = None) -> Iterator[None]:
        """Record the calls in the block, and nothing from before.

        Args:
            start: File of the first call to record, relative to the root of the project; None: any.
        """
        self.files = []
        self._start = start
        # What other tests left behind must not be finalized in the block.
        gc.collect()
        gc.disable()
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False
            gc.enable()

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        # The bodies of modules and classes run when they are imported; they lack this flag.
        if not self._is_recording or event != "call" or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        name = _counted_name(frame.f_code.co_filename)
        # Housekeeping of a server may come before the request.
        if self._start is not None and name == self._start:
            self._start = None
        if self._start is None and name is not None and name not in self.files:
            self.files.append(name)


@functools.cache
def _counted_name(filename: str) -> str | None:
    """Return the path of a counted file below the root of the project, None for any other."""
    path = Path(filename)
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    return name if name.split("/")[0] in PACKAGES and not _NOT_COUNTED.search(name) else None


def in_all_but_one(traces: Iterable[list[str]]) -> list[str]:
    """Return the files that are in all traces or in all but one, by their median position.

    Background work is in fewer of them. What a busy machine does after a trace has ended is missing in that trace.
    """
    whole = list(traces)
    common = {name for trace in whole for name in trace if sum(name in other for other in whole) >= len(whole) - 1}
    orders = [[name for name in trace if name in common] for trace in whole]
    # Background work that began before a request has moved some files of that trace to its beginning.
    positions = {name: [order.index(name) for order in orders if name in order] for name in common}
    return sorted(common, key=lambda name: (median(positions[name]), mean(positions[name])))
