"""Dilated convolutions over patches: against torch.nn.Conv1d, in streams, with gaps, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stablernn as srn
from stablernn.nn.convolutions import ConvolutionShape, DilatedConvolutions


def reference(stage: DilatedConvolutions, x: Tensor) -> Tensor:
    """The same by torch.nn.Conv1d, whose weight is (outputs, inputs, kernel)."""
    shape = stage.shape
    size = shape.samples * shape.channels
    values = x[:, :size].reshape(len(x), shape.samples, shape.channels).transpose(1, 2)
    for layer, linear in enumerate(stage.linear_maps()):
        convolution = nn.Conv1d(values.shape[1], shape.width, 3, dilation=2**layer, dtype=x.dtype)
        with torch.no_grad():
            convolution.weight.copy_(linear.weight.reshape(shape.width, 3, -1).transpose(1, 2))
            convolution.bias.copy_(linear.bias)
        values = nn.functional.gelu(convolution(values))
    return torch.cat([values.transpose(1, 2).flatten(1), x[:, size:]], dim=1)


@pytest.mark.parametrize(
    "sizes",
    [(3, 1, 0, 1, 1), (4, 2, 0, 1, 5), (7, 1, 2, 2, 4), (24, 3, 6, 3, 16), (33, 2, 0, 4, 7)],
    ids="samples{0[0]}-channels{0[1]}-extras{0[2]}-layers{0[3]}-width{0[4]}".format,
)
def test_it_is_conv1d(sizes: tuple[int, int, int, int, int]) -> None:
    shape = ConvolutionShape(*sizes)
    stage = DilatedConvolutions(shape).double()
    x = torch.randn(5, shape.samples * shape.channels + shape.extras, dtype=torch.float64, requires_grad=True)
    expected = reference(stage, x)
    assert expected.shape == (5, shape.output_size)
    torch.testing.assert_close(stage(x), expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad((stage(x) * weights).sum(), x)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), x)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)
    # Any axes may stand in front.
    assert torch.equal(stage(x.reshape(1, 5, -1))[0], stage(x))


MODELS: dict[str, Any] = {
    "overlap": lambda: srn.Classifier("lru", 2, 3, 4, patch_size=8, patch_stride=3, **FRONT, readout="all"),
    "members, mask": lambda: srn.Classifier("gru", 2, 3, 4, patch_size=7, **FRONT, members=2, mask_channel=True),
    "window": lambda: srn.Classifier("rnn", 2, 3, 4, scaling="window", window=9, patch_size=7, patch_stride=2, **FRONT),
    "forecast": lambda: srn.Forecaster(
        "lipschitz", 2, 3, 4, scaling="context", window=12, season=4, patch_size=9, patch_stride=4, **FRONT
    ),
    "times": lambda: srn.Classifier("cfc", 2, 3, 4, max_dt=5.0, patch_size=7, patch_stride=3, **FRONT),
}
FRONT: dict[str, Any] = {"patch_embedding": 5, "conv_layers": 2, "conv_channels": 3}


@pytest.mark.parametrize("name", MODELS)
def test_a_padded_batch_equals_each_sequence_patch_by_patch(name: str) -> None:
    model = MODELS[name]().double().eval()
    model.fit_scaling([np.random.default_rng(0).uniform(1, 9, (40, 2))])
    x = torch.rand(4, 23, 2, dtype=torch.float64) * 8 + 1
    x[torch.rand(x.shape) < 0.2] = torch.nan
    dt = None if model.max_dt is None else 5 * torch.rand(4, 23, dtype=torch.float64)
    lengths = torch.tensor([23, 1, 12, 0])
    stride = model.patches.stride
    with torch.no_grad():
        final = model.final_state(x, lengths, dt=dt)
        assert all(torch.isfinite(tensor).all() for tensor in final)
        for row, length in enumerate(lengths.tolist()):
            sequence, times = x[row : row + 1, :length], None if dt is None else dt[row : row + 1, :length]
            rest = -length % stride
            pads = (rest, 0) if model.patches.end_aligned else (0, rest)
            sequence = nn.functional.pad(sequence, (0, 0, *pads), value=torch.nan)
            times = None if times is None else nn.functional.pad(times, pads, value=1.0)
            state, weights = model.initial_state(1), model.materialize()
            for start in range(0, sequence.shape[1], stride):
                steps = slice(start, start + stride)
                state = model.transition(weights, sequence[:, steps], state, None if times is None else times[:, steps])
            for tensor, expected in zip(final, state, strict=True):
                torch.testing.assert_close(tensor[row : row + 1], expected, rtol=1e-9, atol=1e-9)


def test_members_share_no_weights_and_each_is_trained_by_its_own_gradient() -> None:
    model = MODELS["members, mask"]()
    groups = model.member_parameters()
    assert sum(map(len, groups)) == len(list(model.parameters()))
    assert [len(group) for group in groups] == [len(groups[0])] * 2
    outputs, _ = model.rnn.run(*_layer_inputs(model), None)
    outputs[..., : outputs.shape[-1] // 2].sum().backward()
    assert all(parameter.grad is not None for parameter in model.rnn.parameters_of(0))
    # Members run in one batch, which leaves zeros.
    assert not any(bool(parameter.grad.any()) for parameter in model.rnn.parameters_of(1) if parameter.grad is not None)


def _layer_inputs(model: Any) -> tuple[Tensor, Any]:
    features, _, _, _ = model.layer_inputs(torch.randn(2, 14, 2))
    return features, model.rnn.initial_state(2)
