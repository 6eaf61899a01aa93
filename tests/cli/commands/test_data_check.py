"""`data check`: what it prints, its exit codes, and that `train` refuses in the same words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bad_files import BAD_FILES, ROWS, BadFile, table
from cli_helpers import UNPLOTTED, Workplace

FLAGS = {"time_column": "--time-column", "target": "--target", "horizon": "--horizon"}


def flags(options: dict[str, Any]) -> list[str]:
    return [
        str(word) for key, value in options.items() for word in (FLAGS[key], value[0] if key == "target" else value)
    ]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad.fault)
def test_check_lists_what_train_refuses_in_the_same_words(empty: Workplace, bad: BadFile) -> None:
    bad.write(empty.folder)
    refused = empty(f"-q train --data {bad.name} --cell gru", *flags(bad.options))
    assert (refused.code, refused.sentence) == (bad.code, bad.sentence)
    assert not empty.path("runs").exists()
    result = empty(f"-q data check {bad.name}", *flags(bad.options), "--json")
    assert (result.code, result.err) == (bad.code, "")
    document = result.json
    assert document["ok"] is False
    found = [(problem["code"], problem["text"]) for problem in document["problems"]]
    assert found == [("refused", bad.sentence), *bad.more]


def test_a_downloaded_file_that_is_not_what_was_published(
    empty: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "polyphonic"
    folder.mkdir()
    (folder / "JSB_Chorales.mat").write_bytes(b"something else")
    monkeypatch.setenv("STABLERNN_DATA", str(tmp_path))
    sentence = empty.refusal("-q train --data jsb --cell gru", code=1)
    assert sentence.startswith("'jsb': 'JSB_Chorales.mat' is not what was published (sha256:")
    result = empty("-q data check jsb --json")
    assert result.code == 1
    assert [problem["text"] for problem in result.json["problems"]] == [sentence]
    assert result.json["task"] == "predict-next"


def test_a_constant_series_is_taken_with_a_warning(empty: Workplace) -> None:
    table("flat.csv", [f"{row.split(',')[0]},5" for row in ROWS])(empty.folder)
    result = empty.ok("data check flat.csv")
    assert (
        "warning: y has a single value in all of training (scale 0), from which nothing can be learnt. "
        "[constant_column]" in result.out
    )
    assert result.out.endswith("`train` would accept this; 1 warning.\n")
    empty.ok(f"-q train {UNPLOTTED} --data flat.csv --cell gru --hidden-size 4 --max-steps 1")


def test_the_document_has_the_plan_for_the_cell_that_is_named(empty: Workplace) -> None:
    document = empty.document("data check digits --cell lstm")
    assert document["ok"] is True
    assert document["train"]["cell"] == "lstm"
    assert document["train"]["samples"] == {"train": 1077, "validation": 360, "test": 360}
    assert document["content"]["duplicates"]["across"] == {
        "train, validation": 0,
        "train, test": 0,
        "validation, test": 0,
    }
    assert document["content"]["classes"]["0"] == {"train": 94, "validation": 42, "test": 42}


def test_guessed_options_are_printed_so_that_they_can_be_copied(empty: Workplace) -> None:
    table("wide.csv", [f"{row},{n % 3},word" for n, row in enumerate(ROWS)], "ds,a,b c,note")(empty.folder)
    result = empty("data check wide.csv")
    assert result.code == 1
    assert "    --set 'data.channels=[a, b c]' --target 'b c'\n" in result.out
    assert result.out.endswith(
        "`train` would refuse this: 2 problems, 0 warnings. --fix FILE.yaml writes the settings that mend it.\n"
    )
    empty.ok("-q data check wide.csv --set 'data.channels=[a, b c]' --target 'b c'")


def fresh_process(workplace: Workplace, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a new interpreter, whose last line on stderr tells exit code and whether torch was imported."""
    code = "import sys; from stablernn_cli.main import run; code = run(sys.argv[1:]); " + (
        "print(code, 'torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "-q", "data", "check", *arguments]
    return subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True, check=True)


def test_without_the_plan_torch_is_not_imported(empty: Workplace) -> None:
    table("good.csv", ROWS)(empty.folder)
    checked = fresh_process(empty, "good.csv", "--no-plan", "--horizon", "3", "--set", "model.hidden_size=8")
    assert checked.stderr == "0 False\n"
    assert "What `train` would do" not in checked.stdout
    assert checked.stdout.endswith("Nothing is wrong.\n")
    described = fresh_process(empty, "digits", "--no-plan", "--json")
    assert described.stderr == "0 False\n"
    document = json.loads(described.stdout)
    assert (document["ok"], document["train"], document["task"]) == (True, None, "classify")


def test_an_option_of_the_cell_is_wrong_usage_with_a_plan_only(empty: Workplace) -> None:
    table("good.csv", ROWS)(empty.folder)
    option = "--set 'model.cell_options={nothing: 1}'"
    refused = empty(f"data check good.csv {option}")
    assert (refused.code, "nothing" in refused.sentence) == (2, True)
    assert refused.out.startswith("source")
    assert empty(f"-q data check good.csv {option} --no-plan").code == 0
    (bad,) = [bad for bad in BAD_FILES if bad.fault == "truncated gzip"]
    bad.write(empty.folder)
    assert empty(f"data check {bad.name} {option}").code == 2


@pytest.mark.parametrize("option", ["--target yy", "--id-column shop", "--time-column when"])
def test_a_column_that_is_not_there_is_wrong_usage_here_and_in_train(empty: Workplace, option: str) -> None:
    table("d.csv", ROWS)(empty.folder)
    checked = empty(f"-q data check d.csv {option} --json")
    assert checked.code == empty(f"-q train --data d.csv --cell gru {option}").code == 2
    assert checked.json["problems"][0]["code"] == "refused"


@pytest.mark.parametrize("source", ["digits", "co2", "words.txt"])
def test_the_picture_is_a_png(empty: Workplace, source: str) -> None:
    empty.path("words.txt").write_text("the cat sat on the mat. " * 100)
    result = empty.ok(f"data check {source} --plot look.png")
    assert empty.path("look.png").read_bytes().startswith(b"\x89PNG")
    assert "Drawn: look.png" in result.err


def test_nothing_is_drawn_of_data_that_cannot_be_loaded(empty: Workplace) -> None:
    (bad,) = [bad for bad in BAD_FILES if bad.fault == "truncated gzip"]
    bad.write(empty.folder)
    result = empty(f"data check {bad.name} --plot look.png")
    assert result.code == 1
    assert f"Nothing to draw: {bad.name} cannot be loaded." in result.err
    assert not empty.path("look.png").exists()
