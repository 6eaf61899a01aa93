"""The published tables that can be reproduced, one file a table or a family of them; an entry here adds another one."""

from __future__ import annotations

from stablernn.errors import unknown
from stablernn_papers.table import Table
from stablernn_papers.tables.ablation import ABLATION
from stablernn_papers.tables.cifar10 import CIFAR10
from stablernn_papers.tables.copy_task import COPY
from stablernn_papers.tables.dynamics import DYNAMICS
from stablernn_papers.tables.init_sensitivity import INIT_SENSITIVITY
from stablernn_papers.tables.mnist_pixel import MNIST_PIXEL
from stablernn_papers.tables.polyphonic import POLYPHONIC
from stablernn_papers.tables.ptb import PTB_CHAR, PTB_WORD
from stablernn_papers.tables.robustness import ROBUSTNESS
from stablernn_papers.tables.spectra import SPECTRA
from stablernn_papers.tables.speech import SPEECH
from stablernn_papers.tables.speed import SPEED

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
