"""Dynamics of small systems: figure 1 of the AntisymmetricRNN and of the Lipschitz RNN."""

from __future__ import annotations

from typing import Any

from stablernn_papers.table import FULL, SHORT, Column, DataSet, Protocol, Row, Table
from stablernn_papers.tables.common import ANTISYMMETRIC_PAPER, LIPSCHITZ_PAPER

Matrix = tuple[tuple[float, float], tuple[float, float]]


def _row(key: str, rule: str, **options: Any) -> Row:
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
        _row("a-random", "vanilla", draw="normal", seed=0),
        _row("b-identity", "vanilla", matrix=((1.0, 0.0), (0.0, 1.0))),
        _row("c-orthogonal-0", "vanilla", draw="orthogonal", seed=0),
        _row("d-orthogonal-1", "vanilla", draw="orthogonal", seed=1),
        _row("e-positive", "feedback", matrix=((2.0, -2.0), (0.0, 2.0))),
        _row("f-negative", "feedback", matrix=((-2.0, 2.0), (0.0, -2.0))),
        _row("g-imaginary", "feedback", matrix=((0.0, -2.0), (2.0, 0.0))),
        _row("h-diffusion", "feedback", matrix=((-0.15, -2.0), (2.0, -0.15))),
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
