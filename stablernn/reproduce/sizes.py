"""Hidden sizes at which models have equally many parameters."""

from __future__ import annotations

import torch

from stablernn.nn.models import Classifier
from stablernn.reproduce.table import Row, Table


def parameter_count(cell: str, hidden_size: int, input_size: int, classes: int) -> int:
    """Parameters of a classifier with one layer of this cell that reads its last state."""
    with torch.random.fork_rng(devices=[]):
        model = Classifier(cell, input_size, classes, hidden_size)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def matched_hidden_size(cell: str, parameters: int, input_size: int, classes: int) -> int:
    """The hidden size whose classifier is nearest to a number of parameters; of two as near the smaller one."""

    def count(size: int) -> int:
        return parameter_count(cell, size, input_size, classes)

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
    """That of a table's row."""
    if row.hidden_size is not None:
        return row.hidden_size
    reference = table.row(table.reference)
    assert reference.hidden_size is not None
    wanted = parameter_count(reference.cell, reference.hidden_size, input_size, classes)
    return matched_hidden_size(row.cell, wanted, input_size, classes)
