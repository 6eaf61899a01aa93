"""Results of reproductions are stored in a checkout, by a script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import reproductions
from reproduce_helpers import on_digits
from reproductions import PICTURES, STORED
from stablernn.errors import ConfigError
from stablernn_papers.kinds import kind_of
from stablernn_papers.kinds.kind import Length
from stablernn_papers.reproduction import reproduce
from stablernn_papers.results import read_results, write_results
from stablernn_papers.table import FULL, SHORT, Table
from stablernn_papers.tables import published_table

ROOT = Path(__file__).parents[2]
KEY = "mnist-pixel"
ROWS = ("lipschitz-64", "antisymmetric")
COMMIT = "0" * 40


@pytest.fixture
def pixels(monkeypatch: pytest.MonkeyPatch) -> Table:
    return on_digits(monkeypatch, KEY, ROWS)


def committed(folder: Path) -> Path:
    """The folder, as if its runs had been made by committed code; a checkout that is worked in is not."""
    for path in folder.glob("runs/*/env.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "commit": COMMIT}))
    results = read_results(folder / "results.json")
    if results is not None:
        results["environment"]["commit"] = COMMIT
        for run in results["runs"]:
            run["commit"] = COMMIT
        write_results(folder / "results.json", results)
    return folder


def made(folder: Path, *rows: str, seeds: tuple[int, ...] = (0,), length: Length | None = None) -> dict[str, Any]:
    results = reproduce(KEY, FULL, folder, rows=rows, seeds=seeds, length=length)
    committed(folder)
    return results


def stored(root: Path) -> dict[str, Any]:
    results = read_results(root / STORED / KEY / "results.json")
    assert results is not None
    return results


def figures(results: dict[str, Any]) -> dict[tuple[str, int], Any]:
    return {(run["row"], run["seed"]): run["measured"] for run in results["runs"]}


@pytest.mark.slow
def test_runs_of_several_folders_join_in_the_stored_results(pixels: Table, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    first = made(tmp_path / "a", "lipschitz-64", "antisymmetric")
    reproductions.store(tmp_path / "a", root)
    second = made(tmp_path / "b", "antisymmetric", seeds=(1,))
    reproductions.store(tmp_path / "b", root)
    results = stored(root)
    assert figures(results) == figures(first) | figures(second)
    assert (results["state"], results["missing"]) == ("partial", ["lipschitz-64, seed 1"])
    rows = {row["row"]: row for row in results["views"]["best"]}
    assert rows["antisymmetric"]["seeds"] == [0, 1]
    assert len(rows["antisymmetric"]["figures"]["test.accuracy"]["values"]) == 2
    made(tmp_path / "b", "lipschitz-64", seeds=(1,))
    reproductions.store(tmp_path / "b", root)
    assert stored(root)["state"] == "full"


def test_results_that_are_compared_with_each_other_do_not_join(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    shutil.copytree(ROOT / STORED / "robustness", root / STORED / "robustness")
    folder = tmp_path / "a"
    (folder / "runs").mkdir(parents=True)
    (folder / "protocol.json").write_text(json.dumps({"table": "robustness", "name": "full"}))
    results = read_results(ROOT / STORED / "robustness" / "results.json")
    assert results is not None
    results["runs"] = [run for run in results["runs"] if run["row"] != "gru"]
    write_results(folder / "results.json", results)
    committed(folder)
    with pytest.raises(ConfigError, match=r"lack runs that the stored ones have: gru, seed 0; gru, seed 1; gru, "):
        reproductions.store(folder, root)


def test_what_no_commit_has_is_not_stored(pixels: Table, tmp_path: Path) -> None:
    made(tmp_path / "a", "lipschitz-64", length=Length(epochs=1))
    results = read_results(tmp_path / "a" / "results.json")
    assert results is not None
    results["runs"][0]["commit"] = f"{COMMIT}-dirty"
    write_results(tmp_path / "a" / "results.json", results)
    with pytest.raises(ConfigError, match=r"a' was made by code that no commit has: lipschitz-64, seed 0\. Commit the"):
        reproductions.store(tmp_path / "a", tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_a_scaled_down_reproduction_and_other_folders_are_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce("dynamics", SHORT, tmp_path / "a", rows=["g-imaginary"])
    with pytest.raises(ConfigError, match=r"a' is the short reproduction of 'dynamics', which compares nothing"):
        reproductions.store(tmp_path / "a", tmp_path)
    with pytest.raises(ConfigError, match=r"b' is no folder of a reproduction: it has no protocol\.json\.$"):
        reproductions.store(tmp_path / "b", tmp_path)
    assert reproductions.main(["draw", "copy"], tmp_path) == 1
    assert capsys.readouterr().err.startswith("Error: There are no results of 'copy' to draw: '")


@pytest.mark.slow
def test_the_picture_is_drawn_of_what_is_stored(tmp_path: Path) -> None:
    reproduce("dynamics", FULL, tmp_path / "a", rows=["g-imaginary"])
    reproductions.store(committed(tmp_path / "a"), tmp_path)
    picture = tmp_path / PICTURES / "reproduce_dynamics.png"
    one = picture.read_bytes()
    shutil.rmtree(tmp_path / "a")
    reproduce("dynamics", FULL, tmp_path / "a", rows=["h-diffusion"])
    reproductions.store(committed(tmp_path / "a"), tmp_path)
    assert len(picture.read_bytes()) > 1.3 * len(one)


@pytest.mark.slow
def test_curves_hold_every_epoch_of_every_run(tmp_path: Path) -> None:
    results = reproduce("mnist-pixel", SHORT, tmp_path, rows=["scornn", "lstm"])
    for run in results["runs"]:
        curve = run["validation_curve"]
        assert curve["metric"] == "accuracy"
        assert curve["epochs"] == list(range(1, run["epochs"] + 1))
        assert curve["values"][run["best_epoch"] - 1] == run["measured"][0]["figures"]["validation.accuracy"]
    both = (tmp_path / "mnist-pixel.png").read_bytes()
    results["runs"] = results["runs"][:1]
    kind_of(published_table("mnist-pixel")).draw(tmp_path / "one.png", published_table("mnist-pixel"), results)
    assert (tmp_path / "one.png").read_bytes() != both
