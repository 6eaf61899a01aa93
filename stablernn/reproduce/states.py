"""State of each table, from the files of its reproductions. Imports no torch, so that listing tables is fast."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablernn.reproduce.folder import ReproductionFolder, default_folder
from stablernn.reproduce.published_tables import TABLES
from stablernn.reproduce.shipped_results import shipped_results
from stablernn.reproduce.table import FULL, SHORT, STATES, State


def states(root: Path) -> list[dict[str, Any]]:
    """Return every table with the state of its best reproduction, made below a folder or shipped with stablernn."""
    rows = []
    for table in TABLES.values():
        folders = [ReproductionFolder(default_folder(root, table, name)) for name in (FULL, SHORT)]
        pairs = [(folder, results) for folder in folders if (results := folder.read_results()) is not None]
        # The most advanced state; the full protocol comes first among equals.
        best = max(pairs, key=lambda pair: STATES.index(state_of(pair[1])), default=None)
        shipped = shipped_results(table)
        candidates = [pair[1] for pair in (best, shipped) if pair is not None]
        rows.append(
            {
                "table": table.key,
                "paper": table.paper,
                "rows": len(table.rows),
                "state": max((state_of(results) for results in candidates), key=STATES.index, default=STATES[0]),
                "title": table.title,
                "source": table.source,
                "output": None if best is None else str(best[0].path),
                "shipped": None if shipped is None else _shipped_row(*shipped),
                "finished_runs": {
                    FULL: len(folders[0].finished_runs(table)),
                    SHORT: len(folders[1].finished_runs(table)),
                },
            }
        )
    return rows


def _shipped_row(path: Path, results: dict[str, Any]) -> dict[str, Any]:
    environment = results["environment"]
    return {
        "state": state_of(results),
        "commit": environment["commit"],
        "time": environment["time"],
        "results": str(path),
    }


def state_of(results: Mapping[str, Any]) -> State:
    """Return the state of results.

    It is computed, because the state in a file may be older than the name ``partial``.
    """
    if results["protocol"]["name"] != FULL:
        return "short"
    return "partial" if results["missing"] else "full"
