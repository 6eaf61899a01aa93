"""Facts about cells and named datasets, for programs that list them; needs neither torch nor NumPy.

They are read from two JSON files, which ``make docs`` writes from the code.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stablernn.errors import unknown

CELLS = Path(__file__).parent / "cells" / "catalog.json"
DATASETS = Path(__file__).parent / "data" / "named" / "catalog.json"
BUNDLED = Path(__file__).parent / "data" / "bundled"


def list_cell_facts(pattern: str = "*") -> list[dict[str, Any]]:
    """Return the facts about the cells whose keys match a shell-style pattern, sorted by key.

    See :meth:`stablernn.cells.CellInfo.facts` for the facts.
    """
    rows: list[dict[str, Any]] = json.loads(CELLS.read_text(encoding="utf-8"))
    return [row for row in rows if fnmatchcase(row["key"], pattern)]


def get_cell_facts(key: str) -> dict[str, Any]:
    """Return the facts about one cell.

    Raises:
        UnknownNameError: If there is no such cell.
    """
    rows = {row["key"]: row for row in list_cell_facts()}
    if key not in rows:
        raise unknown("cell", key, rows, "See `stablernn cells list`.")
    return rows[key]


def list_dataset_facts(pattern: str = "*") -> list[dict[str, Any]]:
    """Return the facts about the datasets whose names match a shell-style pattern, sorted by name.

    In addition to the facts of :meth:`stablernn.data.DatasetInfo.facts`, ``here`` says if the files are on this machine
    (``yes``, ``partly`` or ``no``).
    """
    rows: list[dict[str, Any]] = json.loads(DATASETS.read_text(encoding="utf-8"))
    return [_with_presence(row) for row in rows if fnmatchcase(row["name"], pattern)]


def _with_presence(row: dict[str, Any]) -> dict[str, Any]:
    # Imported here: the facts about cells do not need it.
    from stablernn.data.named.places import DataFile, presence

    # These three are for the search below; "files" is replaced by plain names.
    facts = {key: value for key, value in row.items() if key not in ("bundled", "files", "folders")}
    files = [DataFile(file["name"], also=tuple(file["also"]), packed=file["packed"]) for file in row["files"]]
    names = [str(BUNDLED / row["bundled"])] if row["bundled"] else [file.name for file in files]
    return {**facts, "here": presence(files, row["folders"]), "files": names}
