"""Processes that train the trials of a search, one thread each."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import Any

from stablernn.errors import TrainingError
from stablernn.terms import Terms, set_terms, terms
from stablernn.training.search.trial import Trial, TrialResult, run_trial

_POLL_SECONDS = 0.2
_STOP_SECONDS = 1.0
"""Time in which a stop by the user, which can end a process too, reaches this one."""
MOST_WORKERS = 8
"""Processes at most: each takes some 300 MB, and a small search has no use for more."""


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Processes that run trials.

    Args:
        count: Number of processes.
        stop: Event by which the user stops the search.
    """

    def __init__(self, pool: ProcessPoolExecutor, count: int, stop: Event) -> None:
        self._pool = pool
        self.count = count
        self._stop = stop

    def run(
        self, trials: Sequence[Trial], deadline: float | None, most_seconds: float | None = None
    ) -> Iterator[TrialResult]:
        """Yield the results of trials as they come, until a time of ``time.monotonic`` or until the user stops.

        A trial that is still running then is left out, as is one that takes longer than ``most_seconds``. Trials begin
        in order.

        Raises:
            TrainingError: If a process died.
        """
        waiting, running = list(trials), set[Future[TrialResult]]()
        try:
            while waiting or running:
                while waiting and len(running) < self.count and not self._is_over(deadline):
                    trial = waiting.pop(0)
                    left = math.inf if deadline is None else deadline - time.monotonic()
                    seconds = min(left, math.inf if most_seconds is None else most_seconds)
                    limited = replace(trial, seconds=None if math.isinf(seconds) else seconds)
                    running.add(self._pool.submit(run_trial, limited))
                if not running or self._stop.is_set():
                    return
                done, running = wait(running, _POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            # Ctrl-C ends a process that has not got as far as to ignore it.
            if not self._stop.wait(_STOP_SECONDS):
                raise _died() from None

    def _is_over(self, deadline: float | None) -> bool:
        return deadline is not None and time.monotonic() >= deadline


@contextmanager
def open_workers(count: int, stop: Event) -> Iterator[Workers]:
    """Start processes, and end them with the block, even those that are still training."""
    # A new interpreter instead of a fork, which the threads of torch would not survive.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_process, initargs=(terms(),))
    try:
        with _without_main_module():
            yield Workers(pool, count, stop)
    finally:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            # Not terminated: a training takes that signal as a request to end after the step, and would go on waiting.
            process.kill()
        for process in processes:
            process.join()


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep new processes from running the user's script again, which they would do to import it.

    A trial needs nothing of it, and a script that calls ``fit`` at its top level would start the search again in each
    process, which multiprocessing refuses.
    """
    main: MutableMapping[str, Any] = vars(sys.modules["__main__"])
    names = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    try:
        # multiprocessing looks for the script under these names when it starts a process.
        main.pop("__file__", None)
        main["__spec__"] = None
        yield
    finally:
        main.update(names)


def _start_process(parent_terms: Terms) -> None:
    set_terms(parent_terms)
    # Ctrl-C reaches every process of a terminal; the parent ends these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _died() -> TrainingError:
    return TrainingError(
        "A process of the search died, which usually means that memory ran out. Name a cell, such as "
        f"{terms().cell('lru')}, or try a smaller {terms().key('model.hidden_size')}."
    )
