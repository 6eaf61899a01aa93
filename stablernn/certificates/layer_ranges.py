"""The ranges of what the first layers read, for raw inputs within a range."""

from __future__ import annotations

import numpy as np
from torch import nn

from stablernn.bounds.intervals import Box
from stablernn.cells import StableCell
from stablernn.cells._base import float64
from stablernn.certificates.input_range import InputRange
from stablernn.nn.convolutions import DilatedConvolutions
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import SequenceModel


def input_size(module: nn.Module) -> int:
    """Return the number of raw features that a cell, layers, an ensemble or a model reads."""
    if isinstance(module, Ensemble):
        return module.input_size
    assert isinstance(module, StableCell | StableRNN | SequenceModel)
    return module.input_size


def first_layer_boxes(module: nn.Module, inputs: InputRange) -> list[Box]:
    """Return the ranges of the inputs of each member's first layer.

    Args:
        module: A cell, a :class:`stablernn.StableRNN`, an ensemble or a model.
        inputs: Of every feature.

    Raises:
        ConfigError: If the model's scaling leaves no range.
    """
    # Widened by the rounding of the ends to float32.
    box = Box(np.array(inputs.lower), np.array(inputs.upper)).scaled(1.0)
    if isinstance(module, SequenceModel):
        box = _patch_range(module, box)
        module = module.rnn
    if not isinstance(module, Ensemble):
        return [box]
    if not module.embedding:
        return [box] * len(module)
    embeddings = _embeddings(module)
    convolutions = [stage for stage in module.convolutions if isinstance(stage, DilatedConvolutions)]
    inputs_of_embeddings = [_convolved(box, stage) for stage in convolutions] or [box] * len(embeddings)
    return [
        embedded.affine(float64(embedding.weight), float64(embedding.bias)).gelu()
        for embedding, embedded in zip(embeddings, inputs_of_embeddings, strict=True)
    ]


def _convolved(patch: Box, convolutions: DilatedConvolutions) -> Box:
    """Return the range of what convolutions make of a patch, extras included."""
    shape = convolutions.shape
    size = shape.samples * shape.channels
    box = Box(patch.lower[:size], patch.upper[:size])
    for layer, linear in enumerate(convolutions.linear_maps()):
        weight, bias = float64(linear.weight), float64(linear.bias)
        # (outputs, KERNEL_SIZE, channels)
        lower, upper = (
            ends.reshape(shape.lengths[layer], -1)[convolutions.positions(layer)] for ends in (box.lower, box.upper)
        )
        outputs = [Box(low.ravel(), high.ravel()).affine(weight, bias) for low, high in zip(lower, upper, strict=True)]
        box = outputs[0].join(*outputs[1:]).gelu()
    return box.join(Box(patch.lower[size:], patch.upper[size:]))


def _embeddings(ensemble: Ensemble) -> list[nn.Linear]:
    # nn.ModuleList yields nn.Module: this narrows the type.
    return [embedding for embedding in ensemble.embeddings if isinstance(embedding, nn.Linear)]


def _patch_range(model: SequenceModel, inputs: Box) -> Box:
    """Return the range of the channels of a patch, as :class:`stablernn.nn.preprocessing.Patches` orders them."""
    if model.resampling is not None:
        # A mean of two values lies between them.
        inputs = inputs.join(model.resampling.channel_range())
    channels, extras = model.scaling.channel_range(inputs)
    # Samples before the first are zero.
    samples = channels.with_zero()
    return Box(
        np.concatenate([np.tile(samples.lower, model.patches.size), extras.lower]),
        np.concatenate([np.tile(samples.upper, model.patches.size), extras.upper]),
    )
