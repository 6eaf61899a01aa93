"""The engine ``torch-rnn`` computes what the loop computes."""

from __future__ import annotations

import pytest
import torch

import stablernn as srn
from engine_runs import assert_near, perturbed, random_states, results
from stablernn.engines import select_engine, torch_rnn
from stablernn.errors import ConfigError
from stablernn.nn.ensemble import Ensemble

KEYS = ["lstm", "gru", "rnn"]
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def create_rnn(key: str) -> srn.StableRNN:
    return perturbed(srn.StableRNN(key, 3, 9, num_layers=2).double())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("every_output", [True, False])
@pytest.mark.parametrize("lengths", [None, [6, 0, 4, 1]])
@pytest.mark.parametrize("key", KEYS)
def test_values_and_derivatives_are_those_of_the_loop(
    key: str, lengths: list[int] | None, every_output: bool, device: str
) -> None:
    rnn, x = create_rnn(key).to(device), torch.randn(4, 6, 3, dtype=torch.float64, device=device)
    state, options = random_states(rnn, 4), {"lengths": lengths, "every_output": every_output, "second": True}
    assert_near(results(rnn, "torch-rnn", x, state, **options), results(rnn, "loop", x, state, **options), 1e-9)


@pytest.mark.parametrize("every_output", [True, False])
def test_long_sequences_run_in_parts(every_output: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn, x = create_rnn("lstm"), torch.randn(4, 11, 3, dtype=torch.float64)
    expected = results(rnn, "torch-rnn", x, every_output=every_output)
    calls = []
    call = torch_rnn._call
    monkeypatch.setattr(torch_rnn, "_call", lambda *arguments: calls.append(1) or call(*arguments))
    monkeypatch.setattr(torch_rnn, "_MOST_STEPS", {"cpu": 4})
    assert_near(results(rnn, "torch-rnn", x, every_output=every_output), expected, 1e-9)
    # Of each of the two layers.
    assert len(calls) == 6


@pytest.mark.parametrize("key", KEYS)
def test_in_float32_and_in_parts_that_are_computed_again(key: str) -> None:
    rnn, x = create_rnn(key).float(), torch.randn(5, 30, 3)
    expected = results(rnn, "loop", x)
    assert_near(results(rnn, "torch-rnn", x), expected, 1e-4)
    rnn.recompute_every = 6
    assert_near(results(rnn, "torch-rnn", x), expected, 1e-4)


@pytest.mark.parametrize("key", KEYS)
def test_members(key: str) -> None:
    ensemble, x = perturbed(Ensemble(2, key, 3, 5, 2).double()), torch.randn(4, 6, 3, dtype=torch.float64)
    assert_near(results(ensemble, "torch-rnn", x), results(ensemble, "loop", x), 1e-9)


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
