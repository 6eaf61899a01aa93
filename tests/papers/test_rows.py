"""Every row of every table is a model that trains, and has the published number of parameters or says why not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stablernn.data import dataset_info
from stablernn_papers.kinds.trained import hidden_size
from stablernn_papers.table import FULL, SHORT, DataSet, Row, Table, matches_print, sources
from stablernn_papers.tables import TABLES
from table_rows import LABELED, STEPWISE, count_parameters, plan_row, train_two_steps

TRAINED = [table for table in TABLES.values() if table.settings]


def shape(data: DataSet) -> tuple[object, ...]:
    source = data.settings["data.source"].value
    return LABELED.get(source) or STEPWISE[source]


def rows_of_different_shapes() -> list[tuple[Table, Row, DataSet]]:
    """Each row of each table once for each shape of its data."""
    found: dict[tuple[object, ...], tuple[Table, Row, DataSet]] = {}
    for table in TRAINED:
        for data in table.data:
            for row in table.rows_on(data):
                found.setdefault((table.key, row.key, shape(data)), (table, row, data))
    return list(found.values())


@pytest.mark.parametrize(
    ("table", "row", "data"),
    [
        pytest.param(
            *(table, row, data),
            id=f"{table.key}-{row.key}-{data.key}",
            marks=[] if row == table.rows[0] else pytest.mark.slow,
        )
        for table, row, data in rows_of_different_shapes()
    ],
)
def test_a_row_trains_at_full_size_and_its_size_is_the_printed_one(table: Table, row: Row, data: DataSet) -> None:
    # Sizes without a number are matched by the table; its own test counts them.
    model, losses = train_two_steps(*plan_row(table, row, data, row.hidden_size or 8))
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[0] != losses[1]
    printed = row.published_parameters.get(data.key)
    if printed is not None and not matches_print(count_parameters(model), printed):
        assert row.reason


@pytest.mark.parametrize(
    ("count", "text", "expected"),
    [
        (34_314, "34K", True),
        (134_666, "134K", True),
        (135_001, "134K", False),
        (1_327_000, "1.32M", True),
        (1_331_000, "1.32M", False),
    ],
)
def test_a_print_stands_for_the_numbers_within_its_last_digit(count: int, text: str, expected: bool) -> None:
    assert matches_print(count, text) is expected


@pytest.mark.slow
def test_the_sizes_of_polyphonic_are_those_with_equally_many_parameters() -> None:
    table = TABLES["polyphonic"]

    def count(row: Row, size: int) -> int:
        task, config = plan_row(table, row, table.data[0], size)
        return count_parameters(task.build_model(config))

    for row in table.rows:
        assert hidden_size(table, replace(row, hidden_size=None), count) == row.hidden_size or row.key == "exprnn"


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_table_is_consistent_in_itself(table: Table) -> None:
    keys = [row.key for row in table.rows]
    assert len(set(keys)) == len(keys)
    names = {data.key for data in table.data}
    assert len(names) == len(table.data)
    for row in table.rows:
        assert {*row.published, *row.published_parameters, *row.data_settings} <= names
        for data in table.data:
            columns = [column for column in table.columns_of(data) if column.is_published]
            assert len(row.published.get(data.key, ())) <= len(columns)
            assert {*sources(table.run_settings(row, data, FULL)).values()} <= {"paper", "released code", "ours"}
    for data in table.data_sets(SHORT):
        columns = [column.key for column in table.columns_of(data)]
        assert len(set(columns)) == len(columns)
    assert table.full.seeds
    assert table.short.seeds


@pytest.mark.parametrize("table", TRAINED, ids=lambda table: table.key)
def test_the_short_protocol_needs_no_files_unless_the_full_one_is_small(table: Table) -> None:
    if table.key != "robustness":
        for data in table.data_sets(SHORT):
            info = dataset_info(data.settings["data.source"].value)
            assert not info.files
