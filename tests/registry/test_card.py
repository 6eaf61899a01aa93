from __future__ import annotations

from typing import Any

import pytest
import yaml

from stablernn_registry import ManifestFields, RobustnessReport, model_card
from stablernn_registry.reports import Attack, Certified


def head(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_head_is_yaml(fields: dict[str, Any]) -> None:
    assert head(model_card(ManifestFields.parse({**fields, "cell": "no"}))) == {
        "library_name": "stablernn",
        "pipeline_tag": "time-series-classification",
        "tags": ["time-series", "onnx", "no"],
    }


def test_classifier(fields: dict[str, Any]) -> None:
    card = model_card(ManifestFields.parse(fields), "digits")
    assert "\n# digits\n\nClassifies sequences into 2 classes with a recurrent network of `lipschitz` cells.\n" in card
    assert "\n| labels | no, yes |\n" in card
    assert "\n| test.accuracy | 0.98 |\n| test.roc_auc | null |\n" in card
    assert "\nNone was computed for this version.\n" in card
    assert "\n| config.training.seed | 0 |\n" in card


def test_robustness_where_it_was_measured(fields: dict[str, Any]) -> None:
    manifest_fields = ManifestFields.parse(fields)
    none = "Not measured before this version was published. `stablernn eval digits --robustness` measures it and stores"
    assert none in model_card(manifest_fields, "digits")
    report = RobustnessReport(
        data="a|b",
        split="test",
        sequences=200,
        accuracy=0.975,
        attacks=[Attack(name="pgd", norm="linf", budgets=[0.01, 0.1], accuracy=[0.95, 0.5])],
        certified=Certified(median_radius=0.34, reason=None),
    )
    card = model_card(manifest_fields, "digits", report)
    assert "\n## Robustness\n\nOf 200 sequences of a\\|b, test. Changes are in standard deviations" in card
    assert "\n| accuracy | 0.975 |\n| accuracy under PGD (linf) | 0.95 at 0.01, 0.5 at 0.1 |\n" in card
    assert "\n| median certified radius | 0.34 (l2) |\n" in card


@pytest.mark.parametrize(("skip", "is_mentioned"), [("linear", True), ("none", False)])
def test_the_card_says_what_a_certificate_is_of(fields: dict[str, Any], skip: str, *, is_mentioned: bool) -> None:
    certificate = {
        "kind": "bounded",
        "in_words": ["Little is proved.", "It is *short*."],
        "wrong_sample": {"output": "forecast"},
        "contraction_rate": 1.5,
        "hypotheses": [{"name": "a", "value": 2.0, "holds": False}],
    }
    manifest_fields = {**fields, "certificate": certificate, "lineage": {"config": {"model": {"skip": skip}}}}
    card = model_card(ManifestFields.parse(manifest_fields))
    assert "bounded: no input drives the state out of a ball, whose radius is not stored" in card
    assert "\nLittle is proved. It is \\*short\\*.\n" in card
    assert "wrong_sample" not in card
    assert "\n| condition | value | at most | holds |\n| --- | --- | --- | --- |\n| a | 2 | null | false |\n" in card
    sentence = "\nThe certificate covers the recurrent layers only, not the linear skip.\n"
    assert (sentence in card) == is_mentioned


@pytest.mark.parametrize("label", ["a|b", "x\n# y", "<script>", "`", "[l](u)", "*"])
def test_names_from_files_cannot_break_the_card(fields: dict[str, Any], label: str) -> None:
    plain = model_card(ManifestFields.parse({**fields, "labels": ["safe", "b"]})).splitlines()
    odd = model_card(ManifestFields.parse({**fields, "labels": [label, "b"]})).splitlines()
    assert len(odd) == len(plain)
    assert [i for i, (a, b) in enumerate(zip(plain, odd, strict=True)) if a != b] == [
        i for i, line in enumerate(plain) if line.startswith("| labels |")
    ]
    row = next(line for line in odd if line.startswith("| labels |"))
    assert row.replace("\\|", "").count("|") == 3
    assert "<script" not in row.replace("\\<", "")
