"""Training steps under two settings of the C allocator, in processes of their own: arguments in, figures out, as JSON.

    python benchmarks/speed_allocator.py '{"cell": "antisymmetric", "batch": 32, ...}'

A layer of torch allocates its workspace in every step. By default glibc returns large blocks to the system and maps
fresh pages for the next step; ``nn.LSTM`` then takes two to three times as long as with memory that is kept. In a
process that runs other things as well, as the rows of the other tables do, it is a matter of chance which of the two is
measured. The engines keep their buffers themselves (``stablernn/buffers.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 30),
}
"""Variables by which glibc keeps all memory that it once had; see mallopt(3)."""
SETTINGS: dict[str, dict[str, str]] = {"": {}, ", memory kept": KEPT}
"""What is appended to the names of rows, and the variables of their process."""


def allocator_rows(sizes: Any, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures of each row of :func:`measured`, once by default and once with memory kept.

    Args:
        sizes: A :class:`stablernn_cli.bench.limit.Sizes`; one layer, one member.
        rounds: How often each row is timed.
    """
    arguments = {
        "cell": sizes.cell,
        "batch": sizes.batch_size,
        "time_steps": sizes.length,
        "hidden": sizes.hidden_size,
        "rounds": rounds,
    }
    figures = {}
    for suffix, variables in SETTINGS.items():
        process = subprocess.run(
            [sys.executable, str(Path(__file__)), json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
        )
        for row, values in json.loads(process.stdout).items():
            figures[f"{row}{suffix}"] = values
    return figures


def measured(cell: str, batch: int, time_steps: int, hidden: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures of the limit, of the engine that ``auto`` takes, and of torch's layers, timed in turn.

    Args:
        cell: A key of the catalog.
        batch: Sequences in the minibatch.
        time_steps: Length of each.
        hidden: Units.
        rounds: How often each row is timed.
    """
    from speed_training import auto_engine

    from stablernn_cli.bench.limit import Sizes
    from stablernn_cli.bench.timing import LIMIT, measure, pinned
    from stablernn_cli.bench.training import training_rows

    sizes = Sizes(cell, hidden, batch, time_steps)
    with pinned(threads=1):
        rows = training_rows(sizes)
        chosen = (LIMIT, f"engine {auto_engine(sizes)}", "nn.LSTM", "nn.GRU", "nn.RNN")
        return measure({name: rows[name] for name in chosen}, rounds)


if __name__ == "__main__":
    print(json.dumps(measured(**json.loads(sys.argv[1]))))
