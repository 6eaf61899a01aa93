"""The columns of a wide table as series of their own, for one model that learns from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stablernn import errors
from stablernn.data.fingerprint import fingerprint
from stablernn.data.types import ForecastData, Series

CHANNEL = "y"


def channels_to_series(data: ForecastData, wanted: tuple[str, ...] | None) -> ForecastData:
    """The same values with a series for each channel, named after it; behind the series' own name where there are more.

    Channels that are known in advance are not forecast: every new series keeps them as channels.

    Args:
        data: Series with several channels.
        wanted: The channels that become series, none of them known in advance; all such when omitted.

    Raises:
        ConfigError: If a channel that is known in advance is called as the new one is.
        DataError: If a new series has no value.
    """
    chosen = wanted or tuple(name for name in data.channels if name not in data.future)
    if CHANNEL in data.future:
        raise errors.ConfigError(
            f"data.channels_as_series calls what is forecast '{CHANNEL}', and a channel of that name is known in "
            "advance. Take it out of data.future, or rename it."
        )
    melted_series = split_series(data.series, data.channels, chosen, data.future)
    melted = replace(
        data,
        series=melted_series,
        channels=(CHANNEL, *data.future),
        targets=(CHANNEL,),
        notes={**data.notes, "channels_as_series": list(chosen), "series": len(melted_series)},
        fingerprint=fingerprint(["channels as series", data.fingerprint, chosen]),
    )
    _check_values(data.name, melted_series)
    left_out = [name for name in data.channels if name not in (*chosen, *data.future)]
    if left_out:
        melted.notes["channels_left_out"] = left_out
    melted.notes["windows"] = melted.window_counts()
    return melted


def split_series(
    series: Sequence[Series], channels: Sequence[str], chosen: Sequence[str], kept: Sequence[str]
) -> tuple[Series, ...]:
    """A series for each chosen channel of each series: the channel's values, then those of the channels to keep."""
    behind = [channels.index(name) for name in kept]
    return tuple(
        replace(
            one,
            unique_id=name if len(series) == 1 else f"{one.unique_id}/{name}",
            values=one.values[:, [channels.index(name), *behind]],
        )
        for one in series
        for name in chosen
    )


def _check_values(name: str, series: tuple[Series, ...]) -> None:
    for one in series:
        if not np.isfinite(one.values[:, 0]).any():
            raise errors.DataError(
                f"'{name}' has no value at all in the channel that is series '{one.unique_id}'. Name the others by "
                "data.target."
            )
