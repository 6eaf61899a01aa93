"""The plain loop as CUDA graphs: a GPU gets all kernels of a sequence at once, and not one after the other from Python.

A step of a cell is some ten small kernels. Launched from Python they take ten times as long as the GPU needs for them.
The loop is recorded once for each shape of its tensors, forward and backward, and replayed from then on. Recordings of
whole training passes use the same functions (:func:`capture_on_gpu`, :class:`OnlyRecordable`, :class:`ReplayOrder`).
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stablernn.cells import StableCell, State, Weights
from stablernn.engines.base import LoopEngine, Result, differentiate_again, register_engine, run_steps
from stablernn.transforms import is_transformed

_WARM_UPS = 3
"""Runs on a stream of their own before a recording, in which libraries allocate their workspaces."""

Replay = Callable[[], None]
_LOG = logging.getLogger("stablernn.engines")

LOOPED_RUNS = 2
"""Runs of the loop before a shape is recorded: to record takes as long as some runs, and many shapes come once."""
MOST_RECORDINGS = 8
"""Recordings of a cell, each of which keeps the activations of a batch; the one not used for the longest time goes."""
MOST_SHAPES = 64
"""Shapes of a cell that are counted before they are recorded."""
MOST_STEPS = 4_096
"""Steps of the longest sequence that is recorded: a graph takes memory for each kernel."""
_CHECKED_STEPS = 2
"""Steps in which operations that cannot be recorded are looked for; all are alike."""


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


class CUDAGraphEngine:
    """Runs any cell by CUDA graphs of the plain loop; ``auto`` takes it on a GPU where no kernel runs the cell.

    The first two runs of a shape are the loop itself, and so are sequences of more than 4,096 steps, second
    derivatives, and all runs of a process that trains with others. A cell has up to eight recordings. Replays may come
    from any thread and stream; those on one GPU run one after the other.

    Args:
        capture: Records a function.
        device_type: The type of device on which it does.
    """

    name = "cuda-graph"

    def __init__(self, capture: Capture = capture_on_gpu, device_type: str = "cuda") -> None:
        self._capture, self._device_type = capture, device_type
        self._recordings: WeakKeyDictionary[StableCell, dict[Any, _Recording | int | None]] = WeakKeyDictionary()
        # A cell whose step cannot be recorded in one shape cannot in another.
        self._unrecordable: WeakSet[StableCell] = WeakSet()
        self._orders: dict[torch.device, ReplayOrder] = {}
        self._lock = threading.Lock()

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return (
            drive.device.type == self._device_type
            and not torch.is_autocast_enabled(drive.device.type)
            and not is_transformed()
            and torch._C._len_torch_dispatch_stack() == 0
        )

    def run(
        self,
        cell: StableCell,
        weights: Weights,
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> Result:
        steps = _Steps(cell, len(state), len(weights), valid is not None, dt is not None, substeps, every_output)
        tensors = [drive, *state, *weights, *(tensor for tensor in (valid, dt) if tensor is not None)]
        recording = self._recording(steps, tensors)
        if recording is None:
            return LoopEngine().run(cell, weights, drive, state, valid, dt, substeps, every_output=every_output)
        with device_of(drive):
            results = list(
                cast("tuple[Tensor, ...]", _Replayed.apply(recording, steps, *tensors))  # type: ignore[no-untyped-call]
                if recording.is_training
                else recording.forward(tensors)[0]
            )
        return results.pop(0) if every_output else None, tuple(results)

    def count_recordings(self, cell: StableCell) -> int:
        """Return how many shapes of a cell are recorded."""
        return sum(isinstance(value, _Recording) for value in self._recordings.get(cell, {}).values())

    def _recording(self, steps: _Steps, tensors: list[Tensor]) -> _Recording | None:
        """Return the recording for such tensors; None where the loop is to run."""
        drive = tensors[0]
        is_refused = steps.cell in self._unrecordable
        if is_refused or drive.numel() == 0 or drive.shape[1] > MOST_STEPS or _is_capturing(drive):
            return None
        # Recordings were never made while NCCL was at work in the same process.
        if dist.is_available() and dist.is_initialized():
            return None
        needs_grad = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
        # Precisions are those of the recording.
        precision = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
        key = (
            steps.options,
            *precision,
            *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors),
            *needs_grad,
        )
        with self._lock:
            of_cell = self._recordings.setdefault(steps.cell, {})
            # The one that was used last is at the end.
            entry = of_cell.pop(key, 0)
            if isinstance(entry, int):
                if entry < LOOPED_RUNS:
                    of_cell[key] = entry + 1
                    _forget(of_cell, int, MOST_SHAPES)
                    return None
                _forget(of_cell, _Recording, MOST_RECORDINGS - 1)
                entry = self._record(steps, tensors, needs_grad)
            of_cell[key] = entry
            return entry

    def _record(self, steps: _Steps, tensors: list[Tensor], needs_grad: list[bool]) -> _Recording | None:
        order = self._order_on(tensors[0].device)
        try:
            # The buffers outlive the mode of this run.
            with device_of(tensors[0]), torch.inference_mode(False), order.hold():
                return _Recording(steps, tensors, needs_grad, self._capture, order)
        # What a cell does may not be recordable, such as an operation that waits for the GPU.
        except RuntimeError as error:
            # A smaller shape may have the memory.
            if not isinstance(error, torch.OutOfMemoryError):
                self._unrecordable.add(steps.cell)
            # No variable may keep an error: its traceback, which keeps tensors, would keep the variable in turn.
            reason = failure_reason(error)
            _LOG.warning(f"The engine 'cuda-graph' cannot record '{steps.cell.key}', and the loop runs it: {reason}")
            return None

    def _order_on(self, device: torch.device) -> ReplayOrder:
        streams = partial(torch.cuda.current_stream, device) if device.type == "cuda" else None
        return self._orders.setdefault(device, ReplayOrder(streams))


def _forget(of_cell: dict[Any, Any], kind: type, limit: int) -> None:
    """Forget the shapes of a kind that were not used for the longest time, up to a number of them."""
    keys = [key for key, value in of_cell.items() if isinstance(value, kind)]
    for key in keys[: max(0, len(keys) - limit)]:
        del of_cell[key]


def _stream_of(tensor: Tensor) -> torch.cuda.Stream | None:
    """Return the current stream of the GPU of a tensor, None on the CPU."""
    return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None


def _is_capturing(tensor: Tensor) -> bool:
    """Return whether the work on a tensor goes into the recording of somebody else."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class _Steps:
    """The loop as a function of a list of tensors: drive, state, weights, ``valid`` and ``dt``, which may be missing.

    Attributes:
        cell: The cell.
        states: Number of the tensors of its state.
        weights: Number of its weights.
        has_valid: Whether there is ``valid``.
        has_dt: Whether there is ``dt``.
        substeps: As for :meth:`Engine.run`.
        every_output: Likewise.
    """

    cell: StableCell
    states: int
    weights: int
    has_valid: bool
    has_dt: bool
    substeps: int
    every_output: bool

    @property
    def options(self) -> tuple[object, ...]:
        """All but the cell."""
        return (self.states, self.weights, self.has_valid, self.has_dt, self.substeps, self.every_output)

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Run a few steps on the way to a recording.

        Raises:
            RuntimeError: If they wait for the GPU.
        """
        over_time = {0, *range(1 + self.states + self.weights, len(tensors))}
        few = [tensor[:, :_CHECKED_STEPS] if index in over_time else tensor for index, tensor in enumerate(tensors)]
        with torch.no_grad(), OnlyRecordable(tensors[0].device):
            self(few)

    def __call__(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the outputs, if they are needed, and the tensors of the last state."""
        drive, *others = cast("Sequence[Tensor]", tensors)
        state, others = tuple(others[: self.states]), others[self.states :]
        weights, others = tuple(others[: self.weights]), others[self.weights :]
        valid = others.pop(0) if self.has_valid else None
        dt = others.pop(0) if self.has_dt else None
        outputs, last = run_steps(
            self.cell, weights, drive, state, valid, dt, self.substeps, every_output=self.every_output
        )
        return [*last] if outputs is None else [outputs, *last]


class _Recording:
    """The loop for tensors of one shape, recorded.

    It does not keep the cell, so that it ends with it.

    Args:
        steps: The loop.
        tensors: Its arguments.
        needs_grad: Which of them need gradients.
        capture: Records a function.
        order: The order of the replays on this device.

    Raises:
        RuntimeError: If the loop cannot be recorded.
    """

    def __init__(
        self, steps: _Steps, tensors: list[Tensor], needs_grad: list[bool], capture: Capture, order: ReplayOrder
    ) -> None:
        steps.check(tensors)
        self.is_training = any(needs_grad)
        self._needs_grad = needs_grad
        self._order = order
        self._run = 0
        self._graph: list[Tensor] = []
        self._inputs = [
            tensor.detach().clone().requires_grad_(needed) for tensor, needed in zip(tensors, needs_grad, strict=True)
        ]
        with torch.set_grad_enabled(self.is_training):
            self._results, self._replay, pool = capture(partial(self._call, steps), None)
        if self.is_training:
            self._grads = [torch.zeros_like(result) for result in self._results]
            self._gradients, self._replay_backward, _ = capture(self._differentiate, pool)
        self._stream = _stream_of(tensors[0])

    def _call(self, steps: _Steps) -> list[Tensor]:
        self._graph = steps(self._inputs)
        return [result.detach() for result in self._graph]

    def _differentiate(self) -> list[Tensor]:
        pairs = [(result, grad) for result, grad in zip(self._graph, self._grads, strict=True) if result.requires_grad]
        results, grads = [result for result, _ in pairs], [grad for _, grad in pairs]
        arguments = [tensor for tensor, needed in zip(self._inputs, self._needs_grad, strict=True) if needed]
        if not results:
            return [torch.zeros_like(argument) for argument in arguments]
        # The graph is kept, since its activations must not be overwritten: a replay may be differentiated twice.
        return list(torch.autograd.grad(results, arguments, grads, retain_graph=True, materialize_grads=True))

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], int]:
        """Return the results for some tensors, and the number of this run."""
        with self._order.hold(), torch.no_grad():
            self._replay_with(tensors)
            return [result.clone() for result in self._results], self._run

    def backward(self, tensors: Sequence[Tensor], run: int, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients by the arguments of a run, None where none is needed."""
        with self._order.hold(), torch.no_grad():
            self._use_on_stream(self._grads)
            if run != self._run:
                # A later run has overwritten the activations.
                self._replay_with(tensors)
            for mine, grad in zip(self._grads, grads, strict=True):
                mine.copy_(grad)
            self._replay_backward()
            gradients = iter([gradient.clone() for gradient in self._gradients])
        return [next(gradients) if needed else None for needed in self._needs_grad]

    def _replay_with(self, tensors: Sequence[Tensor]) -> None:
        self._use_on_stream(self._inputs)
        for mine, tensor in zip(self._inputs, tensors, strict=True):
            mine.copy_(tensor)
        self._replay()
        self._run += 1

    def _use_on_stream(self, buffers: Sequence[Tensor]) -> None:
        """Keep the memory of buffers until the current stream is done with them, if they were made on another one."""
        stream = _stream_of(buffers[0])
        if stream is not None and stream != self._stream:
            for buffer in buffers:
                buffer.record_stream(stream)


class _Replayed(torch.autograd.Function):
    """A run of a recording as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, steps: _Steps, *tensors: Tensor) -> tuple[Tensor, ...]:
        results, ctx.run = recording.forward(tensors)
        ctx.recording, ctx.steps = recording, steps
        ctx.save_for_backward(*tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        # create_graph=True, for which the steps themselves are differentiated.
        if torch.is_grad_enabled():
            return None, None, *differentiate_again(ctx.steps, tensors, grads)
        # A replay cannot be part of another recording, and their kernels can.
        if _is_capturing(tensors[0]):
            with torch.enable_grad():
                gradients = differentiate_again(ctx.steps, tensors, grads)
            return None, None, *(None if gradient is None else gradient.detach() for gradient in gradients)
        with device_of(tensors[0]):
            return None, None, *ctx.recording.backward(tensors, ctx.run, grads)


GRAPHS = CUDAGraphEngine()
register_engine(GRAPHS, auto_devices=("cuda",))
