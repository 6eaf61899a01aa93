"""Choice of the window of a forecast to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from stablernn.data.messages import format_names
from stablernn.data.types import ForecastData
from stablernn.errors import ConfigError, unknown


class WindowRangeError(ConfigError):
    """A series has windows, but none of the chosen number."""


@dataclass(frozen=True)
class WindowChoice:
    """Choice of the forecast to draw; None selects the default.

    Attributes:
        series: ``unique_id`` of the series. Default: the series of the last window.
        number: Window of the series, from 1. Default: the last.
        target: Name of the target. Default: the first.
    """

    series: str | None = None
    number: int | None = None
    target: str | None = None

    @property
    def is_default(self) -> bool:
        """True if nothing was selected."""
        return astuple(self) == (None, None, None)


@dataclass(frozen=True)
class SelectedWindow:
    """A window of a split.

    Attributes:
        index: Number of the window in the split, from 0.
        target: Position of the target to draw.
        series: ``unique_id`` of its series.
        number: Window of the series, from 1.
        count: Windows of the series.
    """

    index: int
    target: int
    series: str
    number: int
    count: int


def select_window(data: ForecastData, split: str, choice: WindowChoice) -> SelectedWindow:
    """Return the chosen window of a split that has windows.

    Raises:
        UnknownNameError: If there is no such series or target.
        WindowRangeError: If the series has fewer windows than the number.
        ConfigError: If the series has no window.
    """
    target = _index_of(choice.target, data.targets, "target", f"'{data.name}' forecasts", 0)
    names = [series.unique_id for series in data.series]
    # The windows of all series are numbered in one sequence; those of the chosen series are counted from 1.
    origins = data.windows(split).origins
    series_index = _index_of(choice.series, names, "series", f"'{data.name}' has", origins[-1][0])
    series = names[series_index]
    indices = [index for index, (owner, _) in enumerate(origins) if owner == series_index]
    if not indices:
        raise ConfigError(f"The series '{series}' has no window in the split '{split}'. Choose another.")
    number = len(indices) if choice.number is None else choice.number
    if not 1 <= number <= len(indices):
        raise WindowRangeError(f"window must be from 1 to {len(indices)}, the windows of '{series}', got {number}.")
    return SelectedWindow(indices[number - 1], target, series, number, len(indices))


def _index_of(name: str | None, names: Sequence[str], noun: str, owner: str, default: int) -> int:
    """Return the index of a name; ``noun`` and ``owner`` are for the message about an unknown one."""
    if name is None:
        return default
    if name not in names:
        raise unknown(noun, name, names, f"{owner} {format_names(names)}.")
    return list(names).index(name)
