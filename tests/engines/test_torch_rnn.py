"""The engine ``torch-rnn`` computes what the loop computes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.engines import select_engine, torch_rnn
from stablernn.errors import ConfigError
from stablernn.nn.ensemble import Ensemble

KEYS = ["lstm", "gru", "rnn"]
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def create_rnn(key: str, device: str, layers: int = 2) -> srn.StableRNN:
    rnn = srn.StableRNN(key, 3, 9, num_layers=layers).to(device, torch.float64)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return rnn


def run(rnn: srn.StableRNN, engine: str, x: Tensor, lengths: Tensor | None, *, every_output: bool) -> list[Tensor]:
    """Outputs, last states, gradients, and gradients of a function of these."""
    rnn.engine = engine
    x = x.clone().requires_grad_()
    state = tuple(
        torch.linspace(-0.5, 0.5, len(x) * 9, dtype=x.dtype, device=x.device).view(-1, 9).requires_grad_()
        for cell in rnn.cells
        for _ in cell.state_names
    )
    outputs, last = rnn.run(x, state, lengths, every_output=every_output)
    loss = torch.stack([tensor.square().sum() for tensor in last]).sum()
    if outputs is not None:
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=x.dtype, device=x.device)
        loss = loss + (outputs * weights.view_as(outputs)).sum()
    leaves = [x, *state, *rnn.parameters()]
    first = torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True)
    again = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    second = torch.autograd.grad(
        torch.stack([gradient.square().sum() for gradient in again]).sum(), leaves, materialize_grads=True
    )
    return [*([] if outputs is None else [outputs]), *last, *first, *again, *second]


def assert_equal(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for value, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("every_output", [True, False])
@pytest.mark.parametrize("lengths", [None, [6, 0, 4, 1]])
@pytest.mark.parametrize("key", KEYS)
def test_values_and_derivatives_are_those_of_the_loop(
    key: str, lengths: list[int] | None, every_output: bool, device: str
) -> None:
    rnn, x = create_rnn(key, device), torch.randn(4, 6, 3, dtype=torch.float64, device=device)
    sizes = None if lengths is None else torch.tensor(lengths, device=device)
    expected = run(rnn, "loop", x, sizes, every_output=every_output)
    assert_equal(run(rnn, "torch-rnn", x, sizes, every_output=every_output), expected)


@pytest.mark.parametrize("every_output", [True, False])
def test_long_sequences_run_in_parts(every_output: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn, x = create_rnn("lstm", "cpu"), torch.randn(4, 11, 3, dtype=torch.float64)
    expected = run(rnn, "torch-rnn", x, None, every_output=every_output)
    calls = []
    call = torch_rnn._call
    monkeypatch.setattr(torch_rnn, "_call", lambda *arguments: calls.append(1) or call(*arguments))
    monkeypatch.setattr(torch_rnn, "_MOST_STEPS", {"cpu": 4})
    assert_equal(run(rnn, "torch-rnn", x, None, every_output=every_output), expected)
    # Of each of the two layers.
    assert len(calls) == 6


@pytest.mark.parametrize("key", KEYS)
def test_in_float32(key: str) -> None:
    rnn, x = create_rnn(key, "cpu").float(), torch.randn(5, 30, 3)
    results = []
    for engine in ("loop", "torch-rnn"):
        rnn.engine = engine
        outputs, _ = rnn(x)
        results.append([outputs, *torch.autograd.grad(outputs.square().sum(), list(rnn.parameters()))])
    for value, reference in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("key", KEYS)
def test_parts_that_are_computed_again(key: str) -> None:
    rnn, x = create_rnn(key, "cpu"), torch.randn(4, 20, 3, dtype=torch.float64)
    results = []
    for engine, every in (("loop", None), ("torch-rnn", 6)):
        rnn.engine, rnn.recompute_every = engine, every
        results.append(torch.autograd.grad(rnn(x)[0].square().sum(), list(rnn.parameters())))
    assert_equal(results[1], results[0])


@pytest.mark.parametrize("key", KEYS)
def test_without_gradients_and_with_members(key: str) -> None:
    ensemble, x = Ensemble(2, key, 3, 5, 2).double(), torch.randn(4, 6, 3, dtype=torch.float64)
    results = []
    for engine in ("loop", "torch-rnn"):
        ensemble.use_engine(engine)
        with torch.no_grad():
            outputs, last = ensemble.run(x, ensemble.initial_state(4))
        assert outputs is not None
        results.append([outputs, *last])
    assert_equal(results[1], results[0])


def test_what_auto_takes_on_the_cpu() -> None:
    drive = torch.zeros(1, 4, 3)
    engines = {key: select_engine("auto", srn.create_cell(key, 3, 4), drive).name for key in KEYS}
    # It is slower than 'fused' for the cell that both run.
    assert engines["lstm"] == engines["gru"] == "torch-rnn"
    assert engines["rnn"] in ("fused", "native")


def test_cells_that_compute_something_else_are_refused() -> None:
    class Other(type(srn.create_cell("lstm", 1, 1))):  # type: ignore[misc]
        """A subclass, whose step may be another one."""

    drive = torch.zeros(1, 4, 3)
    for cell in (Other(3, 4), srn.create_cell("momentum_lstm", 3, 4)):
        with pytest.raises(ConfigError, match="The engine 'torch-rnn' cannot run"):
            select_engine("torch-rnn", cell, drive)
    with pytest.raises(ConfigError, match="The engine 'torch-rnn' cannot run"):
        select_engine("torch-rnn", srn.create_cell("lstm", 3, 4), drive.half())


def test_transformed_functions_take_the_loop() -> None:
    rnn, x = srn.StableRNN("lstm", 3, 4), torch.randn(2, 5, 3)
    states = torch.func.vmap(lambda sample: rnn(sample[None])[0])(x)
    torch.testing.assert_close(states.flatten(0, 1), rnn(x)[0])
