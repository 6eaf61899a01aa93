"""Making a published table again: train what is missing, measure what is missing, put the rows together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stablernn.atomic_files import read_json, to_json_types, write_bytes, write_json
from stablernn.certificates.certificate import KINDS
from stablernn.data import ClassificationData
from stablernn.data.options import LARGEST_SEED
from stablernn.errors import ConfigError, unknown
from stablernn.reproduce.folder import ROOT, Folder, Run, default_folder
from stablernn.reproduce.measure import figures, measure
from stablernn.reproduce.plots import plot_attacks
from stablernn.reproduce.processes import Job, run_jobs
from stablernn.reproduce.published import published_table
from stablernn.reproduce.render import page
from stablernn.reproduce.sizes import hidden_size, parameter_count
from stablernn.reproduce.states import state_of
from stablernn.reproduce.table import FULL, Protocol, ProtocolName, Table
from stablernn.training import load_run_data, train
from stablernn.training.loop.environment import environment
from stablernn.training.settings.load import load_config, validate

Results = dict[str, Any]
Report = Callable[[str], None]

WHOLE, MATCHED = "whole", "matched"
"""The two views of the same runs: their best weights, and those of the first epoch that reached a common accuracy."""


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
    """Train the models of a published table and measure them; what is done already is kept.

    Args:
        key: Of the table.
        protocol: ``full``, or ``short`` for a scaled-down one.
        output: Where it goes; None: :func:`stablernn.reproduce.folder.default_folder`.
        seeds: Of the runs; None: those of the protocol. Further runs that the folder has are in the table, too.
        cells: Some of the table's; None: all.
        jobs: Runs at a time.
        match_accuracy: Validation accuracy at which models are compared in the second view; None: the highest that
            all runs reach.
        report: Told of each run that is done.

    Returns:
        What ``results.json`` holds; docs/reproduce.md says what each key means.

    Raises:
        UnknownNameError: If there is no such table, or it has no such cell.
        ConfigError: If an argument is out of its range, or the folder holds another reproduction.
        DataError: If the data is not there.
        InterruptedRun: If the user stopped it; the same call goes on.
    """
    table = published_table(key)
    rules = table.protocol(protocol)
    chosen = _chosen(table, cells)
    numbers = _numbers(rules.seeds if seeds is None else seeds)
    if jobs < 1:
        raise ConfigError(f"jobs must be 1 or more, got {jobs}.")
    if match_accuracy is not None and not 0 < match_accuracy <= 1:
        raise ConfigError(f"match_accuracy is a share above 0 and up to 1, got {match_accuracy:g}.")
    say = report or (lambda _: None)
    data = load_run_data(validate(_settings(rules, table.reference, 1, numbers[0])))
    assert isinstance(data, ClassificationData)
    shape = len(data.features), len(data.labels)
    sizes = {row.cell: hidden_size(table, row, *shape) for row in table.rows}
    folder = Folder(output or default_folder(ROOT, table, protocol))
    folder.begin({"table": key, **rules.document(), "hidden_sizes": sizes, "data": data.fingerprint})

    runs = [folder.run(cell, seed) for seed in numbers for cell in chosen]
    unfinished = [run for run in runs if not run.is_done]
    work = [
        Job(run.name, train_one, (_settings(rules, run.cell, sizes[run.cell], run.seed), run.directory.path))
        for run in unfinished
    ]
    _do(work, jobs, say, "trained", len(runs))

    finished = folder.finished(table)
    target = match_accuracy or min(max(run.accuracies.values()) for run in finished)
    views = {run.name: _epochs(run, target) for run in finished}
    wanted = {
        folder.measured(run, epoch): (run, epoch)
        for run in finished
        for epoch in views[run.name].values()
        if epoch is not None
    }
    absent = {path: pair for path, pair in wanted.items() if not path.is_file()}
    work = [
        Job(f"{run.name}, epoch {epoch}", measure_one, (run.directory.path, epoch, key, rules.name, path))
        for path, (run, epoch) in absent.items()
    ]
    _do(work, jobs, say, "measured", len(wanted))

    described = [_described(table, folder, run, views[run.name], shape) for run in finished]
    missing = _missing(table, rules, finished)
    results: Results = {
        "table": key,
        "title": table.title,
        "paper": table.paper,
        "source": table.source,
        "state": state_of({"protocol": rules.document(), "missing": missing}),
        "missing": missing,
        "protocol": {**rules.document(), "headline": dict(table.headline), "lost": table.lost},
        "match": {"validation_accuracy": target, "given": match_accuracy is not None},
        "environment": {**environment(torch.device("cpu")), "cores": os.cpu_count()},
        "runs": described,
        "views": {view: _rows(table, described, view) for view in (WHOLE, MATCHED)},
    }
    results = dict(to_json_types(results))
    write_json(folder.results, results)
    write_bytes(folder.page, page(table, results).encode())
    if rules.attacks is not None:
        plot_attacks(folder.picture(table), results)
    return results | {"output": str(folder.path)}


def train_one(settings: Mapping[str, Any], directory: Path) -> None:
    """Train a run, or go on with it where it was stopped."""
    config = validate(settings)
    train(config, directory, resume=(directory / "config.yaml").exists())


def measure_one(directory: Path, epoch: int, key: str, protocol: ProtocolName, path: Path) -> None:
    """Measure a run after one epoch, and keep what is found."""
    write_json(path, measure(directory, epoch, published_table(key).protocol(protocol)))


def _chosen(table: Table, cells: Sequence[str] | None) -> list[str]:
    for cell in cells or ():
        if cell not in table.cells:
            raise unknown(f"cell of the table '{table.key}'", cell, table.cells, f"It has {', '.join(table.cells)}.")
    return [cell for cell in table.cells if cells is None or cell in cells]


def _numbers(seeds: Sequence[int]) -> list[int]:
    wrong = [seed for seed in seeds if not 0 <= seed <= LARGEST_SEED]
    if wrong or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"seeds are different whole numbers from 0 to {LARGEST_SEED:,}, got {', '.join(map(str, seeds)) or 'none'}."
        )
    return list(seeds)


def _settings(rules: Protocol, cell: str, size: int, seed: int) -> dict[str, Any]:
    """Those of one run, as a tree."""
    tree = {section: dict(values) for section, values in rules.settings.items()}
    tree["model"] |= {"cell": cell, "hidden_size": size}
    tree["training"] |= {"seed": seed}
    return tree


def _do(work: Sequence[Job], jobs: int, say: Report, word: str, total: int) -> None:
    """Do the work that is left of a total, and say of each piece that it is done."""
    count = total - len(work)

    def done(job: Job) -> None:
        nonlocal count
        count += 1
        say(f"{word} {count} of {total}: {job.name}")

    run_jobs(work, jobs, done)


def _epochs(run: Run, target: float) -> dict[str, int | None]:
    """The epoch whose weights each view takes."""
    return {WHOLE: read_json(run.directory.summary)["best_epoch"], MATCHED: run.first_epoch_at(target)}


def _described(
    table: Table, folder: Folder, run: Run, views: Mapping[str, int | None], shape: tuple[int, int]
) -> dict[str, Any]:
    """A run in the results: how it was made, and what was measured at each of its epochs that are in a view."""
    summary = read_json(run.directory.summary)
    size = load_config(run.directory.config).model.hidden_size
    assert summary["parameters"] == parameter_count(run.cell, size, *shape)
    epochs = sorted({epoch for epoch in views.values() if epoch is not None})
    measured = [read_json(folder.measured(run, epoch)) for epoch in epochs]
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
        "measured": [{**one, "figures": figures(one, table.headline)} for one in measured],
    }


def _rows(table: Table, runs: Sequence[Mapping[str, Any]], view: str) -> list[dict[str, Any]]:
    """The table in one view: a row for each cell that was run, figures as mean and range over its seeds."""
    rows = []
    for row in table.rows:
        mine = [run for run in runs if run["cell"] == row.cell]
        if not mine:
            continue
        found = [one for run in mine for one in run["measured"] if one["epoch"] == run["views"][view]]
        names = found[0]["figures"] if found else {}
        published = {column.figure: value for column, value in zip(table.columns, row.published, strict=False)}
        rows.append(
            {
                "cell": row.cell,
                "hidden_size": mine[0]["hidden_size"],
                "parameters": mine[0]["parameters"],
                "seeds": [run["seed"] for run in mine if run["views"][view] is not None],
                "seeds_left_out": [run["seed"] for run in mine if run["views"][view] is None],
                "epochs": [one["epoch"] for one in found],
                "kinds": _kinds(found),
                "figures": {name: _spread([one["figures"][name] for one in found]) for name in names},
                "published": published or None,
            }
        )
    return rows


def _kinds(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of certificates in measurements, from the strongest to the weakest."""
    kinds = {measurement["kind"] for measurement in measured}
    # Measurements are kept, also those from before the kind 'local' was withdrawn.
    withdrawn = [f"none (stored as {kind}; withdrawn)" for kind in sorted(kinds - set(KINDS))]
    return [*(kind for kind in KINDS if kind in kinds), *withdrawn]


def _spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Mean, smallest and largest of the seeds; None where one of them has no such figure."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return {"mean": sum(known) / len(known), "min": min(known), "max": max(known), "values": known}


def _missing(table: Table, rules: Protocol, runs: Sequence[Run]) -> list[str]:
    """The runs of the protocol that are not done."""
    known = {(run.cell, run.seed) for run in runs}
    return [f"{cell}, seed {seed}" for seed in rules.seeds for cell in table.cells if (cell, seed) not in known]
