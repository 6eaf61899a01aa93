"""Seconds of a training epoch on MNIST pixel by pixel: the speed comparison of the AntisymmetricRNN's review."""

from __future__ import annotations

from stablernn_papers.table import FULL, SHORT, Column, DataSet, Protocol, Row, Table
from stablernn_papers.tables.common import ANTISYMMETRIC_PAPER

_UNITS = 128
_ENGINES = ("loop", "fused", "native")


def _row(cell: str, engine: str) -> Row:
    return Row(f"{cell}-{engine}", cell, _UNITS, options={"engine": engine})


SPEED = Table(
    key="speed",
    title="seconds of a training epoch of MNIST, pixel by pixel",
    paper=f"review slides of {ANTISYMMETRIC_PAPER}",
    source="table of seconds",
    kind="speed",
    columns=(
        Column("epoch, s", "epoch_seconds", decimals=1, is_published=False),
        Column("step, ms", "step_milliseconds", decimals=0, is_published=False),
        Column("against lstm in torch", "ratio_to_torch_lstm", decimals=2, is_published=False),
    ),
    rows=(
        *(_row("antisymmetric", engine) for engine in _ENGINES),
        # The fused engines run no gated cell of this kind.
        _row("lstm", "loop"),
        Row("lstm-torch", "lstm", _UNITS, options={"engine": "torch"}),
    ),
    data=(DataSet("pixels", "random sequences of 784 steps in batches of 128", {}),),
    full=Protocol(FULL, seeds=(0,), options={"time_steps": 784, "batch_size": 128, "rounds": 7}),
    short=Protocol(SHORT, seeds=(0,), options={"time_steps": 28, "batch_size": 16, "rounds": 2}),
    reference="antisymmetric-loop",
    remarks=(
        "The slides print seconds of an LSTM without the size and the machine: 23.10 and 71.86 for PyTorch with and "
        "without cuDNN, 49.10 and 260.33 for TensorFlow. They were taken on a GPU: their ratio alone compares.",
        "Here an epoch is 430 steps of 128 sequences: forward, backward and Adam. All rows are timed in turn, round "
        "after round, by the processor time of one thread on the CPU; lstm-torch is torch.nn.LSTM. Rows whose engine "
        "is missing or cannot run the cell are missing.",
    ),
)
