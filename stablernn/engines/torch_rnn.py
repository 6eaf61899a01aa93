"""The recurrent layers of torch as an engine: cuDNN on a GPU, torch's own kernels on the CPU.

They compute the same function as the cells ``lstm``, ``gru`` and ``rnn``, with the bias that these lack at zero. They
take the inputs of a layer and not its drive: the product with the inputs is a part of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from stablernn.cells import StableCell, State, Weights
from stablernn.cells.elman import ElmanRNNCell
from stablernn.cells.gru import GRUCell
from stablernn.cells.lstm import LSTMCell
from stablernn.engines.base import LoopEngine, Result, differentiate_again, register_engine
from stablernn.engines.cuda_graph import GRAPHS
from stablernn.transforms import is_transformed

_KERNELS: dict[type[StableCell], Callable[..., tuple[Tensor, ...]]] = {
    LSTMCell: torch._VF.lstm,
    GRUCell: torch._VF.gru,
    ElmanRNNCell: torch._VF.rnn_tanh,
}
"""The kernel of each cell; a subclass may compute something else."""


_MOST_STEPS = {"cuda": 32_768}
"""Steps of a call by the type of device: cuDNN refuses 65,536."""

_keeps_graph = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)


class TorchRNNEngine:
    """Runs the cells ``lstm``, ``gru`` and ``rnn`` by the kernels of ``torch.nn.LSTM``, ``GRU`` and ``RNN``.

    Padded batches and second derivatives come from the plain loop, on a GPU from its CUDA graphs. Products are float32
    as it is on a GPU too, where torch lets cuDNN round operands to tf32 unless it is told not to.
    """

    name = "torch-rnn"
    takes_drive = False

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return (
            type(cell) in _KERNELS
            and not timed
            and drive.device.type in ("cpu", "cuda")
            and drive.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled(drive.device.type)
            and not is_transformed()
            # A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
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
        raise NotImplementedError("The engine 'torch-rnn' takes the inputs of a layer: call run_inputs.")

    def run_inputs(
        self,
        cell: StableCell,
        weights: Weights,
        x: Tensor,
        state: State,
        valid: Tensor | None,
        *,
        every_output: bool = True,
    ) -> Result:
        if valid is not None or x.numel() == 0:
            drive = cell.drive(x)
            engine = GRAPHS if GRAPHS.supports(cell, drive) else LoopEngine()
            return engine.run(cell, weights, drive, state, valid, every_output=every_output)
        limit = _MOST_STEPS.get(x.device.type, x.shape[1])
        if x.shape[1] > limit:
            parts = []
            for part in torch.split(x, limit, dim=1):
                outputs, state = self.run_inputs(cell, weights, part, state, None, every_output=every_output)
                parts.append(outputs)
            return torch.cat([part for part in parts if part is not None], dim=1) if every_output else None, state
        hidden = len(weights[0].mT)
        bias = cell.bias_ih
        second = torch.zeros_like(bias)
        if isinstance(cell, GRUCell):
            second = torch.cat([second[: 2 * hidden], weights[1]])
        outputs, *last = _TorchSequence.apply(  # type: ignore[no-untyped-call]
            cell, weights, x.transpose(0, 1).contiguous(), cell.weight_ih, weights[0], bias, second, *state
        )
        return outputs.transpose(0, 1) if every_output else None, tuple(last)


class _TorchSequence(torch.autograd.Function):
    """All steps of a batch, as one node of the graph.

    A node of our own around that of torch, for what torch's lacks: a backward pass under the same precision as the
    forward one, and a second derivative.

    Returns:
        The outputs, ``(time, batch, hidden)``, and the tensors of the last state, ``(batch, hidden)``.
    """

    @staticmethod
    def forward(ctx: Any, cell: StableCell, weights: Weights, *inputs: Tensor) -> tuple[Tensor, ...]:
        is_training = any(ctx.needs_input_grad)
        leaves = [
            tensor.detach().requires_grad_(needed)
            for tensor, needed in zip(inputs, ctx.needs_input_grad[2:], strict=True)
        ]
        with torch.set_grad_enabled(is_training), _in_full_precision():
            results = _call(_KERNELS[type(cell)], leaves, is_training)
        if is_training:
            ctx.cell, ctx.leaves, ctx.results = cell, leaves, results
            ctx.save_for_backward(*inputs)
        return tuple(tensor.detach() for tensor in results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # create_graph=True: a second derivative is taken of what the plain steps compute.
            with _in_full_precision():
                again = differentiate_again(partial(_plain_steps, ctx.cell), ctx.saved_tensors, grads)
            return None, None, *again
        arguments = [tensor for tensor, needed in zip(ctx.leaves, ctx.needs_input_grad[2:], strict=True) if needed]
        keep = _keeps_graph is None or _keeps_graph()
        with _in_full_precision():
            gradients = iter(torch.autograd.grad(ctx.results, arguments, grads, retain_graph=keep, allow_unused=True))
        return None, None, *(next(gradients) if needed else None for needed in ctx.needs_input_grad[2:])


def _call(kernel: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], is_training: bool) -> list[Tensor]:
    """Return the outputs and the last state.

    Args:
        kernel: The function of torch.
        inputs: The input, ``(time, batch, features)``, the two matrices and the two biases, and the first state.
        is_training: Whether a backward pass will follow.
    """
    x, *parameters = inputs[:5]
    # cuDNN reads all weights from one block, in this order, and copies them at every call if they are not.
    block = torch.cat([parameter.reshape(-1) for parameter in parameters])
    parts = torch.split(block, [parameter.numel() for parameter in parameters])
    flat = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
    state = [tensor[None] for tensor in inputs[5:]]
    first = state[0] if len(state) == 1 else state
    # Biases, one layer, no dropout, one direction, time first.
    outputs, *last = kernel(x, first, flat, True, 1, 0.0, is_training, False, False)
    return [outputs, *(tensor[0] for tensor in last)]


def _plain_steps(cell: StableCell, inputs: list[Tensor | None]) -> list[Tensor]:
    """Return what :func:`_call` returns, by the steps of the cell as functions of the same tensors."""
    x, weight_ih, recurrent, bias, second, *state = cast("list[Tensor]", inputs)
    weights: Weights = (recurrent,)
    if isinstance(cell, GRUCell):
        # The second bias of r and z is zero, that of n a weight of the step.
        weights = (recurrent, second.chunk(3)[2])
    drive = torch.nn.functional.linear(x, weight_ih, bias)
    outputs, last = LoopEngine().run(cell, weights, drive.transpose(0, 1), tuple(state), None)
    assert outputs is not None
    return [outputs.transpose(0, 1), *last]


def _in_full_precision() -> Any:
    return torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled,
        benchmark=torch.backends.cudnn.benchmark,
        deterministic=torch.backends.cudnn.deterministic,
        allow_tf32=False,
    )


register_engine(TorchRNNEngine())
