"""Steps as data: they are the cells' steps."""

from __future__ import annotations

import pytest
import torch

import stablernn as srn
from stablernn.cells import StableCell, cell_info, create_cell
from step_forms import CELLS


def perturbed(key: str, **options: object) -> StableCell:
    """A cell in float64 whose parameters are all of use."""
    cell = create_cell(key, 3, 7, **options).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return cell


@pytest.mark.parametrize("key", srn.list_cells())
def test_the_family_of_the_catalog_is_that_of_the_form(key: str) -> None:
    cell = create_cell(key, 3, 7)
    assert cell.has_step_form == (key in CELLS)
    if cell.has_step_form:
        form = cell.step_form(cell.materialize())
        assert form is not None
        assert form.family == cell_info(key).family


TIMED = [key for key in CELLS if create_cell(key, 1, 2).has_timed_step_form]


@pytest.mark.parametrize(("key", "is_timed"), [*((key, False) for key in CELLS), *((key, True) for key in TIMED)])
def test_a_form_is_the_step_of_its_cell(key: str, is_timed: bool) -> None:
    cell = perturbed(key)
    h = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    drive = cell.drive(torch.randn(4, 3, dtype=torch.float64)).detach().requires_grad_()
    dt = torch.rand(4, 1, dtype=torch.float64) if is_timed else None
    weights = cell.materialize_timed() if is_timed else cell.materialize()
    form = cell.step_form(weights)
    assert form is not None
    inputs = [h, drive, *cell.parameters()]
    results = [cell.step(weights, (h,), drive, dt)[0], form.step(h, drive, dt)]
    torch.testing.assert_close(results[1], results[0], rtol=1e-13, atol=1e-13)
    gradients = [
        torch.autograd.grad(result.square().sum(), inputs, retain_graph=True, materialize_grads=True)
        for result in results
    ]
    for gradient, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("key", TIMED)
def test_an_euler_step_says_that_it_is_one(key: str) -> None:
    # Certificates for irregular time rest on it.
    cell = create_cell(key, 1, 2)
    assert cell.is_euler == (cell_info(key).family in ("residual", "shared gate"))
