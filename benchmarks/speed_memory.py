"""Peak memory of a training step, in a process of its own: arguments in, bytes out, both as JSON.

    python benchmarks/speed_memory.py '{"row": "engine native", "cell": "antisymmetric", "batch": 32, ...}'

Counted is what the process holds at most during two training steps beyond what it holds before them. It has run a step
of few time steps by then, so that code and libraries are loaded. Linux tells the peak, and forgets it on request.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to :data:`CLEAR`, this sets the peak of a process to what it holds; see proc_pid_clear_refs(5)."""
FEW_STEPS = 4
FLOAT_BYTES = 4
RECOMPUTED = "recompute_every"


def memory_rows(sizes: Any) -> dict[str, dict[str, float]]:
    """Return for each row the MiB of its peak, and that peak in tensors of one number for each state.

    Args:
        sizes: A :class:`stablernn_cli.bench.limit.Sizes`; one layer, one member.
    """
    from stablernn_cli.bench.training import supported_engines

    engines = supported_engines(sizes)
    # The segment length with the fewest states kept: the root of the number of steps.
    segment = round(sizes.length**0.5)
    rows = [f"engine {engine}" for engine in engines]
    rows += [f"engine {engine}, {RECOMPUTED}={segment}" for engine in engines]
    states = FLOAT_BYTES * sizes.length * sizes.batch_size * sizes.hidden_size
    figures = {}
    for row in [*rows, "nn.LSTM"]:
        arguments = {
            "row": row,
            "cell": sizes.cell,
            "batch": sizes.batch_size,
            "time_steps": sizes.length,
            "hidden": sizes.hidden_size,
        }
        process = subprocess.run(
            [sys.executable, str(Path(__file__)), json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        peak = json.loads(process.stdout)["peak_bytes"]
        figures[row] = {"peak_mib": round(peak / 2**20, 1), "state_tensors": round(peak / states, 3)}
    return figures


def peak_bytes(row: str, cell: str, batch: int, time_steps: int, hidden: int) -> int:
    """Return the bytes that two training steps of a row need at most.

    Args:
        row: ``engine NAME``, followed by ``, recompute_every=STEPS`` where it recomputes, or ``nn.LSTM``.
        cell: A key of the catalog.
        batch: Sequences in the minibatch.
        time_steps: Length of each.
        hidden: Units.
    """
    import torch

    from stablernn_cli.bench.limit import Sizes
    from stablernn_cli.bench.timing import pinned
    from stablernn_cli.bench.training import EnsembleState, Peer, training_step

    sizes = Sizes(cell, hidden, batch, time_steps)
    with pinned(threads=1):
        engine, _, segment = row.removeprefix("engine ").partition(f", {RECOMPUTED}=")
        model = Peer(torch.nn.LSTM, sizes) if engine == "nn.LSTM" else EnsembleState(sizes, engine)
        if isinstance(model, EnsembleState) and segment:
            # Shorter segments first, so that what recomputation imports is loaded.
            model.rnn.recompute_every(FEW_STEPS // 2)
        training_step(model, torch.randn(batch, FEW_STEPS, 1))()
        if isinstance(model, EnsembleState) and segment:
            model.rnn.recompute_every(int(segment))
        step = training_step(model, torch.randn(batch, time_steps, 1))
        gc.collect()
        CLEAR.write_text(RESET_PEAK)
        before = _status_bytes("VmRSS")
        for _ in range(2):
            step()
        return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    print(json.dumps({"peak_bytes": peak_bytes(**json.loads(sys.argv[1]))}))
