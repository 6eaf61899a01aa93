"""Results and unfinished runs are stored in a checkout, and go on in another one to the same numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_scripts import script, scripts_on_path
from reproduce_helpers import on_digits
from stablernn.errors import CheckpointError, ConfigError, InterruptedRun
from stablernn.reproduce.kinds import kind_of
from stablernn.reproduce.repository import UNFINISHED, restore, store
from stablernn.reproduce.results_file import read_results, write_results
from stablernn.reproduce.run_protocol import reproduce
from stablernn.reproduce.stored_results import PICTURES, STORED
from stablernn.reproduce.table import FULL, SHORT, Table
from stablernn.reproduce.tables import published_table
from stablernn.reproduce.training_runs import Length
from stablernn.training import Progress, load_config, train

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


def interrupt(folder: Path, row: str) -> None:
    """Stop the training of a row in the middle of its second epoch."""

    def stop(now: Progress) -> None:
        if now.step == 7:
            raise KeyboardInterrupt

    run = folder / "runs" / f"{row}-0"
    settings = load_config(run / "config.yaml")
    shutil.rmtree(run)
    with pytest.raises(InterruptedRun):
        train(settings, run, progress=stop)
    (folder / "results.json").unlink()
    committed(folder)


def stored(root: Path) -> dict[str, Any]:
    results = read_results(root / STORED / KEY / "results.json")
    assert results is not None
    return results


def figures(results: dict[str, Any]) -> dict[tuple[str, int], Any]:
    return {(run["row"], run["seed"]): run["measured"] for run in results["runs"]}


def test_a_run_that_was_interrupted_goes_on_in_another_checkout_to_the_same_numbers(
    pixels: Table, tmp_path: Path
) -> None:
    root, folder = tmp_path / "repository", tmp_path / "a"
    whole = made(folder, "lipschitz-64")
    interrupt(folder, "lipschitz-64")
    told = store(folder, root)
    assert told == [f"stored the unfinished run lipschitz-64, seed 0: {root / UNFINISHED / KEY / 'lipschitz-64-0'}"]
    shutil.rmtree(folder)
    assert restore(KEY, root, tmp_path / "b") == [
        f"restored lipschitz-64, seed 0: {tmp_path / 'b' / 'runs' / 'lipschitz-64-0'}"
    ]
    resumed = made(tmp_path / "b", "lipschitz-64")
    assert figures(resumed) == figures(whole)
    (run,) = resumed["runs"]
    assert (run["resumed"], run["steps"]) == (1, whole["runs"][0]["steps"])
    # The run is done, so that its checkpoints are no longer needed.
    told = store(tmp_path / "b", root)
    assert told[0].startswith("stored 1 run, partial: ")
    assert told[-1].startswith("removed the run lipschitz-64, seed 0, which is done: ")
    assert not list((root / UNFINISHED / KEY).iterdir())
    assert figures(stored(root)) == figures(whole)


def test_a_cut_run_is_stored_and_grows_elsewhere(pixels: Table, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    made(tmp_path / "a", "lipschitz-64", length=Length(epochs=1))
    store(tmp_path / "a", root)
    assert stored(root)["progress"]["epochs"] == 0.5
    restore(KEY, root, tmp_path / "b")
    grown = made(tmp_path / "b", "lipschitz-64")
    assert figures(grown) == figures(made(tmp_path / "c", "lipschitz-64"))


def test_runs_of_several_folders_join_in_the_stored_results(pixels: Table, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    first = made(tmp_path / "a", "lipschitz-64", "antisymmetric")
    store(tmp_path / "a", root)
    second = made(tmp_path / "b", "antisymmetric", seeds=(1,))
    store(tmp_path / "b", root)
    results = stored(root)
    assert figures(results) == figures(first) | figures(second)
    assert (results["state"], results["missing"]) == ("partial", ["lipschitz-64, seed 1"])
    rows = {row["row"]: row for row in results["views"]["best"]}
    assert rows["antisymmetric"]["seeds"] == [0, 1]
    assert len(rows["antisymmetric"]["figures"]["test.accuracy"]["values"]) == 2
    made(tmp_path / "b", "lipschitz-64", seeds=(1,))
    store(tmp_path / "b", root)
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
        store(folder, root)


def test_a_run_that_is_there_is_kept(pixels: Table, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    made(tmp_path / "a", "lipschitz-64", length=Length(epochs=1))
    store(tmp_path / "a", root)
    made(tmp_path / "b", "lipschitz-64")
    (told,) = restore(KEY, root, tmp_path / "b")
    assert told.startswith("kept lipschitz-64, seed 0, which is there already: ")
    assert read_results(tmp_path / "b" / "results.json") is not None


def test_a_large_file_is_refused(pixels: Table, tmp_path: Path) -> None:
    made(tmp_path / "a", "lipschitz-64", length=Length(epochs=1))
    size = (tmp_path / "a" / "runs" / "lipschitz-64-0" / "checkpoints" / "last.safetensors").stat().st_size
    with pytest.raises(ConfigError) as error:
        store(tmp_path / "a", tmp_path / "repository", largest_file=size - 1)
    assert str(error.value).startswith(
        f"'{tmp_path}/a/runs/lipschitz-64-0/checkpoints/last.safetensors' has {size:,} bytes, and a file of an "
        f"unfinished run in the repository has at most {size - 1:,}."
    )
    assert not (tmp_path / "repository" / UNFINISHED / KEY / "lipschitz-64-0").exists()
    store(tmp_path / "a", tmp_path / "repository", largest_file=size)


def test_a_stored_run_that_was_edited_is_refused(pixels: Table, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    made(tmp_path / "a", "lipschitz-64", length=Length(epochs=1))
    store(tmp_path / "a", root)
    path = root / UNFINISHED / KEY / "lipschitz-64-0" / "metrics.jsonl"
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl' is missing or is not the file that was stored"):
        restore(KEY, root, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_what_no_commit_has_is_not_stored(pixels: Table, tmp_path: Path) -> None:
    made(tmp_path / "a", "lipschitz-64", length=Length(epochs=1))
    results = read_results(tmp_path / "a" / "results.json")
    assert results is not None
    results["runs"][0]["commit"] = f"{COMMIT}-dirty"
    write_results(tmp_path / "a" / "results.json", results)
    with pytest.raises(ConfigError, match=r"a' was made by code that no commit has: lipschitz-64, seed 0\. Commit the"):
        store(tmp_path / "a", tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_a_scaled_down_reproduction_and_other_folders_are_not_stored(tmp_path: Path) -> None:
    reproduce("dynamics", SHORT, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"a' is the short reproduction of 'dynamics', which compares nothing"):
        store(tmp_path / "a", tmp_path)
    with pytest.raises(ConfigError, match=r"b' is no folder of a reproduction: it has no protocol\.json\.$"):
        store(tmp_path / "b", tmp_path)
    with pytest.raises(ConfigError, match=r"has no unfinished run of 'copy'; there is nothing to restore\.$"):
        restore("copy", tmp_path, tmp_path / "c")


def test_the_picture_is_drawn_of_what_is_stored(tmp_path: Path) -> None:
    reproduce("dynamics", FULL, tmp_path / "a", rows=["g-imaginary"])
    store(committed(tmp_path / "a"), tmp_path)
    picture = tmp_path / PICTURES / "reproduce_dynamics.png"
    one = picture.read_bytes()
    shutil.rmtree(tmp_path / "a")
    reproduce("dynamics", FULL, tmp_path / "a", rows=["h-diffusion"])
    store(committed(tmp_path / "a"), tmp_path)
    assert len(picture.read_bytes()) > 1.3 * len(one)


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


@pytest.fixture
def reproductions() -> Iterator[Any]:
    with scripts_on_path():
        yield script("reproductions")


def test_the_script_stores_and_restores(
    reproductions: Any, pixels: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "a", "lipschitz-64", length=Length(epochs=1))
    assert reproductions.main(["store", str(tmp_path / "a")], tmp_path) == 0
    assert reproductions.main(["restore", KEY, "--output", str(tmp_path / "b")], tmp_path) == 0
    assert "restored lipschitz-64, seed 0" in capsys.readouterr().out
    assert reproductions.main(["draw", KEY], tmp_path) == 0
    assert reproductions.main(["draw", "copy"], tmp_path) == 1
    assert capsys.readouterr().err.startswith("Error: There are no results of 'copy' to draw: '")
    assert reproductions.main(["restore", "copy"], tmp_path) == 1
    assert capsys.readouterr().err.startswith("Error: '")
