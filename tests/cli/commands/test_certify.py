"""`certify`: the certificate of a run and of the version made of it, and what --require does."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from cli_helpers import ALIKE, NO_PLOTS, Workplace, republish, republish_certificate
from stablernn import list_cells
from stablernn.certificates import certificate
from stablernn_cli import options
from stablernn_registry import Registry, certificates
from stablernn_registry.certificates import format_upper


@pytest.fixture(scope="module")
def trained_cells(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("certify"))
    for cell in ("lru", "rnn", "lstm"):
        place.ok("-q", "train", "--cell", cell, *ALIKE, "--run-dir", cell)
    return place


def test_a_run_and_its_version_have_one_certificate(trained_cells: Workplace) -> None:
    exported = trained_cells.ok("export", "lru", "--name", "sure", "--json").json["certificate"]
    for target, name in (("lru", "lru"), ("sure", "sure:1")):
        found = trained_cells.ok("certify", target, "--json").json
        assert found.pop("target") == name
        # The norms themselves stand in the version's certificate.json.
        assert found.pop("metrics") == [{"norm": "l2", "states": exported["states"]}]
        assert found == exported
    assert (exported["kind"], exported["holds"], exported["norm"]) == ("contracting", True, "l2")
    assert 0 < exported["contraction_rate"] < 1


def test_what_is_required_and_not_proved_is_refused(trained_cells: Workplace) -> None:
    text = trained_cells.ok("certify", "lru", "--require", "contracting").out
    assert text.startswith("model")
    assert " after 1 step, " in " ".join(text.split())
    kind = trained_cells.ok("certify", "rnn", "--json").json["kind"]
    assert kind == "bounded"
    assert trained_cells("certify", "rnn", "--require", "bounded").code == 0
    refused = trained_cells("certify", "rnn", "--require", "non-expansive")
    assert refused.code == 3
    assert refused.sentence == (
        "'non-expansive' is required of rnn, but only 'bounded' is proved. Train with training.certified=true "
        "(--certified), which keeps 'rnn' contracting. docs/stability.md lists the cells."
    )


def test_what_is_proved_for_bounded_inputs_alone_is_said_where_it_is_required(trained_cells: Workplace) -> None:
    refused = trained_cells("certify", "lstm", "--require", "bounded")
    assert refused.code == 3
    assert refused.sentence.startswith(
        "'bounded' is required of lstm, but only 'none' is proved. It is proved for the "
    )
    assert trained_cells.ok("certify", "lstm", "--inputs-within", "-1:17", "--require", "bounded").code == 0


def test_a_certificate_for_inputs_within_a_range(trained_cells: Workplace) -> None:
    assert trained_cells.ok("certify", "lstm", "--json").json["kind"] == "none"
    found = trained_cells.ok("certify", "lstm", "--inputs-within", "-1:17", "--json").json
    assert (found["kind"], found["inputs"]) == ("bounded", {"lower": [-1.0], "upper": [17.0]})
    text = trained_cells.ok("certify", "lstm", "--inputs-within", "-1:17", "--require", "bounded").out
    assert "only those with every feature within -1 to 17, in the units of the data" in text


def test_a_version_has_a_second_certificate_for_the_range_of_training(trained_cells: Workplace) -> None:
    trained_cells.ok("-q", "export", "lstm", "--name", "digits")
    bounded = trained_cells.ok("certify", "digits:1", "--json").json["bounded_inputs"]
    # Pixels are from 0 to 16.
    assert (bounded["kind"], bounded["inputs"]) == ("bounded", {"lower": [-4.0], "upper": [20.0]})
    radius = format_upper(max(ball["radius"] for ball in bounded["state_balls"]), 4)
    for command in (("certify", "digits:1"), ("certify", "lstm"), ("registry", "show", "digits:1")):
        text = " ".join(trained_cells.ok(*command).out.split())
        assert f"bounded inputs bounded: no input drives a state out of its ball, of radius {radius} (linf) at" in text
        assert "with every feature within -4 to 20" in text
    card = trained_cells.ok("registry", "show", "digits:1", "--json").json["files"]["README.md"]["path"]
    assert "For inputs of a bounded size, in the units of the data: bounded" in trained_cells.path(card).read_text()
    verified = trained_cells.ok("registry", "verify", "digits:1", "--recompute")
    assert "everything is as it was published" in verified.out


def test_every_command_prints_the_radius_with_the_kind_bounded(trained_cells: Workplace) -> None:
    stored = trained_cells.ok("certify", "rnn", "--json").json
    assert stored["kind"] == "bounded"
    radius = format_upper(stored["state_balls"][0]["radius"], 4)
    sentence = f"bounded: no input drives the state out of a ball of radius {radius} (linf)"
    exported = trained_cells.ok("export", "rnn", "--name", "plain")
    shown = [trained_cells.ok(*command) for command in (("certify", "rnn"), ("registry", "show", "plain"))]
    for result in (exported, *shown):
        assert sentence in " ".join(result.out.split())
    assert f"bounded within {radius}" in trained_cells.ok("runs", "show", "rnn").out
    # Of an LSTM, in the certificate for inputs within the range of training alone.
    balls = trained_cells.ok("certify", "lstm", "--json").json["bounded_inputs"]["state_balls"]
    largest = format_upper(max(ball["radius"] for ball in balls), 4)
    text = " ".join(trained_cells.ok("runs", "show", "lstm").out.split())
    assert f"none; bounded within {largest} for bounded inputs" in text


def test_a_changed_second_certificate_is_found(trained_cells: Workplace) -> None:
    trained_cells.ok("-q", "export", "lstm", "--name", "digits")
    stored = Registry(trained_cells.registry).get("digits:1").manifest.certificate or {}
    for change in ({"kind": "contracting"}, {"inputs": {"lower": [-400.0], "upper": [20.0]}}):
        wrong = {**stored, "bounded_inputs": {**stored["bounded_inputs"], **change}}
        version = republish_certificate(trained_cells, "digits:1", wrong)
        refused = trained_cells("registry", "verify", version.ref, "--recompute")
        assert refused.code != 0
        assert "certificate recomputed: bounded_inputs." in refused.out


def test_a_certificate_of_schema_1_is_shown_as_one_and_recomputed(trained_cells: Workplace) -> None:
    trained_cells.ok("-q", "export", "lstm", "--name", "digits")
    stored = Registry(trained_cells.registry).get("digits:1").manifest.certificate or {}
    older = {key: value for key, value in stored.items() if key not in ("inputs", "bounded_inputs")}
    version = republish_certificate(trained_cells, "digits:1", {**older, "schema": 1})
    shown = " ".join(trained_cells.ok("registry", "show", version.ref).out.split())
    assert "bounded inputs none was computed, the certificate is of schema 1" in shown
    verified = trained_cells.ok("registry", "verify", version.ref, "--recompute")
    assert "everything is as it was published" in verified.out
    # From the weights, without a range that is not stored.
    assert trained_cells.ok("certify", version.ref, "--json").json["bounded_inputs"] is None


def test_a_policy_for_inputs_within_a_range(trained_cells: Workplace) -> None:
    trained_cells.ok("-q", "export", "lstm", "--name", "digits")
    # Two steps of training are no better than the trivial answer, which an alias refuses as well.
    version = republish(trained_cells, "digits:1", metrics={"test": {"accuracy": 0.9}}).version

    def move(*rule: object) -> Any:
        trained_cells.ok("-q", "registry", "policy", "set", *rule, "--why", "w")
        return trained_cells("registry", "alias", "digits@production", version)

    assert move("--require", "bounded").code == 3
    assert move("--require", "bounded", "--inputs-within", "-4:20").code == 0
    assert move("--inputs-within", "0:16").code == 0
    assert "every feature within 0 to 16" in trained_cells.ok("registry", "policy", "show").out
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
    trained_cells.ok("-q", "registry", "policy", "set", "--clear", "inputs-within", "--clear", "kind", "--why", "w")
    refused = trained_cells("registry", "policy", "set", "--inputs-within", "3", "--why", "w")
    assert refused.code == 2
    assert "inputs_within needs the kind that is required for these inputs" in refused.sentence


@pytest.mark.parametrize(
    ("within", "sentence"),
    [
        ("0", "Inputs stay within a finite number greater than 0"),
        ("-3", "Inputs stay within a finite number greater than 0"),
        ("inf", "Inputs stay within a finite number greater than 0"),
        ("1:0", "A range of inputs goes from one finite number to a larger one"),
        ("x", "separated by commas, got 'x'"),
        ("1,2", "The model reads 1 feature, got ranges of inputs for 2"),
        ("1", "Give the range in the units of the data, not of scaled values"),
    ],
)
def test_a_range_of_inputs_that_is_none(within: str, sentence: str, trained_cells: Workplace) -> None:
    refused = trained_cells("certify", "lstm", "--inputs-within", within)
    assert refused.code == 2
    assert sentence in refused.sentence


def test_the_kinds_are_those_of_registry_and_library() -> None:
    assert get_args(options.Kind) == certificates.KINDS == certificate.KINDS


def test_an_unknown_kind_is_a_usage_error(trained_cells: Workplace) -> None:
    assert trained_cells("certify", "rnn", "--require", "stable").code == 2


@pytest.mark.slow
@pytest.mark.parametrize("cell", list_cells())
def test_every_cell_of_the_catalog(cell: str, trained_cells: Workplace) -> None:
    name = f"whole-{cell}"
    trained_cells.ok(
        "-q", "train", *NO_PLOTS, "--data", "digits", "--cell", cell, "--max-steps", 1, "--free", "--run-dir", name
    )
    found = trained_cells.ok("certify", name, "--json").json
    assert found["kind"] in ("contracting", "non-expansive", "bounded", "none")
    assert found["holds"] is (found["kind"] != "none")
