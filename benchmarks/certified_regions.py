"""The cost of each certified region: free and certified training of the cells that are projected.

    STABLERNN_DATA=... python benchmarks/certified_regions.py --epochs 15

trains through the command line, one thread a job, on two classification sets, writes
``benchmarks/results/certified_regions.json`` after each run and prints the table of docs/stability.md. Runs that the
file has are not repeated. Cells that are certified by construction train alike with and without, and are left out.

    python benchmarks/certified_regions.py --timing

prints the CPU time of a projection beside that of a training step at 128 units.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import problem_file, shown
from certified import run_json

RESULTS = Path(__file__).parent / "results" / "certified_regions.json"
PROBLEMS = ("digits", "ItalyPowerDemand")
CELLS: dict[str, tuple[str, ...]] = {
    "spectral_rnn": (),
    "soft_orth": ("form=factored",),
    "kru": (),
    "nnrnn": (),
    "incremental": (),
    "neural_ode_rnn": (),
    "antisymmetric": ("damping=1",),
    "antisymmetric_g": ("damping=1",),
    "antisym_ablation": (),
    "fastgrnn_lsq": (),
    "lstm": (),
    "momentum_lstm": (),
    "sr_lstm": (),
    "ode_lstm": (),
    "slstm": (),
}
"""Cells, with options of theirs that are set for certified training; free training has the defaults."""

Row = dict[str, Any]


def train(job: Row) -> Row:
    """Train by the command line, and certify the run."""
    words = ["train", "--data", problem_file(job["data"]), "--cell", job["cell"], "--seed", str(job["seed"])]
    words += ["--epochs", str(job["epochs"]), "--set", "training.plots=false"]
    if job["certified"]:
        words.append("--certified")
        words += [word for option in CELLS[job["cell"]] for word in ("--set", f"model.cell_options.{option}")]
    else:
        words.append("--free")
    with tempfile.TemporaryDirectory() as folder:
        summary = run_json([*words, "--run-dir", "run"], folder)
        certificate = run_json(["certify", "run"], folder)
    # Proved within the range of training where nothing is proved for all inputs.
    bounded = certificate["bounded_inputs"]
    is_restricted = certificate["kind"] == "none" and bounded is not None
    proof = bounded if is_restricted else certificate
    row = {
        **job,
        "accuracy": summary["metrics"]["test"]["accuracy"],
        "kind": proof["kind"],
        "within_range": is_restricted,
        "rate": proof["contraction_rate"],
        "radius": max((ball["radius"] for ball in proof["state_balls"]), default=None),
        "seconds": summary["seconds"],
        "command": shown(words),
    }
    print({key: value for key, value in row.items() if key != "command"}, file=sys.stderr, flush=True)
    return row


def format_table(rows: list[Row]) -> str:
    """Return a Markdown table: a line for each cell, accuracies on both sets, and the weakest proof of its runs."""
    lines = [
        f"| cell | {' | '.join(f'{data}, free | certified' for data in PROBLEMS)} | proved, certified "
        "| seconds, certified to free |",
        "|---" * (3 + 2 * len(PROBLEMS)) + "|",
    ]
    for cell, options in CELLS.items():
        cells = []
        for data in PROBLEMS:
            for is_certified in (False, True):
                matches = [
                    row for row in rows if (row["data"], row["cell"], row["certified"]) == (data, cell, is_certified)
                ]
                cells.append(f"{np.mean([row['accuracy'] for row in matches]):.3f}" if matches else "-")
        certified, free = (
            [row for row in rows if row["cell"] == cell and row["certified"] is flag] for flag in (True, False)
        )
        if not certified:
            continue
        ratio = sum(row["seconds"] for row in certified) / max(sum(row["seconds"] for row in free), 1e-9)
        name = f"`{cell}`" + "".join(f", `{option.replace('=', ': ')}`" for option in options)
        lines.append(f"| {name} | {' | '.join(cells)} | {_format_proof(certified)} | {ratio:.2f} |")
    return "\n".join(lines)


def _format_proof(rows: list[Row]) -> str:
    kinds = " or ".join(sorted({row["kind"] for row in rows}))
    if "bounded" in kinds:
        scope = ", within the range of training" if any(row["within_range"] for row in rows) else ""
        return f"{kinds}, by {max(row['radius'] or 0 for row in rows):,.0f}{scope}"
    return f"{kinds}, rate at most {max(row['rate'] for row in rows):.4f}"


def time_projections(*, length: int = 784, batch_size: int = 32, repeats: int = 3) -> str:
    """Return a Markdown table of the median CPU milliseconds of a training step and of the projection after it."""
    # Imported here: the other modes only run the command line.
    import torch

    from stablernn import Classifier
    from stablernn.certificates.input_range import InputRange
    from stablernn.certificates.projection import project_model

    lines = ["| cell | training step, ms | projection, ms | projection / step |", "|---|---|---|---|"]
    x, y = torch.randn(batch_size, length, 1), torch.randint(0, 10, (batch_size,))
    for cell in CELLS:
        torch.manual_seed(0)
        options = dict(option.split("=") for option in CELLS[cell])
        typed = {name: float(value) if value[0].isdigit() else value for name, value in options.items()}
        model = Classifier(cell, 1, 10, 128, cell_options=typed)
        model.fit_scaling([x.reshape(-1, 1).numpy()])
        # A rate at which each step leaves the region.
        optimizer, times = torch.optim.Adam(model.parameters(), lr=0.01), []
        project_model(model, 1e-3, InputRange.of(5.0))
        for step in range(1, repeats + 2):
            started = time.process_time()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            model.after_step(step, repeats)
            trained = time.process_time()
            project_model(model, 1e-3, InputRange.of(5.0))
            times.append((1e3 * (trained - started), 1e3 * (time.process_time() - trained)))
        # The first step allocates buffers.
        step_time, projection_time = np.median(times[1:], axis=0)
        lines.append(f"| `{cell}` | {step_time:.0f} | {projection_time:.1f} | {projection_time / step_time:.3f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=(0,))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--cells", nargs="*", default=[*CELLS], help="cells to run")
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    parser.add_argument("--timing", action="store_true", help="time projections instead")
    arguments = parser.parse_args()
    if arguments.timing:
        print(time_projections())
        return
    rows: list[Row] = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    jobs = [
        {"data": data, "cell": cell, "certified": is_certified, "seed": seed, "epochs": arguments.epochs}
        for seed in arguments.seeds
        for cell in arguments.cells
        for data in PROBLEMS
        for is_certified in (False, True)
    ]
    # A run is known by its settings, which are the first keys of its row.
    known = [{key: row[key] for key in jobs[0]} for row in rows] if jobs else []
    for job in () if arguments.table else jobs:
        if job not in known:
            rows.append(train(job))
            _write(rows)
    print(format_table(rows))


def _write(rows: list[Row]) -> None:
    from stablernn.training.loop.device import code_commit

    conditions = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "commit": code_commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"conditions": conditions, "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
