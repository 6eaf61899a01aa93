"""`certify`: the certificate of a run and of the version made of it, and what --require does."""

from __future__ import annotations

from typing import Any

import pytest

from cli_helpers import ALIKE, Workplace, republish, republish_certificate
from stablernn_registry import Registry
from stablernn_registry.certificates import format_upper


@pytest.fixture(scope="module")
def trained_cells(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("certify"))
    for cell in ("lru", "rnn", "lstm"):
        place.ok(f"-q train --cell {cell} {ALIKE} --run-dir {cell}")
    return place


def test_a_run_and_its_version_have_one_certificate(trained_cells: Workplace) -> None:
    exported = trained_cells.document("export lru --name sure")["certificate"]
    for target, name in (("lru", "lru"), ("sure", "sure:1")):
        found = trained_cells.document(f"certify {target}")
        assert found.pop("target") == name
        # The norms themselves stand in the version's certificate.json.
        assert found.pop("metrics") == [{"norm": "l2", "states": exported["states"]}]
        assert found == exported
    assert (exported["kind"], exported["holds"], exported["norm"]) == ("contracting", True, "l2")
    assert 0 < exported["contraction_rate"] < 1


def test_what_is_required_and_not_proved_is_refused(trained_cells: Workplace) -> None:
    text = trained_cells.ok("certify lru --require contracting").out
    assert text.startswith("model")
    assert " after 1 step, " in " ".join(text.split())
    kind = trained_cells.document("certify rnn")["kind"]
    assert kind == "bounded"
    assert trained_cells("certify rnn --require bounded").code == 0
    assert trained_cells.refusal("certify rnn --require non-expansive", code=3) == (
        "'non-expansive' is required of rnn, but only 'bounded' is proved. Train with training.certified=true "
        "(--certified), which keeps 'rnn' contracting. docs/background/stability.md lists the cells."
    )


def test_a_certificate_for_inputs_within_a_range(trained_cells: Workplace) -> None:
    assert trained_cells.document("certify lstm")["kind"] == "none"
    found = trained_cells.document("certify lstm --inputs-within -1:17")
    assert (found["kind"], found["inputs"]) == ("bounded", {"lower": [-1.0], "upper": [17.0]})
    text = trained_cells.ok("certify lstm --inputs-within -1:17 --require bounded").out
    assert "only those with every feature within -1 to 17, in the units of the data" in text


def test_a_version_has_a_second_certificate_for_the_range_of_training(trained_cells: Workplace) -> None:
    trained_cells.ok("-q export lstm --name digits")
    bounded = trained_cells.document("certify digits:1")["bounded_inputs"]
    # Pixels are from 0 to 16.
    assert (bounded["kind"], bounded["inputs"]) == ("bounded", {"lower": [-4.0], "upper": [20.0]})
    radius = format_upper(max(ball["radius"] for ball in bounded["state_balls"]), 4)
    for command in (("certify", "digits:1"), ("certify", "lstm"), ("registry", "show", "digits:1")):
        text = " ".join(trained_cells.ok(*command).out.split())
        assert f"bounded inputs bounded: no input drives a state out of its ball, of radius {radius} (linf) at" in text
        assert "with every feature within -4 to 20" in text
    card = trained_cells.document("registry show digits:1")["files"]["README.md"]["path"]
    assert "For inputs of a bounded size, in the units of the data: bounded" in trained_cells.path(card).read_text()
    verified = trained_cells.ok("registry verify digits:1 --recompute")
    assert "everything is as it was published" in verified.out


@pytest.mark.slow
def test_a_certificate_of_schema_1_is_shown_as_one_and_recomputed(trained_cells: Workplace) -> None:
    trained_cells.ok("-q export lstm --name digits")
    stored = Registry(trained_cells.registry).get("digits:1").manifest.certificate or {}
    older = {key: value for key, value in stored.items() if key not in ("inputs", "bounded_inputs")}
    version = republish_certificate(trained_cells, "digits:1", {**older, "schema": 1})
    shown = " ".join(trained_cells.ok(f"registry show {version.ref}").out.split())
    assert "bounded inputs none was computed, the certificate is of schema 1" in shown
    verified = trained_cells.ok(f"registry verify {version.ref} --recompute")
    assert "everything is as it was published" in verified.out
    # From the weights, without a range that is not stored.
    assert trained_cells.document(f"certify {version.ref}")["bounded_inputs"] is None


@pytest.mark.slow
def test_a_policy_for_inputs_within_a_range(trained_cells: Workplace) -> None:
    trained_cells.ok("-q export lstm --name digits")
    # Two steps of training are no better than the trivial answer, which an alias refuses as well.
    version = republish(trained_cells, "digits:1", metrics={"test": {"accuracy": 0.9}}).version

    def move(*rule: object) -> Any:
        trained_cells.ok("-q registry policy set", *rule, "--why", "w")
        return trained_cells(f"registry alias digits@production {version}")

    assert move("--require", "bounded").code == 3
    assert move("--require", "bounded", "--inputs-within", "-4:20").code == 0
    assert move("--inputs-within", "0:16").code == 0
    assert "every feature within 0 to 16" in trained_cells.ok("registry policy show").out
    larger = move("--inputs-within", "0:30")
    assert larger.code == 3
    assert (
        "is for inputs with every feature within -4 to 20, 'bounded' is required with every feature within 0 to 30"
        in (larger.sentence)
    )
    smaller = move("--require", "contracting", "--inputs-within", "0:16")
    assert smaller.code == 3
    assert "for the smaller range that is required, with every feature within 0 to 16, no certificate is stored" in (
        smaller.sentence
    )
    other = move("--inputs-within", "0:16,0:16")
    assert "the rule has ranges of 2 features, the version has 1" in other.sentence
    trained_cells.ok("-q registry policy set --clear inputs-within --clear kind --why w")
    assert "inputs_within needs the kind that is required for these inputs" in trained_cells.refusal(
        "registry policy set --inputs-within 3 --why w"
    )


@pytest.mark.parametrize(
    ("within", "sentence"),
    [
        ("0", "Inputs stay within a finite number greater than 0"),
        ("-3", "Inputs stay within a finite number greater than 0"),
        ("inf", "Inputs stay within a finite number greater than 0"),
        ("1:0", "A range of inputs goes from one finite number to a larger one"),
        ("x", "separated by commas, got 'x'"),
        ("1,2", "The model reads 1 feature, got ranges of inputs for 2"),
        ("1", "Give a range for each feature in units of the data"),
    ],
)
def test_a_range_of_inputs_that_is_none(within: str, sentence: str, trained_cells: Workplace) -> None:
    assert sentence in trained_cells.refusal("certify lstm --inputs-within", within)
