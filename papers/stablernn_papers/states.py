"""State of each table, from the files of its reproductions. Imports no torch, so that listing tables is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stablernn.errors import CheckpointError
from stablernn_papers.folder import ReproductionFolder, default_folder
from stablernn_papers.progress import (
    current_runs,
    data_states,
    describe_optional_runs,
    describe_state,
    progress,
    state_of,
)
from stablernn_papers.results_file import read_results
from stablernn_papers.statements import judge_statements
from stablernn_papers.stored_results import stored_results
from stablernn_papers.table import FULL, SHORT, STATES, Table
from stablernn_papers.tables import TABLES

Results = dict[str, Any]


def states(root: Path) -> list[dict[str, Any]]:
    """Return every table with the state of its best reproduction, made below a folder or stored with stablernn.

    A file that cannot be used, because it was edited or is damaged, is left out; ``problems`` has the reason.
    ``statements`` are those of the papers that the figures of the table are judged by.
    """
    shown: dict[str, Results] = {}
    rows = [_table_state(root, table, shown) for table in TABLES.values()]
    judged = judge_statements(shown)
    return [
        {**row, "statements": [statement for statement in judged if statement["table"] == row["table"]]} for row in rows
    ]


def _table_state(root: Path, table: Table, all_shown: dict[str, Results]) -> dict[str, Any]:
    """Return the state of a table, and add the results that it is of to those of all tables."""
    problems: list[str] = []
    folders = [ReproductionFolder(default_folder(root, table, name), table, name) for name in (FULL, SHORT)]
    pairs = []
    for folder in folders:
        results = _usable(partial(read_results, folder.results), problems)
        if results is not None and results.get("table") == table.key:
            pairs.append((folder, results))
    # The most advanced state; the full protocol comes first among equals.
    best = max(pairs, key=lambda pair: STATES.index(state_of(table, pair[1])), default=None)
    stored = _usable(partial(stored_results, table), problems)
    candidates = [pair[1] for pair in (best, stored) if pair is not None]
    shown = max(candidates, key=lambda results: STATES.index(state_of(table, results)), default=None)
    keys = [data.key for data in table.data]
    if shown is not None:
        all_shown[table.key] = shown
    return {
        "table": table.key,
        "paper": table.paper,
        "rows": len(table.rows),
        "state": STATES[0] if shown is None else state_of(table, shown),
        "data_states": dict.fromkeys(keys, STATES[0]) if shown is None else data_states(table, shown),
        "description": STATES[0] if shown is None else describe_state(table, shown),
        "optional_runs": [] if shown is None else describe_optional_runs(table, shown),
        "title": table.title,
        "summary": table.summary or table.title,
        "source": table.source,
        "data": keys,
        "progress": None if shown is None else _progress(table, shown),
        "output": None if best is None else str(best[0].path),
        "shipped": None if stored is None else _stored_row(table, *stored),
        "finished_runs": {
            FULL: len(folders[0].finished_runs()),
            SHORT: len(folders[1].finished_runs()),
        },
        "problems": problems,
    }


def _usable(read: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return read()
    except CheckpointError as error:
        problems.append(str(error))
        return None


def _progress(table: Table, results: Mapping[str, Any]) -> dict[str, Any]:
    protocol = results["protocol"]["name"]
    return progress(table, protocol, current_runs(table, protocol, results["runs"]))


def _stored_row(table: Table, path: Path, results: Results) -> dict[str, Any]:
    environment = results["environment"]
    return {
        "state": state_of(table, results),
        "commit": environment["commit"],
        "time": environment["time"],
        "results": str(path),
    }
