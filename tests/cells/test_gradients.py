"""First and second derivatives of every cell through the layer, against finite differences in float64.

The reference tests compare autograd with autograd; these catch a derivative that autograd itself gets wrong, and a
hand-written backward that has no second derivative.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from model_helpers import TRAINED
from stablernn import StableRNN, create_cell

FEW: dict[str, dict[str, Any]] = {"ren": {"num_neurons": 2}, "ode_rnn": {"flow_size": 4}}
"""Options that leave fewer parameters to differentiate by, of cells that have many at any size."""
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((key, FEW.get(key, {})) for key in TRAINED),
    *((key, {**FEW.get(key, {}), "max_dt": 2.5}) for key in TRAINED if create_cell(key, 2, 3).takes_dt),
    ("lvf", {"nonlinearity": "modrelu", "constraint": "none"}),
    ("lvf", {"nonlinearity": "tanh", "constraint": "hard"}),
    ("lvf_mid", {"nonlinearity": "modrelu", "constraint": "hard"}),
    ("lvf_mid", {"nonlinearity": "softshrink", "constraint": "hard"}),
    ("lvf_mid", {"nonlinearity": "tanh", "constraint": "none"}),
    ("exprnn", {"parametrization": "cayley", "nonlinearity": "modrelu"}),
    ("dtriv", {"parametrization": "cayley"}),
    ("scornn", {"negative_signs": 2, "nonlinearity": "modrelu"}),
    ("nnrnn", {"nonlinearity": "modrelu"}),
    ("spectral_rnn", {"num_reflections": 3, "margin": 0.5, "nonlinearity": "softshrink"}),
    ("soft_orth", {"form": "factored"}),
    ("soft_orth", {"form": "unbounded"}),
    ("slstm", {"num_heads": 3}),
    ("lru", {"activation": "none"}),
    ("ren", {"num_neurons": 3, "contraction_rate": 0.8}),
    ("gru_d", {"imputation": "none"}),
    ("cfc", {"backbone_layers": 0}),
    ("cfc", {"backbone_layers": 3, "activation": "silu"}),
    ("ode_lstm", {"solver": "rk4", "flow_size": 2}),
    ("sr_lstm", {"restart": 5}),
    ("urnn", {"nonlinearity": "modrelu"}),
    ("fc_urnn", {"parametrization": "cayley", "nonlinearity": "modrelu"}),
    ("eunn", {"capacity": 5, "nonlinearity": "modrelu"}),
    ("eunn", {"variant": "real", "nonlinearity": "softshrink"}),
    ("kru", {"nonlinearity": "modrelu"}),
    ("antisym_ablation", {"damping": 0.3}),
    ("fastrnn", {"nonlinearity": "relu", "input_rank": 1, "recurrent_rank": 2}),
    ("fastgrnn", {"recurrent_rank": 2, "recurrent_kept": 0.5, "byte_weights": False}),
    ("fastgrnn_lsq", {"nonlinearity": "quant_tanh", "gate_nonlinearity": "quant_sigmoid4"}),
    ("incremental", {"inner_steps": 3, "start": "zero", "nonlinearity": "tanh"}),
    ("incremental", {"inner_steps": 2, "recurrent_rank": 1, "nonlinearity": "relu"}),
    ("nais_net", {"margin": 0.3, "step_size": 0.5}),
    ("ode_rnn", {"solver": "rk4", "solver_steps": 2, "flow_size": 4}),
    ("ode_rnn", {"solver": "midpoint", "flow_size": 4}),
]
# Along random directions, which a wrong derivative does not survive; entry by entry in the slow tests.
every_thoroughness = pytest.mark.parametrize(
    "fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["directions", "entries"]
)
IDS = [",".join([key, *(str(value) for value in options.values())]) for key, options in VARIANTS]


def _problem(key: str, options: dict[str, Any], time: int) -> tuple[Any, list[Tensor]]:
    """The layer as a function of input, first state, lengths of steps with ``max_dt``, and parameters, and a point at
    which to differentiate it, away from whole lengths."""
    layer = StableRNN(key, 2, 3, engine="loop", **options).double().eval()
    is_timed = "max_dt" in options
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
        # Outside a constraint the gradient passes straight through the projection, and is no derivative.
        layer.after_step(1, 100)
        _, reached = layer.run(torch.randn(2, 3, 2, dtype=torch.float64), layer.initial_state(2))
    names = [name for name, _ in layer.named_parameters()]
    points = [torch.randn(2, time, 2, dtype=torch.float64), *reached]
    if is_timed:
        points.append(0.1 + 2.3 * torch.rand(2, time, dtype=torch.float64))
    width = len(points)
    points += [parameter.detach().clone() for parameter in layer.parameters()]

    def outputs(*values: Tensor) -> Tensor:
        x, *state = values[:width]
        dt = state.pop() if is_timed else None
        parameters = dict(zip(names, values[width:], strict=True))
        stacked = [tensor[None] for tensor in state]
        result, last = functional_call(layer, parameters, (x, stacked, None, dt))
        parts = (last,) if isinstance(last, Tensor) else last
        return torch.cat([result.flatten(), *(part.flatten() for part in parts)])

    return outputs, [point.detach().requires_grad_() for point in points]


@every_thoroughness
@pytest.mark.parametrize(("key", "options"), VARIANTS, ids=IDS)
def test_first_derivatives_equal_finite_differences(key: str, options: dict[str, Any], fast: bool) -> None:
    function, points = _problem(key, options, time=4)
    assert gradcheck(function, points, fast_mode=fast)


@every_thoroughness
@pytest.mark.parametrize(
    ("key", "options"),
    # Autograd differentiates its own derivatives alike under all options of a cell.
    [
        pytest.param(*variant, marks=[] if number < len(TRAINED) or "max_dt" in variant[1] else pytest.mark.slow)
        for number, variant in enumerate(VARIANTS)
    ],
    ids=IDS,
)
def test_second_derivatives_equal_finite_differences(key: str, options: dict[str, Any], fast: bool) -> None:
    function, points = _problem(key, options, time=2)
    assert gradgradcheck(function, points, fast_mode=fast)
