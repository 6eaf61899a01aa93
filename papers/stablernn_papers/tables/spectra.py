"""Jacobian spectra of trained models: the AntisymmetricRNN's figure, and figures 4 and 5 of the Lipschitz RNN."""

from __future__ import annotations

from dataclasses import replace

from stablernn_papers.settings import merge, ours
from stablernn_papers.table import FULL, Column, Protocol, Row, Table
from stablernn_papers.tables.cifar10 import CIFAR10, NOISE_PADDED
from stablernn_papers.tables.common import (
    ANTISYMMETRIC_PAPER,
    DIGITS,
    LIPSCHITZ_MNIST,
    LIPSCHITZ_PAPER,
    MNIST,
    PLAIN_CLASSIFIER,
    SHORT_PROTOCOL,
)

_SHARES = (0.5, 0.65, 0.75, 0.85, 1.0)


def _gated_row(key: str) -> Row:
    row = CIFAR10.row(key)
    noisy = row.data_settings["cifar10-noise-padded"]
    return replace(
        row,
        settings=merge(row.settings, noisy),
        data_settings={},
        data=(NOISE_PADDED.key,),
        published={},
        published_parameters={},
        reason="",
    )


def _share_row(share: float) -> Row:
    return Row(
        f"lipschitz-{share:g}",
        "lipschitz",
        64,
        settings=merge(LIPSCHITZ_MNIST, ours({"model.cell_options.skew_weight": share})),
        data=(MNIST.key,),
    )


SPECTRA = Table(
    key="spectra",
    title="eigenvalues of the Jacobians of single steps after training",
    paper=f"{ANTISYMMETRIC_PAPER}; {LIPSCHITZ_PAPER}",
    source="figure of the Jacobians; figures 4 and 5",
    kind="spectra",
    columns=(
        Column("accuracy", "test.accuracy", percent=True, decimals=1, is_published=False),
        Column("largest |eigenvalue|", "radius_max", decimals=4, is_published=False),
        Column("mean |eigenvalue|", "mean_modulus", decimals=4, is_published=False),
        Column("share above 1", "share_outside", percent=True, decimals=1, is_published=False),
        Column("Re A at first", "linear_first", decimals=5, is_published=False),
        Column("Re A", "linear_last", decimals=5, is_published=False),
        Column("Re W at first", "recurrent_first", decimals=5, is_published=False),
        Column("Re W", "recurrent_last", decimals=5, is_published=False),
    ),
    rows=(
        *(_gated_row(key) for key in ("lstm", "antisym_ablation", "antisymmetric", "antisymmetric_g")),
        *(_share_row(share) for share in _SHARES),
    ),
    data=(NOISE_PADDED, MNIST),
    full=Protocol(FULL, seeds=(0,)),
    short=SHORT_PROTOCOL,
    short_data=(DIGITS,),
    settings=PLAIN_CLASSIFIER,
    reference="lipschitz-0.75",
    unspecified="the shares of the skew part, the sequences along which Jacobians are taken",
    remarks=(
        "Jacobians are those of single steps along 16 test sequences. Re A and Re W are the largest real parts of the "
        "eigenvalues of the matrices of the Lipschitz RNN, before and after training; other cells have none.",
        "The figures have no numbers in the text that was read, so that ours stand alone.",
    ),
)
