"""How accurate the shipped recipes are: nine classification problems, three forecasting tasks, three seeds each.

    STABLERNN_DATA=... python benchmarks/accuracy.py --jobs 2

trains through the command line, one thread a job, and writes ``benchmarks/results/accuracy.json``; ``--page`` writes
``docs/accuracy.md`` from it. ``--only`` runs some of the rows again and keeps the others. MiniRocket, the peer, comes
from aeon, which needs an older numpy: ``--minirocket`` builds an environment for it in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

PUBLISHED_NAIVE2 = {"smape": 18.383, "mase": 2.395}
"""Averages of Naive2 over the 414 hourly series, as the competition gives them: what ``naive2`` must reproduce."""


def smape(truth: np.ndarray, forecast: np.ndarray) -> float:
    """Symmetric mean absolute percentage error of one series, 0 to 200."""
    return float(np.mean(200 * np.abs(truth - forecast) / (np.abs(truth) + np.abs(forecast))))


def mase(truth: np.ndarray, forecast: np.ndarray, history: np.ndarray, season: int) -> float:
    """Mean absolute error in units of the seasonal naive forecast's within the history."""
    return float(np.mean(np.abs(truth - forecast)) / np.mean(np.abs(history[season:] - history[:-season])))


def naive2(history: np.ndarray, horizon: int, season: int) -> np.ndarray:
    """The last value, seasonally adjusted where a test on the autocorrelation (90 %) finds a season."""
    if not _is_seasonal(history, season):
        return np.full(horizon, history[-1])
    factors = _seasonal_factors(history, season)
    ahead = (len(history) + np.arange(horizon)) % season
    return np.asarray(history[-1] / factors[(len(history) - 1) % season] * factors[ahead])


def owa(scores: dict[str, float]) -> float:
    """Overall weighted average: the mean of sMAPE and MASE, each over that of Naive2."""
    return float(np.mean([scores[name] / PUBLISHED_NAIVE2[name] for name in PUBLISHED_NAIVE2]))


def averages(truths: np.ndarray, forecasts: np.ndarray, histories: list[np.ndarray], season: int) -> dict[str, float]:
    """Means over the series of ``smape`` and ``mase``, and their ``owa``."""
    pairs = list(zip(truths, forecasts, histories, strict=True))
    scores = {
        "smape": float(np.mean([smape(truth, forecast) for truth, forecast, _ in pairs])),
        "mase": float(np.mean([mase(*pair, season) for pair in pairs])),
    }
    return {**scores, "owa": owa(scores)}


def _is_seasonal(history: np.ndarray, season: int) -> bool:
    if len(history) < 3 * season:
        return False
    centred = history - history.mean()
    power = np.sum(centred**2)
    correlations = np.array([np.sum(centred[lag:] * centred[:-lag]) / power for lag in range(1, season + 1)])
    limit = 1.645 * np.sqrt((1 + 2 * np.sum(correlations[:-1] ** 2)) / len(history))
    return bool(abs(correlations[-1]) > limit)


def _seasonal_factors(history: np.ndarray, season: int) -> np.ndarray:
    """Factors of the classical multiplicative decomposition, 1 on average."""
    weights = np.ones(season + 1 - season % 2)
    if season % 2 == 0:
        weights[[0, -1]] = 0.5
    half = len(weights) // 2
    trend = np.full(len(history), np.nan)
    trend[half : len(history) - half] = np.convolve(history, weights / season, "valid")
    ratios = history / trend
    factors = np.array([np.nanmean(ratios[phase::season]) for phase in range(season)])
    return np.asarray(factors / factors.mean())


RESULTS = Path(__file__).parent / "results" / "accuracy.json"
ARCHIVE_RESULTS = RESULTS.with_name("archive.json")
PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
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
RECIPES = {
    "tuned": ["--cell", "lru", "--members", "8", "--set", "training.refit=true"],
    "defaults": ["--cell", "lru"],
    "auto": [],
}
FORECASTS = {
    "m4-hourly": ["--data", "m4-hourly"],
    "etth1": ["--data", "etth1", "--set", "data.channels_as_series=true"],
    "etth1-ot": ["--data", "etth1", "--set", "data.channels=OT"],
}
FORECAST_RECIPES = {
    "defaults": ["--cell", "lipschitz"],
    "auto": [],
}
GOALS = {
    **{"digits": 0.985, "ItalyPowerDemand": 0.965, "GunPoint": 0.980, "ECG200": 0.890, "Coffee": 0.970},
    **{"JapaneseVowels": 0.975, "BasicMotions": 0.990, "ECG5000": 0.942, "FordA": 0.943, "mean": 0.965},
}
"""Goals for the mean test accuracy."""
FORECAST_GOALS = {
    "m4-hourly": {"owa": 0.45},
    "etth1": {"mse": 0.365, "mae": 0.387},
    "etth1-ot": {"mse": 0.0541},
}

Row = dict[str, Any]


def problem_file(name: str) -> str:
    ending = PROBLEMS[name]
    root = Path(os.environ["STABLERNN_DATA"]) / "ucr-uea" / name
    return name if ending is None else str(root / f"{name}_TRAIN.{ending}")


def shown(words: list[str]) -> str:
    """The command as a user would type it, with the data folder as its variable."""
    folder = os.environ.get("STABLERNN_DATA", "")
    return "stablernn " + " ".join(word.replace(folder, "$STABLERNN_DATA") if folder else word for word in words)


def run_command(words: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """Run a command of stablernn in a folder; its document is on stdout."""
    command = [sys.executable, "-m", "stablernn_cli", *words, "--json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def trained(words: list[str], folder: str) -> Row:
    """Train by the command line; the summary."""
    done = run_command(words, folder)
    if done.returncode:
        raise SystemExit(f"{shown(words)}: {done.stderr}")
    return dict(json.loads(done.stdout))


def classify(job: Row) -> Row:
    recipe = RECIPES[job["recipe"]]
    if job["data"] in LARGE:
        recipe = ["4" if word == "8" else word for word in recipe]
    words = ["train", "--data", problem_file(job["data"]), *recipe, "--seed", str(job["seed"])]
    with tempfile.TemporaryDirectory() as folder:
        summary = trained(words, folder)
    test = summary["metrics"]["test"]
    figures = {"accuracy": test["accuracy"], "ridge": test["ridge"]["accuracy"]}
    return {**job, **figures, **_facts(words, summary)}


def forecast(job: Row) -> Row:
    words = ["train", *FORECASTS[job["data"]], *FORECAST_RECIPES[job["recipe"]], "--seed", str(job["seed"])]
    with tempfile.TemporaryDirectory() as folder:
        summary = trained(words, folder)
        from stablernn.training import TorchPredictor, load_run, predict
        from stablernn.training.build import create_model

        loaded = load_run(Path(folder) / summary["run"])
        data: Any = loaded.load_data()
        windows = data.windows("test")
        mean = predict(loaded.predictor(), windows)["mean"][:, :, 0]
        # Before training a model with a linear skip is that skip: ridge regression on the scaled context.
        ridge = predict(TorchPredictor(create_model(loaded.config, data)), windows)["mean"][:, :, 0]
    truth = windows.truth(np.arange(len(windows)))[:, :, 0]
    score = _m4_scores if job["data"] == "m4-hourly" else _standardized
    scores = {**score(data, windows, truth, mean), "ridge": score(data, windows, truth, ridge)}
    return {**job, **scores, **_facts(words, summary)}


def _facts(words: list[str], summary: Row) -> Row:
    return {"command": shown(words), "parameters": summary["parameters"], "seconds": round(summary["seconds"], 1)}


def _m4_scores(data: Any, windows: Any, truth: np.ndarray, mean: np.ndarray) -> dict[str, float]:
    histories = [data.series[series].values[:end, 0].astype(np.float64) for series, end in windows.origins]
    return averages(truth.astype(np.float64), mean.astype(np.float64), histories, data.season)


def _standardized(data: Any, windows: Any, truth: np.ndarray, mean: np.ndarray) -> dict[str, float]:
    """Errors in units of each series' standard deviation in training, as the literature on these data gives them."""
    held_out = data.validation_steps + data.test_steps
    deviation = np.array([one.values[: len(one.values) - held_out, 0].std(dtype=np.float64) for one in data.series])
    error = (mean - truth) / deviation[[series for series, _ in windows.origins]][:, None]
    return {"mse": float(np.mean(error**2)), "mae": float(np.mean(np.abs(error)))}


def naive_rows() -> list[Row]:
    """The same measures of the naive forecasts."""
    from stablernn.data import load_data
    from stablernn.training.evaluation.metrics import seasonal_naive

    rows = []
    for name, options in (
        ("m4-hourly", {}),
        ("etth1", {"channels_as_series": True}),
        ("etth1-ot", {"channels": ["OT"]}),
    ):
        data: Any = load_data(name.removesuffix("-ot"), **options)
        windows = data.windows("test")
        truth = windows.truth(np.arange(len(windows)))[:, :, 0]
        mean = np.stack(
            [
                seasonal_naive(
                    data.series[series].values[:, :1], np.array([end]), season=data.season, horizon=data.horizon
                )[0, :, 0]
                for series, end in windows.origins
            ]
        )
        score = _m4_scores if name == "m4-hourly" else _standardized
        rows.append({"data": name, "method": "seasonal naive", **score(data, windows, truth, mean)})
        if name == "m4-hourly":
            histories = [data.series[s].values[:end, 0].astype(np.float64) for s, end in windows.origins]
            forecasts = np.stack([naive2(history, data.horizon, data.season) for history in histories])
            rows.append({"data": name, "method": "Naive2", **score(data, windows, truth, forecasts)})
    return rows


def build_aeon_environment(folder: str) -> Path:
    """Make an environment with aeon, which needs an older numpy, and return its interpreter."""
    venv.create(folder, with_pip=True)
    python = Path(folder) / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "aeon==1.6.0"], check=True)
    return python


def save_arrays(data: Any, path: Path) -> None:
    """Write what ``minirocket.py`` reads: the training and validation sequences together, and the test split."""
    fit = [np.concatenate([getattr(data.train, part), getattr(data.validation, part)]) for part in ("x", "y")]
    np.savez(path, x=fit[0], y=fit[1], test_x=data.test.x, test_y=data.test.y)


def run_minirocket(python: str | Path, arrays: Path, seed: int) -> Row:
    """Run MiniRocket and a ridge classifier by an interpreter with aeon; accuracy and seconds."""
    command = [python, Path(__file__).parent / "minirocket.py", arrays, str(seed)]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def minirocket_rows(names: list[str]) -> list[Row]:
    """MiniRocket and a ridge classifier, by aeon in an environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        python = build_aeon_environment(folder)
        rows = []
        for name in names:
            from stablernn.data import load_data

            data: Any = load_data(problem_file(name))
            arrays = Path(folder) / "data.npz"
            save_arrays(data, arrays)
            for seed in SEEDS:
                row = run_minirocket(python, arrays, seed)
                rows.append({"data": name, "recipe": "minirocket", "seed": seed, **row})
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--only", nargs="*", help="data sets to run again; the other rows are kept")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), help="recipes to run")
    parser.add_argument("--minirocket", action="store_true", help="run the peer, in an environment of its own")
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    arguments = parser.parse_args()
    if not arguments.page:
        run(arguments)
    sys.path.append(str(PAGE.parents[1] / "tools"))
    from generate_docs import accuracy as with_archives

    PAGE.write_text(with_archives(page(*map(_read, (RESULTS, ARCHIVE_RESULTS)))), encoding="utf-8")


def run(arguments: argparse.Namespace) -> None:
    wanted = arguments.only or [*PROBLEMS, *FORECASTS]
    jobs = [
        (classify, {"data": name, "recipe": recipe, "seed": seed})
        for name in PROBLEMS
        for recipe in arguments.recipes
        for seed in arguments.seeds
        # Those of the archives are run by archive.py.
        if name in wanted and (recipe != "auto" or PROBLEMS[name] is None)
    ]
    names = [name for name in FORECASTS if name in wanted]
    jobs += [
        (forecast, {"data": name, "recipe": recipe, "seed": seed})
        for name in names
        for recipe in FORECAST_RECIPES
        if recipe in arguments.recipes
        for seed in arguments.seeds
    ]

    def done(job: tuple[Any, Row]) -> Row:
        work, row = job
        found: Row = work(row)
        print({key: value for key, value in found.items() if key != "command"}, file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(done, jobs))
    if arguments.minirocket:
        rows += minirocket_rows([name for name in PROBLEMS if name in wanted])
    known = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    merged = {(row["data"], row.get("recipe", ""), row["seed"]): row for row in [*known, *rows]}
    RESULTS.parent.mkdir(exist_ok=True)
    content = {
        "conditions": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "torch": version("torch"),
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
        },
        "naive": naive_rows(),
        "runs": [merged[one] for one in sorted(merged)],
    }
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def archive_runs(archive: Row) -> list[Row]:
    """Return the runs of :mod:`archive` on the sets of this page as rows of it."""
    return [
        {**row["auto"], "data": row["data"], "recipe": "auto", "seed": row["seed"]}
        for row in archive["runs"]
        if row["data"] in PROBLEMS
    ]


def page(results: Row, archive: Row) -> str:
    """``docs/accuracy.md``."""
    runs, conditions = [*results["runs"], *archive_runs(archive)], results["conditions"]
    recipes = [name for name in (*RECIPES, "minirocket") if any(row.get("recipe") == name for row in runs)]
    seeds = ", ".join(map(str, sorted({row["seed"] for row in runs})))
    lines = [_HEAD.format(seeds=seeds, **conditions), "## Classification", "", _CLASSIFY, ""]
    lines += [*(f"- `{name}`: {_MEANT[name]}" for name in recipes), ""]
    lines += [
        "| data set | goal | " + " | ".join(recipes) + " | ridge | seconds, tuned |",
        "|---" * (len(recipes) + 4) + "|",
    ]
    columns: dict[str, list[float]] = {name: [] for name in (*recipes, "ridge")}
    for name in PROBLEMS:
        cells, seconds = [], "-"
        for recipe in recipes:
            found = [row for row in runs if row["data"] == name and row.get("recipe") == recipe]
            cells.append(_spread([row["accuracy"] for row in found]))
            columns[recipe] += [float(np.mean([row["accuracy"] for row in found]))] if found else []
            if recipe == "tuned" and found:
                seconds = f"{np.median([row['seconds'] for row in found]):.0f}"
                columns["ridge"].append(found[0]["ridge"])
        ridge = f"{columns['ridge'][-1]:.3f}" if seconds != "-" else "-"
        lines.append(f"| {name} | {GOALS[name]:.3f} | {' | '.join(cells)} | {ridge} | {seconds} |")
    whole = [f"{np.mean(values):.4f}" if len(values) == len(PROBLEMS) else "-" for values in columns.values()]
    lines += [f"| mean | {GOALS['mean']:.3f} | {' | '.join(whole)} | |", ""]
    # A goal has three decimals, and so has what is held against it.
    reached = dict(zip(PROBLEMS, columns.get("tuned", []), strict=False))
    short = [name for name, value in reached.items() if round(value, 3) < GOALS[name]]
    lines += [f"Below its goal: {', '.join(short)}. {_SHORT}", ""] if short else []
    lines += [_ARCHIVES, "## Forecasting", "", _FORECAST, ""]
    recipes = [
        name for name in FORECAST_RECIPES if any(row["data"] in FORECASTS and row["recipe"] == name for row in runs)
    ]
    lines += [
        f"| task | measure | goal | {' | '.join(recipes)} | linear skip alone | seasonal naive | "
        f"seconds, {recipes[0]} |",
        "|---" * (len(recipes) + 6) + "|",
    ]
    for name, goals in FORECAST_GOALS.items():
        found = [row for row in runs if row["data"] == name]
        if not found:
            continue
        naive = next(row for row in results["naive"] if row["data"] == name and row["method"] == "seasonal naive")
        seconds = f"{np.median([row['seconds'] for row in found if row['recipe'] == recipes[0]]):.0f}"
        for measure in ("smape", "mase", "owa") if name == "m4-hourly" else ("mse", "mae"):
            goal = f"{goals[measure]:.4g}" if measure in goals else ""
            here = [_spread([row[measure] for row in found if row["recipe"] == recipe], 4) for recipe in recipes]
            lines.append(
                f"| {name} | {measure} | {goal} | {' | '.join(here)} | {found[0]['ridge'][measure]:.4f} | "
                f"{naive[measure]:.4f} | {seconds} |"
            )
    lines += ["", "## Commands", "", f"One for each figure, with `--seed` {seeds}.", "", "```"]
    lines += sorted({row["command"].rpartition(" --seed")[0] for row in runs if "command" in row})
    return "\n".join([*lines, "```", ""])


def _read(path: Path) -> Row:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _spread(values: list[float], digits: int = 3) -> str:
    if not values:
        return "-"
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else mean


_HEAD = """# Accuracy

Written by `python benchmarks/accuracy.py --page` from `benchmarks/results/accuracy.json`, in which each run stands with
its command; do not edit. The [archives](#ucr-and-uea-archives) have results of their own. Means over the seeds {seeds},
where there are several with the smallest and the largest behind them. Seconds are those of one run on one thread, the
median over seeds. {cores} cores, {machine}, torch {torch}, Python {python}, {date}; other work ran on the machine.
"""
_CLASSIFY = (
    "Test accuracy on the published splits; `digits` on the bundled one. `ridge`: a ridge classifier on the raw values."
)
_MEANT = {
    "tuned": "an ensemble of eight `lru`, of four for `digits` and `FordA`, trained on all training data.",
    "defaults": "`lru` without any option.",
    "auto": "no cell named: chosen and trained within two minutes ([choosing.md](choosing.md)).",
    "minirocket": "MiniRocket and a ridge classifier, by aeon.",
}
_SHORT = "The reason has not been found."
_ARCHIVES = """## UCR and UEA archives

<!-- archive -->
<!-- /archive -->
"""
_FORECAST = """`m4-hourly`: 414 series, horizon 48, sMAPE, MASE and their average over those of Naive2, as the
competition defines them. `etth1`: seven channels, each a series of one model, `etth1-ot`: the last of them alone;
horizon 96, context 336, all windows of the test rows, errors of values standardized by the training rows.
`defaults` is `lipschitz` without any option, which is trained certified; `auto` names no cell, and chooses and trains
within two minutes ([choosing.md](choosing.md)). Layers that do not beat the linear skip on the validation rows are left
out ([forecasting.md](forecasting.md)), and the skip alone is the model then."""


if __name__ == "__main__":
    main()
