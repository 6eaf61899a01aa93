"""How accurate the shipped recipes are: nine classification problems, three forecasting tasks, UCR and UEA archives.

    STABLERNN_DATA=... python benchmarks/accuracy.py --jobs 2
    STABLERNN_DATA=... python benchmarks/accuracy.py --archive --seeds 0 1 2 --minirocket PYTHON

The first trains through the command line, one thread a job, and writes ``benchmarks/results/accuracy.json``. The second
runs ``stablernn train --data FILE --budget 2m``, and MiniRocket by an interpreter that has ``stablernn[compare]``, on
each pair ``NAME_TRAIN`` and ``NAME_TEST`` (``.ts``, ``.tsv`` or ``.arff``, plain or compressed) at any depth below
``$STABLERNN_DATA``, and writes ``benchmarks/results/archive.json``. Each row is stored after its run, so that the same
command continues after a stop; runs that the file has, failed ones too, are repeated with ``--again`` only.
``--page`` prints the tables.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import harness
import numpy as np
from harness import (
    Row,
    data_folder,
    log,
    mean_spread,
    read_results,
    run_json,
    shown,
    stored,
    table,
    write_results,
)

STORED, ARCHIVE = stored("accuracy"), stored("archive")
SEEDS = (0, 1, 2)
PROBLEMS = {
    "digits": None,
    "ItalyPowerDemand": "ts",
    "GunPoint": "ts",
    "ECG200": "tsv",
    "Coffee": "tsv",
    "JapaneseVowels": "ts",
    "BasicMotions": "ts",
    "ECG5000": "tsv",
    "FordA": "tsv.gz",
}
"""Classification problems and the ending of their training file."""
LARGE = ("digits", "FordA")
"""Problems of more than a thousand training sequences, where four members are as many as three minutes allow."""
FORECASTS = {
    "m4-hourly": ["--data", "m4-hourly"],
    "etth1": ["--data", "etth1", "--set", "data.channels_as_series=true"],
    "etth1-ot": ["--data", "etth1", "--set", "data.channels=OT"],
}
RECIPES = ("tuned", "defaults", "auto", "minirocket")
"""``auto`` of files, and MiniRocket of all, are runs of the archives."""
GOALS = {
    **{"digits": 0.985, "ItalyPowerDemand": 0.965, "GunPoint": 0.980, "ECG200": 0.890, "Coffee": 0.970},
    **{"JapaneseVowels": 0.975, "BasicMotions": 0.990, "ECG5000": 0.942, "FordA": 0.943, "mean": 0.965},
}
"""Goals for the mean test accuracy."""
FORECAST_GOALS = {
    "m4-hourly": {"smape": None, "mase": None, "owa": 0.45},
    "etth1": {"mse": 0.365, "mae": 0.387},
    "etth1-ot": {"mse": 0.0541, "mae": None},
}
PUBLISHED_NAIVE2 = {"smape": 18.383, "mase": 2.395}
"""Averages of Naive2 over the 414 hourly series, as the competition gives them."""


def problem_file(name: str) -> str:
    """Return what ``--data`` takes for a classification problem."""
    ending = PROBLEMS[name]
    return name if ending is None else str(data_folder() / "ucr-uea" / name / f"{name}_TRAIN.{ending}")


def classify(row: Row) -> Row:
    """Train by a recipe, and return its accuracy."""
    members = "4" if row["data"] in LARGE else "8"
    tuned = ["--cell", "lru", "--members", members, "--set", "training.refit=true"]
    recipe = {"tuned": tuned, "defaults": ["--cell", "lru"], "auto": []}[row["recipe"]]
    words = ["train", "--data", problem_file(row["data"]), *recipe, "--seed", str(row["seed"])]
    summary = run_json(words)
    test = summary["metrics"]["test"]
    return {**row, "accuracy": test["accuracy"], "ridge": test["ridge"]["accuracy"], **_facts(words, summary)}


def forecast(row: Row) -> Row:
    """Train a forecaster by a recipe, and return the measures of the literature."""
    from stablernn.training import TorchPredictor, load_run, predict
    from stablernn.training.build import create_model

    recipe = {"defaults": ["--cell", "lipschitz"], "auto": []}[row["recipe"]]
    words = ["train", *FORECASTS[row["data"]], *recipe, "--seed", str(row["seed"])]
    with tempfile.TemporaryDirectory() as folder:
        summary = run_json(words, folder)
        loaded = load_run(Path(folder) / summary["run"])
        data: Any = loaded.load_data()
        # Before training a model with a linear skip is that skip: ridge regression on the scaled context.
        predictors = loaded.predictor(), TorchPredictor(create_model(loaded.config, data))
        windows = data.windows("test")
        scores, ridge = (score(row["data"], data, predict(one, windows)["mean"][:, :, 0]) for one in predictors)
    return {**row, **scores, "ridge": ridge, **_facts(words, summary)}


def _facts(words: list[str], summary: Row) -> Row:
    return {"command": shown(words), "parameters": summary["parameters"], "seconds": round(summary["seconds"], 1)}


def score(name: str, data: Any, mean: np.ndarray) -> dict[str, float]:
    """Return errors in the units of the literature: of M4 those of the competition, otherwise standardized ones.

    ``smape`` is in percent, 0 to 200; ``mase`` in units of the seasonal naive forecast's error within the history;
    ``owa`` their mean, each over that of Naive2. ``mse`` and ``mae`` are in units of each series' standard deviation in
    training.

    Args:
        name: Name of the task.
        data: Its data.
        mean: Forecasts of the test windows, ``(windows, horizon)``.
    """
    windows = data.windows("test")
    truth = windows.truth(np.arange(len(windows)))[:, :, 0].astype(np.float64)
    error = np.abs(mean.astype(np.float64) - truth)
    if name == "m4-hourly":
        histories = [data.series[series].values[:end, 0].astype(np.float64) for series, end in windows.origins]
        scales = np.array([np.abs(one[data.season :] - one[: -data.season]).mean() for one in histories])
        size = np.abs(truth) + np.abs(mean)
        scores = {"smape": (200 * error / size).mean(), "mase": (error.mean(axis=1) / scales).mean()}
        scores["owa"] = np.mean([scores[key] / value for key, value in PUBLISHED_NAIVE2.items()])
    else:
        held_out = data.validation_steps + data.test_steps
        deviation = np.array([one.values[: len(one.values) - held_out, 0].std(dtype=np.float64) for one in data.series])
        error /= deviation[[series for series, _ in windows.origins]][:, None]
        scores = {"mse": (error**2).mean(), "mae": error.mean()}
    return {key: float(value) for key, value in scores.items()}


def naive_rows() -> list[Row]:
    """Return the same measures of the seasonal naive forecasts."""
    from stablernn.data import load_data
    from stablernn.training.evaluation.metrics import seasonal_naive

    rows = []
    options: dict[str, Row] = {"m4-hourly": {}, "etth1": {"channels_as_series": True}, "etth1-ot": {"channels": ["OT"]}}
    for name, given in options.items():
        data: Any = load_data(name.removesuffix("-ot"), **given)
        lengths = {"season": data.season, "horizon": data.horizon}
        means = [
            seasonal_naive(data.series[series].values[:, :1], np.array([end]), **lengths)[0, :, 0]
            for series, end in data.windows("test").origins
        ]
        rows.append({"data": name, "method": "seasonal naive", **score(name, data, np.stack(means))})
    return rows


# The archives.

METHODS = ("auto", "minirocket", "ridge")
PROOFS = ("contracting", "non-expansive", "bounded", "none")
"""Classes of certificates, the strongest first."""
DRAW = 0.5 + 1e-6
"""Largest difference of a draw, in test sequences, with its rounding."""
_TRAIN_FILE = re.compile(r"(?P<name>\w[\w-]*)_TRAIN(?P<ending>\.ts|\.tsv|\.arff)(\.gz|\.xz)?")
_ENDINGS = (".ts", ".tsv", ".arff")
"""Formats of the archives, the preferred one first: ``.ts`` states lengths and missing values exactly."""
_CHANNEL = re.compile(r"Dimension\d+$")
MINIROCKET = """
import json, sys
from stablernn.compare.baselines import score_baseline
from stablernn.training.settings.load import validate
config = validate({"data": {"source": sys.argv[1]}})
print(json.dumps(score_baseline("minirocket", config, [int(sys.argv[2])])["scores"]))
"""


def find_sets(root: Path) -> dict[str, Path]:
    """Return the training files of the sets below a folder, by their names.

    Of several files of a set, one with a test file is preferred, then by ending, then the one fewer folders down: the
    UCR archive has a second copy of some sets, without missing values, in a folder of its own.
    """
    from stablernn.data.files import find_test_file

    candidates: dict[str, list[tuple[Any, ...]]] = {}
    for path in root.rglob("*_TRAIN.*"):
        if (match := _TRAIN_FILE.fullmatch(path.name)) and path.is_file():
            preference = (find_test_file(path) is None, _ENDINGS.index(match["ending"]), len(path.parts), path)
            candidates.setdefault(match["name"], []).append(preference)
    # In .arff each channel of a multivariate set has a file of its own, too.
    names = [name for name in candidates if not _CHANNEL.search(name) or _CHANNEL.sub("", name) not in candidates]
    return {name: min(candidates[name])[-1] for name in sorted(names, key=str.lower)}


def measure_set(path: Path, row: Row, methods: Sequence[str], budget: str, interpreter: str) -> Row:
    """Run methods on a set, and return their part of its row. A failure is a result, with its reason."""
    from stablernn.data import load_data

    row |= {"is_development_set": row["data"] in PROBLEMS}
    runs: dict[str, Callable[[], Row]] = {
        "auto": lambda: run_auto(path, row["seed"], budget),
        "minirocket": lambda: run_minirocket(path, row["seed"], interpreter),
    }
    try:
        data: Any = load_data(path)
        lengths = np.concatenate([split.lengths for split in (data.train, data.validation, data.test)])
        row["set"] = {
            "train": len(data.train) + len(data.validation),
            "test": len(data.test),
            "length": [int(lengths.min()), int(lengths.max())],
            "channels": len(data.features),
            "classes": len(data.labels),
        }
    # Any error: a file that cannot be read, whatever is wrong with it, must not end a run over a hundred sets.
    except Exception as error:
        return row | {method: {"failed": f"{type(error).__name__}: {error}"} for method in methods}
    for method in methods:
        try:
            row[method] = runs[method]()
        except SystemExit as error:
            row[method] = {"failed": str(error).strip().splitlines()[-1]}
        except subprocess.CalledProcessError as error:
            row[method] = {"failed": error.stderr.strip().splitlines()[-1]}
    return row


def run_auto(path: Path, seed: int, budget: str) -> Row:
    """Train by the command line without naming a cell."""
    words = ["train", "--data", str(path), "--budget", budget, "--seed", str(seed)]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        summary = run_json([*words, "--run-dir", "run"], folder)
        commit = read_results(Path(folder) / "run" / "env.json")["commit"]
    scores, choice = summary["metrics"]["test"], summary["choice"]
    certificate = summary.get("certificate") or {"kind": "none", "contraction_rate": None}
    return {
        "command": shown(words),
        "commit": commit,
        "seconds": round(time.perf_counter() - began, 1),
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


def run_minirocket(path: Path, seed: int, interpreter: str) -> Row:
    """Run the baseline of ``stablernn compare``, by an interpreter that has aeon."""
    began = time.perf_counter()
    command = [interpreter, "-c", MINIROCKET, str(path), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout), "seconds": round(time.perf_counter() - began, 1)}


def summarize(rows: list[Row]) -> Row:
    """Return what the runs on one set give over all seeds.

    ``accuracies`` are means by method, without the methods that have none; ``proof`` is the weakest certificate.
    """
    runs = {method: [row[method] for row in rows if method in row] for method in ("auto", "minirocket")}
    values = {method: [run["accuracy"] for run in found if "accuracy" in run] for method, found in runs.items()}
    values["ridge"] = [run["ridge"] for run in runs["auto"] if run.get("ridge") is not None]
    recipes = Counter(run["recipe"] for run in runs["auto"] if "recipe" in run)
    return {
        "name": rows[0]["data"],
        "is_development_set": rows[0]["is_development_set"],
        "facts": next((row["set"] for row in rows if row.get("set")), {}),
        "accuracies": {method: fmean(figures) for method, figures in values.items() if figures},
        "failures": [
            (method, row["seed"], row[method]["failed"])
            for method in runs
            for row in rows
            if "failed" in row.get(method, {})
        ],
        "recipes": [recipe for recipe, _ in recipes.most_common()],
        "proof": max(
            (run["certificate"] for run in runs["auto"] if "certificate" in run), key=PROOFS.index, default="-"
        ),
    }


def is_draw(summary: Row, method: str, other: str) -> bool:
    """Compare two methods to within half a test sequence."""
    difference = abs(summary["accuracies"][method] - summary["accuracies"][other])
    return bool(difference * summary["facts"]["test"] <= DRAW)


def outcome(summary: Row) -> str:
    """Return the outcome of ``auto`` against MiniRocket; ``-`` if they cannot be compared.

    A set on which ``auto`` failed while MiniRocket did not is lost. The reverse is not won.
    """
    accuracies = summary["accuracies"]
    if "minirocket" not in accuracies or "auto" not in accuracies:
        has_failed = any(method == "auto" for method, *_ in summary["failures"])
        return "loss" if "minirocket" in accuracies and has_failed else "-"
    if is_draw(summary, "auto", "minirocket"):
        return "draw"
    return "win" if accuracies["auto"] > accuracies["minirocket"] else "loss"


def rank(summary: Row, method: str) -> float:
    """Return the rank of a method among all, 1 for the most accurate one; a draw shares the ranks."""
    places = 1.0
    for other in METHODS:
        if other != method and is_draw(summary, method, other):
            places += 0.5
        elif summary["accuracies"][other] > summary["accuracies"][method]:
            places += 1
    return places


def archive_tables(results: Row) -> str:
    """Return the section of the archives."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(results["runs"], key=lambda row: row["data"].lower()):
        groups.setdefault(row["data"], []).append(row)
    summaries = [summarize(rows) for rows in groups.values()]
    parts = {
        f"are {'' if flag else 'not '}among the nine": [one for one in summaries if one["is_development_set"] is flag]
        for flag in (False, True)
    }
    columns = [f"{figure} {method}" for figure in ("mean", "rank") for method in METHODS]
    counts = []
    for title, part in parts.items():
        outcomes = Counter(map(outcome, part))
        complete = [one for one in part if len(one["accuracies"]) == len(METHODS)]
        means = [f"{fmean(one['accuracies'][method] for one in complete):.4f}" for method in METHODS if complete]
        ranks = [f"{fmean(rank(one, method) for one in complete):.2f}" for method in METHODS if complete]
        counts.append([title, len(part), *(outcomes[one] for one in ("win", "draw", "loss")), *means, *ranks])
    lines = [table(("sets that", "sets", "wins", "draws", "losses", *columns), counts)]
    for title, part in parts.items():
        header = ("set", "train", "test", "length", "channels", "classes", *METHODS, "outcome", "recipe", "proved")
        lines += [f"### Sets that {title}", table(header, map(_set_line, part))]
    failures = [
        f"- {one['name']}, {method}, seed {seed}: {reason}"
        for one in summaries
        for method, seed, reason in one["failures"]
    ]
    if failures:
        lines += ["Runs that failed:", "\n".join(failures)]
    return "\n\n".join(lines)


def _set_line(summary: Row) -> Iterator[object]:
    facts, accuracies = summary["facts"], summary["accuracies"]
    yield summary["name"]
    yield from (f"{facts[key]:,}" if facts else "-" for key in ("train", "test"))
    yield " to ".join(dict.fromkeys(f"{length:,}" for length in facts["length"])) if facts else "-"
    yield from (facts.get(key, "-") for key in ("channels", "classes"))
    yield from (f"{accuracies[method]:.4f}" if method in accuracies else "-" for method in METHODS)
    yield from (outcome(summary), "; ".join(summary["recipes"]) or "-", summary["proof"])


# The page.


def page_tables(results: Row, archive: Row) -> dict[str, str]:
    """Return the tables of benchmarks/accuracy.md."""
    runs = list(results["runs"])
    known = {(row["data"], row["recipe"]) for row in runs}
    for row, recipe in product(archive["runs"], ("auto", "minirocket")):
        if row["data"] in PROBLEMS and (row["data"], recipe) not in known and "accuracy" in row.get(recipe, {}):
            runs.append({**row[recipe], "data": row["data"], "recipe": recipe})
    about = _conditions(archive["conditions"])
    commands = sorted({row["command"].rpartition(" --seed")[0] for row in runs if "command" in row})
    return {
        "conditions": _conditions(results["conditions"]),
        "classification": _classification_table(runs),
        "archive": "\n\n".join([f"Budget {archive['budget']} a run.", about, archive_tables(archive)]),
        "forecasting": _forecasting_table(runs, results["naive"]),
        "commands": "\n".join(["```", *commands, "```"]),
    }


def _conditions(found: Row) -> str:
    return "{cores} cores, {machine}, torch {torch}, Python {python}, {date}.".format(**found)


def _classification_table(runs: list[Row]) -> str:
    rows: list[list[object]] = []
    means: dict[str, list[float]] = {name: [] for name in (*RECIPES, "ridge")}
    for name in PROBLEMS:
        found = {recipe: [row for row in runs if (row["data"], row["recipe"]) == (name, recipe)] for recipe in RECIPES}
        accuracies = {recipe: [row["accuracy"] for row in part] for recipe, part in found.items()}
        tuned = found["tuned"]
        accuracies["ridge"] = [row["ridge"] for row in tuned[:1]]
        seconds = f"{median(row['seconds'] for row in tuned):.0f}" if tuned else "-"
        rows.append([name, f"{GOALS[name]:.3f}", *map(mean_spread, accuracies.values()), seconds])
        for key, values in accuracies.items():
            means[key] += [fmean(values)] if values else []
    whole = [f"{fmean(values):.4f}" if len(values) == len(PROBLEMS) else "-" for values in means.values()]
    rows.append(["mean", f"{GOALS['mean']:.3f}", *whole, ""])
    return table(("data set", "goal", *RECIPES, "ridge", "seconds, tuned"), rows)


def _forecasting_table(runs: list[Row], naive: list[Row]) -> str:
    rows: list[list[object]] = []
    recipes = ("defaults", "auto")
    for name, goals in FORECAST_GOALS.items():
        found = {recipe: [row for row in runs if (row["data"], row["recipe"]) == (name, recipe)] for recipe in recipes}
        seasonal = next(row for row in naive if (row["data"], row["method"]) == (name, "seasonal naive"))
        seconds = f"{median(row['seconds'] for row in found['defaults']):.0f}"
        ridge = found["defaults"][0]["ridge"]
        for measure, goal in goals.items():
            cells = [mean_spread([row[measure] for row in part], ".4f") for part in found.values()]
            others = [f"{ridge[measure]:.4f}", f"{seasonal[measure]:.4f}", seconds]
            rows.append([name, measure, f"{goal:.4g}" if goal else "", *cells, *others])
    return table(
        ("task", "measure", "goal", *recipes, "linear skip alone", "seasonal naive", "seconds, defaults"), rows
    )


def measure(calls: dict[tuple[Any, ...], Callable[[], Row]], path: Path, jobs: int, document: Row, *keys: str) -> None:
    """Call what makes the row of each key, and store all rows after each.

    Args:
        calls: What makes a row, by its key.
        path: The results.
        jobs: Calls at a time.
        document: What stands beside the rows.
        keys: Entries of a row that make its key.
    """
    rows = {tuple(row.get(key, "") for key in keys): row for row in read_results(path, {"runs": []})["runs"]}
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(call) for call in calls.values()]
        try:
            for future in as_completed(futures):
                row = future.result()
                key = tuple(row[name] for name in keys)
                rows[key] = rows.get(key, {}) | row
                write_results(path, {**document, "runs": [rows[one] for one in sorted(rows)]})
                log({name: value for name, value in row.items() if name != "command"})
        except BaseException:
            # Otherwise leaving the pool would wait for all runs that have not begun.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def main() -> None:
    parser = harness.page_parser(__doc__, None)
    parser.add_argument("--archive", action="store_true", help="run all sets of the archives")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--only", nargs="*", help="data sets to run; default: all")
    parser.add_argument("--recipes", nargs="*", default=["tuned", "defaults", "auto"], help="recipes to run")
    parser.add_argument("--budget", default="2m", help="that of each search with its training; default: 2m")
    parser.add_argument("--minirocket", metavar="PYTHON", help="also run MiniRocket, by an interpreter with aeon")
    parser.add_argument("--again", action="store_true", help="repeat runs that the results have")
    arguments = parser.parse_args()
    path: Path = arguments.results or (ARCHIVE if arguments.archive else STORED)
    known = [] if arguments.again else read_results(path, {"runs": []})["runs"]
    conditions = harness.conditions("torch", placeholders={"minirocket": "PYTHON"})
    calls: dict[tuple[Any, ...], Callable[[], Row]] = {}
    if arguments.archive and not arguments.page:
        methods = {"auto", "minirocket"} if arguments.minirocket else {"auto"}
        stored_rows = {(row["data"], row["seed"]): row for row in known}
        # Seed by seed: a stop leaves all sets with one seed rather than some sets with all.
        for seed, (name, file) in product(arguments.seeds, find_sets(data_folder()).items()):
            missing = sorted(methods - stored_rows.get((name, seed), {}).keys())
            if missing and name in (arguments.only or [name]):
                words = (file, {"data": name, "seed": seed}, missing, arguments.budget, arguments.minirocket)
                calls[name, seed] = lambda words=words: measure_set(*words)
        document = {"budget": arguments.budget, "conditions": conditions}
        measure(calls, path, arguments.jobs, document, "data", "seed")
    elif not arguments.page:
        done = {(row["data"], row["recipe"], row["seed"]) for row in known}
        for name, recipe, seed in product((*PROBLEMS, *FORECASTS), arguments.recipes, arguments.seeds):
            # Those of the archives are runs of theirs.
            is_run = name in FORECASTS if recipe == "auto" else name in PROBLEMS or recipe == "defaults"
            is_run |= (name, recipe) == ("digits", "auto")
            if is_run and name in (arguments.only or [name]) and (name, recipe, seed) not in done:
                work, row = forecast if name in FORECASTS else classify, {"data": name, "recipe": recipe, "seed": seed}
                calls[name, recipe, seed] = lambda work=work, row=row: work(row)
        naive = read_results(path, {"naive": None})["naive"] or naive_rows()
        measure(calls, path, arguments.jobs, {"conditions": conditions, "naive": naive}, "data", "recipe", "seed")
    if path in (STORED, ARCHIVE):
        harness.print_tables(page_tables(read_results(STORED), read_results(ARCHIVE)))


if __name__ == "__main__":
    main()
