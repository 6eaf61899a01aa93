"""Generator of docs/results.md and of the catalog of datasets: ``python -m stablernn_papers.docs`` in a checkout."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path

from stablernn.data import dataset_info
from stablernn.extensions import DATASET_GROUP
from stablernn_papers.results_page import results_page
from stablernn_papers.stored_results import STORED


def datasets_catalog() -> str:
    """Return the file with the facts about the datasets of this package, which ``stablernn data list`` reads."""
    keys = sorted(
        point.name for point in entry_points(group=DATASET_GROUP) if point.module.startswith(f"{__package__}.")
    )
    return json.dumps([dataset_info(key).facts() for key in keys], indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the generated files of this package."""
    root = Path(__file__).parents[2]
    (root / "docs" / "results.md").write_text(results_page(root / STORED), encoding="utf-8")
    (Path(__file__).parent / "datasets" / "catalog.json").write_text(datasets_catalog(), encoding="utf-8")


if __name__ == "__main__":
    main()
