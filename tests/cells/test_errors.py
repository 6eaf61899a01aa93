"""What is refused, and in which words: cells, the catalog and the layer."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from stablernn import StableRNN, create_cell
from stablernn.cells import StableCell, cell_info, recommended_training, register_cell
from stablernn.errors import ConfigError, UnknownNameError

STEP_SIZE_CELLS = {
    "antisymmetric": "AntisymmetricRNNCell",
    "antisymmetric_g": "GatedAntisymmetricRNNCell",
    "lipschitz": "LipschitzRNNCell",
    "lipschitz_rk2": "LipschitzRK2RNNCell",
    "lvf": "LVFRNNCell",
    "lvf_mid": "LVFMidpointRNNCell",
    "antisym_ablation": "AblationRNNCell",
    "incremental": "IncrementalRNNCell",
    "nais_net": "NAISNetCell",
    "neural_ode_rnn": "NeuralODERNNCell",
    "noisy_rnn": "NoisyRNNCell",
    "ode_rnn": "ODERNNCell",
    "cornn": "CoRNNCell",
    "lem": "LEMCell",
    "unicornn": "UnICORNNCell",
}


def _exactly(sentence: str) -> str:
    return f"^{re.escape(sentence)}$"


@pytest.mark.parametrize("step_size", [0.0, -0.5, math.nan, math.inf])
@pytest.mark.parametrize("key", STEP_SIZE_CELLS)
def test_a_step_that_does_not_go_forward_is_refused(key: str, step_size: float) -> None:
    sentence = f"step_size must be a finite number greater than 0 for {STEP_SIZE_CELLS[key]}, got {step_size}."
    with pytest.raises(ValueError, match=_exactly(sentence)):
        create_cell(key, 2, 3, step_size=step_size)


@pytest.mark.parametrize(
    ("key", "options", "sentence"),
    [
        (
            "antisymmetric",
            {"damping": -0.1, "init_scale": 1.0},
            "damping must be a finite number, 0 or more, for AntisymmetricRNNCell, got -0.1.",
        ),
        (
            "antisymmetric_g",
            {"damping": 0.01, "init_scale": -2.0},
            "init_scale must be a finite number, 0 or more, for GatedAntisymmetricRNNCell, got -2.0.",
        ),
        ("lipschitz", {"skew_weight": 1.5}, "skew_weight must be from 0 to 1 for LipschitzRNNCell, got 1.5."),
        ("lipschitz_rk2", {"skew_weight": -0.5}, "skew_weight must be from 0 to 1 for LipschitzRK2RNNCell, got -0.5."),
        (
            "lipschitz",
            {"init_scale": -0.1},
            "init_scale must be a finite number, 0 or more, for LipschitzRNNCell, got -0.1.",
        ),
        (
            "lipschitz_rk2",
            {"linear_damping": math.nan},
            "linear_damping must be a finite number for LipschitzRK2RNNCell, got nan.",
        ),
        (
            "lipschitz",
            {"linear_scale": math.inf},
            "linear_scale must be a finite number for LipschitzRNNCell, got inf.",
        ),
        (
            "lvf",
            {"nonlinearity": "relu"},
            "nonlinearity of LVFRNNCell must be 'tanh', 'modrelu' or 'softshrink', got 'relu'.",
        ),
        (
            "lvf_mid",
            {"constraint": "firm"},
            "constraint of LVFMidpointRNNCell must be 'none', 'soft' or 'hard', got 'firm'.",
        ),
        (
            "exprnn",
            {"init": "orthogonal"},
            "init of ExpRNNCell must be 'henaff', 'cayley' or 'haar', got 'orthogonal'.",
        ),
        (
            "exprnn",
            {"parametrization": "qr"},
            "parametrization of ExpRNNCell must be 'exp' or 'cayley', got 'qr'.",
        ),
        (
            "exprnn",
            {"nonlinearity": "tanh"},
            "nonlinearity of ExpRNNCell must be 'modrelu' or 'softshrink', got 'tanh'.",
        ),
        ("dtriv", {"rebase": -1}, "rebase must be 0 or more for DynamicTrivializationRNNCell, got -1."),
        ("dtriv", {"project": -2}, "project must be 0 or more for DynamicTrivializationRNNCell, got -2."),
        (
            "scornn",
            {"negative_signs": 4},
            "negative_signs must be from 0 to the 3 hidden units for ScaledCayleyRNNCell, got 4.",
        ),
        (
            "spectral_rnn",
            {"num_reflections": 0},
            "num_reflections must be from 1 to the 3 hidden units for SpectralRNNCell, got 0.",
        ),
        (
            "spectral_rnn",
            {"margin": -0.1},
            "margin must be a finite number, 0 or more, for SpectralRNNCell, got -0.1.",
        ),
        (
            "soft_orth",
            {"form": "hard"},
            "form of SoftOrthogonalRNNCell must be 'penalty', 'factored' or 'unbounded', got 'hard'.",
        ),
        (
            "soft_orth",
            {"penalty_weight": math.inf},
            "penalty_weight must be a finite number, 0 or more, for SoftOrthogonalRNNCell, got inf.",
        ),
        (
            "nnrnn",
            {"gain_penalty": -1.0},
            "gain_penalty must be a finite number, 0 or more, for NonNormalRNNCell, got -1.0.",
        ),
        (
            "nnrnn",
            {"upper_penalty": math.nan},
            "upper_penalty must be a finite number, 0 or more, for NonNormalRNNCell, got nan.",
        ),
        (
            "rnn_orth",
            {"init": "eye"},
            "init of OrthogonalStartRNNCell must be 'henaff', 'cayley' or 'haar', got 'eye'.",
        ),
        (
            "lvf",
            {"constraint": "soft", "divergence_weight": 0.0},
            "divergence_weight of LVFRNNCell is greater than 0 with constraint 'soft' and 0 otherwise, "
            "got 0.0 with 'soft'.",
        ),
        (
            "lvf_mid",
            {"constraint": "none", "divergence_weight": 0.5},
            "divergence_weight of LVFMidpointRNNCell is greater than 0 with constraint 'soft' and 0 otherwise, "
            "got 0.5 with 'none'.",
        ),
        (
            "cornn",
            {"stiffness": 0.0},
            "stiffness must be a finite number greater than 0 for CoRNNCell, got 0.0.",
        ),
        (
            "cornn",
            {"damping": -1.0},
            "damping must be a finite number greater than 0 for CoRNNCell, got -1.0.",
        ),
        (
            "cornn",
            {"step_size": 1.0, "stiffness": 2.0, "damping": 1.0},
            "step_size is too long for CoRNNCell: 2 step_size damping + step_size^2 stiffness must be less than 4 "
            "for a stable step, got 4.",
        ),
        (
            "unicornn",
            {"stiffness": -1.0},
            "stiffness must be a finite number, 0 or more, for UnICORNNCell, got -1.0.",
        ),
        (
            "unicornn",
            {"speed_range": -3.0},
            "speed_range must be a finite number, 0 or more, for UnICORNNCell, got -3.0.",
        ),
        ("momentum_lstm", {"momentum": 1.0}, "momentum must be from 0 to less than 1 for MomentumLSTMCell, got 1.0."),
        (
            "momentum_lstm",
            {"input_scale": 0.0},
            "input_scale must be a finite number greater than 0 for MomentumLSTMCell, got 0.0.",
        ),
        ("sr_lstm", {"restart": 0}, "restart must be 1 or more for ScheduledRestartLSTMCell, got 0."),
        (
            "sr_lstm",
            {"forget_bias": math.nan},
            "forget_bias must be a finite number for ScheduledRestartLSTMCell, got nan.",
        ),
        ("slstm", {"num_heads": 2}, "num_heads must divide hidden_size for SLSTMCell, got 2 heads for 3 units."),
        ("slstm", {"num_heads": 0}, "num_heads must divide hidden_size for SLSTMCell, got 0 heads for 3 units."),
        ("slstm", {"init": "zeros"}, "init of SLSTMCell must be 'spread' or 'released', got 'zeros'."),
        ("indrnn", {"max_length": 0}, "max_length must be 1 or more, or None, for IndRNNCell, got 0."),
        (
            "identity_rnn",
            {"init_scale": -0.1},
            "init_scale must be a finite number, 0 or more, for IdentityRNNCell, got -0.1.",
        ),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_an_option_out_of_range_is_refused(key: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=_exactly(sentence)):
        create_cell(key, 2, 3, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"step_size": "0.1"}, "The option 'step_size' of the cell 'lvf' takes a number, got '0.1'."),
        ({"step_size": True}, "The option 'step_size' of the cell 'lvf' takes a number, got True."),
        ({"constraint": 1}, "The option 'constraint' of the cell 'lvf' takes a string, got 1."),
    ],
    ids=["text", "flag", "number"],
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=_exactly(sentence)):
        create_cell("lvf", 2, 3, **options)


def test_an_unknown_cell_is_named_with_its_neighbour() -> None:
    sentence = "Unknown cell 'antisymetric'. Did you mean 'antisymmetric'? See `stablernn cells list`."
    for refuse in (lambda: create_cell("antisymetric", 2, 3), lambda: StableRNN("antisymetric", 2, 3)):
        with pytest.raises(UnknownNameError, match=_exactly(sentence)):
            refuse()


def test_an_unknown_cell_far_from_all_names_has_no_suggestion() -> None:
    with pytest.raises(LookupError, match=_exactly("Unknown cell 'xyz'. See `stablernn cells list`.")):
        cell_info("xyz")


@pytest.mark.parametrize(
    ("key", "option", "sentence"),
    [
        (
            "antisymmetric",
            "beta",
            "The cell 'antisymmetric' has no option 'beta'. It takes damping, init_scale, step_size.",
        ),
        ("lstm", "forget", "The cell 'lstm' has no option 'forget'. Did you mean 'forget_bias'? It takes forget_bias."),
    ],
)
def test_an_unknown_option_is_named_with_those_there_are(key: str, option: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=_exactly(sentence)):
        create_cell(key, 2, 3, **{option: 0.1})


def test_an_option_for_a_cell_that_has_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=_exactly("The cell 'rnn' has no option 'step_size'. It takes none.")):
        create_cell("rnn", 2, 3, step_size=0.1)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: create_cell("rnn", 2, 3, preset="papers"),
        lambda: StableRNN("rnn", 2, 3, preset="papers"),
        lambda: recommended_training("rnn", "papers"),
    ],
    ids=["cell", "layer", "training"],
)
def test_an_unknown_preset_is_refused(refuse: Any) -> None:
    sentence = "Unknown preset 'papers'. Did you mean 'paper'? It is one of practical, paper."
    with pytest.raises(ConfigError, match=_exactly(sentence)):
        refuse()


def test_a_key_is_registered_once() -> None:
    class Second(StableCell):
        pass

    with pytest.raises(ValueError, match=r"^The cell 'rnn' is registered twice, by "):
        register_cell("rnn", title="", paper="", year=0, guarantee="", family="", equation="")(Second)


@pytest.mark.parametrize("shape", [(2, 4), (4,), (1, 2, 3)])
def test_a_cell_refuses_an_input_of_another_shape(shape: tuple[int, ...]) -> None:
    sentence = f"ElmanRNNCell expects input of shape (batch, 3) or (3,), got {shape}."
    with pytest.raises(ValueError, match=_exactly(sentence)):
        create_cell("rnn", 3, 5)(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 4, 5), (4, 5), (3,), (1, 2, 4, 3)])
def test_the_layer_refuses_an_input_of_another_shape(shape: tuple[int, ...]) -> None:
    sentence = f"input has shape {shape}, the layer expects (batch, time, 3) or (time, 3)."
    with pytest.raises(ValueError, match=_exactly(sentence)):
        StableRNN("rnn", 3, 5)(torch.zeros(shape))


def test_the_layer_refuses_a_sequence_without_steps() -> None:
    sentence = "input has shape (2, 0, 3), the time axis must hold 1 step or more."
    with pytest.raises(ValueError, match=_exactly(sentence)):
        StableRNN("rnn", 3, 5)(torch.zeros(2, 0, 3))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_layers": 0}, "num_layers must be 1 or more, got 0."),
        ({"dropout": -0.1}, "dropout must be from 0 to 1, got -0.1."),
        ({"dropout": 1.5}, "dropout must be from 0 to 1, got 1.5."),
    ],
    ids=["no-layers", "negative-dropout", "dropout-above-one"],
)
def test_the_layer_refuses_sizes_out_of_range(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=_exactly(sentence)):
        StableRNN("rnn", 3, 5, **arguments)


def test_an_unknown_engine_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"^Unknown engine 'lop'\. Did you mean 'loop'\? It is auto or one of "):
        StableRNN("rnn", 3, 5, engine="lop")(torch.zeros(2, 4, 3))


@pytest.mark.parametrize(
    ("key", "shapes", "sentence"),
    [
        (
            "rnn",
            [(1, 2, 4), (1, 2, 4)],
            "The state of the cell 'rnn' is hidden (1, 2, 4) here, got (1, 2, 4) and (1, 2, 4).",
        ),
        (
            "lstm",
            [(1, 2, 4)],
            "The state of the cell 'lstm' is hidden (1, 2, 4) and cell (1, 2, 4) here, got (1, 2, 4).",
        ),
        ("gru", [(1, 1, 4)], "The state of the cell 'gru' is hidden (1, 2, 4) here, got (1, 1, 4)."),
        ("gru", [(2, 2, 4)], "The state of the cell 'gru' is hidden (1, 2, 4) here, got (2, 2, 4)."),
    ],
    ids=["one-too-many", "one-too-few", "would-broadcast", "too-many-layers"],
)
def test_a_layer_refuses_a_state_of_another_shape(key: str, shapes: list[tuple[int, ...]], sentence: str) -> None:
    with pytest.raises(ValueError, match=_exactly(sentence)):
        StableRNN(key, 3, 4)(torch.zeros(2, 5, 3), [torch.zeros(shape) for shape in shapes])


def test_a_cell_refuses_a_state_of_another_shape() -> None:
    sentence = "The state of the cell 'rnn' is hidden (2, 4) here, got (1, 4)."
    with pytest.raises(ValueError, match=_exactly(sentence)):
        create_cell("rnn", 3, 4)(torch.zeros(2, 3), torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        (torch.tensor([5, 6]), "lengths must be from 0 to 5, the steps of the input, got 5 to 6."),
        (torch.tensor([-1, 5]), "lengths must be from 0 to 5, the steps of the input, got -1 to 5."),
        (torch.tensor([5]), "lengths must be 2 whole numbers, one for each sequence, got shape (1,) of torch.int64."),
        (
            torch.tensor([5.0, 2.0]),
            "lengths must be 2 whole numbers, one for each sequence, got shape (2,) of torch.float32.",
        ),
    ],
    ids=["beyond-the-end", "negative", "one-for-all", "fractional"],
)
def test_a_layer_refuses_wrong_lengths(lengths: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=_exactly(sentence)):
        StableRNN("rnn", 3, 4)(torch.zeros(2, 5, 3), lengths=lengths)


def test_lengths_for_a_single_sequence_are_refused() -> None:
    sentence = "lengths are for batches, got an input of one sequence; cut it to its length instead."
    with pytest.raises(ValueError, match=_exactly(sentence)):
        StableRNN("rnn", 3, 4)(torch.zeros(5, 3), lengths=torch.tensor([5]))


def test_dropout_without_a_second_layer_is_refused() -> None:
    sentence = "dropout acts between layers and needs num_layers of 2 or more, got dropout=0.3 with 1 layer."
    with pytest.raises(ValueError, match=_exactly(sentence)):
        StableRNN("rnn", 3, 4, dropout=0.3)
