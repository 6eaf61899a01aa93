"""`certify`: the certificate of a run and of the version made of it, and what --require does."""

from __future__ import annotations

from typing import get_args

import pytest

from cli_helpers import ALIKE, NO_PLOTS, Workplace
from stablernn import list_cells
from stablernn.certificates import certificate
from stablernn_cli import options
from stablernn_registry.documents import certificates


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
    assert trained_cells.ok("certify", "lru", "--require", "contracting").out.startswith("model")
    kind = trained_cells.ok("certify", "rnn", "--json").json["kind"]
    assert kind == "bounded"
    assert trained_cells("certify", "rnn", "--require", "bounded").code == 0
    refused = trained_cells("certify", "rnn", "--require", "non-expansive")
    assert refused.code == 3
    assert refused.sentence == (
        "'non-expansive' is required of rnn, but only 'bounded' is proved. `stablernn train --certified` keeps "
        "the layers provably contracting; docs/stability.md lists the cells."
    )


def test_a_certificate_for_inputs_within_a_range(trained_cells: Workplace) -> None:
    assert trained_cells.ok("certify", "lstm", "--json").json["kind"] == "none"
    found = trained_cells.ok("certify", "lstm", "--inputs-within", "-1:17", "--json").json
    assert (found["kind"], found["inputs"]) == ("bounded", {"lower": [-1.0], "upper": [17.0]})
    text = trained_cells.ok("certify", "lstm", "--inputs-within", "-1:17", "--require", "bounded").out
    assert "only those with every feature within -1 to 17, in the units of the data" in text


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
    trained_cells.ok("-q", "train", *NO_PLOTS, "--data", "digits", "--cell", cell, "--max-steps", 1, "--run-dir", name)
    found = trained_cells.ok("certify", name, "--json").json
    assert found["kind"] in ("contracting", "non-expansive", "bounded", "none")
    assert found["holds"] is (found["kind"] != "none")
