"""What staying certified costs: test accuracy of free and of certified training on two classification problems.

    STABLERNN_DATA=... python benchmarks/certified.py --seeds 0 1 2

trains through the command line, one thread a job, writes ``benchmarks/results/certified.json`` and prints the table of
docs/stability.md. ``--only`` runs some of the problems again and keeps the other rows.
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
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "certified.json"
PROBLEMS = {"digits": "digits", "ItalyPowerDemand": "ucr-uea/ItalyPowerDemand/ItalyPowerDemand_TRAIN.ts"}
"""Names of the problems and their data, below ``STABLERNN_DATA`` where it is a file."""
CELLS = {"rnn": (False, True), "lipschitz": (False, True), "exprnn": (True,)}
"""Cells, and whether they are trained certified; exprnn cannot be anything else."""

Row = dict[str, Any]


def trained(job: Row) -> Row:
    """A run through the command line: its test accuracy and what is proved of it."""
    source = PROBLEMS[job["data"]]
    folder = os.environ.get("STABLERNN_DATA", "")
    path = str(Path(folder) / source) if "/" in source else source
    words = ["train", "--data", path, "--cell", job["cell"], "--seed", str(job["seed"])]
    words += ["--certified"] if job["certified"] else []
    with tempfile.TemporaryDirectory() as place:
        summary = _json([*words, "--run-dir", "run"], place)
        proved = _json(["certify", "run"], place)
    row = {
        **job,
        "accuracy": summary["metrics"]["test"]["accuracy"],
        "kind": proved["kind"],
        "contraction_rate": proved["contraction_rate"],
        "seconds": summary["seconds"],
        "command": "stablernn " + " ".join(words).replace(folder or "\0", "$STABLERNN_DATA"),
    }
    print({key: value for key, value in row.items() if key != "command"}, file=sys.stderr, flush=True)
    return row


def _json(words: list[str], folder: str) -> Row:
    command = [sys.executable, "-m", "stablernn_cli", *words, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return dict(json.loads(done.stdout))


def table(rows: list[Row]) -> str:
    """Markdown: a line for each problem and cell."""
    lines = ["| data | cell | free | certified | proved, certified | seeds |", "|---|---|---|---|---|---|"]
    for data in PROBLEMS:
        for cell in CELLS:
            found = [row for row in rows if (row["data"], row["cell"]) == (data, cell)]
            free, kept = ([row for row in found if row["certified"] is way] for way in (False, True))
            if not kept:
                continue
            rate = max(row["contraction_rate"] for row in kept)
            kinds = " or ".join(sorted({row["kind"] for row in kept}))
            seeds = ", ".join(str(row["seed"]) for row in kept)
            lines.append(
                f"| {data} | `{cell}` | {_mean(free)} | {_mean(kept)} | {kinds}, rate at most {rate:.4f} | {seeds} |"
            )
    return "\n".join(lines)


def _mean(rows: list[Row]) -> str:
    values = [row["accuracy"] for row in rows]
    if not values:
        return "-"
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="*", default=(0, 1, 2))
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), help="problems to run")
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    arguments = parser.parse_args()
    known = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    if not arguments.table:
        jobs = [
            {"data": data, "cell": cell, "certified": way, "seed": seed}
            for seed in arguments.seeds
            for data in arguments.only
            for cell, ways in CELLS.items()
            for way in ways
        ]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for row in pool.map(trained, jobs):
                known = [*(old for old in known if _place(old) != _place(row)), row]
                _write(known)
    print(table(known))


def _place(row: Row) -> tuple[Any, ...]:
    return row["data"], row["cell"], row["certified"], row["seed"]


def _write(rows: list[Row]) -> None:
    conditions = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    content = {"conditions": conditions, "runs": sorted(rows, key=_place)}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
