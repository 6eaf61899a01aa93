"""Rows of reproduced tables: descriptions of runs, and figures as mean and range over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn.atomic_files import read_json
from stablernn.certificates.certificate import KINDS
from stablernn.reproduce.folder import ReproductionFolder, Run
from stablernn.reproduce.measurement import extract_figures
from stablernn.reproduce.parameter_matching import parameter_count
from stablernn.reproduce.table import Protocol, Table
from stablernn.training.settings.load import load_config


def describe_run(
    table: Table, folder: ReproductionFolder, run: Run, views: Mapping[str, int | None], data_sizes: tuple[int, int]
) -> dict[str, Any]:
    """Describe a run for the results: its training, and the measurements at each epoch that is in a view.

    Args:
        table: The table.
        folder: The folder of the reproduction.
        run: The finished run.
        views: Epoch of each view; None if the run has none for it.
        data_sizes: Number of features and of classes.
    """
    summary = read_json(run.directory.summary)
    size = load_config(run.directory.config).model.hidden_size
    # Hidden sizes were matched by this count, so the trained model must agree with it.
    assert summary["parameters"] == parameter_count(run.cell, size, *data_sizes)
    epochs = sorted({epoch for epoch in views.values() if epoch is not None})
    measurements = [read_json(folder.measurement(run, epoch)) for epoch in epochs]
    return {
        "cell": run.cell,
        "seed": run.seed,
        "run": str(run.directory.path.relative_to(folder.path)),
        "hidden_size": size,
        "parameters": summary["parameters"],
        "seconds": summary["seconds"],
        "epochs": summary["epochs"],
        "steps": summary["steps"],
        "validation_accuracies": list(run.accuracies.values()),
        "views": dict(views),
        "measured": [
            {**measurement, "figures": extract_figures(measurement, table.headline)} for measurement in measurements
        ],
    }


def table_rows(table: Table, runs: Sequence[Mapping[str, Any]], view: str) -> list[dict[str, Any]]:
    """Return the rows of a view, one for each cell that was run, with figures as mean and range over its seeds."""
    rows = []
    for row in table.rows:
        cell_runs = [run for run in runs if run["cell"] == row.cell]
        if not cell_runs:
            continue
        measurements = [
            measurement
            for run in cell_runs
            for measurement in run["measured"]
            if measurement["epoch"] == run["views"][view]
        ]
        names = measurements[0]["figures"] if measurements else {}
        # Rows that the paper does not have are empty here.
        published = {column.figure: value for column, value in zip(table.columns, row.published, strict=False)}
        rows.append(
            {
                "cell": row.cell,
                "hidden_size": cell_runs[0]["hidden_size"],
                "parameters": cell_runs[0]["parameters"],
                "seeds": [run["seed"] for run in cell_runs if run["views"][view] is not None],
                "seeds_left_out": [run["seed"] for run in cell_runs if run["views"][view] is None],
                "epochs": [measurement["epoch"] for measurement in measurements],
                "kinds": _certificate_kinds(measurements),
                "figures": {
                    name: _summarize([measurement["figures"][name] for measurement in measurements]) for name in names
                },
                "published": published or None,
            }
        )
    return rows


def _certificate_kinds(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of certificates in measurements, from the strongest to the weakest."""
    kinds = {measurement["kind"] for measurement in measurements}
    # Folders may contain measurements from before the kind 'local' was withdrawn.
    withdrawn = [f"none (stored as {kind}; withdrawn)" for kind in sorted(kinds - set(KINDS))]
    return [*(kind for kind in KINDS if kind in kinds), *withdrawn]


def _summarize(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return mean, minimum and maximum over the seeds; None if a seed lacks the figure."""
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    return {"mean": sum(present) / len(present), "min": min(present), "max": max(present), "values": present}


def missing_runs(table: Table, rules: Protocol, runs: Sequence[Run]) -> list[str]:
    """Return the names of the runs of the protocol that are not done."""
    finished = {(run.cell, run.seed) for run in runs}
    return [f"{cell}, seed {seed}" for seed in rules.seeds for cell in table.cells if (cell, seed) not in finished]
