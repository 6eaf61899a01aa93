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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from accuracy import PAGE, PROBLEMS, build_aeon_environment, run_command, run_minirocket, save_arrays, shown

from stablernn.data import load_data
from stablernn.data.files import find_test_file
from stablernn.errors import DataError

METHODS = ("auto", "minirocket", "ridge")
PROOFS = ("contracting", "non-expansive", "bounded", "none")
"""Classes of certificates, the strongest first."""
_DRAW = 0.5
"""Largest difference of a draw, in test sequences."""
_ROUNDING = 1e-6
"""Rounding error of an accuracy times the number of test sequences, far below half of one."""

ResultRow = Mapping[str, Any]
Outcome = Literal["win", "draw", "loss"]


@dataclass(frozen=True)
class SetSummary:
    """The runs on one set, over all seeds.

    Attributes:
        name: Name of the set.
        is_development_set: True if defaults were chosen on the set.
        facts: Its sizes: ``train``, ``test``, ``channels``, ``classes`` and the shortest and longest ``length``; empty
            if the set could not be read.
        accuracies: Mean test accuracy by method; without the methods that have none.
        failures: Reasons of failed runs, by method and seed.
        recipes: Chosen recipes, the most frequent first.
        is_compared: True if every run of ``auto`` compared two recipes or more.
        proof: The weakest class of certificate of any seed; None without a run of ``auto``.
    """

    name: str
    is_development_set: bool
    facts: Mapping[str, Any]
    accuracies: Mapping[str, float]
    failures: Mapping[tuple[str, int], str]
    recipes: tuple[str, ...]
    is_compared: bool
    proof: str | None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of ``auto`` against MiniRocket; None if they cannot be compared.

        A set on which ``auto`` failed while MiniRocket did not is lost. The reverse is not won.
        """
        if "minirocket" not in self.accuracies:
            return None
        if "auto" not in self.accuracies:
            return "loss" if any(method == "auto" for method, _ in self.failures) else None
        if self._is_draw("auto", "minirocket"):
            return "draw"
        return "win" if self.accuracies["auto"] > self.accuracies["minirocket"] else "loss"

    @property
    def is_complete(self) -> bool:
        """True if every method has an accuracy."""
        return all(method in self.accuracies for method in METHODS)

    def rank(self, method: str) -> float:
        """Return the rank of a method among all, 1 for the most accurate one; a draw shares the ranks."""
        others = [other for other in METHODS if other != method]
        draws = sum(self._is_draw(method, other) for other in others)
        better = sum(
            self.accuracies[other] > self.accuracies[method] and not self._is_draw(method, other) for other in others
        )
        return 1 + better + draws / 2

    def _is_draw(self, method: str, other: str) -> bool:
        difference = abs(self.accuracies[method] - self.accuracies[other])
        return bool(difference * self.facts["test"] <= _DRAW + _ROUNDING)


def summarize(rows: Iterable[ResultRow]) -> list[SetSummary]:
    """Return a summary of each set, in the order of the names."""
    groups: dict[str, list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(row["data"], []).append(row)
    return [_summary(groups[name]) for name in sorted(groups, key=str.lower)]


def _summary(rows: Sequence[ResultRow]) -> SetSummary:
    # The ridge classifier is a figure of the same run as the default.
    runs = {
        "auto": [row["auto"] for row in rows if "auto" in row],
        "minirocket": [row["minirocket"] for row in rows if "minirocket" in row],
    }
    values = {method: [run["accuracy"] for run in runs[method] if "accuracy" in run] for method in runs}
    values["ridge"] = [run["ridge"] for run in runs["auto"] if run.get("ridge") is not None]
    failures = {
        (method, row["seed"]): row[method]["failed"]
        for row in rows
        for method in runs
        if "failed" in row.get(method, {})
    }
    recipes = Counter(run["recipe"] for run in runs["auto"] if "recipe" in run)
    proofs = [run["certificate"] for run in runs["auto"] if "certificate" in run]
    return SetSummary(
        name=rows[0]["data"],
        is_development_set=rows[0]["is_development_set"],
        facts=next((row["set"] for row in rows if row.get("set")), {}),
        accuracies={method: sum(figures) / len(figures) for method, figures in values.items() if figures},
        failures=failures,
        recipes=tuple(recipe for recipe, _ in recipes.most_common()),
        is_compared=all(run["compared"] > 1 for run in runs["auto"] if "compared" in run),
        proof=max(proofs, key=PROOFS.index) if proofs else None,
    )


def archive_section(results: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the lines of the section.

    Args:
        results: The content of ``benchmarks/results/archive.json``; None if there is none.
    """
    yield _SOURCES
    if not results or not results["runs"]:
        yield f"\nNo results are stored yet. This measures and stores them:\n\n{_command('0', '2m')}"
        return
    summaries = summarize(results["runs"])
    seeds = sorted({row["seed"] for row in results["runs"]})
    yield "\n" + _MEASURED.format(budget=results["budget"], **results["conditions"])
    yield "\n" + (_ONE_SEED if len(seeds) == 1 else _SEVERAL_SEEDS).format(seeds=", ".join(map(str, seeds)))
    parts = {
        "are not among the nine": [summary for summary in summaries if not summary.is_development_set],
        "are among the nine": [summary for summary in summaries if summary.is_development_set],
    }
    yield f"\n{_OUTCOMES}\n"
    yield from _outcomes_table(parts)
    for title, part in parts.items():
        if part:
            yield f"\n### Sets that {title}\n\n"
            yield from _sets_table(part)
    names = [summary.name for summary in summaries if not summary.is_compared]
    if names:
        yield f"\nThe budget compared no two recipes, so that the first one was trained, on: {', '.join(names)}.\n"
    yield from _failures(summaries)
    yield f"\n{_command(' '.join(map(str, seeds)), results['budget'])}"


def _outcomes_table(parts: Mapping[str, Sequence[SetSummary]]) -> Iterator[str]:
    yield _line(
        ["sets that", "sets", "wins", "draws", "losses"]
        + [f"mean {method}" for method in METHODS]
        + [f"rank {method}" for method in METHODS]
    )
    yield _line(["---"] * (5 + 2 * len(METHODS)))
    for title, part in parts.items():
        outcomes = Counter(summary.outcome for summary in part)
        complete_sets = [summary for summary in part if summary.is_complete]
        means = [_mean(summary.accuracies[method] for summary in complete_sets) for method in METHODS]
        ranks = [_mean(summary.rank(method) for summary in complete_sets) for method in METHODS]
        yield _line(
            [title, len(part), *(outcomes[outcome] for outcome in ("win", "draw", "loss"))]
            + ["-" if mean is None else f"{mean:.4f}" for mean in means]
            + ["-" if rank is None else f"{rank:.2f}" for rank in ranks]
        )


def _sets_table(summaries: Sequence[SetSummary]) -> Iterator[str]:
    yield _line(["set", "train", "test", "length", "channels", "classes", *METHODS, "outcome", "recipe", "proved"])
    yield _line(["---"] * (9 + len(METHODS)))
    for summary in summaries:
        facts = summary.facts
        accuracies = [summary.accuracies.get(method) for method in METHODS]
        yield _line(
            [
                summary.name,
                *(f"{facts[key]:,}" if facts else "-" for key in ("train", "test")),
                _length(facts["length"]) if facts else "-",
                *(facts.get(key, "-") for key in ("channels", "classes")),
                *("-" if accuracy is None else f"{accuracy:.4f}" for accuracy in accuracies),
                summary.outcome or "-",
                "; ".join(summary.recipes) or "-",
                summary.proof or "-",
            ]
        )


def _failures(summaries: Sequence[SetSummary]) -> Iterator[str]:
    lines = [
        f"- {summary.name}, {method}, seed {seed}: {reason}\n"
        for summary in summaries
        for (method, seed), reason in sorted(summary.failures.items())
    ]
    if lines:
        yield "\nRuns that failed:\n\n"
        yield from lines


def _command(seeds: str, budget: str) -> str:
    words = f"python benchmarks/archive.py --seeds {seeds} --budget {budget} --minirocket"
    return f"    STABLERNN_DATA=... {words}\n"


def _length(length: Sequence[int]) -> str:
    shortest, longest = length
    return f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"


def _mean(values: Iterable[float]) -> float | None:
    figures = list(values)
    return sum(figures) / len(figures) if figures else None


def _line(cells: Iterable[object]) -> str:
    # A bar in the message of an error would end the cell.
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


_SOURCES = """Test accuracy on the published splits of sets of the UCR and UEA archives. Written by `make docs` from the
results of `benchmarks/archive.py`; do not edit.

- `auto`: `stablernn train --data FILE` with a budget and a seed, no other option ([choosing.md](choosing.md)).
- `minirocket`: MiniRocket and a ridge classifier, by aeon; shorter sequences are padded with 0.
- `ridge`: a ridge classifier on the raw values.

Defaults and recipes were chosen on the nine sets of [Classification](#classification). Their test accuracies were known
at that time, so that a win on one of them is no evidence for other data. The training files of Adiac, ArrowHead and
Crop took part in comparisons, too: by their folds recipes were added and put in order
(`benchmarks/cross_validation.py`). Four changes were prompted by test accuracies of earlier runs of this table: the
recipes for many classes by losses on Adiac and Crop, the stricter rules for leaving the default by losses on ArrowHead
and ECG200, and twice in place of four times the epochs and further draws of the folds by the spread over seeds on
ECG200. The first three were decided by folds of training files, or by how errors are estimated; further draws were not
compared with single ones on other data. The runs of ECG5000 and FordA are from before them: two minutes leave no time
for further draws on ECG5000, and FordA has too many sequences for any. The search of a run reads the training file
only.
"""
_MEASURED = """Budget {budget} a run; {cores} cores, {machine}, torch {torch}, Python {python}, {date}. With a budget in
time, a faster or idler machine compares more recipes and trains for more steps; the accuracy depends on it.
"""
_ONE_SEED = """**One seed** ({seeds}): each figure is that of a single search and a single training. Another seed draws
other folds, initial weights and batches, and may choose another recipe; how far the accuracy would move is not measured
here, and a difference of a few test sequences on one set says nothing. The ranges under
[Classification](#classification) show how far three seeds lie apart. Counts and means over many sets are steadier.
"""
_SEVERAL_SEEDS = """Means over the seeds {seeds}, as far as a set has them; `recipe` has every recipe that a seed chose,
`proved` the weakest class of certificate.
"""
_OUTCOMES = """Wins, draws and losses of `auto` against `minirocket`. A draw is an equal accuracy, to within half a test
sequence. A set on which `auto` failed and MiniRocket did not is a loss; the reverse does not count. Means and ranks (1
is the best of the three, draws share ranks) are over the sets for which all three have an accuracy.
"""


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
