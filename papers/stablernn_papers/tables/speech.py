"""Speech: table 2 of the Lipschitz RNN, table 2 of the latent vector field RNN."""

from __future__ import annotations

from dataclasses import replace

from stablernn_papers.settings import Settings, merge, ours, paper, released
from stablernn_papers.table import FULL, Column, DataSet, Protocol, Row, Table
from stablernn_papers.tables.common import COPY_SHORT, LIPSCHITZ_PAPER, LVF_PAPER, LVF_SETTINGS, SHORT_PROTOCOL

_FSDD = DataSet(
    "fsdd-frames",
    "spoken digits (FSDD), the next frame: a stand-in for TIMIT, whose figures it cannot be compared with",
    ours({"data.source": "fsdd-frames", "training.epochs": 20}),
    is_optional=True,
)

_LIPSCHITZ = paper(
    {
        "training.optimizer": "adam",
        "training.lr": 0.001,
        "model.cell_options.skew_weight": 0.8,
        "model.cell_options.linear_damping": 0.8,
        "model.cell_options.recurrent_damping": 0.001,
        "model.cell_options.step_size": 0.9,
    }
)
_ADAM = ours({"training.optimizer": "adam", "training.lr": 0.001})
_MOMENTUM = released(
    {
        "training.optimizer": "adam",
        "training.lr": 0.0001,
        "model.cell_options.input_scale": 0.1,
        "model.cell_options.forget_bias": -4.0,
    }
)

_Figures = tuple[float | None, ...]


def _row(
    cell: str,
    size: int,
    settings: Settings,
    *,
    recall: _Figures = (),
    prediction: _Figures = (),
    count: str = "200K",
    reason: str = "",
) -> Row:
    data = {"timit-recall": recall, "timit": prediction}
    published = {key: figures for key, figures in data.items() if figures}
    return Row(
        cell,
        cell,
        size,
        settings=settings,
        published=published,
        published_parameters=dict.fromkeys(published, count),
        reason=reason,
    )


_TWO_DIGITS = "printed to two digits"

SPEECH = Table(
    key="speech",
    title="mean squared error of the next frame of 129 log-magnitudes",
    paper=f"{LIPSCHITZ_PAPER}; {LVF_PAPER}",
    source="table 2 of both",
    kind="predict-next",
    columns=(Column("validation", "validation.mse", decimals=2), Column("test", "test.mse", decimals=2)),
    rows=(
        _row(
            "lstm",
            158,
            _ADAM,
            recall=(9.33, 9.37),
            prediction=(13.66, 12.62),
            reason=f"{_TWO_DIGITS}: the count is 202,527",
        ),
        _row(
            "momentum_lstm",
            158,
            merge(_MOMENTUM, released({"model.cell_options.momentum": 0.3})),
            recall=(5.86, 5.87),
            reason=f"{_TWO_DIGITS}: two bias vectors",
        ),
        _row(
            "sr_lstm",
            158,
            merge(_MOMENTUM, released({"model.cell_options.restart": 2})),
            recall=(5.81, 5.83),
            reason=f"{_TWO_DIGITS}: two bias vectors",
        ),
        _row("fc_urnn", 256, _ADAM, prediction=(14.41, 14.45), reason=f"{_TWO_DIGITS}: the count is 198,529"),
        _row("scornn", 425, {}, prediction=(7.97, 7.36)),
        _row(
            "exprnn",
            425,
            released({"training.optimizer": "adam", "training.lr": 0.001, "training.orthogonal_lr": 0.0001}),
            recall=(5.52, 5.48),
        ),
        _row("lipschitz", 256, _LIPSCHITZ, recall=(2.95, 2.82), count="198K"),
        _row("lipschitz_rk2", 256, _LIPSCHITZ, recall=(2.86, 2.76), count="198K"),
        _row("lvf", 425, LVF_SETTINGS),
    ),
    data=(
        DataSet(
            "timit-recall",
            "TIMIT as the released programs read it: the input is the frame after the target",
            released({"data.source": "timit", "data.variant": "released-recall"}),
        ),
        DataSet("timit", "TIMIT, the next frame", paper({"data.source": "timit", "data.variant": "predict"})),
        _FSDD,
    ),
    full=Protocol(FULL, seeds=(0,)),
    short=replace(SHORT_PROTOCOL),
    short_data=(COPY_SHORT,),
    settings=ours({"training.epochs": 100, "training.batch_size": 32, "training.schedule": "constant"}),
    reference="lipschitz",
    unspecified="epochs, clipping, batches, training of lstm, fc_urnn and lvf, the units of lvf",
    remarks=(
        "The recipe of expRNN, which MomentumLSTM ships and the Lipschitz RNN's paper says it used, gives the model "
        "the frame after the one it is to predict; figures of these programs stand beside timit-recall, the others "
        "beside timit.",
        "fsdd-frames is run by --data fsdd-frames; TIMIT is the user's own copy.",
        "lvf's figures are missing in the text that was read.",
    ),
)
