"""CIFAR-10 pixel by pixel and padded with noise: table 2 of the AntisymmetricRNN, table 5 of the Lipschitz RNN."""

from __future__ import annotations

from stablernn_papers.settings import Settings, merge, ours, paper, released
from stablernn_papers.table import FULL, DataSet, Protocol, Row, Table
from stablernn_papers.tables.common import (
    ACCURACY,
    ANTISYMMETRIC_PAPER,
    BATCHES_OF_128,
    DIGITS,
    LIPSCHITZ_PAPER,
    LIPSCHITZ_SCHEDULE,
    PLAIN_CLASSIFIER,
    SHORT_PROTOCOL,
)

PIXEL = DataSet(
    "cifar10",
    "CIFAR-10, pixel by pixel, 1,024 steps",
    {**paper({"data.source": "cifar10"}), **released({"model.scaling": "standard"})},
)
NOISE_PADDED = DataSet(
    "cifar10-noise-padded",
    "CIFAR-10, 32 rows, then 968 steps of noise",
    # The images are standardized already, and the noise is N(0, 1).
    {**paper({"data.source": "cifar10-noise-padded"}), **released({"model.scaling": "none"})},
)

# 50,000 steps in order and 10,000 with noise, with a learning rate from a grid.
ANTISYMMETRIC = merge(
    paper({"training.max_steps": 50_000}), BATCHES_OF_128, ours({"training.lr": 0.1, "training.schedule": "constant"})
)
NOISE_STEPS: dict[str, Settings] = {"cifar10-noise-padded": paper({"training.max_steps": 10_000})}
LSTM = merge(ours({"training.max_steps": 50_000, "training.schedule": "constant"}), BATCHES_OF_128)
LIPSCHITZ = merge(
    LIPSCHITZ_SCHEDULE,
    paper(
        {
            "training.lr": 0.1,
            "training.lr_decay": 0.2,
            "model.cell_options.skew_weight": 0.65,
            "model.cell_options.linear_damping": 0.001,
            "model.cell_options.recurrent_damping": 0.001,
            "model.cell_options.step_size": 0.01,
        }
    ),
    released({"training.optimizer": "sgd", "training.momentum": 0.9}),
)
LIPSCHITZ_NOISE: dict[str, Settings] = {"cifar10-noise-padded": paper({"model.cell_options.skew_weight": 0.75})}

_ONE_INPUT = "printed for both data sets; the noise-padded rows have 96 inputs in place of 3"


def _figures(pixel: float | None, padded: float) -> dict[str, tuple[float | None, ...]]:
    return {"cifar10": (pixel,), "cifar10-noise-padded": (padded,)}


def _counts(pixel: str, padded: str | None = None) -> dict[str, str]:
    return {"cifar10": pixel, "cifar10-noise-padded": padded or pixel}


def _antisymmetric(cell: str, size: int, pixel: float, padded: float, count: str) -> Row:
    return Row(
        cell,
        cell,
        size,
        settings=ANTISYMMETRIC,
        data_settings=NOISE_STEPS,
        published=_figures(pixel, padded),
        published_parameters=_counts(count),
        reason=_ONE_INPUT,
    )


def _lipschitz(cell: str, size: int, figures: tuple[float, float], counts: tuple[str, str]) -> Row:
    return Row(
        f"{cell}-{size}",
        cell,
        size,
        settings=LIPSCHITZ,
        data_settings=LIPSCHITZ_NOISE,
        published=_figures(*figures),
        published_parameters=_counts(*counts),
    )


CIFAR10 = Table(
    key="cifar10",
    title="accuracy on CIFAR-10, pixel by pixel and padded with noise",
    paper=f"{ANTISYMMETRIC_PAPER}; {LIPSCHITZ_PAPER}",
    source="table 2; table 5",
    kind="classification",
    columns=ACCURACY,
    rows=(
        Row(
            "lstm",
            "lstm",
            128,
            settings=LSTM,
            data_settings=NOISE_STEPS,
            published=_figures(59.7, 11.6),
            published_parameters=_counts("69K"),
            reason=_ONE_INPUT,
        ),
        _antisymmetric("antisym_ablation", 196, 54.6, 46.2, "42K"),
        _antisymmetric("antisymmetric", 256, 58.7, 48.3, "36K"),
        _antisymmetric("antisymmetric_g", 256, 62.2, 54.7, "37K"),
        Row(
            "incremental",
            "incremental",
            128,
            settings=LSTM,
            data_settings=NOISE_STEPS,
            published=_figures(None, 54.5),
        ),
        _lipschitz("lipschitz", 128, (60.5, 57.4), ("34K", "46K")),
        _lipschitz("lipschitz_rk2", 128, (60.3, 57.3), ("34K", "46K")),
        _lipschitz("lipschitz", 256, (64.2, 59.0), ("134K", "158K")),
        _lipschitz("lipschitz_rk2", 256, (64.2, 58.9), ("134K", "158K")),
    ),
    data=(PIXEL, NOISE_PADDED),
    full=Protocol(FULL, seeds=(0,)),
    short=SHORT_PROTOCOL,
    short_data=(DIGITS,),
    settings=PLAIN_CLASSIFIER,
    reference="lipschitz-128",
    unspecified="training of lstm and incremental, the learning rate of the antisymmetric cells within the published "
    "grid",
    remarks=(
        "Pixels are red, green and blue of one place, scaled by mean and deviation, without augmentation; the released "
        "program of the Lipschitz RNN reads three neighbors of one color plane, cropped and flipped at random.",
        "Noise-padded images are standardized, as in that program, so that pixels are as large as the noise.",
        "Noise is drawn for each image, as in the papers; the released program adds one draw to all images.",
    ),
)
