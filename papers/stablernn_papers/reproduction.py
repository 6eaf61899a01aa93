"""Reproduction of a published table: train missing runs, take missing measurements, and assemble the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stablernn.atomic_files import write_bytes
from stablernn.certificates.certificate import KINDS
from stablernn.data.options import LARGEST_SEED
from stablernn.errors import ConfigError
from stablernn.training.loop.device import environment
from stablernn_papers.folder import ROOT, ReproductionFolder, Run, default_folder
from stablernn_papers.kinds import Kind, Outcome, Request, kind_of
from stablernn_papers.kinds.kind import Length
from stablernn_papers.rendering import page
from stablernn_papers.results import RunDocument, missing_runs, progress, state_of, write_results
from stablernn_papers.table import FULL, DataSet, Protocol, ProtocolName, Row, Table
from stablernn_papers.tables import published_table

Results = dict[str, Any]
Report = Callable[[str], None]


def reproduce(
    key: str,
    protocol: ProtocolName = FULL,
    output: Path | None = None,
    *,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    data: Sequence[str] | None = None,
    length: Length | None = None,
    partial_data: bool = False,
    jobs: int = 1,
    match_accuracy: float | None = None,
    report: Report | None = None,
) -> Results:
    """Train and measure the models of a published table; finished runs and measurements are reused.

    Processes, also of several machines, may make the same call for one folder at a time: each takes runs that no other
    one has, and all return the whole results.

    Args:
        key: Key of the table.
        protocol: ``full``, or ``short`` for a scaled-down one.
        output: Output folder; None: :func:`stablernn_papers.folder.default_folder`.
        seeds: Seeds of the runs; None: those of the protocol. Other finished runs in the folder enter the table too.
        rows: Rows of the table to run; None: all.
        data: Data sets of the table to run on; None: all but those that are only run where they are named.
        length: Length to which training is cut; None: the published one. A longer one goes on where it stopped.
        partial_data: Whether a data set of which only a part is on disk is accepted.
        jobs: Number of parallel processes.
        match_accuracy: Validation accuracy at which a table of robustness compares models in its second view; None: the
            highest that all runs reach.
        report: Function that is called with a sentence about each finished job.

    Returns:
        The content of ``results.json`` and the ``output`` folder; docs/background/papers.md explains each key.

    Raises:
        UnknownNameError: If there is no such table, or it has no such row or data set.
        ConfigError: If an argument is out of its range, or the folder contains another reproduction or cannot be
            written to.
        DataError: If the data cannot be loaded.
        InterruptedRun: If the user stopped it; the same call resumes.
    """
    table = published_table(key)
    rules = table.protocol(protocol)
    selected_rows = [table.row(name) for name in rows] if rows is not None else list(table.rows)
    selected_data = _select_data(table, protocol, data)
    run_seeds = _check_seeds(rules.seeds if seeds is None else seeds)
    _check_numbers(jobs, match_accuracy, length or Length())
    if match_accuracy is not None and table.kind != "robustness":
        raise ConfigError(f"match_accuracy is not used by '{key}', which compares no models at equal accuracy.")
    folder = ReproductionFolder(output or default_folder(ROOT, table, protocol), table, protocol)
    runs = _runs(folder, table, selected_rows, selected_data, run_seeds)
    request = Request(
        table,
        rules,
        folder,
        runs,
        length=length or Length(),
        partial_data=partial_data,
        jobs=jobs,
        match_accuracy=match_accuracy,
        report=report or (lambda _: None),
    )
    kind = kind_of(table)
    # Before the folder is made, so that a missing file leaves none.
    fingerprints = kind.prepare(request)
    folder.create()
    document = {"table": key, **rules.document()}
    folder.locks.exclusively("protocol", lambda: folder.prepare(document, fingerprints), request.report)
    outcome = kind.work(request)

    def write() -> Results:
        results = write_results(folder.results, _results(table, rules, kind, outcome))
        write_bytes(folder.page, page(table, results).encode())
        kind.draw(folder.figure, table, results)
        return results

    return folder.locks.exclusively("results", write, request.report) | {"output": str(folder.path)}


def _results(table: Table, rules: Protocol, kind: Kind, outcome: Outcome) -> Results:
    missing = missing_runs(table, rules.name, outcome.runs)
    results: Results = {
        "table": table.key,
        "title": table.title,
        "paper": table.paper,
        "source": table.source,
        "missing": missing,
        "progress": progress(table, rules.name, outcome.runs),
        "protocol": {**rules.document(), "headline": dict(table.headline), "lost": table.unspecified},
        **outcome.document,
        "environment": {**environment(torch.device("cpu")), "cores": os.cpu_count()},
        "runs": outcome.runs,
        "views": {view: table_rows(table, rules.name, outcome.runs, view) for view in kind.views},
    }
    return {**results, "state": state_of(table, results)}


def _runs(
    folder: ReproductionFolder, table: Table, rows: Sequence[Row], data_sets: Sequence[DataSet], seeds: Sequence[int]
) -> list[Run]:
    """Return the runs: first all rows with the first seed, so that a stopped table has no row without a run."""
    return [
        folder.run(row, data, seed)
        for seed in seeds
        for data in data_sets
        for row in table.rows_on(data)
        if row in rows
    ]


def _select_data(table: Table, protocol: ProtocolName, keys: Sequence[str] | None) -> list[DataSet]:
    if keys is None:
        return [data for data in table.data_sets(protocol) if not data.is_optional]
    return [table.data_set(key, protocol) for key in keys]


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    invalid_seeds = [seed for seed in seeds if not 0 <= seed <= LARGEST_SEED]
    if invalid_seeds or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"seeds are different whole numbers from 0 to {LARGEST_SEED:,}, got {', '.join(map(str, seeds)) or 'none'}."
        )
    return list(seeds)


def _check_numbers(jobs: int, match_accuracy: float | None, length: Length) -> None:
    if jobs < 1:
        raise ConfigError(f"jobs must be 1 or more, got {jobs}.")
    if match_accuracy is not None and not 0 < match_accuracy <= 1:
        raise ConfigError(f"match_accuracy is a share above 0 and up to 1, got {match_accuracy:g}.")
    if length.epochs is not None and length.steps is not None:
        raise ConfigError(f"epochs and steps exclude each other, got {length.epochs} and {length.steps}.")
    for name, value in (("epochs", length.epochs), ("steps", length.steps)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be 1 or more, got {value}.")


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
