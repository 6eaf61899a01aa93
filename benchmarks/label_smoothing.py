"""Whether labels should be smoothed by default: cross-validation on training files alone.

    STABLERNN_DATA=... python benchmarks/label_smoothing.py --jobs 2

Twice five stratified folds of each set; every fold is scored by a model that was trained on the other four through the
command line. Test files are not read. Writes ``benchmarks/results/label_smoothing.json``; about ten minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import problem_file

RESULTS = Path(__file__).parent / "results" / "label_smoothing.json"
SETS = ("ECG200", "ItalyPowerDemand", "GunPoint", "Coffee")
SHARES = (0.0, 0.1)
REPEATS, FOLDS = 2, 5


def folds(labels: np.ndarray, seed: int) -> np.ndarray:
    """The fold of each sequence, 0 to ``FOLDS - 1``, the classes shared out evenly."""
    rng = np.random.default_rng(seed)
    found = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        own = rng.permutation(np.flatnonzero(labels == label))
        found[own] = (np.arange(len(own)) + rng.integers(FOLDS)) % FOLDS
    return found


def score(name: str, share: float, seed: int, fold: int) -> dict[str, Any]:
    """Accuracy and log-loss on one fold."""
    from stablernn.data import load_data

    data: Any = load_data(problem_file(name))
    parts = (data.train, data.validation)
    x, lengths, y = (np.concatenate([getattr(part, key) for part in parts]) for key in ("x", "lengths", "y"))
    held_out = folds(y, seed) == fold
    with tempfile.TemporaryDirectory() as folder:
        for split, rows in (("TRAIN", ~held_out), ("TEST", held_out)):
            np.savez(Path(folder) / f"CV_{split}.npz", x=x[rows], lengths=lengths[rows], y=y[rows].astype(str))
        words = ["train", "--data", "CV_TRAIN.npz", "--cell", "lru", "--seed", str(seed), "--json"]
        words += ["--set", f"training.label_smoothing={share}"]
        done = subprocess.run(
            [sys.executable, "-m", "stablernn_cli", *words], cwd=folder, capture_output=True, text=True, check=True
        )
    test = json.loads(done.stdout)["metrics"]["test"]
    return {"data": name, "label_smoothing": share, "sequences": int(held_out.sum()), **test}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    arguments = parser.parse_args()
    jobs = list(product(SETS, SHARES, range(REPEATS), range(FOLDS)))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = list(pool.map(lambda job: score(*job), jobs))
    rows = []
    for name, share in product(SETS, SHARES):
        own = [run for run in runs if (run["data"], run["label_smoothing"]) == (name, share)]
        counts = [run["sequences"] for run in own]
        means = {
            key: round(float(np.average([run[key] for run in own], weights=counts)), 4)
            for key in ("accuracy", "log_loss")
        }
        rows.append({"data": name, "label_smoothing": share, "scored": sum(counts), **means})
        print(rows[-1])
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
