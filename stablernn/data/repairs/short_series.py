"""``min_length``: series with fewer rows are set aside. They are counted and listed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stablernn import errors
from stablernn.data.messages import pluralize
from stablernn.data.types import Notes, Series
from stablernn.terms import terms


def keep_long_series(file: str, series: Sequence[Series], min_length: int) -> tuple[list[int], Notes]:
    """Return the positions of the series that are long enough, and the note on the others.

    Args:
        file: Name of the file, for messages.
        series: The series.
        min_length: Number of rows.

    Raises:
        DataError: If none is.
    """
    is_long = [len(each.ds) >= min_length for each in series]
    if not any(is_long):
        longest = max(len(each.ds) for each in series)
        raise errors.DataError(
            f"{terms().file(file)} has no series of {pluralize(min_length, 'row')} (data.min_length); the longest has "
            f"{longest}. Lower it."
        )
    short = [each.unique_id for each, is_kept in zip(series, is_long, strict=True) if not is_kept]
    positions = [index for index, is_kept in enumerate(is_long) if is_kept]
    return positions, {"short_series": {"count": len(short), "names": short}} if short else {}


def suggest_min_length(lengths: Sequence[int], needed: int) -> int | None:
    """Return a length that sets aside series of less than half the median length, and those shorter than ``needed``.

    None is returned unless half of the series or more would stay.
    """
    limit = max(needed, int(np.ceil(np.median(lengths) / 2)))
    num_short = sum(length < limit for length in lengths)
    return limit if 0 < num_short <= len(lengths) / 2 else None
