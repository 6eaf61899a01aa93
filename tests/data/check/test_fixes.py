"""Settings that mend files as other programs write them: what a check proposes makes the data load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messy_files import MESSY_FILES, MessyFile
from stablernn.data import ForecastData, load_data
from stablernn.data.check import check_data

DEFAULTS = {"aggregate": "mean"}


def proposed(folder: Path, messy: MessyFile) -> dict[str, Any]:
    messy.write(folder)
    return check_data(folder / messy.name).fixes


def as_settings(fixes: dict[str, Any]) -> dict[str, Any]:
    """The settings as a configuration states them."""
    categories = fixes.get("categories")
    settings = fixes | ({"categories": dict.fromkeys(categories, [])} if categories else {})
    return settings | ({"target": [settings["target"]]} if "target" in settings else {})


@pytest.mark.parametrize("messy", MESSY_FILES, ids=lambda messy: messy.defect)
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
