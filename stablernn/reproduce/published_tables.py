"""Published tables that can be reproduced; an entry here adds another one."""

from __future__ import annotations

from typing import Any

from stablernn.errors import unknown
from stablernn.reproduce.table import FULL, SHORT, Column, Curvature, Protocol, Row, Table
from stablernn.robustness.settings import Settings

# A single network that reads the last state, without features that the paper does not have.
_PLAIN_MODEL: dict[str, Any] = {
    "readout": "last",
    "patch_size": 1,
    "patch_stride": 1,
    "patch_embedding": 0,
    "head_dropout": 0.0,
    "scaling": "standard",
}
_PLAIN_TRAINING: dict[str, Any] = {
    "label_smoothing": 0.0,
    "time_warp": 0.0,
    "jitter": 0.0,
    "rescale": 0.0,
    "calibrate": False,
    "batch_size": 128,
}


def _mnist_rows_settings(epochs: int) -> dict[str, dict[str, Any]]:
    return {
        "data": {"source": "mnist-rows", "length": 98},
        "model": _PLAIN_MODEL,
        "training": {**_PLAIN_TRAINING, "epochs": epochs, "keep_epochs": True},
    }


# Budgets in raw units: pixels are 0 to 1.
_LINF = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1)
_L2 = (0.25, 0.5, 1.0, 2.0)

TABLES = {
    table.key: table
    for table in (
        Table(
            key="robustness",
            title="accuracy under attack and curvature of the loss, MNIST in 98 steps of 8 pixels",
            paper="Erichson, Azencot, Queiruga, Hodgkinson, Mahoney: Lipschitz Recurrent Neural Networks (ICLR 2021)",
            source="table 3",
            columns=(
                Column("PGD", "pgd", percent=True),
                Column("DF2", "deepfool_l2", percent=True),
                Column("DFinf", "deepfool_linf", percent=True),
                Column("lmax", "hessian_largest"),
                Column("trace", "hessian_trace"),
                Column("condition", "hessian_condition"),
            ),
            rows=(
                Row("neural_ode_rnn", (88.5, 69.6, 44.5, 0.30, 4.7, 37.6), hidden_size=64),
                Row("antisymmetric", (84.7, 83.4, 44.3, 0.24, 4.8, 35.5), hidden_size=64),
                Row("lipschitz", (93.0, 89.2, 54.1, 0.14, 3.1, 23.2), hidden_size=64),
                Row("exprnn", hidden_size=64),
                Row("lstm"),
                Row("gru"),
            ),
            reference="lipschitz",
            headline={"pgd": 0.02, "deepfool_l2": 0.5, "deepfool_linf": 0.02},
            full=Protocol(
                FULL,
                seeds=(0, 1, 2),
                settings=_mnist_rows_settings(10),
                attacks=Settings(linf_budgets=_LINF, l2_budgets=_L2, sequences=256, hessian=False),
                curvature=Curvature(sequences=128, steps=100),
            ),
            short=Protocol(
                SHORT,
                seeds=(0,),
                settings=_mnist_rows_settings(2),
                attacks=Settings(linf_budgets=_LINF, l2_budgets=_L2, sequences=32, steps=10, hessian=False),
                curvature=Curvature(sequences=32, steps=20),
            ),
            unspecified="budgets, steps and step lengths of the attacks, time steps and pixels a step, hidden size, "
            "epochs",
        ),
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
