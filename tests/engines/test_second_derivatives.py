"""Second derivatives through runs one after the other, each of which starts from the state that the last one left."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import stablernn as srn
from cuda_graphs import run_again
from stablernn.cells import StableCell
from stablernn.engines import CUDAGraphEngine, InputEngine, cuda_graph, list_engines, select_engine, structured
from stablernn.engines import base as table

CELLS = {
    "fused": "lipschitz_rk2",
    "structured": "urnn",
    "torch-rnn": "lstm",
    "native": "antisymmetric",
    "cuda-graph": "lem",
    "scan": "lru",
}


def gradients(cell: StableCell, name: str, x: Tensor) -> list[Tensor]:
    """First derivatives with a graph of their own, and gradients of their sum of squares."""
    engine, weights = select_engine(name, cell, x), cell.materialize()
    state, outputs = cell.initial_state(len(x)), []
    # The state of the second part depends on the weights, which are arguments of it too.
    for part in torch.split(x, 3, dim=1):
        if isinstance(engine, InputEngine):
            output, state = engine.run_inputs(cell, weights, part, state, None)
        else:
            output, state = engine.run(cell, weights, cell.drive(part), state, None)
        assert output is not None
        outputs.append(output.square().sum())
    parameters = list(cell.parameters())
    first = torch.autograd.grad(torch.stack(outputs).sum(), parameters, create_graph=True, materialize_grads=True)
    size = torch.stack([gradient.square().sum() for gradient in first]).sum()
    return [*first, *torch.autograd.grad(size, parameters, materialize_grads=True)]


@pytest.mark.parametrize("engine", CELLS)
def test_runs_in_a_row(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine not in list_engines():
        pytest.skip(f"the engine '{engine}' is not installed")
    monkeypatch.setitem(table._ENGINES, "cuda-graph", CUDAGraphEngine(run_again, "cpu"))
    monkeypatch.setattr(cuda_graph, "LOOPED_RUNS", 0)
    monkeypatch.setattr(structured, "MIN_HIDDEN", 4)
    cell = srn.create_cell(CELLS[engine], 3, 8).double()
    x = torch.randn(4, 9, 3, dtype=torch.float64)
    for value, reference in zip(gradients(cell, engine, x), gradients(cell, "loop", x), strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-8, atol=1e-8)
