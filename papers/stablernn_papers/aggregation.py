"""Rows of reproduced tables: figures as mean and range over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn.certificates.certificate import KINDS
from stablernn_papers.progress import RunDocument
from stablernn_papers.table import DataSet, ProtocolName, Row, Table


def table_rows(table: Table, protocol: ProtocolName, runs: Sequence[RunDocument], view: str) -> list[dict[str, Any]]:
    """Return the rows of a view, one for each data set and row that was run.

    Args:
        table: The table.
        protocol: Name of the protocol.
        runs: Descriptions of the runs.
        view: Name of the view.
    """
    rows = []
    for data in table.data_sets(protocol):
        for row in table.rows:
            row_runs = [run for run in runs if (run["row"], run["data"]) == (row.key, data.key)]
            if row_runs:
                rows.append(_view_row(table, row, data, row_runs, view))
    return rows


def _view_row(table: Table, row: Row, data: DataSet, runs: Sequence[RunDocument], view: str) -> dict[str, Any]:
    measurements = [
        measurement for run in runs for measurement in run["measured"] if measurement["epoch"] == run["views"][view]
    ]
    names = measurements[0]["figures"] if measurements else {}
    return {
        "row": row.key,
        "data": data.key,
        "cell": row.cell,
        "hidden_size": runs[0]["hidden_size"],
        "parameters": runs[0]["parameters"],
        "seeds": [run["seed"] for run in runs if run["views"][view] is not None],
        "seeds_left_out": [run["seed"] for run in runs if run["views"][view] is None],
        "epochs": [measurement["epoch"] for measurement in measurements],
        "kinds": _certificate_kinds(measurements),
        "figures": {name: _summarize([measurement["figures"][name] for measurement in measurements]) for name in names},
        "published": table.published(row, data) or None,
        "published_parameters": row.published_parameters.get(data.key),
        # The run that is least advanced.
        "length": min((run["length"] for run in runs), key=lambda length: length["share"]) if _trained(runs) else None,
        "cpu_hours": sum(run["seconds"] * run["threads"] for run in runs) / 3600,
        "partial_data": any(run.get("partial_data") for run in runs),
    }


def _trained(runs: Sequence[RunDocument]) -> bool:
    return all(run.get("length") for run in runs)


def _certificate_kinds(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of certificates in measurements, from the strongest to the weakest."""
    kinds = {measurement["kind"] for measurement in measurements if measurement.get("kind") is not None}
    # Folders may contain measurements from before the kind 'local' was withdrawn.
    withdrawn = [f"none (stored as {kind}; withdrawn)" for kind in sorted(kinds - set(KINDS))]
    return [*(kind for kind in KINDS if kind in kinds), *withdrawn]


def _summarize(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return mean, minimum and maximum over the seeds; None if a seed lacks the figure."""
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    return {"mean": sum(present) / len(present), "min": min(present), "max": max(present), "values": present}
