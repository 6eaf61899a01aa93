"""Sensitivity to the initial weights: table 4 of the Lipschitz RNN."""

from __future__ import annotations

from dataclasses import replace

from stablernn_papers.table import FULL, Column, Protocol, Row, Table
from stablernn_papers.tables.common import DIGITS, LIPSCHITZ_PAPER, MNIST, PLAIN_CLASSIFIER, PMNIST, SHORT_PROTOCOL
from stablernn_papers.tables.mnist_pixel import LIPSCHITZ_ROWS

# Minimum, mean and maximum over ten seeds, of the ordered and of the permuted pixels.
_PUBLISHED: dict[str, dict[str, tuple[float | None, ...]]] = {
    "lipschitz-64": {"mnist": (98.9, 99.0, 99.0), "pmnist": (93.5, 93.8, 94.2)},
    "lipschitz_rk2-64": {"mnist": (98.9, 99.0, 99.1), "pmnist": (93.5, 93.9, 94.2)},
    "lipschitz-128": {"mnist": (99.0, 99.2, 99.4), "pmnist": (95.6, 95.9, 96.3)},
    "lipschitz_rk2-128": {"mnist": (98.9, 99.1, 99.3), "pmnist": (95.4, 95.8, 96.2)},
}


def _with_figures(row: Row) -> Row:
    return replace(row, published=_PUBLISHED[row.key])


INIT_SENSITIVITY = Table(
    key="init-sensitivity",
    title="spread of the accuracy over ten seeds, MNIST pixel by pixel",
    paper=LIPSCHITZ_PAPER,
    source="table 4",
    kind="classification",
    columns=(
        Column("minimum", "test.accuracy", percent=True, decimals=1, statistic="min"),
        Column("mean", "test.accuracy", percent=True, decimals=1),
        Column("maximum", "test.accuracy", percent=True, decimals=1, statistic="max"),
    ),
    rows=tuple(map(_with_figures, LIPSCHITZ_ROWS)),
    data=(MNIST, PMNIST, replace(DIGITS, is_optional=True)),
    full=Protocol(FULL, seeds=tuple(range(10))),
    short=replace(SHORT_PROTOCOL, seeds=(0, 1)),
    short_data=(DIGITS,),
    settings=PLAIN_CLASSIFIER,
    reference="lipschitz-64",
    unspecified="the seeds, the draw of the validation images",
    remarks=("A seed changes the initial weights and the order of the images.",),
)
