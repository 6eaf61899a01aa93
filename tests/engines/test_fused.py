"""The engines ``fused`` and ``native`` compute what the loop computes, for a layer and for members of an ensemble."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from engine_runs import Recurrent, assert_near, perturbed, random_states, results, use_engine
from stablernn.buffers import BufferPool
from stablernn.cells import StableCell
from stablernn.engines import fused, select_engine
from stablernn.nn.ensemble import Ensemble
from step_forms import CELLS, ENGINES, FASTEST

LENGTHS = {"equal": None, "mixed": [3, 7, 0, 5, 1], "half": [7, 7, 2, 2, 7], "none": [0, 0, 0, 0, 0]}
KEYS = ["rnn", "antisymmetric_g", "lipschitz", "lipschitz_rk2", "scornn"]


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


def create(key: str, members: int = 1, **options: Any) -> Recurrent:
    """Two layers, or members of two layers each."""
    if members > 1:
        return perturbed(Ensemble(members, key, 3, 9, 2, **options).double())
    return perturbed(srn.StableRNN(key, 3, 9, **{"num_layers": 2, **options}).double())


def random_inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def is_quick(key: str, members: int, lengths: list[int] | None) -> bool:
    return (key in KEYS and members == 1) or lengths == LENGTHS["mixed"] and (key in KEYS or members == 1)


@pytest.mark.parametrize(
    ("key", "timed", "members", "lengths"),
    [
        pytest.param(
            key,
            timed,
            members,
            lengths,
            id=f"{key}-{'dt' if timed else 'regular'}-{members}-{name}",
            marks=[] if is_quick(key, members, lengths) else pytest.mark.slow,
        )
        for key in CELLS
        for timed in (False, True)
        if not timed or srn.create_cell(key, 3, 9).has_timed_step_form
        for members in (1, 3)
        for name, lengths in LENGTHS.items()
    ],
)
def test_values_and_gradients_are_those_of_the_loop(
    engine: str, key: str, timed: bool, members: int, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rnn, x = create(key, members), random_inputs(5, 7, 3)
    state = random_states(rnn, 5)
    dt = 3 * torch.rand(5, 7, dtype=torch.float64) if timed else None
    expected = results(rnn, "loop", x, state, lengths, dt)
    if members > 1:
        # Nothing falls back to one member after the other.
        monkeypatch.setattr(fused.FusedEngine, "run", lambda *_, **__: pytest.fail("one member ran alone"))
    assert_near(results(rnn, engine, x, state, lengths, dt), expected, 1e-10)


@pytest.mark.parametrize("options", [{"max_dt": 3.0}, {"step_size": 1}], ids=str)
@pytest.mark.parametrize("key", ["antisymmetric", "antisymmetric_g", "lipschitz", "lipschitz_rk2"])
def test_options_of_steps(engine: str, key: str, options: dict[str, Any]) -> None:
    rnn, x = create(key, **options), random_inputs(5, 7, 3)
    dt = 3 * torch.rand(5, 7, dtype=torch.float64) if "max_dt" in options else None
    assert_near(results(rnn, engine, x, dt=dt), results(rnn, "loop", x, dt=dt), 1e-10)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "modrelu", "softshrink"])
def test_every_nonlinearity(engine: str, nonlinearity: str) -> None:
    rnn, x = create("rnn_orth", nonlinearity=nonlinearity).float(), torch.randn(5, 7, 3)
    expected = results(rnn, "loop", x, lengths=LENGTHS["mixed"])
    assert_near(results(rnn, engine, x, lengths=LENGTHS["mixed"]), expected, 1e-5)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("key", KEYS)
def test_a_batch_without_rows(engine: str, key: str, members: int) -> None:
    rnn, x = create(key, members), random_inputs(0, 7, 3)
    assert_near(results(rnn, engine, x), results(rnn, "loop", x), 1e-10)


@pytest.mark.parametrize("lengths", [None, [3, 7, 0, 5, 1], [7, 7, 6, 4, 4]])
@pytest.mark.parametrize("key", KEYS)
def test_without_gradients_or_outputs(engine: str, key: str, lengths: list[int] | None) -> None:
    rnn, x = create(key), random_inputs(5, 7, 3)
    sizes = None if lengths is None else torch.tensor(lengths)
    expected = results(rnn, "loop", x, lengths=lengths, every_output=False)
    assert_near(results(rnn, engine, x, lengths=lengths, every_output=False), expected, 1e-10)
    with torch.no_grad():
        use_engine(rnn, "loop")
        reference, last = rnn.run(x, rnn.initial_state(5), sizes)
        use_engine(rnn, engine)
        for every_output in (False, True):
            outputs, states = rnn.run(x, rnn.initial_state(5), sizes, every_output=every_output)
            assert_near(states, last, 1e-10)
            assert (outputs is not None) == every_output
        assert_near([outputs], [reference], 1e-10)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("key", KEYS)
def test_second_derivatives(engine: str, key: str, members: int) -> None:
    rnn, x = create(key, members), random_inputs(3, 5, 3)
    expected = results(rnn, "loop", x, lengths=[5, 2, 4], second=True)
    assert_near(results(rnn, engine, x, lengths=[5, 2, 4], second=True), expected, 1e-10)


@pytest.mark.parametrize("members", [1, 3])
def test_a_gradient_by_the_times(engine: str, members: int) -> None:
    rnn, x, gradients = create("lipschitz", members), random_inputs(5, 7, 3), []
    for name in ("loop", engine):
        use_engine(rnn, name)
        dt = torch.linspace(0, 2, 35, dtype=torch.float64).view(5, 7).requires_grad_()
        _, last = rnn.run(x, tuple(h.double() for h in rnn.initial_state(5)), None, dt)
        gradients.append(list(torch.autograd.grad(last[0].square().sum() + last[-1].sum(), dt)))
    assert_near(gradients[1], gradients[0], 1e-10)


def test_large_members_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, x, shapes = create("lipschitz", 3), random_inputs(5, 7, 3), []
    expected, run_form = results(ensemble, "loop", x), fused.FusedEngine.run_form

    def record(self: Any, cell: StableCell, form: Any, drives: Tensor, *args: Any, **options: Any) -> Any:
        shapes.append(drives.dim())
        return run_form(self, cell, form, drives, *args, **options)

    monkeypatch.setattr(fused, "MAX_STACKED", 44)
    monkeypatch.setattr(fused.FusedEngine, "run_form", record)
    assert_near(results(ensemble, "fused", x), expected, 1e-10)
    assert shapes == [3] * 6


# Buffers: what one call keeps for its backward pass, no other call writes to.


@pytest.fixture
def large(engine: str) -> srn.StableRNN:
    """A layer whose buffers are large enough to be used again."""
    return srn.StableRNN("antisymmetric", 2, 64, engine=engine)


def gradients_of(rnn: srn.StableRNN, loss: Tensor, *, retain_graph: bool = False) -> list[Tensor]:
    return [
        gradient.clone() for gradient in torch.autograd.grad(loss, list(rnn.parameters()), retain_graph=retain_graph)
    ]


def test_no_call_writes_to_the_buffers_of_another(large: srn.StableRNN) -> None:
    x, y = torch.randn(2, 32, 300, 2)
    alone = [gradients_of(large, large(batch)[1].square().sum()) for batch in (x, y)]
    # Two forward passes before a backward pass, whose graph is retained.
    losses = [large(batch)[1].square().sum() for batch in (x, y)]
    together = [gradients_of(large, loss, retain_graph=True) for loss in losses]
    again = [gradients_of(large, loss) for loss in losses]
    for values in (together, again):
        for gradients, expected in zip(values, alone, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))
    with torch.no_grad():
        outputs, last = large(x)
        copies = outputs.clone(), last.clone()
        large(y)
    assert torch.equal(outputs, copies[0])
    assert torch.equal(last, copies[1])


def test_several_threads(large: srn.StableRNN) -> None:
    batches = torch.randn(4, 32, 300, 2)
    expected = [gradients_of(large, large(batch)[1].square().sum()) for batch in batches]
    got: list[list[Tensor]] = [[] for _ in batches]

    def work(number: int) -> None:
        for _ in range(3):
            got[number] = gradients_of(large, large(batches[number])[1].square().sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for gradients, references in zip(got, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(gradients, references, strict=True))


def chosen(cell: StableCell, *, timed: bool = False) -> str:
    return select_engine("auto", cell, cell.drive(torch.zeros(1, 4, 3)), timed=timed).name


def test_what_auto_takes() -> None:
    assert chosen(srn.create_cell("lipschitz", 3, 4)) == FASTEST
    assert chosen(srn.create_cell("lipschitz", 3, 4), timed=True) == FASTEST
    assert chosen(srn.create_cell("lvf", 3, 4), timed=True) == "loop"
    assert chosen(srn.create_cell("lem", 3, 4)) == "loop"


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
