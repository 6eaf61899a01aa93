"""Settings that mend files as other programs write them: what a check proposes makes the data load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from messy_files import MESSY_FILES, MessyFile
from stablernn.data import ForecastData, load_data
from stablernn.data.check import check_data

DEFAULTS = {"aggregate": "mean"}
# Files with several defects have these as well.
WITH_OTHERS = ("semicolons, decimal commas, days first", "clocks go back", "exact duplicates", "unsorted rows")
WITH_OTHERS += ("one short series", "codes for missing values", "a column of text", "a workbook")


def proposed(folder: Path, messy: MessyFile) -> dict[str, Any]:
    messy.write(folder)
    return check_data(folder / messy.name).fixes


def as_settings(fixes: dict[str, Any]) -> dict[str, Any]:
    """The settings as a configuration states them."""
    categories = fixes.get("categories")
    settings = fixes | ({"categories": dict.fromkeys(categories, [])} if categories else {})
    return settings | ({"target": [settings["target"]]} if "target" in settings else {})


@pytest.mark.parametrize(
    "messy",
    [pytest.param(messy, marks=[pytest.mark.slow] * (messy.defect in WITH_OTHERS)) for messy in MESSY_FILES],
    ids=[messy.defect for messy in MESSY_FILES],
)
def test_what_a_check_proposes_makes_the_data_load(tmp_path: Path, messy: MessyFile) -> None:
    fixes = proposed(tmp_path, messy)
    assert DEFAULTS | as_settings(fixes) == DEFAULTS | messy.fixes
    data = load_data(tmp_path / messy.name, **fixes)
    assert isinstance(data, ForecastData)
    assert {name: data.notes[name] for name in messy.facts} == messy.facts
    report = check_data(tmp_path / messy.name, **fixes)
    assert report.ok
    assert report.fixes == {}


def test_labeled_tables_are_mended_as_series_are(tmp_path: Path) -> None:
    rows = [
        f"{name};{step};{step % (3 + kind)},5;{('low', 'high')[step % 2]};{('walk', 'rest')[kind]}"
        for kind in (0, 1)
        for name in (f"{kind}{number}" for number in range(6))
        for step in (0, 2, 1, 3, 3)
    ]
    (tmp_path / "d.csv").write_text("\n".join(["unique_id;ds;x;level;label", *rows]) + "\n")
    report = check_data(tmp_path / "d.csv")
    assert (report.task, report.fixes) == ("classify", {"categories": ["level"], "sort": True, "on_duplicate": "last"})
    data = load_data(tmp_path / "d.csv", **report.fixes)
    assert data.features == ("x", "level=high", "level=low")
    assert (data.notes["rows_sorted"], data.notes["duplicate_rows"]) == (12, 12)


def _home_assistant(entities: Sequence[str]) -> str:
    """A history: one entity after the other, recorded when it changed, with states that are no numbers."""
    rows = [
        f"{entity},{'unavailable' if step == 40 else 100 + step % 7},"
        f"2024-03-01T{step // 60:02}:{step % 60:02}:{second:02}.000Z"
        for second, entity in enumerate(entities)
        for step in range(300)
    ]
    return "\n".join(["entity_id,state,last_changed", *rows])


def _influx(sensors: Sequence[str]) -> str:
    """A table of readings every quarter of an hour."""
    rows = [
        f",,{table},2024-03-01T00:00:00Z,2024-04-01T00:00:00Z,{np.datetime64('2024-03-01T00:00:00') + 900 * step}Z,"
        f"{20 + step % 8},temp,{sensor}"
        for table, sensor in enumerate(sensors)
        for step in range(600)
    ]
    names = ",result,table,_start,_stop,_time,_value,_field,sensor"
    return "\n".join(["#group,false", "#datatype,string", "#default,mean", names, *rows])


@pytest.mark.parametrize(
    ("text", "fixes"),
    [
        (
            _home_assistant(["sensor.load"]),
            {"time_column": "last_changed", "missing": ["unavailable"], "channels": ["state"]},
        ),
        (
            _home_assistant(["sensor.load", "sensor.temp"]),
            {"time_column": "last_changed", "missing": ["unavailable"], "id_column": "entity_id"},
        ),
        (_influx(["s1"]), {"time_column": "_time", "channels": ["_value"]}),
    ],
    ids=["one entity", "two entities", "InfluxDB"],
)
def test_exports_of_other_programs_are_mended(tmp_path: Path, text: str, fixes: dict[str, Any]) -> None:
    (tmp_path / "d.csv").write_text(text + "\n")
    report = check_data(tmp_path / "d.csv")
    assert report.fixes == fixes
    assert isinstance(load_data(tmp_path / "d.csv", **report.fixes), ForecastData)


@pytest.mark.parametrize("number", ["1.017,5", "(7)", "5%", "<5"])
def test_numbers_with_other_marks_are_no_codes_of_missing_values(tmp_path: Path, number: str) -> None:
    rows = [f"{np.datetime64('2024-01-01') + day};{cell}" for day, cell in enumerate(["985.25", number, "994"] * 30)]
    (tmp_path / "d.csv").write_text("\n".join(["ds;y", *rows]) + "\n")
    report = check_data(tmp_path / "d.csv")
    assert not report.ok
    assert report.fixes == {}
