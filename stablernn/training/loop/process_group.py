"""Data-parallel training: processes that train one model, each on its share of every minibatch.

Every process has the same weights, draws the same minibatches, and computes the gradient of its share. One all-reduce a
step gives all of them the gradient of the whole minibatch, bit for bit the same, so that they also take the same step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn

from stablernn import errors
from stablernn.errors import ConfigError, StableRNNError, TrainingError
from stablernn.nn.shared_dropout import SharedDraws, shared_draws
from stablernn.training.batches.losses import Batch
from stablernn.training.loop.launch import Launch
from stablernn.training.loop.peer_monitor import PeerMonitor, lost_peer_message
from stablernn.training.loop.rendezvous import first_line, wait_for_processes

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
