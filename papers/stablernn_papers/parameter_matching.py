"""Hidden sizes at which models have equal numbers of parameters."""

from __future__ import annotations

from collections.abc import Callable

from stablernn_papers.table import Row, Table


def matched_hidden_size(count: Callable[[int], int], parameters: int) -> int:
    """Return the hidden size whose number of parameters is nearest to the given one; of two, the smaller.

    Args:
        count: Function from a hidden size to the number of parameters, which grows with it.
        parameters: The number to match.
    """
    # Double until it is reached, then bisect.
    above = 1
    while count(above) < parameters:
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if count(middle) < parameters else (below, middle)
    if below and parameters - count(below) <= count(above) - parameters:
        return below
    return above


def hidden_size(table: Table, row: Row, count: Callable[[Row, int], int]) -> int:
    """Return the hidden size of a row of a table.

    Args:
        table: The table.
        row: The row.
        count: Function from a row and a hidden size to the number of parameters.
    """
    if row.hidden_size is not None:
        return row.hidden_size
    reference = table.row(table.reference)
    assert reference.hidden_size is not None
    return matched_hidden_size(lambda size: count(row, size), count(reference, reference.hidden_size))
