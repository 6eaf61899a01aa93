"""Fits in closed form next to networks trained for a share of their steps, in cross-validation of training data.

    python benchmarks/closed_form.py --data digits
    python benchmarks/closed_form.py --data GunPoint_TRAIN.ts
    python benchmarks/closed_form.py --data daily-min-temperatures.csv --set data.target=[Temp] --set task.horizon=7

Parts are those of a search without a cell: five stratified folds, or up to five ends of the series, of which no test
split is part. The table is the one in docs/choosing.md.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np

from stablernn.data.types import ForecastData
from stablernn.training.search.recipes import SMALL
from stablernn.training.search.resampling import resample
from stablernn.training.search.trial import Trial, load_all, run_trial
from stablernn.training.settings.load import load_config

SOLVED = "training.method=closed-form"
CLASSIFIERS = {
    "closed form, lru, 64 units": (1.0, [SOLVED, "model.cell=lru"]),
    "closed form, lru, 256 units": (1.0, [SOLVED, "model.cell=lru", "model.hidden_size=256"]),
    "closed form, lipschitz, 256 units": (1.0, [SOLVED, "model.cell=lipschitz", "model.hidden_size=256"]),
    "closed form, gru, 256 units": (1.0, [SOLVED, "model.cell=gru", "model.hidden_size=256"]),
    "lru, a fifth of its steps": (0.2, ["model.cell=lru"]),
    "lru, half of its steps": (0.5, ["model.cell=lru"]),
    "lru, all of its steps": (1.0, ["model.cell=lru"]),
}
FORECASTERS = {
    "closed form, linear skip": (1.0, [SOLVED, "model.cell=lru"]),
    "closed form, layers of lru alone": (1.0, [SOLVED, "model.cell=lru", "model.skip=none"]),
    "lipschitz, a fifth of its steps": (0.2, ["model.cell=lipschitz"]),
    "lipschitz, all of its steps": (1.0, ["model.cell=lipschitz"]),
}
PARTS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    settings = [f"data.source={options.data}", *options.overrides]
    data = load_all(load_config(overrides=[*settings, "model.cell=lru"]))
    rows = FORECASTERS if isinstance(data, ForecastData) else CLASSIFIERS
    # As the recipes of a search do with few sequences.
    is_small = not isinstance(data, ForecastData) and len(data.train) + len(data.validation) < SMALL
    settings += ["training.refit=true"] if is_small else []
    count = len(resample(data, PARTS, seed=0, refit=is_small))
    for name, (share, overrides) in rows.items():
        began = time.process_time()
        config = load_config(overrides=[*settings, *overrides])
        results = [run_trial(Trial(0, config, part, PARTS, share)) for part in range(count)]
        failed = next((result.reason for result in results if result.status != "done"), None)
        if failed is not None:
            print(f"| {name} | {failed} | |", flush=True)
            continue
        seconds = (time.process_time() - began) / count
        scores = [result.score for result in results if result.score is not None]
        error = float(np.std(scores, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
        ties = [result.tie for result in results if result.tie is not None]
        log_loss = f", log-loss {np.mean(ties):.3f}" if ties else ""
        print(
            f"| {name} | {results[0].metric} {np.mean(scores):.4f} ± {error:.4f}{log_loss} | {seconds:.1f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
