"""Gains of the stage between scaling and layers: how much convolutions and embedding enlarge a change of a patch."""

from __future__ import annotations

import numpy as np
from torch import nn

from stablernn.bounds.convolution import convolution_norm_upper_bound
from stablernn.bounds.linalg import norm_upper_bound
from stablernn.bounds.step_bound import GELU_SLOPE
from stablernn.cells._base import float64
from stablernn.nn.convolutions import KERNEL_SIZE, DilatedConvolutions
from stablernn.nn.models import SequenceModel

_SAFE = 1 + 1e-9
"""Factor that covers the rounding of the few float64 operations between bounds that are safe themselves."""


def embedding_gains(model: SequenceModel) -> list[float]:
    """Return by how much the embedding of each member can enlarge a change of the scaled values, 1 without one.

    Convolutions in front of the embedding count as a part of it.
    """
    rnn = model.rnn
    # An embedding is a linear map followed by a GELU.
    embeddings = [embedding for embedding in rnn.embeddings if isinstance(embedding, nn.Linear)]
    convolutions = [stage for stage in rnn.convolutions if isinstance(stage, DilatedConvolutions)]
    if convolutions:
        return [_joint_gain(*stages) for stages in zip(convolutions, embeddings, strict=True)]
    gains = [norm_upper_bound(float64(embedding.weight)) * GELU_SLOPE for embedding in embeddings]
    return gains or [1.0] * len(rnn)


def convolution_gain(convolutions: DilatedConvolutions) -> float:
    """Return at least the Lipschitz constant of the convolutions, GELUs included, as a map of the samples of a patch.

    It is the product over the layers of the norm of the convolution and the largest slope of GELU.
    """
    shape, gain = convolutions.shape, 1.0
    for layer, linear in enumerate(convolutions.linear_maps()):
        # (width, KERNEL_SIZE * channels) to (KERNEL_SIZE, width, channels)
        taps = float64(linear.weight).reshape(shape.width, KERNEL_SIZE, -1).transpose(1, 0, 2)
        gain *= convolution_norm_upper_bound(taps, shape.lengths[layer], 2**layer) * GELU_SLOPE
    return gain * _SAFE


def _joint_gain(convolutions: DilatedConvolutions, embedding: nn.Linear) -> float:
    """Return at least the Lipschitz constant of convolutions and the embedding behind them."""
    weight, extras = float64(embedding.weight), convolutions.shape.extras
    # The extras pass the convolutions unchanged: with |(c / gain, e)| <= 1, the norm is that of the scaled columns.
    scales = np.full(weight.shape[1], convolution_gain(convolutions))
    scales[weight.shape[1] - extras :] = 1.0
    return norm_upper_bound(weight * scales) * GELU_SLOPE * _SAFE
