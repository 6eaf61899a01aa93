"""Facts about cells and named datasets, for programs that list them; needs neither torch nor NumPy.

They are read from JSON files, which ``make docs`` writes from the code. Facts about cells of other packages come from
the packages, which need torch; those about datasets from a ``catalog.json`` beside their code, or else from the code.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stablernn.errors import ConfigError, unknown
from stablernn.extensions import cell_entry_points, dataset_entry_points

logger = logging.getLogger(__name__)

CELLS = Path(__file__).parent / "cells" / "catalog.json"
DATASETS = Path(__file__).parent / "data" / "named" / "catalog.json"
BUNDLED = Path(__file__).parent / "data" / "bundled"


def list_cell_facts(pattern: str = "*") -> list[dict[str, Any]]:
    """Return the facts about the cells whose keys match a shell-style pattern, sorted by key.

    See :meth:`stablernn.cells.CellInfo.facts` for the facts. A cell of another package that cannot be loaded is left
    out, and logged.

    Raises:
        ConfigError: If two packages have a cell of the same key.
    """
    rows = [row for row in _own_cell_facts() if fnmatchcase(row["key"], pattern)]
    keys = {row["key"] for row in rows}
    others = [key for key in cell_entry_points() if key not in keys and fnmatchcase(key, pattern)]
    return sorted([*rows, *_plugin_facts(others)], key=lambda row: str(row["key"]))


def _own_cell_facts() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(CELLS.read_text(encoding="utf-8"))
    return rows


def _plugin_facts(keys: list[str]) -> Iterator[dict[str, Any]]:
    for key in keys:
        # Imported here: the classes of cells need torch.
        from stablernn.cells import cell_info

        try:
            yield cell_info(key).facts()
        except ConfigError as error:
            logger.warning("%s It is left out.", error)


def get_cell_facts(key: str) -> dict[str, Any]:
    """Return the facts about one cell.

    Raises:
        UnknownNameError: If there is no such cell.
        ConfigError: If it is a cell of another package that cannot be loaded.
    """
    rows = {row["key"]: row for row in _own_cell_facts()}
    if key in rows:
        return rows[key]
    others = cell_entry_points()
    if key not in others:
        raise unknown("cell", key, [*rows, *others], "See `stablernn cells list`.")
    from stablernn.cells import cell_info

    return cell_info(key).facts()


def list_dataset_facts(pattern: str = "*") -> list[dict[str, Any]]:
    """Return the facts about the datasets whose names match a shell-style pattern, sorted by name.

    In addition to the facts of :meth:`stablernn.data.DatasetInfo.facts`, ``here`` says if the files are on this machine
    (``yes``, ``partly`` or ``no``).
    """
    rows: list[dict[str, Any]] = json.loads(DATASETS.read_text(encoding="utf-8"))
    rows += _extension_rows(dataset_entry_points().values())
    matching = [row for row in rows if fnmatchcase(row["name"], pattern)]
    return [_with_presence(row) for row in sorted(matching, key=lambda row: str(row["name"]))]


def _extension_rows(points: Iterable[EntryPoint]) -> Iterator[dict[str, Any]]:
    """Yield the rows of datasets of other packages: of the files beside their modules, without importing these."""
    catalogs: dict[str, dict[str, dict[str, Any]]] = {}
    for point in points:
        package = point.module.rpartition(".")[0]
        if package not in catalogs:
            spec = find_spec(package) if package else None
            files = [Path(folder) / "catalog.json" for folder in (spec and spec.submodule_search_locations) or ()]
            rows = [row for file in files if file.is_file() for row in json.loads(file.read_text(encoding="utf-8"))]
            catalogs[package] = {row["name"]: row for row in rows}
        if point.name in catalogs[package]:
            yield catalogs[package][point.name]
        else:
            # Imported here: the code of a dataset needs NumPy.
            from stablernn.data import dataset_info

            yield dataset_info(point.name).facts()


def _with_presence(row: dict[str, Any]) -> dict[str, Any]:
    # Imported here: the facts about cells do not need it.
    from stablernn.data.named.places import DataFile, presence

    # These three are for the search below; "files" is replaced by plain names.
    facts = {key: value for key, value in row.items() if key not in ("bundled", "files", "folders")}
    files = [DataFile(file["name"], also=tuple(file["also"]), packed=file["packed"]) for file in row["files"]]
    names = [str(BUNDLED / row["bundled"])] if row["bundled"] else [file.name for file in files]
    return {**facts, "here": presence(files, row["folders"]), "files": names}
