"""Packed files: every text format plain, .gz and .xz, and what is cut off."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from stablernn.data import ClassificationData, ForecastData, load_data
from stablernn.data.files import detect_format, read_text_blocks
from stablernn.errors import DataError

CSV = "ds,y\n" + "".join(f"{i},{i % 7}\n" for i in range(60))
TSV = "".join(f"{i % 2}\t{i}\t2\n" for i in range(8))
TS = "@classLabel true 0 1\n@data\n" + "".join(f"{i},2:{i % 2}\n" for i in range(8))
ARFF = "@relation x\n@attribute a numeric\n@attribute b numeric\n@attribute c {0,1}\n@data\n" + "".join(
    f"{i},2,{i % 2}\n" for i in range(8)
)
TEXTS = {"d.csv": CSV, "d.tsv": TSV, "d.ts": TS, "d.arff": ARFF}
PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("name", TEXTS)
def test_packed_text_is_the_same_data(tmp_path: Path, name: str, packed: str) -> None:
    (tmp_path / name).write_text(TEXTS[name])
    (tmp_path / (name + packed)).write_bytes(PACK[packed](TEXTS[name].encode()))
    plain, unpacked = load_data(tmp_path / name), load_data(tmp_path / (name + packed))
    assert isinstance(unpacked, ClassificationData | ForecastData)
    assert unpacked.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("d.csv.gz", CSV.encode(), "plain text and not gzip data. Rename it to 'd.csv', or fetch it again."),
        ("d.csv", gzip.compress(CSV.encode()), "gzip data. Rename it to 'd.csv.gz'."),
        ("d.csv.xz", lzma.compress(CSV.encode())[:-12], "cut off or is not xz data ("),
        ("d.csv.xz", gzip.compress(CSV.encode()), "gzip data and not xz data. Unpack or rename it."),
        ("d.ts", CSV.encode("utf-16"), "UTF-16 text. Save it as UTF-8."),
        ("d.csv", b"PAR1\x15\x04", "a Parquet file. Rename it to 'd.parquet'."),
        ("d.ts", b"<!DOCTYPE html>\n<html>", "a web page. Fetch the file again."),
        ("d.parquet", CSV.encode(), "plain text and not Parquet data. Give it the ending of its format, such as .csv."),
    ],
)
def test_another_kind_of_file_than_its_name_says_is_named(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_data(tmp_path / name)
    assert str(caught.value).startswith(f"'{name}' is {sentence}")


def test_endings_are_read_in_any_case() -> None:
    assert [detect_format(Path(name)) for name in ("A.CSV.GZ", "b.Ts.xZ", "c.PARQUET")] == [".csv", ".ts", ".parquet"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 64])
@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n3,4\n",
        'a,"b\nc"\n"1\n2",3\n4,5',
        "a\r\n1\r\n2\r\n",
        "a\r1\r2\r",
        "\n\na\n\n\n1\n\n",
        'a"b\n1\n2\n',
        "é,ü\nß\n",
    ],
    ids=["plain", "quoted breaks", "windows", "old mac", "blank lines", "stray quote", "two bytes"],
)
def test_blocks_are_the_whole_text_and_end_at_ends_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int
) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(text.encode())
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", size)
    blocks = list(read_text_blocks(path))
    assert "".join(blocks) == text.replace("\r\n", "\n").replace("\r", "\n")
    for block in blocks[:-1]:
        assert block.endswith("\n")
        assert block.count('"') % 2 == 0 or text.count('"') % 2


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_byte_that_is_no_text_is_named_by_its_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b"ds,y\n1,2\n2,\x81\n")
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", size)
    with pytest.raises(DataError, match=r"'d\.csv' is neither UTF-8 nor Windows-1252 text \(line 3 has the"):
        list(read_text_blocks(path))
