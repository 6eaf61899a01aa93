"""Terms in the messages of an estimator: its arguments and parameters, no file, no option of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from stablernn.terms import Terms

Form = Literal["pandas", "polars", "series", "array"]
"""Form of an argument: a frame of one of two libraries, whose rows can be named; an array of one series; several series
or sequences."""


class ArgumentTerms(Terms):
    """Terms for those who give the argument ``X`` and parameters.

    Args:
        filename: Name of the file that the argument was written to.
        parameter_keys: Key of a setting by the parameter that sets it.
        form: Form of the argument.
        channels: Columns of an array, which has none of its own.
    """

    source = "X"

    def __init__(
        self, filename: str, parameter_keys: Mapping[str, str], form: Form = "array", channels: Sequence[str] = ()
    ) -> None:
        self._filename = filename
        # The reader gives a series without a name that of its file.
        self._unnamed = Path(filename).stem
        self._parameters = {key: name for name, key in parameter_keys.items()}
        self._form = form
        self._channels = tuple(channels)

    def file(self, name: str) -> str:
        return "X" if name == self._filename else super().file(name)

    def grouped_file(self, name: str) -> str:
        return "groups"

    def row(self, number: int) -> str:
        # Files count rows from 1.
        if self._form in ("pandas", "polars"):
            return f"X{'.iloc' if self._form == 'pandas' else ''}[{number - 1}]"
        return super().row(number)

    def rows(self, numbers: Sequence[int]) -> str:
        return " and ".join(map(self.row, numbers))

    def row_of(self, file: str, number: int) -> str:
        return self.row(number)

    def series(self, file: str, name: str) -> str:
        if name == self._unnamed or self._form == "series":
            return "X"
        return f"X[{name.removeprefix('series_')}]" if self._form == "array" else super().series(file, name)

    def series_of(self, file: str, name: str) -> str:
        series = self.series(file, name)
        return series if series.startswith("X") else f"X: {series}"

    def column_of(self, file: str, name: str) -> str:
        column = self._channel(name)
        return f"X column '{name}'" if column is None else f"{column} of X" if column else "X"

    def in_column(self, noun: str, name: str) -> str:
        column = self._channel(name)
        return super().in_column(noun, name) if column is None else f" in {column} of" if column else " in"

    @property
    def channels(self) -> str:
        return "settings={'data.channels': [...]}"

    @property
    def group_column(self) -> str:
        return "groups"

    def key(self, key: str) -> str:
        return self._parameters.get(key, key)

    def setting(self, key: str, value: Any) -> str:
        parameter = self._parameters.get(key)
        return f"settings={{'{key}': {value!r}}}" if parameter is None else f"{parameter}={value!r}"

    def set(self, key: str, value: Any) -> str:
        return f"pass {self.setting(key, value)}"

    def cell(self, name: str) -> str:
        return f"cell={name!r}"

    def flag(self, name: str) -> str:
        return ""

    def _channel(self, name: str) -> str | None:
        """Return the name of a column of an array, empty for the only one; None for a column of a frame."""
        if name not in self._channels:
            return None
        return "" if len(self._channels) == 1 else f"channel {self._channels.index(name)}"
