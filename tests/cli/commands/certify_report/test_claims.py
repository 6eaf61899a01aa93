"""The claims of the certificate document: bounds as printed, sentences and figures."""

from __future__ import annotations

import pytest
import torch

from certificate_page import Page, read_document
from cli_helpers import ALIKE, Workplace
from model_helpers import mark_fitted
from stablernn import Classifier
from stablernn.certificates.certificate import prove
from stablernn.dynamics.drawn_trajectories import draw_trajectories
from stablernn_cli.report.claims import certificate_entry
from stablernn_cli.report.document import compose_report
from stablernn_cli.report.observed import compare
from stablernn_cli.report.page import render
from stablernn_cli.targets import CertifiedTarget


def test_every_bound_of_a_table_holds_as_it_is_printed() -> None:
    """A claim, a limit and a range of which the nearest six digits would say more than is proved."""
    model = mark_fitted(Classifier("lru", 1, 2, 4)).eval()
    made = compose_report(CertifiedTarget("nowhere", None, model, {}, (prove(model),)))
    entry = made.document["proved"][0]
    next(claim for claim in entry["claims"] if claim["id"] == "gap_1")["value"] = 1.2345612
    made.document["comparison"][0]["proved_at_most"] = 0.12345612
    condition = {"name": "tight", "value": 0.999999512, "bound": 1 - 2**-22, "slack": 2.4959189e-7, "holds": True}
    entry["hypotheses"] = [condition]
    entry["range"] = {"lower": [-1.2345678, 0.0], "upper": [1.2345678, 1.0]}
    text = Page(render(made)).text
    assert "effect of 1 wrong input 1.23457 " in text
    assert "0.123457 " in text
    assert "tight 0.99999952 0.99999976 2.49591e-07 yes" in text
    assert "0 -1.23456 1.23456 1 0 1 " in text


@pytest.mark.parametrize("cell", ["lru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_the_front_page_says_what_the_certificate_says_in_words(cell: str, empty: Workplace) -> None:
    empty.ok(f"-q train --cell {cell} {ALIKE} --run-dir {cell}")
    page, document = read_document(empty, cell)
    kind = {"lru": "contracting: two states under", "lstm": "none: no rate, and no bound of all its states, is proved."}
    assert f"For all inputs, the certificate is {kind[cell]}" in page.text
    assert document["summary"][0]["sentences"][1:] == empty.document(f"certify {cell}")["in_words"]
    assert cell != "lstm" or "Not proved: contraction rate" in page.text


def test_a_state_that_overflows_is_stated() -> None:
    model = mark_fitted(Classifier("identity_rnn", 1, 2, 4)).eval()
    with torch.no_grad():
        model.rnn.cells[0].weight_hh.copy_(1000 * torch.eye(4))
        model.rnn.cells[0].weight_ih.fill_(1.0)
    made = compose_report(CertifiedTarget("nowhere", None, model, {}, (prove(model),)))
    note = "The state of the layers grew beyond the numbers of float64 under inputs that were drawn"
    assert made.document["observed"]["drawn_trajectories"].keys() == {"note"}
    assert made.document["comparison"] == []
    page = Page(render(made))
    assert note in page.text
    assert "img" not in page.tags


@pytest.mark.parametrize("key", ["identity_rnn", "dtriv", "cornn", "lru", "lipschitz"])
@pytest.mark.parametrize("layers", [1, 2])
def test_nothing_observed_exceeds_what_the_document_calls_proved(key: str, layers: int) -> None:
    """In a stack, the largest rate of its layers is no bound on what a step does to the distance of two states."""
    torch.manual_seed(0)
    model = mark_fitted(Classifier(key, 2, 3, 6, num_layers=layers)).eval()
    certificate = prove(model)
    entry = certificate_entry(certificate, model)
    observations = {"drawn_trajectories": draw_trajectories(model, certificate, None).document()}
    rows = compare([entry], {**observations, "stability_report": None, "parity": None})
    assert len(rows) >= 2
    for row in rows:
        assert row["proved_at_most"] is None or row["largest_observed"] <= row["proved_at_most"] * (1 + 1e-6)
    rate = next(claim for claim in entry["claims"] if claim["id"] == "contraction_rate")
    if layers > 1:
        assert "In the end" in rate["statement"] or "of a single layer" in rate["statement"]
