"""CUDA graphs of functions: what can be recorded, how it is recorded, and the order of replays."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_WARM_UPS = 3
"""Runs on a stream of their own before a recording, in which libraries allocate their workspaces."""

Replay = Callable[[], None]


class Capture(Protocol):
    """Records what a function does."""

    def __call__(self, function: Callable[[], list[Tensor]], memory: Any, /) -> tuple[list[Tensor], Replay, Any]:
        """Run the function, and return its tensors, what computes them again in place, and the memory that it uses.

        Args:
            function: It reads and writes tensors whose places in memory stay the same.
            memory: That of an earlier recording, which is to be shared; None for new memory.
        """
        ...


_ABANDONED: list[torch.cuda.CUDAGraph] = []
"""Graphs whose recording failed. The allocator of pinned memory goes on asking them whether a stream is theirs."""


def capture_on_gpu(function: Callable[[], list[Tensor]], memory: Any, /) -> tuple[list[Tensor], Replay, Any]:
    """Record a function as a CUDA graph; see :class:`Capture`.

    Raises:
        RuntimeError: If the function does what a graph cannot hold. Streams and memory are then as they were before.
    """
    # A failed recording cannot name its pool. Blocks of a pool are shared on one stream alone. It is not the stream
    # that torch takes for all recordings of the process, with whose workspace of cuBLAS graphs would replay.
    pool, stream = memory or (torch.cuda.graph_pool_handle(), torch.cuda.Stream())  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                function()
    finally:
        # Whatever fails, the current stream reuses the memory of the caller's tensors after these runs alone.
        current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with (
            # `torch.cuda.graph` leaves its stream the current one if the end of the recording fails.
            torch.cuda.stream(current),
            # Other threads may go on with the GPU meanwhile.
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            results = function()
    except BaseException:
        _abandon(graph, pool)
        raise
    return results, graph.replay, (pool, stream)


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """Undo what torch does at the beginning of a recording, and undoes only at the end of one that succeeds.

    CUDA takes the stream out of its mode itself. The allocator, however, would count the recording as underway: it
    would free no more memory that several streams have used, and refuse to empty its cache, as the next recording does.
    """
    # Raised if the recording had not begun, or had ended and only the graph could not be made of it.
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
    graph.reset()
    _ABANDONED.append(graph)
    # The random generator would go on refusing to draw outside a recording (pytorch#171263). A copy of its state has
    # the same seed and offset, and belongs to no recording.
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the GPU of a tensor is the current one, of which graphs are."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@contextmanager
def refuse_waits(device: torch.device) -> Iterator[None]:
    """Refuse operations that wait for the GPU, where no dispatch mode may be active; on the CPU nothing is refused.

    Raises:
        RuntimeError: At the first such operation.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        # torch warns that it does not notice every wait; one that it misses spoils the recording.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


_aten = torch.ops.aten
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten.repeat_interleave.Tensor,
}
"""Operations whose result the CPU waits for, or whose size it must know."""
_COPIES = {_aten.copy_.default, _aten._to_copy.default}


class OnlyRecordable(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that wait for the GPU before a recording meets them.

    Args:
        device: The GPU, or the CPU in its place; operations on other devices may do what they like.

    Raises:
        RuntimeError: At the first such operation, with its name.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_here = any(isinstance(arg, Tensor) and arg.device == self._device for arg in args)
        selects = func is _aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        if is_here and (selects or func in _WAITING):
            raise _refusal(func)
        result = func(*args, **(kwargs or {}))
        if func in _COPIES:
            devices = {tensor.device for tensor in (*args, result) if isinstance(tensor, Tensor)}
            if len(devices) > 1 and self._device in devices:
                raise _refusal(func)
        return result


def _refusal(func: Any) -> RuntimeError:
    return RuntimeError(f"its step waits for the device in '{func}', which a CUDA graph cannot hold")


def failure_reason(error: BaseException) -> str:
    """Return the first line of what made a recording fail, or the type of an error without a message."""
    # The error of an operation invalidates the recording, whose own error at its end says less.
    first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
    return next(iter(str(first).splitlines()), type(first).__name__)


class ReplayOrder:
    """Lets the replays of one GPU run one after the other, whatever threads and streams they come from.

    A replay reads and writes buffers of its recording, and recordings may share workspaces of libraries. Two streams
    would run two replays at once, and a lock alone orders only when they are issued.

    Args:
        current_stream: Returns the stream of the calling thread, which has ``wait_event`` and ``record_event``; None
            where operations are done when they return, as on the CPU.
    """

    def __init__(self, current_stream: Callable[[], Any] | None) -> None:
        self._current_stream = current_stream
        # Reentrant: a recording is made and replayed under it.
        self._lock = threading.RLock()
        self._last: Any = None
        """The event at the end of the last replay."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Issue operations that begin after those of earlier holders, and end before those of later ones."""
        with self._lock:
            if self._current_stream is None:
                yield
                return
            stream = self._current_stream()
            if self._last is not None:
                stream.wait_event(self._last)
            try:
                yield
            finally:
                self._last = stream.record_event()
