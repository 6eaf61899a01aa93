"""Helpers for tests of searches: a small file of sequences, and options of trials that take a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SMALL = (
    *("--data", "waves_TRAIN.npz", "--epochs", 2),
    *("--set", "model.hidden_size=4", "--set", "training.batch_size=8"),
)
"""Options of ``tune`` whose trials are tiny."""


def waves(seed: int, *, steps: int = 12) -> dict[str, np.ndarray[Any, Any]]:
    """Two classes of short sequences that differ in frequency."""
    generator = np.random.default_rng(seed)
    y = np.arange(40) % 2
    x = np.sin(np.arange(steps)[None, :, None] * (1 + y[:, None, None])) + 0.3 * generator.normal(size=(40, steps, 1))
    return {"x": x.astype(np.float32), "y": y}


def write_waves(folder: Path) -> None:
    """Write ``waves_TRAIN.npz`` and ``waves_TEST.npz``."""
    np.savez(folder / "waves_TRAIN.npz", **waves(0))
    np.savez(folder / "waves_TEST.npz", **waves(1))
