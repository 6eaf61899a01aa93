"""Terms of messages for an input, its parts and settings: a file and options, or an argument and parameters.

Commands read files, and estimators hand arguments to the same readers and the same training. A message is written once,
with the terms in use: ``f"{terms().file(path.name)} has no rows."``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Terms:
    """Terms for those who give a file and options: rows are counted as in the file, settings have dotted keys."""

    source = "the file"

    def file(self, name: str) -> str:
        """Return the name of an input, a file or a dataset."""
        return f"'{name}'"

    def grouped_file(self, name: str) -> str:
        """Return the name of what says to which group a sequence of an input belongs."""
        return self.file(name)

    def row(self, number: int) -> str:
        """Return the name of the row with this number in its file."""
        return f"row {number}"

    def rows(self, numbers: Sequence[int]) -> str:
        """Return the name of several rows."""
        return f"rows {' and '.join(map(str, numbers))}"

    def row_of(self, file: str, number: int) -> str:
        """Return the name of a row at the beginning of a sentence."""
        return f"{self.file(file)} {self.row(number)}"

    def series(self, file: str, name: str) -> str:
        """Return the name of a series where the sentence names its input already."""
        return f"series '{name}'"

    def series_of(self, file: str, name: str) -> str:
        """Return the name of a series at the beginning of a sentence."""
        return f"{self.file(file)}: {self.series(file, name)}"

    def column_of(self, file: str, name: str) -> str:
        """Return the name of a column at the beginning of a sentence."""
        return f"{self.file(file)} column '{name}'"

    def in_column(self, noun: str, name: str) -> str:
        """Return where a value is, between blank and name of a split; ``noun`` is what the reader calls a column."""
        return f" in {noun} '{name}' of"

    @property
    def channels(self) -> str:
        """The option that names the columns to read."""
        return "data.channels"

    @property
    def group_column(self) -> str:
        """The option that says to which group a sequence belongs."""
        return f"data.group_column{self.flag('--group')}"

    def key(self, key: str) -> str:
        """Return the name of the setting with this dotted key."""
        return key

    def setting(self, key: str, value: Any) -> str:
        """Return the assignment of a value to a setting."""
        return f"{self.key(key)}={_as_yaml(value)}"

    def set(self, key: str, value: Any) -> str:
        """Return the advice to assign a value to a setting."""
        return f"set {self.setting(key, value)}"

    def cell(self, name: str) -> str:
        """Return how a cell is named instead of being chosen."""
        return f"--cell {name}"

    def flag(self, name: str) -> str:
        """Return the option of the command line for a setting in brackets, with a blank before."""
        return f" ({name})"


_TERMS: ContextVar[Terms] = ContextVar("terms", default=Terms())  # noqa: B039  (it has no state)


def terms() -> Terms:
    """Return the terms that are in use."""
    return _TERMS.get()


@contextmanager
def use_terms(replacement: Terms) -> Iterator[None]:
    """Use other terms in the messages that are written within the context."""
    token = _TERMS.set(replacement)
    try:
        yield
    finally:
        _TERMS.reset(token)


def set_terms(replacement: Terms) -> None:
    """Use other terms from now on, in a process that another one has started."""
    _TERMS.set(replacement)


def _as_yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and not any(map(str.isalnum, value)):
        return f'"{value}"' if "'" in value else f"'{value}'"
    return f"{value:g}" if isinstance(value, float) else str(value)
