"""Accuracy of ``train`` with default settings beside other methods, on forecasts and on classification problems.

    STABLERNN_DATA=... python benchmarks/accuracy.py --budgets 10s 2m --seeds 0 1 2 \
        --statsforecast PYTHON --mlforecast PYTHON --aeon PYTHON

Each peer runs on the same origins or splits, right after ``train`` on the same set, by an interpreter that has its
library; without one it is left out. Rows are stored in ``benchmarks/results/accuracy.json`` one by one, and a run
continues after a stop. ``--page`` prints the tables.
"""

from __future__ import annotations

import csv
import gzip
import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import Row, data_folder, log, measure_use, read_results, shown, stablernn, stored, table, write_results

STORED = stored("accuracy")


class Series(NamedTuple):
    """A forecasting problem: what ``train`` takes, and seasons in steps; that of MASE is the first."""

    source: str
    seasons: tuple[int, ...]
    options: tuple[str, ...] = ()


_EACH = ("data.channels_as_series=true",)
FORECASTS = {
    **{name: Series(f"forecasting/small/{name}.csv", (4,)) for name in ("ausbeer", "austres", "woolyrnq")},
    "lynx": Series("forecasting/small/lynx.csv", (1,)),
    "stock": Series("forecasting/small/stock.csv", (1, 5)),
    "airline": Series("forecasting/univariate/airline-passengers.csv", (12,)),
    "sunspots": Series("forecasting/univariate/monthly-sunspots.csv", (12,)),
    "temperatures": Series("forecasting/univariate/daily-min-temperatures.csv", (7, 365)),
    "exchange": Series("forecasting/exchange_rate/exchange_rate.csv.gz", (1, 7), _EACH),
    "pm25": Series("forecasting/beijing_pm25/pollution.csv.gz", (24, 168)),
    "etth1": Series("etth1", (24, 168), _EACH),
    "etth1-ot": Series("etth1", (24, 168), ("data.channels=OT",)),
    "m4-hourly": Series("m4-hourly", (24, 168)),
}
CLASSES = {
    "digits": "digits",
    **{name: f"ucr-uea/{name}/{name}_TRAIN.ts" for name in ("ArrowHead", "BasicMotions", "GunPoint")},
    **{name: f"ucr-uea/{name}/{name}_TRAIN.ts" for name in ("ItalyPowerDemand", "JapaneseVowels")},
    **{name: f"ucr-uea/{name}/{name}_TRAIN.tsv" for name in ("Adiac", "Coffee", "ECG200", "ECG5000")},
    **{name: f"ucr-uea/{name}/{name}_TRAIN.tsv.gz" for name in ("Crop", "FordA")},
}
PEERS = {
    "statsforecast": ("AutoETS", "AutoTheta"),
    "mlforecast": ("LightGBM",),
    "aeon": ("MiniRocket", "MultiRocket-Hydra", "1-NN DTW"),
}
"""Methods by library; those of aeon classify."""
DRAWN = ("MiniRocket", "MultiRocket-Hydra")
"""Peers that draw random numbers, and are run with each seed."""
PEER_SECONDS = 900
"""Processor seconds after which a peer is stopped."""
FITTED_VALUES = 1000
"""Last values of a series before the first origin that AutoETS and AutoTheta choose their constants by."""
ORIGINS = 20
"""Origins of a series, spread evenly over the test split."""
PARTS = 20
"""Groups of neighboring origins, or of series, whose mean errors are stored and give standard errors."""
DRAW = 0.01
"""Largest relative difference of MASE that is a draw."""
PUBLISHED_NAIVE2 = {"smape": 18.383, "mase": 2.395}
"""Averages of Naive2 over the 414 hourly series, as the competition gives them."""
NAIVE = ("naive", "drift", "seasonal naive")


# What is run on a set.


def problem_file(name: str) -> str:
    """Return what ``--data`` takes for a set of classes."""
    return CLASSES[name] if name == "digits" else str(data_folder() / CLASSES[name])


def source(name: str, folder: Path) -> str:
    """Return what ``--data`` takes for a set; the file without a column of times is rewritten."""
    if name in CLASSES:
        return problem_file(name)
    given = FORECASTS[name].source
    if name == "pm25":
        with gzip.open(data_folder() / given, "rt") as stream:
            times = "{year}-{month:0>2}-{day:0>2} {hour:0>2}:00"
            lines = [f"{times.format(**row)},{row['pm2.5'].replace('NA', '')}" for row in csv.DictReader(stream)]
        (folder / "pm25.csv").write_text("\n".join(["ds,y", *lines]))
        return str(folder / "pm25.csv")
    return str(data_folder() / given) if "/" in given else given


def train(name: str, budget: str, seed: int, folder: Path) -> Row:
    """Run ``train`` as a user would, and score what it wrote."""
    options = FORECASTS[name].options if name in FORECASTS else ()
    words = ["train", "--data", source(name, folder), "--budget", budget, "--seed", str(seed), "--run-dir", "run"]
    words += [word for option in options for word in ("--set", option)]
    use = measure_use(stablernn(*words), folder)
    summary, env = read_results(folder / "run" / "summary.json"), read_results(folder / "run" / "env.json")
    choice = read_results(folder / "run" / "choice.json")
    if name in CLASSES:
        scores: Row = {"accuracy": summary["metrics"]["test"]["accuracy"]}
    else:
        scores = score_run(name, folder)
    return {
        "command": shown(words).replace(str(folder), "."),
        "commit": env["commit"],
        **scores,
        "chosen": choice["chosen"],
        "reason": choice["reason"],
        "folds": {one["name"]: one["mean"] for one in choice["recipes"] if one["mean"] is not None},
        "fold_baselines": {key: fmean(values) for key, values in choice.get("baselines", {}).items()},
        "proof": (summary.get("certificate") or {"kind": "none"})["kind"],
        **use,
    }


def score_run(name: str, folder: Path) -> Row:
    """Return the errors of a run at the origins of its set."""
    from stablernn.training import load_run, predict

    problem = read_problem(folder / "problem.npz")
    loaded = load_run(folder / "run")
    data: Any = loaded.load_data()
    windows = data.windows("test")
    rows = {origin: row for row, origin in enumerate(windows.origins)}
    chosen = [rows[series, end] for series, end in problem.origins]
    return score(name, problem, predict(loaded.predictor(), windows)["mean"][chosen, :, 0])


class Problem(NamedTuple):
    """Series with missing values filled, ``(series, end)`` of the origins, and the first end of each series."""

    series: list[np.ndarray]
    truth: np.ndarray
    origins: list[tuple[int, int]]
    first: list[int]
    seasons: list[int]

    @property
    def horizon(self) -> int:
        """Steps of a forecast."""
        return int(self.truth.shape[1])


def write_problem(name: str, folder: Path) -> None:
    """Write the arrays of a set for peers, which know nothing of stablernn."""
    from stablernn.compare.baselines import cases, fill_forward
    from stablernn.data import load_data

    path = folder / "problem.npz"
    if name in CLASSES:
        data: Any = load_data(source(name, folder))
        fitted, test = data.train.merged(data.validation), data.split("test")
        longest = int(max(fitted.lengths.max(), test.lengths.max()))
        arrays = {"x": cases(fitted.gather(np.arange(len(fitted))), longest), "y": fitted.y, "truth": test.y}
        np.savez(path, **arrays, test=cases(test.gather(np.arange(len(test))), longest))
        return
    given = dict(option.removeprefix("data.").split("=") for option in FORECASTS[name].options)
    kinds: Row = {"channels_as_series": True} if "channels_as_series" in given else {}
    kinds |= {"channels": [given["channels"]]} if "channels" in given else {}
    data = load_data(source(name, folder), **kinds)
    windows = data.windows("test")
    rows: list[int] = []
    owners = np.array([series for series, _ in windows.origins])
    for number in range(len(data.series)):
        own = np.flatnonzero(owners == number)
        rows += own[np.unique(np.linspace(0, len(own) - 1, ORIGINS).round().astype(int))].tolist()
    np.savez(
        path,
        values=np.concatenate(
            [fill_forward(one.values[:, data.target_indices[0]].astype(float)) for one in data.series]
        ),
        lengths=[len(one.values) for one in data.series],
        truth=windows.truth(np.array(rows))[:, :, 0],
        origins=np.array(windows.origins)[rows],
        first=[min(end for series, end in windows.origins if series == number) for number in range(len(data.series))],
        seasons=FORECASTS[name].seasons,
    )


def read_problem(path: Path) -> Problem:
    """Read what :func:`write_problem` wrote of forecasts."""
    found = np.load(path)
    series = np.split(found["values"], np.cumsum(found["lengths"])[:-1])
    origins = [(int(number), int(end)) for number, end in found["origins"]]
    return Problem(series, found["truth"], origins, found["first"].tolist(), found["seasons"].tolist())


def score(name: str, problem: Problem, mean: np.ndarray) -> Row:
    """Return the MASE of forecasts, ``(origins, horizon)``, by parts of the origins too, and the OWA of M4.

    The scale is the mean seasonal difference of each series before its first origin.
    """
    season = problem.seasons[0]
    known = [values[:end] for values, end in zip(problem.series, problem.first, strict=True)]
    scales = np.array([np.abs(one[season:] - one[:-season]).mean() for one in known])
    error = np.abs(mean.astype(float) - problem.truth)
    owners = np.array([number for number, _ in problem.origins])
    scaled = np.nanmean(error, axis=1) / scales[owners]
    # Neighbors in time share errors, and belong to one part.
    order = np.argsort([end for _, end in problem.origins], kind="stable")
    parts = [float(np.nanmean(part)) for part in np.array_split(scaled[order], min(PARTS, len(scaled)))]
    row: Row = {"mase": float(np.nanmean(scaled)), "parts": harness.rounded(parts)}
    if name == "m4-hourly":
        smape = np.mean(200 * error / (np.abs(problem.truth) + np.abs(mean)))
        row["owa"] = float(np.mean([smape / PUBLISHED_NAIVE2["smape"], row["mase"] / PUBLISHED_NAIVE2["mase"]]))
    return row


def naive(name: str, problem: Problem, method: str) -> Row:
    """Score a baseline; the seasonal one with the season that is best on these origins, which favors it."""
    steps = np.arange(1, problem.horizon + 1)
    histories = [problem.series[number][:end] for number, end in problem.origins]
    if method == "drift":
        return score(
            name, problem, np.array([one[-1] + steps * (one[-1] - one[0]) / (len(one) - 1) for one in histories])
        )
    seasons = [1] if method == "naive" else problem.seasons
    means = [np.array([one[-season:][(steps - 1) % season] for one in histories]) for season in seasons]
    return min((score(name, problem, mean) for mean in means), key=lambda row: row["mase"])


def run_peer(name: str, method: str, seed: int, interpreter: str, folder: Path) -> Row:
    """Run a peer by its interpreter on the problem of the folder, and score it."""
    use = measure_use([interpreter, __file__, "--peer", method, str(seed), str(folder)], folder)
    answers = np.load(folder / "answers.npy")
    if name in CLASSES:
        return {"accuracy": float(np.mean(answers == np.load(folder / "problem.npz")["truth"])), **use}
    return {**score(name, read_problem(folder / "problem.npz"), answers), **use}


# Peers, in environments of their own.


def answer_as_peer(method: str, seed: int, folder: Path) -> None:
    """Fit a peer to the problem of a folder, and write its forecasts or classes."""
    resource.setrlimit(resource.RLIMIT_CPU, (PEER_SECONDS, PEER_SECONDS))
    path = folder / "problem.npz"
    if method in PEERS["aeon"]:
        answers = _classes(method, seed, np.load(path))
    elif method in PEERS["mlforecast"]:
        answers = _boosted(read_problem(path), seed)
    else:
        answers = _smoothed(method, read_problem(path))
    np.save(folder / "answers.npy", answers)


def _smoothed(method: str, problem: Problem) -> np.ndarray:
    """Return forecasts of models chosen once a series before its first origin, whose states go on with its values."""
    from statsforecast import models  # pyright: ignore[reportMissingImports]

    means: dict[tuple[int, int], np.ndarray] = {}
    for number, (values, first) in enumerate(zip(problem.series, problem.first, strict=True)):
        begin = max(0, first - FITTED_VALUES)
        model = getattr(models, method)(season_length=problem.seasons[0])
        model.fit(values[begin:first])
        for end in (end for owner, end in problem.origins if owner == number):
            means[number, end] = model.forward(values[begin:end], h=problem.horizon)["mean"]
    return np.array([means[origin] for origin in problem.origins])


def _boosted(problem: Problem, seed: int) -> np.ndarray:
    """Return forecasts of one model of all series on two seasons of lags, step by step."""
    import pandas as pd  # pyright: ignore[reportMissingImports]
    from lightgbm import LGBMRegressor  # pyright: ignore[reportMissingImports]
    from mlforecast import MLForecast  # pyright: ignore[reportMissingImports]
    from mlforecast.target_transforms import LocalStandardScaler  # pyright: ignore[reportMissingImports]

    season, shortest = problem.seasons[0], min(problem.first)
    lags = {*range(1, max(2 * season, 7) + 1), *(lag for lag in problem.seasons if 3 * lag < shortest)}
    learner = LGBMRegressor(n_jobs=1, random_state=seed, verbose=-1)
    model = MLForecast({"mean": learner}, freq=1, lags=sorted(lags), target_transforms=[LocalStandardScaler()])

    def frame(ends: dict[int, int]) -> Any:
        parts = [{"unique_id": key, "ds": np.arange(end), "y": problem.series[key][:end]} for key, end in ends.items()]
        return pd.concat(map(pd.DataFrame, parts), ignore_index=True)

    model.fit(frame(dict(enumerate(problem.first))), static_features=[])
    means: dict[tuple[int, int], np.ndarray] = {}
    owned: dict[int, list[int]] = {}
    for number, end in problem.origins:
        owned.setdefault(number, []).append(end)
    for place in range(max(map(len, owned.values()))):
        ends = {number: own[place] for number, own in owned.items() if place < len(own)}
        found = model.predict(problem.horizon, new_df=frame(ends))
        for number, group in found.groupby("unique_id"):
            means[int(number), ends[int(number)]] = group["mean"].to_numpy()
    return np.array([means[origin] for origin in problem.origins])


def _classes(method: str, seed: int, arrays: Any) -> np.ndarray:
    from aeon.classification.convolution_based import (  # pyright: ignore[reportMissingImports]
        MiniRocketClassifier,
        MultiRocketHydraClassifier,
    )
    from aeon.classification.distance_based import (  # pyright: ignore[reportMissingImports]
        KNeighborsTimeSeriesClassifier,
    )

    makers: dict[str, Callable[[], Any]] = {
        "MiniRocket": lambda: MiniRocketClassifier(random_state=seed, n_jobs=1),
        "MultiRocket-Hydra": lambda: MultiRocketHydraClassifier(random_state=seed, n_jobs=1),
        "1-NN DTW": lambda: KNeighborsTimeSeriesClassifier(
            n_neighbors=1, distance="dtw", distance_params={"window": 0.1}, n_jobs=1
        ),
    }
    return np.asarray(makers[method]().fit(arrays["x"], arrays["y"]).predict(arrays["test"]))


# The page.


def tables(results: Row) -> dict[str, str]:
    """Return the tables of benchmarks/accuracy.md."""
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in results["runs"]:
        runs.setdefault((row["data"], row["method"]), []).append(row)
    for name in FORECASTS:
        runs[name, "best baseline"] = runs.get((name, best_baseline(runs, name)), [])
    about = "{cores} cores, {machine}, Python {python}, {date}, commit {commit}.".format(**results["conditions"])
    own = sorted({method for _, method in runs if method.startswith("train")})
    return {
        "conditions": about,
        "forecasts": _metric_table(
            runs, FORECASTS, "mase", ["best baseline", *PEERS["statsforecast"], *PEERS["mlforecast"], *own]
        ),
        "forecast goals": _goals(runs, own),
        "classes": _metric_table(runs, CLASSES, "accuracy", [*PEERS["aeon"], *own]),
        "class goals": _class_goals(runs, own),
        "processor seconds": table(("method", "sets", "median", "most"), _seconds(runs)),
        "choices": table(("set", "chosen", "proved", "folds"), _choices(runs, own)),
        "failures": "\n".join(
            f"- {row['data']}, {row['method']}, seed {row['seed']}: {row['failed']}"
            for row in results["runs"]
            if "failed" in row
        ),
    }


Runs = dict[tuple[str, str], list[Row]]


def mean(runs: Runs, data: str, method: str, metric: str) -> float | None:
    """Return the mean of a metric over the seeds; None where no run has it."""
    values = [row[metric] for row in runs.get((data, method), []) if metric in row]
    return fmean(values) if values else None


def _metric_table(runs: Runs, names: Collection[str], metric: str, methods: Sequence[str]) -> str:
    cells = {(name, method): mean(runs, name, method, metric) for name, method in product(names, methods)}
    measured = [name for name in names if any(cells[name, method] is not None for method in methods)]
    lines = [[name, *(_shown(cells[name, method]) for method in methods)] for name in measured]
    if metric == "accuracy":
        complete = [name for name in names if all(cells[name, method] is not None for method in methods)]
        whole = [fmean(cells[name, method] or 0 for name in complete) if complete else None for method in methods]
        lines.append([f"mean of {len(complete)}", *map(_shown, whole)])
    return table(("set", *methods), lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _goals(runs: Runs, own: Sequence[str]) -> str:
    lines: list[list[object]] = []
    for method in own:
        ratios: dict[str, dict[str, float]] = {}
        for other in (*PEERS["statsforecast"], *PEERS["mlforecast"], "best baseline"):
            found = {}
            for name in FORECASTS:
                reference = mean(runs, name, other, "mase")
                value = mean(runs, name, method, "mase")
                if value is not None and reference is not None:
                    found[name] = value / reference
            ratios[other] = found
        for other, found in ratios.items():
            outcomes = Counter(
                "draw" if abs(ratio - 1) <= DRAW else "win" if ratio < 1 else "loss" for ratio in found.values()
            )
            middle = _shown(geometric_mean(found.values()) if found else None)
            lines.append([method, other, middle, *(outcomes[one] for one in ("win", "draw", "loss"))])
        owa = _shown(mean(runs, "m4-hourly", method, "owa"))
        lines.append([method, "M4 Hourly, overall weighted average, goal .43", owa, "", "", ""])
        worse = ", ".join(name for name in FORECASTS if is_worse(runs, name, method)) or "none"
        lines.append([method, f"worse than the best baseline by 3 % and two standard errors: {worse}", "", "", "", ""])
    return table(("method", "beside", "geometric mean of MASE", "wins", "draws", "losses"), lines)


def best_baseline(runs: Runs, name: str) -> str:
    """Return the naive method with the least error on a set."""
    return min(NAIVE, key=lambda method: mean(runs, name, method, "mase") or np.inf)


def is_worse(runs: Runs, name: str, method: str) -> bool:
    """Return True where a method is worse than the best baseline by more than 3 % and two standard errors."""
    reference = runs[name, "best baseline"]
    rows = [row for row in runs.get((name, method), []) if "parts" in row]
    if not reference or not rows:
        return False
    difference = np.mean([row["parts"] for row in rows], axis=0) - reference[0]["parts"]
    least = 0.03 * reference[0]["mase"]
    return bool(difference.mean() > max(least, 2 * difference.std(ddof=1) / len(difference) ** 0.5))


def _class_goals(runs: Runs, own: Sequence[str]) -> str:
    lines = []
    for method, other in product(own, PEERS["aeon"]):
        differences: dict[str, float] = {}
        for name in CLASSES:
            own_value, reference = (mean(runs, name, each, "accuracy") for each in (method, other))
            if own_value is not None and reference is not None:
                differences[name] = own_value - reference
        if not differences:
            continue
        outcomes = Counter("draw" if abs(one) < 1e-3 else "win" if one > 0 else "loss" for one in differences.values())
        worst = min(differences, key=lambda name: differences[name])
        counts = [outcomes[one] for one in ("win", "draw", "loss")]
        lines.append(
            [method, other, f"{fmean(differences.values()):+.4f}", *counts, f"{worst} {differences[worst]:+.3f}"]
        )
    return table(("method", "beside", "mean difference", "wins", "draws", "losses", "worst set"), lines)


def _seconds(runs: Runs) -> Iterator[list[object]]:
    for method in sorted({method for _, method in runs} - {*NAIVE, "best baseline"}):
        rows = [
            row for (_, each), found in runs.items() if each == method for row in found if "processor_seconds" in row
        ]
        if rows:
            seconds = [row["processor_seconds"] for row in rows]
            worst = max(rows, key=lambda row: row["processor_seconds"])
            most = f"{max(seconds):.0f} ({worst['data']})"
            yield [method, len({row["data"] for row in rows}), f"{np.median(seconds):.0f}", most]


def _choices(runs: Runs, own: Sequence[str]) -> Iterator[list[object]]:
    for name, method in product((*FORECASTS, *CLASSES), own):
        rows = [row for row in runs.get((name, method), []) if "chosen" in row]
        if rows:
            chosen = "; ".join(dict.fromkeys(row["chosen"] for row in rows))
            folds = ", ".join(
                f"{key} {value:.4g}" for key, value in (rows[0]["folds"] | rows[0]["fold_baselines"]).items()
            )
            yield [f"{name}, {method}", chosen, "; ".join(dict.fromkeys(row["proof"] for row in rows)), folds]


# The command.


def cells(arguments: Any) -> Iterator[tuple[str, int, str]]:
    """Yield the set, the seed and the method of each run in their order: set by set, seed by seed."""
    libraries = {library: getattr(arguments, library) for library in PEERS}
    for seed, name in product(arguments.seeds, [*FORECASTS, *CLASSES]):
        if name not in (arguments.only or [name]):
            continue
        is_first = seed == arguments.seeds[0]
        methods = [*NAIVE] if name in FORECASTS and is_first else []
        methods += [f"train {budget}" for budget in arguments.budgets]
        for library, found in PEERS.items():
            if libraries[library] and (library == "aeon") == (name in CLASSES):
                methods += [method for method in found if is_first or method in DRAWN]
        yield from ((name, seed, method) for method in methods)


def measure(name: str, seed: int, method: str, interpreters: dict[str, str], folder: Path) -> Row:
    """Return the row of a run in a folder of its own; a failure is a result, with its reason."""
    try:
        write_problem(name, folder)
        if method.startswith("train"):
            return train(name, method.split()[1], seed, folder)
        if method in NAIVE:
            return naive(name, read_problem(folder / "problem.npz"), method)
        return run_peer(name, method, seed, interpreters[method], folder)
    except SystemExit as error:
        return {"failed": str(error).replace(str(folder), ".").strip().splitlines()[-1][-300:]}


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("--budgets", nargs="*", default=["10s", "2m"], help="budgets of train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", help="sets to run; default: all")
    for library, methods in PEERS.items():
        parser.add_argument(f"--{library}", metavar="PYTHON", help=f"run {', '.join(methods)} by this interpreter")
    parser.add_argument("--peer", nargs=3, help="what a peer's interpreter is given; not for users")
    arguments = parser.parse_args()
    if arguments.peer:
        method, seed, folder = arguments.peer
        answer_as_peer(method, int(seed), Path(folder))
        return
    runs = read_results(arguments.results, {"runs": []})["runs"]
    known = {(row["data"], row["seed"], row["method"]) for row in runs}
    interpreters = {method: getattr(arguments, library) for library, found in PEERS.items() for method in found}
    conditions = harness.conditions("torch", placeholders=dict.fromkeys(PEERS, "PYTHON"))
    for name, seed, method in [] if arguments.page else cells(arguments):
        if (name, seed, method) in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = measure(name, seed, method, interpreters, Path(folder))
        runs.append({"data": name, "seed": seed, "method": method, **harness.rounded(found)})
        write_results(arguments.results, {"conditions": conditions, "runs": runs})
        log(
            {
                key: value
                for key, value in runs[-1].items()
                if key not in ("command", "parts", "folds", "fold_baselines")
            }
        )
    harness.print_tables(tables(read_results(arguments.results)))


if __name__ == "__main__":
    main()
