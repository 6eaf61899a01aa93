"""The published grid of the AntisymmetricRNN on ordered pixels: random draws, the best of which are trained longer.

    STABLERNN_DATA=... python benchmarks/antisymmetric_grid.py --runs DIR

The paper (Chang, Chen, Haber, Chi, ICLR 2019) names a grid of initial scale, step size, damping, optimizer and learning
rate, and not the point of it that reached 98.0 %. Each draw is trained by ``stablernn train`` for the first length
below, the best by validation for the next one, from the start again. Interrupted, the same command goes on. Writes
``benchmarks/results/antisymmetric_grid.json``; about an hour and a half on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from stablernn.training.loop.environment import code_commit

RESULTS = Path(__file__).parent / "results" / "antisymmetric_grid.json"
GRID: dict[str, list[Any]] = {
    "init_scale": [0, 1, 2, 4, 8, 16],
    "step_size": [0.01, 0.1, 1],
    "damping": [0.001, 0.01, 0.1, 1],
    "optimizer": ["adagrad", "sgd"],
    "lr": [0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1],
}
ROUNDS = ((24, 430), (6, 1720))
"""Number of draws and optimizer steps of each; an epoch has 430."""
TRAINING = (
    "--data mnist --cell antisymmetric --preset paper --hidden-size 128 --batch-size 128 --readout last --patch-size 1 "
    "--threads 1 --seed 0 --set model.scaling=none --set training.schedule=constant"
)


def draws(count: int) -> list[dict[str, Any]]:
    """Return different points of the grid."""
    generator = random.Random(0)
    points: list[dict[str, Any]] = []
    while len(points) < count:
        point = {key: generator.choice(values) for key, values in GRID.items()}
        if point not in points:
            points.append(point)
    return points


def score(point: dict[str, Any], steps: int, runs: Path) -> dict[str, Any]:
    """Train a point, or read its finished run, and return its best validation accuracy."""
    directory = runs / "-".join([*(f"{point[key]}" for key in GRID), str(steps)])
    if not (directory / "summary.json").is_file():
        words = [*TRAINING.split(), "--lr", str(point["lr"]), "--max-steps", str(steps)]
        words += ["--set", f"training.optimizer={point['optimizer']}"]
        for key in ("init_scale", "step_size", "damping"):
            words += ["--set", f"model.cell_options.{key}={point[key]}"]
        if (directory / "config.yaml").is_file():
            words = ["--resume"]
        done = subprocess.run(
            [sys.executable, "-m", "stablernn_cli", "train", *words, "--run-dir", str(directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        # 1: the training diverged, which is a result.
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
    accuracies = [json.loads(line)["validation"]["accuracy"] for line in (directory / "metrics.jsonl").open()]
    return {**point, "steps": steps, "accuracy": max(accuracies, default=0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the run directories")
    arguments = parser.parse_args()
    points, rows = draws(ROUNDS[0][0]), []
    for count, steps in ROUNDS:
        ranked = []
        for point in points[:count]:
            row = score(point, steps, arguments.runs)
            print(row, flush=True)
            ranked.append((row["accuracy"], point))
            rows.append(row)
        points = [point for _, point in sorted(ranked, key=lambda pair: -pair[0])]
    RESULTS.write_text(json.dumps({"commit": code_commit(), "trials": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
