"""How things of the data are written in messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A table may have a thousand columns; a sentence may not.
_MOST_NAMES = 12
_LONGEST_QUOTE = 40


def listing(names: Sequence[str]) -> str:
    """The names with commas between them; of many the first twelve and how many more there are."""
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def quoted(cell: str) -> str:
    """What stands in a file, in quotes, on one line and not longer than a sentence bears."""
    text = " ".join(cell.split())
    return f"'{text[:_LONGEST_QUOTE]}...'" if len(text) > _LONGEST_QUOTE else f"'{text}'"


def counted(count: int, word: str) -> str:
    """The number with its word: ``1 feature``, ``5 features``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def stamp_text(stamp: np.datetime64 | np.int64) -> str:
    """A time stamp as people write it: without a time of day when that is midnight."""
    if not isinstance(stamp, np.datetime64):
        return str(stamp)
    text = str(stamp.astype("datetime64[ns]"))
    return text.removesuffix(".000000000").removesuffix("T00:00:00").replace("T", " ")
