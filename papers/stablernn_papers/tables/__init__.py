"""The published tables that can be reproduced; an entry here adds another one."""

from __future__ import annotations

from stablernn.errors import unknown
from stablernn_papers.table import Table
from stablernn_papers.tables.images import ABLATION, CIFAR10, INIT_SENSITIVITY, MNIST_PIXEL
from stablernn_papers.tables.measurements import DYNAMICS, ROBUSTNESS, SPECTRA, SPEED
from stablernn_papers.tables.sequences import COPY, POLYPHONIC, PTB_CHAR, PTB_WORD, SPEECH

TABLES = {
    table.key: table
    for table in (
        MNIST_PIXEL,
        CIFAR10,
        PTB_CHAR,
        PTB_WORD,
        SPEECH,
        POLYPHONIC,
        COPY,
        ROBUSTNESS,
        INIT_SENSITIVITY,
        ABLATION,
        DYNAMICS,
        SPECTRA,
        SPEED,
    )
}


def published_table(key: str) -> Table:
    """Return a published table by its key.

    Raises:
        UnknownNameError: If there is no such table.
    """
    if key not in TABLES:
        raise unknown("table", key, TABLES, "See 'stablernn reproduce list'.")
    return TABLES[key]
