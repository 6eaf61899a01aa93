"""The keyword options that all models share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class NetworkOptions(TypedDict, total=False):
    """Keyword options of every model; :class:`SequenceModel` describes them and has their defaults."""

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
    preset: str
    cell_options: Mapping[str, Any] | None
    engine: str
