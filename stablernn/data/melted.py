"""The columns of a wide table as series of their own, for one model that learns from all of them."""

from __future__ import annotations

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
    kept = [data.channels.index(name) for name in data.future]
    series = tuple(
        replace(
            one,
            unique_id=name if len(data.series) == 1 else f"{one.unique_id}/{name}",
            values=one.values[:, [data.channels.index(name), *kept]],
        )
        for one in data.series
        for name in chosen
    )
    melted = replace(
        data,
        series=series,
        channels=(CHANNEL, *data.future),
        targets=(CHANNEL,),
        notes={**data.notes, "channels_as_series": list(chosen), "series": len(series)},
        fingerprint=fingerprint(["channels as series", data.fingerprint, chosen]),
    )
    _check_values(data.name, series)
    left_out = [name for name in data.channels if name not in (*chosen, *data.future)]
    if left_out:
        melted.notes["channels_left_out"] = left_out
    melted.notes["windows"] = melted.window_counts()
    return melted


def _check_values(name: str, series: tuple[Series, ...]) -> None:
    for one in series:
        if not np.isfinite(one.values[:, 0]).any():
            raise errors.DataError(
                f"'{name}' has no value at all in the channel that is series '{one.unique_id}'. Name the others by "
                "data.target."
            )
