"""The engine that runs chunks from guessed starts equals the loop for cells that forget, and leaves others to it."""

from __future__ import annotations

import logging
import re

import pytest
import torch

import stablernn as srn
from engine_runs import assert_near, random_states, results
from stablernn.cells import create_cell
from stablernn.engines import select_engine, shooting
from stablernn.engines.shooting import MOST_SWEEPS, iterate
from stablernn.errors import ConfigError

CELLS = ["gru", "lstm", "rnn", "lru", "minlstm"]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shooting, "LEAST_CHUNK", 16)


def contracting(key: str, layers: int = 1) -> srn.StableRNN:
    """A layer of small weights, which forgets within a few steps."""
    torch.manual_seed(0)
    rnn = srn.StableRNN(key, 3, 5, layers, **({"max_radius": 0.5, "min_radius": 0.1} if key == "lru" else {}))
    with torch.no_grad():
        for name, parameter in rnn.named_parameters():
            if key != "lru":
                parameter.mul_(0.3 if "bias" not in name else 0.0)
    return rnn.double()


@pytest.mark.parametrize("steps", [101])
@pytest.mark.parametrize("key", CELLS)
def test_values_and_gradients_equal_those_of_the_loop(key: str, steps: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stablernn.engines")
    rnn, x = contracting(key, layers=2), torch.randn(5, steps, 3).double()
    state = random_states(rnn, 5)
    for lengths in (None, [96, 0, 33, 16, 70]):
        expected = results(rnn, "loop", x, state, lengths)
        assert_near(results(rnn, "shooting", x, state, lengths), expected, 1e-10)
    assert "chunks of" in caplog.text
    assert "leaves" not in caplog.text


def test_what_it_predicts_is_what_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stablernn.engines")
    rnn = contracting("gru")
    rnn.engine = "shooting"
    with torch.no_grad():
        rnn(torch.randn(2, 160, 3).double())
    (message,) = caplog.messages
    assert "runs 10 chunks of 'gru' at once" in message
    found = re.search(r"which predicts (\d+) sweeps; there were (\d+)", message)
    assert found is not None
    predicted, sweeps = map(int, found.groups())
    assert abs(predicted - sweeps) <= 1


def test_longer_chunks_are_tried_where_short_ones_shrink_too_little() -> None:
    torch.manual_seed(0)
    # Half of a change is left after 16 steps, a sixteenth after 64.
    rnn = srn.StableRNN("lru", 3, 4, min_radius=0.957, max_radius=0.958, engine="loop").double()
    x = torch.randn(2, 512, 3).double()
    expected = rnn(x)[0]
    rnn.engine = "shooting"
    assert_near([rnn(x)[0]], [expected], 1e-10)


def test_a_cell_that_forgets_too_slowly_is_left_to_another_engine(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    rnn, x = srn.StableRNN("lipschitz", 3, 8, preset="paper").double(), torch.randn(2, 100, 3).double()
    expected = results(rnn, "auto", x)
    for value, reference in zip(results(rnn, "shooting", x), expected, strict=True):
        assert torch.equal(value, reference)
    (message,) = [record.message for record in caplog.records]
    assert message.startswith("The engine 'shooting' leaves 'lipschitz' to '")
    assert f"more than {MOST_SWEEPS} sweeps are needed" in message
    # Said once.
    rnn(x)
    assert len(caplog.records) == 1


def test_short_sequences_are_left_to_another_engine(caplog: pytest.LogCaptureFixture) -> None:
    rnn = contracting("gru")
    rnn.engine = "shooting"
    rnn(torch.randn(2, 31, 3).double())
    assert caplog.messages == [
        "The engine 'shooting' leaves 'gru' to 'loop': it needs 32 steps or more, got 31. A layer takes one step for "
        "each patch of samples: model.patch_stride says how many."
    ]


def test_newton_leads_to_it() -> None:
    with pytest.raises(ConfigError, match=r"There is no engine 'newton': .* is 'shooting'\. Or take engine='auto'\.$"):
        srn.StableRNN("gru", 1, 4, engine="newton")


def test_auto_does_not_take_it() -> None:
    assert select_engine("auto", create_cell("lem", 3, 4), torch.zeros(1, 10_000, 3)).name == "loop"


def test_it_has_no_second_derivative() -> None:
    rnn = contracting("gru")
    rnn.engine = "shooting"
    x = torch.randn(1, 64, 3).double().requires_grad_()
    with pytest.raises(ConfigError, match="has no second derivative; take engine='loop' for one"):
        torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)


@pytest.mark.parametrize(("factor", "is_converged"), [(0.1, False), (1e-3, True), (1.5, False)])
def test_sweeps_are_given_up_when_the_second_predicts_too_many(factor: float, is_converged: bool) -> None:
    fixed = torch.ones(3, dtype=torch.float64)
    _, convergence = iterate(lambda values: (fixed + factor * (values[0] - fixed),), (torch.zeros_like(fixed),))
    assert convergence.is_converged is is_converged
    assert convergence.contraction == pytest.approx(factor, rel=0.01)
    assert convergence.sweeps == (convergence.predicted if is_converged else 2)
