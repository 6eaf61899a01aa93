"""First and second derivatives of every cell through the layer, against finite differences in float64.

The reference tests compare autograd with autograd; these catch a derivative that autograd itself gets wrong, and a
hand-written backward that has no second derivative.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from stablernn import StableRNN, list_cells

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((key, {}) for key in list_cells()),
    ("lvf", {"nonlinearity": "modrelu", "constraint": "none"}),
    ("lvf", {"nonlinearity": "tanh", "constraint": "hard"}),
    ("lvf_mid", {"nonlinearity": "modrelu", "constraint": "hard"}),
    ("lvf_mid", {"nonlinearity": "softshrink", "constraint": "hard"}),
    ("lvf_mid", {"nonlinearity": "tanh", "constraint": "none"}),
]
IDS = [",".join([key, *(str(value) for value in options.values())]) for key, options in VARIANTS]


def _problem(key: str, options: dict[str, Any], time: int) -> tuple[Any, list[Tensor]]:
    """The layer as a function of input, first state and parameters, and a point at which to differentiate it."""
    layer = StableRNN(key, 2, 3, engine="loop", **options).double()
    names = [name for name, _ in layer.named_parameters()]
    points = [torch.randn(2, time, 2, dtype=torch.float64)]
    points += [torch.randn_like(tensor) for tensor in layer.initial_state(2)]
    width = len(points)
    points += [0.5 * torch.randn_like(parameter) for parameter in layer.parameters()]

    def outputs(*values: Tensor) -> Tensor:
        x, *state = values[:width]
        parameters = dict(zip(names, values[width:], strict=True))
        stacked = [tensor[None] for tensor in state]
        result, last = functional_call(layer, parameters, (x, stacked))
        parts = (last,) if isinstance(last, Tensor) else last
        return torch.cat([result.flatten(), *(part.flatten() for part in parts)])

    return outputs, [point.detach().requires_grad_() for point in points]


@pytest.mark.parametrize(("key", "options"), VARIANTS, ids=IDS)
def test_first_derivatives_equal_finite_differences(key: str, options: dict[str, Any]) -> None:
    function, points = _problem(key, options, time=4)
    assert gradcheck(function, points)


@pytest.mark.parametrize(("key", "options"), VARIANTS, ids=IDS)
def test_second_derivatives_equal_finite_differences(key: str, options: dict[str, Any]) -> None:
    function, points = _problem(key, options, time=2)
    assert gradgradcheck(function, points)
