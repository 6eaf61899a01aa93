"""The scripts of the folder ``benchmarks`` as modules, and the results that they stored."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from packages import ROOT

BENCHMARKS = ROOT / "benchmarks"


@contextmanager
def scripts_on_path() -> Iterator[None]:
    """Let the scripts be imported, and import each other, as they do when they run."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield
    finally:
        sys.path.remove(str(BENCHMARKS))


def script(name: str) -> Any:
    """Import a script, within :func:`scripts_on_path`."""
    return importlib.import_module(name)


def stored_results(name: str) -> Any:
    """Return the results of a benchmark that are in the repository."""
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))
