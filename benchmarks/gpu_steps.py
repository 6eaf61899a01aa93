"""Times of a training step (forward and backward) on a GPU by engine and peer, for ``benchmarks/gpu.py``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stablernn.engines import list_engines
from stablernn.engines.cuda_graph import LOOPED_RUNS
from stablernn_cli.bench.limit import Sizes
from stablernn_cli.bench.training import EnsembleState

SIZES = tuple(
    Sizes(cell, hidden_size=hidden, batch_size=batch, length=steps)
    for cell, batch, steps, hidden in (
        ("antisymmetric", 128, 784, 128),
        ("lru", 128, 784, 128),
        ("mingru", 128, 784, 128),
        ("antisymmetric", 32, 784, 128),
        ("lipschitz", 128, 784, 128),
        ("antisymmetric", 1024, 256, 64),
        ("antisymmetric", 128, 256, 256),
        ("antisymmetric", 128, 256, 512),
        ("lem", 128, 784, 128),
        ("exprnn", 128, 784, 128),
    )
)
SMALL_SIZES = (Sizes("antisymmetric", hidden_size=8, batch_size=2, length=3),)
ENGINES = {
    **dict.fromkeys(("antisymmetric", "lipschitz"), ("triton", "triton-tf32", "triton-bf16", "cuda-graph")),
    **dict.fromkeys(("lru", "mingru"), ("scan", "cuda-graph")),
}
"""Engines of a cell besides the loop; of others ``cuda-graph``."""
ROUNDS = 7
SECONDS = 100
"""Seconds after which no further size is begun."""

Step = Callable[[], object]


def measure(has_cuda: bool) -> dict[str, Any]:
    """Return a table for each size: its rows in turn, round after round."""
    device, started = torch.device("cuda" if has_cuda else "cpu"), time.perf_counter()
    tables: dict[str, Any] = {}
    for sizes in SIZES if has_cuda else SMALL_SIZES:
        name = f"{sizes.cell} B={sizes.batch_size} T={sizes.length} N={sizes.hidden_size}"
        if time.perf_counter() - started > SECONDS:
            tables[name] = {"not_measured": f"{SECONDS} seconds had passed."}
            continue
        # The CPU takes a hundred times as long; one table shows it.
        tables[name] = table(sizes, device, with_cpu=not tables)
    return {"is_interpreted": not has_cuda, "rounds": ROUNDS, "tables": tables}


def table(sizes: Sizes, device: torch.device, *, with_cpu: bool) -> dict[str, Any]:
    """Return the median and the range of milliseconds of each row, and why a row is missing."""
    rows: dict[str, Step] = {}
    missing: dict[str, str] = {}
    for name, build in builders(sizes, device, with_cpu=with_cpu).items():
        try:
            step = build()
            # The engine 'cuda-graph' records after some runs.
            for _ in range(LOOPED_RUNS + 1):
                step()
            _synchronize(device)
        # A row that cannot run is named, and the others are timed.
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            rows[name] = step
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, step in rows.items():
            _synchronize(device)
            started = time.perf_counter()
            step()
            _synchronize(device)
            times[name].append(1e3 * (time.perf_counter() - started))
    figures = {
        name: {"ms": statistics.median(values), "ms_low": min(values), "ms_high": max(values)}
        for name, values in times.items()
    }
    return {
        "rows": {name: {key: round(value, 3) for key, value in row.items()} for name, row in figures.items()},
        "missing": missing,
    }


def builders(sizes: Sizes, device: torch.device, *, with_cpu: bool) -> dict[str, Callable[[], Step]]:
    """Return what makes each row."""
    x = torch.randn(sizes.batch_size, sizes.length, 1, device=device)
    rows: dict[str, Callable[[], Step]] = {
        f"engine {name}": lambda name=name: _training(EnsembleState(sizes, name).to(device), x)
        for name in ENGINES.get(sizes.cell, ("cuda-graph",))
        if name in list_engines()
    }
    rows["engine loop"] = lambda: _training(EnsembleState(sizes, "loop").to(device), x)
    rows["nn.LSTM, float32"] = lambda: _training(_LSTM(sizes.hidden_size, allow_tf32=False).to(device), x)
    rows["nn.LSTM, tf32"] = lambda: _training(_LSTM(sizes.hidden_size, allow_tf32=True).to(device), x)
    if with_cpu:
        rows["CPU, engine auto"] = lambda: _training(EnsembleState(sizes).cpu(), x.cpu())
    return rows


class _LSTM(nn.Module):
    """Last state of torch's LSTM, which is cuDNN's on a GPU, with or without the rounding of operands to tf32."""

    def __init__(self, hidden: int, *, allow_tf32: bool) -> None:
        super().__init__()
        self.layer, self.allow_tf32 = nn.LSTM(1, hidden, batch_first=True), allow_tf32

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.layer(x)[1][0]
        return last[-1]


def _training(model: nn.Module, x: Tensor) -> Step:
    """Return a function that computes the gradients of all parameters."""
    parameters = list(model.parameters())

    def step() -> object:
        # The backward pass of cuDNN reads the same flag.
        allowed = getattr(model, "allow_tf32", torch.backends.cudnn.allow_tf32)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
            return torch.autograd.grad(model(x).square().sum(), parameters)

    return step


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
