"""Making a table again: of small images, by the real training, attacks and files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproduce_helpers import EPOCHS, little_images, little_table, two_rows
from stablernn.data import ClassificationData, load_data
from stablernn.errors import ConfigError
from stablernn.nn.models import Classifier
from stablernn.robustness.attacks import PerturbedClassifier, differentiable_copy
from stablernn.training import load_run
from stablernn_papers.command import states
from stablernn_papers.folder import default_folder
from stablernn_papers.kinds.robustness import in_raw_units
from stablernn_papers.reproduction import reproduce
from stablernn_papers.table import FULL, SHORT, ProtocolName, Table
from stablernn_papers.tables import TABLES


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """The little table of two cells, with its images."""
    with pytest.MonkeyPatch.context() as patch:
        little_images(patch, tmp_path_factory.mktemp("images"))
        yield little_table(patch, rows=two_rows(little_table(patch)))


@dataclass(frozen=True)
class Made:
    folder: Path
    results: dict[str, Any]
    told: list[str]


def make(root: Path, protocol: ProtocolName) -> Made:
    told: list[str] = []
    folder = default_folder(root / "reproductions", TABLES["robustness"], protocol)
    return Made(folder, reproduce("robustness", protocol, folder, report=told.append), told)


@pytest.fixture(scope="module")
def full(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All of the little table; not to be changed."""
    return make(tmp_path_factory.mktemp("full"), FULL)


@pytest.fixture(scope="module")
def short(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Its short protocol; not to be changed."""
    return make(tmp_path_factory.mktemp("short"), SHORT)


def copied(made: Made, root: Path) -> Path:
    """A reproduction to change, where the command looks for it."""
    place = root / "reproductions" / made.folder.name
    shutil.copytree(made.folder, place)
    return place


def weights(run: Path, epoch: int) -> dict[str, torch.Tensor]:
    return dict(load_run(run, epoch).model.state_dict())


@pytest.mark.slow
def test_the_results_hold_every_run_and_both_views(full: Made) -> None:
    results, folder = full.results, full.folder
    assert full.told[:4] == [
        "trained 1 of 4: lipschitz, seed 0",
        "trained 2 of 4: lstm, seed 0",
        "trained 3 of 4: lipschitz, seed 1",
        "trained 4 of 4: lstm, seed 1",
    ]
    assert full.told[-1].startswith(f"measured {len(full.told) - 4} of {len(full.told) - 4}: lstm, seed 1, epoch ")
    assert json.loads((folder / "results.json").read_text()) | {"output": str(folder)} == results
    assert (results["state"], results["missing"]) == ("full", [])
    expected = [("lipschitz", 0), ("lipschitz", 1), ("lstm", 0), ("lstm", 1)]
    assert [(run["cell"], run["seed"]) for run in results["runs"]] == expected
    for run in results["runs"]:
        assert (folder / run["run"] / "summary.json").is_file()
        assert len(run["validation_accuracies"]) == EPOCHS
        assert {one["epoch"] for one in run["measured"]} == {*run["views"].values()}
    assert results["environment"]["packages"]["torch"] == torch.__version__
    assert results["protocol"]["attacks"]["linf_budgets"] == [0.02, 0.05]
    assert (folder / "robustness.png").stat().st_size > 10_000
    page = (folder / "table.md").read_text()
    assert page.count("| `lipschitz` | here |") == 2
    assert "SHORT" not in page


def test_the_whole_view_takes_the_weights_that_the_run_kept_as_its_best(short: Made) -> None:
    for row in short.results["views"]["whole"]:
        accuracies = []
        for run in (run for run in short.results["runs"] if run["cell"] == row["cell"]):
            best = load_run(short.folder / run["run"])
            assert best.summary is not None
            assert run["views"]["whole"] == best.summary["best_epoch"]
            for name, value in weights(short.folder / run["run"], best.summary["best_epoch"]).items():
                assert torch.equal(value, best.model.state_dict()[name])
            accuracies.append(best.summary["metrics"]["test"]["accuracy"])
        found = row["figures"]["accuracy"]
        assert found["values"] == accuracies
        assert (found["min"], found["max"]) == (min(accuracies), max(accuracies))
        assert found["mean"] == pytest.approx(np.mean(accuracies))


def test_the_matched_view_takes_the_first_epoch_at_what_all_runs_reach(short: Made) -> None:
    results = short.results
    accuracies = [run["validation_accuracies"] for run in results["runs"]]
    target = min(max(run) for run in accuracies)
    assert results["match"] == {"validation_accuracy": target, "given": False}
    first = [next(number for number, value in enumerate(run, 1) if value >= target) for run in accuracies]
    assert [run["views"]["matched"] for run in results["runs"]] == first
    for row in results["views"]["matched"]:
        assert row["seeds_left_out"] == []
        assert len(row["figures"]["pgd"]["values"]) == 1


@pytest.mark.slow
def test_the_figures_are_those_of_the_reports_at_the_budgets_of_the_table(full: Made) -> None:
    for run in full.results["runs"]:
        for found in run["measured"]:
            report, hessian, figures = found["robustness"], found["hessian"], found["figures"]
            attacks = {(one["name"], one["norm"]): one["accuracy"] for one in report["attacks"]}
            assert figures["pgd"] == attacks["pgd", "linf"][0]
            assert figures["deepfool_linf"] == attacks["deepfool", "linf"][0]
            assert figures["deepfool_l2"] == attacks["deepfool", "l2"][0]
            assert (report["sequences"], report["hessian"]) == (6, None)
            assert (hessian["sequences"], hessian["trace_draws"]) == (4, 3)
            assert figures["hessian_largest"] == hessian["largest"]
            assert figures["hessian_trace"] == hessian["trace"]
            assert figures["hessian_condition"] == pytest.approx(figures["hessian_largest"] / abs(hessian["smallest"]))
            assert figures["median_radius"] == report["certified"]["median_radius"]
    radii = {run["cell"]: run["measured"][0]["figures"]["median_radius"] for run in full.results["runs"]}
    assert radii["lstm"] is None
    (row,) = (row for row in full.results["views"]["whole"] if row["cell"] == "lstm")
    assert (row["figures"]["median_radius"], row["kinds"]) == (None, ["none"])


@pytest.mark.slow
def test_a_target_that_nobody_reaches_leaves_a_row_without_figures(short: Made, tmp_path: Path) -> None:
    results = reproduce("robustness", SHORT, copied(short, tmp_path), match_accuracy=1.0)
    assert results["match"] == {"validation_accuracy": 1.0, "given": True}
    for row in results["views"]["matched"]:
        assert (row["figures"], row["epochs"], row["seeds_left_out"]) == ({}, [], [0])
    page = Path(results["output"], "table.md").read_text()
    assert "Never at a validation accuracy of 1.0000: lipschitz, seed 0; lstm, seed 0." in page


def test_what_is_done_is_not_done_again(short: Made, tmp_path: Path) -> None:
    place = copied(short, tmp_path)
    files = [*place.rglob("epoch-*.*"), *place.rglob("summary.json"), *place.rglob("measured/*")]
    written = {path: path.stat().st_mtime_ns for path in files}
    assert len(written) >= 2 * (2 * EPOCHS + 1 + 1)
    told: list[str] = []
    again = reproduce("robustness", SHORT, place, report=told.append)
    assert told == []
    assert {path: path.stat().st_mtime_ns for path in files} == written
    assert (again["runs"], again["views"]) == (short.results["runs"], short.results["views"])


@pytest.mark.slow
def test_what_is_missing_is_done_and_joins_the_rest(full: Made, tmp_path: Path) -> None:
    place = copied(full, tmp_path)
    shutil.move(place / "runs" / "lstm-0", place / "runs" / "lstm-7")
    config = place / "runs" / "lstm-7" / "config.yaml"
    text = config.read_text()
    with pytest.raises(ConfigError, match=r"runs/lstm-7' is not the one of this table\. .*'training\.seed' was 0 "):
        reproduce("robustness", FULL, place, rows=["lipschitz"])
    config.write_text("seed: 7\n".join(text.rsplit("seed: 0\n", 1)))
    shutil.rmtree(place / "runs" / "lstm-1")
    part = reproduce("robustness", FULL, place, rows=["lipschitz"])
    known = [(run["cell"], run["seed"]) for run in part["runs"]]
    assert known == [("lipschitz", 0), ("lipschitz", 1), ("lstm", 7)]
    assert (part["state"], part["missing"]) == ("partial", ["lstm, seed 0", "lstm, seed 1"])
    page = (place / "table.md").read_text()
    assert "PARTIAL: not all of the protocol is done; missing: lstm, seed 0; lstm, seed 1." in page


@pytest.mark.slow
def test_the_states_of_a_table(full: Made, short: Made, tmp_path: Path) -> None:
    def state() -> tuple[str, dict[str, int]]:
        (found,) = (row for row in states(tmp_path / "reproductions") if row["table"] == "robustness")
        assert found["rows"] == 2
        assert "Lipschitz Recurrent Neural Networks" in found["paper"]
        return found["state"], found["finished_runs"]

    assert state() == ("not run", {"full": 0, "short": 0})
    copied(short, tmp_path)
    assert state() == ("short", {"full": 0, "short": 2})
    place = copied(full, tmp_path)
    assert state() == ("full", {"full": 4, "short": 2})
    shutil.rmtree(place / "runs" / "lstm-1")
    reproduce("robustness", FULL, place, seeds=[0])
    assert state() == ("partial", {"full": 3, "short": 2})


def test_two_protocols_do_not_mix_in_one_folder(short: Made) -> None:
    with pytest.raises(
        ConfigError, match=r"contains the short reproduction of 'robustness', .*differs in name\. .*--output"
    ):
        reproduce("robustness", FULL, short.folder)


def test_a_changed_protocol_is_not_that_of_the_folder(
    table: Table, short: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.short.attacks is not None
    changed = replace(table.short, attacks=replace(table.short.attacks, steps=3))
    little_table(monkeypatch, rows=two_rows(table), short=changed)
    with pytest.raises(ConfigError, match=r"and the requested one differs in attacks\. Name another folder"):
        reproduce("robustness", SHORT, short.folder)


def rows_of_mnist() -> ClassificationData:
    data = load_data("mnist-rows")
    assert isinstance(data, ClassificationData)
    return data


@pytest.mark.parametrize("cell", ["antisymmetric", "lstm"])
def test_in_raw_units_a_network_is_the_same_function_and_a_change_is_one_of_a_pixel(table: Table, cell: str) -> None:
    data = rows_of_mnist()
    model = Classifier(cell, 8, 10, 16)
    model.fit_scaling(data.training_values())
    assert float(model.scaling.scale.max()) < 0.9
    samples = data.train.gather(np.arange(5))
    x, lengths = torch.from_numpy(samples.x), torch.from_numpy(samples.lengths)
    same = in_raw_units(model)
    with torch.no_grad():
        torch.testing.assert_close(same(x, lengths), model(x, lengths), rtol=1e-4, atol=1e-5)
        with differentiable_copy(same) as copied:
            moved = PerturbedClassifier(copied, x, lengths)(torch.full_like(x, 0.05))
        torch.testing.assert_close(moved, model(x + 0.05, lengths), rtol=1e-4, atol=1e-5)
    assert not torch.equal(model.scaling.scale, same.scaling.scale)
