"""MNIST pixel by pixel: table 1 of the AntisymmetricRNN and of the Lipschitz RNN."""

from __future__ import annotations

from stablernn_papers.settings import Settings, merge, ours, paper, released
from stablernn_papers.table import FULL, Protocol, Row, Table
from stablernn_papers.tables.common import (
    ACCURACY,
    ANTISYMMETRIC_PAPER,
    BATCHES_OF_50,
    BATCHES_OF_128,
    DIGITS,
    LIPSCHITZ_MNIST,
    LIPSCHITZ_PAPER,
    LIPSCHITZ_PMNIST,
    MNIST,
    PLAIN_CLASSIFIER,
    PMNIST,
    SHORT_PROTOCOL,
)


def _figures(ordered: float, permuted: float) -> dict[str, tuple[float | None, ...]]:
    return {"mnist": (ordered,), "pmnist": (permuted,)}


def _counts(ordered: str, permuted: str | None = None) -> dict[str, str]:
    return {"mnist": ordered, "pmnist": permuted or ordered}


# Neither paper states the training of the rows that it quotes from others; where no code was released, it is ours.
_QUOTED = ours({"training.epochs": 40, "training.batch_size": 128})
_UNITARY = merge(BATCHES_OF_50, ours({"training.epochs": 40}))
# The paper trains 50,000 steps (117 epochs) with Adagrad or SGD with momentum and a learning rate from a grid. Of that
# grid Adagrad at 0.3 is ahead after five epochs, with 92.6 % of the validation images; SGD at 0.3 and 1 diverges. Short
# runs do not tell the end: `lipschitz-64` is behind `antisymmetric` until epoch 20 and ends two points ahead. What the
# paper does not state and the Lipschitz RNN's recipe has is the drop of the rate near the end, here for the last tenth.
_ANTISYMMETRIC = merge(
    paper({"training.max_steps": 50_000, "training.optimizer": "adagrad", "training.momentum": None}),
    BATCHES_OF_128,
    ours(
        {
            "training.lr": 0.3,
            "training.schedule": "step",
            "training.step_epochs": 105,
            "training.lr_decay": 0.1,
        }
    ),
)
_MOMENTUM = released({"training.epochs": 150, "training.batch_size": 128, "training.lr": 0.001})


def _lipschitz(cell: str, size: int, ordered: float, permuted: float, count: str) -> Row:
    settings: Settings = LIPSCHITZ_MNIST
    return Row(
        f"{cell}-{size}",
        cell,
        size,
        settings=settings,
        data_settings={"pmnist": LIPSCHITZ_PMNIST},
        published=_figures(ordered, permuted),
        published_parameters=_counts(count),
    )


LIPSCHITZ_ROWS = (
    _lipschitz("lipschitz", 64, 99.0, 94.2, "9K"),
    _lipschitz("lipschitz_rk2", 64, 99.1, 94.2, "9K"),
    _lipschitz("lipschitz", 128, 99.4, 96.3, "34K"),
    _lipschitz("lipschitz_rk2", 128, 99.3, 96.2, "34K"),
)

_ROWS = (
    Row(
        "lstm",
        "lstm",
        128,
        settings=_QUOTED,
        published=_figures(97.3, 92.7),
        published_parameters=_counts("68K"),
    ),
    Row(
        "momentum_lstm",
        "momentum_lstm",
        256,
        settings=_MOMENTUM,
        data_settings={"pmnist": released({"model.cell_options.input_scale": 1.0})},
        published=_figures(99.1, 94.7),
        published_parameters=_counts("270K"),
        reason="printed to two digits: the count is 267,786",
    ),
    Row(
        "urnn",
        "urnn",
        512,
        settings=_UNITARY,
        published=_figures(95.1, 91.4),
        published_parameters=_counts("9K"),
        reason="no count of the released code gives 9K; the paper of FC-uRNN prints 16K for the same model",
    ),
    Row(
        "fc_urnn-116",
        "fc_urnn",
        116,
        settings=merge(BATCHES_OF_50, released({"training.epochs": 200, "training.lr": 0.001})),
        published=_figures(92.8, 92.1),
        published_parameters=_counts("16K"),
    ),
    Row(
        "fc_urnn-512",
        "fc_urnn",
        512,
        settings=merge(BATCHES_OF_50, released({"training.epochs": 200, "training.lr": 0.0001})),
        published=_figures(96.9, 94.1),
        published_parameters=_counts("270K"),
        reason="printed to two digits: the count is 274,954",
    ),
    Row(
        "soft_orth",
        "soft_orth",
        128,
        settings=_QUOTED,
        published=_figures(94.1, 91.4),
        published_parameters=_counts("18K"),
    ),
    Row("kru", "kru", 512, settings=_QUOTED, published=_figures(96.4, 94.5), published_parameters=_counts("11K")),
    Row(
        "antisymmetric",
        "antisymmetric",
        128,
        settings=_ANTISYMMETRIC,
        published=_figures(98.0, 95.8),
        published_parameters=_counts("10K"),
    ),
    Row(
        "antisymmetric_g",
        "antisymmetric_g",
        128,
        settings=_ANTISYMMETRIC,
        published=_figures(98.8, 93.1),
        published_parameters=_counts("10K"),
    ),
    Row(
        "incremental",
        "incremental",
        128,
        settings=merge(_QUOTED, ours({"model.cell_options.recurrent_rank": 16})),
        data_settings={"pmnist": ours({"model.cell_options.recurrent_rank": 32})},
        published=_figures(98.1, 95.6),
        published_parameters=_counts("4K", "8K"),
        reason="the print fits ranks of 16 and 32 without the decoder of 1,290 numbers; the paper states neither",
    ),
    Row(
        "exprnn",
        "exprnn",
        360,
        settings=released({"training.epochs": 70, "training.batch_size": 128, "training.lr": 0.0007}),
        published=_figures(98.4, 96.2),
        published_parameters=_counts("69K"),
    ),
    Row(
        "nais_net",
        "nais_net",
        128,
        settings=_QUOTED,
        published=_figures(94.3, 90.8),
        published_parameters=_counts("18K"),
    ),
    Row(
        "scornn",
        "scornn",
        170,
        settings=merge(BATCHES_OF_50, released({"training.epochs": 70, "training.lr": 0.001})),
    ),
    *LIPSCHITZ_ROWS,
)

MNIST_PIXEL = Table(
    key="mnist-pixel",
    title="accuracy on MNIST, pixel by pixel, 784 steps",
    paper=f"{ANTISYMMETRIC_PAPER}; {LIPSCHITZ_PAPER}",
    source="table 1 of both",
    kind="classification",
    columns=ACCURACY,
    rows=_ROWS,
    data=(MNIST, PMNIST),
    full=Protocol(FULL, seeds=(0, 1, 2)),
    short=SHORT_PROTOCOL,
    short_data=(DIGITS,),
    settings=PLAIN_CLASSIFIER,
    reference="lipschitz-64",
    unspecified="epochs, batches and learning rates of lstm, urnn, soft_orth, kru, incremental and nais_net, the "
    "learning rate of the antisymmetric cells within the published grid, the ranks of incremental, the draw of the "
    "validation images",
    remarks=(
        "The Lipschitz RNN's paper prints the best of ten seeds and of both its permuted runs; its released program "
        "feeds permuted pixels of 0 to 255, and here they are 0 to 1 in both orders.",
        "For lstm on the permuted order the AntisymmetricRNN's table has 92.6 and the Lipschitz RNN's 92.7.",
        "scornn is ours: neither table has it.",
        "antisymmetric with a constant rate ended 1.5 points below the published 98.0 in order. Its recipe has since a "
        "drop of the rate for the last tenth, as the Lipschitz RNN's has. What was judged after 3 to 30 of 117 epochs "
        "(initial scales, damping, step sizes, learning rates, Adam, standardized pixels) tells nothing about the end.",
    ),
)
