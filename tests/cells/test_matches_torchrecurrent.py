"""Cells that ``torchrecurrent`` has too: same weights, same numbers; or where and why not
(``docs/background/implementations.md``).

The package was written from the papers by other people. Its second (and third) bias vectors act as their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torchrecurrent
from torch import Tensor, nn

from stablernn import StableRNN
from stablernn.cells import StableCell

Weights = dict[str, Tensor]


class Pair(NamedTuple):
    """A cell of both, the options under which they are one, and how its weights come here."""

    key: str
    theirs: str
    options: dict[str, Any]
    their_options: dict[str, Any]
    weights: Callable[[Any], Weights]
    change: Callable[[Any], None] = lambda theirs: None


def _upper(matrix: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset=1)
    return matrix[rows, columns]


def _summed(theirs: Any) -> Weights:
    return {
        "weight_ih": theirs.weight_ih,
        "weight_hh": theirs.weight_hh,
        "bias_ih": theirs.bias_ih + theirs.bias_hh,
    }


def _antisymmetric(theirs: Any) -> Weights:
    # The diagonal and the symmetric part of their full matrix drop out.
    return _summed(theirs) | {"weight_hh": _upper(theirs.weight_hh - theirs.weight_hh.T)}


def _antisymmetric_g(theirs: Any) -> Weights:
    # Their recurrent bias reaches the candidate alone.
    recurrent_bias = torch.cat([torch.zeros_like(theirs.bias_hh), theirs.bias_hh])
    return {
        "weight_ih": theirs.weight_ih,
        "weight_hh": _upper(theirs.weight_hh - theirs.weight_hh.T),
        "bias_ih": theirs.bias_ih + recurrent_bias,
    }


def _cornn(theirs: Any) -> Weights:
    return {
        "weight_ih": theirs.weight_ih,
        "weight_hh": theirs.weight_hh,
        "weight_velocity": theirs.weight_ch,
        "bias_ih": theirs.bias_ih + theirs.bias_hh + theirs.bias_ch,
    }


def _fastrnn(theirs: Any) -> Weights:
    return _summed(theirs) | {"alpha": theirs.alpha[0], "beta": theirs.beta[0]}


def _fastgrnn(theirs: Any) -> Weights:
    return _summed(theirs) | {"zeta": theirs.zeta[0], "nu": theirs.nu[0]}


def _indrnn(theirs: Any) -> Weights:
    return {
        "weight_ih": theirs.weight_ih,
        "weight_hh": theirs.vector_u,
        "bias_ih": theirs.bias_ih + theirs.bias_hh,
    }


def _unicornn(theirs: Any) -> Weights:
    return _summed(theirs) | {"speed": theirs.weight_ch}


def _lem(theirs: Any) -> Weights:
    size = theirs.hidden_size
    bias = theirs.bias_ih + torch.cat([theirs.bias_hh, theirs.bias_ch])
    assert theirs.bias_hh.shape == (3 * size,)
    return {
        "weight_ih": theirs.weight_ih,
        "weight_hh": theirs.weight_hh,
        "weight_memory": theirs.weight_ch,
        "bias_ih": bias,
    }


def _lstm_without_forget_gate(theirs: Any) -> Weights:
    """Their gates i, candidate, o; our forget gate open to the last bit."""
    size = theirs.hidden_size

    def with_forget(tensor: Tensor, fill: float) -> Tensor:
        i, g, o = tensor.split(size)
        return torch.cat([i, torch.full_like(i, fill), g, o])

    return {
        "weight_ih": with_forget(theirs.weight_ih, 0.0),
        "weight_hh": with_forget(theirs.weight_hh, 0.0),
        "bias_ih": with_forget(theirs.bias_ih + theirs.bias_hh, 1e3),
    }


def _without(*names: str) -> Callable[[Any], None]:
    def clear(theirs: Any) -> None:
        for name in names:
            nn.init.zeros_(getattr(theirs, name))

    return clear


PAIRS = [
    Pair(
        "antisymmetric",
        "AntisymmetricRNN",
        {"step_size": 0.3, "damping": 0.2},
        {"epsilon": 0.3, "gamma": 0.2},
        _antisymmetric,
    ),
    Pair(
        "antisymmetric_g",
        "GatedAntisymmetricRNN",
        {"step_size": 0.3, "damping": 0.2},
        {"epsilon": 0.3, "gamma": 0.2},
        _antisymmetric_g,
    ),
    Pair(
        "cornn",
        "coRNN",
        {"step_size": 0.3, "stiffness": 1.7, "damping": 0.6},
        {"dt": 0.3, "gamma": 1.7, "epsilon": 0.6},
        _cornn,
    ),
    Pair("fastrnn", "FastRNN", {}, {}, _fastrnn),
    Pair("fastgrnn_lsq", "FastGRNN", {}, {"nonlinearity": "sigmoid"}, _fastgrnn),
    Pair(
        "fastgrnn",
        "FastGRNN",
        {"recurrent_kept": 1.0, "byte_weights": False},
        {"nonlinearity": "sigmoid"},
        _fastgrnn,
    ),
    Pair("indrnn", "IndRNN", {}, {"nonlinearity": "relu"}, _indrnn),
    Pair("unicornn", "UnICORNN", {"step_size": 0.3, "stiffness": 1.7}, {"dt": 0.3, "alpha": 1.7}, _unicornn),
    Pair("lem", "LEM", {"step_size": 0.7}, {"dt": 0.7}, _lem, _without("weight_ch")),
    Pair("lstm", "OriginalLSTM", {}, {}, _lstm_without_forget_gate),
    Pair("lstm", "PeepholeLSTM", {}, {}, _summed, _without("weight_ph")),
    Pair("lstm", "WMCLSTM", {}, {}, _summed, _without("weight_mh", "bias_mh")),
]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.key}-{pair.theirs}")


def _randomize(theirs: nn.Module) -> None:
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)


def _layers(pair: Pair, num_layers: int, batch_first: bool) -> tuple[StableRNN, Any]:
    theirs = getattr(torchrecurrent, pair.theirs)(3, 7, num_layers, batch_first=batch_first, **pair.their_options)
    ours = StableRNN(pair.key, 3, 7, num_layers, batch_first=batch_first, **pair.options).double()
    _randomize(theirs.double())
    for cell, other in zip(ours.cells, theirs.cells, strict=True):
        pair.change(other)
        with torch.no_grad():
            cell.load_state_dict(pair.weights(other), strict=True)
    return ours, theirs


def _states(cell: StableCell, *shape: int) -> Any:
    """Random states in the form that both take: one tensor, or two."""
    parts = tuple(torch.randn(*shape, cell.hidden_size, dtype=torch.float64) for _ in cell.state_names)
    return parts[0] if len(parts) == 1 else parts


def _assert_equal(got: Any, expected: Any) -> None:
    # Ours are named tuples, theirs plain ones.
    have = (got,) if isinstance(got, Tensor) else tuple(got)
    want = (expected,) if isinstance(expected, Tensor) else tuple(expected)
    torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-12)


@every_pair
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "time-first"])
@pytest.mark.parametrize("num_layers", [1, 3], ids=["1-layer", "3-layers"])
def test_a_sequence_through_stacked_layers_equals_theirs(pair: Pair, num_layers: int, batch_first: bool) -> None:
    ours, theirs = _layers(pair, num_layers, batch_first)
    x = torch.randn((2, 11, 3) if batch_first else (11, 2, 3), dtype=torch.float64)
    state = _states(ours.cells[0], num_layers, 2)
    for (output, last), (expected, expected_last) in ((ours(x, state), theirs(x, state)), (ours(x), theirs(x))):
        _assert_equal(output, expected)
        _assert_equal(last, expected_last)
