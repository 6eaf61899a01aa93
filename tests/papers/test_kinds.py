"""Tables of scores, of spectra and without training, made by the real training and measurements."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from named_helpers import at_home, batches, lay, published
from reproduce_helpers import on_digits
from stablernn.engines import list_engines
from stablernn.errors import CheckpointError, ConfigError, DataError, InterruptedRun, UnknownNameError
from stablernn.training import Progress, load_config, train
from stablernn_papers.folder import Run
from stablernn_papers.kinds.dynamics import pendulum, system_matrix
from stablernn_papers.kinds.trained import Length, TrainingRuns
from stablernn_papers.plots import sweep_points
from stablernn_papers.reproduction import reproduce
from stablernn_papers.results import content_hash, read_results, state_of, write_results
from stablernn_papers.table import FULL, SHORT, DataSet, Protocol, Table, merge, ours
from stablernn_papers.tables import TABLES
from stablernn_papers.tables.images import NOISE_PADDED


@pytest.fixture
def pixels(monkeypatch: pytest.MonkeyPatch) -> Table:
    return on_digits(monkeypatch, "mnist-pixel", ("lipschitz-64", "antisymmetric"))


def figures(results: dict[str, Any]) -> list[Any]:
    return [row["figures"] for row in results["views"]["best"]]


@pytest.mark.slow
def test_a_cut_training_is_partial_and_goes_on_to_the_numbers_of_the_whole(pixels: Table, tmp_path: Path) -> None:
    rows = ["lipschitz-64"]
    part = reproduce("mnist-pixel", FULL, tmp_path / "a", rows=rows, seeds=[0], length=Length(epochs=1))
    assert part["state"] == "partial"
    (row,) = part["views"]["best"]
    assert row["length"] == {"unit": "epochs", "done": 1, "published": 2, "share": 0.5}
    assert part["progress"]["epochs"] == 0.5
    assert "some runs did 50 % of the published training" in (tmp_path / "a" / "table.md").read_text()
    grown = reproduce("mnist-pixel", FULL, tmp_path / "a", rows=rows, seeds=[0])
    whole = reproduce("mnist-pixel", FULL, tmp_path / "b", rows=rows, seeds=[0])
    assert figures(grown) == figures(whole)
    assert grown["runs"][0]["length"]["share"] == 1.0
    assert figures(grown) != figures(part)


def test_partial_data_is_asked_of_data_sets_of_several_files_alone(pixels: Table, tmp_path: Path) -> None:
    spectra = TABLES["spectra"]
    runs = TrainingRuns(spectra, FULL, Length(), partial_data=True)
    trees = {
        data.key: runs.tree(Run(spectra.rows_on(data)[0], data, 0, tmp_path, ""), 64)["data"] for data in spectra.data
    }
    assert {key: tree.get("partial", False) for key, tree in trees.items()} == {
        "mnist": False,
        "cifar10-noise-padded": True,
    }


def test_a_cut_in_steps_is_taken_in_the_middle_of_an_epoch(pixels: Table, tmp_path: Path) -> None:
    made = reproduce("mnist-pixel", FULL, tmp_path, rows=["lipschitz-64"], seeds=[0], length=Length(steps=3))
    (run,) = made["runs"]
    # 1,077 sequences in batches of 256 are 5 steps.
    assert (run["steps"], run["length"]["done"], run["length"]["published"]) == (3, 0.6, 2)


@pytest.mark.slow
def test_results_of_another_table_do_not_count(pixels: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = reproduce("mnist-pixel", FULL, tmp_path)
    other = replace(pixels.rows[0], settings=merge(pixels.rows[0].settings, ours({"training.lr": 0.5})))
    changed = replace(pixels, rows=(other, pixels.rows[1]))
    assert state_of(changed, results) == "partial"
    assert state_of(pixels, results) == "full"
    monkeypatch.setitem(TABLES, "mnist-pixel", changed)
    with pytest.raises(ConfigError, match=r"is not the one of this table\. .*'training\.lr' was 0\.003 when"):
        reproduce("mnist-pixel", FULL, tmp_path)


@pytest.mark.slow
def test_a_run_with_a_part_of_its_data_makes_a_table_partial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = batches()
    published(monkeypatch, "cifar10-noise-padded", files)
    files.pop("data_batch_3.bin")
    lay(at_home(monkeypatch, tmp_path) / "cifar-10", files)
    row = replace(TABLES["cifar10"].row("antisymmetric"), hidden_size=4, data_settings={})
    settings = ours({"training.max_steps": 2, "training.batch_size": 16, "training.plots": False})
    table = replace(
        TABLES["cifar10"], rows=(row,), data=(NOISE_PADDED,), full=Protocol(FULL, seeds=(0,), settings=settings)
    )
    monkeypatch.setitem(TABLES, "cifar10", table)
    results = reproduce("cifar10", FULL, tmp_path / "output", partial_data=True)
    (run,) = results["runs"]
    assert (run["partial_data"], run["length"]["share"]) == (["data_batch_3.bin"], 1.0)
    assert results["state"] == "partial"


def test_an_edited_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    written = write_results(path, {"table": "copy", "views": {"best": [0.5]}})
    assert read_results(path) == written
    # Indentation and the order of keys are no content.
    path.write_text(json.dumps(dict(reversed(written.items()))))
    assert read_results(path) == written
    path.write_text(path.read_text().replace("0.5", "0.9"))
    with pytest.raises(CheckpointError, match=r"results\.json' was edited after it was written: its content does not "):
        read_results(path)
    path.write_text(json.dumps({"table": "copy"}))
    with pytest.raises(CheckpointError, match=r"results\.json' has no 'sha256' of its content"):
        read_results(path)
    assert read_results(tmp_path / "none.json") is None
    assert content_hash({"a": 1}) != content_hash({"a": 1.0})


def test_a_missing_data_set_is_named_with_its_file_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLERNN_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"'timit' .*LDC.* The short protocol \(--short\) takes 'copy' instead, which "):
        reproduce("speech", FULL, tmp_path / "out", rows=["lstm"], data=["timit"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "arguments", "kind", "reason"),
    [
        ("mnist-pixel", {"data": ["mnst"]}, UnknownNameError, "'mnst'.*digits"),
        ("mnist-pixel", {"rows": ["lstn"]}, UnknownNameError, "'lstn'"),
        ("mnist-pixel", {"length": Length(epochs=0)}, ConfigError, "epochs"),
        ("mnist-pixel", {"length": Length(1, 1)}, ConfigError, "epochs and steps"),
        ("mnist-pixel", {"match_accuracy": 0.5}, ConfigError, "match_accuracy"),
        ("mnist-pixel", {"partial_data": True}, ConfigError, "digits"),
        ("robustness", {"match_accuracy": 97.0}, ConfigError, "match_accuracy.*97"),
        ("robustness", {"seeds": []}, ConfigError, "seeds"),
        ("robustness", {"seeds": [1, 1]}, ConfigError, "seeds.*1, 1"),
        ("robustness", {"seeds": [-1]}, ConfigError, "seeds.*-1"),
        ("robustness", {"jobs": 0}, ConfigError, "jobs"),
        ("dynamics", {"length": Length(epochs=1)}, ConfigError, "'dynamics' trains nothing"),
    ],
)
def test_arguments_that_are_refused(
    pixels: Table, tmp_path: Path, key: str, arguments: dict[str, Any], kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        reproduce(key, FULL, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_the_end_points_of_the_dynamics_are_those_of_the_formula(tmp_path: Path) -> None:
    rows = ["g-imaginary", "h-diffusion"]
    results = reproduce("dynamics", FULL, tmp_path, rows=rows)
    found = {row["row"]: row["figures"] for row in results["views"]["measured"]}
    norms = [found["g-imaginary"][f"norm_{number}"]["mean"] for number in range(3)]
    np.testing.assert_allclose(norms, [0.7894, 1.0190, 1.1923], atol=5e-5)
    norms = [found["h-diffusion"][f"norm_{number}"]["mean"] for number in range(3)]
    np.testing.assert_allclose(norms, [0.5176, 0.7109, 0.8407], atol=5e-5)
    assert found["g-imaginary"]["spectral_radius"]["mean"] == pytest.approx(1.0198, abs=1e-5)
    assert (tmp_path / "dynamics.png").stat().st_size > 10_000
    told: list[str] = []
    again = reproduce("dynamics", FULL, tmp_path, rows=rows, report=told.append)
    assert (told, again["views"]) == ([], results["views"])


@pytest.mark.parametrize("key", ["c-orthogonal-0", "d-orthogonal-1"])
def test_the_drawn_matrices_are_orthogonal(key: str) -> None:
    matrix = system_matrix(TABLES["dynamics"].row(key).options)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(2), atol=1e-12)


@pytest.mark.slow
def test_the_spectra_are_those_of_the_matrices_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_digits(monkeypatch, "spectra", ("lipschitz-1", "lstm"))
    results = reproduce("spectra", FULL, tmp_path, seeds=[0])
    found = {row["row"]: row["figures"] for row in results["views"]["best"]}
    # A share of 1 leaves the skew part, whose eigenvalues are imaginary, less the damping.
    for name in ("linear_first", "linear_last", "recurrent_first", "recurrent_last"):
        assert found["lipschitz-1"][name]["mean"] == pytest.approx(-0.001, abs=1e-6)
        assert found["lstm"][name] is None
    assert found["lstm"]["radius_max"]["mean"] > found["lstm"]["mean_modulus"]["mean"] > 0
    for run in results["runs"]:
        # 4 units, and two tensors of state of the LSTM; whole Jacobians.
        size = 8 if run["row"] == "lstm" else 4
        moduli = np.abs(np.array(run["eigenvalues"]) @ [1, 1j]).reshape(-1, size)
        assert moduli.max() <= found[run["row"]]["radius_max"]["mean"] + 1e-5
    assert (tmp_path / "spectra.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_curves_of_a_sweep_are_the_accuracies_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ("linear-scale-0", "linear-scale-1", "skew-weight-0.5")
    table = on_digits(monkeypatch, "ablation", rows, epochs=1)
    results = reproduce("ablation", FULL, tmp_path)
    ((factors, means, errors),) = sweep_points(table, results, "model.cell_options.linear_scale", "digits")
    np.testing.assert_array_equal(factors, [0, 1])
    figures = [row["figures"]["test.accuracy"] for row in results["views"]["best"]]
    np.testing.assert_allclose(means, [figure["mean"] for figure in figures[:2]])
    np.testing.assert_allclose(means - errors[0], [figure["min"] for figure in figures[:2]])
    np.testing.assert_allclose(means + errors[1], [figure["max"] for figure in figures[:2]])
    assert len(sweep_points(table, results, "model.cell_options.skew_weight", "digits")[0][0]) == 1
    assert sweep_points(table, results, "model.cell_options.skew_weight", "mnist") == []
    assert (tmp_path / "ablation.png").stat().st_size > 10_000


def test_the_pendulum_keeps_its_energy() -> None:
    states = pendulum(np.array([0.5, -0.75]), 200, 0.1)
    energy = states[:, 1] ** 2 / 2 - np.cos(states[:, 0])
    np.testing.assert_allclose(energy, energy[0], atol=1e-9)
    # Small swings have a period of 2 pi.
    small = pendulum(np.array([1e-3, 0.0]), 100, 2 * np.pi / 100)
    np.testing.assert_allclose(small[-1], small[0], atol=1e-8)


@pytest.mark.slow
def test_a_unit_learns_the_pendulum_where_its_matrices_can(tmp_path: Path) -> None:
    rows = ["pendulum-0.75-0", "pendulum-1-0", "pendulum-1-0.1"]
    results = reproduce("dynamics", FULL, tmp_path, rows=rows)
    figures = {row["row"]: row["figures"] for row in results["views"]["measured"]}
    assert figures["pendulum-0.75-0"]["distance"]["mean"] < 0.2 < figures["pendulum-1-0"]["distance"]["mean"]
    assert figures["pendulum-1-0.1"]["norm_2"]["mean"] < 0.1 < 1 < figures["pendulum-1-0"]["norm_2"]["mean"]
    for run in results["runs"]:
        assert np.shape(run["trajectories"]) == np.shape(run["targets"]) == (3, 201, 2)


def test_measured_speeds_stay_where_an_engine_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES["speed"]
    missing = replace(table.row("antisymmetric-fused"), key="antisymmetric-none", options={"engine": "none"})
    rows = (table.row("antisymmetric-loop"), missing, table.row("lstm-torch"))
    monkeypatch.setitem(TABLES, "speed", replace(table, rows=rows))
    told: list[str] = []
    once = reproduce("speed", SHORT, tmp_path, report=told.append)
    assert [run["row"] for run in once["runs"]] == ["antisymmetric-loop", "lstm-torch"]
    assert len(told) == 2
    again = reproduce("speed", SHORT, tmp_path, report=told.append)
    assert (again["runs"], len(told)) == (once["runs"], 2)
    # The engine is there now: it alone is measured, against the reference in the same rounds.
    there = replace(missing, options={"engine": "fused"})
    monkeypatch.setitem(TABLES, "speed", replace(table, rows=(rows[0], there, rows[2])))
    grown = reproduce("speed", SHORT, tmp_path, report=told.append)
    assert told[2:] == ["measured 1 of 1: antisymmetric-none, seed 0"]
    figures = {run["row"]: run for run in grown["runs"]}
    assert [figures[run["row"]] for run in once["runs"]] == once["runs"]
    assert figures["antisymmetric-none"]["measured"][0]["figures"]["ratio_to_torch_lstm"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("key", ["mnist-pixel", "copy", "spectra"])
def test_an_interrupted_table_goes_on_to_the_same_numbers(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key == "copy":
        table = TABLES[key]
        rows = tuple(replace(table.row(name), hidden_size=8) for name in ("rnn", "exprnn"))
        settings = ours({"training.max_steps": 12, "training.plots": False})
        data = DataSet("copy-10", "copy", ours({"data.source": "copy", "data.length": 10}))
        full = Protocol(FULL, seeds=(0,), settings=settings)
        monkeypatch.setitem(TABLES, key, replace(table, rows=rows, data=(data,), full=full))
    else:
        on_digits(monkeypatch, key, ("lipschitz-0.75",) if key == "spectra" else ("lipschitz-64",))
    whole = reproduce(key, FULL, tmp_path / "whole", seeds=[0])

    def stop(now: Progress) -> None:
        if now.step == 3:
            raise KeyboardInterrupt

    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    run = tmp_path / "stopped" / whole["runs"][0]["run"]
    settings_of_run = load_config(run / "config.yaml")
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "stopped" / "measured")
    with pytest.raises(InterruptedRun):
        train(settings_of_run, run, progress=stop)
    resumed = reproduce(key, FULL, tmp_path / "stopped", seeds=[0])
    assert figures(resumed) == figures(whole)
    assert resumed["runs"][0]["resumed"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in TABLES if key != "robustness"])
def test_every_row_of_a_short_table(key: str, tmp_path: Path) -> None:
    results = reproduce(key, SHORT, tmp_path)
    assert results["state"] == "short"
    done = {(run["row"], run["data"]) for run in results["runs"]}
    table = TABLES[key]
    rows = {(row.key, data.key) for data in table.data_sets(SHORT) for row in table.rows_on(data)}
    if key == "speed" and "native" not in list_engines():
        rows.remove(("antisymmetric-native", "pixels"))
    assert done == rows
    for run in results["runs"]:
        for measured in run["measured"]:
            figures = [value for value in measured["figures"].values() if value is not None]
            assert figures
            assert np.isfinite(figures).all()
