"""Channels of a wide table as series of their own, for one model that learns from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stablernn import errors
from stablernn.data.arrays import fingerprint
from stablernn.data.types import ForecastData, Series
from stablernn.terms import terms

CHANNEL = "y"


def channels_to_series(data: ForecastData, channels: tuple[str, ...] | None) -> ForecastData:
    """Return the same values with one series per channel, named after it, with the old name in front if it had several.

    Channels that are known in advance are not forecast: every new series keeps them as channels.

    Args:
        data: Series with several channels.
        channels: The channels that become series, none of them known in advance; all such when omitted.

    Raises:
        ConfigError: If a channel that is known in advance has the name of the new one.
        DataError: If a new series has no value.
    """
    melted_channels = channels or tuple(name for name in data.channels if name not in data.future)
    if CHANNEL in data.future:
        raise errors.ConfigError(
            f"data.channels_as_series calls what is forecast '{CHANNEL}', and a channel of that name is known in "
            f"advance. Take it out of {terms().key('data.future')}, or rename it."
        )
    melted_series = split_series(
        data.series, data.channels, melted_channels, data.future, is_single=len(data.series) == 1
    )
    series_data = replace(
        data,
        series=melted_series,
        channels=(CHANNEL, *data.future),
        targets=(CHANNEL,),
        notes={**data.notes, "channels_as_series": list(melted_channels), "series": len(melted_series)},
        fingerprint=fingerprint(["channels as series", data.fingerprint, melted_channels]),
    )
    _check_values(data.name, melted_series)
    left_out = [name for name in data.channels if name not in (*melted_channels, *data.future)]
    if left_out:
        series_data.notes["channels_left_out"] = left_out
    series_data.notes["windows"] = series_data.window_counts()
    return series_data


def split_series(
    series: Sequence[Series],
    channels: Sequence[str],
    melted_channels: Sequence[str],
    shared: Sequence[str],
    *,
    is_single: bool,
) -> tuple[Series, ...]:
    """Return a series for each melted channel of each series: the channel's values, then those of the shared channels.

    Args:
        series: The series.
        channels: Names of their channels.
        melted_channels: The channels that become series.
        shared: The channels that every new series has.
        is_single: Whether the file has one series, so that the name of a channel says which one is meant.
    """
    shared_indices = [channels.index(name) for name in shared]
    return tuple(
        replace(
            each,
            unique_id=name if is_single else f"{each.unique_id}/{name}",
            values=each.values[:, [channels.index(name), *shared_indices]],
        )
        for each in series
        for name in melted_channels
    )


def _check_values(name: str, series: tuple[Series, ...]) -> None:
    # The channel itself comes first; the shared ones may have values where it has none.
    for each in series:
        if not np.isfinite(each.values[:, 0]).any():
            raise errors.DataError(
                f"{terms().file(name)} has no value at all in the channel that is "
                f"{terms().series(name, each.unique_id)}. Name the others by {terms().key('data.target')}."
            )
