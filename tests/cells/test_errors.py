"""What cells, the catalog and the layer refuse: the class of the error, and the option or value that it names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stablernn import StableRNN, create_cell
from stablernn.cells import StableCell, cell_info, recommended_training, register_cell
from stablernn.errors import ConfigError, UnknownNameError

STEP_SIZE_CELLS = [
    "antisymmetric",
    "antisymmetric_g",
    "lipschitz",
    "lipschitz_rk2",
    "lvf",
    "lvf_mid",
    "antisym_ablation",
    "incremental",
    "nais_net",
    "neural_ode_rnn",
    "noisy_rnn",
    "ode_rnn",
    "cornn",
    "lem",
    "unicornn",
]

OUT_OF_RANGE: list[tuple[str, str, Any]] = [
    *((key, "step_size", value) for key in STEP_SIZE_CELLS for value in (0.0, -0.5, math.nan, math.inf)),
    ("antisymmetric", "damping", -0.1),
    ("antisymmetric_g", "init_scale", -2.0),
    ("lipschitz", "skew_weight", 1.5),
    ("lipschitz_rk2", "skew_weight", -0.5),
    ("lipschitz", "init_scale", -0.1),
    ("lipschitz_rk2", "linear_damping", math.nan),
    ("lipschitz", "linear_scale", math.inf),
    ("lvf", "nonlinearity", "relu"),
    ("lvf_mid", "constraint", "firm"),
    ("exprnn", "init", "orthogonal"),
    ("exprnn", "parametrization", "qr"),
    ("exprnn", "nonlinearity", "tanh"),
    ("dtriv", "rebase", -1),
    ("dtriv", "project", -2),
    ("scornn", "negative_signs", 4),
    ("spectral_rnn", "num_reflections", 0),
    ("spectral_rnn", "margin", -0.1),
    ("soft_orth", "form", "hard"),
    ("soft_orth", "penalty_weight", math.inf),
    ("nnrnn", "gain_penalty", -1.0),
    ("nnrnn", "upper_penalty", math.nan),
    ("rnn_orth", "init", "eye"),
    # Greater than 0 with constraint "soft", which it has not.
    ("lvf_mid", "divergence_weight", 0.5),
    ("cornn", "stiffness", 0.0),
    ("cornn", "damping", -1.0),
    ("unicornn", "stiffness", -1.0),
    ("unicornn", "speed_range", -3.0),
    ("momentum_lstm", "momentum", 1.0),
    ("momentum_lstm", "input_scale", 0.0),
    ("sr_lstm", "restart", 0),
    ("sr_lstm", "forget_bias", math.nan),
    ("slstm", "num_heads", 2),
    ("slstm", "num_heads", 0),
    ("slstm", "init", "zeros"),
    ("indrnn", "max_length", 0),
    ("identity_rnn", "init_scale", -0.1),
    ("gru_d", "imputation", "mean"),
    ("gru_d", "init_decay", 0.0),
    ("gru_d", "update_bias", math.nan),
    ("cfc", "backbone_layers", -1),
    ("cfc", "backbone_units", 0),
    ("cfc", "activation", "elu"),
    ("cfc", "init", "zeros"),
    ("ode_lstm", "solver", "midpoint"),
    ("ode_lstm", "flow_size", 0),
    ("ode_lstm", "forget_bias", math.nan),
    ("fastrnn", "nonlinearity", "sigmoid"),
    ("fastrnn", "alpha_init", math.nan),
    ("fastrnn", "recurrent_rank", 0),
    ("fastgrnn", "input_rank", 2.5),
    ("fastgrnn", "recurrent_rank", math.nan),
    ("fastgrnn", "recurrent_kept", 0.0),
    ("fastgrnn", "input_kept", 1.5),
    ("fastgrnn_lsq", "gate_nonlinearity", "tanh"),
    ("fastgrnn_lsq", "nu_init", math.inf),
    ("mingru", "init_memory", -1.0),
    ("minlstm", "init_memory", math.inf),
    ("lru", "max_phase", 0.0),
    ("lru", "activation", "tanh"),
    ("ren", "num_neurons", 0),
    ("ren", "contraction_rate", 0.0),
    ("ren", "contraction_rate", 1.1),
    ("ren", "margin", 0.0),
    ("ren", "init", "cholesky"),
    ("nais_net", "margin", 0.5),
    ("nais_net", "margin", 0.0),
    ("neural_ode_rnn", "init_scale", -1.0),
    ("ode_rnn", "solver", "dopri5"),
    ("ode_rnn", "solver_steps", 0),
    ("ode_rnn", "flow_size", 0),
    ("incremental", "inner_steps", 0),
    ("incremental", "leak", 0.0),
    ("incremental", "start", "here"),
    ("incremental", "recurrent_rank", 1.5),
    ("noisy_rnn", "additive_noise", -0.1),
    ("noisy_rnn", "multiplicative_noise", 1.1),
    ("urnn", "nonlinearity", "tanh"),
    ("fc_urnn", "parametrization", "qr"),
    ("fc_urnn", "rebase", -1),
    ("eunn", "capacity", 0),
    ("eunn", "capacity", 2.5),
    ("eunn", "variant", "quaternion"),
    ("eunn", "style", "butterfly"),
    ("eunn", "nonlinearity", "relu"),
    ("eunn", "input_scale", 0.0),
    ("kru", "factors", 4),
    ("kru", "factors", 2.5),
    ("kru", "penalty_weight", -0.1),
]


@pytest.mark.parametrize(("key", "option", "value"), OUT_OF_RANGE)
def test_an_option_out_of_range_is_refused(key: str, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{option} .*{type(create_cell(key, 2, 3)).__name__}.* got .*{value}"):
        create_cell(key, 2, 3, **{option: value})


def layer(x: Tensor, key: str = "rnn", **options: Any) -> Any:
    """The outputs of a layer of 3 features and 4 units."""
    call = {name: options.pop(name) for name in ("state", "lengths") if name in options}
    return StableRNN(key, 3, 4, **options)(x, **call)


X, SINGLE = torch.zeros(2, 5, 3), torch.zeros(5, 3)
Case = tuple[type[Exception], Callable[[], object], str]
REFUSED: dict[str, Case] = {
    "a weight of nothing": (
        ValueError,
        lambda: create_cell("lvf", 2, 3, constraint="soft", divergence_weight=0.0),
        "divergence_weight .* got 0.0 with 'soft'",
    ),
    "an unstable oscillation": (
        ValueError,
        lambda: create_cell("cornn", 2, 3, step_size=1.0, stiffness=2.0, damping=1.0),
        "step_size .* less than 4 .* got 4",
    ),
    "radii out of order": (ValueError, lambda: create_cell("lru", 2, 3, max_radius=0.5), "max_radius .* 0.9 and 0.5"),
    "a radius above one": (ValueError, lambda: create_cell("lru", 2, 3, max_radius=1.5), "max_radius .* 0.9 and 1.5"),
    "no power of two": (ValueError, lambda: create_cell("eunn", 2, 12, style="fft"), "hidden_size .* got 12"),
    "a capacity of fft": (
        ValueError,
        lambda: create_cell("eunn", 1, 16, style="fft", capacity=2),
        "capacity .* got 2 with style 'fft'",
    ),
    "no inputs": (ValueError, lambda: create_cell("rnn", 0, 4), "input_size .* got 0"),
    "no units": (ValueError, lambda: create_cell("rnn", 4, 0), "hidden_size .* got 0"),
    "a text for a number": (ConfigError, lambda: create_cell("lvf", 2, 3, step_size="0.1"), "step_size.*got '0.1'"),
    "a flag for a number": (ConfigError, lambda: create_cell("lvf", 2, 3, step_size=True), "step_size.*got True"),
    "a number for a text": (ConfigError, lambda: create_cell("lvf", 2, 3, constraint=1), "constraint.*string, got 1"),
    "an unknown cell": (UnknownNameError, lambda: create_cell("antisymetric", 2, 3), "Did you mean 'antisymmetric'"),
    "an unknown layer": (UnknownNameError, lambda: StableRNN("antisymetric", 2, 3), "Did you mean 'antisymmetric'"),
    "no neighbor": (LookupError, lambda: cell_info("xyz"), "^Unknown cell 'xyz'. See `stablernn cells list`.$"),
    "an unknown option": (
        ConfigError,
        lambda: create_cell("antisymmetric", 2, 3, beta=0.1),
        "no option 'beta'. It takes damping, init_scale, step_size",
    ),
    "a misspelled option": (ConfigError, lambda: create_cell("lstm", 2, 3, forget=1), "Did you mean 'forget_bias'"),
    "an option where none is": (ConfigError, lambda: create_cell("rnn", 2, 3, step_size=0.1), "It takes none"),
    "an unknown preset": (ConfigError, lambda: create_cell("rnn", 2, 3, preset="papers"), "Did you mean 'paper'"),
    "one of a layer": (ConfigError, lambda: StableRNN("rnn", 2, 3, preset="papers"), "practical, paper"),
    "one of training": (ConfigError, lambda: recommended_training("rnn", "papers"), "Did you mean 'paper'"),
    "a cell's input": (ValueError, lambda: create_cell("rnn", 3, 5)(torch.zeros(2, 4)), r"\(batch, 3\).*\(2, 4\)"),
    "its features": (ValueError, lambda: create_cell("rnn", 3, 5)(torch.zeros(4)), r"\(3,\), got \(4,\)"),
    "its dimensions": (ValueError, lambda: create_cell("rnn", 3, 5)(torch.zeros(1, 2, 3)), r"got \(1, 2, 3\)"),
    "a cell's state": (
        ValueError,
        lambda: create_cell("rnn", 3, 4)(torch.zeros(2, 3), torch.zeros(1, 4)),
        r"hidden \(2, 4\) here, got \(1, 4\)",
    ),
    "other features": (ValueError, lambda: layer(torch.zeros(2, 4, 5)), r"\(2, 4, 5\).*\(batch, time, 3\)"),
    "one dimension": (ValueError, lambda: layer(torch.zeros(3)), r"shape \(3,\)"),
    "four dimensions": (ValueError, lambda: layer(torch.zeros(1, 2, 4, 3)), r"shape \(1, 2, 4, 3\)"),
    "no steps": (ValueError, lambda: layer(torch.zeros(2, 0, 3)), r"\(2, 0, 3\).*1 step or more"),
    "no layers": (ValueError, lambda: layer(X, num_layers=0), "num_layers .* got 0"),
    "negative dropout": (ValueError, lambda: layer(X, dropout=-0.1), "dropout .* got -0.1"),
    "dropout above one": (ValueError, lambda: layer(X, dropout=1.5), "dropout .* got 1.5"),
    "dropout of one layer": (ValueError, lambda: layer(X, dropout=0.3), "num_layers of 2 or more, got dropout=0.3"),
    "an unknown engine": (UnknownNameError, lambda: layer(X, engine="lop"), "Did you mean 'loop'"),
    "a state too many": (
        ValueError,
        lambda: layer(X, state=[torch.zeros(1, 2, 4)] * 2),
        r"hidden \(1, 2, 4\) here, got \(1, 2, 4\) and",
    ),
    "a state too few": (
        ValueError,
        lambda: layer(X, "lstm", state=[torch.zeros(1, 2, 4)]),
        r"and cell \(1, 2, 4\) here, got \(1, 2, 4\)",
    ),
    "a state that would broadcast": (
        ValueError,
        lambda: layer(X, "gru", state=[torch.zeros(1, 1, 4)]),
        r"got \(1, 1, 4\)",
    ),
    "a state of too many layers": (
        ValueError,
        lambda: layer(X, "gru", state=[torch.zeros(2, 2, 4)]),
        r"got \(2, 2, 4\)",
    ),
    "lengths beyond the end": (ValueError, lambda: layer(X, lengths=torch.tensor([5, 6])), "0 to 5.*got 5 to 6"),
    "negative lengths": (ValueError, lambda: layer(X, lengths=torch.tensor([-1, 5])), "got -1 to 5"),
    "one length for all": (ValueError, lambda: layer(X, lengths=torch.tensor([5])), r"shape \(1,\)"),
    "fractional lengths": (ValueError, lambda: layer(X, lengths=torch.tensor([5.0, 2.0])), "torch.float32"),
    "lengths of one sequence": (ValueError, lambda: layer(SINGLE, lengths=torch.tensor([5])), "one sequence"),
}


@pytest.mark.parametrize(("error", "call", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused(error: type[Exception], call: Callable[[], object], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_key_is_registered_once() -> None:
    class Second(StableCell):
        pass

    with pytest.raises(ValueError, match=r"^The cell 'rnn' is registered twice, by "):
        register_cell("rnn", title="", paper="", year=0, guarantee="", family="", equation="")(Second)
