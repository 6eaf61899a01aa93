"""Cells that ``torchrecurrent`` has too: same weights, same numbers; or where and why not (``docs/compared.md``).

The package was written from the papers by other people. Its second (and third) bias vectors act as their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torchrecurrent
from torch import Tensor, nn

from stablernn import StableRNN, create_cell
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


def _cells(pair: Pair) -> tuple[StableCell, Any]:
    theirs = getattr(torchrecurrent, f"{pair.theirs}Cell")(3, 7, **pair.their_options).double()
    _randomize(theirs)
    pair.change(theirs)
    ours = create_cell(pair.key, 3, 7, **pair.options).double()
    with torch.no_grad():
        ours.load_state_dict(pair.weights(theirs), strict=True)
    return ours, theirs


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
def test_one_step_equals_theirs(pair: Pair) -> None:
    ours, theirs = _cells(pair)
    x, state = torch.randn(4, 3, dtype=torch.float64), _states(ours, 4)
    _assert_equal(ours(x, state), theirs(x, state))
    _assert_equal(ours(x), theirs(x))


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


@every_pair
def test_gradients_by_the_input_equal_theirs(pair: Pair) -> None:
    ours, theirs = _layers(pair, 2, True)
    x = torch.randn(2, 11, 3, dtype=torch.float64, requires_grad=True)
    _assert_equal(*(torch.autograd.grad(layer(x)[0].square().sum(), x)[0] for layer in (ours, theirs)))


class TestWhereTheyDiffer:
    """What is right stands in ``docs/compared.md``, with its source."""

    def _lem(self) -> tuple[StableCell, Any, Tensor, tuple[Tensor, Tensor]]:
        ours, theirs = _cells(next(pair for pair in PAIRS if pair.key == "lem")._replace(change=lambda theirs: None))
        return ours, theirs, torch.randn(4, 3, dtype=torch.float64), _states(ours, 4)

    def test_their_lem_reads_the_memory_of_the_step_before(self) -> None:
        ours, theirs, x, (y, z) = self._lem()
        hidden, memory = ours(x, (y, z))
        their_hidden, their_memory = theirs(x, (y, z))
        _assert_equal(their_memory, memory)
        assert (their_hidden - hidden).abs().max() > 0.01
        # Given the new memory in the place of the old one, their hidden state is the paper's.
        _assert_equal(theirs(x, (y, memory))[0], hidden)

    def test_their_fastgrnn_gates_with_tanh_unless_told_otherwise(self) -> None:
        theirs = torchrecurrent.FastGRNNCell(1, 1).double()
        _randomize(theirs)
        x, h = torch.full((1, 1), -9.0, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
        nn.init.ones_(theirs.weight_ih)
        # A gate at -1 turns the state around; at 0 it would forget it.
        scalars = 2 * torch.sigmoid(theirs.zeta) + torch.sigmoid(theirs.nu)
        torch.testing.assert_close(theirs(x, h), -h - scalars, rtol=0, atol=1e-5)

    def test_their_fastrnn_and_fastgrnn_start_at_other_numbers(self) -> None:
        theirs, ours = torchrecurrent.FastRNNCell(3, 7), create_cell("fastrnn", 3, 7, preset="paper")
        assert (theirs.alpha.item(), theirs.beta.item()) == (3.0, -3.0)
        assert (ours.get_parameter("alpha").item(), ours.get_parameter("beta").item()) == (-3.0, 3.0)
        gated, our_gated = torchrecurrent.FastGRNNCell(3, 7), create_cell("fastgrnn_lsq", 3, 7, preset="paper")
        assert (gated.zeta.item(), gated.nu.item()) == (3.0, -3.0)
        assert (our_gated.get_parameter("zeta").item(), our_gated.get_parameter("nu").item()) == (1.0, -4.0)
        assert not theirs.bias_ih.any()
        assert bool((ours.get_parameter("bias_ih") == 1).all())

    def test_their_indrnn_takes_tanh_and_bounds_no_recurrent_weight(self) -> None:
        theirs, ours = torchrecurrent.IndRNNCell(3, 200), create_cell("indrnn", 3, 200)
        assert isinstance(theirs.act, nn.Tanh)
        assert theirs.vector_u.abs().max() > 2
        assert ours.get_parameter("weight_hh").abs().max() <= 1

    def test_their_antisymmetric_matrix_has_twice_the_numbers_and_a_start_that_grows_with_the_units(self) -> None:
        theirs, ours = torchrecurrent.AntisymmetricRNNCell(3, 200), create_cell("antisymmetric", 3, 200, preset="paper")
        assert theirs.weight_hh.numel() == 200 * 200
        assert ours.get_parameter("weight_hh").numel() == 200 * 199 // 2
        assert theirs.weight_hh.std().item() == pytest.approx(1, rel=0.05)
        assert ours.get_parameter("weight_hh").std().item() == pytest.approx(200**-0.5, rel=0.05)
        assert (theirs.epsilon, theirs.gamma) == (1.0, 0.0)

    def test_their_gated_antisymmetric_adds_the_recurrent_bias_to_the_candidate_alone(self) -> None:
        theirs = torchrecurrent.GatedAntisymmetricRNNCell(1, 1).double()
        for parameter in theirs.parameters():
            nn.init.zeros_(parameter)
        nn.init.constant_(theirs.bias_hh, 2.0)
        x, h = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
        torch.testing.assert_close(theirs(x, h), 0.5 * torch.tanh(theirs.bias_hh)[None])

    def test_their_unicornn_has_no_linear_restoring_force_unless_told_otherwise(self) -> None:
        theirs, ours = torchrecurrent.UnICORNNCell(3, 7), create_cell("unicornn", 3, 7)
        assert theirs.alpha == 0.0
        assert ours.stiffness > 0  # type: ignore[operator]
