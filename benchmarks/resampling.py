"""Whether sequences of very different lengths are classified better when they are resampled.

    STABLERNN_DATA=... python benchmarks/resampling.py --seeds 0 1 2

Gestures are generated: ten curves with one channel, each drawn at an uneven pace in 29 to 361 samples, around a
duration of its own, so that lengths tell something of the class. JapaneseVowels (270 utterances for training, 7 to 29
samples) is from the UEA archive. Every recipe is trained through the command line, as a search trains it in the end,
and scored on the test split. Writes ``benchmarks/results/resampling.json``; about fifteen minutes on two cores.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Row, data_folder, log, mean_spread, read_results, run_json, stored, write_results

SHORTEST, LONGEST = 29, 361
SHAPES = 10
DURATIONS = (45, 230)
"""Range of the median lengths of the curves."""
SPREAD = 0.5
"""Standard deviation of the logarithm of the length of a curve."""


def draw_gestures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return gestures as arrays ``x`` (count, time, 1), ``lengths`` and labels ``y``."""
    # Curves and their durations are the same for every seed.
    amplitudes, phases = (np.random.default_rng(0).normal(size=(SHAPES, 1, 5)) for _ in range(2))
    durations = np.random.default_rng(5).uniform(*np.log(DURATIONS), SHAPES)
    random = np.random.default_rng([1, seed])
    x = np.zeros((count, LONGEST, 1), np.float32)
    lengths, labels = np.empty(count, np.int64), np.arange(count) % SHAPES
    for row, shape in enumerate(labels):
        length = int(np.clip(round(np.exp(random.normal(durations[shape], SPREAD))), SHORTEST, LONGEST))
        # The pace varies by a factor within a gesture, which ends where it ends.
        turns = np.linspace(0, 1, length) * random.uniform(0.5, 1.5) + random.random()
        speed = np.exp(0.5 * np.sin(2 * np.pi * turns))
        progress = (np.cumsum(speed) - speed[0]) / (speed.sum() - speed[0])
        waves = np.sin(1.5 * np.pi * (np.arange(1, 6) * progress[:, None, None] + phases[shape]))
        curve = (amplitudes[shape] * waves).sum(axis=2)
        x[row, :length] = curve * random.normal(1, 0.2) + random.normal(0, 0.3) + random.normal(0, 0.5, curve.shape)
        lengths[row] = length
    return x, lengths, np.array([f"gesture {shape}" for shape in labels])


def write_gestures(folder: Path, seed: int, *, train: int = 200, test: int = 400) -> Path:
    """Write a training and a test file, and return the path of the first."""
    for split, count, number in (("TRAIN", train, 2 * seed), ("TEST", test, 2 * seed + 1)):
        x, lengths, y = draw_gestures(count, number)
        np.savez(folder / f"gestures_{split}.npz", x=x, lengths=lengths, y=y)
    return folder / "gestures_TRAIN.npz"


RECIPES = ("default", "short patches", "resampled")


def settings(recipe: str, lengths: np.ndarray) -> list[str]:
    """Return the words of a recipe; ``short patches`` are those of the search."""
    values = {"resampled": ["resample_steps=100"], "default": []}.get(recipe)
    if values is None:
        stride = max(1, min(max(1, round(lengths.max() / 24)) // 2, round(np.quantile(lengths, 0.1) / 24)))
        values = [f"patch_stride={stride}", f"patch_size={4 * stride}"]
    return [word for value in values for word in ("--set", f"model.{value}")]


def score(data: str, recipe: str, seed: int) -> Row:
    """Return the accuracy on the test split of one training."""
    from stablernn.data import load_data

    with tempfile.TemporaryDirectory() as folder:
        archive = data_folder() / "ucr-uea" / data / f"{data}_TRAIN.ts"
        source = write_gestures(Path(folder), seed) if data == "gestures" else archive
        loaded: Any = load_data(source)
        lengths = np.concatenate([loaded.train.lengths, loaded.validation.lengths])
        words = ["train", "--data", str(source), "--cell", "lru", "--seed", str(seed), "--set", "training.refit=true"]
        summary = run_json([*words, *settings(recipe, lengths)], folder)
    test = summary["metrics"]["test"]
    row = {"data": data, "recipe": recipe, "seed": seed, "seconds": round(summary["seconds"], 1)}
    row |= {key: round(test[key], 4) for key in ("accuracy", "log_loss")}
    log(row)
    return row


def main() -> None:
    parser = harness.arguments_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=["gestures", "JapaneseVowels"])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=stored("resampling"), help="file to write")
    parser.add_argument("--table", action="store_true", help="only print the figures of the results")
    arguments = parser.parse_args()
    if not arguments.table:
        tasks = product(arguments.data, arguments.recipes, arguments.seeds)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            write_results(arguments.results, [*pool.map(lambda task: score(*task), tasks)])
    rows = read_results(arguments.results)
    for data, recipe in product(arguments.data, arguments.recipes):
        values = [row["accuracy"] for row in rows if (row["data"], row["recipe"]) == (data, recipe)]
        print(f"{data:16} {recipe:14} {mean_spread(values)}")


if __name__ == "__main__":
    main()
