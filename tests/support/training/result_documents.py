"""Results of tables with figures of one's own, in the form in which a reproduction writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn_papers.results import missing_runs, progress, run_settings
from stablernn_papers.table import FULL
from stablernn_papers.tables import TABLES

Values = tuple[float, ...]


def results_of(
    key: str,
    figures: Mapping[tuple[str, str], Sequence[Mapping[str, float]]],
    share: float | None = 1.0,
    view: str = "best",
) -> dict[str, Any]:
    """Results of the full protocol with runs of the figures of each row and data set, one a seed."""
    table = TABLES[key]
    length = None if share is None else {"unit": "epochs", "done": 100 * share, "published": 100, "share": share}
    runs = [
        {
            "row": row,
            "cell": table.row(row).cell,
            "data": data,
            "seed": seed,
            "settings": run_settings(table, table.row(row), table.data_set(data, FULL), FULL),
            "length": length,
            "partial_data": None,
            "views": {view: 1},
            "measured": [{"epoch": 1, "kind": None, "figures": dict(entry)}],
        }
        for (row, data), entries in figures.items()
        for seed, entry in enumerate(entries)
    ]
    return {
        "table": key,
        "protocol": {**table.full.document(), "headline": {}, "lost": table.unspecified},
        "missing": missing_runs(table, FULL, runs),
        "progress": progress(table, FULL, runs),
        "runs": runs,
        "views": {view: []},
    }
