"""Helpers for tests of comparisons: data that is small enough to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_waves(path: Path, seed: int, length: int) -> None:
    """Write two classes of short sequences that differ in frequency."""
    generator = np.random.default_rng(seed)
    y = np.arange(40) % 2
    x = np.sin(np.arange(length)[None, :, None] * (1 + y[:, None, None])) + 0.3 * generator.normal(size=(40, length, 1))
    np.savez(path, x=x.astype(np.float32), y=y)
