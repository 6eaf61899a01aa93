"""Rendezvous of the processes of a training: each says in a store that it has come, and waits for the others."""

from __future__ import annotations

import logging
import os
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from stablernn.data.messages import format_names
from stablernn.environment_variables import read_positive_number
from stablernn.errors import TrainingError
from stablernn.training.loop.launch import Launch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

RENDEZVOUS_VARIABLE = "STABLERNN_RENDEZVOUS_SECONDS"
RENDEZVOUS_SECONDS = 300.0
"""Default of the wait for all processes to start, that of torch's own stores. Nothing is read or computed before."""
_REPORT_SECONDS = 20.0
"""Interval at which the missing processes are named."""
_POLL_SECONDS = 0.1

_LOG = logging.getLogger("stablernn.training")


def rendezvous_seconds() -> float:
    """Return how long processes wait for each other, from ``STABLERNN_RENDEZVOUS_SECONDS`` or the default.

    Raises:
        ConfigError: If it is not a number of seconds from 1 to 86,400.
    """
    return read_positive_number(RENDEZVOUS_VARIABLE, RENDEZVOUS_SECONDS, (1, 86_400))


def wait_for_processes(launch: Launch) -> Store:
    """Wait until all processes have come, and return the store through which they connect.

    The first process that has come logs who is missing, now and then.

    Args:
        launch: The place of this process.

    Raises:
        ConfigError: If ``STABLERNN_RENDEZVOUS_SECONDS`` is wrong.
        TrainingError: If the store cannot be reached, or a process does not come in time.
    """
    seconds = rendezvous_seconds()
    deadline = time.monotonic() + seconds
    try:
        store = _open_store(launch, timedelta(seconds=seconds))
        # torchrun keeps its store when it restarts the processes, with the addresses of those that ended.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        attempt_store: Store = dist.PrefixStore(f"stablernn/{attempt}", store)  # type: ignore[attr-defined]
        _wait_for_arrivals(dist.PrefixStore("arrivals", attempt_store), launch, deadline, seconds)  # type: ignore[attr-defined]
    except (RuntimeError, ValueError) as error:
        if isinstance(error, TrainingError):
            raise
        raise TrainingError(
            f"Process {launch.rank} of {launch.world_size} cannot connect to the others at {_address()} "
            f"({first_line(error)}). Start all of them with torchrun, or set MASTER_ADDR and MASTER_PORT to a free "
            "port of the machine of rank 0; unset WORLD_SIZE to train in one process."
        ) from error
    return attempt_store


def _open_store(launch: Launch, timeout: timedelta) -> Store:
    # As the rendezvous env:// of torch.distributed, which does not return before all processes have come where rank 0
    # has the store, and then knows their number alone.
    has_store = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        launch.world_size,
        is_master=has_store,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )


def _wait_for_arrivals(arrivals: Store, launch: Launch, deadline: float, seconds: float) -> None:
    keys = [str(rank) for rank in range(launch.world_size)]
    arrivals.set(str(launch.rank), "")
    report_at = time.monotonic() + _REPORT_SECONDS
    # `Store.wait` handles no signal while it waits, and prints warnings when its time is over.
    while not arrivals.check(keys):
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        if now < min(deadline, report_at):
            continue
        missing = [key for key in keys if not arrivals.check([key])]
        present = [key for key in keys if key not in missing]
        if now >= deadline and missing:
            raise TrainingError(
                f"Process {launch.rank} of {launch.world_size} waited {seconds:g} s at {_address()} for "
                f"{_describe(missing)}. Connected: {format_names(present)}. Look for what the missing ones print and "
                f"whether their machines run; {RENDEZVOUS_VARIABLE} sets another time."
            )
        report_at = now + _REPORT_SECONDS
        if missing and present[0] == str(launch.rank):
            _LOG.warning(
                "Waiting for %s of %d, at most another %.0f s.", _describe(missing), launch.world_size, deadline - now
            )


def _describe(ranks: list[str]) -> str:
    return f"{'process' if len(ranks) == 1 else 'processes'} {format_names(ranks)}"


def _address() -> str:
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"


def first_line(error: Exception) -> str:
    """Return the first line of an error of torch, without the source file before it and the general advice after it."""
    lines = str(error).splitlines()
    line = re.sub(r"^\[\S+:\d+\] ", "", lines[0]) if lines else type(error).__name__
    return line.partition(" This is typically caused")[0].rstrip(".")
