"""Dynamics of small systems: figure 1 of the AntisymmetricRNN."""

from __future__ import annotations

from typing import Any

from stablernn.reproduce.table import FULL, SHORT, Column, DataSet, Protocol, Row, Table
from stablernn.reproduce.tables.common import ANTISYMMETRIC_PAPER

Matrix = tuple[tuple[float, float], tuple[float, float]]


def _row(key: str, rule: str, **options: Any) -> Row:
    cell = "rnn" if rule == "vanilla" else "neural_ode_rnn"
    return Row(key, cell, 2, options={"rule": rule, **options})


_STARTS = ((0.0, 0.5), (-0.5, -0.5), (0.5, -0.75))

DYNAMICS = Table(
    key="dynamics",
    title="states of two-dimensional systems without input after 50 steps",
    summary="trajectories of two-dimensional systems",
    paper=ANTISYMMETRIC_PAPER,
    source="figure 1 (a) to (h)",
    kind="dynamics",
    columns=(
        *(Column(f"norm from ({x:g}, {y:g})", f"norm_{n}", is_published=False) for n, (x, y) in enumerate(_STARTS)),
        Column("largest |eigenvalue| at 0", "spectral_radius", decimals=5, is_published=False),
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
    ),
    data=(DataSet("none", "no input", {}),),
    full=Protocol(FULL, seeds=(0,), options={"steps": 50, "step_size": 0.1, "starts": _STARTS}),
    short=Protocol(SHORT, seeds=(0,), options={"steps": 10, "step_size": 0.1, "starts": _STARTS}),
    reference="g-imaginary",
    unspecified="the matrices of (a) to (f)",
    remarks=(
        "(a) to (d) are h <- tanh(W h), (e) to (h) h <- h + .1 tanh(W h). The matrices of (g) and (h), the three "
        "starts and the step are the paper's; the others have the eigenvalues that their captions name. The figure "
        "has no numbers.",
        "Both (g) and (h) have eigenvalues outside the unit circle at 0, the paper's diffusion included: they stay "
        "bounded because tanh saturates.",
    ),
)
