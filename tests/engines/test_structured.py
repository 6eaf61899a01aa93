"""The engine that multiplies by the structure of a matrix equals the loop, which multiplies it out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stablernn as srn
from engine_runs import assert_near, random_states, results
from stablernn.cells import create_cell
from stablernn.cells._complex import ComplexCell
from stablernn.engines import list_engines, select_engine, structured
from stablernn.engines.structured import MIN_HIDDEN
from stablernn.errors import ConfigError
from stablernn.parametrizations import real_form

CELLS: list[tuple[str, dict[str, Any]]] = [
    ("kru", {}),
    ("kru", {"nonlinearity": "modrelu"}),
    ("kru", {"factors": 2}),
    ("urnn", {}),
    ("urnn", {"nonlinearity": "modrelu"}),
]
LENGTHS = [9, 0, 4, 9, 1]


@pytest.fixture
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine run matrices of any size, which it leaves to the loop for speed alone."""
    monkeypatch.setattr(structured, "MIN_HIDDEN", 1)


@pytest.mark.usefixtures("small_matrices")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "lengths"])
@pytest.mark.parametrize("size", [2, 7, 12])
@pytest.mark.parametrize(("key", "options"), CELLS, ids=str)
def test_values_and_gradients_equal_those_of_the_loop(
    key: str, options: dict[str, Any], size: int, lengths: list[int] | None, dtype: torch.dtype, tolerance: float
) -> None:
    if options.get("factors") and size != 12:
        pytest.skip("2 and 7 have one factor")
    torch.manual_seed(size)
    rnn = srn.StableRNN(key, 3, size, 2, **options).to(dtype)
    x = torch.randn(5, 9, 3, dtype=dtype)
    # Some sequences have started, others begin with the trained state.
    started = torch.tensor([1.0, 0, 1, 0, 0], dtype=dtype)[:, None]
    state = [started if part.shape[1] == 1 else part for part in random_states(rnn, 5)]
    expected = results(rnn, "loop", x, state, lengths)
    assert_near(results(rnn, "structured", x, state, lengths), expected, tolerance)


@pytest.mark.usefixtures("small_matrices")
@pytest.mark.parametrize("key", ["kru", "urnn"])
def test_it_has_second_derivatives(key: str) -> None:
    rnn = srn.StableRNN(key, 2, 4, engine="structured").double()
    x = torch.randn(3, 5, 2).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: rnn(x, lengths=torch.tensor([5, 2, 4]))[0], x, fast_mode=True)


@pytest.mark.parametrize(("key", "options"), CELLS, ids=str)
def test_products_and_their_gradients_are_those_of_the_matrix(key: str, options: dict[str, Any]) -> None:
    cell = create_cell(key, 2, 24, **options).double()
    assert isinstance(cell, ComplexCell)
    product, matrix = cell.structured_product(), cell.complex_matrix()
    assert product is not None
    h, g, drive = (torch.randn(5, 48).double() for _ in range(3))
    real_matrix = real_form(matrix)
    torch.testing.assert_close(product.apply(h, drive), h @ real_matrix.mT + drive)
    expected = torch.autograd.grad(product.apply(h, drive), product.tensors, g)
    by_state, gradients = product.replace([tensor.detach() for tensor in product.tensors]).backward(h, g)
    torch.testing.assert_close(by_state, g @ real_matrix)
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("key", ["kru", "urnn"])
def test_auto_takes_it_for_large_matrices(key: str) -> None:
    assert "structured" in list_engines()
    for size, expected in ((MIN_HIDDEN, "structured"), (MIN_HIDDEN - 1, "loop")):
        cell = create_cell(key, 1, size)
        assert select_engine("auto", cell, cell.drive(torch.zeros(1, 1, 1))).name == expected


def test_a_matrix_without_structure_is_refused_by_name() -> None:
    rnn = srn.StableRNN("fc_urnn", 1, MIN_HIDDEN, engine="structured")
    with pytest.raises(ConfigError, match="The engine 'structured' cannot run the cell 'fc_urnn'"):
        rnn(torch.zeros(1, 2, 1))


def test_large_matrices_agree_with_the_loop() -> None:
    rnn = srn.StableRNN("kru", 1, 512).double()
    x = torch.rand(2, 6, 1).double()
    assert_near(results(rnn, "structured", x), results(rnn, "loop", x), 1e-10)
