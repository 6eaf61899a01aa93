"""Checks of a forecaster's options."""

from __future__ import annotations

from collections.abc import Sequence

from stablernn.errors import ConfigError, did_you_mean

_CHOICES = {"head": ("direct", "recursive"), "skip": ("none", "linear"), "anchor": ("last", "mean")}


def check_channels(targets: Sequence[int], future: Sequence[int], input_size: int) -> None:
    """Refuse indices of channels that repeat or are out of range, no targets, and channels that are in both lists.

    Raises:
        ValueError: If indices of one list repeat or are out of range, or there is no target.
        ConfigError: If a channel is in both lists.
    """
    for name, indices, is_required in (("target_indices", targets, True), ("future_indices", future, False)):
        if (
            (is_required and not indices)
            or len(set(indices)) < len(indices)
            or not all(0 <= index < input_size for index in indices)
        ):
            raise ValueError(f"{name} must be different channels from 0 to {input_size - 1}, got {list(indices)}.")
    shared = sorted(set(targets) & set(future))
    if shared:
        raise ConfigError(f"A channel is forecast or known in the future, not both; got {shared}.")


def check_levels(levels: Sequence[float]) -> None:
    """Refuse levels of quantiles that do not increase or are out of range.

    Raises:
        ConfigError: If there are any.
    """
    if list(levels) != sorted(set(levels)) or not all(0 < level < 1 for level in levels):
        raise ConfigError(f"quantiles must increase and lie between 0 and 1, got {levels}.")


def check_choices(**values: str) -> None:
    """Refuse a value of ``head``, ``skip`` or ``anchor`` that does not exist.

    Raises:
        ConfigError: If there is one.
    """
    for option, value in values.items():
        allowed = _CHOICES[option]
        if value not in allowed:
            raise ConfigError(
                f"Unknown {option} '{value}'.{did_you_mean(value, allowed)} It is {' or '.join(allowed)}."
            )


def check_recursive(channels: Sequence[int], input_size: int, stride: int) -> None:
    """Refuse a recursive head where its forecasts do not give the next sample.

    Args:
        channels: Channels that are forecast or known in the future.
        input_size: Number of all channels.
        stride: Samples from one patch to the next.

    Raises:
        ConfigError: If a channel is missing, or a step reads several samples.
    """
    unknown = sorted(set(range(input_size)) - set(channels))
    if unknown:
        raise ConfigError(
            "A recursive head needs every channel to be a target or known in the future, so that its forecasts can "
            f"stand for values; channel {unknown[0]} is neither. Leave it out, or take head='direct'."
        )
    if stride > 1:
        raise ConfigError(
            f"A recursive head forecasts one sample at a time, got patch_stride={stride}; take patch_stride=1, or "
            "head='direct'."
        )
