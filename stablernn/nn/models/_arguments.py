"""Arguments of all models: the options of their networks, and the inputs of their heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor

from stablernn.errors import ConfigError, did_you_mean


class NetworkOptions(TypedDict, total=False):
    """Keyword options of every model; ``SequenceModel`` describes them and has their defaults."""

    num_layers: int
    dropout: float
    readout: str
    scaling: str
    window: int | None
    season: int | None
    log: bool
    mask_channel: bool
    patch_size: int
    patch_stride: int | None
    patch_embedding: int
    conv_layers: int
    conv_channels: int
    members: int
    max_dt: float | None
    resample_steps: int | None
    head_layers: Sequence[int | str]
    preset: str
    cell_options: Mapping[str, Any] | None
    engine: str


def check_covariates(covariates: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], batch: int) -> None:
    """Refuse inputs of ``SequenceModel.emit`` whose name or shape is not the model's.

    Raises:
        ConfigError: If a name is not in ``shapes``.
        ValueError: If a shape is not ``(batch, *shapes[name])``.
    """
    for name, tensor in covariates.items():
        if name not in shapes:
            raise ConfigError(
                f"Unknown input '{name}'.{did_you_mean(name, shapes)} Besides the series the model takes "
                f"{' and '.join(shapes) or 'nothing'}."
            )
        if tensor.shape != (batch, *shapes[name]):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the model expects {(batch, *shapes[name])}.")
