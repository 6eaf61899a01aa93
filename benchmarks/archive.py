"""Accuracy of the default and of MiniRocket on all sets of the UCR and UEA archives in a folder.

    STABLERNN_DATA=... python benchmarks/archive.py --seeds 0 --minirocket

runs ``stablernn train --data FILE --budget 2m`` and MiniRocket on each pair ``NAME_TRAIN`` and ``NAME_TEST`` (``.ts``,
``.tsv`` or ``.arff``, plain or compressed) at any depth below ``$STABLERNN_DATA``. A row for each set and seed is
written to ``benchmarks/results/archive.json`` after its runs, so that the same command continues after a stop; runs
that the file has, failed ones too, are repeated with ``--again`` only. At the end the section of ``docs/accuracy.md``
is written, which ``--page`` does alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import PAGE, PROBLEMS, build_aeon_environment, run_command, run_minirocket, save_arrays, shown

from stablernn.data import load_data
from stablernn.data.files import find_test_file
from stablernn.errors import DataError

RESULTS = Path(__file__).parent / "results" / "archive.json"
ENDINGS = (".ts", ".tsv", ".arff")
"""Formats of the archives, the preferred one first: ``.ts`` states lengths and missing values exactly."""
_TRAIN_FILE = re.compile(r"(?P<name>\w[\w-]*)_TRAIN(?P<ending>\.ts|\.tsv|\.arff)(\.gz|\.xz)?")
_CHANNEL = re.compile(r"Dimension\d+$")
_STOPPED = (130, -signal.SIGINT)
"""Exit statuses of a program that Ctrl-C ended: that of the command line, and that of an interpreter."""
_LONGEST_REASON = 300

Row = dict[str, Any]


@dataclass(frozen=True)
class ArchiveSet:
    """A set of the archives.

    Attributes:
        name: Its name.
        train: The training file.
        test: The test file in the same folder; None if it is missing.
    """

    name: str
    train: Path
    test: Path | None


def find_sets(root: Path) -> list[ArchiveSet]:
    """Return the sets below a folder, in the order of their names.

    Of several training files of a set, one with a test file is preferred, then by ending, then the one fewer folders
    down: the UCR archive has a second copy of some sets, without missing values, in a folder of its own.
    """
    candidates: dict[str, list[tuple[Any, ArchiveSet]]] = {}
    for path in root.rglob("*_TRAIN.*"):
        match = _TRAIN_FILE.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        test = find_test_file(path)
        preference = (test is None, ENDINGS.index(match["ending"]), len(path.parts), str(path))
        candidates.setdefault(match["name"], []).append((preference, ArchiveSet(match["name"], path, test)))
    # In .arff each channel of a multivariate set has a file of its own, too.
    names = [name for name in candidates if not _CHANNEL.search(name) or _CHANNEL.sub("", name) not in candidates]
    return [min(candidates[name])[1] for name in sorted(names, key=str.lower)]


def pending_runs(
    rows: Sequence[Row], sets: Sequence[ArchiveSet], seeds: Sequence[int], methods: Sequence[str], *, again: bool
) -> list[tuple[ArchiveSet, int, list[str]]]:
    """Return the sets to run, with the seed and the methods that a stored row lacks; with ``again`` all of them."""
    rows_by_key = {} if again else {_key(row): row for row in rows}
    runs = []
    # Seed by seed: a stop leaves all sets with one seed rather than some sets with all.
    for seed in seeds:
        for archive_set in sets:
            row = rows_by_key.get((archive_set.name, seed), {})
            missing_methods = [method for method in methods if method not in row]
            if missing_methods:
                runs.append((archive_set, seed, missing_methods))
    return runs


def measure(archive_set: ArchiveSet, seed: int, methods: Sequence[str], budget: str, interpreter: str | None) -> Row:
    """Run methods on a set, and return their part of its row. A failure is a result, with its reason."""
    name = archive_set.name
    row: Row = {"data": name, "seed": seed, "is_development_set": name in PROBLEMS}
    try:
        if archive_set.test is None:
            raise DataError(f"There is no {name}_TEST in the folder of '{archive_set.train.name}'.")
        data: Any = load_data(archive_set.train)
    # Any error: a file that cannot be read, whatever is wrong with it, must not end a run over a hundred sets.
    except Exception as error:
        return row | {method: {"failed": failure_reason(f"{type(error).__name__}: {error}")} for method in methods}
    row["set"] = set_facts(data)
    if "auto" in methods:
        row["auto"] = run_auto(archive_set.train, seed, budget)
    if "minirocket" in methods and interpreter is not None:
        row["minirocket"] = run_peer(data, seed, interpreter)
    return row


def set_facts(data: Any) -> Row:
    """Return the sizes of a set; the length is the shortest and the longest of all sequences."""
    lengths = np.concatenate([split.lengths for split in (data.train, data.validation, data.test)])
    return {
        "train": len(data.train) + len(data.validation),
        "test": len(data.test),
        "length": [int(lengths.min()), int(lengths.max())],
        "channels": len(data.features),
        "classes": len(data.labels),
    }


def run_auto(train: Path, seed: int, budget: str) -> Row:
    """Train by the command line without naming a cell."""
    words = ["train", "--data", str(train), "--budget", budget, "--seed", str(seed)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        completed = run_command([*words, "--run-dir", "run"], folder)
        seconds = round(time.perf_counter() - began, 1)
        environment = Path(folder) / "run" / "env.json"
        # A search that fails leaves no run.
        commit = json.loads(environment.read_text(encoding="utf-8"))["commit"] if environment.exists() else None
    row: Row = {"command": shown(words), "commit": commit, "seconds": seconds}
    if completed.returncode:
        return row | {"failed": _failure(completed.returncode, completed.stderr)}
    summary = json.loads(completed.stdout)
    scores, choice = summary["metrics"]["test"], summary["choice"]
    certificate = summary.get("certificate") or {"kind": "none", "contraction_rate": None}
    return row | {
        "accuracy": scores["accuracy"],
        # Missing if the training file has a single class.
        "ridge": scores.get("ridge", {}).get("accuracy"),
        "recipe": choice["chosen"],
        "compared": sum(bool(recipe["scores"]) for recipe in choice["recipes"]),
        "reason": choice["reason"],
        "settings": choice["settings"],
        "certificate": certificate["kind"],
        "contraction_rate": certificate["contraction_rate"],
        "parameters": summary["parameters"],
        # Few where the budget cut the training.
        "steps": summary["steps"],
    }


def run_peer(data: Any, seed: int, interpreter: str) -> Row:
    """Run MiniRocket with an interpreter that has aeon."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "data.npz"
        save_arrays(data, arrays)
        try:
            return run_minirocket(interpreter, arrays, seed)
        except subprocess.CalledProcessError as error:
            return {"failed": _failure(error.returncode, error.stderr)}


def check_interpreter(interpreter: str) -> None:
    """Refuse an interpreter without aeon now, rather than by a failure in every row.

    Raises:
        SystemExit: If it cannot import aeon.
    """
    try:
        subprocess.run([interpreter, "-c", "import aeon"], capture_output=True, text=True, check=True)
    except OSError as error:
        raise SystemExit(f"'{interpreter}' cannot be run: {error.strerror}. Give an interpreter with aeon.") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"'{interpreter}' cannot import aeon: {failure_reason(error.stderr)}.") from None


def _failure(status: int, stderr: str) -> str:
    """Return the reason of a failure; stop if it is Ctrl-C, which is no result."""
    if status in _STOPPED:
        raise KeyboardInterrupt
    return failure_reason(stderr) or f"exit status {status}"


def failure_reason(text: str) -> str:
    """Return the last line of an error, with the data folder as its variable."""
    lines = text.strip().splitlines()
    folder = os.environ.get("STABLERNN_DATA", "")
    line = lines[-1].strip() if lines else ""
    return (line.replace(folder, "$STABLERNN_DATA") if folder else line)[:_LONGEST_REASON]


def read_results(path: Path, budget: str) -> list[Row]:
    """Return the stored rows.

    Raises:
        SystemExit: If they are of another budget: a table of both would compare nothing.
    """
    if not path.exists():
        return []
    results = json.loads(path.read_text(encoding="utf-8"))
    if results["budget"] != budget:
        raise SystemExit(
            f"'{path}' has runs with a budget of {results['budget']}, got {budget}. Give another file with --results."
        )
    return list(results["runs"])


def write_results(path: Path, rows: Sequence[Row], budget: str) -> None:
    """Write all rows, in the order of sets and seeds."""
    conditions = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    content = {"budget": budget, "conditions": conditions, "runs": sorted(rows, key=_key)}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Replaced as a whole: a stop while writing must not lose the rows of hours.
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _key(row: Row) -> tuple[str, int]:
    return row["data"], row["seed"]


def run_archive(arguments: argparse.Namespace) -> None:
    """Run what the results lack, and store each row when it is complete."""
    if not os.environ.get("STABLERNN_DATA"):
        raise SystemExit("Set STABLERNN_DATA to the folder with the sets.")
    # Commands run in folders of their own, and the commands in the results name the variable instead of the folder.
    root = Path(os.environ["STABLERNN_DATA"]).expanduser().absolute()
    os.environ["STABLERNN_DATA"] = str(root)
    sets = find_sets(root)
    unknown_names = set(arguments.sets or ()) - {archive_set.name for archive_set in sets}
    if unknown_names or not sets:
        raise SystemExit(f"No set {', '.join(sorted(unknown_names)) or 'NAME_TRAIN'} below $STABLERNN_DATA.")
    if arguments.sets:
        sets = [archive_set for archive_set in sets if archive_set.name in arguments.sets]
    rows = {_key(row): row for row in read_results(arguments.results, arguments.budget)}
    methods = ["auto"] if arguments.minirocket is None else ["auto", "minirocket"]
    runs = pending_runs(list(rows.values()), sets, arguments.seeds, methods, again=arguments.again)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        interpreter = arguments.minirocket
        if interpreter == "" and any("minirocket" in missing_methods for _, _, missing_methods in runs):
            interpreter = str(build_aeon_environment(folder))
        elif interpreter:
            check_interpreter(interpreter)
        futures = [
            pool.submit(measure, archive_set, seed, missing_methods, arguments.budget, interpreter)
            for archive_set, seed, missing_methods in runs
        ]
        try:
            for future in as_completed(futures):
                row = future.result()
                rows[_key(row)] = rows.get(_key(row), {}) | row
                write_results(arguments.results, list(rows.values()), arguments.budget)
                print(_progress(row), file=sys.stderr, flush=True)
        except BaseException:
            # Otherwise leaving the pool would wait for all runs that have not begun.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _progress(row: Row) -> str:
    runs = {method: row[method] for method in ("auto", "minirocket") if method in row}
    figures = (
        f"{method} failed: {run['failed']}" if "failed" in run else f"{method} {run['accuracy']:.4f}"
        for method, run in runs.items()
    )
    return f"{row['data']}, seed {row['seed']}: {', '.join(figures)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="sets to run; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    parser.add_argument("--budget", default="2m", help="that of each search with its training; default: 2m")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="searches at a time, each with up to as many processes as cores: with more than one, a time buys fewer "
        "trainings; default: 1",
    )
    parser.add_argument(
        "--minirocket",
        nargs="?",
        const="",
        metavar="PYTHON",
        help="run MiniRocket, by an interpreter with aeon; without one, in an environment that is made for it",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file with the rows; another one has no page")
    parser.add_argument("--again", action="store_true", help="repeat runs that the results have")
    parser.add_argument("--page", action="store_true", help="only write the section of docs/accuracy.md")
    arguments = parser.parse_args()
    if not arguments.page:
        try:
            run_archive(arguments)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
    if arguments.results.absolute() == RESULTS:
        sys.path.append(str(PAGE.parents[1] / "tools"))
        from generate_docs import accuracy

        PAGE.write_text(accuracy(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
