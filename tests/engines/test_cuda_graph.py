"""The engine ``cuda-graph`` computes what the loop computes; without a GPU, recordings are functions that run again."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from cuda_graphs import run_again
from engine_runs import assert_near, results
from stablernn.engines import CUDAGraphEngine, cuda_graph

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
QUICK = ("lem", "urnn", "gru_d", "sr_lstm")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def engine_for(device: str) -> CUDAGraphEngine:
    return CUDAGraphEngine() if device == "cuda" else CUDAGraphEngine(run_again, "cpu")


@pytest.fixture
def select(monkeypatch: pytest.MonkeyPatch) -> Callable[[CUDAGraphEngine], None]:
    """What lets layers with the engine ``cuda-graph`` run an instance of it."""
    from stablernn.engines import base as table

    return lambda engine: monkeypatch.setitem(table._ENGINES, "cuda-graph", engine)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "key", [key if key in QUICK else pytest.param(key, marks=pytest.mark.slow) for key in srn.list_cells()]
)
def test_every_cell_equals_the_loop(key: str, device: str, select: Callable[[CUDAGraphEngine], None]) -> None:
    engine = engine_for(device)
    select(engine)
    rnn = srn.StableRNN(key, 3, 8).to(device, torch.float64).eval()
    for _ in range(cuda_graph.LOOPED_RUNS + 2):
        x = torch.randn(4, 5, 3, dtype=torch.float64, device=device)
        assert_near(results(rnn, "cuda-graph", x), results(rnn, "loop", x), 1e-9)
    assert engine.count_recordings(rnn.cells[0]) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_padded_batches_and_irregular_time(device: str, select: Callable[[CUDAGraphEngine], None]) -> None:
    select(engine_for(device))
    rnn = srn.StableRNN("lem", 3, 8, num_layers=2, max_dt=3.0).to(device, torch.float64)
    for lengths in ([5, 0, 4, 1], [2, 5, 5, 3], [1, 1, 1, 1], [5, 5, 5, 5]):
        x = torch.randn(4, 5, 3, dtype=torch.float64, device=device)
        options = {"lengths": lengths, "dt": 3 * torch.rand(4, 5).to(x)}
        assert_near(results(rnn, "cuda-graph", x, **options), results(rnn, "loop", x, **options), 1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_runs_before_a_backward_pass(device: str, select: Callable[[CUDAGraphEngine], None]) -> None:
    """A later run overwrites the activations of an earlier one, which is run again."""
    select(engine_for(device))
    rnn = srn.StableRNN("gru", 3, 8).to(device, torch.float64)
    gradients: dict[str, list[Tensor]] = {}
    batches = [torch.randn(4, 5, 3, dtype=torch.float64, device=device) for _ in range(4)]
    for name in ("loop", "cuda-graph"):
        rnn.engine = name
        losses = [rnn(x)[0].square().sum() for x in batches]
        gradients[name] = [
            gradient
            for loss in losses
            for _ in range(2)
            for gradient in torch.autograd.grad(loss, list(rnn.parameters()), retain_graph=True)
        ]
    assert_near(gradients["cuda-graph"], gradients["loop"], 1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives(device: str, select: Callable[[CUDAGraphEngine], None]) -> None:
    select(engine_for(device))
    rnn = srn.StableRNN("lstm", 3, 8).to(device, torch.float64)
    gradients: dict[str, list[Tensor]] = {}
    x = torch.randn(4, 5, 3, dtype=torch.float64, device=device)
    for name in ("loop", *["cuda-graph"] * (cuda_graph.LOOPED_RUNS + 1)):
        rnn.engine = name
        first = torch.autograd.grad(rnn(x)[0].square().sum(), list(rnn.parameters()), create_graph=True)
        size = torch.stack([gradient.square().sum() for gradient in first]).sum()
        gradients[name] = list(torch.autograd.grad(size, list(rnn.parameters())))
    assert_near(gradients["cuda-graph"], gradients["loop"], 1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_without_gradients(device: str, select: Callable[[CUDAGraphEngine], None]) -> None:
    select(engine_for(device))
    rnn, values = srn.StableRNN("lem", 3, 8).to(device, torch.float64), list[list[Tensor]]()
    x = torch.randn(4, 4, 5, 3, dtype=torch.float64, device=device)
    with torch.no_grad():
        for name in ("cuda-graph", "loop"):
            rnn.engine = name
            # The results of one run must not change with the next.
            values.append([tensor for output, state in map(rnn, x) for tensor in (output, *state)])
    assert_near(*values, 1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_a_recording_outlives_inference_mode(device: str, select: Callable[[CUDAGraphEngine], None]) -> None:
    engine = engine_for(device)
    select(engine)
    rnn = srn.StableRNN("lem", 3, 8, engine="cuda-graph").to(device, torch.float64)
    x = torch.randn(4, 5, 3, dtype=torch.float64, device=device)
    with torch.inference_mode():
        for _ in range(cuda_graph.LOOPED_RUNS + 1):
            expected = rnn(x)[0]
    assert engine.count_recordings(rnn.cells[0]) == 1
    with torch.no_grad():
        torch.testing.assert_close(rnn(x)[0], expected)


def captures(
    monkeypatch: pytest.MonkeyPatch, rnn: srn.StableRNN, shapes: list[tuple[int, int, int]]
) -> tuple[int, int]:
    """How many functions are recorded in runs without gradients, and how many are kept."""
    from stablernn.engines import base as table

    count = 0

    def capture(function: Callable[[], list[Tensor]], pool: Any, /) -> tuple[list[Tensor], Callable[[], None], Any]:
        nonlocal count
        count += 1
        return run_again(function, pool)

    engine = CUDAGraphEngine(capture, "cpu")
    monkeypatch.setitem(table._ENGINES, "cuda-graph", engine)
    rnn.engine = "cuda-graph"
    with torch.no_grad():
        for shape in shapes:
            rnn(torch.randn(*shape))
    return count, engine.count_recordings(rnn.cells[0])


def test_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = srn.StableRNN("lem", 3, 8)
    assert captures(monkeypatch, rnn, [(2, 5, 3)] * cuda_graph.LOOPED_RUNS) == (0, 0)
    assert captures(monkeypatch, rnn, [(2, 5, 3)] * 9) == (1, 1)
    # The recordings that were not used for the longest time make room.
    many = [(rows, 5, 3) for rows in range(1, 12)] * (cuda_graph.LOOPED_RUNS + 1)
    assert captures(monkeypatch, rnn, many) == (11, cuda_graph.MOST_RECORDINGS)
    assert captures(monkeypatch, rnn, [*many, (11, 5, 3)]) == (11, cuda_graph.MOST_RECORDINGS)
    assert captures(monkeypatch, rnn, [(rows, 5, 3) for rows in range(1, 99)] * 3) == (0, 0)
    monkeypatch.setattr(cuda_graph, "MOST_STEPS", 4)
    assert captures(monkeypatch, rnn, [(2, 5, 3)] * 9) == (0, 0)


def test_what_cannot_be_recorded_runs_in_the_loop(
    caplog: pytest.LogCaptureFixture, select: Callable[[CUDAGraphEngine], None]
) -> None:
    def fail(function: Callable[[], list[Tensor]], pool: Any, /) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    select(CUDAGraphEngine(fail, "cpu"))
    rnn = srn.StableRNN("lem", 3, 8).double()
    with caplog.at_level(logging.WARNING):
        for _ in range(cuda_graph.LOOPED_RUNS + 3):
            x = torch.randn(4, 5, 3, dtype=torch.float64)
            assert_near(results(rnn, "cuda-graph", x), results(rnn, "loop", x), 1e-9)
    assert [record.message for record in caplog.records] == [
        "The engine 'cuda-graph' cannot record 'lem', and the loop runs it: "
        "operation not permitted when stream is capturing"
    ]


def test_a_failed_recording_leaves_no_tensor_behind(select: Callable[[CUDAGraphEngine], None]) -> None:
    references = []

    def fail(function: Callable[[], list[Tensor]], pool: Any, /) -> Any:
        results = function()
        references.extend(weakref.ref(result) for result in results)
        raise RuntimeError("operation not permitted when stream is capturing")

    select(CUDAGraphEngine(fail, "cpu"))
    rnn = srn.StableRNN("lem", 3, 8, engine="cuda-graph")
    gc.disable()
    try:
        for _ in range(cuda_graph.LOOPED_RUNS + 1):
            rnn(torch.randn(4, 5, 3))
        assert references
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()


def test_recordings_end_with_their_cell(select: Callable[[CUDAGraphEngine], None]) -> None:
    # The function is not kept, as it is not by a graph on a GPU.
    engine = CUDAGraphEngine(lambda function, pool, /: (function(), lambda: None, pool), "cpu")
    select(engine)
    rnn = srn.StableRNN("lem", 3, 8, engine="cuda-graph")
    for _ in range(cuda_graph.LOOPED_RUNS + 1):
        rnn(torch.randn(4, 5, 3))
    assert len(engine._recordings) == 1
    del rnn
    gc.collect()
    assert len(engine._recordings) == 0
