"""What staying certified costs: free and certified training on nine classification sets and three forecasting tasks.

    STABLERNN_DATA=... python benchmarks/certified.py --seeds 0 1 2

trains through the command line, one thread a job, writes ``benchmarks/results/certified.json`` after each run and
prints the tables of docs/stability.md. Runs that the file has are not repeated unless ``--again`` is given; ``--only``
takes some of the problems. ``--steps`` trains nothing, and times a streamed step of every cell instead.
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
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import PROBLEMS, problem_file, shown

RESULTS = Path(__file__).parent / "results" / "certified.json"
FORECASTS = {
    "co2": ["--data", "co2"],
    "etth1-ot": ["--data", "etth1", "--set", "data.channels=OT"],
    "m4-hourly": ["--data", "m4-hourly"],
}
CELLS = {"lipschitz": (False, True), "rnn": (False, True), "exprnn": (True,), "lru": (True,)}
"""Cells, and whether they are trained certified; exprnn and lru cannot be anything else."""
STEP_ROWS = {
    "onnx": "step of a stream in the server's runtime",
    "native": "engine native of serve, a stream in the runtime",
}
"""Rows of `stablernn bench --part step`, by the engine that they time."""
STEP_SIZES = ("--hidden-size", "64", "--batch-size", "1", "--length", "96", "--part", "step")
REFERENCE = "lipschitz"
"""The cell whose free training the others are compared with."""

Row = dict[str, Any]


def trained(job: Row) -> Row:
    """A run through the command line: its test figure and what is proved of it."""
    words = FORECASTS.get(job["data"]) or ["--data", problem_file(job["data"])]
    words = ["train", *words, "--cell", job["cell"], "--seed", str(job["seed"])]
    words += ["--certified"] if job["certified"] else ["--free"]
    with tempfile.TemporaryDirectory() as folder:
        summary = run_json([*words, "--run-dir", "run"], folder)
        certificate = run_json(["certify", "run"], folder)
        commit = json.loads((Path(folder) / "run" / "env.json").read_text(encoding="utf-8"))["commit"]
    figure = "mase" if job["data"] in FORECASTS else "accuracy"
    row = {
        **job,
        "figure": figure,
        "value": summary["metrics"]["test"][figure],
        "kind": certificate["kind"],
        "contraction_rate": certificate["contraction_rate"],
        "seconds": summary["seconds"],
        "command": shown(words),
        "commit": commit,
    }
    print({key: value for key, value in row.items() if key != "command"}, file=sys.stderr, flush=True)
    return row


def run_json(words: list[str], folder: str) -> Row:
    """Run a command of stablernn in a folder, and return the document that it prints."""
    command = [sys.executable, "-m", "stablernn_cli", *words, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return dict(json.loads(done.stdout))


def time_steps(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Return the processor time of a streamed step in microseconds, by cell and engine: medians of rounds in turn."""
    times: dict[str, dict[str, list[float]]] = {cell: {} for cell in CELLS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for cell, engines in times.items():
                document = run_json(["bench", "--cell", cell, *STEP_SIZES], folder)
                by_row = {row["row"]: row["cpu_us"] for row in document["tables"][0]["rows"]}
                for engine, row in STEP_ROWS.items():
                    if row in by_row:
                        engines.setdefault(engine, []).append(by_row[row])
    return {
        cell: {engine: round(float(np.median(values)), 1) for engine, values in engines.items()}
        for cell, engines in times.items()
    }


def figures_table(rows: list[Row]) -> str:
    """Markdown: a line for each problem, a column for each cell, free and certified, and the seeds of their means."""
    columns = [(cell, certified) for cell, ways in CELLS.items() for certified in ways]
    titles = [f"`{cell}`, {'certified' if certified else 'free'}" for cell, certified in columns]
    lines = [f"| data | figure | seeds | {' | '.join(titles)} |", "|---" * (len(columns) + 3) + "|"]
    for data in (*PROBLEMS, *FORECASTS):
        runs = {column: _runs(rows, data, *column) for column in columns}
        figures = [row["figure"] for part in runs.values() for row in part]
        if figures:
            lines.append(f"| {data} | {figures[0]} | {_seeds_text(runs)} | {' | '.join(map(_mean, runs.values()))} |")
    return "\n".join(lines)


def _runs(rows: list[Row], data: str, cell: str, certified: bool) -> list[Row]:
    return [row for row in rows if (row["data"], row["cell"], row["certified"]) == (data, cell, certified)]


def _seeds_text(runs: dict[tuple[str, bool], list[Row]]) -> str:
    """Return the seeds of most columns of a line, followed by the cells, or columns, that have others."""
    by_column = {column: tuple(sorted(row["seed"] for row in part)) for column, part in runs.items() if part}
    ((usual, _),) = Counter(by_column.values()).most_common(1)
    texts = [_format_seeds(usual)]
    for cell in dict.fromkeys(cell for cell, _ in by_column):
        seeds = {certified: by_column[cell, certified] for certified in CELLS[cell] if (cell, certified) in by_column}
        if len(set(seeds.values())) == 1 and usual not in seeds.values():
            texts.append(f"`{cell}` {_format_seeds(next(iter(seeds.values())))}")
            continue
        texts += [
            f"`{cell}`, {'certified' if certified else 'free'} {_format_seeds(numbers)}"
            for certified, numbers in seeds.items()
            if numbers != usual
        ]
    return "; ".join(texts)


def _format_seeds(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def price_table(rows: list[Row], steps: dict[str, dict[str, float]]) -> str:
    """Markdown: a line for each certified cell: its loss against the free reference, what is proved, and its speed.

    On each problem the means of both are over the seeds that both have: one more seed on one side alone would count as
    a difference of the cells. Problems without such a seed are left out.
    """
    lines = [
        f"| cell, certified | pairs of runs with the same seed | accuracy against free `{REFERENCE}`, points: median "
        "(range over sets) | MASE against it: median (range) | proved | largest rate | seconds against it: median "
        "| a streamed step, us |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        certified_runs = [row for row in rows if row["cell"] == cell and row["certified"]]
        if not certified_runs:
            continue
        points, ratios, seconds, pair_counts = [], [], [], []
        for data in (*PROBLEMS, *FORECASTS):
            ours, free = paired(_runs(rows, data, cell, True), _runs(rows, data, REFERENCE, False))
            if not ours:
                continue
            pair_counts.append(len(ours))
            value, reference = (np.mean([row["value"] for row in part]) for part in (ours, free))
            seconds.append(np.median([row["seconds"] for row in ours]) / np.median([row["seconds"] for row in free]))
            if data in FORECASTS:
                ratios.append(value / reference)
            else:
                points.append(100 * (value - reference))
        kinds = " or ".join(sorted({row["kind"] for row in certified_runs}))
        rate = max(row["contraction_rate"] for row in certified_runs)
        lines.append(
            f"| `{cell}` | {_pairs_text(pair_counts)} | {_spread(points, '+.2f')} | {_spread(ratios, '.3f')} | {kinds} "
            f"| {rate:.4f} | {f'{np.median(seconds):.2f}' if seconds else '-'} | {_format_steps(steps.get(cell, {}))} |"
        )
    return "\n".join(lines)


def paired(first: list[Row], second: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the runs of both whose seeds both have."""
    common = {row["seed"] for row in first} & {row["seed"] for row in second}
    return [row for row in first if row["seed"] in common], [row for row in second if row["seed"] in common]


def _pairs_text(counts: list[int]) -> str:
    """Return on how many problems there are how many pairs, such as ``3 on 5, 2 on 6, 1 on 1``."""
    return (
        "none"
        if not counts
        else ", ".join(f"{count} on {problems}" for count, problems in sorted(Counter(counts).items(), reverse=True))
    )


def _format_steps(times: dict[str, float]) -> str:
    return ", ".join(f"{time:.1f} by `{engine}`" for engine, time in times.items()) or "-"


def _mean(rows: list[Row]) -> str:
    values = [row["value"] for row in rows]
    if not values:
        return "-"
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def _spread(values: list[float], form: str) -> str:
    return f"{np.median(values):{form}} ({min(values):{form}} to {max(values):{form}})" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="*", default=(0, 1, 2))
    parser.add_argument("--only", nargs="*", default=[*PROBLEMS, *FORECASTS], help="problems to run")
    parser.add_argument("--cells", nargs="*", choices=list(CELLS), default=list(CELLS), help="cells to train")
    parser.add_argument("--again", action="store_true", help="repeat runs that the results have")
    parser.add_argument("--table", action="store_true", help="only print the tables of the results")
    parser.add_argument("--steps", action="store_true", help="train nothing, and time a streamed step of each cell")
    arguments = parser.parse_args()
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known, steps = stored.get("runs", []), stored.get("steps", {})
    if arguments.steps:
        steps = time_steps()
        _write(known, steps, stored["conditions"])
    elif not arguments.table:
        jobs = [
            {"data": data, "cell": cell, "certified": way, "seed": seed}
            for seed in arguments.seeds
            for data in arguments.only
            for cell in arguments.cells
            for way in CELLS[cell]
        ]
        if not arguments.again:
            done = {_place(row) for row in known}
            jobs = [job for job in jobs if _place(job) not in done]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for row in pool.map(trained, jobs):
                known = [*(old for old in known if _place(old) != _place(row)), row]
                _write(known, steps, _conditions())
    print(figures_table(known), price_table(known, steps), sep="\n\n")


def _place(row: Row) -> tuple[Any, ...]:
    return row["data"], row["cell"], row["certified"], row["seed"]


def _conditions() -> Row:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _write(rows: list[Row], steps: dict[str, dict[str, float]], conditions: Row) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    content = {"conditions": conditions, "steps": steps, "runs": sorted(rows, key=_place)}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
