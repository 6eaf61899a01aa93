"""Gradients that autograd can differentiate again, of engines whose backward pass is their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Inputs = Sequence[Tensor | None]


def differentiate_again(
    compute: Callable[[list[Tensor | None]], list[Tensor]], inputs: Inputs, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients by the inputs of a node, with a graph of their own, for ``create_graph=True``.

    Args:
        compute: The function of the node by operations of torch, from its inputs to its results.
        inputs: The inputs, as they were saved; None where there is none.
        grads: The gradients by the results.
    """
    # Views, since an input may depend on another one, as a state that an earlier run left depends on the weights: of
    # this dependence the node itself must know nothing.
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    pairs = [pair for pair in zip(compute(views), grads, strict=True) if pair[0].requires_grad]
    wanted = [view for view in views if view is not None and view.requires_grad]
    results, weights = [result for result, _ in pairs], [grad for _, grad in pairs]
    gradients = iter(torch.autograd.grad(results, wanted, weights, create_graph=True, allow_unused=True))
    return [next(gradients) if view is not None and view.requires_grad else None for view in views]
