"""Data-parallel training: processes that train one model, each on its share of every minibatch.

Every process has the same weights, draws the same minibatches, and computes the gradient of its share. One all-reduce a
step gives all of them the gradient of the whole minibatch, bit for bit the same, so that they also take the same step.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn

from stablernn import errors
from stablernn.data.messages import format_names
from stablernn.environment_variables import read_positive_number
from stablernn.errors import ConfigError, InterruptedRun, StableRNNError, TrainingError
from stablernn.nn.ensemble import SharedDraws, shared_draws
from stablernn.training.loop.launch import Launch
from stablernn.training.loop.minibatches import Batch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_LOG = logging.getLogger("stablernn.training")

T = TypeVar("T")

TIMEOUT = timedelta(hours=1)
"""Longest wait in a collective operation. The first process validates, scores and draws alone while the others wait.
The death of a process is noticed within seconds, see :class:`PeerMonitor`."""

_ERRORS: dict[str, type[StableRNNError]] = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, StableRNNError)
}
"""Errors that are raised again in other processes, by name."""


class ProcessGroup:
    """The processes that train one model. With a single process every method returns at once.

    Processes must call the methods in the same order. They exchange tensors, and bytes of JSON and of safetensors in
    tensors; nothing is unpickled.

    Args:
        launch: The place of this process.
        device: Device of the model.
        monitor: Ends this process when another one dies; None if the program does so.
    """

    def __init__(
        self, launch: Launch | None = None, device: torch.device | None = None, monitor: PeerMonitor | None = None
    ) -> None:
        launch = launch or Launch()
        self._launch = launch
        self._monitor = monitor
        self.rank = launch.rank
        self.world_size = launch.world_size
        self._device = device or torch.device("cpu")
        # This process's votes, which the next gradient carries, and the outcome that came with the last one.
        self._votes = (False, False)
        self._outcome = (False, False)

    @property
    def is_main(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def shard_rows(self, total: int) -> slice:
        """Return this process's rows of a batch: every ``world_size``-th one, from that with its rank.

        Rows that end in a batch of falling lengths are the first to be missing from later segments. Those that remain
        stay with their process, in their order. A process for which there is no row takes the first one, see
        :meth:`is_shard_empty`.
        """
        return slice(0, 1) if self.is_shard_empty(total) else slice(self.rank, None, self.world_size)

    def is_shard_empty(self, total: int) -> bool:
        """Return True if a batch has no row for this process, whose gradient does not count then."""
        return self.rank >= total

    def shard(self, batch: Batch) -> Batch:
        """Return this process's rows of a batch."""
        if self.world_size == 1:
            return batch
        rows = self.shard_rows(len(batch.x))
        parts: dict[str, Any] = batch._asdict()
        parts |= {name: part[rows].contiguous() for name, part in parts.items() if isinstance(part, Tensor)}
        return Batch(**parts)

    def shard_states(self, states: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Return this process's rows of states of a whole batch; None if it has none."""
        if self.world_size == 1 or states is None:
            return states
        if self.is_shard_empty(len(states[0])):
            return None
        return tuple(state[self.shard_rows(len(state))].contiguous() for state in states)

    def all_gather_states(self, states: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Return the states of the whole batch, from the rows that each process has."""
        if self.world_size == 1:
            return states
        content = b"" if states is None else save({str(n): state.cpu().contiguous() for n, state in enumerate(states)})
        # A process without rows has no states.
        tensors = [load(part) for part in self._all_gather_bytes(content) if part]
        parts = [[part[str(number)] for number in range(len(part))] for part in tensors]
        if not parts:
            return None
        whole = tuple(first.new_empty(sum(len(part[0]) for part in parts), *first.shape[1:]) for first in parts[0])
        # The first ranks have rows, so that those without any are the last.
        for rank, part in enumerate(parts):
            for state, rows in zip(whole, part, strict=True):
                state[rank :: self.world_size] = rows
        return whole

    @contextmanager
    def rank_rng(self, total: int, seed: int, step: int) -> Iterator[None]:
        """Draw other random numbers in each process inside the ``with`` block, but for the dropout of the head.

        After the block the generators have the same state in all processes.

        Args:
            total: Rows of the whole batch.
            seed: Seed of the training.
            step: Number of the step.
        """
        if self.world_size == 1:
            yield
            return
        with shared_draws(SharedDraws(self.shard_rows(total), total, self._device)):
            sequence = np.random.SeedSequence([seed, step, self.rank])
            torch.manual_seed(int(sequence.generate_state(1, np.uint32)[0]))
            yield

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter], loss: float) -> float:
        """Replace the gradients by their sums over all processes, and return the sum of the losses.

        A parameter without a gradient in any process is left without one, which an optimizer skips.
        """
        if self.world_size == 1:
            return loss
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        numbers = [*(float(each.grad is not None) for each in parameters), loss, *map(float, self._votes)]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), gradients[0].new_tensor(numbers)])
        self._run(dist.all_reduce, flat)
        *presence, total, stop, save = flat[-len(numbers) :].tolist()
        sums = torch.split(flat[: -len(numbers)], [gradient.numel() for gradient in gradients])
        for parameter, is_present, part in zip(parameters, presence, sums, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype) if is_present else None
        self._outcome = stop > 0, save > 0
        return float(total)

    def vote(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """Return whether to stop and whether to save after this step, the same in all processes.

        A vote goes with the gradient of the next step, so that it takes no message of its own and counts a step later.
        """
        if self.world_size == 1:
            return stop, save
        # A save that is about to be made is not asked for again.
        self._votes = stop, save and not self._outcome[1]
        return self._outcome

    def all_reduce_any(self, flag: bool) -> bool:
        """Return True if the flag is set in any process."""
        if self.world_size == 1:
            return flag
        flags = torch.tensor([int(flag)])
        self._run(dist.all_reduce, flags)
        return bool(flags.item())

    def run_on_rank_zero(self, function: Callable[[], T]) -> T:
        """Call a function in the process of rank 0 alone, and return its result in all.

        Args:
            function: Returns JSON types.

        Raises:
            StableRNNError: In all processes, what the function raises.
        """
        if self.world_size == 1:
            return function()
        result: T = json.loads(self.run_for_bytes_on_rank_zero(lambda: _encode(function())))
        return result

    def run_for_bytes_on_rank_zero(self, function: Callable[[], bytes]) -> bytes:
        """Call a function in the process of rank 0 alone, and return its bytes in all; it raises in all as well."""
        if self.world_size == 1:
            return function()
        content = b""
        if self.is_main:
            try:
                content = function()
            except StableRNNError as error:
                self._broadcast_bytes(_encode([_public_name(error), str(error)]), src=0)
                raise
        failure = json.loads(self._broadcast_bytes(_encode(None), src=0))
        if failure is not None:
            name, message = failure
            raise _ERRORS[name](message)
        return self._broadcast_bytes(content, src=0)

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank; lists in place of tuples.

        Args:
            value: The value of this process, of JSON types.
        """
        if self.world_size == 1:
            return [value]
        # Decoded also where it comes from this process, so that equal values stay equal.
        return [json.loads(content) for content in self._all_gather_bytes(_encode(value))]

    def broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors, and the state of torch's generator on the CPU, by those of rank 0.

        Processes on like machines have the same ones anyway. Where a kernel rounds in another way on one of them, the
        difference does not grow beyond an epoch.
        """
        if self.world_size == 1:
            return
        for tensor in tensors:
            self._run(dist.broadcast, tensor.detach(), src=0)
        state = torch.get_rng_state()
        self._run(dist.broadcast, state, src=0)
        torch.set_rng_state(state)

    def stop_monitor(self) -> None:
        """Do not interrupt this process any more when another one ends; no collective operation may follow."""
        if self._monitor is not None:
            self._monitor.stop()

    def _all_gather_bytes(self, content: bytes) -> list[bytes]:
        return [self._broadcast_bytes(content, src=rank) for rank in range(self.world_size)]

    def _broadcast_bytes(self, content: bytes, src: int) -> bytes:
        """Return the bytes of one process, sent in tensors of the CPU, for which no GPU is needed."""
        length = torch.tensor([len(content)])
        self._run(dist.broadcast, length, src=src)
        if not length:
            return b""
        buffer = bytearray(content) if self.rank == src else bytearray(int(length))
        self._run(dist.broadcast, torch.frombuffer(buffer, dtype=torch.uint8), src=src)
        return bytes(buffer)

    def _run(self, operation: Callable[..., object], tensor: Tensor, **options: int) -> None:
        """Run a collective operation on a tensor.

        Raises:
            TrainingError: If another process ended, or does not answer within ``TIMEOUT``.
        """
        try:
            operation(tensor, **options)
        except RuntimeError as error:
            raise TrainingError(lost_peer_message(self._launch, first_line(error))) from error


@contextmanager
def open_group(launch: Launch, device: torch.device) -> Iterator[ProcessGroup]:
    """Connect with the other processes inside the ``with`` block; a single process has none.

    Gradients on GPUs go over NCCL, everything else over gloo. When a process dies, the others end too. A group that the
    program has opened itself is used, and the end of its processes left to the program.

    Args:
        launch: The place of this process.
        device: Device of the model.

    Raises:
        ConfigError: If the program's own group has another size or rank than the environment variables say.
        TrainingError: If the other processes cannot be reached, or one of them dies.
    """
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if (rank, world_size) != (launch.rank, launch.world_size):
            raise ConfigError(
                f"torch.distributed has this process as rank {rank} of {world_size}, and the environment as rank "
                f"{launch.rank} of {launch.world_size}. Start the program with torchrun, which sets RANK, WORLD_SIZE "
                "and LOCAL_RANK, or call dist.destroy_process_group() before training."
            )
        yield ProcessGroup(launch, device)
        return
    if launch.world_size == 1:
        yield ProcessGroup(launch, device)
        return
    # Optimizers import this module, whose functions have the group that is open then as a default argument. It would
    # never be closed, and a thread of gloo that frees a tensor while the interpreter ends would abort the process.
    import torch.distributed.nn.functional  # noqa: F401

    store = wait_for_processes(launch)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=TIMEOUT,
        )
        monitor = PeerMonitor(launch, TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(lost_peer_message(launch, first_line(error))) from error
    try:
        with monitor.running():
            yield ProcessGroup(launch, device, monitor)
    finally:
        dist.destroy_process_group()


def _public_name(error: StableRNNError) -> str:
    """Return the nearest class of an error that :mod:`stablernn.errors` has, by its name."""
    return next(base.__name__ for base in type(error).__mro__ if _ERRORS.get(base.__name__) is base)


def _encode(value: object) -> bytes:
    """Encode a value as JSON, with NaN and infinities, and numbers of NumPy as those of Python."""
    return json.dumps(value, default=lambda number: number.item()).encode()


RENDEZVOUS_VARIABLE = "STABLERNN_RENDEZVOUS_SECONDS"
RENDEZVOUS_SECONDS = 300.0
"""Default of the wait for all processes to start, that of torch's own stores. Nothing is read or computed before."""
_REPORT_SECONDS = 20.0
"""Interval at which the missing processes are named."""
_POLL_SECONDS = 0.1


def rendezvous_seconds() -> float:
    """Return how long processes wait for each other, from ``STABLERNN_RENDEZVOUS_SECONDS`` or the default.

    Raises:
        ConfigError: If it is not a number of seconds from 1 to 86,400.
    """
    return read_positive_number(RENDEZVOUS_VARIABLE, RENDEZVOUS_SECONDS, (1, 86_400))


def wait_for_processes(launch: Launch) -> Store:
    """Wait until all processes have come, and return the store through which they connect.

    The first process that has come logs who is missing, now and then.

    Args:
        launch: The place of this process.

    Raises:
        ConfigError: If ``STABLERNN_RENDEZVOUS_SECONDS`` is wrong.
        TrainingError: If the store cannot be reached, or a process does not come in time.
    """
    seconds = rendezvous_seconds()
    deadline = time.monotonic() + seconds
    try:
        store = _open_store(launch, timedelta(seconds=seconds))
        # torchrun keeps its store when it restarts the processes, with the addresses of those that ended.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        attempt_store: Store = dist.PrefixStore(f"stablernn/{attempt}", store)  # type: ignore[attr-defined]
        _wait_for_arrivals(dist.PrefixStore("arrivals", attempt_store), launch, deadline, seconds)  # type: ignore[attr-defined]
    except (RuntimeError, ValueError) as error:
        if isinstance(error, TrainingError):
            raise
        raise TrainingError(
            f"Process {launch.rank} of {launch.world_size} cannot connect to the others at {_address()} "
            f"({first_line(error)}). Start all of them with torchrun, or set MASTER_ADDR and MASTER_PORT to a free "
            "port of the machine of rank 0; unset WORLD_SIZE to train in one process."
        ) from error
    return attempt_store


def _open_store(launch: Launch, timeout: timedelta) -> Store:
    # As the rendezvous env:// of torch.distributed, which does not return before all processes have come where rank 0
    # has the store, and then knows their number alone.
    has_store = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        launch.world_size,
        is_master=has_store,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )


def _wait_for_arrivals(arrivals: Store, launch: Launch, deadline: float, seconds: float) -> None:
    keys = [str(rank) for rank in range(launch.world_size)]
    arrivals.set(str(launch.rank), "")
    report_at = time.monotonic() + _REPORT_SECONDS
    # `Store.wait` handles no signal while it waits, and prints warnings when its time is over.
    while not arrivals.check(keys):
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        if now < min(deadline, report_at):
            continue
        missing = [key for key in keys if not arrivals.check([key])]
        present = [key for key in keys if key not in missing]
        if now >= deadline and missing:
            raise TrainingError(
                f"Process {launch.rank} of {launch.world_size} waited {seconds:g} s at {_address()} for "
                f"{_describe(missing)}. Connected: {format_names(present)}. Look for what the missing ones print and "
                f"whether their machines run; {RENDEZVOUS_VARIABLE} sets another time."
            )
        report_at = now + _REPORT_SECONDS
        if missing and present[0] == str(launch.rank):
            _LOG.warning(
                "Waiting for %s of %d, at most another %.0f s.", _describe(missing), launch.world_size, deadline - now
            )


def _describe(ranks: list[str]) -> str:
    return f"{'process' if len(ranks) == 1 else 'processes'} {format_names(ranks)}"


def _address() -> str:
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"


def first_line(error: Exception) -> str:
    """Return the first line of an error of torch, without the source file before it and the general advice after it."""
    lines = str(error).splitlines()
    line = re.sub(r"^\[\S+:\d+\] ", "", lines[0]) if lines else type(error).__name__
    return line.partition(" This is typically caused")[0].rstrip(".")


HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 1.0
"""Time for an error of this process itself: when all stop for one reason, some connections close before others."""
EXIT_SECONDS = 3.0
"""Time in which Python must reach the exception; a kernel or a system call that takes longer is cut off."""
INTERRUPTED_SECONDS = 25.0
"""Longest wait for the callbacks of the first process after an interruption; torchrun kills all after 30 seconds."""


class PeerLostError(BaseException):
    """Raised in the thread that trains. No ``Exception``, so that no handler takes it for an error of its own."""

    def __str__(self) -> str:
        return "Another process of the training ended."


class PeerMonitor:
    """A thread that learns of the death of another process within a second or two.

    Args:
        launch: The place of this process.
        timeout: Longest wait for the heartbeat of a process that is suspended.
    """

    def __init__(self, launch: Launch, timeout: timedelta) -> None:
        self._launch = launch
        # A group of its own, since the threads of one group must call its operations in the same order.
        self._group = cast("dist.ProcessGroup | None", dist.new_group(backend="gloo", timeout=timeout))
        self._trainer = threading.get_ident()
        self._is_stopped = threading.Event()
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        """Guards the decision to interrupt against a stop."""
        self._has_failed = False
        self._reason = ""
        self._thread = threading.Thread(target=self._run, name="stablernn-peer-monitor", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the other processes inside the ``with`` block, and wait at its end for them to end it too.

        A block that fails waits for nothing. A run that is interrupted is so in all processes, of which torchrun would
        terminate the others once one has ended.

        Raises:
            TrainingError: If another process ended first.
        """
        self._thread.start()
        wait_seconds: float | None = None
        try:
            try:
                yield
            except InterruptedRun:
                wait_seconds = INTERRUPTED_SECONDS
                raise
            except BaseException:
                self._has_failed, wait_seconds = True, 2 * HEARTBEAT_SECONDS
                raise
            finally:
                self.stop()
                self._has_ended.set()
                self._thread.join(wait_seconds)
        except PeerLostError:
            self.stop()
            raise TrainingError(lost_peer_message(self._launch, self._reason)) from None

    def stop(self) -> None:
        """Do not interrupt this process from now on: it needs the others no more."""
        with self._lock:
            self._is_stopped.set()
            # Of an interruption that has not reached this thread yet.
            _raise_in_thread(self._trainer, None)

    def _run(self) -> None:
        try:
            self._exchange_heartbeats()
        except RuntimeError as error:
            if not self._is_stopped.is_set():
                self._reason = first_line(error)
                # From the list of torch. With the last reference the connections close, so that processes that wait for
                # this one's heartbeat learn of the death now.
                dist.destroy_process_group(self._group)
        self._group = None
        if self._reason:
            self._interrupt()

    def _interrupt(self) -> None:
        self._is_stopped.wait(GRACE_SECONDS)
        with self._lock:
            if self._is_stopped.is_set():
                return
            _raise_in_thread(self._trainer, PeerLostError)
        if not self._is_stopped.wait(EXIT_SECONDS):
            _LOG.error(lost_peer_message(self._launch, self._reason))
            # Files are replaced in one move, so that none is half written.
            os._exit(1)

    def _exchange_heartbeats(self) -> None:
        """Return when all processes have ended, or this one has failed; raise RuntimeError at a closed connection."""
        ended = torch.zeros(1)
        while ended.item() < self._launch.world_size and not self._has_failed:
            # A process that has ended waits for the others in the exchange.
            ended[0] = float(self._has_ended.wait(HEARTBEAT_SECONDS))
            dist.all_reduce(ended, group=self._group)


def lost_peer_message(launch: Launch, reason: str) -> str:
    """Return the sentence for a process whose connection to another one has closed."""
    return (
        f"Process {launch.rank} of {launch.world_size} lost the connection to another one ({reason}). The message of "
        "the process that ended first says why; continue from the last checkpoint with --resume."
    )


def _raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread at its next Python instruction; None takes back one that was not raised yet.

    Signals would need a number that no program and no batch system uses, and the main thread.
    """
    exception = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
