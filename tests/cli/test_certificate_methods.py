"""The methods that a certificate document names are those that proved it, with the literature that they follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from model_helpers import mark_fitted
from stablernn import Classifier, list_cells
from stablernn.certificates.certificate import Certificate, prove
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.projection import project
from stablernn_cli.report.claims import method_rows

QUICK = ("gru", "lstm", "lipschitz", "lru", "cornn", "slstm")
PROVERS = {"gated_bound": "gated.py", "lure_bound": "lure.py", "restoring_box": "step_bound.py"}
"""Functions that prove a bound, and the files that a document names for them."""
GRU = "arXiv 2011.06806"
LSTM = "arXiv 2503.11553"
LURE = "arXiv 2604.00119"
RANGE = InputRange.of(2.0)


def called_provers(action: Callable[[], Certificate]) -> tuple[Certificate, set[str]]:
    """Run an action and return the files of the provers that it called, with its result."""
    files: set[str] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_name
        if event == "call" and name in PROVERS and Path(frame.f_code.co_filename).parent.name == "bounds":
            files.add(PROVERS[name])

    sys.setprofile(record)
    try:
        certificate = action()
    finally:
        sys.setprofile(None)
    return certificate, files


def built(key: str, **options: Any) -> Classifier:
    torch.manual_seed(0)
    return mark_fitted(Classifier(key, 2, 3, 4, **options)).eval()


@pytest.mark.parametrize("inputs", [None, RANGE], ids=["all inputs", "within a range"])
@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=() if key in QUICK else pytest.mark.slow) for key in list_cells()]
)
def test_the_code_that_is_named_ran(key: str, inputs: InputRange | None) -> None:
    model = built(key)
    certificate, files = called_provers(lambda: prove(model, stored=False, norms=(), inputs=inputs))
    named = " ".join(row["code"] for row in method_rows(certificate, model))
    # What ran need not have proved anything, but nothing else can have.
    assert {file for file in PROVERS.values() if file in named} <= files
    (bound,) = certificate.stacks[0].bounds
    if files == {"gated.py"} and bound.norm == "linf":
        assert "gated.py" in named


@pytest.mark.parametrize(
    ("key", "inputs", "cited"),
    [
        ("gru", None, [GRU]),
        ("gru", RANGE, [GRU]),
        ("lstm", None, []),
        ("lstm", RANGE, [LSTM]),
        ("sr_lstm", RANGE, [LSTM]),
        ("slstm", RANGE, []),
        ("lem", RANGE, []),
        ("lipschitz", None, [LURE]),
        ("lru", None, []),
        ("cornn", None, [LURE]),
    ],
)
def test_literature_is_cited_where_a_method_follows_it(key: str, inputs: InputRange | None, cited: list[str]) -> None:
    model = built(key)
    rows = method_rows(prove(model, stored=False, norms=(), inputs=inputs), model)
    text = " ".join(row["reference"] for row in rows)
    assert [paper for paper in (GRU, LSTM, LURE) if paper in text] == cited
    # Nobody takes a refinement of ours for the condition of a paper.
    assert all(row["reference"].startswith(("after ", "ours")) for row in rows)


def test_layers_and_members_list_each_method_once() -> None:
    model = built("gru", num_layers=2, members=2)
    rows = method_rows(prove(model, stored=False, norms=()), model)
    assert [row["code"] for row in rows] == [
        "stablernn/bounds/gated.py",
        "stablernn/cells",
        "stablernn/certificates/cascade.py",
    ]


def test_a_dominant_diagonal_gives_a_gated_cell_a_cube() -> None:
    model = built("fastgrnn_lsq")
    with torch.no_grad():
        # So large that a state can open its own gate, and no box is found unit by unit.
        model.rnn.cells[0].weight_hh.mul_(50)
    project(model.rnn.cells[0], 0.001)
    certificate = prove(model, stored=False, norms=(), inputs=RANGE)
    codes = [row["code"] for row in method_rows(certificate, model)]
    assert codes == ["stablernn/bounds/gated.py", "stablernn/bounds/step_bound.py"]
