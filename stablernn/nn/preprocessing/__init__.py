"""Preprocessing of raw units before the first layer: resampling, scaling, gaps, patches; part of every graph."""

from __future__ import annotations

from stablernn.errors import ConfigError, did_you_mean
from stablernn.nn.preprocessing._context import ContextScaling
from stablernn.nn.preprocessing._patches import Patches
from stablernn.nn.preprocessing._resampling import Resampling, create_resampling
from stablernn.nn.preprocessing._scaling import NoScaling, Scaling, WindowScaling
from stablernn.terms import terms

__all__ = [
    "SCALINGS",
    "ContextScaling",
    "NoScaling",
    "Patches",
    "Resampling",
    "Scaling",
    "WindowScaling",
    "create_resampling",
    "create_scaling",
]

SCALINGS = ("standard", "none", "window", "context")


def create_scaling(
    kind: str, size: int, *, window: int | None, mask_channel: bool, season: int | None = None, log: bool = False
) -> Scaling:
    """Return the scaling called ``standard``, ``none``, ``window`` or ``context``.

    Raises:
        ConfigError: If there is no such kind, or ``window``, ``season`` or ``log`` is missing or not used.
    """
    if kind not in SCALINGS:
        raise ConfigError(f"Unknown scaling '{kind}'.{did_you_mean(kind, SCALINGS)} It is {', '.join(SCALINGS)}.")
    if kind in ("standard", "none") and window is not None:
        raise ConfigError(
            f"A window of {window} steps is only used by the scalings 'window' and 'context', got '{kind}'."
        )
    if kind != "context" and (log or season is not None):
        raise ConfigError(f"A season and logarithms are only used by the scaling 'context', got '{kind}'.")
    if kind == "standard":
        return Scaling(size, mask_channel=mask_channel)
    if kind == "none":
        return NoScaling(size, mask_channel=mask_channel)
    if window is None:
        raise ConfigError(f"The scaling '{kind}' needs a context length; set {terms().key('task.context_length')}.")
    if kind == "window":
        return WindowScaling(size, window=window, mask_channel=mask_channel)
    return ContextScaling(
        size, window=window, season=1 if season is None else season, log=log, mask_channel=mask_channel
    )
