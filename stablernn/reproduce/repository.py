"""Results and unfinished runs of tables in a checkout, from which any other checkout goes on.

``benchmarks/reproductions.py`` is the command.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json, write_json
from stablernn.data.messages import pluralize
from stablernn.errors import CheckpointError, ConfigError
from stablernn.reproduce.folder import ReproductionFolder, Run
from stablernn.reproduce.kinds import kind_of
from stablernn.reproduce.merging import merge_results
from stablernn.reproduce.results_file import read_results, write_results
from stablernn.reproduce.stored_results import PICTURES, STORED, picture_name
from stablernn.reproduce.table import FULL, Table
from stablernn.reproduce.tables import published_table

UNFINISHED = Path("benchmarks") / "results" / "unfinished"
"""Folder of unfinished runs, relative to the repository; unlike the results it is not part of the wheel."""

LARGEST_FILE = 1_000_000
"""Largest file of an unfinished run in bytes: every clone of the repository downloads it for ever."""

_MANIFEST = "files.json"
# The checkpoints first: a run that goes on meanwhile writes its metrics before them, so that none is missing.
_FILES = (
    "checkpoints/last.safetensors",
    "checkpoints/last.json",
    "checkpoints/best.safetensors",
    "checkpoints/best.json",
    "config.yaml",
    "data.json",
    "env.json",
    "metrics.jsonl",
    "calibration.json",
    "summary.json",
)
_NEEDED = ("checkpoints/last.safetensors", "config.yaml", "data.json", "env.json")


def store(folder: Path, root: Path, *, largest_file: int = LARGEST_FILE) -> list[str]:
    """Store the results of a reproduction in a checkout, and what resuming its unfinished runs needs.

    Runs that the stored results have and the folder lacks stay in them. An unfinished run that is done now is removed.
    The folder may be in use by a process that trains.

    Args:
        folder: Folder of the reproduction, such as ``reproductions/copy``.
        root: The repository.
        largest_file: Largest file of an unfinished run, in bytes.

    Returns:
        A sentence about each file and folder that was written or removed.

    Raises:
        ConfigError: If there is no reproduction of the full protocol, it was made from uncommitted changes, it lacks
            runs that its comparison needs, or a file is too large.
        CheckpointError: If a file was edited, or cannot be read.
    """
    table = _table_of(folder)
    report = []
    results = read_results(folder / "results.json")
    path = root / STORED / table.key / "results.json"
    if results is not None:
        commits = {f"{run['row']}, seed {run['seed']}": run["commit"] for run in results["runs"]}
        _check_commits(folder, {**commits, "results.json": results["environment"]["commit"]})
        stored = read_results(path)
        if stored is not None:
            results = merge_results(table, stored, results)
        path.parent.mkdir(parents=True, exist_ok=True)
        results = write_results(path, results)
        report.append(f"stored {pluralize(len(results['runs']), 'run')}, {results['state']}: {path}")
        report += draw(table.key, root)
    shelf = root / UNFINISHED / table.key
    whole = _whole_runs(results)
    for run in ReproductionFolder(folder, table, FULL).known_runs():
        if _identity(run) not in whole and run.directory.checkpoint("last").is_file():
            _check_commits(run.path, {run.name: read_json(run.directory.environment)["commit"]})
            _store_run(run.path, shelf / run.path.name, largest_file)
            report.append(f"stored the unfinished run {run.name}: {shelf / run.path.name}")
    for run in _stored_runs(shelf, table):
        if _identity(run) in whole:
            shutil.rmtree(run.path)
            report.append(f"removed the run {run.name}, which is done: {run.path}")
    return report


def draw(key: str, root: Path) -> list[str]:
    """Draw the picture of the stored results of a table, if it has one.

    Returns:
        A sentence about the picture; none without a picture.

    Raises:
        ConfigError: If the repository has no results of the table.
        CheckpointError: If they were edited.
    """
    table = published_table(key)
    path = root / STORED / key / "results.json"
    results = read_results(path)
    if results is None:
        raise ConfigError(f"There are no results of '{key}' to draw: '{path}' does not exist.")
    if not table.has_picture:
        return []
    picture = root / PICTURES / picture_name(key)
    kind_of(table).draw(picture, table, results)
    return [f"drew {picture}"]


def restore(key: str, root: Path, folder: Path) -> list[str]:
    """Copy the unfinished runs of a table into the folder of a reproduction, where the same command goes on with them.

    Args:
        key: Key of the table.
        root: The repository.
        folder: Folder of the reproduction; runs that are there already are kept as they are.

    Returns:
        A sentence about each run.

    Raises:
        ConfigError: If the repository has no unfinished run of the table.
        CheckpointError: If a file was edited, or is damaged or missing.
    """
    runs = list(_stored_runs(root / UNFINISHED / key, published_table(key)))
    if not runs:
        raise ConfigError(f"'{root / UNFINISHED / key}' has no unfinished run of '{key}'; there is nothing to restore.")
    report = []
    for run in runs:
        target = folder / "runs" / run.path.name
        if target.exists():
            report.append(f"kept {run.name}, which is there already: {target}")
            continue
        contents = _verified(run.path)
        _write_folder(target, contents)
        report.append(f"restored {run.name}: {target}")
    return report


def _table_of(folder: Path) -> Table:
    path = folder / "protocol.json"
    if not path.is_file():
        raise ConfigError(f"'{folder}' is no folder of a reproduction: it has no protocol.json.")
    protocol = read_json(path)
    if protocol["name"] != FULL:
        raise ConfigError(
            f"'{folder}' is the {protocol['name']} reproduction of '{protocol['table']}', which compares nothing and "
            "is not stored. Run it without --short."
        )
    return published_table(protocol["table"])


def _check_commits(folder: Path, commits: Mapping[str, str | None]) -> None:
    """Refuse what was made by code that no commit has, given the commit of each run and of the results."""
    unclean = [name for name, commit in commits.items() if commit is None or commit.endswith("-dirty")]
    if unclean:
        raise ConfigError(
            f"'{folder}' was made by code that no commit has: {'; '.join(unclean[:5])}. Commit the changes and run "
            "'stablernn reproduce' again, for runs that are named here in another folder."
        )


def _whole_runs(results: Mapping[str, Any] | None) -> set[tuple[str, str, int]]:
    """Return row, data set and seed of the runs that did all of the published training."""
    runs = [] if results is None else results["runs"]
    return {(run["row"], run["data"], run["seed"]) for run in runs if (run["length"] or {"share": 1.0})["share"] >= 1}


def _identity(run: Run) -> tuple[str, str, int]:
    return run.row.key, run.data.key, run.seed


def _stored_runs(shelf: Path, table: Table) -> Iterator[Run]:
    """Yield the unfinished runs of a table in the repository."""
    folder = ReproductionFolder(shelf, table, FULL)
    # Their folders lie below the table's own: `runs` is a name that .gitignore has.
    names = {path.name: path for path in shelf.glob("*") if path.is_dir()}
    for data in folder.data_sets:
        for row in table.rows_on(data):
            prefix = folder.run(row, data, 0).path.name.removesuffix("0")
            for name, path in sorted(names.items()):
                seed = name.removeprefix(prefix)
                if name.startswith(prefix) and seed.isdecimal():
                    yield Run(row, data, int(seed), path, folder.run(row, data, 0).label)


def _store_run(run: Path, target: Path, largest_file: int) -> None:
    contents = {name: (run / name).read_bytes() for name in _FILES if (run / name).is_file()}
    missing = [name for name in _NEEDED if name not in contents]
    if missing:
        raise CheckpointError(f"The run in '{run}' has no {', '.join(missing)}, without which it cannot be resumed.")
    for name, content in contents.items():
        if len(content) > largest_file:
            raise ConfigError(
                f"'{run / name}' has {len(content):,} bytes, and a file of an unfinished run in the repository has at "
                f"most {largest_file:,}. Keep the folder elsewhere until the run is done, or allow more with "
                "--largest-file."
            )
    _write_folder(target, contents)
    write_json(target / _MANIFEST, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})


def _write_folder(target: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder, which has all of them or does not exist."""
    temporary = target.with_name(f".{target.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    for name, content in contents.items():
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)


def _verified(run: Path) -> dict[str, bytes]:
    """Return the files of a stored run, whose hashes are checked."""
    hashes: dict[str, str] = read_json(run / _MANIFEST)
    contents = {}
    for name, digest in hashes.items():
        path = run / name
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != digest:
            raise CheckpointError(
                f"'{path}' is missing or is not the file that was stored: its content does not have the hash that "
                f"{_MANIFEST} states. Restore it from the repository's history."
            )
        contents[name] = content
    return contents
