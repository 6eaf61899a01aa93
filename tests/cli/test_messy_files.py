"""From a file as another program wrote it to a forecast, by what `data check --fix` writes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cli_helpers import UNPLOTTED, Workplace, run_alone
from messy_files import MESSY_FILES, MessyFile, write_local_spring
from stablernn_registry import Registry

SMALL = "--cell lipschitz --hidden-size 4 --max-steps 2 --set model.scaling=standard"
BY_DEFECT = {messy.defect: messy for messy in MESSY_FILES}
FORECAST = "--horizon 6 --context-length 24"


def repaired(folder: Path, messy: MessyFile) -> Workplace:
    """A workplace with a published model ``meters``, trained by what the check wrote."""
    place = Workplace(folder)
    messy.write(folder)
    report = place.ok(f"data check {messy.name} {FORECAST} --no-plan --fix config.yaml")
    assert "Train with: stablernn train --config config.yaml" in report.err
    settings = yaml.safe_load(place.path("config.yaml").read_text())["data"]
    categories = {"categories": list(messy.fixes["categories"])} if "categories" in messy.fixes else {}
    expected = {key: value for key, value in messy.fixes.items() if key != "aggregate"}
    assert settings == {"source": messy.name, **expected, **categories}
    place.ok(f"-q train --config config.yaml {SMALL} {UNPLOTTED} --run-dir run")
    place.ok("-q export run --name meters")
    return place


QUICK = "local times, duplicates, semicolons"


@pytest.mark.parametrize(
    "defect", [pytest.param(defect, marks=() if defect == QUICK else pytest.mark.slow) for defect in BY_DEFECT]
)
def test_a_messy_file_becomes_a_forecast(tmp_path: Path, defect: str) -> None:
    rows = repaired(tmp_path, BY_DEFECT[defect]).document(f"predict meters --input {BY_DEFECT[defect].name}")
    assert np.isfinite([row["mean"] for row in rows["predictions"]]).all()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return repaired(tmp_path_factory.mktemp("messy"), BY_DEFECT["local times, a short series, text"])


def test_run_and_version_record_the_repairs_and_their_counts(place: Workplace) -> None:
    notes = json.loads(place.path("run/data.json").read_text())["notes"]
    assert (notes["local_times_converted"], notes["repeated_hour_rows"]) == (1929, 8)
    assert notes["series_without_training"] == {"count": 1, "first": ["m9"]}
    version = Registry(place.registry).get("meters")
    repairs = version.manifest.preprocessing["repairs"]
    assert repairs == {
        "timezone": "Europe/Berlin",
        "categories": {"region": ["north", "south"]},
    }
    card = version.read("README.md").decode()
    for row in ("| repairs.timezone | Europe/Berlin |", "| data.notes.repeated_hour_rows | 8 |"):
        assert row in card


def test_predict_repairs_in_the_same_way_without_torch_and_says_so(place: Workplace) -> None:
    result, has_torch = run_alone(place, "predict meters --input d.csv --output alone.csv")
    assert (result.code, has_torch) == (0, False), result.err
    assert "Note: repaired: 1929 local times converted to UTC, 8 rows in an hour that comes twice" in result.err
    lines = place.path("alone.csv").read_text().splitlines()
    # The last local time is 01:00 in Berlin.
    assert lines[1].startswith("m0,2023-11-07T00:00:00Z,")


def test_another_file_may_need_other_repairs(place: Workplace) -> None:
    header, *rows = place.path("d.csv").read_text().splitlines()
    place.path("swapped.csv").write_text("\n".join([header, *reversed(rows)]) + "\n")
    assert "set data.sort=true" in place.refusal("predict meters --input swapped.csv", code=1)
    repaired = place.ok("predict meters --input swapped.csv --set data.sort=true")
    assert "rows out of order, sorted" in repaired.err
    # Rows of the repeated hour are told apart by their order, which is reversed here.
    straight = place.ok("predict meters --input d.csv").out.splitlines()
    assert sorted(line[:25] for line in repaired.out.splitlines()) == sorted(line[:25] for line in straight)
    scores = place.document("eval meters --data swapped.csv --set data.sort=true")
    assert scores["data_notes"]["counts"]["rows_sorted"] > 0


@pytest.mark.parametrize("command", ["predict meters --input d.csv", "eval meters"])
@pytest.mark.parametrize("override", ["data.categories=[region]", "data.min_length=3", "training.lr=1"])
def test_what_makes_the_inputs_of_a_model_stays(place: Workplace, command: str, override: str) -> None:
    assert place.refusal(f"{command} --set", override) == (
        "--set takes repairs of the file here (data.sheet, data.decimal_mark, data.thousands_mark, "
        "data.date_format, data.missing, data.timezone, data.sort, data.on_duplicate, data.unknown_category, "
        f"data.resample, data.aggregate), got '{override}'."
    )


@pytest.mark.slow
def test_numbers_are_read_as_those_of_the_training_data(tmp_path: Path) -> None:
    """In a file that alone leaves them open; in the other direction the file says that it is written otherwise."""
    place = Workplace(tmp_path)
    cells = ["980", "1.017,50", "994", "1.031,50", "1.008"] * 30
    rows = [f"{np.datetime64('2024-01-01') + day};{cell}" for day, cell in enumerate(cells)]
    place.path("d.csv").write_text("\n".join(["ds;y", *rows]) + "\n")
    place.ok(f"-q train --data d.csv --horizon 2 --context-length 4 {SMALL} {UNPLOTTED} --run-dir run")
    place.ok("-q export run --name meters")
    marked = "\n".join(["ds;y", *(row.replace(",50", "") for row in rows)]) + "\n"
    place.path("marked.csv").write_text(marked)
    place.path("plain.csv").write_text(marked.replace(".", ""))
    for model in ("run", "meters"):
        answers = [place.ok(f"predict {model} --input {name}").out for name in ("marked.csv", "plain.csv")]
        assert answers[0].replace("marked", "plain") == answers[1]
    place.path("points.csv").write_text(marked.replace("980", "980.25"))
    assert "data.decimal_mark='.'" in place.refusal("predict meters --input points.csv", code=1)
    place.ok("predict meters --input points.csv --set data.decimal_mark=.")
    # Between commas points are decimal ones, of which the mark of the training data makes no thousands.
    place.path("commas.csv").write_text(marked.replace("980", "9.800").replace("994", "9.940").replace(";", ","))
    assert "9940 if the point separates thousands, 9.940 if" in place.refusal(
        "predict meters --input commas.csv", code=1
    )
    place.ok("predict meters --input commas.csv --set data.decimal_mark=.")
    place.ok("predict meters --input commas.csv --set data.thousands_mark=.")


def test_local_times_over_the_skipped_hour_need_a_zone_that_nobody_can_see(tmp_path: Path) -> None:
    """The hour is a gap in the file; with the zone it is none."""
    place = Workplace(tmp_path)
    write_local_spring(tmp_path)
    plain: Any = place.document("data check d.csv --no-plan")
    zoned: Any = place.ok("data check d.csv --no-plan --json --set data.timezone=Europe/Berlin").json
    assert (plain["content"]["gap_steps_filled"], zoned["content"]["gap_steps_filled"]) == (3, 0)
    assert zoned["notes"]["skipped_hours"] == 3


@pytest.mark.parametrize(
    ("fix", "code", "sentence"),
    [
        ("config.json", 2, "--fix must end in .yaml or .yml, got 'config.json'. Choose another name."),
        ("old.yaml", 2, "--fix 'old.yaml' exists already. Remove it, or choose another name."),
    ],
)
def test_a_configuration_is_not_written_over_or_beside_its_kind(
    tmp_path: Path, fix: str, code: int, sentence: str
) -> None:
    place = Workplace(tmp_path)
    (tmp_path / "old.yaml").write_text("data: {source: d.csv}\n")
    BY_DEFECT["Latin-1"].write(tmp_path)
    result = place(f"data check d.csv --fix {fix}")
    assert (result.code, result.sentence) == (code, sentence)


def test_a_target_that_is_guessed_is_named_in_the_configuration(tmp_path: Path) -> None:
    """The problem that is found first, here a repeated time, says nothing of the target."""
    place = Workplace(tmp_path)
    rows = [f"2024-01-{day:02d},{day % 7},{day % 5}" for day in range(1, 31)]
    (tmp_path / "wide.csv").write_text("\n".join(["ds,south,north", *rows, rows[-1]]) + "\n")
    place.ok("data check wide.csv --no-plan --fix config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert yaml.safe_load(text)["data"]["target"] == ["north"]
    (comment,) = [line for line in text.splitlines() if line.startswith("# data.target: ")]
    assert comment == (
        "# data.target: guessed, and `train` refuses the data without it. Replace it if you mean another. Where each "
        "column is a series to forecast, set data.channels_as_series=true in its place."
    )


def test_what_no_option_mends_is_not_written(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    (tmp_path / "d.csv").write_text("ds,y\n2024-01-01,1\nsoon,2\n")
    assert place.refusal("data check d.csv --no-plan --fix config.yaml", code=1).startswith(
        "'config.yaml' is not written: no option mends all of 'd.csv'. 'd.csv' row 3"
    )
    assert place("data check d.csv --no-plan").out.endswith("refuse this: 1 problem, 0 warnings.\n")
    assert not place.path("config.yaml").exists()


def test_a_problem_is_listed_once_with_options_that_can_be_copied(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    rows = [f"{day:02d}/01/2024,{day % 7}" for day in range(1, 31)]
    rows[3], rows[20] = rows[20], rows[3]
    (tmp_path / "d.csv").write_text("\n".join(["ds,y", *rows, rows[8]]) + "\n")
    report: Any = place("data check d.csv --no-plan --json").json
    assert [problem["code"] for problem in report["problems"]] == ["refused", "time_twice", "not_sorted"]
    printed = place("data check d.csv --no-plan").out
    (options,) = {line.strip() for line in printed.splitlines() if "on_duplicate" in line and "sort" in line}
    assert "data.date_format='%d/%m/%Y'" in shlex.split(options)
    place.ok("data check d.csv --no-plan", *shlex.split(options))
