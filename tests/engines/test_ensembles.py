"""The members of an ensemble at once compute what each of them computes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.buffers import BufferPool
from stablernn.engines import fused
from stablernn.nn.ensemble import Ensemble
from step_forms import CELLS, ENGINES

LENGTHS = {"equal": None, "mixed": [3, 7, 0, 5, 1], "none": [0, 0, 0, 0, 0]}


@pytest.fixture(autouse=True)
def _dirty_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every buffer with NaN before it is used, as the last call may leave it."""
    take = BufferPool.take
    monkeypatch.setattr(BufferPool, "take", lambda pool, like, *shape: take(pool, like, *shape).fill_(torch.nan))


def create_ensemble(key: str, **options: Any) -> Ensemble:
    ensemble = Ensemble(3, key, 2, 9, 2, **options).double()
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return ensemble


def run(
    ensemble: Ensemble, engine: str, x: Tensor, state: list[Tensor], lengths: list[int] | None, dt: Tensor | None
) -> list[Tensor | None]:
    """Outputs, last state and all gradients."""
    ensemble.use_engine(engine)
    x, first = x.clone().requires_grad_(), tuple(tensor.clone().requires_grad_() for tensor in state)
    outputs, last = ensemble.run(x, first, None if lengths is None else torch.tensor(lengths), dt)
    assert outputs is not None
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=x.dtype).view_as(outputs)
    loss = (outputs * weights).sum() + torch.stack([tensor.square().sum() for tensor in last]).sum()
    gradients = torch.autograd.grad(loss, [x, *first, *ensemble.parameters()], allow_unused=True)
    return [outputs, *last, *gradients]


def assert_equal(actual: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for value, reference in zip(actual, expected, strict=True):
        if reference is None:
            assert value is None
        else:
            assert value is not None
            torch.testing.assert_close(
                value, reference, rtol=0, atol=1e-10 * max(float(reference.detach().abs().max()), 1e-30)
            )


TIMED = [key for key in CELLS if create_ensemble(key).cells[0].has_timed_step_form]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(
    ("key", "timed"),
    [
        pytest.param(key, timed, id=f"{key}-{'dt' if timed else 'regular'}")
        for timed in (False, True)
        for key in (TIMED if timed else CELLS)
    ],
)
def test_values_and_gradients_are_those_of_each_member(
    key: str, lengths: list[int] | None, timed: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = create_ensemble(key)
    x, state = torch.randn(5, 7, 2, dtype=torch.float64), [torch.randn_like(h) for h in ensemble.initial_state(5)]
    state = [tensor.double() for tensor in state]
    dt = 3 * torch.rand(5, 7, dtype=torch.float64) if timed else None
    expected = run(ensemble, "loop", x, state, lengths, dt)
    # Nothing falls back to one member after the other.
    monkeypatch.setattr(fused.FusedEngine, "run", lambda *_, **__: pytest.fail("one member ran alone"))
    assert_equal(run(ensemble, engine, x, state, lengths, dt), expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("key", ["rnn", "antisymmetric_g", "lipschitz", "lipschitz_rk2", "scornn"])
def test_a_batch_without_rows(key: str, engine: str) -> None:
    ensemble = create_ensemble(key)
    x, state = torch.randn(0, 7, 2, dtype=torch.float64), [h.double() for h in ensemble.initial_state(0)]
    results = [run(ensemble, name, x, state, None, None) for name in ("loop", engine)]
    assert [value if value is None else value.shape for value in results[1]] == [
        value if value is None else value.shape for value in results[0]
    ]
    assert not any(value.any() for value in results[1] if value is not None)


def test_large_members_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = create_ensemble("lipschitz")
    x, state = torch.randn(5, 7, 2, dtype=torch.float64), list(ensemble.double().initial_state(5))
    expected = run(ensemble, "loop", x, state, None, None)
    monkeypatch.setattr(fused, "MAX_STACKED", 44)
    shapes = []
    run_form = fused.FusedEngine.run_form

    def record(self, cell, form, drives, *args, **options):
        shapes.append(drives.dim())
        return run_form(self, cell, form, drives, *args, **options)

    monkeypatch.setattr(fused.FusedEngine, "run_form", record)
    assert_equal(run(ensemble, "fused", x, state, None, None), expected)
    assert shapes == [3] * 6


@pytest.mark.parametrize("key", ["rnn", "lipschitz", "lipschitz_rk2", "scornn"])
def test_second_derivatives(key: str) -> None:
    ensemble = create_ensemble(key)
    x, lengths = torch.randn(3, 5, 2, dtype=torch.float64), torch.tensor([5, 2, 4])
    results = []
    for engine in ("loop", "fused"):
        ensemble.use_engine(engine)
        outputs, last = ensemble.run(x, tuple(h.double() for h in ensemble.initial_state(3)), lengths)
        assert outputs is not None
        loss = outputs.square().sum() + last[-1].sum()
        gradients = torch.autograd.grad(loss, list(ensemble.parameters()), create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        results.append(torch.autograd.grad(penalty, list(ensemble.parameters()), materialize_grads=True))
    assert_equal(list(results[1]), list(results[0]))


def test_a_gradient_by_the_times() -> None:
    ensemble = create_ensemble("lipschitz")
    x, gradients = torch.randn(5, 7, 2, dtype=torch.float64), []
    for engine in ("loop", "fused"):
        ensemble.use_engine(engine)
        dt = torch.linspace(0, 2, 35, dtype=torch.float64).view(5, 7).requires_grad_()
        _, last = ensemble.run(x, tuple(h.double() for h in ensemble.initial_state(5)), None, dt)
        gradients.append(list(torch.autograd.grad(last[0].square().sum() + last[-1].sum(), dt)))
    assert_equal(gradients[1], gradients[0])


def test_a_single_member_is_a_plain_layer() -> None:
    torch.manual_seed(0)
    ensemble, x = Ensemble(1, "antisymmetric", 2, 9, 1), torch.randn(5, 7, 2)
    rnn = ensemble.first
    assert isinstance(rnn, srn.StableRNN)
    outputs, _ = ensemble.run(x, ensemble.initial_state(5))
    torch.testing.assert_close(outputs, rnn(x)[0], rtol=0, atol=0)
