"""Trained numbers of a cell are those of its paper."""

from __future__ import annotations

import pytest

from reference.counts import FORMULAS, PUBLISHED, Published, output_size, total
from stablernn import create_cell, list_cells


def _trained(key: str, input_size: int, hidden_size: int) -> int:
    return sum(parameter.numel() for parameter in create_cell(key, input_size, hidden_size).parameters())


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.key}-N{row.N}-m{row.m}")
def test_the_formula_gives_the_published_count(row: Published) -> None:
    assert total(row.key, row.N, row.m, row.o, row.symbols) == row.expected


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.key}-N{row.N}-m{row.m}")
def test_cell_with_decoder_and_embedding_has_the_published_count(row: Published) -> None:
    decoder = output_size(row.key, row.N) * row.o + row.o
    assert _trained(row.key, row.m, row.N) + decoder + row.symbols * row.m == row.expected


@pytest.mark.parametrize("key", list_cells())
def test_a_decoder_reads_as_many_numbers_as_the_cell_gives(key: str) -> None:
    assert create_cell(key, 3, 8).output_size == output_size(key, 8)


def test_every_cell_of_the_catalog_has_a_formula() -> None:
    assert set(list_cells()) <= set(FORMULAS)


@pytest.mark.parametrize(("N", "m"), [(1, 1), (7, 3), (64, 88)])
@pytest.mark.parametrize("key", list_cells())
def test_a_cell_has_as_many_trained_numbers_as_its_formula(key: str, N: int, m: int) -> None:
    assert _trained(key, m, N) == FORMULAS[key](N, m)
