"""Generator of the catalogs of cells and named data sets, which the commands read without importing any of them.

Run as ``python tools/catalogs.py`` (``make docs``); a test fails when a catalog is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stablernn.data import DatasetInfo, dataset_info, list_datasets
from stablernn.extensions import PAPERS_DATASETS, dataset_entry_points

if TYPE_CHECKING:
    from stablernn.cells import CellInfo

ROOT = Path(__file__).parents[1]


def cells_catalog() -> str:
    """Return the file with the facts about all cells, which ``stablernn cells`` reads."""
    rows = [info.facts() for info in sorted(own_cells(), key=lambda info: info.key)]
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


def own_cells() -> list[CellInfo]:
    """Return the cells of this library, without those of other packages in the environment."""
    from stablernn.cells import OWN_PACKAGE, cell_info, list_cells

    return [info for info in map(cell_info, list_cells()) if info.package == OWN_PACKAGE]


def datasets_catalog() -> str:
    """Return the file with the facts about the named datasets of the library, which ``stablernn data list`` reads."""
    others = dataset_entry_points()
    return _datasets(info for info in list_datasets() if info.key not in others)


def papers_datasets_catalog() -> str:
    """Return the file with the facts about the named datasets of the papers."""
    return _datasets(map(dataset_info, sorted(PAPERS_DATASETS)))


def _datasets(infos: Iterable[DatasetInfo]) -> str:
    return json.dumps([info.facts() for info in infos], indent=1, ensure_ascii=False) + "\n"


CATALOGS: Mapping[str, Callable[[], str]] = {
    "stablernn/cells/catalog.json": cells_catalog,
    "stablernn/data/named/catalog.json": datasets_catalog,
    "papers/stablernn_papers/datasets/catalog.json": papers_datasets_catalog,
}
"""Generators of the catalogs, by their path."""


def main() -> None:
    """Write all catalogs."""
    for name, generate in CATALOGS.items():
        (ROOT / name).write_text(generate(), encoding="utf-8")


if __name__ == "__main__":
    main()
