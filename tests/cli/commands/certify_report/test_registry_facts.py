"""What the certificate document says of the registry: promotions, policy, intended use, digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from certificate_page import TAGS, Page, read_document
from cli_helpers import Workplace, copied, republish
from stablernn_cli.report.document import intended_use
from stablernn_registry import Registry

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'`"


def test_a_report_about_other_weights_is_left_out(released: Workplace, tmp_path: Path) -> None:
    with copied(released, tmp_path / "copy") as workplace:
        registry = Registry(workplace.registry)
        stored = json.loads(registry.records("sure:1")[-1].read("stability.json"))
        path = workplace.path("stability.json")
        path.write_text(json.dumps({**stored, "weights": "sha256:" + "0" * 64}))
        registry.record("sure:1", "stability", {"stability.json": path})
        page, document = read_document(workplace, "sure:1")
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


@pytest.mark.slow
def test_an_intended_use_is_quoted_from_the_card(workplace: Workplace) -> None:
    workplace.ok("-q export digits-run --name digits --intended-use 'Digits of 8 x 8 pixels | [demo]'")
    page, document = read_document(workplace, "digits:2")
    assert document["model"]["intended_use"] == {"stated": True, "text": "Digits of 8 x 8 pixels | [demo]"}
    assert "intended use Digits of 8 x 8 pixels | [demo]" in page.text
    assert (
        workplace.refusal("export digits-run --name digits --intended-use ' '")
        == "--intended-use takes a text, got an empty one. Leave it out if no use is intended yet."
    )


def test_a_comment_in_a_block_of_code_ends_no_section_of_the_card() -> None:
    use = "```sh\n# predict the next day\nstablernn predict load:1\n```\n\nBy night only."
    card = f"# load\n\n~~~\n## Intended use\n~~~\n\n## Intended use\n\n{use}\n\n## Other\n\nnot this\n"
    assert intended_use(card) == {"stated": True, "text": use}


def test_markup_in_the_registry_stays_text(workplace: Workplace) -> None:
    card = f"# digits\n\n## Intended use\n\n{MARKUP}\n\n## Other\n\nnot this\n"
    labels = [f"{MARKUP} {number}" for number in range(10)]
    metrics = {"test": {MARKUP: 0.5}, MARKUP: {"accuracy": MARKUP}}
    # No code: it was trained elsewhere.
    lineage = {"data": {"name": MARKUP}}
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
    page, document = read_document(workplace, "digits:2")
    assert page.tags <= TAGS
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    text = " ".join(MARKUP.split())
    assert document["model"]["intended_use"]["text"] == MARKUP
    # The use, the name of the input, ten labels, data, a score and its split, the promotion and its policy.
    assert page.text.count(text) >= 17
    assert "trained by not stated" in page.text
    assert "not this" not in page.text
