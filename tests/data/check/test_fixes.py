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
