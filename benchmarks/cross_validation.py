"""Cross-validation of settings on training files alone, by which defaults and recipes are chosen.

    STABLERNN_DATA=... python benchmarks/cross_validation.py convolutions --jobs 2

trains the settings of one comparison on four of five stratified folds of each data set, for each seed, and scores them
on the fifth; series end earlier and earlier instead. It prints the table of that comparison and keeps all scores in
``benchmarks/results/cross_validation.json``, from which ``--table`` prints it again. Test splits are not read. Scores
that the file has are not measured again, so that an interrupted comparison goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from accuracy import PROBLEMS, problem_file
from certified import FORECASTS
from compared_settings import COMPARISONS, Comparison, Settings
from held_out import HeldOut, average_scores, held_out

from stablernn.data.load import read_sequences
from stablernn.errors import StableRNNError
from stablernn.training.loop.device import code_commit
from stablernn.training.search.candidates import SMALL
from stablernn.training.search.trial import Trial, load_all, resample, run_trial
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate

RESULTS = Path(__file__).parent / "results" / "cross_validation.json"
SERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "daily-min-temperatures": ("univariate/daily-min-temperatures.csv", {"data.target": ["Temp"], "task.horizon": 7}),
    "ETTh1": ("ETT-small/ETTh1.csv", {"data.target": ["OT"], "task.horizon": 24}),
    "ETTm1": ("ETT-small/ETTm1.csv.gz", {"data.channels_as_series": True, "task.horizon": 24}),
}
"""Files in the folder ``forecasting`` of the data, and what they are read with."""
Array = npt.NDArray[Any]
Row = dict[str, Any]


def _differences(x: Array) -> Array:
    return np.diff(x, axis=0, prepend=x[:1])


def _spectrum(x: Array) -> Array:
    """Return the logarithm of the power in five bands of the last 16 samples, ``(time, 5 * features)``."""
    padded = np.concatenate([np.repeat(x[:1], SPECTRUM_SAMPLES - 1, axis=0), x])
    windows = np.lib.stride_tricks.sliding_window_view(padded, SPECTRUM_SAMPLES, axis=0)
    power = np.abs(np.fft.rfft(windows * np.hanning(SPECTRUM_SAMPLES), axis=-1)[..., 1:6]) ** 2
    return np.log(power + 1e-3).reshape(len(x), -1)


SPECTRUM_SAMPLES = 16
CHANNELS: dict[str, Callable[[Array], Array]] = {
    "both directions": lambda x: x[::-1],
    "differences": _differences,
    "spectrum": _spectrum,
}
"""What is appended to the samples of a sequence, ``(time, features)``. Both directions need complete sequences."""


def append_channels(path: str, name: str, folder: str) -> str:
    """Write the training file with channels appended to its samples, and return the path of the copy."""
    sequences = read_sequences(Path(path))
    values = [np.concatenate([x, CHANNELS[name](x)], axis=1, dtype=np.float32) for x in sequences.values]
    lengths = np.array([len(x) for x in values])
    padded = np.zeros((len(values), lengths.max(), values[0].shape[1]), dtype=np.float32)
    for row, x in zip(padded, values, strict=True):
        row[: len(x)] = x
    copy = Path(folder) / "channels.npz"
    np.savez(copy, x=padded, y=np.array(sequences.labels), lengths=lengths)
    return str(copy)


def source(name: str) -> Settings:
    """Return the settings of a data set."""
    if name in PROBLEMS:
        return {"data.source": problem_file(name)}
    if name in SERIES:
        file, settings = SERIES[name]
        return {"data.source": str(Path(os.environ["STABLERNN_DATA"]) / "forecasting" / file), **settings}
    if name not in FORECASTS:
        (path,) = (Path(os.environ["STABLERNN_DATA"]) / "ucr-uea" / name).glob(f"{name}_TRAIN.*")
        return {"data.source": str(path)}
    words = FORECASTS[name]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    return {"data.source": words[1], **{key: value.split(",") for key, value in settings.items()}}


def settings_of(comparison: str, data: str, variant: str, seed: int, folder: str) -> Config:
    """Return the settings of a training; a copy of the data with channels appended is written to the folder."""
    chosen = COMPARISONS[comparison]
    settings = {**source(data), **chosen.common, **chosen.variants[variant], "training.seed": seed}
    channels = settings.pop("channels", None)
    for key in ("share", "times"):
        settings.pop(key, None)
    if channels is not None:
        settings["data.source"] = append_channels(settings["data.source"], channels, folder)
    tree: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, name = key.split(".", 1)
        tree.setdefault(section, {})[name] = value
    config = validate(tree)
    if chosen.refits_small:
        loaded = load_all(config)
        if len(loaded.train) + len(loaded.validation) < SMALL:
            config = config.model_copy(update={"training": config.training.model_copy(update={"refit": True})})
    return config


def count_parts(comparison: str, data: str) -> int:
    """Return how many parts there are: short series end earlier less often."""
    config = settings_of(comparison, data, next(iter(COMPARISONS[comparison].variants)), 0, "")
    return len(resample(load_all(config), COMPARISONS[comparison].parts, seed=0, refit=config.training.refit))


def score(comparison: str, data: str, variant: str, seed: int, part: int) -> list[Row]:
    """Train on all folds but one, and return the row of the score on that one."""
    chosen = COMPARISONS[comparison]
    with tempfile.TemporaryDirectory() as folder:
        config, began = settings_of(comparison, data, variant, seed, folder), time.process_time()
        result = run_trial(Trial(0, config, part, chosen.parts, chosen.variants[variant].get("share", 1.0)))
    row = {"comparison": comparison, "data": data, "variant": variant, "seed": seed, "part": part}
    return [
        {
            **row,
            "metric": result.metric,
            "score": result.score,
            "log_loss": result.tie,
            "seconds": round(result.seconds, 1),
            "cpu_seconds": round(time.process_time() - began, 2),
            "reason": result.reason,
            "commit": code_commit(),
        }
    ]


def score_ensembles(comparison: str, data: str) -> list[Row]:
    """Train each network of a comparison once on all folds but one, and return the rows of its ensembles."""
    chosen = COMPARISONS[comparison]
    folds, seed = range(count_parts(comparison, data)), chosen.seeds[0]
    networks: dict[tuple[str, int], list[HeldOut]] = {}
    for variant, weights_seed in sorted({network for ensemble in chosen.ensembles.values() for network in ensemble}):
        with tempfile.TemporaryDirectory() as folder:
            config = settings_of(comparison, data, variant, seed, folder)
            times = chosen.variants[variant].get("times", 1)
            answers = [held_out(config, weights_seed, part, len(folds), times=times) for part in folds]
        networks[variant, weights_seed] = answers
    return ensemble_rows(comparison, data, networks)


def ensemble_rows(comparison: str, data: str, networks: Mapping[tuple[str, int], Sequence[HeldOut]]) -> list[Row]:
    """Return a row for each ensemble and fold, by the answers of their networks."""
    chosen, commit = COMPARISONS[comparison], code_commit()
    rows: list[Row] = []
    for name, members in chosen.ensembles.items():
        answers = [networks[member] for member in members]
        for part, (accuracy, log_loss) in enumerate(average_scores(answers)):
            row = {"comparison": comparison, "data": data, "variant": name, "seed": chosen.seeds[0], "part": part}
            cpu_seconds = round(sum(member[part].cpu_seconds for member in answers), 2)
            figures = {"metric": "accuracy", "score": accuracy, "log_loss": log_loss, "cpu_seconds": cpu_seconds}
            rows.append({**row, **figures, "commit": commit})
    return rows


def table(comparison: str, rows: list[Row]) -> str:
    """Return a Markdown table: the mean score of the first variant, and the mean differences of the others from it.

    Differences are of the same folds, which their standard error is of; those of errors are relative, in percent.
    Seconds are processor time of a training with its scoring, a mean for each variant. Ensembles have the means over
    the data sets as well, with the standard error over these.
    """
    chosen = COMPARISONS[comparison]
    first, *others = chosen.names
    titles = [f"{name}, difference" for name in others]
    lines = [f"| data | metric | {first} | {' | '.join(titles)} |", "|---" * (3 + len(others)) + "|"]
    for data in chosen.data:
        for figure in ("score", "log_loss"):
            scores = {
                name: {
                    (row["seed"], row["part"]): row[figure]
                    for row in rows
                    if (row["data"], row["variant"]) == (data, name) and row[figure] is not None
                }
                for name in chosen.names
            }
            metrics = {row["metric"] for row in rows if row["data"] == data and row["metric"]}
            if not scores[first]:
                continue
            is_relative = figure == "score" and "accuracy" not in metrics
            cells = [f"{np.mean([*scores[first].values()]):.3f}"]
            for name in others:
                pairs = [(scores[name][key], scores[first][key]) for key in scores[name].keys() & scores[first].keys()]
                cells.append(_difference(pairs, is_relative=is_relative))
            label = metrics.pop() if figure == "score" else "log loss"
            lines.append(f"| {data} | {label} | {' | '.join(cells)} |")
        seconds = {
            name: [row.get("cpu_seconds") for row in rows if (row["data"], row["variant"]) == (data, name)]
            for name in chosen.names
        }
        if all(values and None not in values for values in seconds.values()):
            lines.append(f"| {data} | CPU s | {' | '.join(f'{np.mean(values):.1f}' for values in seconds.values())} |")
    return "\n".join([*lines, *(_means(chosen, rows) if chosen.ensembles else [])])


def _means(chosen: Comparison, rows: list[Row]) -> list[str]:
    """Return the rows of a table that have the means over all data sets."""
    first, *others = chosen.names
    lines = []
    for figure, label in (("score", "accuracy"), ("log_loss", "log loss")):
        means = {
            name: [
                float(np.mean([row[figure] for row in rows if (row["data"], row["variant"]) == (data, name)]))
                for data in chosen.data
            ]
            for name in chosen.names
        }
        cells = [_difference([*zip(means[name], means[first], strict=True)], is_relative=False) for name in others]
        lines.append(f"| mean | {label} | {np.mean(means[first]):.3f} | {' | '.join(cells)} |")
    return lines


def _difference(pairs: list[tuple[float, float]], *, is_relative: bool) -> str:
    if len(pairs) < 2:
        return "-"
    scores, references = np.array(pairs).T
    differences, form = scores - references, ".3f"
    if is_relative:
        differences, form = 100 * differences / references, ".1f"
    error = differences.std(ddof=1) / len(differences) ** 0.5
    return f"{differences.mean():+{form}} ± {error:{form}}{' %' if is_relative else ''}"


def jobs(comparison: str) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield the trainings of a comparison: whole seeds and parts first, so that a stopped one compares all variants."""
    chosen = COMPARISONS[comparison]
    for seed, data in product(chosen.seeds, chosen.data):
        for part, variant in product(range(count_parts(comparison, data)), chosen.variants):
            yield comparison, data, variant, seed, part


def pending(comparison: str, rows: list[Row]) -> list[tuple[Callable[..., list[Row]], tuple[Any, ...]]]:
    """Return the calls whose rows are missing: one for each training, or for each data set of ensembles."""
    chosen, known = COMPARISONS[comparison], {_key(row) for row in rows}
    if not chosen.ensembles:
        return [(score, job) for job in jobs(comparison) if job not in known]
    names = {data: {key[2] for key in known if key[:2] == (comparison, data)} for data in chosen.data}
    return [(score_ensembles, (comparison, data)) for data in chosen.data if not names[data].issuperset(chosen.names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparison", choices=list(COMPARISONS))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, one thread each")
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    arguments = parser.parse_args()
    rows: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    if not arguments.table:
        calls = pending(arguments.comparison, rows)
        # Not a fork, in which the threads of polars that read the data before would be missing.
        with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
            try:
                for future in as_completed([pool.submit(function, *words) for function, words in calls]):
                    rows = merged(rows, future.result())
                    print(*future.result(), sep="\n", flush=True)
                    content = json.dumps(sorted(rows, key=_key), indent=1)
                    RESULTS.write_text(content + "\n", encoding="utf-8")
            except StableRNNError as error:
                raise SystemExit(str(error)) from None
    print(table(arguments.comparison, [row for row in rows if row["comparison"] == arguments.comparison]))


def merged(rows: list[Row], measured: list[Row]) -> list[Row]:
    """Return rows with those that were measured in the place of earlier ones."""
    return [*{_key(row): row for row in [*rows, *measured]}.values()]


def _key(row: Row) -> tuple[str, str, str, int, int]:
    return row["comparison"], row["data"], row["variant"], row["seed"], row["part"]


if __name__ == "__main__":
    main()
