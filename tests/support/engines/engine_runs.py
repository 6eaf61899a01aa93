"""Runs of a layer or of an ensemble on one engine or another, to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

import stablernn as srn
from stablernn.nn.ensemble import Ensemble

Recurrent = srn.StableRNN | Ensemble
Module = TypeVar("Module", bound=nn.Module)


def perturbed(module: Module, scale: float = 0.1) -> Module:
    """Move all parameters from where they start, so that each of them is of use, and return the module."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return module


def use_engine(rnn: Recurrent, engine: str) -> None:
    if isinstance(rnn, Ensemble):
        rnn.use_engine(engine)
    else:
        rnn.engine = engine


def random_states(rnn: Recurrent, batch: int) -> list[Tensor]:
    parameter = next(rnn.parameters())
    return [torch.randn_like(state.to(parameter)) for state in rnn.initial_state(batch)]


def results(
    rnn: Recurrent,
    engine: str,
    x: Tensor,
    state: Sequence[Tensor] | None = None,
    lengths: Sequence[int] | None = None,
    dt: Tensor | None = None,
    *,
    every_output: bool = True,
    second: bool = False,
) -> list[Tensor]:
    """Return outputs where there are any, last states, and gradients by input, states and parameters.

    Args:
        rnn: The layer or ensemble, which runs on ``engine`` from then on.
        engine: Name of the engine.
        x: ``(batch, time, features)``.
        state: States before the first step; zeros by default.
        lengths: Number of steps of each sequence; all by default.
        dt: Length of each step.
        every_output: Whether outputs of all steps are computed.
        second: Whether the gradients of the sum of squares of all gradients follow.
    """
    use_engine(rnn, engine)
    before = [part.to(x) for part in rnn.initial_state(len(x))] if state is None else state
    leaves = [tensor.clone().requires_grad_() for tensor in (x, *before)]
    sizes = None if lengths is None else torch.tensor(lengths, device=x.device)
    outputs, last = rnn.run(leaves[0], tuple(leaves[1:]), sizes, dt, every_output=every_output)
    loss = torch.stack([part.square().sum() for part in last]).sum()
    if outputs is not None:
        loss = loss + (outputs * torch.linspace(-1, 1, outputs.numel()).to(x).view_as(outputs)).sum()
    leaves += rnn.parameters()
    gradients = list(torch.autograd.grad(loss, leaves, create_graph=second, materialize_grads=True))
    if second:
        size = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        gradients += torch.autograd.grad(size, leaves, materialize_grads=True)
    return [*([] if outputs is None else [outputs]), *last, *gradients]


def assert_near(values: Sequence[Tensor], references: Sequence[Tensor], tolerance: float) -> None:
    """Compare by a share of the largest entry of each tensor, or of 1."""
    for value, reference in zip(values, references, strict=True):
        largest = max(1.0, float(reference.detach().abs().max())) if reference.numel() else 1.0
        torch.testing.assert_close(value.to(reference.dtype), reference, rtol=0, atol=tolerance * largest)
