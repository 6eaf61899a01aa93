"""Minimal cells whose gates and scan run tile by tile equal the loop in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from engine_runs import assert_near, perturbed, results
from stablernn.cells.mingru import MinGRUCell, MinLSTMCell
from stablernn.engines import scan
from stablernn.engines.scan import MAX_FEATURES, count_chunks

KEYS = ["mingru", "minlstm"]


def pair(key: str, features: int, units: int, dtype: torch.dtype) -> tuple[srn.StableRNN, srn.StableRNN]:
    """A layer with the engine ``scan``, and the loop in float64 with the same parameters."""
    rnn = srn.StableRNN(key, features, units, engine="scan").to(dtype)
    perturbed(rnn, 0.5)
    reference = srn.StableRNN(key, features, units, engine="loop").double()
    reference.load_state_dict(rnn.state_dict())
    return rnn, reference


def bias_of(rnn: srn.StableRNN) -> Tensor:
    cell = rnn.cells[0]
    assert isinstance(cell, MinGRUCell | MinLSTMCell)
    return cell.bias_ih


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of chunks of each run by tiles, so that a test knows that it is one of them."""
    counts: list[int] = []

    class Counted(scan._Tiles):
        def __init__(self, gates: Any, x: Tensor, matrices: Tensor, count: int, pool: Any) -> None:
            counts.append(count)
            super().__init__(gates, x, matrices, count, pool)

    monkeypatch.setattr(scan, "_Tiles", Counted)
    return counts


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("every_output", [True, False], ids=["every-output", "last-state"])
@pytest.mark.parametrize(
    ("features", "units", "rows", "steps"),
    [(1, 64, 8, 1), (5, 1, 5, 53), (MAX_FEATURES + 1, 33, 3, 129), (1, 65, 1, 257)],
    ids=str,
)
@pytest.mark.parametrize("key", KEYS)
def test_values_and_gradients_equal_those_of_the_loop(
    key: str,
    features: int,
    units: int,
    rows: int,
    steps: int,
    every_output: bool,
    dtype: torch.dtype,
    tolerance: float,
    calls: list[int],
) -> None:
    torch.manual_seed(steps)
    rnn, reference = pair(key, features, units, dtype)
    x, state = torch.randn(rows, steps, features, dtype=dtype), torch.randn(rows, units, dtype=dtype)
    for lengths in (None, [min(n, steps) for n in (steps // 2, 0, steps, 1, steps, 1, 2, steps)[:rows]]):
        expected = results(reference, "loop", x.double(), [state.double()], lengths, every_output=every_output)
        assert_near(results(rnn, "scan", x, [state], lengths, every_output=every_output), expected, tolerance)
    assert calls


@pytest.mark.parametrize("key", KEYS)
def test_steps_that_fill_no_chunk(key: str, monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(scan, "count_chunks", lambda time, step_bytes: 6)
    rnn, reference = pair(key, 3, 5, torch.float64)
    x, state = torch.randn(2, 47, 3).double(), torch.randn(2, 5).double()
    for every_output in (True, False):
        expected = results(reference, "loop", x, [state], every_output=every_output)
        assert_near(results(rnn, "scan", x, [state], every_output=every_output), expected, 1e-12)
    assert set(calls) == {6, 1}


@pytest.mark.parametrize(("forget", "write"), [(-200.0, -190.0), (-95.0, 95.0), (95.0, -200.0)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_closed_gates(forget: float, write: float, dtype: torch.dtype, tolerance: float) -> None:
    """Two sigmoids of zero in float32 give no 0/0; retention and gradients are those of the difference."""
    torch.manual_seed(0)
    rnn, reference = pair("minlstm", 2, 4, dtype)
    for layer in (rnn, reference):
        with torch.no_grad():
            bias_of(layer)[:8].copy_(torch.tensor([forget] * 4 + [write] * 4))
    x, state = torch.randn(2, 40, 2, dtype=dtype), torch.randn(2, 4, dtype=dtype)
    expected = results(reference, "loop", x.double(), [state.double()])
    # The larger an argument, the fewer digits it has after the point.
    assert_near(results(rnn, "scan", x, [state]), expected, tolerance * max(1.0, -forget / 20))


@pytest.mark.parametrize("key", KEYS)
def test_small_gradients_keep_their_digits(key: str) -> None:
    """The slope of a gate that is nearly open or closed, relative to itself."""
    torch.manual_seed(0)
    rnn, reference = pair(key, 1, 3, torch.float32)
    blocks = len(bias_of(rnn)) // 3
    for layer in (rnn, reference):
        with torch.no_grad():
            bias_of(layer)[: 3 * (blocks - 1)] = 11.0
    # Of one step, whose gradients do not cancel each other.
    x, state = torch.randn(1, 1, 1), torch.randn(1, 3)
    values, references = results(rnn, "scan", x, [state]), results(reference, "loop", x.double(), [state.double()])
    for value, expected in zip(values, references, strict=True):
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_gradients_of_many_steps_keep_their_digits(key: str) -> None:
    """Sums over 32,768 rows, one tile after the other in float32, would have ten times the error of the loop's."""
    torch.manual_seed(0)
    rnn, reference = pair(key, 1, 64, torch.float32)
    x, weights = torch.randn(8, 4_096, 1), torch.rand(8, 4_096, 64)

    def gradients(layer: srn.StableRNN, dtype: torch.dtype) -> list[Tensor]:
        outputs = layer(x.to(dtype))[0]
        return list(torch.autograd.grad((outputs * weights.to(dtype)).sum(), list(layer.parameters())))

    expected, errors = gradients(reference, torch.float64), {}
    for rnn.engine in ("loop", "scan"):
        values = zip(gradients(rnn, torch.float32), expected, strict=True)
        errors[rnn.engine] = [float((value - other).abs().max() / other.abs().max()) for value, other in values]
    for error, loop_error in zip(errors["scan"], errors["loop"], strict=True):
        assert error <= 2 * loop_error + 1e-6


@pytest.mark.parametrize("features", [2, MAX_FEATURES + 1])
@pytest.mark.parametrize("key", KEYS)
def test_a_graph_can_be_differentiated_again(key: str, features: int) -> None:
    torch.manual_seed(0)
    rnn, _ = pair(key, features, 3, torch.float64)
    x, lengths = torch.randn(2, 17, features).double().requires_grad_(), torch.tensor([17, 6])
    output = rnn(x, lengths=lengths)[0].square().sum()
    first = torch.autograd.grad(output, [x, *rnn.parameters()], retain_graph=True)
    # The run in between takes buffers of the same sizes.
    rnn(torch.randn_like(x))[0].sum().backward()
    torch.testing.assert_close(torch.autograd.grad(output, [x, *rnn.parameters()]), first, rtol=0, atol=0)
    for every_output in (True, False):
        assert torch.autograd.gradgradcheck(
            lambda x, every=every_output: rnn.run(x, rnn.initial_state(2), every_output=every)[1][0], x, fast_mode=True
        )


@pytest.mark.parametrize("key", KEYS)
def test_recomputed_segments_give_the_same_gradients(key: str) -> None:
    torch.manual_seed(0)
    rnn, reference = pair(key, 3, 6, torch.float64)
    x, state, lengths = torch.randn(4, 50, 3).double(), [torch.randn(4, 6).double()], [50, 7, 0, 31]
    rnn.recompute_every = 13
    assert_near(results(rnn, "scan", x, state, lengths), results(reference, "loop", x, state, lengths), 1e-12)


def test_a_subclass_and_other_precisions_do_not_run_by_tiles(calls: list[int]) -> None:
    class Doubled(MinGRUCell):
        def gate(self, projection: Tensor) -> tuple[Tensor, Tensor]:
            retention, increment = super().gate(projection)
            return retention, 2 * increment

    torch.manual_seed(0)
    rnn, x = srn.StableRNN("mingru", 3, 4, engine="scan"), torch.randn(2, 20, 3)
    cell = Doubled(3, 4)
    cell.load_state_dict(rnn.cells[0].state_dict())
    doubled = scan.ScanEngine().run_inputs(cell, cell.weights(), x, cell.initial_state(2), None)[0]
    assert not calls
    assert doubled is not None
    torch.testing.assert_close(doubled, 2 * rnn(x)[0])
    assert calls
    calls.clear()
    rnn.engine = "auto"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rnn(x)
    assert not calls


def test_chunks_fit_the_cache_and_leave_few_operations() -> None:
    for time in (1, 2, 5, 30, 784, 4_096, 10_007):
        for step_bytes in (4, 2_048, 1 << 20):
            count = count_chunks(time, step_bytes)
            assert 1 <= count <= time
            assert count == 1 or count * step_bytes <= scan.MAX_TILE_BYTES
            if step_bytes == 4:
                assert time // count + time % count <= 2 * time**0.5 + 2
    assert count_chunks(4_096, 8 * 64 * 4) == 64
