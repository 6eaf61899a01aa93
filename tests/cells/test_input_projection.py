"""The product of a large input in a buffer: the values and derivatives of ``torch.nn.functional.linear``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stablernn import create_cell
from stablernn.buffers import MIN_BYTES
from stablernn.cells import StableCell

HIDDEN = 32
TIME, BATCH = 4, MIN_BYTES // (4 * HIDDEN * 4)
"""The drive has MIN_BYTES in float32, and is thus in a buffer."""


def large_input(*, requires_grad: bool = False) -> Tensor:
    return torch.randn(TIME, BATCH, 3, requires_grad=requires_grad)


@pytest.fixture(params=["antisymmetric", "lipschitz", "rnn", "scornn", "nais_net", "neural_ode_rnn"])
def cell(request: pytest.FixtureRequest) -> StableCell:
    torch.manual_seed(0)
    return create_cell(request.param, 3, HIDDEN)


def parameters(cell: StableCell) -> list[Tensor]:
    bias = getattr(cell, "bias_ih", None)
    return [cell.weight_ih] if bias is None else [cell.weight_ih, bias]


def test_a_large_drive_takes_the_buffer_of_the_one_before(cell: StableCell) -> None:
    x = large_input()
    address = cell.drive(x).data_ptr()
    assert cell.drive(x).data_ptr() == address
    kept = cell.drive(x)
    assert cell.drive(x).data_ptr() != kept.data_ptr()


def test_values_and_gradients_are_those_of_a_linear_map(cell: StableCell) -> None:
    x = large_input(requires_grad=True)
    weights = torch.randn(TIME, BATCH, len(cell.weight_ih))
    results = []
    for drive in (cell.drive(x), nn.functional.linear(x, *parameters(cell))):
        results.append([drive, *torch.autograd.grad((drive * weights).sum(), [x, *parameters(cell)])])
    for value, expected in zip(*results, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5 * float(expected.detach().abs().max()))


def test_it_has_second_derivatives() -> None:
    cell, x = create_cell("antisymmetric", 3, HIDDEN), large_input(requires_grad=True)
    (gradient,) = torch.autograd.grad(cell.drive(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    # The Hessian by the input of one step is 2 W^T W.
    expected = 2 * (cell.weight_ih.T @ cell.weight_ih).sum(dim=0)
    torch.testing.assert_close(second, expected.expand_as(second))


def test_transformed_operations_take_the_plain_map() -> None:
    cell, x = create_cell("antisymmetric", 3, HIDDEN), large_input()
    _, tangent = torch.func.jvp(cell.drive, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, cell.weight_ih.sum(dim=1).expand_as(tangent))
