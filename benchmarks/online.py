"""Adaptive intervals and the test for drift on streams with shifts put in, beside the detectors of river.

    STABLERNN_DATA=... python benchmarks/online.py            # trains four models; some 15 minutes on one core
    STABLERNN_DATA=... python benchmarks/online.py --runs DIR # keeps the models in DIR and takes those that are there
    python benchmarks/online.py --page                        # prints the tables of the results

Needs ``pip install 'stablernn[bench]'``. Each stream is the test split of a dataset, or a simulated series, read one
reading at a time with the state carried on. Copies of it have a shift from some reading on, in units of the standard
deviation of the changes from one reading to the next in the training part: a higher or lower level, added noise, or a
trend up or down. All detectors get the same residuals, those that the test for drift computes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Row, data_folder, log, read_results, stored, table, write_results

from stablernn_runtime import adaptive_intervals
from stablernn_runtime.adaptive_intervals import AdaptiveIntervals
from stablernn_runtime.drift import DriftDetector
from stablernn_runtime.online_streams import block_length

Array = np.ndarray[Any, np.dtype[Any]]
Detect = Callable[[Array, Array, int], Array]

STORED = stored("online")
LONGEST_DELAY = 400
"""Readings after a shift within which an alarm counts as its detection."""
# A cell that contracts by a fifth a step, and so is proved to forget within some thirty readings.
TRAIN = ["--cell", "ren", "--set", "model.cell_options.contraction_rate=0.8", "--set", "model.patch_stride=1"]
TRAIN += ["--hidden-size", "16", "--max-steps", "200", "--seed", "0"]
DATASETS = {
    "simulated": ["--data", "simulated.csv", "--horizon", "12"],
    "co2": ["--data", "co2", "--horizon", "8", "--set", "data.test_steps=1560", "--set", "data.validation_steps=156"],
    "etth1": ["--data", "etth1", "--set", "data.channels=OT", "--horizon", "24"],
    "daily-min-temperatures": ["--data", "daily-min-temperatures.csv", "--horizon", "7"]
    + ["--set", "data.test_steps=2190", "--set", "data.validation_steps=365"],
}
ONSETS = (0.7, 0.75, 0.8, 0.85)
"""Shares of a stream after which a shift begins; the reference of the test is complete before."""
SHIFTS = ("level", "variance", "trend")
LEVEL, NOISE, TREND = 3.0, 2.0, 0.03
"""Shifts: of the level, the standard deviation of added noise, and a reading's rise of a trend."""
SIMULATED, LENGTH = 60, 3000
"""Streams of the simulated dataset without a shift, and their readings."""
LEVELS = [0.1, 0.5, 0.9]
STEP_SIZES = (0.02, 0.05, 0.1, 0.2)
SHOWN_STEP_SIZE = 0.1
"""Step size of the served intervals."""
RATES = (1e-4, 1e-3)
MEMORIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
"""Correlations of residuals that follow each other."""
NEAR = 100
"""Readings right after a shift, for which coverage is reported by itself."""


def residuals(streams: Array, quantiles: Array) -> Array:
    """Return residuals one reading ahead in half widths of the interval, (streams, readings); NaN at the first.

    Args:
        streams: (streams, readings).
        quantiles: (streams, readings, horizon, 1, levels), after each reading.
    """
    low, center, high = np.moveaxis(quantiles[:, :-1, 0, 0].astype(np.float64), -1, 0)
    z = np.full(streams.shape, np.nan)
    z[:, 1:] = (streams[:, 1:] - center) / ((high - low) / 2)
    return z


def detect_by_ranks(rate: float, streams: Array, quantiles: Array, block: int) -> Array:
    """Return the alarms of the served test, (streams, readings)."""
    detector = DriftDetector(rate, block, quantiles.shape[2], 1)
    center, width = quantiles[..., 1], quantiles[..., 2] - quantiles[..., 0]
    return detector.advance({}, streams[:, :, None, None], center, width)[1] >= 1


def detect_by_river(name: str, streams: Array, quantiles: Array, block: int) -> Array:
    """Return the alarms of a detector of river with its defaults: one for the residuals, one for their sizes."""
    from river import drift

    z = residuals(streams, quantiles)
    alarms = np.zeros(z.shape, np.bool_)
    for row, series in enumerate(z):
        pair = [getattr(drift, name)(), getattr(drift, name)()]
        for position, value in enumerate(series):
            for detector, figure in zip(pair, () if np.isnan(value) else (value, abs(value)), strict=False):
                detector.update(float(figure))
                alarms[row, position] |= detector.drift_detected
    return alarms


DETECTORS: dict[str, Detect] = {
    **{f"this test, rate {rate:.4g}": partial(detect_by_ranks, rate) for rate in RATES},
    **{f"river {name}": partial(detect_by_river, name) for name in ("ADWIN", "PageHinkley")},
}


def delays(alarms: Array, onsets: list[int]) -> Row:
    """Return how many ``shifts`` there are, those ``detected`` in time, and the median ``delay`` of these in readings.

    Args:
        alarms: (streams, readings).
        onsets: First reading of the shift of each stream.
    """
    later = [np.flatnonzero(row[onset : onset + LONGEST_DELAY]) for row, onset in zip(alarms, onsets, strict=True)]
    first = [int(positions[0]) + 1 for positions in later if len(positions)]
    return {"shifts": len(onsets), "detected": len(first), "delay": float(np.median(first)) if first else None}


def simulate(seed: int, steps: int) -> Array:
    """Return a daily pattern of hours with autoregressive noise: stationary but for the pattern."""
    from scipy.signal import lfilter

    noise = np.random.default_rng(seed).normal(size=steps)
    noise[0] = 0
    return 20 + 5 * np.sin(2 * np.pi * np.arange(steps) / 24) + lfilter([1], [1, -0.7], noise)


def write_files(folder: Path) -> None:
    """Write the tables that are not part of the package."""
    stamps = np.datetime_as_string(np.datetime64("2020-01-01", "h") + np.arange(LENGTH), unit="m")
    rows = [f"{stamp},{value:.5f}" for stamp, value in zip(stamps, simulate(0, LENGTH), strict=True)]
    (folder / "simulated.csv").write_text("\n".join(["ds,y", *rows]) + "\n", encoding="utf-8")
    source = data_folder() / "forecasting" / "univariate" / "daily-min-temperatures.csv"
    lines = source.read_text(encoding="utf-8").replace('"', "").splitlines()[1:]
    (folder / source.name).write_text("\n".join(["ds,y", *lines]) + "\n", encoding="utf-8")


def shifted(values: Array, unit: float) -> tuple[Array, list[Row]]:
    """Return copies of a stream with a shift each.

    Returns:
        (streams, readings), the first without a shift, and for each ``kind`` and ``onset``, None without.
    """
    t = np.arange(len(values))
    streams, facts = [values], [{"kind": "none", "onset": None}]
    for share, sign in product(ONSETS, (1, -1)):
        onset = int(share * len(values))
        is_late, late = t >= onset, np.maximum(t - onset, 0)
        noise = np.random.default_rng(onset + sign).normal(size=len(values))
        for kind, change in zip(
            SHIFTS, (sign * LEVEL * is_late, NOISE * noise * is_late, sign * TREND * late), strict=True
        ):
            streams.append(values + unit * change)
            facts.append({"kind": kind, "onset": onset})
    return np.stack(streams), facts


def forecast(predictor: Any, context: Array, streams: Array) -> Array:
    """Return quantiles after each reading, (streams, readings, horizon, 1, levels), the context being read before."""
    from stablernn.training.evaluation.predictors import cached_weights

    quantiles, state, rows = [], None, len(streams)
    with cached_weights(predictor):
        for x in [np.repeat(context[None], rows, axis=0), *np.split(streams, streams.shape[1], axis=1)]:
            x = x.astype(np.float32)[..., None]
            outputs = predictor.run_sequence(x, np.full(rows, x.shape[1], np.int64), state)
            state = predictor.next_state(outputs)
            quantiles.append(outputs["quantiles"])
    return np.stack(quantiles[1:], axis=1)


def coverage(streams: Array, lower: Array, upper: Array, first: int, last: int) -> list[float]:
    """Return coverage, mean width of bounded intervals and mean interval score (Gneiting, Raftery 2007) for 80 %.

    Args:
        streams: (streams, readings).
        lower: (streams, readings, horizon), after each reading.
        upper: Likewise.
        first: First reading whose value counts.
        last: The reading after the last of them.
    """
    inside, widths, scores = [], [], []
    for ahead in range(1, lower.shape[2] + 1):
        y = streams[:, max(first, ahead) : last]
        low, high = (ends[:, max(first, ahead) - ahead : last - ahead, ahead - 1] for ends in (lower, upper))
        is_observed = ~np.isnan(y)
        width = (high - low).astype(np.float64)
        score = width + 10 * (np.maximum(low - y, 0) + np.maximum(y - high, 0))
        inside.append(((low <= y) & (y <= high))[is_observed])
        widths.append(width[is_observed & np.isfinite(width)])
        scores.append(score[is_observed & np.isfinite(score)])
    return [float(np.concatenate(parts).mean()) for parts in (inside, widths, scores)]


def measure_intervals(streams: Array, facts: list[Row], quantiles: Array) -> list[Row]:
    """Return coverage for each kind of shift and step size; the step size None is that of the model's intervals."""
    rows = []
    default = adaptive_intervals.STEP_SIZE
    for step_size in (None, *STEP_SIZES):
        ends = quantiles[..., 0, :]
        if step_size is not None:
            adaptive_intervals.STEP_SIZE = step_size
            intervals = AdaptiveIntervals(quantiles.shape[2], 1, LEVELS)
            ends = intervals.advance({}, streams[:, :, None, None].astype(np.float32), quantiles).quantiles[..., 0, :]
        for kind in ("none", *SHIFTS):
            row: Row = {"kind": kind, "step_size": step_size}
            for name, readings in (("near", NEAR), ("after", streams.shape[1])):
                values = []
                for number, fact in enumerate(facts):
                    if fact["kind"] == kind:
                        one, onset = slice(number, number + 1), fact["onset"] or 0
                        last = min(onset + readings, streams.shape[1])
                        values.append(coverage(streams[one], ends[one, ..., 0], ends[one, ..., 2], onset, last))
                row[name] = dict(zip(("coverage", "width", "score"), np.mean(values, axis=0).tolist(), strict=True))
            rows.append(row)
    adaptive_intervals.STEP_SIZE = default
    return rows


def measure_drift(streams: Array, facts: list[Row], quantiles: Array, block: int) -> dict[str, Row]:
    """Return false alarms and delays of each detector, by its name."""
    results: dict[str, Row] = {}
    numbers = {
        kind: [number for number, fact in enumerate(facts) if fact["kind"] == kind] for kind in ("none", *SHIFTS)
    }
    for name, detect in DETECTORS.items():
        alarms = detect(streams, quantiles, block)
        calm = numbers["none"]
        results[name] = {"false_alarms": int(alarms[calm].sum()), "readings": streams[calm].size}
        for kind in SHIFTS:
            onsets = [facts[number]["onset"] for number in numbers[kind]]
            results[name][kind] = delays(alarms[numbers[kind]], onsets)
    return results


def measure(name: str, folder: Path) -> Row:
    """Return all figures of one dataset, by a model that is trained unless there is a run of it."""
    from stablernn_cli.targets import certify_target, open_target

    words = ["train", *DATASETS[name], *TRAIN, "--run-dir", name]
    if not (folder / name / "summary.json").exists():
        subprocess.run(harness.stablernn("-q", *words), cwd=folder, check=True)
    os.chdir(folder)
    target = open_target(name, "cpu", None)
    data = target.load_data(None, None)
    certificate = certify_target(name).document
    block = block_length(certificate, data.season, 1)
    values = data.series[0].values[:, data.target_indices[0]].astype(np.float64)
    start = int(data.windows("test").origins[0][1])
    context = values[max(0, start - 4 * data.context_length) : start]
    unit = float(np.nanstd(np.diff(data.training_values()[0][:, data.target_indices[0]])))
    if name == "simulated":
        calm = np.stack([simulate(seed, LENGTH) for seed in range(1, SIMULATED + 1)])
        moved, facts = shifted(calm[0], unit)
        streams, facts = np.concatenate([calm, moved[1:]]), [facts[0]] * SIMULATED + facts[1:]
        context = simulate(0, 4 * data.context_length)
    else:
        streams, facts = shifted(values[start:], unit)
    streams = streams.astype(np.float32)
    quantiles = forecast(target.predictor, context, streams)
    return {
        "command": " ".join(["stablernn", *words]),
        "forgetting": certificate["forgetting"]["steps"],
        "block": block,
        "readings": streams.shape[1],
        "calm_streams": sum(fact["onset"] is None for fact in facts),
        "horizon": data.horizon,
        "unit": unit,
        "intervals": measure_intervals(streams, facts, quantiles),
        "drift": measure_drift(streams, facts, quantiles, block),
    }


def measure_memory() -> list[Row]:
    """Return alarms of stationary residuals that remember each other, over those that the stated rate allows."""
    from scipy.signal import lfilter

    rows = []
    block = 20
    for coefficient in MEMORIES:
        z = lfilter([1], [1, -coefficient], np.random.default_rng(0).normal(size=(200, 12_000)), axis=1)
        values = z[..., None, None].astype(np.float32)
        center = np.zeros_like(values)
        row: Row = {"coefficient": coefficient, "block": block, "readings": z.size}
        for rate in RATES:
            evidence = DriftDetector(rate, block, 1, 1).advance({}, values, center, center + 2)[1]
            row[f"{rate:g}"] = int((evidence >= 1).sum())
        rows.append(row)
    return rows


def measure_cost() -> list[Row]:
    """Return microseconds a stream of one sample, by the number of streams that are updated together."""
    rows = []
    for streams in (1, 256):
        random = np.random.default_rng(0)
        values = random.normal(size=(streams, 100, 1, 1)).astype(np.float32)
        quantiles = np.sort(random.normal(size=(streams, 100, 24, 1, 3)), axis=-1).astype(np.float32)
        intervals, test = AdaptiveIntervals(24, 1, LEVELS), DriftDetector(1e-4, 48, 24, 1)
        shapes = [*intervals.state_shapes.values(), *test.state_shapes.values()]
        states: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
        times = []
        for step in range(100):
            y, q = values[:, step : step + 1], quantiles[:, step : step + 1]
            started = time.perf_counter()
            adapted = intervals.advance(states[0], y, q).states
            middle = time.perf_counter()
            states = adapted, test.advance(states[1], y, q[..., 1], q[..., 2] - q[..., 0])[0]
            times.append((middle - started, time.perf_counter() - middle))
        medians = dict(zip(("intervals", "drift"), (1e6 * np.median(times, axis=0) / streams).tolist(), strict=True))
        size = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes)
        rows.append({"streams": streams, **medians, "bytes": size})
    return rows


def page_tables(results: Row) -> dict[str, str]:
    """Return the tables of docs/background/streams.md."""
    datasets = results["datasets"]
    after, sizes, drift = [], [], []
    for (name, dataset), kind in product(datasets.items(), ("none", *SHIFTS)):
        rows = {row["step_size"]: row for row in dataset["intervals"] if row["kind"] == kind}
        fixed, adaptive = rows[None], rows[SHOWN_STEP_SIZE]
        shares = [f"{row[part]['coverage']:.3f}" for part in ("near", "after") for row in (fixed, adaptive)]
        ratios = [f"{adaptive['after'][figure] / fixed['after'][figure]:.2f}" for figure in ("width", "score")]
        after.append((name, kind, *shares, *ratios))
        score = fixed["after"]["score"]
        cells = [f"{row['after']['coverage']:.3f} ({row['after']['score'] / score:.2f})" for row in rows.values()]
        sizes.append((name, kind, *cells))
    for name, dataset in datasets.items():
        for detector, row in dataset["drift"].items():
            rate = f"{1000 * row['false_alarms'] / row['readings']:.2f}"
            found = [
                f"{row[kind]['detected']} of {row[kind]['shifts']}"
                + ("" if row[kind]["delay"] is None else f", {row[kind]['delay']:.0f}")
                for kind in SHIFTS
            ]
            alarms = f"{row['false_alarms']} in {row['readings']:,}"
            drift.append((name, dataset["block"], detector, alarms, rate, *found))
    memory = [
        (f"{row['coefficient']:g}", *(f"{row[f'{rate:g}'] / (rate * row['readings']):.2f}" for rate in RATES))
        for row in results["memory"]
    ]
    cost = [
        (row["streams"], f"{row['intervals']:.1f}", f"{row['drift']:.1f}", f"{row['bytes']:,}")
        for row in results["cost"]
    ]
    columns = ("fixed, 100 readings after", "adaptive", "fixed, all after", "adaptive", "width", "score")
    return {
        "coverage": table(("data", "shift", *columns), after),
        "step sizes": table(("data", "shift", "fixed", *(f"{size:g}" for size in STEP_SIZES)), sizes),
        "drift": table(("data", "block", "detector", "false alarms", "a 1,000 readings", *SHIFTS), drift),
        "memory": table(("correlation", "alarms over stated, rate 0.0001", "rate 0.001"), memory),
        "cost": table(("streams in a frame", "microseconds a stream, intervals", "drift", "bytes of state"), cost),
    }


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("--runs", type=Path, help="folder of the trained models; default: one that is deleted")
    parser.add_argument("--only", nargs="*", default=list(DATASETS), help="datasets to measure; none: the cost alone")
    arguments = parser.parse_args()
    path = arguments.results.absolute()
    if not arguments.page:
        known = read_results(path, {"datasets": {}})["datasets"]
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.runs or Path(temporary)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            write_files(folder)
            for name in arguments.only:
                known[name] = measure(name, folder)
                log(name)
        datasets = {name: known[name] for name in DATASETS if name in known}
        conditions = harness.conditions("torch", "river")
        content = {"conditions": conditions, "cost": measure_cost(), "memory": measure_memory(), "datasets": datasets}
        write_results(path, content)
    if path == STORED:
        harness.print_tables(page_tables(read_results(STORED)))


if __name__ == "__main__":
    main()
