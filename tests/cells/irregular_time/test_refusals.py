"""Steps of unequal length that are refused."""

from __future__ import annotations

import math
import re

import pytest
import torch

import stablernn as srn
from cells.irregular_time.steps import (
    UNTIMED,
    every_timed_cell,
)
from stablernn import StableRNN, create_cell
from stablernn.errors import ConfigError


def _exactly(sentence: str) -> str:
    return f"^{re.escape(sentence)}$"


class TestRefusals:
    @pytest.mark.parametrize("key", UNTIMED)
    def test_a_cell_without_an_equation_in_time_takes_no_dt(self, key: str) -> None:
        sentence = _exactly(
            f"The cell '{key}' takes no dt: its step has no length. Leave dt out, or take a cell that comes from a "
            "differential equation, such as lipschitz, lem or gru_d."
        )
        with pytest.raises(ConfigError, match=sentence):
            StableRNN(key, 2, 3)(torch.zeros(1, 4, 2), dt=torch.ones(1, 4))
        with pytest.raises(ConfigError, match=sentence):
            create_cell(key, 2, 3)(torch.zeros(1, 2), dt=1.0)
        with pytest.raises(ConfigError, match=sentence):
            StableRNN(key, 2, 3, max_dt=2.0)
        with pytest.raises(ConfigError, match=sentence):
            srn.Classifier(key, 2, 3, max_dt=2.0)

    @pytest.mark.parametrize("constraint", ["none", "soft"])
    def test_the_midpoint_rule_takes_dt_for_a_skew_operator_only(self, constraint: str) -> None:
        weight = 0.1 if constraint == "soft" else 0.0
        layer = StableRNN("lvf_mid", 2, 3, constraint=constraint, divergence_weight=weight)
        assert not layer.cells[0].takes_dt
        sentence = (
            f"The cell 'lvf_mid' takes dt with constraint='hard' only, got constraint='{constraint}'. Leave dt out, or "
            "take the cell lvf."
        )
        with pytest.raises(ConfigError, match=_exactly(sentence)):
            layer(torch.zeros(1, 4, 2), dt=torch.ones(1, 4))

    @every_timed_cell
    def test_a_step_beyond_the_longest_is_refused(self, key: str) -> None:
        layer = StableRNN(key, 2, 3, max_dt=2.5)
        dt = torch.tensor([[1.0, 2.75]])
        sentence = (
            "dt is at most max_dt=2.5, the longest step that the model takes, got 2.75; divide the gap into steps with "
            "missing values."
        )
        with pytest.raises(ConfigError, match=_exactly(sentence)):
            layer(torch.zeros(1, 2, 2), dt=dt)
        layer(torch.zeros(1, 2, 2), lengths=torch.tensor([1]), dt=dt)

    @pytest.mark.parametrize("longest", [1.0, 2.7, 1.1, 12.3])
    def test_the_longest_step_itself_is_taken_whatever_float32_makes_of_it(self, longest: float) -> None:
        layer = StableRNN("lipschitz", 2, 3, max_dt=longest)
        output, _ = layer(torch.zeros(1, 2, 2), dt=torch.full((1, 2), longest))
        assert torch.isfinite(output).all()

    @pytest.mark.parametrize("length", [-0.5, math.nan, math.inf])
    def test_time_goes_forward_and_ends(self, length: float) -> None:
        sentence = "dt must be finite numbers of 0 or more, the time since the step before."
        with pytest.raises(ValueError, match=_exactly(sentence)):
            StableRNN("lipschitz", 2, 3)(torch.zeros(1, 2, 2), dt=torch.tensor([[1.0, length]]))

    @pytest.mark.parametrize("shape", [(1, 3), (2,), (1, 2, 1)])
    def test_there_is_one_length_for_each_step(self, shape: tuple[int, ...]) -> None:
        sentence = f"dt has shape {shape}, the input's steps are (1, 2)."
        with pytest.raises(ValueError, match=_exactly(sentence)):
            StableRNN("lipschitz", 2, 3)(torch.zeros(1, 2, 2), dt=torch.ones(shape))

    @pytest.mark.parametrize("longest", [0.0, -1.0, math.inf, math.nan])
    def test_the_longest_step_is_a_length(self, longest: float) -> None:
        sentence = f"max_dt must be a finite number of 1, the regular step, or more, got {longest}."
        with pytest.raises(ValueError, match=_exactly(sentence)):
            StableRNN("lipschitz", 2, 3, max_dt=longest)

    def test_a_model_for_regular_steps_takes_no_dt(self) -> None:
        sentence = "The model was built for regular steps, got dt; give max_dt when it is built."
        with pytest.raises(ConfigError, match=_exactly(sentence)):
            srn.Classifier("lipschitz", 2, 3)(torch.zeros(1, 4, 2), dt=torch.ones(1, 4))
