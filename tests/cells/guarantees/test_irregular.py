"""Guarantees of the cells of irregular time.

Cells: gru_d, cfc, ode_lstm.
"""

from __future__ import annotations

import pytest
import torch

from reference.dynamics import random_normal
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell


class TestGRUD:
    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize("num_layers", [1, 2])
    def test_gradients_are_finite_for_every_share_of_missing_values(self, num_layers: int, share: float) -> None:
        layer = StableRNN("gru_d", 3, 5, num_layers).double()
        x = random_normal(4, 12, 3)
        x[torch.rand(x.shape) < share] = torch.nan
        x.requires_grad_()
        output, state = layer(x, dt=5 * torch.rand(4, 12, dtype=torch.float64))
        sum(part.sum() for part in (output.square(), *state)).backward()
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()
        assert not x.grad[torch.isnan(x)].any()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name

    def test_upper_layers_impute_nothing(self) -> None:
        layer = StableRNN("gru_d", 3, 5, num_layers=3)
        first, *upper = layer.cells
        assert first.state_names == ("hidden", "last", "elapsed")
        assert first.takes_missing
        for cell in upper:
            assert cell.state_names == ("hidden",)
            assert not cell.takes_missing
            assert {"weight_mask", "input_decay", "input_decay_bias"}.isdisjoint(dict(cell.named_parameters()))
        _, state = layer(torch.randn(2, 4, 3))
        assert [tuple(part.shape) for part in state] == [(3, 2, 5), (1, 2, 3), (1, 2, 3)]

    def test_without_imputation_it_is_the_reference_with_everything_observed(self) -> None:
        cell = create_cell("gru_d", 3, 5, imputation="none").double()
        for parameter in cell.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        gates = dict(zip("zrn", range(3), strict=True))
        parts = {name: parameter.chunk(3) for name, parameter in cell.named_parameters()}
        named = {
            f"{letter}_{gate}": parts[name][index]
            for letter, name in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih"))
            for gate, index in gates.items()
        }
        zeros = torch.zeros(3, dtype=torch.float64)
        named |= {f"V_{gate}": torch.zeros(5, 3, dtype=torch.float64) for gate in gates}
        named |= {
            "w_gx": zeros,
            "b_gx": zeros,
            "W_gh": cell.state_decay.expand(5, 3) / 3,
            "b_gh": cell.state_decay_bias,
        }
        x, dt = random_normal(2, 9, 3), 3 * torch.rand(2, 9, dtype=torch.float64)
        h0, empty = random_normal(2, 5), torch.zeros(2, 3, dtype=torch.float64)
        expected = MAPPING["gru_d"].module.sequence(named, x, h0, empty, empty, dt=dt)[0]
        state = (h0,)
        for index in range(9):
            state = cell.step(cell.materialize(), state, cell.drive(x[:, index]), dt[:, index, None])
            torch.testing.assert_close(state[0], expected[:, index], rtol=1e-10, atol=1e-12)


class TestCfC:
    @pytest.mark.parametrize("activation", ["lecun_tanh", "tanh", "silu", "gelu"])
    @pytest.mark.parametrize(("layers", "units"), [(0, None), (1, None), (1, 20), (3, 9)])
    def test_memory_starts_with_a_step_that_passes_small_states_on(
        self, layers: int, units: int | None, activation: str
    ) -> None:
        cell = create_cell("cfc", 1, 9, backbone_layers=layers, backbone_units=units, activation=activation).double()
        h = 1e-6 * random_normal(5, 9)
        (after,) = cell.step(cell.materialize(), (h,), cell.drive(torch.zeros(5, 1, dtype=torch.float64)))
        torch.testing.assert_close(after, h, rtol=1e-3, atol=1e-9)
