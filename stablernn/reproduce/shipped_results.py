"""Results of reproduced tables that are shipped with stablernn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json, to_json_types
from stablernn.errors import CheckpointError
from stablernn.reproduce.table import FULL, Table


def shipped_results(table: Table) -> tuple[Path, dict[str, Any]] | None:
    """Return the file and content of the shipped results of a table, or None.

    Results of another protocol are ignored: the table was changed after they were made.
    """
    # The wheel has them next to this file, a checkout among the results of the benchmarks.
    paths = (
        Path(__file__).parent / "results" / f"{table.key}.json",
        Path(__file__).parents[2] / "benchmarks" / "results" / f"reproduce_{table.key}.json",
    )
    for path in paths:
        try:
            results = read_json(path)
        except CheckpointError:
            continue
        protocol = to_json_types(table.full.document())
        if results["protocol"]["name"] == FULL and all(
            results["protocol"].get(key) == protocol[key] for key in protocol
        ):
            return path, results
    return None
