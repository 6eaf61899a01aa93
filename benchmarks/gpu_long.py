"""Training steps on one long sequence by engine, for ``benchmarks/gpu.py``."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from stablernn.engines import list_engines
from stablernn_cli.bench.limit import Sizes
from stablernn_cli.bench.training import EnsembleState

ENGINES = {
    "rnn": ("shooting", "triton", "torch-rnn", "loop"),
    "gru": ("shooting", "torch-rnn", "loop"),
    "lru": ("scan", "loop"),
}
"""Engines of each cell. ``rnn`` and ``gru`` contract with the weights that they start from."""
LENGTHS = (4096, 65536)
LOOPED = {"rnn": 65536, "gru": 4096, "lru": 4096}
"""Steps up to which the loop is timed; it takes half a minute for 65,536 steps of a cell with gates."""
HIDDEN = 64
SMALL_LENGTHS, SMALL_HIDDEN = (256,), 8
ROUNDS = 5
SLOW = 2.0
"""Seconds of a step after which it is measured once."""


class _Sweeps(logging.Handler):
    """Keeps what the engine ``shooting`` says of its convergence."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def measure(has_cuda: bool) -> dict[str, Any]:
    """Return milliseconds of forward and backward pass by cell, length and engine, the engines in turn."""
    device = torch.device("cuda" if has_cuda else "cpu")
    sweeps, logger = _Sweeps(), logging.getLogger("stablernn.engines")
    logger.addHandler(sweeps)
    logger.setLevel(logging.INFO)
    rows = [
        _row(cell, length, HIDDEN if has_cuda else SMALL_HIDDEN, device)
        for cell in ENGINES
        for length in (LENGTHS if has_cuda else SMALL_LENGTHS)
    ]
    return {"rounds": ROUNDS, "rows": rows, "sweeps": sweeps.messages}


def _row(cell: str, length: int, hidden: int, device: torch.device) -> dict[str, Any]:
    sizes = Sizes(cell, hidden_size=hidden, batch_size=1, length=length)
    x = torch.randn(1, length, 1, device=device)
    # The interpreter of triton takes minutes for what other engines do in milliseconds.
    names = [name for name in ENGINES[cell] if name in list_engines() and (name != "triton" or device.type == "cuda")]
    models, missing = {}, {}
    if length > LOOPED[cell]:
        names.remove("loop")
        missing["loop"] = "left out: it takes half a minute"
    times: dict[str, list[float]] = {}
    for name in names:
        model = EnsembleState(sizes, name).to(device)
        try:
            # A short sequence warms up the loop, whose graph grows with the length.
            _time(model, x[:, :256] if name == "loop" else x, device)
        # A row that cannot run is named, and the others are timed.
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            models[name], times[name] = model, []
    for _ in range(ROUNDS):
        for name, model in models.items():
            if not times[name] or times[name][0] < 1e3 * SLOW:
                times[name].append(_time(model, x, device))
    milliseconds = {name: [round(value, 2) for value in values] for name, values in times.items()}
    return {"cell": cell, "N": hidden, "T": length, "ms": milliseconds, "missing": missing}


def _time(model: EnsembleState, x: torch.Tensor, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started)
