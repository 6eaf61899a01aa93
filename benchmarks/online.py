"""Adaptive intervals and the test for drift on streams with shifts put in, beside the detectors of river.

    STABLERNN_DATA=... python benchmarks/online.py            # trains four models; some 15 minutes on one core
    STABLERNN_DATA=... python benchmarks/online.py --runs DIR # keeps the models in DIR and takes those that are there
    python benchmarks/online.py --page                        # writes the tables of docs/online.md from the results

Needs ``pip install 'stablernn[bench]'``. Each stream is the test split of a dataset, or a simulated series, read one
reading at a time with the state carried on. Copies of it have a shift from some reading on, in units of the standard
deviation of the changes from one reading to the next in the training part: a higher or lower level, added noise, or a
trend up or down. All detectors get the same residuals, those that the test for drift computes.
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
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from harness import replace_tables

from stablernn_runtime import adaptive_intervals
from stablernn_runtime.adaptive_intervals import AdaptiveIntervals
from stablernn_runtime.drift import DriftDetector
from stablernn_runtime.online_streams import block_length

Array = np.ndarray[Any, np.dtype[Any]]
Detect = Callable[[Array, Array, Array, int], Array]

LONGEST_DELAY = 400
"""Readings after a shift within which an alarm counts as its detection."""


def residuals(streams: Array, quantiles: Array) -> Array:
    """Residuals one reading ahead in half widths of the interval, (streams, readings); NaN at the first.

    Args:
        streams: (streams, readings).
        quantiles: (streams, readings, horizon, 1, levels), after each reading.
    """
    low, center, high = np.moveaxis(quantiles[:, :-1, 0, 0].astype(np.float64), -1, 0)
    z = np.full(streams.shape, np.nan)
    z[:, 1:] = (streams[:, 1:] - center) / ((high - low) / 2)
    return z


def _conformal(rate: float) -> Detect:
    def detect(streams: Array, quantiles: Array, z: Array, block: int) -> Array:
        detector = DriftDetector(rate, block, quantiles.shape[2], 1)
        center, width = quantiles[..., 1], quantiles[..., 2] - quantiles[..., 0]
        return detector.advance({}, streams[:, :, None, None], center, width)[1] >= 1

    return detect


def _river(name: str) -> Detect:
    def detect(streams: Array, quantiles: Array, z: Array, block: int) -> Array:
        from river import drift

        alarms = np.zeros(z.shape, np.bool_)
        for row, series in enumerate(z):
            # As the conformal test, one for the residuals and one for their absolute values; with river's defaults.
            pair = [getattr(drift, name)(), getattr(drift, name)()]
            for position, value in enumerate(series):
                if np.isnan(value):
                    continue
                for detector, figure in zip(pair, (value, abs(value)), strict=True):
                    detector.update(float(figure))
                    alarms[row, position] |= detector.drift_detected
        return alarms

    return detect


DETECTORS: dict[str, Detect] = {
    "this test, rate 0.0001": _conformal(1e-4),
    "this test, rate 0.001": _conformal(1e-3),
    "river ADWIN": _river("ADWIN"),
    "river PageHinkley": _river("PageHinkley"),
}


def count_alarms(alarms: Array) -> int:
    """Number of alarms in all streams."""
    return int(alarms.sum())


def delays(alarms: Array, onsets: list[int]) -> dict[str, Any]:
    """Detections of shifts.

    Args:
        alarms: (streams, readings).
        onsets: First reading of the shift of each stream.

    Returns:
        ``shifts``, ``detected`` within :data:`LONGEST_DELAY` readings, and the median ``delay`` of these in readings.
    """
    first = []
    for row, onset in zip(alarms, onsets, strict=True):
        later = np.flatnonzero(row[onset : onset + LONGEST_DELAY])
        if len(later):
            first.append(int(later[0]) + 1)
    return {"shifts": len(onsets), "detected": len(first), "delay": float(np.median(first)) if first else None}


PAGE = Path(__file__).parents[1] / "docs" / "online.md"
SHIFTS = ("level", "variance", "trend")
SHOWN_STEP_SIZE = 0.1
"""Step size of the served intervals."""


def write_page(results: dict[str, Any]) -> None:
    """Replace the tables between their markers in docs/online.md."""
    tables = {
        "coverage": _coverage(results),
        "step sizes": _step_sizes(results),
        "drift": _drift(results),
        "memory": _memory(results),
        "cost": _cost(results),
    }
    replace_tables(PAGE, tables)


def _rows(dataset: dict[str, Any], kind: str) -> dict[float | None, dict[str, Any]]:
    return {row["step_size"]: row for row in dataset["intervals"] if row["kind"] == kind}


def _coverage(results: dict[str, Any]) -> str:
    lines = [
        "| data | shift | fixed, 100 readings after | adaptive | fixed, all after | adaptive | width | score |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, dataset in results["datasets"].items():
        for kind in ("none", *SHIFTS):
            rows = _rows(dataset, kind)
            fixed, adaptive = rows[None], rows[SHOWN_STEP_SIZE]
            shares = [f"{row[part]['coverage']:.3f}" for part in ("near", "after") for row in (fixed, adaptive)]
            ratios = [f"{adaptive['after'][figure] / fixed['after'][figure]:.2f}" for figure in ("width", "score")]
            lines.append(f"| {name} | {kind} | {' | '.join(shares + ratios)} |")
    return "\n".join(lines)


def _step_sizes(results: dict[str, Any]) -> str:
    datasets = results["datasets"]
    sizes = [row["step_size"] for row in next(iter(datasets.values()))["intervals"] if row["kind"] == "none"]
    titles = ["fixed" if size is None else f"{size:g}" for size in sizes]
    lines = [f"| data | shift | {' | '.join(titles)} |", "| --- " * (len(sizes) + 2) + "|"]
    for name, dataset in datasets.items():
        for kind in ("none", *SHIFTS):
            rows = _rows(dataset, kind)
            reference = rows[None]["after"]["score"]
            cells = [
                f"{rows[size]['after']['coverage']:.3f} ({rows[size]['after']['score'] / reference:.2f})"
                for size in sizes
            ]
            lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _drift(results: dict[str, Any]) -> str:
    lines = [
        "| data | block | detector | false alarms | a 1,000 readings | level | variance | trend |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, dataset in results["datasets"].items():
        for detector, row in dataset["drift"].items():
            rate = f"{1000 * row['false_alarms'] / row['readings']:.2f}"
            cells = [_detection(row[kind]) for kind in SHIFTS]
            alarms = f"{row['false_alarms']} in {row['readings']:,}"
            lines.append(f"| {name} | {dataset['block']} | {detector} | {alarms} | {rate} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _detection(row: dict[str, Any]) -> str:
    delay = "" if row["delay"] is None else f", {row['delay']:.0f}"
    return f"{row['detected']} of {row['shifts']}{delay}"


def _memory(results: dict[str, Any]) -> str:
    lines = ["| correlation | alarms over stated, rate 0.0001 | rate 0.001 |", "| --- " * 3 + "|"]
    for row in results["memory"]:
        ratios = [f"{row[rate] / (float(rate) * row['readings']):.2f}" for rate in ("0.0001", "0.001")]
        lines.append(f"| {row['coefficient']:g} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _cost(results: dict[str, Any]) -> str:
    lines = ["| streams in a frame | microseconds a stream, intervals | drift | bytes of state |", "| --- " * 4 + "|"]
    for row in results["cost"]:
        lines.append(f"| {row['streams']} | {row['intervals']:.1f} | {row['drift']:.1f} | {row['bytes']:,} |")
    return "\n".join(lines)


RESULTS = Path(__file__).parent / "results" / "online.json"
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
LEVEL, NOISE, TREND = 3.0, 2.0, 0.03
"""Shifts: of the level, the standard deviation of added noise, and a reading's rise of a trend."""
SIMULATED, LENGTH = 60, 3000
"""Streams of the simulated dataset without a shift, and their readings."""
STEP_SIZES = (0.02, 0.05, 0.1, 0.2)
MEMORIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
"""Correlations of residuals that follow each other."""
NEAR = 100
"""Readings right after a shift, for which coverage is reported by itself."""


def simulate(seed: int, steps: int) -> Array:
    """A daily pattern of hours with autoregressive noise: stationary but for the pattern."""
    noise = np.random.default_rng(seed).normal(size=steps)
    values = np.zeros(steps)
    for step in range(1, steps):
        values[step] = 0.7 * values[step - 1] + noise[step]
    return 20 + 5 * np.sin(2 * np.pi * np.arange(steps) / 24) + values


def write_files(folder: Path) -> None:
    """Write the tables that are not part of the package."""
    stamps = np.datetime_as_string(np.datetime64("2020-01-01", "h") + np.arange(LENGTH), unit="m")
    rows = [f"{stamp},{value:.5f}" for stamp, value in zip(stamps, simulate(0, LENGTH), strict=True)]
    (folder / "simulated.csv").write_text("\n".join(["ds,y", *rows]) + "\n", encoding="utf-8")
    data = os.environ.get("STABLERNN_DATA")
    if data is None:
        raise SystemExit("Set STABLERNN_DATA to the folder of the development sets.")
    source = Path(data, "forecasting", "univariate", "daily-min-temperatures.csv")
    lines = source.read_text(encoding="utf-8").splitlines()[1:]
    content = "\n".join(["ds,y", *(line.replace('"', "") for line in lines)]) + "\n"
    (folder / source.name).write_text(content, encoding="utf-8")


def train(name: str, folder: Path) -> str:
    """Train a model unless there is a run of it, and return the command."""
    words = ["train", *DATASETS[name], *TRAIN, "--run-dir", name]
    if not (folder / name / "summary.json").exists():
        done = subprocess.run([sys.executable, "-m", "stablernn_cli", "-q", *words], cwd=folder)
        if done.returncode:
            raise SystemExit(f"Training on {name} failed.")
    return " ".join(["stablernn", *words])


def shifted(values: Array, unit: float) -> tuple[Array, list[dict[str, Any]]]:
    """Copies of a stream with a shift each.

    Returns:
        (streams, readings), the first without a shift, and for each ``kind`` and ``onset``, None without.
    """
    t = np.arange(len(values))
    streams, facts = [values], [{"kind": "none", "onset": None}]
    for share in ONSETS:
        onset = int(share * len(values))
        is_late, late = t >= onset, np.maximum(t - onset, 0)
        for sign in (1, -1):
            noise = np.random.default_rng(onset + sign).normal(size=len(values))
            for kind, change in (
                ("level", sign * LEVEL * is_late),
                ("variance", NOISE * noise * is_late),
                ("trend", sign * TREND * late),
            ):
                streams.append(values + unit * change)
                facts.append({"kind": kind, "onset": onset})
    return np.stack(streams), facts


def forecast(predictor: Any, context: Array, streams: Array) -> Array:
    """Quantiles after each reading, (streams, readings, horizon, 1, levels), the context having been read before."""
    from stablernn.training.evaluation.predictors import cached_weights

    quantiles, state = [], None
    rows = len(streams)
    with cached_weights(predictor):
        inputs = [np.repeat(context[None], rows, axis=0), *np.split(streams, streams.shape[1], axis=1)]
        for x in inputs:
            x = x.astype(np.float32)[..., None]
            outputs = predictor.run_sequence(x, np.full(rows, x.shape[1], np.int64), state)
            state = predictor.next_state(outputs)
            quantiles.append(outputs["quantiles"])
    return np.stack(quantiles[1:], axis=1)


def coverage(streams: Array, lower: Array, upper: Array, first: int, last: int) -> list[float]:
    """Coverage, mean width of bounded intervals and mean interval score (Gneiting, Raftery 2007) for 80 %.

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


def measure_intervals(streams: Array, facts: list[dict[str, Any]], quantiles: Array) -> list[dict[str, Any]]:
    """Rows of coverage for each kind of shift and step size; the step size None is that of the model's intervals."""
    rows = []
    default = adaptive_intervals.STEP_SIZE
    for step_size in (None, *STEP_SIZES):
        ends = quantiles[..., 0, :]
        if step_size is not None:
            adaptive_intervals.STEP_SIZE = step_size
            intervals = AdaptiveIntervals(quantiles.shape[2], 1, [0.1, 0.5, 0.9])
            ends = intervals.advance({}, streams[:, :, None, None].astype(np.float32), quantiles).quantiles[..., 0, :]
        for kind in ("none", "level", "variance", "trend"):
            parts: dict[str, list[list[float]]] = {"near": [], "after": []}
            for number, fact in enumerate(facts):
                if fact["kind"] != kind:
                    continue
                one = slice(number, number + 1)
                end = streams.shape[1]
                onset = fact["onset"] or 0
                for name, last in (("near", onset + NEAR), ("after", end)):
                    parts[name].append(coverage(streams[one], ends[one, ..., 0], ends[one, ..., 2], onset, last))
            row: dict[str, Any] = {"kind": kind, "step_size": step_size}
            for name, values in parts.items():
                row[name] = dict(zip(("coverage", "width", "score"), np.mean(values, axis=0).tolist(), strict=True))
            rows.append(row)
    adaptive_intervals.STEP_SIZE = default
    return rows


def measure_drift(
    streams: Array, facts: list[dict[str, Any]], quantiles: Array, block: int
) -> dict[str, dict[str, Any]]:
    """False alarms and delays of each detector, by its name."""
    z = residuals(streams, quantiles)
    results: dict[str, dict[str, Any]] = {}
    for name, detect in DETECTORS.items():
        alarms = detect(streams, quantiles, z, block)
        calm = [number for number, fact in enumerate(facts) if fact["onset"] is None]
        row: dict[str, Any] = {"false_alarms": count_alarms(alarms[calm]), "readings": streams[calm].size}
        for kind in ("level", "variance", "trend"):
            numbers = [number for number, fact in enumerate(facts) if fact["kind"] == kind]
            if numbers:
                row[kind] = delays(alarms[numbers], [facts[number]["onset"] for number in numbers])
        results[name] = row
    return results


def measure(name: str, folder: Path) -> dict[str, Any]:
    """All figures of one dataset."""
    from stablernn_cli.targets import compute_certificate, open_target

    command = train(name, folder)
    os.chdir(folder)
    target = open_target(name, "cpu", None)
    data = target.load_data(None, None)
    certificate = compute_certificate(name)[1]
    block = block_length(certificate, data.season, 1)
    values = data.series[0].values[:, data.target_indices[0]].astype(np.float64)
    start = int(data.windows("test").origins[0][1])
    context = values[max(0, start - 4 * data.context_length) : start]
    unit = float(np.nanstd(np.diff(data.training_values()[0][:, data.target_indices[0]])))
    if name == "simulated":
        calm = np.stack([simulate(seed, LENGTH) for seed in range(1, SIMULATED + 1)])
        moved, facts = shifted(calm[0], unit)
        streams = np.concatenate([calm, moved[1:]])
        facts = [facts[0]] * SIMULATED + facts[1:]
        context = simulate(0, 4 * data.context_length)
    else:
        streams, facts = shifted(values[start : start + len(values) - start], unit)
    streams = streams.astype(np.float32)
    quantiles = forecast(target.predictor, context, streams)
    return {
        "command": command,
        "forgetting": certificate["forgetting"]["steps"],
        "block": block,
        "readings": streams.shape[1],
        "calm_streams": sum(fact["onset"] is None for fact in facts),
        "horizon": data.horizon,
        "unit": unit,
        "intervals": measure_intervals(streams, facts, quantiles),
        "drift": measure_drift(streams, facts, quantiles, block),
    }


def measure_memory() -> list[dict[str, Any]]:
    """Alarms of stationary residuals that remember each other, over those that the stated rate allows."""
    rows = []
    streams, readings, block = 200, 12_000, 20
    for coefficient in MEMORIES:
        z = np.random.default_rng(0).normal(size=(streams, readings))
        for t in range(1, readings):
            z[:, t] += coefficient * z[:, t - 1]
        values = z[..., None, None].astype(np.float32)
        center = np.zeros_like(values)
        row: dict[str, Any] = {"coefficient": coefficient, "block": block, "readings": z.size}
        for rate in (1e-4, 1e-3):
            evidence = DriftDetector(rate, block, 1, 1).advance({}, values, center, center + 2)[1]
            row[f"{rate:g}"] = int((evidence >= 1).sum())
        rows.append(row)
    return rows


def measure_cost() -> list[dict[str, Any]]:
    """Microseconds a stream of one sample, by the number of streams that are updated together."""
    rows = []
    for streams in (1, 256):
        random = np.random.default_rng(0)
        values = random.normal(size=(streams, 100, 1, 1)).astype(np.float32)
        quantiles = np.sort(random.normal(size=(streams, 100, 24, 1, 3)), axis=-1).astype(np.float32)
        intervals, test = AdaptiveIntervals(24, 1, [0.1, 0.5, 0.9]), DriftDetector(1e-4, 48, 24, 1)
        shapes = [*intervals.state_shapes.values(), *test.state_shapes.values()]
        seconds: dict[str, list[float]] = {"intervals": [], "drift": []}
        states: dict[str, dict[str, Array]] = {"intervals": {}, "drift": {}}
        for step in range(100):
            y, q = values[:, step : step + 1], quantiles[:, step : step + 1]
            started = time.perf_counter()
            states["intervals"] = intervals.advance(states["intervals"], y, q).states
            middle = time.perf_counter()
            states["drift"] = test.advance(states["drift"], y, q[..., 1], q[..., 2] - q[..., 0])[0]
            seconds["intervals"].append(middle - started)
            seconds["drift"].append(time.perf_counter() - middle)
        medians = {name: 1e6 * float(np.median(parts)) / streams for name, parts in seconds.items()}
        size = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes)
        rows.append({"streams": streams, **medians, "bytes": size})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, help="folder of the trained models; default: one that is deleted")
    parser.add_argument(
        "--only",
        nargs="*",
        default=list(DATASETS),
        choices=list(DATASETS),
        help="datasets to measure; none: the cost alone",
    )
    parser.add_argument("--page", action="store_true", help="write the tables of docs/online.md from the results")
    arguments = parser.parse_args()
    if not arguments.page:
        known = json.loads(RESULTS.read_text(encoding="utf-8"))["datasets"] if RESULTS.exists() else {}
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.runs or Path(temporary)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            write_files(folder)
            for name in arguments.only:
                started = time.perf_counter()
                known[name] = measure(name, folder)
                print(name, f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        conditions = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": version("torch"),
            "river": version("river"),
        }
        datasets = {name: known[name] for name in DATASETS if name in known}
        content = {"conditions": conditions, "cost": measure_cost(), "memory": measure_memory(), "datasets": datasets}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_page(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
