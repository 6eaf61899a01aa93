"""Names, cells, counts and timestamps as they are written in messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A table may have a thousand columns; a sentence may not.
_MAX_NAMES = 12
_MAX_QUOTE_LENGTH = 40


def format_names(names: Sequence[str]) -> str:
    """Return the names with commas between them; of many the first twelve and how many more there are."""
    more = len(names) - _MAX_NAMES
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def quote(cell: str) -> str:
    """Return text of a file in quotes, on one line and cut to forty characters."""
    text = " ".join(cell.split())
    return f"'{text[:_MAX_QUOTE_LENGTH]}...'" if len(text) > _MAX_QUOTE_LENGTH else f"'{text}'"


def pluralize(count: int, noun: str) -> str:
    """Return the number with its noun: ``1 feature``, ``5 features``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_timestamp(timestamp: np.datetime64 | np.int64) -> str:
    """Return a timestamp as people write it: without a time of day when that is midnight."""
    if not isinstance(timestamp, np.datetime64):
        return str(timestamp)
    text = str(timestamp.astype("datetime64[ns]"))
    return text.removesuffix(".000000000").removesuffix("T00:00:00").replace("T", " ")
