"""Facts about the cells, for programs that list them: reads a file, and imports neither cells nor torch."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stablernn.errors import unknown

CELLS = Path(__file__).parent / "cells" / "catalog.json"
"""Written by ``make docs`` from the decorators of the cell classes."""


def cell_facts(pattern: str = "*") -> list[dict[str, Any]]:
    """Return the facts about the cells whose keys match a shell-style pattern, sorted by key.

    See :meth:`stablernn.cells.CellInfo.facts` for the keys.
    """
    rows: list[dict[str, Any]] = json.loads(CELLS.read_text(encoding="utf-8"))
    return [row for row in rows if fnmatchcase(row["key"], pattern)]


def facts_of_cell(key: str) -> dict[str, Any]:
    """Return the facts about one cell.

    Raises:
        UnknownNameError: If there is no such cell.
    """
    rows = {row["key"]: row for row in cell_facts()}
    if key not in rows:
        raise unknown("cell", key, rows, "See `stablernn cells list`.")
    return rows[key]
