"""Forward and backward passes of training as CUDA graphs.

With the kernel of a whole sequence, a pass of a small model is some two hundred operations, which a GPU completes
sooner than Python issues them. A minibatch whose shapes came before replays a recording of all of them instead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stablernn.engines import ScanEngine, TorchRNNEngine
from stablernn.engines.cuda_capture import Capture, capture_on_gpu, device_of, failure_reason, refuse_waits
from stablernn.nn.models import SequenceModel, States
from stablernn.nn.segments import recordable
from stablernn.training.batches.losses import Batch, Objective

_LOG = logging.getLogger("stablernn.training")

EAGER_PASSES = 2
"""Passes of a shape before it is recorded: to record takes as long as some passes, and many shapes come once."""
MOST_GRAPHS = 16
"""Shapes that are recorded; their recordings share the memory of activations."""
_ENGINES = (ScanEngine.name, "triton", "triton-tf32", "triton-bf16")
"""Engines that are recorded: those that issue few operations for a sequence, and record none themselves."""


class GraphedPasses:
    """Forward and backward passes of minibatches, each shape of which is a CUDA graph from its third pass on.

    The first two passes of a shape are the caller's. A pass that waits for the GPU, or draws random numbers on the CPU,
    cannot be recorded; the reason is logged once.

    Args:
        model: A model in training mode, whose parameters stay where they are in memory.
        objective: The loss.
        capture: Records a function.
    """

    def __init__(self, model: SequenceModel, objective: Objective, capture: Capture = capture_on_gpu) -> None:
        self._model, self._objective, self._capture = model, objective, capture
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Those of the pass that ran last, whichever graph it is.
        self._gradients: list[Tensor] = []
        self._graphs: dict[Any, _Graph | int] = {}
        self._memory: Any = None
        self._is_off = False

    @property
    def count(self) -> int:
        """The number of shapes that are recorded."""
        return sum(isinstance(entry, _Graph) for entry in self._graphs.values())

    def run(self, batch: Batch, state: States | None) -> tuple[Tensor, States | None] | None:
        """Set the gradients of the parameters to those of a minibatch's loss.

        Args:
            batch: The minibatch, as :meth:`Objective.advance` takes it.
            state: The state before its first step; None to start from zero.

        Returns:
            The loss, which the next run overwrites, and the state after the minibatch. None where nothing was done and
            the caller is to compute them.
        """
        if self._is_off or not self._can_record(batch):
            return None
        tensors = _tensors(batch, state)
        key = (batch.is_padded, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()))
        entry = self._graphs.get(key, 0)
        if isinstance(entry, int):
            if entry < EAGER_PASSES:
                self._graphs[key] = entry + 1
                return None
            graph = self._record(batch, state) if self.count < MOST_GRAPHS else None
            if graph is None:
                return None
            entry = self._graphs[key] = graph
        loss, after = entry.replay(tensors)
        for parameter, gradient, is_used in zip(self._parameters, self._gradients, entry.uses, strict=True):
            parameter.grad = gradient if is_used else None
        return loss, after

    def _can_record(self, batch: Batch) -> bool:
        engine = self._model.rnn.first.engine
        # Padded batches run by recordings of another engine there.
        return engine in _ENGINES or (engine == TorchRNNEngine.name and not batch.is_padded)

    def _record(self, batch: Batch, state: States | None) -> _Graph | None:
        if not self._gradients:
            self._gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
        try:
            with device_of(batch.x), _kept_state(self._model):
                graph = _Graph(self._model, self._objective, batch, state, self._parameters, self._gradients)
                self._memory = graph.record(self._capture, self._memory)
        # What a loss or a cell does may not be recordable.
        except RuntimeError as error:
            self._is_off = True
            # The passes of the caller may need the memory of the recordings.
            self._graphs, self._gradients, self._memory = {}, [], None
            # No variable may keep an error: its traceback, which keeps tensors, would keep the variable in turn.
            reason = failure_reason(error)
            _LOG.info(f"Training passes cannot be recorded as a CUDA graph: {reason}")
            return None
        return graph


class _Graph:
    """The pass of minibatches of one shape.

    Args:
        model: As for :class:`GraphedPasses`.
        objective: Likewise.
        batch: A minibatch of the shape.
        state: The state before it.
        parameters: The parameters that are trained.
        gradients: Tensors of their shapes, which each pass overwrites.
    """

    uses: list[bool]
    """For each parameter whether the loss depends on it."""

    def __init__(
        self,
        model: SequenceModel,
        objective: Objective,
        batch: Batch,
        state: States | None,
        parameters: list[torch.nn.Parameter],
        gradients: list[Tensor],
    ) -> None:
        self._model, self._objective = model, objective
        self._parameters, self._gradients = parameters, gradients
        parts: dict[str, Any] = batch._asdict()
        parts |= {name: part.clone() for name, part in parts.items() if isinstance(part, Tensor)}
        self._batch = Batch(**parts)
        self._state = None if state is None else tuple(tensor.clone() for tensor in state)
        self._inputs = _tensors(self._batch, self._state)

    def record(self, capture: Capture, memory: Any) -> Any:
        """Record the pass, and return the memory that it uses.

        Raises:
            RuntimeError: If it cannot be recorded.
        """
        device = self._batch.x.device
        before = _random_states(device)
        with refuse_waits(device):
            self._pass()
        has_drawn = [not torch.equal(*states) for states in zip(before, _random_states(device), strict=True)]
        if has_drawn[0]:
            raise RuntimeError("it draws random numbers on the CPU, which a replay would repeat")
        if any(has_drawn) and self._model.rnn.first.recompute_every is not None:
            raise RuntimeError("it draws random numbers, which computing states again would not repeat")
        results, self._replay, memory = capture(self._pass, memory)
        self._loss, *self._after = results
        return memory

    def replay(self, tensors: dict[str, Tensor]) -> tuple[Tensor, States | None]:
        """Run the pass for other tensors of the same shapes."""
        with device_of(self._batch.x), torch.no_grad():
            for name, tensor in tensors.items():
                self._inputs[name].copy_(tensor)
            self._replay()
            return self._loss, tuple(tensor.clone() for tensor in self._after) or None

    def _pass(self) -> list[Tensor]:
        # Lengths of batches were checked when the data were read.
        with torch.enable_grad(), recordable():
            loss, after = self._objective.advance(self._model, self._batch, self._state)
            # Not backward(): the nodes that add up gradients belong to the stream on which they were made.
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        self.uses = [gradient is not None for gradient in gradients]
        for mine, gradient in zip(self._gradients, gradients, strict=True):
            if gradient is not None:
                mine.copy_(gradient)
        return [loss.detach(), *(after or ())]


def _tensors(batch: Batch, state: States | None) -> dict[str, Tensor]:
    """Return the tensors of a minibatch and of the state before it, by name."""
    parts = {name: part for name, part in batch._asdict().items() if isinstance(part, Tensor)}
    return parts | {f"state.{number}": tensor for number, tensor in enumerate(state or ())}


@contextmanager
def _kept_state(model: SequenceModel) -> Iterator[None]:
    """Give the buffers of a model and the random generators the state again that they had before the ``with`` block.

    The runs that precede a recording would change what is drawn after them.
    """
    device = next(model.parameters()).device
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    on_cpu, *on_gpu = _random_states(device)
    try:
        yield
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)
        torch.set_rng_state(on_cpu)
        for state in on_gpu:
            torch.cuda.set_rng_state(state, device)


def _random_states(device: torch.device) -> list[Tensor]:
    """Return the states of the random generators of the CPU and, if the device is a GPU, of the GPU."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]
