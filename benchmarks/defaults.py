"""Test figures of the shipped defaults: every cell on digits, three on co2, three seeds each.

    python benchmarks/defaults.py --jobs 2

trains through the command line, one thread a job, and writes ``benchmarks/results/defaults.json``;
``make docs`` puts the table into the README. About 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "defaults.json"
SEEDS = (0, 1, 2)
CO2_CELLS = ("lipschitz", "lvf_mid", "gru")


def commands(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """One row for each training run: what it is and the words after ``stablernn``."""
    from stablernn import list_cells

    rows = []
    for data, cells, options in (("digits", list_cells(), ["--hidden-size", "128"]), ("co2", CO2_CELLS, [])):
        for cell in cells:
            for seed in seeds:
                words = ["train", "--data", data, "--cell", cell, *options, "--free", "--seed", str(seed)]
                rows.append({"data": data, "cell": cell, "seed": seed, "command": words})
    return rows


def run(row: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "stablernn_cli", *row["command"], "--json"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(row['command'])}: {done.stderr}")
    summary = json.loads(done.stdout)
    test = summary["metrics"]["test"]
    figure = "accuracy" if row["data"] == "digits" else "relative_mae"
    print(f"{row['data']:7}{row['cell']:16}{row['seed']}  {figure} {test[figure]:.4f}", file=sys.stderr, flush=True)
    return {
        **row,
        "command": "stablernn " + " ".join(row["command"]),
        "figure": figure,
        "value": test[figure],
        "mase": test.get("mase"),
        "parameters": summary["parameters"],
        "seconds": summary["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="seeds from 0 on")
    parser.add_argument("--cells", nargs="*", help="run these cells again and keep the other rows")
    arguments = parser.parse_args()
    wanted = commands(tuple(range(arguments.seeds)))
    kept: list[dict[str, Any]] = []
    if arguments.cells:
        wanted = [row for row in wanted if row["cell"] in arguments.cells]
        kept = [row for row in json.loads(RESULTS.read_text())["runs"] if row["cell"] not in arguments.cells]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = sorted(kept + list(pool.map(run, wanted)), key=lambda row: (row["data"] != "digits", row["cell"]))
    machine = {"machine": platform.machine(), "torch": version("torch"), "python": platform.python_version()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"conditions": machine, "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
