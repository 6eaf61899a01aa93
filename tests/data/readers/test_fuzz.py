"""Whatever stands in a file, it is read or refused with one sentence; nothing else is ever raised."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn.data import ClassificationData, ForecastData, load_data
from stablernn.errors import StableRNNError

CELLS = [
    "",
    "1",
    "2",
    "-3.5",
    "1e400",
    "nan",
    "?",
    "NaN",
    "abc",
    "2024-01-01",
    "2024-01-02",
    "2024-01",
    '"',
    "'",
    "\x00",
    "é",
]
HEADERS = ["ds,y", "unique_id,ds,y", "date,a,b", "y", ",", '"', "ds,ds", "unique_id,ds,a,label", "label,ds,unique_id"]
ARFF_LINES = [
    "@relation x",
    "@attribute a numeric",
    "@attribute 'b c' real",
    "@attribute r relational",
    "@end r",
    "@attribute c {a,'b c'}",
    "@attribute d date",
    "@attribute",
    "@data",
    "1,a",
    "1,2,'b c'",
    r"'1\n2',a",
    r"'1,2\n3,4',a",
    "{0 1}",
    "'",
    ",",
]
TS_LINES = [
    "@data",
    "@classLabel true a b",
    "@classLabel false",
    "@",
    "#",
    "@timeStamps true",
    "@equalLength true",
    "@univariate true",
    "@missing",
    "(0,1),(1,2):a",
    "(2024-01-01 00:00,1):(5,?):b",
    "1:a",
    "1,2:b",
    ":",
    "1:2:a",
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def fault(folder: Path, name: str, content: bytes) -> str | None:
    """Return what is wrong with how a file is read or refused; None if nothing is."""
    path = folder / name
    path.write_bytes(content)
    try:
        data = load_data(path)
    except StableRNNError as error:
        text = str(error)
        return None if text.endswith(".") and "\n" not in text else f"no sentence of one line: {text!r}"
    values = []
    if isinstance(data, ClassificationData):
        values = [data.train.x]
    elif isinstance(data, ForecastData):
        values = [series.values for series in data.series]
    return "infinite values" if any(np.isinf(array).any() for array in values) else None


ROWS = st.lists(st.lists(st.sampled_from(CELLS), min_size=1, max_size=4), max_size=8)


def test_quotes_that_span_lines(tmp_path: Path) -> None:
    for text in ('unique_id,ds,y\n",\n,",1', 'ds,y\n",1'):
        assert fault(tmp_path, "d.csv", text.encode()) is None


def joined(delimiter: str) -> st.SearchStrategy[list[str]]:
    return ROWS.map(lambda rows: [delimiter.join(row) for row in rows])


# What lies before the lines of a file, and the lines, by the name of the file.
LINES: dict[str, tuple[st.SearchStrategy[str], st.SearchStrategy[list[str]]]] = {
    "d.csv": (st.sampled_from(HEADERS), joined(",")),
    "d.tsv": (st.just("1\t2"), joined("\t")),
    "d.ts": (st.sampled_from(["@classLabel true a b\n@data", "#"]), st.lists(st.sampled_from(TS_LINES), max_size=8)),
    "d.arff": (st.just("@attribute a numeric"), st.lists(st.sampled_from(ARFF_LINES), max_size=8)),
}


@pytest.mark.parametrize("name", ["d.csv", *(pytest.param(name, marks=pytest.mark.slow) for name in [*LINES][1:])])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_lines(folder: Path, name: str, data: st.DataObject) -> None:
    head, lines = LINES[name]
    assert fault(folder, name, "\n".join([data.draw(head), *data.draw(lines)]).encode()) is None


BINARY_NAMES = ["d.csv", "d.tsv", "d.ts", "d.arff", "d.npz", "d.parquet", "d.csv.gz", "d.ts.xz"]


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=200), name=st.sampled_from(BINARY_NAMES))
def test_bytes(folder: Path, content: bytes, name: str) -> None:
    assert fault(folder, name, content) is None


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_npz_with_a_flipped_bit(folder: Path, position: int, bit: int) -> None:
    path = folder / "whole.npz"
    np.savez(path, x=np.zeros((4, 2)), y=np.array([0, 0, 1, 1]))
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    assert fault(folder, "d.npz", bytes(content)) is None
