"""The benchmark of what staying certified costs: which runs are compared, and the tables of its page."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark_scripts import script, stored_results
from packages import ROOT


@pytest.fixture
def certified() -> Any:
    return script("certified")


def run(cell: str, seed: int, value: float, *, is_certified: bool) -> dict[str, Any]:
    place = {"data": "digits", "cell": cell, "certified": is_certified, "seed": seed}
    return {
        **place,
        "figure": "accuracy",
        "value": value,
        "kind": "contracting",
        "contraction_rate": 0.9,
        "seconds": 2.0,
    }


def test_a_seed_that_only_one_side_has_does_not_count(certified: Any) -> None:
    pairs = [
        run("lipschitz", 0, 0.9, is_certified=False),
        run("lipschitz", 1, 0.8, is_certified=False),
        run("lru", 0, 0.92, is_certified=True),
        run("lru", 1, 0.82, is_certified=True),
    ]
    row = (
        "| `lru` | 2 on 1 | +2.00 (+2.00 to +2.00) | - | contracting | 0.9000 | 1.00 | 5.0 by `onnx`, 4.0 by `native` |"
    )
    steps = {"lru": {"onnx": 5.0, "native": 4.0}}
    assert row in certified.price_table(pairs, steps)
    # A bad third seed of the free cell alone would make the certified one look 14 points better.
    unpaired = run("lipschitz", 2, 0.5, is_certified=False)
    assert row in certified.price_table([*pairs, unpaired], steps)
    (line,) = certified.figures_table([*pairs, unpaired]).splitlines()[2:]
    assert line.startswith("| digits | accuracy | 0, 1, 2; `lru` 0, 1 |")


def test_a_cell_without_a_seed_in_common_has_no_price(certified: Any) -> None:
    rows = [run("lipschitz", 0, 0.9, is_certified=False), run("lru", 1, 0.92, is_certified=True)]
    assert "| `lru` | none | - | - | contracting | 0.9000 | - | - |" in certified.price_table(rows, {})


def test_the_tables_of_the_documentation_are_those_of_the_stored_runs(certified: Any) -> None:
    stored = stored_results("certified")
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    rows = stored["runs"]
    for table in (certified.figures_table(rows), certified.price_table(rows, stored["steps"])):
        assert f"\n{table}\n" in page


@pytest.mark.parametrize(
    ("comparison", "page"),
    [("certified", "stability.md"), ("channels", "classification.md"), ("mixed-members", "choosing.md")],
)
def test_the_table_of_folds_is_that_of_the_stored_scores(certified: Any, comparison: str, page: str) -> None:
    cross_validation = script("cross_validation")
    stored = stored_results("cross_validation")
    rows = [row for row in stored if row["comparison"] == comparison]
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"\n{cross_validation.table(comparison, rows)}\n" in text


def test_the_table_of_long_sequences_is_that_of_the_stored_times(certified: Any) -> None:
    long_sequences = script("long_sequences")
    rows = stored_results("long_sequences")
    text = (ROOT / "docs" / "long_sequences.md").read_text(encoding="utf-8")
    for table in (long_sequences.format_table(rows), long_sequences.format_widths(rows)):
        assert f"\n{table}\n" in text
