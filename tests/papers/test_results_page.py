"""The page of results shows what is stored, beside what is published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reproductions import STORED, results_page
from result_documents import results_of
from stablernn.errors import CheckpointError
from stablernn_papers.results import (
    data_states,
    describe_state,
    read_results,
    state_of,
    write_results,
)
from stablernn_papers.tables import TABLES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / STORED / "robustness", tmp_path / "robustness")
    return tmp_path


def test_figures_stand_beside_the_published_ones_with_their_difference(stored: Path) -> None:
    page = results_page(stored)
    # 37.63 of 256 images, 93.0 in the paper.
    assert "|  | PGD | 93.0 | 37.6 (35.9 to 39.5; 3 seeds) | -55.4 |" in page
    assert "| `lipschitz` | clean | - | 96.0 (95.8 to 96.2; 3 seeds) | - | - | 9,418 | 10 of 10 epochs |" in page


def test_an_edited_result_is_on_no_page(stored: Path) -> None:
    path = stored / "robustness" / "results.json"
    path.write_text(path.read_text().replace("0.96", "0.99", 1))
    with pytest.raises(CheckpointError, match="was edited after it was written"):
        results_page(stored)


def test_a_scaled_down_result_is_on_no_page(stored: Path) -> None:
    path = stored / "robustness" / "results.json"
    results = json.loads(path.read_text())
    results["protocol"]["name"] = "short"
    write_results(path, results)
    with pytest.raises(CheckpointError, match="is not a result of the full protocol of 'robustness'"):
        results_page(stored)


def test_a_part_is_named_as_one(stored: Path) -> None:
    path = stored / "robustness" / "results.json"
    results = read_results(path)
    assert results is not None
    results["runs"] = [run for run in results["runs"] if run["seed"] == 0]
    for run in results["runs"]:
        run["length"] = {"unit": "epochs", "done": 2, "published": 10, "share": 0.2}
    write_results(path, results)
    page = results_page(stored)
    assert "| table 3 | partial | 6 of 18 | 6 of 6 | 1 of 1 | 1 of 3 | 20 % or more |" in page


ROWS = ("lipschitz-64", "lipschitz_rk2-64", "lipschitz-128", "lipschitz_rk2-128")


def sensitivity(*parts: tuple[str, int, float]) -> dict[str, object]:
    """The states of init-sensitivity with a number of seeds and a share of the training on data sets."""
    runs = [
        run
        for data, seeds, share in parts
        for run in results_of("init-sensitivity", {(row, data): [{}] * seeds for row in ROWS}, share)["runs"]
    ]
    results = {**results_of("init-sensitivity", {}), "runs": runs}
    table = TABLES["init-sensitivity"]
    return {"state": describe_state(table, results), "data": data_states(table, results)}


def test_an_optional_data_set_that_is_done_is_full_and_the_published_ones_are_not() -> None:
    assert sensitivity(("digits", 10, 1.0)) == {
        "state": "full on digits; not run on mnist, pmnist",
        "data": {"mnist": "not run", "pmnist": "not run", "digits": "full"},
    }
    assert sensitivity(("digits", 10, 1.0), ("mnist", 3, 0.1)) == {
        "state": "full on digits; partial on mnist; not run on pmnist",
        "data": {"mnist": "partial", "pmnist": "not run", "digits": "full"},
    }
    assert sensitivity(("digits", 9, 1.0))["data"] == {
        "mnist": "not run",
        "pmnist": "not run",
        "digits": "partial",
    }
    whole = (("mnist", 10, 1.0), ("pmnist", 10, 1.0))
    assert sensitivity(*whole)["state"] == "full"
    # A stand-in that was cut does not make the published table partial.
    assert sensitivity(*whole, ("digits", 10, 0.5))["state"] == "full on mnist, pmnist; partial on digits"


def test_a_run_with_a_part_of_its_data_makes_a_table_partial() -> None:
    results = results_of("init-sensitivity", {(row, data): [{}] * 10 for row in ROWS for data in ("mnist", "pmnist")})
    assert state_of(TABLES["init-sensitivity"], results) == "full"
    results["runs"][0]["partial_data"] = ["half"]
    assert state_of(TABLES["init-sensitivity"], results) == "partial"
