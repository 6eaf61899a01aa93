"""``min_length``: series with fewer rows are set aside. They are counted and listed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stablernn import errors
from stablernn.data.messages import pluralize
from stablernn.data.types import Notes, Series

_MAX_LISTED = 100


def keep_long_series(file: str, series: Sequence[Series], min_length: int) -> tuple[list[int], Notes]:
    """Return the positions of the series that are long enough, and the note on the others.

    Args:
        file: Name of the file, for messages.
        series: The series.
        min_length: Number of rows.

    Raises:
        DataError: If none is.
    """
    kept = [index for index, each in enumerate(series) if len(each.ds) >= min_length]
    if not kept:
        longest = max(len(each.ds) for each in series)
        raise errors.DataError(
            f"'{file}' has no series of {pluralize(min_length, 'row')} (data.min_length); the longest has {longest}. "
            "Lower it."
        )
    short = [each.unique_id for index, each in enumerate(series) if index not in set(kept)]
    return kept, {"short_series": {"count": len(short), "first": short[:_MAX_LISTED]}} if short else {}


def suggest_min_length(lengths: Sequence[int], needed: int) -> int | None:
    """Return a length that sets aside series of less than half the median length, and those shorter than ``needed``.

    None is returned unless half of the series or more would stay.
    """
    limit = max(needed, int(np.ceil(np.median(lengths) / 2)))
    num_short = sum(length < limit for length in lengths)
    return limit if 0 < num_short <= len(lengths) / 2 else None
