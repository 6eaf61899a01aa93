"""The benchmark of the UCR and UEA archives: which files make a set, what is run again, and the section of its page."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmark_scripts import script
from packages import ROOT

TABLE = "0\t1.0\t2.0\t3.0\n1\t3.0\t2.0\t1.0\n" * 4


def write(folder: Path, *paths: str) -> None:
    """Write small .tsv tables, whatever format the ending says: finding sets reads names only."""
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        content = TABLE.encode()
        file.write_bytes(gzip.compress(content) if path.endswith(".gz") else content)


def names_of(sets: list[Any], root: Path) -> dict[str, tuple[str, str | None]]:
    """Return the files of each set, relative to the folder."""
    return {
        each.name: (
            each.train.relative_to(root).as_posix(),
            None if each.test is None else each.test.relative_to(root).as_posix(),
        )
        for each in sets
    }


def test_sets_have_any_ending_and_lie_at_any_depth(tmp_path: Path) -> None:
    write(tmp_path, "Top_TRAIN.ts", "Top_TEST.ts")
    write(tmp_path, "UCR/Coffee/Coffee_TRAIN.tsv", "UCR/Coffee/Coffee_TEST.tsv.gz")
    write(tmp_path, "UCR/deep/Crop-2/Crop-2_TRAIN.tsv.gz", "UCR/deep/Crop-2/Crop-2_TEST.tsv.gz")
    write(tmp_path, "UEA/Motions/Motions_TRAIN.arff", "UEA/Motions/Motions_TEST.arff")
    write(tmp_path, "UEA/Motions/README_TRAIN.txt", "m4/Hourly-train.csv", "UEA/Motions/._Motions_TRAIN.ts")
    assert names_of(script("archive").find_sets(tmp_path), tmp_path) == {
        "Coffee": ("UCR/Coffee/Coffee_TRAIN.tsv", "UCR/Coffee/Coffee_TEST.tsv.gz"),
        "Crop-2": ("UCR/deep/Crop-2/Crop-2_TRAIN.tsv.gz", "UCR/deep/Crop-2/Crop-2_TEST.tsv.gz"),
        "Motions": ("UEA/Motions/Motions_TRAIN.arff", "UEA/Motions/Motions_TEST.arff"),
        "Top": ("Top_TRAIN.ts", "Top_TEST.ts"),
    }


def test_of_several_files_of_a_set_the_preferred_pair_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "a/X_TRAIN.arff", "a/X_TEST.arff", "a/X_TRAIN.tsv", "a/X_TEST.tsv", "a/X_TRAIN.ts")
    write(tmp_path, "b/Y_TRAIN.tsv", "b/Y_TEST.tsv", "adjusted/folder/Y_TRAIN.tsv", "adjusted/folder/Y_TEST.tsv")
    assert names_of(script("archive").find_sets(tmp_path), tmp_path) == {
        "X": ("a/X_TRAIN.tsv", "a/X_TEST.tsv"),
        "Y": ("b/Y_TRAIN.tsv", "b/Y_TEST.tsv"),
    }


def test_files_of_single_channels_are_no_sets(tmp_path: Path) -> None:
    write(tmp_path, "M/M_TRAIN.arff", "M/M_TEST.arff", "M/MDimension1_TRAIN.arff", "M/MDimension1_TEST.arff")
    write(tmp_path, "N/NDimension1_TRAIN.arff", "N/NDimension1_TEST.arff")
    assert list(names_of(script("archive").find_sets(tmp_path), tmp_path)) == ["M", "NDimension1"]


def test_a_training_file_without_a_test_file_is_a_row_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, "Alone_TRAIN.tsv")
    (alone,) = script("archive").find_sets(tmp_path)
    row = script("archive").measure(alone, 0, ["auto", "minirocket"], "2m", "python")
    failure = {"failed": "DataError: There is no Alone_TEST in the folder of 'Alone_TRAIN.tsv'."}
    assert row == {
        "data": "Alone",
        "seed": 0,
        "is_development_set": False,
        "auto": failure,
        "minirocket": failure,
    }


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark on two sets, with programs that answer at once instead of training."""
    archive = script("archive")
    write(tmp_path / "data", "GunPoint_TRAIN.tsv", "GunPoint_TEST.tsv", "New_TRAIN.tsv", "New_TEST.tsv")
    monkeypatch.setenv("STABLERNN_DATA", f"{tmp_path / 'data'}/")
    archive.commands = []

    def run_command(words: list[str], folder: str) -> subprocess.CompletedProcess[str]:
        archive.commands.append(words)
        run = Path(folder) / "run"
        run.mkdir()
        (run / "env.json").write_text('{"commit": "abc"}')
        recipes = [{"scores": [0.7]}, {"scores": [0.6, 0.7]}, {"scores": []}]
        choice = {"chosen": "lru", "reason": "it is best", "settings": {"model.cell": "lru"}, "recipes": recipes}
        summary = {
            "metrics": {"test": {"accuracy": 0.75, "ridge": {"accuracy": 0.5}}},
            "choice": choice,
            "certificate": {"kind": "contracting", "contraction_rate": 0.9},
            "parameters": 10,
            "steps": 500,
        }
        return subprocess.CompletedProcess(words, 0, json.dumps(summary), "")

    monkeypatch.setattr(archive, "run_command", run_command)
    monkeypatch.setattr(archive, "run_minirocket", lambda *_: {"accuracy": 0.5, "seconds": 1.0})
    monkeypatch.setattr(archive, "check_interpreter", lambda _: None)
    return archive


def arguments(tmp_path: Path, **changes: Any) -> argparse.Namespace:
    defaults = {"sets": None, "seeds": [0], "budget": "2m", "jobs": 1, "minirocket": None, "again": False}
    return argparse.Namespace(results=tmp_path / "results" / "archive.json", **(defaults | changes))


def stored_rows(tmp_path: Path) -> dict[tuple[str, int], Any]:
    results = json.loads((tmp_path / "results" / "archive.json").read_text())
    return {(row["data"], row["seed"]): row for row in results["runs"]}


def test_a_row_has_the_command_the_figures_and_the_sizes(archive: Any, tmp_path: Path) -> None:
    archive.run_archive(arguments(tmp_path, minirocket="python"))
    rows = stored_rows(tmp_path)
    assert {key: row["is_development_set"] for key, row in rows.items()} == {("GunPoint", 0): True, ("New", 0): False}
    row = rows["New", 0]
    assert row["set"] == {"train": 8, "test": 8, "length": [3, 3], "channels": 1, "classes": 2}
    assert row["auto"].pop("seconds") >= 0
    assert row["auto"] == {
        "command": "stablernn train --data $STABLERNN_DATA/New_TRAIN.tsv --budget 2m --seed 0",
        "commit": "abc",
        "accuracy": 0.75,
        "ridge": 0.5,
        "recipe": "lru",
        "compared": 2,
        "reason": "it is best",
        "settings": {"model.cell": "lru"},
        "certificate": "contracting",
        "contraction_rate": 0.9,
        "parameters": 10,
        "steps": 500,
    }
    assert row["minirocket"] == {"accuracy": 0.5, "seconds": 1.0}


def test_only_what_the_results_lack_is_run(archive: Any, tmp_path: Path) -> None:
    archive.run_archive(arguments(tmp_path, sets=["New"]))
    archive.run_archive(arguments(tmp_path))
    trained = [Path(words[2]).name for words in archive.commands]
    assert trained == ["New_TRAIN.tsv", "GunPoint_TRAIN.tsv"]
    # MiniRocket joins the rows, and nothing is trained for it.
    archive.run_archive(arguments(tmp_path, minirocket="python"))
    assert len(archive.commands) == 2
    figures = [(row["auto"]["accuracy"], row["minirocket"]["accuracy"]) for row in stored_rows(tmp_path).values()]
    assert figures == [(0.75, 0.5), (0.75, 0.5)]
    archive.run_archive(arguments(tmp_path, sets=["New"], seeds=[0, 1], again=True))
    assert [words[-3] for words in archive.commands[2:]] == ["0", "1"]
    assert stored_rows(tmp_path).keys() == {("GunPoint", 0), ("New", 0), ("New", 1)}


def test_rows_from_before_a_stop_stay(archive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = archive.run_command

    def stop_at_new(words: list[str], folder: str) -> subprocess.CompletedProcess[str]:
        return (
            subprocess.CompletedProcess(words, 130, "", "Stopped.\n") if "New" in words[2] else complete(words, folder)
        )

    monkeypatch.setattr(archive, "run_command", stop_at_new)
    with pytest.raises(KeyboardInterrupt):
        archive.run_archive(arguments(tmp_path))
    assert stored_rows(tmp_path).keys() == {("GunPoint", 0)}
    monkeypatch.setattr(archive, "run_command", complete)
    archive.run_archive(arguments(tmp_path))
    assert stored_rows(tmp_path).keys() == {("GunPoint", 0), ("New", 0)}
    assert len(archive.commands) == 2


def test_a_failed_run_is_a_row_and_is_not_repeated(
    archive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    error = f"epoch 1/2\nThe loss of {data}/New_TRAIN.tsv is not finite.\n"
    monkeypatch.setattr(archive, "run_command", lambda words, _: subprocess.CompletedProcess(words, 1, "", error))

    def fail(*_: Any) -> None:
        raise subprocess.CalledProcessError(1, "minirocket.py", stderr="Traceback\nValueError: too short\n")

    monkeypatch.setattr(archive, "run_minirocket", fail)
    archive.run_archive(arguments(tmp_path, sets=["New"], minirocket="python"))
    row = stored_rows(tmp_path)["New", 0]
    assert row["auto"]["failed"] == "The loss of $STABLERNN_DATA/New_TRAIN.tsv is not finite."
    assert row["minirocket"] == {"failed": "ValueError: too short"}
    archive.run_archive(arguments(tmp_path, sets=["New"]))
    assert stored_rows(tmp_path)["New", 0] == row


def test_results_of_another_budget_and_unknown_sets_are_refused(archive: Any, tmp_path: Path) -> None:
    archive.run_archive(arguments(tmp_path))
    with pytest.raises(SystemExit, match="has runs with a budget of 2m, got 20s"):
        archive.run_archive(arguments(tmp_path, budget="20s"))
    with pytest.raises(SystemExit, match=r"No set Cofee below \$STABLERNN_DATA"):
        archive.run_archive(arguments(tmp_path, sets=["Cofee"]))


def test_an_interpreter_without_aeon_is_refused(tmp_path: Path) -> None:
    check = script("archive").check_interpreter
    with pytest.raises(SystemExit, match=r"cannot be run: No such file or directory\. Give an interpreter with aeon\."):
        check(str(tmp_path / "python"))
    without = tmp_path / "without"
    without.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named aeon' >&2\nexit 1\n")
    without.chmod(0o755)
    with pytest.raises(SystemExit, match="cannot import aeon: ModuleNotFoundError: No module named aeon"):
        check(str(without))


def row(name: str, auto: Any, minirocket: Any, ridge: float = 0.5, **changes: Any) -> dict[str, Any]:
    """Return a stored row; a text in place of an accuracy is the reason of a failure."""
    recipe, certificate = changes.pop("recipe", "lru"), changes.pop("certificate", "contracting")
    compared = changes.pop("compared", 3)
    figures = {"accuracy": auto, "ridge": ridge, "recipe": recipe, "certificate": certificate, "compared": compared}
    return {
        "data": name,
        "seed": 0,
        "is_development_set": False,
        "set": {"train": 1200, "test": 100, "length": [7, 29], "channels": 2, "classes": 3},
        "auto": {"failed": auto} if isinstance(auto, str) else figures,
        "minirocket": {"failed": minirocket} if isinstance(minirocket, str) else {"accuracy": minirocket},
        **changes,
    }


def results(*rows: dict[str, Any]) -> dict[str, Any]:
    conditions = {"machine": "m", "cores": 2, "torch": "t", "python": "p", "date": "2026-01-01"}
    return {"budget": "2m", "conditions": conditions, "runs": list(rows)}


def section(*rows: dict[str, Any]) -> str:
    return "".join(script("archive_page").archive_section(results(*rows)))


@pytest.mark.parametrize(
    ("auto", "minirocket", "outcome"),
    [
        (0.91, 0.90, "win"),
        (0.90, 0.91, "loss"),
        (0.90, 0.90, "draw"),
        (0.905, 0.90, "draw"),
        (0.90, 0.905, "draw"),
        (0.9051, 0.90, "win"),
        ("The loss is not finite.", 0.90, "loss"),
        (0.90, "ValueError: too short", None),
        ("unreadable", "unreadable", None),
    ],
)
def test_a_draw_is_within_half_a_test_sequence(auto: Any, minirocket: Any, outcome: str | None) -> None:
    (summary,) = script("archive_page").summarize([row("A", auto, minirocket)])
    assert summary.outcome == outcome


def test_a_set_that_was_not_run_by_both_has_no_outcome() -> None:
    rows = [row("A", 0.9, 0.9), row("B", 0.9, 0.9)]
    del rows[0]["minirocket"], rows[1]["auto"]
    assert [summary.outcome for summary in script("archive_page").summarize(rows)] == [None, None]


def test_seeds_of_a_set_are_averaged() -> None:
    rows = [
        row("A", 0.90, 0.95, 0.5, recipe="gru", certificate="bounded"),
        row("A", 0.96, 0.95, 0.7, seed=1),
        row("A", 0.96, 0.95, 0.6, seed=2),
        row("A", "diverged", 0.95, seed=3),
    ]
    (summary,) = script("archive_page").summarize(rows)
    assert summary.accuracies == pytest.approx({"auto": 0.94, "minirocket": 0.95, "ridge": 0.6})
    assert (summary.recipes, summary.proof, summary.outcome) == (("lru", "gru"), "bounded", "loss")
    assert summary.failures == {("auto", 3): "diverged"}


def test_draws_share_ranks() -> None:
    ranks = [
        [summary.rank(method) for method in ("auto", "minirocket", "ridge")]
        for summary in script("archive_page").summarize(
            [row("A", 0.9, 0.8, 0.7), row("B", 0.9, 0.9, 0.7), row("C", 0.7, 0.9, 0.9), row("D", 0.9, 0.9, 0.9)]
        )
    ]
    assert ranks == [[1, 2, 3], [1.5, 1.5, 3], [3, 1.5, 1.5], [2, 2, 2]]


def test_sets_that_defaults_were_chosen_on_are_counted_apart() -> None:
    text = section(
        row("GunPoint", 0.99, 0.99, 0.83, is_development_set=True),
        row("Crop", 0.70, 0.76, 0.60),
        row("Adiac", 0.84, 0.80, 0.62),
        row("Broken", "The loss is not finite.", 0.80),
    )
    assert "| are not among the nine | 3 | 1 | 0 | 2 | 0.7700 | 0.7800 | 0.6100 | 1.50 | 1.50 | 3.00 |\n" in text
    assert "| are among the nine | 1 | 0 | 1 | 0 | 0.9900 | 0.9900 | 0.8300 | 1.50 | 1.50 | 3.00 |\n" in text
    others, _, development = text.partition("### Sets that are among the nine")
    adiac = "| Adiac | 1,200 | 100 | 7 to 29 | 2 | 3 | 0.8400 | 0.8000 | 0.6200 | win | lru | contracting |\n"
    assert adiac in others
    assert "| Broken | 1,200 | 100 | 7 to 29 | 2 | 3 | - | 0.8000 | - | loss | - | - |\n" in others
    assert "| GunPoint |" in development
    assert "- Broken, auto, seed 0: The loss is not finite.\n" in text


def test_a_set_that_could_not_be_read_stands_in_the_table_and_below_it() -> None:
    broken = row("Broken", "No columns.", "No columns.")
    del broken["set"]
    text = section(broken)
    assert "| Broken | - | - | - | - | - | - | - | - | - | - | - |\n" in text
    assert "- Broken, auto, seed 0: No columns.\n- Broken, minirocket, seed 0: No columns.\n" in text


def test_sets_on_which_nothing_was_compared_are_named() -> None:
    text = section(row("A", 0.9, 0.9, compared=0), row("B", 0.9, 0.9), row("B", 0.9, 0.9, seed=1, compared=1))
    assert "so that the first one was trained, on: A, B.\n" in text
    assert "no two recipes" not in section(row("A", 0.9, 0.9), row("B", "diverged", 0.9))


def test_the_section_says_what_one_seed_means() -> None:
    once, twice = section(row("A", 0.9, 0.9)), section(row("A", 0.9, 0.9), row("A", 0.9, 0.9, seed=1))
    assert "**One seed** (0): each figure is that of a single search" in once
    assert "--seeds 0 --budget 2m" in once
    assert "Means over the seeds 0, 1," in twice
    assert "--seeds 0 1 --budget 2m" in twice


def test_the_page_of_the_benchmark_of_accuracy_has_the_section() -> None:
    from generate_docs import accuracy

    text = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    benchmark = script("accuracy")
    stored, archive = (
        json.loads(path.read_text(encoding="utf-8")) for path in (benchmark.RESULTS, benchmark.ARCHIVE_RESULTS)
    )
    assert accuracy(benchmark.page(stored, archive)) == text


def test_without_results_the_section_says_so() -> None:
    text = "".join(script("archive_page").archive_section(None))
    assert "No results are stored yet." in text
    assert "python benchmarks/archive.py --seeds 0 --budget 2m" in text
