"""The order of replays and what is refused before a recording, with threads and operations of the CPU.

No stream, event or graph of a GPU is stood in for: streams here are threads that run what they are given in order.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from cuda_graphs import run_again
from stablernn.engines import CUDAGraphEngine, cuda_graph
from stablernn.engines import base as table
from stablernn.engines.cuda_graph import OnlyRecordable, ReplayOrder


class InOrder:
    """Runs functions one after the other in a thread of its own; the caller does not wait for them."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def issue(self, job: Callable[[], object]) -> None:
        self._jobs.put(job)

    def record_event(self) -> threading.Event:
        event = threading.Event()
        self.issue(event.set)
        return event

    def wait_event(self, event: threading.Event) -> None:
        self.issue(event.wait)

    def finish(self) -> None:
        self._jobs.put(None)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


def test_work_of_a_later_stream_begins_after_that_of_an_earlier_one() -> None:
    streams, current = [InOrder(), InOrder()], 0
    order = ReplayOrder(lambda: streams[current])
    buffer, reads, gate, has_written = [0], [], threading.Event(), threading.Event()
    with order.hold():
        streams[0].issue(lambda: buffer.__setitem__(0, 1))
        streams[0].issue(gate.wait)
        streams[0].issue(lambda: reads.append(buffer[0]))
    current = 1
    with order.hold():
        streams[1].issue(lambda: buffer.__setitem__(0, 2))
        streams[1].issue(has_written.set)
        streams[1].issue(lambda: reads.append(buffer[0]))
    # It was issued, and does not begin while the first stream is at work.
    assert not has_written.wait(0.2)
    gate.set()
    for stream in streams:
        stream.finish()
    assert reads == [1, 2]


def test_an_error_releases_the_order_and_leaves_an_event() -> None:
    streams, current = [InOrder(), InOrder()], 0
    order, ran = ReplayOrder(lambda: streams[current]), threading.Event()

    def fail() -> None:
        with order.hold():
            streams[0].issue(ran.set)
            raise RuntimeError("in between")

    with pytest.raises(RuntimeError, match="in between"):
        fail()
    current = 1
    with order.hold():
        streams[1].issue(lambda: None)
    for stream in streams:
        stream.finish()
    assert ran.is_set()


def gradients(rnn: srn.StableRNN, x: Tensor) -> list[Tensor]:
    output = rnn(x)[0]
    return [output, *torch.autograd.grad(output.square().sum(), list(rnn.parameters()))]


def test_threads_that_train_by_one_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CUDAGraphEngine(run_again, "cpu")
    monkeypatch.setitem(table._ENGINES, "cuda-graph", engine)
    rnn = srn.StableRNN("lem", 3, 8, engine="loop").double()
    batches = torch.randn(4, 10, 2, 5, 3, dtype=torch.float64)
    expected = [[gradients(rnn, x) for x in part] for part in batches]
    rnn.engine = "cuda-graph"
    for _ in range(cuda_graph.LOOPED_RUNS + 1):
        gradients(rnn, batches[0, 0])
    assert engine.count_recordings(rnn.cells[0]) == 1
    results: list[list[list[Tensor]]] = [[] for _ in batches]
    threads = [
        threading.Thread(target=lambda n=number: results[n].extend(gradients(rnn, x) for x in batches[n]))
        for number in range(len(batches))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for result, reference in zip(results, expected, strict=True):
        assert len(result) == len(reference)
        for values, others in zip(result, reference, strict=True):
            torch.testing.assert_close(values, others)


CPU = torch.device("cpu")
WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: float(x.sum()),
    "branch": lambda x: x if x.sum() > 0 else -x,
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "copy to another device": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("name", WAITING)
def test_operations_that_wait_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="its step waits for the device in 'aten"), OnlyRecordable(CPU):
        WAITING[name](torch.randn(4, 3))


def test_operations_that_do_not_wait_are_not_refused() -> None:
    x = torch.randn(4, 3)
    with OnlyRecordable(CPU):
        y = torch.where(x > 0, x, 0 * x)[torch.tensor([0, 2])].double().copy_(x[:2])
    torch.testing.assert_close(y, x[:2].double())
    # Nor is a number of the CPU that the CPU reads.
    with OnlyRecordable(torch.device("cuda", 0)):
        assert float(x.sum()) == float(x.sum())


def warnings_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capture: Any, rnn: srn.StableRNN
) -> list[str]:
    """Train on two shapes, compare with the loop, and return what was logged."""
    monkeypatch.setitem(table._ENGINES, "cuda-graph", CUDAGraphEngine(capture, "cpu"))
    with caplog.at_level(logging.WARNING):
        for rows in (2, 3):
            x = torch.randn(rows, 5, 3, dtype=torch.float64)
            rnn.engine = "loop"
            expected = gradients(rnn, x)
            rnn.engine = "cuda-graph"
            for _ in range(cuda_graph.LOOPED_RUNS + 2):
                torch.testing.assert_close(gradients(rnn, x), expected)
    return [record.message for record in caplog.records]


def test_a_step_that_waits_is_never_recorded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(function: Callable[[], list[Tensor]], memory: Any, /) -> Any:
        raise AssertionError("a recording was begun")

    rnn = srn.StableRNN("lem", 3, 8).double()
    cell, step = rnn.cells[0], type(rnn.cells[0]).step

    def waiting(weights: Any, state: Any, drive: Tensor, dt: Tensor | None = None) -> Any:
        return step(cell, weights, state, drive if float(drive.detach().sum()) else -drive, dt)

    monkeypatch.setattr(cell, "step", waiting)
    assert warnings_of(monkeypatch, caplog, refuse, rnn) == [
        "The engine 'cuda-graph' cannot record 'lem', and the loop runs it: its step waits for the device in "
        "'aten._local_scalar_dense.default', which a CUDA graph cannot hold"
    ]


def fail_in_the_backward_pass(function: Callable[[], list[Tensor]], memory: Any, /) -> Any:
    if memory is None:
        return *run_again(function, None)[:2], "memory"
    try:
        raise RuntimeError("operation not permitted when stream is capturing")
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def fail_without_a_word(function: Callable[[], list[Tensor]], memory: Any, /) -> Any:
    raise NotImplementedError


def run_out_of_memory(function: Callable[[], list[Tensor]], memory: Any, /) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize(
    ("record", "reason", "warnings"),
    [
        # The first error is named, not the one at the end of the recording; no other shape is tried.
        (fail_in_the_backward_pass, "operation not permitted when stream is capturing", 1),
        (fail_without_a_word, "NotImplementedError", 1),
        # A shape for which there is no memory does not rule out others.
        (run_out_of_memory, "CUDA out of memory.", 2),
    ],
)
def test_a_recording_that_fails(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record: Callable[..., Any],
    reason: str,
    warnings: int,
) -> None:
    messages = warnings_of(monkeypatch, caplog, record, srn.StableRNN("lem", 3, 8).double())
    assert messages == [f"The engine 'cuda-graph' cannot record 'lem', and the loop runs it: {reason}"] * warnings
