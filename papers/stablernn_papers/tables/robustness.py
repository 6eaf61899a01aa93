"""Accuracy under attack and curvature of the loss: table 3 of the Lipschitz RNN."""

from __future__ import annotations

from stablernn.robustness.settings import Settings as Attacks
from stablernn_papers.settings import Setting, merge, ours
from stablernn_papers.table import FULL, SHORT, Column, Curvature, DataSet, Protocol, Row, Table
from stablernn_papers.tables.common import LIPSCHITZ_PAPER, PLAIN_CLASSIFIER

_KEY = "mnist-rows"


def _epochs(number: int) -> dict[str, Setting]:
    return ours({"training.epochs": number})


def _row(cell: str, figures: tuple[float, ...] = (), hidden_size: int | None = None) -> Row:
    published = {_KEY: figures} if figures else {}
    return Row(cell, cell, hidden_size, preset="practical", published=published)


# Budgets in raw units: pixels are 0 to 1.
_LINF = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1)
_L2 = (0.25, 0.5, 1.0, 2.0)

ROBUSTNESS = Table(
    key="robustness",
    title="accuracy under attack and curvature of the loss, MNIST in 98 steps of 8 pixels",
    summary="attacked accuracy and curvature, MNIST in rows",
    paper=LIPSCHITZ_PAPER,
    source="table 3",
    kind="robustness",
    columns=(
        Column("clean", "accuracy", percent=True, decimals=1, is_published=False),
        Column("PGD", "pgd", percent=True, decimals=1),
        Column("DF2", "deepfool_l2", percent=True, decimals=1),
        Column("DFinf", "deepfool_linf", percent=True, decimals=1),
        Column("lmax", "hessian_largest"),
        Column("trace", "hessian_trace"),
        Column("condition", "hessian_condition"),
        Column("median radius", "median_radius", is_published=False),
    ),
    rows=(
        _row("neural_ode_rnn", (88.5, 69.6, 44.5, 0.30, 4.7, 37.6), hidden_size=64),
        _row("antisymmetric", (84.7, 83.4, 44.3, 0.24, 4.8, 35.5), hidden_size=64),
        _row("lipschitz", (93.0, 89.2, 54.1, 0.14, 3.1, 23.2), hidden_size=64),
        _row("exprnn", hidden_size=64),
        _row("lstm"),
        _row("gru"),
    ),
    data=(DataSet(_KEY, "MNIST in 98 steps of 8 pixels", ours({"data.source": _KEY, "data.length": 98})),),
    full=Protocol(
        FULL,
        seeds=(0, 1, 2),
        settings=_epochs(10),
        attacks=Attacks(linf_budgets=_LINF, l2_budgets=_L2, sequences=256, hessian=False),
        curvature=Curvature(sequences=128, steps=100),
    ),
    short=Protocol(
        SHORT,
        seeds=(0,),
        settings=_epochs(2),
        attacks=Attacks(linf_budgets=_LINF, l2_budgets=_L2, sequences=32, steps=10, hessian=False),
        curvature=Curvature(sequences=32, steps=20),
    ),
    settings=merge(
        PLAIN_CLASSIFIER,
        ours({"model.scaling": "standard", "training.batch_size": 128, "training.keep_epochs": True}),
    ),
    reference="lipschitz",
    headline={"pgd": 0.02, "deepfool_l2": 0.5, "deepfool_linf": 0.02},
    unspecified="budgets, steps and step lengths of the attacks, time steps and pixels a step, hidden size, epochs",
)
