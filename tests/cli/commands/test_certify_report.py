"""`certify --report`: the certificate document of versions and runs, as HTML, as JSON, and printed to PDF."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from cli_helpers import ALIKE, NO_PLOTS, Workplace, copied, republish
from model_helpers import mark_fitted
from packages import ROOT
from server_helpers import json_tensor, serve
from stablernn import Classifier
from stablernn.certificates.certificate import prove
from stablernn.dynamics.drawn_trajectories import draw_trajectories
from stablernn_cli.report.claims import certificate_entry
from stablernn_cli.report.clauses import CLAUSES
from stablernn_cli.report.document import compose_report
from stablernn_cli.report.html_page import render
from stablernn_cli.report.html_parts import plain_text, upper_bound
from stablernn_cli.report.model_facts import intended_use
from stablernn_cli.report.observed import compare
from stablernn_cli.targets import CertifiedTarget
from stablernn_registry import Registry
from stablernn_registry.documents.rounding import format_lower, format_upper
from stablernn_server import Settings, create_app

CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "infer-token-0123456789abcdef0123456789"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'`"
_TAGS = """
html head meta title style body section div h1 h2 h3 p strong br span table thead tbody tr th td ul ol li code
figure img figcaption
"""
TAGS = set(_TAGS.split())


class Page(HTMLParser):
    """The tags, the attributes and the text of a page; fails on a tag that is closed in the wrong place."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self._texts: list[str] = []
        self._open: list[str] = []
        self.feed(content)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self._texts.append(data)


def report(workplace: Workplace, target: str, *options: object) -> tuple[Page, dict[str, Any]]:
    """The document of a target in both forms, but for its time."""
    for name in ("document.html", "document.json"):
        workplace.ok("-q", "certify", target, "--report", name, *options)
    page = Page(workplace.path("document.html").read_text(encoding="utf-8"))
    return page, json.loads(workplace.path("document.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def released(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """``sure:1``, a contracting model with a ball, promoted under a policy, with a stability report."""
    with copied(trained, tmp_path_factory.mktemp("released") / "copy") as copy:
        small = ("--hidden-size", 8, "--max-steps", 20, *NO_PLOTS)
        copy.ok(
            "-q", "train", "--data", "digits", "--cell", "lipschitz", "--certified", *small, "--run-dir", "sure-run"
        )
        copy.ok("-q", "export", "sure-run", "--name", "sure")
        copy.ok("-q", "registry", "policy", "set", "--require", "none", "--alias", "production", "--why", "rule 12")
        copy.ok("-q", "registry", "alias", "sure@production", 1, "--why", "release of May")
        copy.ok("-q", "eval", "sure:1", "--stability")
        yield copy


@pytest.fixture(scope="module")
def documents(released: Workplace) -> tuple[Page, dict[str, Any]]:
    return report(released, "sure@production")


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
    certificate = released.ok("certify", "sure:1", "--json").json
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


def test_a_report_about_other_weights_is_left_out(released: Workplace, tmp_path: Path) -> None:
    with copied(released, tmp_path / "copy") as workplace:
        registry = Registry(workplace.registry)
        stored = json.loads(registry.records("sure:1")[-1].read("stability.json"))
        path = workplace.path("stability.json")
        path.write_text(json.dumps({**stored, "weights": "sha256:" + "0" * 64}))
        registry.record("sure:1", "stability", {"stability.json": path})
        page, document = report(workplace, "sure:1")
    assert document["observed"]["stability_report"]["note"] == "left out: the report is about other weights"
    assert "left out: the report is about other weights" in page.text


def test_a_promotion_is_stated_with_who_when_why_and_policy(
    released: Workplace, documents: tuple[Page, dict[str, Any]]
) -> None:
    page, document = documents
    [move] = document["history"]["moves"]
    entry = next(line for line in Registry(released.registry).log("sure") if line.action == "alias")
    assert (move["who"], move["time"], move["why"]) == (entry.who, entry.time, "release of May")
    assert move["policy"]["why"] == "rule 12"
    assert move["policy"]["rules"] == {"kind": "none"}
    assert move["checks"][0]["name"] == "policy kind"
    assert f"when {entry.time} who {entry.who} why release of May policy line 1 of the policy" in page.text
    assert "(rule 12): kind: none" in page.text
    assert "Aliases that point to this version now: production." in page.text
    assert "released as production (section C)" in page.text


def test_rules_that_were_set_after_a_move_are_not_its_policy(released: Workplace, tmp_path: Path) -> None:
    with copied(released, tmp_path / "copy") as workplace:
        policy = workplace.registry / "policy.jsonl"
        before = policy.read_bytes()
        workplace.ok("-q", "registry", "policy", "set", "--require", "none", "--alias", "production", "--why", "later")
        added = json.loads(policy.read_bytes()[len(before) :])
        moved = Registry(workplace.registry).log("sure")[-1].time
        # Times have a resolution of one second, in which both may fall.
        if added["time"] == moved:
            pytest.skip("the rule was set in the second of the move")
        _, document = report(workplace, "sure:1")
    assert document["history"]["moves"][0]["policy"]["why"] == "rule 12"


def test_a_run_has_neither_digest_nor_history(trained: Workplace) -> None:
    page, document = report(trained, "digits-run")
    assert (document["model"]["source"], document["model"]["digest"], document["history"]) == ("run", None, None)
    assert document["stored_certificate"] is None
    assert document["observed"]["metrics"]["test"]["accuracy"] is not None
    assert "digest none: a run directory is not published" in page.text
    assert "intended use not stated: a run directory has no model card" in page.text
    assert "No server was asked" in page.text


def test_an_intended_use_is_quoted_from_the_card(workplace: Workplace) -> None:
    workplace.ok("-q", "export", "digits-run", "--name", "digits", "--intended-use", "Digits of 8 x 8 pixels | [demo]")
    page, document = report(workplace, "digits:2")
    assert document["model"]["intended_use"] == {"stated": True, "text": "Digits of 8 x 8 pixels | [demo]"}
    assert "intended use Digits of 8 x 8 pixels | [demo]" in page.text
    assert report(workplace, "digits:1")[1]["model"]["intended_use"] == {
        "stated": False,
        "text": "not stated in the model card",
    }
    refused = workplace("export", "digits-run", "--name", "digits", "--intended-use", " ")
    assert (refused.code, refused.sentence) == (
        2,
        "--intended-use takes a text, got an empty one. Leave it out if no use is intended yet.",
    )


def test_a_comment_in_a_block_of_code_ends_no_section_of_the_card() -> None:
    use = "```sh\n# predict the next day\nstablernn predict load:1\n```\n\nBy night only."
    card = f"# load\n\n~~~\n## Intended use\n~~~\n\n## Intended use\n\n{use}\n\n## Other\n\nnot this\n"
    assert intended_use(card) == {"stated": True, "text": use}


def test_markup_in_the_registry_stays_text(workplace: Workplace) -> None:
    card = f"# digits\n\n## Intended use\n\n{MARKUP}\n\n## Other\n\nnot this\n"
    labels = [f"{MARKUP} {number}" for number in range(10)]
    metrics = {"test": {MARKUP: 0.5}, MARKUP: {"accuracy": MARKUP}}
    lineage = {"data": {"name": MARKUP}, "code": {"stablernn": MARKUP}}
    republish(
        workplace, "digits:1", {"README.md": card.encode()}, labels=labels, features=[MARKUP], metrics=metrics,
        lineage=lineage,
    )  # fmt: skip
    registry = Registry(workplace.registry)
    registry.set_policy({"kind": "none"}, why=MARKUP, who=MARKUP)
    registry.set_alias("digits", "production", 2, why=MARKUP, who=MARKUP)
    path = workplace.path("stability.json")
    path.write_text(json.dumps({"weights": "x", "data": MARKUP}))
    registry.record("digits:2", "stability", {"stability.json": path}, who=MARKUP)
    page, document = report(workplace, "digits:2")
    assert page.tags <= TAGS
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    text = " ".join(MARKUP.split())
    assert document["model"]["intended_use"]["text"] == MARKUP
    # The use, the name of the input, ten labels, data, code, a score and its split, the promotion and its policy.
    assert page.text.count(text) >= 18
    assert "not this" not in page.text


def test_every_key_is_documented(documents: tuple[Page, dict[str, Any]]) -> None:
    text = (ROOT / "docs" / "certificate_document.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", text))
    _, document = documents
    parts = [document, document["model"], document["observed"], document["violations"], document["history"]]
    parts += [document["proved"][0], document["proved"][0]["claims"][0], document["comparison"][0]]
    parts += [document["observed"]["drawn_trajectories"], document["history"]["moves"][0], document["clauses"][0]]
    assert {key for part in parts for key in part} - documented == set()
    assert document["schema"] == 1


def test_numbers_of_clauses_have_a_source_and_sold_standards_have_none(
    documents: tuple[Page, dict[str, Any]],
) -> None:
    page, document = documents
    assert document["clauses"] == [vars(clause) for clause in CLAUSES]
    for clause in CLAUSES:
        assert ("https://" in clause.source) or clause.clause is None
        assert clause.supports
        assert clause.does_not
        assert clause.topic in page.text
    sold = {clause.framework for clause in CLAUSES if clause.clause is None}
    assert sold == {"ISO/PAS 8800:2024", "IEC 62304"}
    assert "This document claims no conformity with any standard or law." in page.text


class TestServer:
    def test_violations_are_counted_and_their_scope_is_stated(self, released: Workplace) -> None:
        settings = Settings(registry=released.registry, models=("sure:1",))
        for running in serve(create_app(settings)):
            before = report(released, "sure:1", "--server", running.url)[1]["violations"]
            # Two of three samples lie outside the range of training and a half more, -4 to 20.
            inputs = json_tensor("x", np.array([[[0.0], [25.0], [-9.0]]], dtype=np.float32))
            answer = httpx.post(f"{running.url}/v2/models/sure/infer", json={"inputs": [inputs]})
            assert answer.status_code == 200
            page, document = report(released, "sure:1", "--server", running.url)
        after = document["violations"]
        assert (before["samples_outside_range"], after["samples_outside_range"]) == (0, 2)
        assert after["sequences_and_steps_run"] == before["sequences_and_steps_run"] + 1
        assert after["url"] == running.url
        assert "samples outside the range 2" in page.text
        assert after["states_outside_ball"] == 0
        assert "counted in operation 0 states outside their ball, 2 samples outside the range (section C)" in page.text
        assert "One server process, since it opened this version." in page.text

    def test_what_no_guard_compares_is_no_zero(self, empty: Workplace) -> None:
        # A linear unit has no bound on its state.
        empty.ok("-q", "train", "--cell", "lru", *ALIKE, "--run-dir", "lru")
        empty.ok("-q", "export", "lru", "--name", "open")
        for running in serve(create_app(Settings(registry=empty.registry, models=("open:1",)))):
            page, document = report(empty, "open:1", "--server", running.url)
        assert document["violations"]["states_outside_ball"] is None
        assert "not counted: the version has no certified ball" in page.text

    def test_a_token_is_read_from_the_environment(self, released: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = Settings(registry=released.registry, models=("sure:1",), infer_tokens=(TOKEN,))
        for running in serve(create_app(settings)):
            refused = released("certify", "sure:1", "--report", "d.json", "--server", running.url)
            monkeypatch.setenv("STABLERNN_CLIENT_TOKEN", TOKEN)
            released.ok("-q", "certify", "sure:1", "--report", "d.json", "--server", running.url)
        assert refused.code == 1
        assert "Start the server, set STABLERNN_CLIENT_TOKEN if it wants a token" in refused.sentence
        assert TOKEN not in released.path("d.json").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        "address",
        ["http://user:secret@127.0.0.1:9", "user:secret@127.0.0.1:9", "http://u:secret@[::1", "http://u:secret@h:port"],
    )
    def test_a_password_in_an_address_is_neither_taken_nor_shown(self, address: str, released: Workplace) -> None:
        refused = released("certify", "sure:1", "--report", "d.json", "--server", address)
        assert (refused.code, refused.sentence) == (
            2,
            "--server takes an address without user and password. Give an address such as http://127.0.0.1:8080, and "
            "STABLERNN_CLIENT_TOKEN.",
        )
        assert "secret" not in refused.err

    @pytest.mark.parametrize(
        "address", ["127.0.0.1:9", "ftp://h", "http://", "http://h:port", "http://[::1", "http://h x"]
    )
    def test_what_is_no_address_is_refused(self, address: str, released: Workplace) -> None:
        refused = released("certify", "sure:1", "--report", "d.json", "--server", address)
        assert refused.code == 2
        assert refused.sentence.startswith(f"--server takes an http:// or https:// address, got '{address}'.")

    def test_a_server_of_another_model_is_refused(self, released: Workplace, tmp_path: Path) -> None:
        with copied(released, tmp_path / "copy") as workplace:
            registry = Registry(tmp_path / "other")
            source = Registry(workplace.registry).get("load:1")
            fields = source.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
            registry.publish("sure", {name: source.path(name) for name in source.manifest.files}, fields)
            for running in serve(create_app(Settings(registry=registry.root, models=("sure:1",)))):
                refused = workplace("certify", "sure:1", "--report", "d.html", "--server", running.url)
        assert refused.code == 1
        assert f"The server at {running.url} serves another model as 'sure:1'" in refused.sentence

    def test_a_server_that_does_not_answer_is_an_error(self, released: Workplace) -> None:
        refused = released("certify", "sure:1", "--report", "d.html", "--server", "http://127.0.0.1:9")
        assert refused.code == 1
        assert refused.sentence.startswith("The counts of 'sure:1' cannot be read from http://127.0.0.1:9: ")
        assert not released.path("d.html").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--report", "d.pdf"),
            "--report writes a .html or .json file, got 'd.pdf'. For a PDF, write .html, open it in a browser and "
            "print it to a file.",
        ),
        (("--report", "d"), "--report writes a .html or .json file, got 'd'. Add one of these suffixes."),
        (
            ("--report", "none/d.html"),
            "The file of --report, 'none/d.html', cannot be written: 'none' is not a folder. Name a file in a folder "
            "that exists.",
        ),
        (
            ("--report", "load.csv/d.html"),
            "The file of --report, 'load.csv/d.html', cannot be written: 'load.csv' is not a folder. Name a file in a "
            "folder that exists.",
        ),
        (
            ("--server", "http://127.0.0.1:9"),
            "--server is for --report, got 'http://127.0.0.1:9' without it. Add --report FILE, or leave it out.",
        ),
        (
            ("--report", "d.html", "--server", "http://127.0.0.1:9"),
            "--server reads the counts of a registry version, got the run 'digits-run'. Export the run and name the "
            "version, or leave out --server.",
        ),
    ],
)
def test_refusals(options: tuple[str, ...], sentence: str, trained: Workplace) -> None:
    refused = trained("certify", "digits-run", *options)
    assert (refused.code, refused.sentence) == (2, sentence)
    # Before anything is computed.
    assert "Certifying" not in refused.err


def test_the_answer_is_printed_as_without_a_report(trained: Workplace) -> None:
    plain = trained.ok("certify", "load-run", "--json").json
    written = trained.ok("certify", "load-run", "--json", "--report", "answer.json")
    assert written.json == plain
    assert "Wrote answer.json." in written.err
    refused = trained("certify", "load-run", "--require", "contracting", "--report", "refused.html")
    assert refused.code == 3
    assert trained.path("refused.html").exists()


def test_the_range_of_each_input_is_listed_by_its_name(trained: Workplace) -> None:
    page, document = report(trained, "load-run")
    ranges = document["proved"][1]["range"]
    rows = " ".join(
        f"{name} {format_upper(low, 6)} {format_lower(high, 6)}"
        for name, low, high in zip(("heat", "power", "wind"), ranges["lower"], ranges["upper"], strict=True)
    )
    assert f"input, in the units of the data from to {rows}" in page.text


def test_a_range_of_ones_own_is_certified_beside_all_inputs(trained: Workplace) -> None:
    _, document = report(trained, "load-run", "--inputs-within", "0:400")
    assert [entry["range"] for entry in document["proved"]] == [None, {"lower": [0.0] * 3, "upper": [400.0] * 3}]
    assert "from the range" not in document["observed"]["drawn_trajectories"]["inputs"]


def test_a_bounded_model_is_stated_with_its_radius(trained: Workplace) -> None:
    page, document = report(trained, "load-run")
    (entry, *_) = document["proved"]
    radius = format_upper(max(claim["value"] for claim in entry["claims"] if claim["id"].startswith("state_ball_")), 4)
    assert f"For all inputs: bounded within {radius} " in page.text
    assert f"For all inputs, the state is bounded, within a radius of {radius}. Contraction is not proved" in page.text


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


@pytest.mark.parametrize("cell", ["lru", "lstm"])
def test_the_sentences_follow_from_the_claims(cell: str, empty: Workplace) -> None:
    empty.ok("-q", "train", "--cell", cell, *ALIKE, "--run-dir", cell)
    page, document = report(empty, cell)
    kind = document["proved"][0]["kind"]
    assert kind == {"lru": "contracting", "lstm": "none"}[cell]
    if kind == "none":
        assert "For all inputs, neither contraction nor a bound on the whole state is proved." in page.text
        assert "Not proved: contraction rate" in page.text
    else:
        values = {claim["id"]: claim["value"] for claim in document["proved"][0]["claims"]}
        steps, stride = values["forgetting_1_percent"], document["model"]["patch_stride"]
        assert f"by more than 0.01 after {steps:,} steps ({steps * stride:,} samples)." in page.text
        assert f"moves no later output of the layers by more than {format_upper(values['gap_1'], 3)};" in page.text


@pytest.mark.parametrize(
    ("cell", "title"), [("gru", "Trajectories and ball"), ("antisymmetric", "Trajectories")], ids=["ball", "none"]
)
def test_figures_and_commands_are_those_of_the_model(cell: str, title: str) -> None:
    model = mark_fitted(Classifier(cell, 1, 2, 4)).eval()
    certificate = prove(model)
    assert bool(certificate.balls) == (cell == "gru")
    made = compose_report(CertifiedTarget("my runs/a", None, model, {}, (certificate,)))
    assert [figure["title"] for figure in made.document["figures"]] == [title, "Forgetting", "Spectra"]
    text = Page(render(made)).text
    assert f"{title}. Blue: observed trajectories" in text
    assert "stablernn eval 'my runs/a' --stability measures it." in text
    assert "stablernn eval 'my runs/a' --robustness measures it." in text


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


@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed")
def test_the_browser_prints_it_to_pages_of_a4(released: Workplace, tmp_path: Path) -> None:
    released.ok("-q", "certify", "sure:1", "--report", "print.html")
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
