"""Accuracy against the factor of the linear term and the share of the skew part: figure 3 of the Lipschitz RNN."""

from __future__ import annotations

from dataclasses import replace

from stablernn_papers.settings import merge, ours
from stablernn_papers.table import FULL, Protocol, Row, Table
from stablernn_papers.tables.common import (
    ACCURACY,
    DIGITS,
    LIPSCHITZ_MNIST,
    LIPSCHITZ_PAPER,
    LIPSCHITZ_PMNIST,
    MNIST,
    PLAIN_CLASSIFIER,
    PMNIST,
    SHORT_PROTOCOL,
)

LINEAR_SCALES = (0.0, 0.5, 1.0, 1.5, 2.0, 4.0)
SKEW_WEIGHTS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def _row(option: str, value: float) -> Row:
    return Row(
        f"{option.replace('_', '-')}-{value:g}",
        "lipschitz",
        64,
        settings=merge(LIPSCHITZ_MNIST, ours({f"model.cell_options.{option}": value})),
        data_settings={"pmnist": LIPSCHITZ_PMNIST},
    )


ABLATION = Table(
    key="ablation",
    title="accuracy against the factor of the linear term and the share of the skew part, MNIST pixel by pixel",
    summary="accuracy by linear factor and by skew share, pixel MNIST",
    paper=LIPSCHITZ_PAPER,
    source="figure 3",
    kind="classification",
    columns=ACCURACY,
    rows=(
        *(_row("linear_scale", value) for value in LINEAR_SCALES),
        *(_row("skew_weight", value) for value in SKEW_WEIGHTS),
    ),
    data=(MNIST, PMNIST, replace(DIGITS, is_optional=True)),
    full=Protocol(FULL, seeds=tuple(range(10))),
    short=SHORT_PROTOCOL,
    short_data=(DIGITS,),
    settings=PLAIN_CLASSIFIER,
    reference="skew-weight-0.5",
    sweeps={
        "model.cell_options.linear_scale": "factor of the linear term",
        "model.cell_options.skew_weight": "share of the skew part",
    },
    unspecified="the values of both sweeps, the damping of the second one, the hidden size, the seeds",
    remarks=(
        "linear-scale is the factor of A h, whose value 0 leaves a neural ODE; skew-weight is the share of the skew "
        "part of both matrices, whose value 1 leaves that part alone.",
        "The figure is a curve without numbers in the text that was read, so that nothing stands beside ours.",
    ),
)
