"""Data-parallel training: processes that train one model, each on its share of every minibatch.

Every process has the same weights, draws the same minibatches, and computes the gradient of its share. One all-reduce a
step gives all of them the gradient of the whole minibatch, bit for bit the same, so that they also take the same step.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stablernn.errors import ConfigError, StableRNNError, TrainingError
from stablernn.nn.shared_dropout import SharedDraws, shared_draws
from stablernn.training.batches.losses import Batch
from stablernn.training.loop.launch import Launch

T = TypeVar("T")

TIMEOUT = timedelta(hours=1)
"""Longest wait for another process. The first process validates, scores and draws alone while the others wait. The
death of a process does not take this long: its connections close, and torchrun ends the others."""


class ProcessGroup:
    """The processes that train one model. With a single process every method returns at once.

    Processes must call the methods in the same order.

    Args:
        launch: The place of this process.
        device: Device of the model.
    """

    def __init__(self, launch: Launch | None = None, device: torch.device | None = None) -> None:
        launch = launch or Launch()
        self.rank = launch.rank
        self.size = launch.size
        self._device = device or torch.device("cpu")
        # This process's votes, which the next gradient carries, and the outcome that came with the last one.
        self._votes = (False, False)
        self._outcome = (False, False)

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @property
    def is_main(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def rows(self, total: int) -> slice:
        """Return this process's rows of a batch: every ``size``-th one, from that with its rank.

        Rows that end in a batch of falling lengths are the first to be missing from later segments. Those that remain
        stay with their process, in their order. A process for which there is no row takes the first one, see
        :meth:`is_spare`.
        """
        return slice(0, 1) if self.is_spare(total) else slice(self.rank, None, self.size)

    def is_spare(self, total: int) -> bool:
        """Return True if a batch has no row for this process, whose gradient does not count then."""
        return self.rank >= total

    def share(self, batch: Batch) -> Batch:
        """Return this process's rows of a batch."""
        if self.is_alone:
            return batch
        rows = self.rows(len(batch.x))
        tensors = {name: tensor[rows].contiguous() for name, tensor in batch._asdict().items() if tensor is not None}
        return batch._replace(**tensors)

    def share_states(self, states: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Return this process's rows of states of a whole batch; None if it has none."""
        if self.is_alone or states is None:
            return states
        if self.is_spare(len(states[0])):
            return None
        return tuple(state[self.rows(len(state))].contiguous() for state in states)

    def gather_states(self, states: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Return the states of the whole batch, from the rows that each process has."""
        if self.is_alone:
            return states
        on_cpu = None if states is None else tuple(state.cpu() for state in states)
        parts = [part for part in self.gather(on_cpu) if part is not None]
        if not parts:
            return None
        whole = tuple(first.new_empty(sum(len(part[0]) for part in parts), *first.shape[1:]) for first in parts[0])
        # The first ranks have rows, so that those without any are the last.
        for rank, part in enumerate(parts):
            for state, rows in zip(whole, part, strict=True):
                state[rank :: self.size] = rows
        return whole

    @contextmanager
    def own_draws(self, total: int, seed: int, step: int) -> Iterator[None]:
        """Draw other random numbers in each process inside the ``with`` block, but for the dropout of the head.

        After the block the generators have the same state in all processes.

        Args:
            total: Rows of the whole batch.
            seed: Seed of the training.
            step: Number of the step.
        """
        if self.is_alone:
            yield
            return
        with shared_draws(SharedDraws(self.rows(total), total, self._device)):
            sequence = np.random.SeedSequence([seed, step, self.rank])
            torch.manual_seed(int(sequence.generate_state(1, np.uint32)[0]))
            yield

    def sum_gradients(self, parameters: Sequence[nn.Parameter], loss: float) -> float:
        """Replace the gradients by their sums over all processes, and return the sum of the losses.

        A parameter without a gradient in any process is left without one, which an optimizer skips.
        """
        if self.is_alone:
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
        if self.is_alone:
            return stop, save
        # A save that is about to be made is not asked for again.
        self._votes = stop, save and not self._outcome[1]
        return self._outcome

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set in any process."""
        return flag if self.is_alone else any(self.gather(flag))

    def from_main(self, function: Callable[[], T]) -> T:
        """Return what a function gives in the first process; it runs there alone.

        Raises:
            StableRNNError: In all processes, what the function raises in the first one.
        """
        if self.is_alone:
            return function()
        result: T | None = None
        error: StableRNNError | None = None
        if self.is_main:
            try:
                result = function()
            except StableRNNError as raised:
                error = raised
        # By its message: an exception that takes other arguments cannot be unpickled.
        failure = None if error is None else (type(error), str(error))
        result, failure = self._broadcast((result, failure), source=0)
        if error is not None:
            raise error
        if failure is not None:
            raise failure[0](failure[1])
        return cast("T", result)

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.is_alone:
            return [value]
        return [self._broadcast(value, source) for source in range(self.size)]

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors, and the state of torch's generator on the CPU, by those of the first process.

        Processes on like machines have the same ones anyway. Where a kernel rounds in another way on one of them, the
        difference does not grow beyond an epoch.
        """
        if self.is_alone:
            return
        for tensor in tensors:
            self._run(dist.broadcast, tensor.detach(), src=0)
        state = torch.get_rng_state()
        self._run(dist.broadcast, state, src=0)
        torch.set_rng_state(state)

    def _broadcast(self, value: Any, source: int) -> Any:
        """Return the value of one process, sent in tensors of the CPU, for which no GPU is needed.

        It is pickled, as by the object collectives of ``torch.distributed``: processes of a job trust each other.
        Nothing that is read from a file is unpickled.
        """
        content = pickle.dumps(value) if self.rank == source else b""
        length = torch.tensor([len(content)])
        self._run(dist.broadcast, length, src=source)
        data = torch.frombuffer(bytearray(content or bytes(int(length))), dtype=torch.uint8)
        self._run(dist.broadcast, data, src=source)
        return value if self.rank == source else pickle.loads(data.numpy().tobytes())

    def _run(self, operation: Callable[..., object], tensor: Tensor, **options: int) -> None:
        """Run a collective operation on a tensor.

        Raises:
            TrainingError: If another process ended, or does not answer within ``TIMEOUT``.
        """
        try:
            operation(tensor, **options)
        except RuntimeError as error:
            raise TrainingError(
                f"Process {self.rank} of {self.size} lost the connection to another one ({_reason(error)}). The "
                "message of the process that ended first says why; continue from the last checkpoint with --resume."
            ) from error


@contextmanager
def open_group(launch: Launch, device: torch.device) -> Iterator[ProcessGroup]:
    """Connect with the other processes inside the ``with`` block; a single process has none.

    Gradients on GPUs go over NCCL, everything else over gloo. A group that the program has opened itself is used.

    Args:
        launch: The place of this process.
        device: Device of the model.

    Raises:
        ConfigError: If the program's own group has another size or rank than the environment variables say.
        TrainingError: If the other processes cannot be reached.
    """
    if dist.is_available() and dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        if (rank, size) != (launch.rank, launch.size):
            raise ConfigError(
                f"torch.distributed has this process as rank {rank} of {size}, and the environment as rank "
                f"{launch.rank} of {launch.size}. Start the program with torchrun, which sets RANK, WORLD_SIZE and "
                "LOCAL_RANK, or call dist.destroy_process_group() before training."
            )
        yield ProcessGroup(launch, device)
        return
    if launch.size == 1:
        yield ProcessGroup(launch, device)
        return
    # Optimizers import this module, whose functions have the group that is open then as a default argument. It would
    # never be closed, and a thread of gloo that frees a tensor while the interpreter ends would abort the process.
    import torch.distributed.nn.functional  # noqa: F401

    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"Process {launch.rank} of {launch.size} cannot connect to the others at {os.environ.get('MASTER_ADDR')}:"
            f"{os.environ.get('MASTER_PORT')} ({_reason(error)}). Start all of them with torchrun, or set MASTER_ADDR "
            "and MASTER_PORT to a free port of the machine of rank 0; unset WORLD_SIZE to train in one process."
        ) from error
    try:
        yield ProcessGroup(launch, device)
    finally:
        dist.destroy_process_group()


def _reason(error: Exception) -> str:
    """Return the first line of an error of torch, without the source file before it and the general advice after it."""
    lines = str(error).splitlines()
    line = re.sub(r"^\[\S+:\d+\] ", "", lines[0]) if lines else type(error).__name__
    return line.partition(" This is typically caused")[0].rstrip(".")
