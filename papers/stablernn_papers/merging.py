"""Results of a table of which some runs were made in one folder and some in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn.errors import ConfigError
from stablernn_papers.aggregation import table_rows
from stablernn_papers.progress import RunDocument, current_runs, missing_runs, progress, state_of
from stablernn_papers.table import FULL, Table

Results = dict[str, Any]


def merge_results(table: Table, stored: Mapping[str, Any], results: Results) -> Results:
    """Add the runs of stored results that others lack, and compute everything that depends on the runs again.

    Args:
        table: The table.
        stored: Results of the full protocol; of its runs, those count whose settings the table still has.
        results: Later results, whose runs replace the stored ones of the same row, data set and seed.

    Raises:
        ConfigError: If the table compares runs with each other, so that they have to be made in one folder.
    """
    later = {_identity(run): run for run in results["runs"]}
    added = [run for run in current_runs(table, FULL, stored["runs"]) if _identity(run) not in later]
    if not added:
        return results
    if table.kind == "robustness":
        names = "; ".join(f"{run['row']}, seed {run['seed']}" for run in added)
        raise ConfigError(
            f"The new results of '{table.key}' lack runs that the stored ones have: {names}. It compares all runs at "
            "one accuracy, so that they have to be made in one folder: run these too, then store the results."
        )
    order = {(data.key, row.key): n for n, (data, row) in enumerate((d, r) for d in table.data for r in table.rows)}
    runs = sorted([*added, *results["runs"]], key=lambda run: (order[run["data"], run["row"]], run["seed"]))
    merged = {
        **results,
        "missing": missing_runs(table, FULL, runs),
        "progress": progress(table, FULL, runs),
        "runs": runs,
        "views": {view: table_rows(table, FULL, runs, view) for view in results["views"]},
    }
    return {**merged, "state": state_of(table, merged)}


def _identity(run: RunDocument) -> tuple[str, str, int]:
    return run["row"], run["data"], run["seed"]
