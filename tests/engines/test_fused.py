"""The engines ``fused`` and ``native`` compute what the loop computes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stablernn as srn
from stablernn.buffers import BufferPool
from stablernn.cells import StableCell
from stablernn.engines import select_engine
from step_forms import CELLS, ENGINES, FASTEST

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
LENGTHS = {"equal": None, "mixed": [3, 7, 0, 5, 1], "half": [7, 7, 2, 2, 7], "none": [0, 0, 0, 0, 0]}


@pytest.fixture(autouse=True)
def _dirty_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every buffer with NaN before it is used, as the last call may leave it."""
    take = BufferPool.take
    monkeypatch.setattr(BufferPool, "take", lambda pool, like, *shape: take(pool, like, *shape).fill_(torch.nan))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    name: str = request.param
    return name


def create_rnn(key: str, dtype: torch.dtype = torch.float64, **options: Any) -> srn.StableRNN:
    """Two layers, whose parameters are all of use."""
    rnn = srn.StableRNN(key, 3, 9, **{"num_layers": 2, **options}).to(dtype)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return rnn


def takes_dt(rnn: srn.StableRNN) -> bool:
    return all(cell.has_timed_step_form for cell in rnn.cells)


def assert_equal(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """Compare relative to the largest entry of each tensor."""
    for value, reference in zip(actual, expected, strict=True):
        if value is None or reference is None:
            assert value is None
            assert reference is None
            continue
        tolerance = TOLERANCES[reference.dtype]
        largest = float(reference.detach().abs().max()) if reference.numel() else 0.0
        torch.testing.assert_close(value, reference, rtol=0, atol=tolerance * max(largest, 1e-30))


def run(
    rnn: srn.StableRNN, engine: str, x: Tensor, state: Tensor, lengths: list[int] | None, dt: Tensor | None
) -> list[Tensor | None]:
    """Outputs, last state and all gradients."""
    rnn.engine = engine
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    outputs, last = rnn(x, state, lengths=None if lengths is None else torch.tensor(lengths), dt=dt)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=x.dtype).view_as(outputs)
    loss = (outputs * weights).sum() + last.square().sum()
    return [outputs, last, *torch.autograd.grad(loss, [x, state, *rnn.parameters()], allow_unused=True)]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])
@pytest.mark.parametrize("key", CELLS)
def test_values_and_gradients_are_those_of_the_loop(
    engine: str, key: str, dtype: torch.dtype, lengths: list[int] | None
) -> None:
    rnn = create_rnn(key, dtype)
    x, state = torch.randn(5, 7, 3, dtype=dtype), torch.randn(2, 5, 9, dtype=dtype)
    expected = run(rnn, "loop", x, state, lengths, None)
    assert_equal(run(rnn, engine, x, state, lengths, None), expected)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("max_dt", [None, 3.0])
@pytest.mark.parametrize("key", [key for key in CELLS if takes_dt(create_rnn(key))])
def test_irregular_steps(engine: str, key: str, max_dt: float | None, lengths: list[int] | None) -> None:
    rnn = create_rnn(key, max_dt=max_dt)
    x, state = torch.randn(5, 7, 3, dtype=torch.float64), torch.randn(2, 5, 9, dtype=torch.float64)
    dt = 3 * torch.rand(5, 7, dtype=torch.float64)
    expected = run(rnn, "loop", x, state, lengths, dt)
    assert_equal(run(rnn, engine, x, state, lengths, dt), expected)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "modrelu", "softshrink"])
def test_every_nonlinearity(engine: str, nonlinearity: str) -> None:
    rnn = create_rnn("rnn_orth", nonlinearity=nonlinearity)
    x, state = torch.randn(5, 7, 3, dtype=torch.float64), torch.randn(2, 5, 9, dtype=torch.float64)
    assert_equal(run(rnn, engine, x, state, [3, 7, 0, 5, 1], None), run(rnn, "loop", x, state, [3, 7, 0, 5, 1], None))


@pytest.mark.parametrize("key", ["antisymmetric", "antisymmetric_g", "lipschitz", "lipschitz_rk2"])
def test_a_step_size_that_is_a_whole_number(engine: str, key: str) -> None:
    rnn = create_rnn(key, step_size=1)
    x, state = torch.randn(5, 7, 3, dtype=torch.float64), torch.randn(2, 5, 9, dtype=torch.float64)
    assert_equal(run(rnn, engine, x, state, None, None), run(rnn, "loop", x, state, None, None))


@pytest.mark.parametrize("key", ["rnn", "antisymmetric_g", "lipschitz", "lipschitz_rk2", "scornn"])
def test_a_batch_without_rows(engine: str, key: str) -> None:
    rnn = create_rnn(key)
    x, state = torch.randn(0, 7, 3, dtype=torch.float64), torch.randn(2, 0, 9, dtype=torch.float64)
    assert_equal(run(rnn, engine, x, state, None, None), run(rnn, "loop", x, state, None, None))


@pytest.mark.parametrize("lengths", [None, [3, 7, 0, 5, 1], [7, 7, 6, 4, 4]])
@pytest.mark.parametrize("key", CELLS)
def test_without_gradients_or_outputs(engine: str, key: str, lengths: list[int] | None) -> None:
    rnn = create_rnn(key)
    x, state = torch.randn(5, 7, 3, dtype=torch.float64), rnn.initial_state(5)
    tensor = None if lengths is None else torch.tensor(lengths)
    rnn.engine = "loop"
    outputs, expected = rnn.run(x, state, tensor)
    rnn.engine = engine
    gradients = torch.autograd.grad(expected[-1].square().sum(), list(rnn.parameters()), materialize_grads=True)
    for every_output in (False, True):
        with torch.no_grad():
            inferred, last = rnn.run(x, state, tensor, every_output=every_output)
        assert_equal([*last, inferred], [*expected, outputs if every_output else None])
        trained, last = rnn.run(x, state, tensor, every_output=every_output)
        assert_equal([*last, trained], [*expected, outputs if every_output else None])
        found = torch.autograd.grad(last[-1].square().sum(), list(rnn.parameters()), materialize_grads=True)
        assert_equal(found, gradients)


@pytest.mark.parametrize("key", ["rnn", "antisymmetric_g", "lipschitz", "lipschitz_rk2", "scornn"])
def test_second_derivatives(engine: str, key: str) -> None:
    rnn = create_rnn(key, num_layers=1)
    x, lengths = torch.randn(3, 5, 3, dtype=torch.float64), torch.tensor([5, 2, 4])
    results = []
    for name in ("loop", engine):
        rnn.engine = name
        outputs, last = rnn(x, lengths=lengths)
        loss = outputs.square().sum() + last.sum()
        gradients = torch.autograd.grad(loss, list(rnn.parameters()), create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        results.append(torch.autograd.grad(penalty, list(rnn.parameters()), materialize_grads=True))
    assert_equal(results[1], results[0])


def test_a_gradient_by_the_times(engine: str) -> None:
    rnn = create_rnn("lipschitz")
    x = torch.randn(5, 7, 3, dtype=torch.float64)
    gradients = []
    for name in ("loop", engine):
        rnn.engine = name
        dt = torch.linspace(0, 2, 35, dtype=torch.float64).view(5, 7).requires_grad_()
        gradients.append(torch.autograd.grad(rnn(x, dt=dt)[1].square().sum(), dt))
    assert_equal(gradients[1], gradients[0])


# Buffers: what one call keeps for its backward pass, no other call writes to.


@pytest.fixture
def large(engine: str) -> srn.StableRNN:
    """A layer whose buffers are large enough to be used again."""
    return srn.StableRNN("antisymmetric", 2, 64, engine=engine)


def gradients_of(rnn: nn.Module, loss: Tensor, *, retain_graph: bool = False) -> list[Tensor]:
    return [
        gradient.clone() for gradient in torch.autograd.grad(loss, list(rnn.parameters()), retain_graph=retain_graph)
    ]


def test_two_forward_passes_before_a_backward_pass(large: srn.StableRNN) -> None:
    x, y = torch.randn(2, 32, 300, 2)
    alone = [gradients_of(large, large(batch)[1].square().sum()) for batch in (x, y)]
    losses = [large(batch)[1].square().sum() for batch in (x, y)]
    together = [gradients_of(large, loss) for loss in losses]
    for gradients, expected in zip(together, alone, strict=True):
        for gradient, reference in zip(gradients, expected, strict=True):
            assert torch.equal(gradient, reference)


def test_a_graph_that_is_retained(large: srn.StableRNN) -> None:
    x, y = torch.randn(2, 32, 300, 2)
    loss = large(x)[1].square().sum()
    first = gradients_of(large, loss, retain_graph=True)
    gradients_of(large, large(y)[1].square().sum())
    for gradient, expected in zip(gradients_of(large, loss), first, strict=True):
        assert torch.equal(gradient, expected)


def test_outputs_keep_their_values(large: srn.StableRNN) -> None:
    with torch.no_grad():
        outputs, last = large(torch.randn(32, 300, 2))
        kept = outputs.clone(), last.clone()
        large(torch.randn(32, 300, 2))
    assert torch.equal(outputs, kept[0])
    assert torch.equal(last, kept[1])


def test_several_threads(large: srn.StableRNN) -> None:
    batches = torch.randn(4, 32, 300, 2)
    expected = [gradients_of(large, large(batch)[1].square().sum()) for batch in batches]
    found: list[list[Tensor]] = [[] for _ in batches]

    def work(number: int) -> None:
        for _ in range(3):
            found[number] = gradients_of(large, large(batches[number])[1].square().sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for gradients, references in zip(found, expected, strict=True):
        for gradient, reference in zip(gradients, references, strict=True):
            assert torch.equal(gradient, reference)


# Where auto takes the loop.


def chosen(cell: StableCell, *, timed: bool = False) -> str:
    return select_engine("auto", cell, cell.drive(torch.zeros(1, 4, 3)), timed=timed).name


def test_what_auto_takes() -> None:
    assert chosen(srn.StableRNN("lipschitz", 3, 4).cells[0]) == FASTEST
    assert chosen(srn.StableRNN("lipschitz", 3, 4).cells[0], timed=True) == FASTEST
    assert chosen(srn.StableRNN("lvf", 3, 4).cells[0], timed=True) == "loop"
    assert chosen(srn.StableRNN("lem", 3, 4).cells[0]) == "loop"


def test_transformed_functions_take_the_loop() -> None:
    rnn = srn.StableRNN("antisymmetric", 3, 4)
    x = torch.randn(2, 5, 3)

    def final(x: Tensor) -> Tensor:
        state: Tensor = rnn(x)[1]
        return state.sum()

    gradient = torch.func.grad(final)(x)
    value, tangent = torch.func.jvp(final, (x,), (torch.ones_like(x),))
    x.requires_grad_()
    (expected,) = torch.autograd.grad(final(x), x)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(value, final(x))
    torch.testing.assert_close(tangent, expected.sum())
    states = torch.func.vmap(lambda sample: rnn(sample[None])[1])(x.detach())
    torch.testing.assert_close(states.flatten(0, 2), rnn(x)[1].flatten(0, 1))
