"""Steps of unequal length that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import stablernn as srn
from cells.irregular_time.steps import UNTIMED
from stablernn import StableRNN, create_cell
from stablernn.errors import ConfigError

X, ONES = torch.zeros(1, 2, 2), torch.ones(1, 2)


def layer(key: str = "lipschitz", dt: torch.Tensor = ONES, **options: object) -> object:
    return StableRNN(key, 2, 3, **options)(X, dt=dt)


Case = tuple[type[Exception], Callable[[], object], str]
REFUSED: dict[str, Case] = {
    "a cell": (ConfigError, lambda: create_cell("rnn", 2, 3)(torch.zeros(1, 2), dt=1.0), "'rnn' takes no dt"),
    "a layer": (ConfigError, lambda: StableRNN("rnn", 2, 3, max_dt=2.0), "'rnn' takes no dt"),
    "a model": (ConfigError, lambda: srn.Classifier("rnn", 2, 3, max_dt=2.0), "'rnn' takes no dt"),
    "an operator": (ConfigError, lambda: layer("lvf_mid", constraint="none"), "constraint='hard' only, got .*'none'"),
    "beyond max_dt": (ConfigError, lambda: layer(max_dt=2.5, dt=torch.tensor([[1.0, 2.75]])), "max_dt=2.5.*got 2.75"),
    "a regular model": (ConfigError, lambda: srn.Classifier("rnn", 2, 3)(X, dt=ONES), "regular steps, got dt"),
    **{
        f"a length of {length}": (ValueError, lambda length=length: layer(dt=torch.tensor([[1.0, length]])), "dt must")
        for length in (-0.5, math.nan, math.inf)
    },
    **{
        f"a shape of {shape}": (ValueError, lambda shape=shape: layer(dt=torch.ones(shape)), r"dt has shape .*\(1, 2\)")
        for shape in ((1, 3), (2,), (1, 2, 1))
    },
    **{
        f"max_dt={longest}": (ValueError, lambda longest=longest: layer(max_dt=longest), f"max_dt .* got {longest}")
        for longest in (0.0, -1.0, math.inf, math.nan)
    },
}


@pytest.mark.parametrize(("error", "call", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused(error: type[Exception], call: Callable[[], object], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("key", UNTIMED)
def test_a_cell_without_an_equation_in_time_takes_no_dt(key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' takes no dt"):
        layer(key)


def test_a_step_beyond_the_longest_may_stand_in_the_padding() -> None:
    output, _ = StableRNN("lipschitz", 2, 3, max_dt=2.5)(X, lengths=torch.tensor([1]), dt=torch.tensor([[1.0, 2.75]]))
    assert output.isfinite().all()


@pytest.mark.parametrize("longest", [1.0, 2.7, 1.1, 12.3])
def test_the_longest_step_itself_is_taken_whatever_float32_makes_of_it(longest: float) -> None:
    output, _ = StableRNN("lipschitz", 2, 3, max_dt=longest)(X, dt=torch.full((1, 2), longest))
    assert output.isfinite().all()
