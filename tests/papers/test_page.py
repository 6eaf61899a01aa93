"""The stored results of a table are of its protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reproductions import STORED
from stablernn.atomic_files import to_json_types
from stablernn_papers.tables import TABLES

ROOT = Path(__file__).parents[2]
TABLE = TABLES["robustness"]


@pytest.fixture
def results() -> dict[str, Any]:
    path = ROOT / STORED / "robustness" / "results.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def test_the_results_are_of_the_protocol_as_it_is(results: dict[str, Any]) -> None:
    document = to_json_types(TABLE.full.document())
    assert {key: results["protocol"][key] for key in document} == document
    assert results["protocol"]["headline"] == to_json_types(TABLE.headline)
    assert (results["state"], results["missing"]) == ("full", [])
