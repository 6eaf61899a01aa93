"""Results of reproduced tables that are stored in the repository and shipped with this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablernn.atomic_files import to_json_types
from stablernn_papers.results_file import read_results
from stablernn_papers.table import FULL, Table

STORED = Path("papers") / "stablernn_papers" / "results"
"""Folder of the results of all tables, relative to the repository."""

PICTURES = Path("docs") / "images"
"""Folder of their pictures, relative to the repository."""


def picture_name(key: str) -> str:
    """Return the name of the picture of a table in :data:`PICTURES`."""
    return f"reproduce_{key}.png"


def stored_path(key: str) -> Path | None:
    """Return the file with the stored results of a table, or None if there is none."""
    path = Path(__file__).parent / "results" / key / "results.json"
    return path if path.is_file() else None


def stored_results(table: Table) -> tuple[Path, dict[str, Any]] | None:
    """Return the file and content of the stored results of a table, or None.

    Results with other settings of measurements are ignored: the table was changed after they were made.

    Raises:
        CheckpointError: If the file was edited.
    """
    path = stored_path(table.key)
    results = None if path is None else read_results(path)
    if path is None or results is None:
        return None
    protocol = to_json_types(table.full.document())
    is_current = results["protocol"]["name"] == FULL and all(
        results["protocol"].get(key) == protocol[key] for key in protocol
    )
    return (path, results) if is_current else None
