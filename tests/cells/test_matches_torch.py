"""The baselines are torch's own layers: same weights, same numbers. Torch's two bias vectors act as their sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from stablernn import StableRNN


def _copy_summed_bias(layer: StableRNN, other: nn.RNNBase) -> None:
    for depth, cell in enumerate(layer.cells):
        weight_ih, weight_hh, bias_ih, bias_hh = other.all_weights[depth]
        cell.load_state_dict({"weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias_ih + bias_hh})


def _copy_identity(layer: StableRNN, other: nn.RNNBase) -> None:
    for depth, cell in enumerate(layer.cells):
        weight_ih, weight_hh, bias_ih, bias_hh = other.all_weights[depth]
        cell.load_state_dict({"weight_ih": weight_ih, "weight_hh": weight_hh, "bias": bias_ih + bias_hh})


def _copy_gru(layer: StableRNN, other: nn.RNNBase) -> None:
    size = layer.hidden_size
    for depth, cell in enumerate(layer.cells):
        weight_ih, weight_hh, bias_ih, bias_hh = other.all_weights[depth]
        # Only c_n, inside the product with the reset gate, cannot be merged.
        bias = torch.cat([(bias_ih + bias_hh)[: 2 * size], bias_ih[2 * size :]])
        cell.load_state_dict(
            {"weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias, "bias_hn": bias_hh[2 * size :]}
        )


BASELINES = [
    ("rnn", nn.RNN, _copy_summed_bias),
    ("identity_rnn", partial(nn.RNN, nonlinearity="relu"), _copy_identity),
    ("lstm", nn.LSTM, _copy_summed_bias),
    ("gru", nn.GRU, _copy_gru),
]


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "time-first"])
@pytest.mark.parametrize("num_layers", [1, 3], ids=["1-layer", "3-layers"])
@pytest.mark.parametrize(("key", "torch_layer", "copy_weights"), BASELINES, ids=[row[0] for row in BASELINES])
def test_baseline_equals_torch(
    key: str,
    torch_layer: Callable[..., nn.RNNBase],
    copy_weights: Callable[[StableRNN, nn.RNNBase], None],
    num_layers: int,
    batch_first: bool,
) -> None:
    other = torch_layer(3, 7, num_layers, batch_first=batch_first).double()
    layer = StableRNN(key, 3, 7, num_layers, batch_first=batch_first).double()
    with torch.no_grad():
        copy_weights(layer, other)
    x = torch.randn((2, 11, 3) if batch_first else (11, 2, 3), dtype=torch.float64)
    hidden = torch.randn(num_layers, 2, 7, dtype=torch.float64)
    state: Tensor | tuple[Tensor, Tensor] = (hidden, torch.randn_like(hidden)) if key == "lstm" else hidden

    output, last = layer(x, state)
    expected, expected_last = other(x, state)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(last, expected_last, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(x)[0], other(x)[0], rtol=0, atol=1e-12)
