"""Every kernel of Triton, and CUDA graphs, against the loop in float64 on the CPU, for ``benchmarks/gpu.py``."""

from __future__ import annotations

import copy
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from gpu import NotMeasured
from torch import Tensor

import stablernn as srn
from stablernn.engines import CUDAGraphEngine, list_engines, select_engine
from stablernn.engines.cuda_graph import LOOPED_RUNS

CELLS = ("rnn", "antisymmetric", "lipschitz", "lipschitz_rk2", "antisymmetric_g")
"""A cell of each kind of kernel of the engine ``triton``."""
SCAN_CELLS = ("lru", "mingru", "minlstm")
"""The cells of the engine ``scan``."""
TOLERANCES = {"triton": 2e-5, "triton-tf32": 2e-2, "triton-bf16": 1e-1, "scan": 2e-5, "cuda-graph": 1e-4}
"""Largest difference, relative to the largest entry of a tensor, by outputs, last state or any gradient."""
SIZES = ((128, 19, 50), (33, 5, 9), (200, 17, 9))
GRAPH_SIZES = (33, 5, 9)
"""Sizes at which every cell is run by the engine ``cuda-graph``."""
INTERPRETED_SIZES = ((17, 5, 3),)
"""Units, sequences and steps; matrices of 200 units do not stay on chip in float32."""
MOST_PROCESSES = 14


def measure(has_cuda: bool) -> dict[str, Any]:
    """Return the largest error of each kernel."""
    if "triton" not in list_engines():
        raise NotMeasured("The package triton is not installed: pip install 'stablernn[gpu]'.")
    device = "cuda" if has_cuda else "cpu"
    jobs = [
        (cell, engine, *sizes, kind, device)
        for cell in CELLS
        for sizes in (SIZES if has_cuda else INTERPRETED_SIZES)
        for kind in ("equal", "lengths", "dt")
        for engine in ("triton", "triton-tf32", "triton-bf16")
        if not (kind == "dt" and cell == "rnn")
    ]
    if has_cuda:
        jobs += [
            (cell, "scan", *sizes, kind, device)
            for cell in SCAN_CELLS
            for sizes in SIZES
            for kind in ("equal", "lengths")
        ]
        jobs += [(cell, "cuda-graph", *GRAPH_SIZES, "equal", device) for cell in srn.list_cells()]
        jobs += [("lem", "cuda-graph", *GRAPH_SIZES, kind, device) for kind in ("lengths", "dt")]
        # Nearly all of the time goes to compiling kernels, one of each kind.
        with ProcessPoolExecutor(_processes(), get_context("spawn"), _use_one_thread) as pool:
            rows = list(pool.map(check, *zip(*jobs, strict=True)))
    else:
        rows = [check(*job) for job in jobs]
    return {"is_interpreted": not has_cuda, "passed": all(row["passed"] for row in rows), "rows": rows}


def _processes() -> int:
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1))


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def check(cell: str, engine: str, hidden: int, batch: int, time: int, kind: str, device: str) -> dict[str, Any]:
    """Compare values and all gradients of a layer.

    Args:
        cell: Its cell.
        engine: The engine.
        hidden: Units.
        batch: Sequences.
        time: Steps.
        kind: ``equal`` or unequal ``lengths``, or irregular steps, ``dt``.
        device: Where the engine runs.
    """
    torch.manual_seed(0)
    rnn = srn.StableRNN(cell, 3, hidden, max_dt=3.0 if kind == "dt" else None)
    x, dt = torch.randn(batch, time, 3), 3 * torch.rand(batch, time)
    lengths = torch.randint(0, time + 1, (batch,)) if kind == "lengths" else None
    row: dict[str, Any] = {"cell": cell, "engine": engine, "N": hidden, "B": batch, "T": time, "kind": kind}
    try:
        expected = _run(rnn, "loop", "cpu", torch.float64, x, lengths, dt if kind == "dt" else None)
        actual = _run(rnn, engine, device, torch.float32, x, lengths, dt if kind == "dt" else None)
    # One kernel that does not run says nothing of the next.
    except Exception as error:
        return {**row, "error": None, "passed": False, "message": f"{type(error).__name__}: {error}"[:500]}
    error = max(
        float((value - reference).abs().max() / reference.abs().max().clamp(min=1e-30))
        for value, reference in zip(actual, expected, strict=True)
    )
    return {**row, "error": float(f"{error:.2g}"), "passed": error <= TOLERANCES[engine]}


def _run(
    rnn: srn.StableRNN,
    engine: str,
    device: str,
    dtype: torch.dtype,
    x: Tensor,
    lengths: Tensor | None,
    dt: Tensor | None,
) -> list[Tensor]:
    """Return outputs, last state and all gradients, in float64 on the CPU."""
    # In evaluation mode, in which noise is not drawn.
    rnn = copy.deepcopy(rnn).to(device, dtype).eval()
    rnn.engine = engine
    x = x.to(device, dtype).requires_grad_()
    lengths, dt = None if lengths is None else lengths.to(device), None if dt is None else dt.to(x)
    # The engine 'cuda-graph' replays from the next run on what it recorded; of other inputs and weights than the last.
    for left in reversed(range(LOOPED_RUNS + 2 if engine == "cuda-graph" else 1)):
        with torch.no_grad():
            for tensor in (x, *rnn.parameters()) if engine == "cuda-graph" else ():
                tensor.mul_(2.0 if left else 0.5 ** (LOOPED_RUNS + 1))
        outputs, last = rnn(x, lengths=lengths, dt=dt)
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=dtype, device=device).view_as(outputs)
        state = (last,) if isinstance(last, Tensor) else tuple(last)
        loss = (outputs * weights).sum() + torch.stack([tensor.square().sum() for tensor in state]).sum()
        gradients = torch.autograd.grad(loss, [x, *rnn.parameters()], materialize_grads=True)
    if engine == "cuda-graph":
        selected = select_engine(engine, rnn.cells[0], x)
        if not (isinstance(selected, CUDAGraphEngine) and selected.count_recordings(rnn.cells[0])):
            raise RuntimeError("It could not be recorded.")
    return [tensor.detach().cpu().double() for tensor in (outputs, *state, *gradients)]
