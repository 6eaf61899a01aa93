"""Tables of measurements: attacks and curvature, trajectories, Jacobian spectra, seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stablernn.robustness.settings import Settings as Attacks
from stablernn_papers.table import FULL, SHORT, Column, Curvature, DataSet, Protocol, Row, Setting, Table, merge, ours
from stablernn_papers.tables.common import (
    ANTISYMMETRIC_PAPER,
    DIGITS,
    LIPSCHITZ_MNIST,
    LIPSCHITZ_PAPER,
    MNIST,
    PLAIN_CLASSIFIER,
    SHORT_PROTOCOL,
)
from stablernn_papers.tables.images import CIFAR10, NOISE_PADDED

_IMAGE_ROWS = "mnist-rows"


def _epochs(number: int) -> dict[str, Setting]:
    return ours({"training.epochs": number})


def _robustness_row(cell: str, figures: tuple[float, ...] = (), hidden_size: int | None = None) -> Row:
    published = {_IMAGE_ROWS: figures} if figures else {}
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
        _robustness_row("neural_ode_rnn", (88.5, 69.6, 44.5, 0.30, 4.7, 37.6), hidden_size=64),
        _robustness_row("antisymmetric", (84.7, 83.4, 44.3, 0.24, 4.8, 35.5), hidden_size=64),
        _robustness_row("lipschitz", (93.0, 89.2, 54.1, 0.14, 3.1, 23.2), hidden_size=64),
        _robustness_row("exprnn", hidden_size=64),
        _robustness_row("lstm"),
        _robustness_row("gru"),
    ),
    data=(
        DataSet(_IMAGE_ROWS, "MNIST in 98 steps of 8 pixels", ours({"data.source": _IMAGE_ROWS, "data.length": 98})),
    ),
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


# Dynamics of small systems: figure 1 of the AntisymmetricRNN and of the Lipschitz RNN.

Matrix = tuple[tuple[float, float], tuple[float, float]]


def _system(key: str, rule: str, **options: Any) -> Row:
    cell = "rnn" if rule == "vanilla" else "neural_ode_rnn"
    return Row(key, cell, 2, options={"rule": rule, **options})


def _pendulum(skew_weight: float, damping: float) -> Row:
    options = {"rule": "pendulum", "skew_weight": skew_weight, "damping": damping, "periods": 4}
    return Row(f"pendulum-{skew_weight:g}-{damping:g}", "lipschitz", 2, options=options)


_STARTS = ((0.0, 0.5), (-0.5, -0.5), (0.5, -0.75))

DYNAMICS = Table(
    key="dynamics",
    title="last states of two-dimensional systems without input",
    summary="trajectories of two-dimensional systems",
    paper=f"{ANTISYMMETRIC_PAPER}; {LIPSCHITZ_PAPER}",
    source="figure 1 of both",
    kind="dynamics",
    columns=(
        *(Column(f"norm from ({x:g}, {y:g})", f"norm_{n}", is_published=False) for n, (x, y) in enumerate(_STARTS)),
        Column("largest |eigenvalue| at 0", "spectral_radius", decimals=5, is_published=False),
        Column("distance from the pendulum", "distance", is_published=False),
    ),
    rows=(
        _system("a-random", "vanilla", draw="normal", seed=0),
        _system("b-identity", "vanilla", matrix=((1.0, 0.0), (0.0, 1.0))),
        _system("c-orthogonal-0", "vanilla", draw="orthogonal", seed=0),
        _system("d-orthogonal-1", "vanilla", draw="orthogonal", seed=1),
        _system("e-positive", "feedback", matrix=((2.0, -2.0), (0.0, 2.0))),
        _system("f-negative", "feedback", matrix=((-2.0, 2.0), (0.0, -2.0))),
        _system("g-imaginary", "feedback", matrix=((0.0, -2.0), (2.0, 0.0))),
        _system("h-diffusion", "feedback", matrix=((-0.15, -2.0), (2.0, -0.15))),
        *(_pendulum(skew_weight, damping) for skew_weight in (0.75, 1.0) for damping in (0.0, 0.1)),
    ),
    data=(DataSet("none", "no input", {}),),
    full=Protocol(FULL, seeds=(0,), options={"steps": 50, "step_size": 0.1, "starts": _STARTS}),
    short=Protocol(SHORT, seeds=(0,), options={"steps": 10, "step_size": 0.1, "starts": _STARTS}),
    reference="g-imaginary",
    unspecified="the matrices of (a) to (f), and everything about the pendulum: shares, dampings, starts, training",
    remarks=(
        "(a) to (d) are 50 steps of h <- tanh(W h), (e) to (h) h <- h + .1 tanh(W h). The matrices of (g) and (h), the "
        "three starts and the step are the paper's; the others have the eigenvalues that their captions name. The "
        "figures have no numbers.",
        "Both (g) and (h) have eigenvalues outside the unit circle at 0, the paper's diffusion included: they stay "
        "bounded because tanh saturates.",
        "pendulum-SHARE-DAMPING is a Lipschitz RNN of two units, angle and velocity, with this share of the skew part "
        "and this damping of both matrices. It is fitted to single steps of .1 of the pendulum without friction from "
        "the three starts, then runs on its own for 200 steps; the distance is the root mean square one from the "
        "pendulum.",
    ),
)


# Jacobian spectra: the AntisymmetricRNN's figure, and figures 4 and 5 of the Lipschitz RNN.

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


# Seconds of a training epoch: the speed comparison of the AntisymmetricRNN's review.

_TIMED_UNITS = 128
_ENGINES = ("loop", "fused", "native")


def _timed_row(cell: str, engine: str) -> Row:
    return Row(f"{cell}-{engine}", cell, _TIMED_UNITS, options={"engine": engine})


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
        *(_timed_row("antisymmetric", engine) for engine in _ENGINES),
        # The fused engines run no gated cell of this kind.
        _timed_row("lstm", "loop"),
        Row("lstm-torch", "lstm", _TIMED_UNITS, options={"engine": "torch"}),
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
