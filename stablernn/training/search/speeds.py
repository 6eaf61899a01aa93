"""Processor times of work on this machine, measured once and kept: a busy machine then plans as an idle one does."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stablernn._version import __version__
from stablernn.atomic_files import write_json
from stablernn.data.named.places import cache_folder
from stablernn.errors import CheckpointError

_LOG = logging.getLogger("stablernn.training")

_STEP = 1.1
"""Ratio of two neighboring figures: what is measured differs by a few per cent from one time to the next."""
_MOST_ENTRIES = 5000


class Speeds:
    """Seconds of processor time by a description of the work.

    The first figure for a description stands, rounded to a power of 1.1, so that every later search plans with the same
    one. It depends on what the machine did then: the processes of a search work side by side. The file is
    ``STABLERNN_CACHE/speeds.json``; figures of another machine, torch or stablernn are others.

    Args:
        path: Another file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = cache_folder().parent / "speeds.json" if path is None else path
        self._entries: dict[str, float] = {}
        try:
            stored = json.loads(self._path.read_bytes())
            self._entries = {str(key): float(value) for key, value in stored.items() if float(value) > 0}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _LOG.debug(f"The speeds in '{self._path}' are measured again: {error}")

    def find(self, work: Mapping[str, Any]) -> float | None:
        """Return the seconds that were kept for a piece of work; None if it was never measured here."""
        return self._entries.get(_key(work))

    def keep(self, work: Mapping[str, Any], seconds: float) -> float:
        """Return the seconds that stand for a piece of work, which are those of now if it was never measured.

        The file has them after :meth:`store`.

        Args:
            work: JSON types that describe it.
            seconds: Measured processor time, above 0.
        """
        key = _key(work)
        if key not in self._entries:
            self._entries[key] = _STEP ** round(math.log(seconds, _STEP))
        return self._entries[key]

    def store(self) -> None:
        """Write the file, unless it cannot be written: a search without a cache measures each time."""
        newest = dict(list(self._entries.items())[-_MOST_ENTRIES:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, newest)
        except (OSError, CheckpointError) as error:
            _LOG.debug(f"The speeds are not kept: {error}")


def _key(work: Mapping[str, Any]) -> str:
    machine = [platform.machine(), _processor(), os.cpu_count(), torch.__version__, __version__]
    text = json.dumps([machine, work], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
