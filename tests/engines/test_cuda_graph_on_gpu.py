"""On a CUDA GPU: replays from several streams, recordings that fail, and recordings of somebody else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.engines import CUDAGraphEngine, cuda_graph
from stablernn.engines import base as table

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
ROWS, STEPS = 32, 200


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CUDAGraphEngine:
    engine = CUDAGraphEngine()
    monkeypatch.setitem(table._ENGINES, "cuda-graph", engine)
    return engine


def gradients(rnn: srn.StableRNN, x: Tensor) -> list[Tensor]:
    output = rnn(x)[0]
    # An output with its graph would keep the parameters' nodes on the stream of this run.
    return [output.detach(), *torch.autograd.grad(output.square().mean(), list(rnn.parameters()))]


def looped(rnn: srn.StableRNN, x: Tensor) -> list[Tensor]:
    name, rnn.engine = rnn.engine, "loop"
    try:
        return gradients(rnn, x)
    finally:
        rnn.engine = name


def record(rnn: srn.StableRNN, x: Tensor) -> None:
    for _ in range(cuda_graph.LOOPED_RUNS + 1):
        gradients(rnn, x)


def batches(count: int) -> Tensor:
    return torch.randn(count, ROWS, STEPS, 3, dtype=torch.float64, device="cuda")


# The threads' graphs share the nodes of the parameters, which belong to the stream of the first one.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_threads_with_a_stream_each_train_by_one_recording(engine: CUDAGraphEngine) -> None:
    rnn = srn.StableRNN("lem", 3, 32, engine="cuda-graph").to("cuda", torch.float64)
    x = batches(24)
    expected = [looped(rnn, batch) for batch in x]
    record(rnn, x[0])
    assert engine.count_recordings(rnn.cells[0]) == 1
    torch.cuda.synchronize()
    results: dict[int, list[Tensor]] = {}

    def work(first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for number in range(first, len(x), 4):
                results[number] = gradients(rnn, x[number])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for number, reference in enumerate(expected):
        torch.testing.assert_close(results[number], reference, rtol=1e-9, atol=1e-12)


class _Synchronize(torch.autograd.Function):
    """What no recording can hold and no operation of torch shows, in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        torch.cuda.synchronize()
        return grads[0]


def _synchronized(x: Tensor) -> Tensor:
    torch.cuda.synchronize()
    return x


@pytest.mark.parametrize("spoil", [_synchronized, _Synchronize.apply], ids=["forward", "backward"])
def test_a_recording_that_fails_leaves_the_gpu_as_it_was(
    spoil: Callable[[Tensor], Tensor],
    engine: CUDAGraphEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rnn = srn.StableRNN("lem", 3, 8, engine="cuda-graph").to("cuda", torch.float64)
    cell, step = rnn.cells[0], type(rnn.cells[0]).step

    def spoiled(weights: Any, state: Any, drive: Tensor, dt: Tensor | None = None) -> Any:
        return step(cell, weights, state, spoil(drive), dt)

    monkeypatch.setattr(cell, "step", spoiled)
    x, current = torch.randn(4, 5, 3, dtype=torch.float64, device="cuda"), torch.cuda.current_stream()
    expected = looped(rnn, x)
    with caplog.at_level(logging.WARNING):
        for _ in range(cuda_graph.LOOPED_RUNS + 2):
            torch.testing.assert_close(gradients(rnn, x), expected)
    (message,) = [entry.message for entry in caplog.records]
    assert message.startswith("The engine 'cuda-graph' cannot record 'lem', and the loop runs it: ")
    assert torch.cuda.current_stream() == current
    # The allocator takes no recording to be underway, and the random generator belongs to none.
    torch.cuda.empty_cache()
    assert not torch.equal(torch.rand(8, device="cuda"), torch.rand(8, device="cuda"))
    pinned = torch.ones(8).pin_memory()
    assert float(pinned.to("cuda", non_blocking=True).sum()) == 8
    other = srn.StableRNN("lem", 3, 8, engine="cuda-graph").to("cuda", torch.float64)
    record(other, x)
    assert engine.count_recordings(other.cells[0]) == 1
    torch.testing.assert_close(gradients(other, x), looped(other, x))


@pytest.fixture
def stream() -> Iterator[torch.cuda.Stream]:
    """The current stream, on which everything of a test runs, as torch asks of recordings with a backward pass."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield stream
        stream.synchronize()


def test_a_training_step_in_a_recording_of_somebody_else(engine: CUDAGraphEngine, stream: torch.cuda.Stream) -> None:
    rnn = srn.StableRNN("lem", 3, 8, engine="cuda-graph").to("cuda", torch.float64)
    x = torch.randn(4, 5, 3, dtype=torch.float64, device="cuda")
    record(rnn, x)
    assert engine.count_recordings(rnn.cells[0]) == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = gradients(rnn, x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(recorded, looped(rnn, x))


def test_a_backward_pass_alone_in_a_recording_of_somebody_else(
    engine: CUDAGraphEngine, stream: torch.cuda.Stream
) -> None:
    rnn = srn.StableRNN("lem", 3, 8, engine="cuda-graph").to("cuda", torch.float64)
    x = torch.randn(4, 5, 3, dtype=torch.float64, device="cuda")
    record(rnn, x)
    loss = rnn(x)[0].square().mean()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = torch.autograd.grad(loss, list(rnn.parameters()))
    graph.replay()
    assert not any(gradient.requires_grad for gradient in recorded)
    torch.testing.assert_close([*recorded], looped(rnn, x)[1:])
