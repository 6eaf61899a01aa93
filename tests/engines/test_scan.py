"""The engine that runs chunks of a sequence side by side equals the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stablernn as srn
from engine_runs import assert_near, random_states, results
from stablernn.cells import create_cell
from stablernn.engines import scan, select_engine
from stablernn.engines.scan import chunk_sizes
from stablernn.errors import ConfigError
from stablernn.nn.layers import run_stacks

CELLS: list[tuple[str, dict[str, Any]]] = [
    ("lru", {}),
    ("lru", {"activation": "none"}),
    ("mingru", {}),
    ("minlstm", {}),
]
STEPS = [1, 7, 53]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("key", "options"), CELLS, ids=str)
def test_values_and_gradients_equal_those_of_the_loop(
    key: str, options: dict[str, Any], steps: int, rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(steps)
    rnn = srn.StableRNN(key, 3, 7, 2, **options).to(dtype)
    x = torch.randn(rows, steps, 3, dtype=dtype)
    state = random_states(rnn, rows)
    for lengths in (None, [steps // 2, 0, steps, 1, steps][:rows]):
        expected = results(rnn, "loop", x, state, lengths)
        assert_near(results(rnn, "scan", x, state, lengths), expected, tolerance)


@pytest.mark.parametrize("key", ["lru", "mingru"])
def test_long_sequences_of_slow_units_keep_their_precision(key: str) -> None:
    torch.manual_seed(0)
    rnn = srn.StableRNN(key, 2, 4, **({"min_radius": 0.999, "max_radius": 0.99999} if key == "lru" else {}))
    x = torch.randn(2, 5_000, 2)
    reference = srn.StableRNN(key, 2, 4, engine="loop").double()
    reference.load_state_dict(rnn.state_dict())
    expected, errors = reference(x.double())[0], {}
    for rnn.engine in ("loop", "scan"):
        errors[rnn.engine] = float((rnn(x)[0] - expected).detach().abs().max())
    # The loop's are those of float32 eigenvalues, which are rounded once in either engine.
    assert errors["scan"] <= 2 * errors["loop"] + 1e-6


@pytest.mark.parametrize("key", ["lru", "minlstm"])
def test_large_steps_run_one_after_the_other(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn, x = srn.StableRNN(key, 3, 6), torch.randn(4, 30, 3)
    state = random_states(rnn, 4)
    expected = results(rnn, "loop", x, state)
    monkeypatch.setattr(scan, "MAX_STEP_BYTES", 0)
    assert_near(results(rnn, "scan", x, state), expected, 1e-5)


@pytest.mark.parametrize("key", ["lru", "mingru"])
def test_it_has_second_derivatives(key: str) -> None:
    torch.manual_seed(0)
    rnn = srn.StableRNN(key, 2, 3, engine="scan").double()
    x = torch.randn(2, 17, 2).double().requires_grad_()
    lengths = torch.tensor([17, 6])
    assert torch.autograd.gradgradcheck(lambda x: rnn(x, lengths=lengths)[0], x, fast_mode=True)


def test_it_recomputes_states_in_the_backward_pass() -> None:
    rnn, x, lengths = srn.StableRNN("lru", 3, 6, 2).double(), torch.randn(4, 50, 3).double(), [50, 7, 0, 31]
    expected = results(rnn, "loop", x, lengths=lengths)
    rnn.recompute_every = 13
    assert_near(results(rnn, "scan", x, lengths=lengths), expected, 1e-12)


@pytest.mark.parametrize("key", ["lru", "mingru"])
def test_members_of_an_ensemble_run_as_one(key: str) -> None:
    torch.manual_seed(0)
    stacks = [srn.StableRNN(key, 3, 5, 2, engine="scan") for _ in range(3)]
    inputs, lengths = [torch.randn(4, 19, 3) for _ in stacks], torch.tensor([19, 3, 0, 11])
    together = run_stacks(stacks, inputs, [stack.initial_state(4) for stack in stacks], lengths)
    for stack, x, (output, last) in zip(stacks, inputs, together, strict=True):
        alone, state = stack.run(x, stack.initial_state(4), lengths)
        assert output is not None
        assert alone is not None
        assert_near([output, *last], [alone, *state], 1e-6)


def test_only_the_last_output_is_computed_where_no_other_is_needed() -> None:
    stack, x, lengths = srn.StableRNN("lru", 3, 5, engine="scan"), torch.randn(3, 12, 3), torch.tensor([12, 5, 1])
    outputs, last = stack.run(x, stack.initial_state(3), lengths, every_output=False)
    assert outputs is None
    every_output, expected = stack.run(x, stack.initial_state(3), lengths)
    assert every_output is not None
    torch.testing.assert_close(last, expected)
    torch.testing.assert_close(last[0], every_output[:, -1])


def test_auto_takes_it_for_recurrences_that_are_linear_in_the_state() -> None:
    drive = torch.zeros(2, 9, 12)
    engines = {key: select_engine("auto", create_cell(key, 3, 4), drive).name for key in ("lru", "mingru", "gru")}
    assert engines == {"lru": "scan", "mingru": "scan", "gru": "torch-rnn"}
    with pytest.raises(ConfigError, match="The engine 'scan' cannot run the cell 'gru'"):
        select_engine("scan", create_cell("gru", 3, 4), drive)


@pytest.mark.parametrize("time", [1, 2, 5, 30, 784, 10_007])
def test_chunks_cover_a_sequence_in_few_operations(time: int) -> None:
    length, count = chunk_sizes(time, step_bytes=1024)
    rest = time - length * count
    assert 0 <= rest < time or count == 0
    if time >= 30:
        assert length + 2 * count + rest <= 4 * time**0.5
    assert chunk_sizes(time, step_bytes=1 << 20) == (0, 0)
