"""Dilated convolutions over a patch: a front end whose receptive field is bounded by the patch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.data.arrays import Int64Array
from stablernn.errors import ConfigError

KERNEL_SIZE = 3
"""Samples that each convolution reads at once."""


@dataclass(frozen=True)
class ConvolutionShape:
    """Sizes of the convolutions over a patch.

    Attributes:
        samples: Samples of a patch.
        channels: Input channels of each sample.
        extras: Further inputs of a patch, which stand behind its samples and are not convolved.
        layers: Number of convolutions, 1 or more; their dilations are 1, 2, 4 and so on.
        width: Output channels of each convolution, 1 or more.

    Raises:
        ConfigError: If a number is out of range, or the receptive field is longer than the patch.
    """

    samples: int
    channels: int
    extras: int
    layers: int
    width: int

    def __post_init__(self) -> None:
        if self.layers < 1 or self.width < 1:
            raise ConfigError(
                f"conv_layers must be 0 or more, and conv_channels 1 or more, got {self.layers} and {self.width}."
            )
        check_receptive_field(self.layers, self.samples)

    @property
    def lengths(self) -> list[int]:
        """Positions in time of the input of each convolution, then those of the last output."""
        return [self.samples - receptive_field(layer) + 1 for layer in range(self.layers + 1)]

    @property
    def output_size(self) -> int:
        """Length of the vector that a patch becomes."""
        return self.lengths[-1] * self.width + self.extras


def receptive_field(layers: int) -> int:
    """Return the number of samples that one output of the last of ``layers`` convolutions depends on."""
    # A convolution of dilation d adds (KERNEL_SIZE - 1) d; the dilations 1, 2, 4, .. sum to 2^layers - 1.
    return 1 + (KERNEL_SIZE - 1) * ((1 << layers) - 1)


def check_receptive_field(layers: int, patch_size: int, *, section: str = "") -> None:
    """Refuse convolutions that see more samples than a patch has.

    Args:
        layers: Number of convolutions.
        patch_size: Samples of a patch.
        section: What the message puts before the names of both, such as ``model.``.

    Raises:
        ConfigError: If so; the message names sizes that fit.
    """
    needed = receptive_field(layers)
    if needed <= patch_size:
        return
    fitting_layers = max(count for count in range(layers) if receptive_field(count) <= patch_size)
    raise ConfigError(
        f"{section}conv_layers={layers} reads {needed} samples of a patch at once, which has {section}patch_size="
        f"{patch_size}; set {section}patch_size to {needed} or more, or {section}conv_layers to "
        f"{f'{fitting_layers} or less' if fitting_layers else '0'}."
    )


class DilatedConvolutions(nn.Module):
    """Convolutions of kernel size 3 with dilations 1, 2, 4, .., each followed by a GELU, over the samples of a patch.

    They are not padded, so that every output depends on ``receptive_field(layers)`` samples of the patch and on nothing
    else (van den Oord and others, "WaveNet", 2016, for the dilations). Each is computed as a matrix product of the
    unfolded patch: an exported graph then gives the same bits for one patch and for many.

    Args:
        shape: Sizes of patch and convolutions.

    Shape:
        - input: ``(..., samples * channels + extras)``, sample after sample
        - output: ``(..., shape.output_size)``, position after position, then the extras
    """

    def __init__(self, shape: ConvolutionShape) -> None:
        super().__init__()
        self.shape = shape
        # (width, KERNEL_SIZE * channels): the taps one after the other, from the earliest sample.
        self.taps = nn.ModuleList(
            [
                nn.Linear(KERNEL_SIZE * (shape.width if layer else shape.channels), shape.width)
                for layer in range(shape.layers)
            ]
        )
        for layer in range(shape.layers):
            # Not persistent: they follow from the sizes.
            positions = torch.from_numpy(self.positions(layer).ravel())
            self.register_buffer(f"positions_{layer}", positions, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = self.shape
        size = shape.samples * shape.channels
        # (patches, samples, channels)
        values = x[..., :size].reshape(-1, shape.samples, shape.channels)
        for layer, taps in enumerate(self.linear_maps()):
            values = values.index_select(1, self.get_buffer(f"positions_{layer}"))
            # (patches * positions, KERNEL_SIZE * channels): a product of rows, as that of an embedding is.
            values = nn.functional.gelu(taps(values.reshape(-1, taps.in_features)))
            values = values.reshape(-1, shape.lengths[layer + 1], shape.width)
        features = values.reshape(*x.shape[:-1], shape.lengths[-1] * shape.width)
        return torch.cat([features, x[..., size:]], dim=-1) if shape.extras else features

    def extra_repr(self) -> str:
        return f"{self.shape}"

    def linear_maps(self) -> list[nn.Linear]:
        """Return the taps of each convolution as a linear map of the samples that one output reads."""
        # nn.ModuleList yields nn.Module: this narrows the type.
        return [taps for taps in self.taps if isinstance(taps, nn.Linear)]

    def positions(self, layer: int) -> Int64Array:
        """Return the input positions that each output of a convolution reads, ``(outputs, KERNEL_SIZE)``."""
        first = np.arange(self.shape.lengths[layer + 1], dtype=np.int64)
        positions: Int64Array = first[:, None] + 2**layer * np.arange(KERNEL_SIZE)
        return positions
