"""The certificate document of a version or a run, as HTML and JSON."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from certificate_page import TAGS, Page
from cli_helpers import Workplace
from stablernn_cli.report.page import plain_text, upper_bound
from stablernn_registry.certificates import format_upper

CHROMIUM = Path("/usr/bin/chromium")


def test_the_page_holds_every_claim_with_its_number(documents: tuple[Page, dict[str, Any]]) -> None:
    page, document = documents
    assert document["proved"][0]["kind"] == "contracting"
    assert [entry["scope"] for entry in document["proved"]] == ["all inputs", "inputs within a range"]
    # The second one is shown in full only where it proves more.
    shown = [entry for entry in document["proved"] if not entry["equals_all_inputs"]]
    for entry in shown:
        proved_claims = [claim for claim in entry["claims"] if claim["proved"]]
        assert proved_claims
        for claim in proved_claims:
            value = plain_text(upper_bound(claim["value"]))
            row = f"{claim['title']} {value} {claim['unit']} {claim['norm'] or ''}".strip()
            assert row in page.text
        for claim in entry["claims"]:
            assert claim["title"] in page.text
        for hypothesis in entry["hypotheses"]:
            assert hypothesis["slack"] == hypothesis["bound"] - hypothesis["value"]
            assert f"{hypothesis['name']} {format_upper(hypothesis['value'], 8)} " in page.text
        for method in entry["methods"]:
            assert method["reference"] in page.text
    for sentence in document["summary"][0]["sentences"]:
        assert sentence in page.text


def test_the_page_needs_no_other_file_and_runs_nothing(documents: tuple[Page, dict[str, Any]]) -> None:
    page, _ = documents
    assert page.tags <= TAGS
    sources = [value or "" for name, value in page.attributes if name in ("src", "href", "srcset", "data")]
    assert len(sources) == 3
    assert all(source.startswith(("data:image/svg+xml;base64,", "data:image/png;base64,")) for source in sources)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_the_numbers_are_those_of_the_certificate(released: Workplace, documents: tuple[Page, dict[str, Any]]) -> None:
    certificate = released.document("certify sure:1")
    for entry, stated in zip(documents[1]["proved"], (certificate, certificate["bounded_inputs"]), strict=True):
        claims = {claim["id"]: claim["value"] for claim in entry["claims"]}
        assert (entry["kind"], entry["norm"]) == (stated["kind"], stated["norm"])
        assert claims["contraction_rate"] == stated["contraction_rate"]
        assert claims["gain_input_to_output"] == stated["gains"]["input_to_output"]
        assert [claims[key] for key in claims if key.startswith("state_ball_")] == [
            ball["radius"] for ball in stated["state_balls"]
        ]
    claims = {claim["id"]: claim["value"] for claim in documents[1]["proved"][0]["claims"]}
    assert {gap["steps"]: gap["output_error"] for gap in certificate["gaps"]} == {
        steps: claims[f"gap_{steps}"] for steps in (1, 10, 100, 1000)
    }


def test_observations_stand_beside_what_is_proved(documents: tuple[Page, dict[str, Any]]) -> None:
    page, document = documents
    observed, rows = document["observed"], document["comparison"]
    assert observed["stability_report"]["data"] == "digits"
    assert observed["metrics"]["test"]["accuracy"] is not None
    assert {row["observed_on"] for row in rows} == {
        "trajectories drawn for this document",
        "stability report on digits, test",
        "parity check of the export",
    }
    pairs = [(row["proved_at_most"], row["largest_observed"]) for row in rows if row["proved_at_most"] is not None]
    assert pairs
    assert all(seen <= proved * (1 + 1e-6) for proved, seen in pairs if proved > 0)
    assert "A. PROVED Claims, hypotheses and methods" in page.text
    assert "B. OBSERVED Measurements, beside what is proved" in page.text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "--report d.pdf",
            "--report writes a .html or .json file, got 'd.pdf'. For a PDF, write .html, open it in a browser and "
            "print it to a file.",
        ),
        ("--report d", "--report writes a .html or .json file, got 'd'. Add one of these suffixes."),
        (
            "--report none/d.html",
            "The file of --report, 'none/d.html', cannot be written: 'none' is not a folder. Name a file in a folder "
            "that exists.",
        ),
        (
            "--report load.csv/d.html",
            "The file of --report, 'load.csv/d.html', cannot be written: 'load.csv' is not a folder. Name a file in a "
            "folder that exists.",
        ),
        (
            "--server http://127.0.0.1:9",
            "--server is for --report, got 'http://127.0.0.1:9' without it. Add --report FILE, or leave it out.",
        ),
        (
            "--report d.html --server http://127.0.0.1:9",
            "--server reads the counts of a registry version, got the run 'digits-run'. Export the run and name the "
            "version, or leave out --server.",
        ),
    ],
)
def test_refusals(options: str, sentence: str, trained: Workplace) -> None:
    refused = trained(f"certify digits-run {options}")
    assert (refused.code, refused.sentence) == (2, sentence)
    # Before anything is computed.
    assert "Certifying" not in refused.err


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed")
def test_the_browser_prints_it_to_pages_of_a4(released: Workplace, tmp_path: Path) -> None:
    released.ok("-q certify sure:1 --report print.html")
    pdf = tmp_path / "print.pdf"
    subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--print-to-pdf={pdf}",
            str(released.path("print.html")),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    pages = re.findall(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]", content)
    # Points: 210 by 297 mm.
    assert pages
    assert all(abs(float(width) - 595) < 2 and abs(float(height) - 842) < 2 for width, height in pages)
    assert 5 <= len(pages) <= 14
    if shutil.which("pdftotext"):
        text = subprocess.run(["pdftotext", str(pdf), "-"], check=True, capture_output=True, text=True).stdout
        assert "Claims, hypotheses and methods" in text
        assert "Relation to published requirements" in text
