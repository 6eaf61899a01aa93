"""Reproduction of a published table: train missing runs, take missing measurements, and assemble the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stablernn.atomic_files import read_json, to_json_types, write_bytes, write_json
from stablernn.data import ClassificationData
from stablernn.data.options import LARGEST_SEED
from stablernn.errors import ConfigError, unknown
from stablernn.reproduce.aggregation import describe_run, missing_runs, table_rows
from stablernn.reproduce.folder import ROOT, ReproductionFolder, Run, default_folder
from stablernn.reproduce.measurement import measure
from stablernn.reproduce.parameter_matching import hidden_size
from stablernn.reproduce.plots import plot_attacks
from stablernn.reproduce.processes import Job, run_jobs
from stablernn.reproduce.published_tables import published_table
from stablernn.reproduce.rendering import page
from stablernn.reproduce.states import state_of
from stablernn.reproduce.table import FULL, Protocol, ProtocolName, Table
from stablernn.training import load_run_data, train
from stablernn.training.loop.environment import environment
from stablernn.training.settings.load import validate

Results = dict[str, Any]
Report = Callable[[str], None]

WHOLE, MATCHED = "whole", "matched"
"""Views of the same runs: the best weights, and those of the first epoch with a common validation accuracy."""


def reproduce(
    key: str,
    protocol: ProtocolName = FULL,
    output: Path | None = None,
    *,
    seeds: Sequence[int] | None = None,
    cells: Sequence[str] | None = None,
    jobs: int = 1,
    match_accuracy: float | None = None,
    report: Report | None = None,
) -> Results:
    """Train and measure the models of a published table; finished runs and measurements are reused.

    Args:
        key: Key of the table.
        protocol: ``full``, or ``short`` for a scaled-down one.
        output: Output folder; None: :func:`stablernn.reproduce.folder.default_folder`.
        seeds: Seeds of the runs; None: those of the protocol. Other finished runs in the folder enter the table too.
        cells: Cells of the table to run; None: all.
        jobs: Number of parallel processes.
        match_accuracy: Validation accuracy at which models are compared in the second view; None: the highest that
            all runs reach.
        report: Function that is called with a sentence about each finished job.

    Returns:
        The content of ``results.json`` and the ``output`` folder; docs/reproduce.md explains each key.

    Raises:
        UnknownNameError: If there is no such table, or it has no such cell.
        ConfigError: If an argument is out of its range, or the folder contains another reproduction.
        DataError: If the data cannot be loaded.
        InterruptedRun: If the user stopped it; the same call resumes.
    """
    table = published_table(key)
    rules = table.protocol(protocol)
    selected_cells = _select_cells(table, cells)
    run_seeds = _check_seeds(rules.seeds if seeds is None else seeds)
    if jobs < 1:
        raise ConfigError(f"jobs must be 1 or more, got {jobs}.")
    if match_accuracy is not None and not 0 < match_accuracy <= 1:
        raise ConfigError(f"match_accuracy is a share above 0 and up to 1, got {match_accuracy:g}.")
    report = report or (lambda _: None)
    # The data are the same for all runs; the hidden size does not matter for loading them.
    data = load_run_data(validate(_run_settings(rules, table.reference, 1, run_seeds[0])))
    assert isinstance(data, ClassificationData)
    data_sizes = len(data.features), len(data.labels)
    sizes = {row.cell: hidden_size(table, row, *data_sizes) for row in table.rows}
    folder = ReproductionFolder(output or default_folder(ROOT, table, protocol))
    folder.prepare({"table": key, **rules.document(), "hidden_sizes": sizes, "data": data.fingerprint})

    runs = [folder.run(cell, seed) for seed in run_seeds for cell in selected_cells]
    training_jobs = [
        Job(run.name, train_run, (_run_settings(rules, run.cell, sizes[run.cell], run.seed), run.directory.path))
        for run in runs
        if not run.is_done
    ]
    _run_remaining(training_jobs, jobs, report, "trained", len(runs))

    finished_runs = folder.finished_runs(table)
    target_accuracy = match_accuracy or min(max(run.accuracies.values()) for run in finished_runs)
    views = {run.name: _view_epochs(run, target_accuracy) for run in finished_runs}
    # By file, so that an epoch that is in both views is measured once.
    measurements = {
        folder.measurement(run, epoch): (run, epoch)
        for run in finished_runs
        for epoch in views[run.name].values()
        if epoch is not None
    }
    measurement_jobs = [
        Job(f"{run.name}, epoch {epoch}", measure_run, (run.directory.path, epoch, key, rules.name, path))
        for path, (run, epoch) in measurements.items()
        if not path.is_file()
    ]
    _run_remaining(measurement_jobs, jobs, report, "measured", len(measurements))

    run_rows = [describe_run(table, folder, run, views[run.name], data_sizes) for run in finished_runs]
    missing = missing_runs(table, rules, finished_runs)
    results: Results = {
        "table": key,
        "title": table.title,
        "paper": table.paper,
        "source": table.source,
        "state": state_of({"protocol": rules.document(), "missing": missing}),
        "missing": missing,
        "protocol": {**rules.document(), "headline": dict(table.headline), "lost": table.unspecified},
        "match": {"validation_accuracy": target_accuracy, "given": match_accuracy is not None},
        "environment": {**environment(torch.device("cpu")), "cores": os.cpu_count()},
        "runs": run_rows,
        "views": {view: table_rows(table, run_rows, view) for view in (WHOLE, MATCHED)},
    }
    results = dict(to_json_types(results))
    write_json(folder.results, results)
    write_bytes(folder.page, page(table, results).encode())
    if rules.attacks is not None:
        plot_attacks(folder.figure(table), results)
    return results | {"output": str(folder.path)}


def train_run(settings: Mapping[str, Any], directory: Path) -> None:
    """Train a run, or resume it after an interruption."""
    config = validate(settings)
    train(config, directory, resume=(directory / "config.yaml").exists())


def measure_run(directory: Path, epoch: int, key: str, protocol: ProtocolName, path: Path) -> None:
    """Measure a run after one epoch and write the measurement to a file."""
    write_json(path, measure(directory, epoch, published_table(key).protocol(protocol)))


def _select_cells(table: Table, cells: Sequence[str] | None) -> list[str]:
    for cell in cells or ():
        if cell not in table.cells:
            raise unknown(f"cell of the table '{table.key}'", cell, table.cells, f"It has {', '.join(table.cells)}.")
    return [cell for cell in table.cells if cells is None or cell in cells]


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    invalid_seeds = [seed for seed in seeds if not 0 <= seed <= LARGEST_SEED]
    if invalid_seeds or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"seeds are different whole numbers from 0 to {LARGEST_SEED:,}, got {', '.join(map(str, seeds)) or 'none'}."
        )
    return list(seeds)


def _run_settings(rules: Protocol, cell: str, size: int, seed: int) -> dict[str, Any]:
    """Return the settings of one run as a tree."""
    # Copied one level deep, because the protocol is shared between runs.
    tree = {section: dict(values) for section, values in rules.settings.items()}
    tree["model"] |= {"cell": cell, "hidden_size": size}
    tree["training"] |= {"seed": seed}
    return tree


def _run_remaining(remaining: Sequence[Job], max_processes: int, report: Report, action: str, total: int) -> None:
    """Run the remaining jobs of a total, and report each one that is done."""
    count = total - len(remaining)

    def report_done(job: Job) -> None:
        nonlocal count
        count += 1
        report(f"{action} {count} of {total}: {job.name}")

    run_jobs(remaining, max_processes, report_done)


def _view_epochs(run: Run, target_accuracy: float) -> dict[str, int | None]:
    """Return the epoch whose weights each view uses."""
    return {WHOLE: read_json(run.directory.summary)["best_epoch"], MATCHED: run.first_epoch_at(target_accuracy)}
