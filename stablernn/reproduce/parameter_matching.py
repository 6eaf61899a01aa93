"""Hidden sizes at which models have equal numbers of parameters."""

from __future__ import annotations

import torch

from stablernn.nn.models import Classifier
from stablernn.reproduce.table import Row, Table


def parameter_count(cell: str, hidden_size: int, input_size: int, classes: int) -> int:
    """Return the number of parameters of a classifier with one layer of this cell that reads its last state."""
    # Building a model draws its weights, which must not change the random state of the caller.
    with torch.random.fork_rng(devices=[]):
        model = Classifier(cell, input_size, classes, hidden_size)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def matched_hidden_size(cell: str, parameters: int, input_size: int, classes: int) -> int:
    """Return the hidden size whose number of parameters is nearest to the given one; of two, the smaller."""

    def count(size: int) -> int:
        return parameter_count(cell, size, input_size, classes)

    # The count grows with the hidden size: double until it is reached, then bisect.
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


def hidden_size(table: Table, row: Row, input_size: int, classes: int) -> int:
    """Return the hidden size of a row of a table."""
    if row.hidden_size is not None:
        return row.hidden_size
    reference = table.row(table.reference)
    assert reference.hidden_size is not None
    target = parameter_count(reference.cell, reference.hidden_size, input_size, classes)
    return matched_hidden_size(row.cell, target, input_size, classes)
