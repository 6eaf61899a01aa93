"""`data check`: what it prints, its exit codes, and that `train` refuses in the same words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bad_files import BAD_FILES, ROWS, BadFile, table
from cli_helpers import NO_PLOTS, Workplace

FLAGS = {"time_column": "--time-column", "target": "--target", "horizon": "--horizon"}


def flags(options: dict[str, Any]) -> list[str]:
    return [
        str(word) for key, value in options.items() for word in (FLAGS[key], value[0] if key == "target" else value)
    ]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad.fault)
def test_check_lists_what_train_refuses_in_the_same_words(empty: Workplace, bad: BadFile) -> None:
    bad.write(empty.folder)
    refused = empty("-q", "train", "--data", bad.name, "--cell", "gru", *flags(bad.options))
    assert (refused.code, refused.sentence) == (bad.code, bad.sentence)
    assert not empty.path("runs").exists()
    result = empty("-q", "data", "check", bad.name, *flags(bad.options), "--json")
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
    refused = empty("-q", "train", "--data", "jsb", "--cell", "gru")
    assert refused.code == 1
    assert refused.sentence.startswith("'jsb': 'JSB_Chorales.mat' is not what was published (sha256:")
    result = empty("-q", "data", "check", "jsb", "--json")
    assert result.code == 1
    assert [problem["text"] for problem in result.json["problems"]] == [refused.sentence]
    assert result.json["task"] == "predict-next"


def test_a_constant_series_is_taken_with_a_warning(empty: Workplace) -> None:
    table("flat.csv", [f"{row.split(',')[0]},5" for row in ROWS])(empty.folder)
    result = empty.ok("data", "check", "flat.csv")
    assert (
        "warning: y has a single value in all of training (scale 0), from which nothing can be learnt. "
        "[constant_column]" in result.out
    )
    assert result.out.endswith("`train` would accept this; 1 warning.\n")
    empty.ok("-q", "train", *NO_PLOTS, "--data", "flat.csv", "--cell", "gru", "--hidden-size", 4, "--max-steps", 1)


def test_a_good_file_says_what_train_would_do(empty: Workplace) -> None:
    table("good.csv", ROWS)(empty.folder)
    result = empty.ok("data", "check", "good.csv", "--horizon", 3)
    for words in (
        "series  1, of 60 steps",
        "2024-01-01 to 2024-02-29, frequency D, season 7, 0 gaps filled",
        "3 steps of y from 14 steps",
        "train 20, validation 10, test 10",
    ):
        assert words in result.out
    assert result.out.endswith("Nothing is wrong.\n")
    assert "Checking good.csv ..." in result.err


def test_the_document_has_the_plan_for_the_cell_that_is_named(empty: Workplace) -> None:
    document = empty.ok("-q", "data", "check", "digits", "--cell", "lstm", "--json").json
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
    result = empty("data", "check", "wide.csv")
    assert result.code == 1
    assert "    --set 'data.channels=[a, b c]' --target 'b c'\n" in result.out
    assert result.out.endswith(
        "`train` would refuse this: 2 problems, 0 warnings. --fix FILE.yaml writes the settings that mend it.\n"
    )
    empty.ok("-q", "data", "check", "wide.csv", "--set", "data.channels=[a, b c]", "--target", "b c")


def test_a_config_file_names_the_settings_and_the_argument_the_data(empty: Workplace) -> None:
    table("good.csv", ROWS)(empty.folder)
    empty.path("run.yaml").write_text("data: {source: other.csv}\nmodel: {cell: lem}\ntask: {horizon: 4}\n")
    document = empty.ok("-q", "data", "check", "good.csv", "--config", "run.yaml", "--json").json
    assert (document["train"]["cell"], document["train"]["horizon"]) == ("lem", 4)


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


@pytest.mark.slow
def test_data_that_cannot_be_loaded_needs_no_torch(empty: Workplace) -> None:
    (bad,) = [bad for bad in BAD_FILES if bad.fault == "truncated gzip"]
    bad.write(empty.folder)
    assert fresh_process(empty, bad.name).stderr == "1 False\n"
    misspelled = fresh_process(empty, "digits", "--cell", "lipshitz")
    assert misspelled.stderr.endswith("2 False\n")
    assert "Unknown cell 'lipshitz'. Did you mean 'lipschitz'?" in misspelled.stderr


def test_findings_are_printed_before_the_plan_is_made(
    empty: Workplace,
) -> None:
    table("flat.csv", [f"{row.split(',')[0]},5" for row in ROWS])(empty.folder)
    result = empty.ok("data", "check", "flat.csv")
    warning, plan = result.out.index("warning: y has"), result.out.index("What `train` would do")
    assert warning < plan < result.out.index("`train` would accept this")


def test_an_option_of_the_cell_is_wrong_usage_with_a_plan_only(empty: Workplace) -> None:
    table("good.csv", ROWS)(empty.folder)
    option = ("--set", "model.cell_options={nothing: 1}")
    refused = empty("data", "check", "good.csv", *option)
    assert (refused.code, "nothing" in refused.sentence) == (2, True)
    assert refused.out.startswith("source")
    assert empty("-q", "data", "check", "good.csv", *option, "--no-plan").code == 0
    (bad,) = [bad for bad in BAD_FILES if bad.fault == "truncated gzip"]
    bad.write(empty.folder)
    assert empty("data", "check", bad.name, *option).code == 2


def test_a_file_that_is_not_there_is_wrong_usage(empty: Workplace) -> None:
    result = empty("data", "check", "no.csv")
    assert result.code == 2
    assert result.out == ""
    assert result.sentence == "No file 'no.csv'. Check the path."
    table("now.csv", ROWS)(empty.folder)
    assert empty("data", "check", "no.csv").sentence == "No file 'no.csv'. Check the path. Did you mean 'now.csv'?"


def test_a_column_of_text_that_tells_series_apart_is_named_with_its_option_here_and_in_train(empty: Workplace) -> None:
    days = [row.split(",")[0] for row in ROWS]
    rows = [f"{shop},{day},{number % 5}" for shop in ("north", "south") for number, day in enumerate(days)]
    empty.path("d.csv").write_text("\n".join(["shop,ds,y", *rows]) + "\n")
    refused = empty("-q", "train", "--data", "d.csv", "--cell", "gru")
    assert refused.sentence.endswith("set data.id_column=shop (--id-column shop).")
    checked = empty("-q", "data", "check", "d.csv", "--json").json["problems"][0]
    assert (checked["text"], checked["settings"]) == (refused.sentence, {"id_column": "shop"})


@pytest.mark.parametrize("option", [("--target", "yy"), ("--id-column", "shop"), ("--time-column", "when")])
def test_a_column_that_is_not_there_is_wrong_usage_here_and_in_train(empty: Workplace, option: tuple[str, str]) -> None:
    table("d.csv", ROWS)(empty.folder)
    checked = empty("-q", "data", "check", "d.csv", *option, "--json")
    assert checked.code == empty("-q", "train", "--data", "d.csv", "--cell", "gru", *option).code == 2
    assert checked.json["problems"][0]["code"] == "refused"


def test_sequences_without_a_label_stand_below_the_classes(empty: Workplace) -> None:
    lines = [f"{'ab'[n % 2] if n else '?'}\t{n}\t{n * n % 7}" for n in range(12)]
    empty.path("d.tsv").write_text("\n".join(lines) + "\n")
    result = empty("data", "check", "d.tsv")
    assert result.code == 1
    rows = [line.split() for line in result.out.splitlines()]
    assert ["a", "5"] in rows
    assert ["(no", "label)", "1"] in rows


@pytest.mark.parametrize("source", ["digits", "co2", "words.txt"])
def test_the_picture_is_a_png(empty: Workplace, source: str) -> None:
    empty.path("words.txt").write_text("the cat sat on the mat. " * 100)
    result = empty.ok("data", "check", source, "--plot", "look.png")
    assert empty.path("look.png").read_bytes().startswith(b"\x89PNG")
    assert "Drawn: look.png" in result.err


def test_nothing_is_drawn_of_data_that_cannot_be_loaded(empty: Workplace) -> None:
    (bad,) = [bad for bad in BAD_FILES if bad.fault == "truncated gzip"]
    bad.write(empty.folder)
    result = empty("data", "check", bad.name, "--plot", "look.png")
    assert result.code == 1
    assert f"Nothing to draw: {bad.name} cannot be loaded." in result.err
    assert not empty.path("look.png").exists()
