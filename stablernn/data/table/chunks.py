"""Tables in chunks of some hundred thousand rows, so that no file must fit into memory: CSV, Parquet and workbooks.

Of CSV, what separates the columns and which lines precede the header is recognized. A sheet of a workbook, which has a
million rows at most, is one chunk; only values are read, so formulas and merged cells are refused.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from xml.etree import ElementTree

import polars as pl

from stablernn import errors
from stablernn.data.files import check_binary, detect_format, read_text_blocks
from stablernn.data.messages import format_names, pluralize, quote
from stablernn.data.options import Repairs
from stablernn.data.sequences import default_channel_names
from stablernn.data.table.cells import MISSING_CELLS, NumberMarks
from stablernn.data.types import Notes

if TYPE_CHECKING:
    from fastexcel import ExcelReader

CHUNK_CELLS = 1 << 21
"""Cells of a chunk: enough to be fast, few enough for a small machine."""
_MIN_CHUNK_ROWS = 1 << 12
_HEADER_BYTES = 1 << 18
"""Beginning of a CSV file by which its header is recognized; more where a row is longer."""
# A second table with annotations of its own.
_ANNOTATION = re.compile(r"^#(?:group|datatype|default)\b", re.MULTILINE)
# A panic of polars is no Exception; a few flipped bits cause one.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
# The header of a sheet is row 1 and numbering starts at 1, so this is what spreadsheets show.
_FIRST_ROW = {".parquet": 1, ".xlsx": 2}

#: What may separate columns, with the name in messages; of equally good ones the first is taken.
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAMPLE_ROWS = 50
# Numbers with a decimal comma, perhaps with points between thousands; numbers and times as every table has them.
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?")
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|\d{4}[-/]\d\d?([-/]\d\d?([ T][\d:.+Zz-]*)?)?|")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|inf(inity)?)([eE][+-]?\d+)?", re.IGNORECASE)
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
# Excel takes the delimiter from a first line; InfluxDB writes annotations of the columns before their names.
_EXCEL_LINE = re.compile(r'"?sep=([,;\t|])"?[ ,;\t|]*\n', re.IGNORECASE)
_ANNOTATIONS = re.compile(r"(?:#(?:group|datatype|default)\b.*\n)+")
_MERGED = re.compile(rb'<(?:\w+:)?mergeCell [^>]*?ref="([^"]+)"')
_FORMULA = re.compile(rb'<(?:\w+:)?c [^>]*?r="([A-Z]+\d+)"[^>]*>\s*<(?:\w+:)?f[\s>/]')
# Of archives that are damaged, encrypted, or packed in a way that zipfile does not know.
_DAMAGED_ARCHIVE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError, OSError)
_BLOCK_BYTES = 1 << 22
# Longer than the beginning of any cell, so that none is cut by the end of a block.
_OVERLAP_BYTES = 1 << 10
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def first_row_number(path: Path) -> int:
    """Return the number of the first row of data."""
    file_format = detect_format(path)
    return _read_header(path).first_row if file_format == ".csv" else _FIRST_ROW[file_format]


def read_column_names(path: Path, repairs: Repairs | None = None, *, may_lack_names: bool = False) -> list[str]:
    """Return the names of a table's columns.

    Args:
        path: The table.
        repairs: Used is the sheet of a workbook.
        may_lack_names: As of :func:`read_header`.

    Raises:
        UnknownNameError: If there is no such file or sheet.
        DataError: If it is not a table.
    """
    file_format = detect_format(path)
    if file_format == ".csv":
        first, *others = _read_header(path, may_lack_names=may_lack_names).names
        return [first, *filter(None, others)]
    if file_format == ".xlsx":
        names = read_sheet_names(path, repairs.sheet if repairs is not None else None)
        check_names(path, names)
        if "" in names[1:]:
            raise _unnamed_column_error(path, names.index("", 1))
        return names
    return list(_scan_parquet(path).collect_schema())


def read_chunks(
    path: Path,
    columns: Sequence[str],
    notes: Notes | None = None,
    repairs: Repairs | None = None,
    *,
    verbatim: Sequence[str | None] = (),
    cells: int = CHUNK_CELLS,
    is_lenient: bool = False,
    may_lack_names: bool = False,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of a table in their order, with at least these columns; cells of a CSV file are text.

    Args:
        path: The table.
        columns: The columns that are needed.
        notes: Gets, of CSV, ``short_rows``, rows with too few cells, whose missing cells are null; ``encoding`` and
            ``delimiter`` where they are not UTF-8 and commas; and what :class:`NumberMarks` adds. Complete after the
            last row.
        repairs: Used are the sheet of a workbook and the marks of numbers.
        verbatim: Columns whose text is not read as numbers, such as times and names of series. Numbers in the others
            are written as ``1017.5``.
        cells: Cells of a chunk of Parquet.
        is_lenient: Whether numbers stay as they are in a column that :class:`NumberMarks` would refuse.
        may_lack_names: As of :func:`read_header`.

    Raises:
        DataError: If the file is not a whole table, or has no rows, or the marks of a column's numbers are open.
    """
    notes, repairs = Notes() if notes is None else notes, repairs or Repairs()
    file_format = detect_format(path)
    header = _read_header(path, may_lack_names=may_lack_names) if file_format == ".csv" else None

    def read(notes: Notes) -> Iterator[pl.DataFrame]:
        if header is not None:
            return _read_csv_chunks(path, header, notes)
        return (
            iter([read_sheet(path, repairs.sheet)])
            if file_format == ".xlsx"
            else _read_parquet_chunks(path, columns, cells)
        )

    # Programs write semicolons where a comma is the decimal mark.
    usual = "," if header is not None and header.delimiter == ";" else "."
    marks = NumberMarks(
        path.name,
        repairs,
        usual,
        lambda: read(Notes()),
        notes,
        is_certain=header is not None and header.delimiter in (",", ";"),
        is_lenient=is_lenient,
    )
    numeric = [name for name in dict.fromkeys(columns) if name not in verbatim]
    return (marks.replace(chunk, numeric) for chunk in read(notes))


def _read_csv_chunks(path: Path, header: Header, notes: Notes) -> Iterator[pl.DataFrame]:
    if header.delimiter != ",":
        notes["delimiter"] = DELIMITERS[header.delimiter]
    num_rows, end = 0, header.end
    for text in read_text_blocks(path, notes):
        body, end = text[end:], max(0, end - len(text))
        if header.is_annotated and (table := _ANNOTATION.search(body)):
            row = num_rows + header.first_row + body.count("\n", 0, table.start())
            raise errors.DataError(
                f"'{path.name}' row {row} begins another table of InfluxDB's annotated CSV. Write each table to a file."
            )
        try:
            # With the header in front every block has all columns, and a row with more cells is refused.
            chunk = pl.read_csv(f"{header.line}{body}".encode(), infer_schema=False, separator=header.delimiter)
        except pl.exceptions.PolarsError as error:
            raise _bad_row_error(path, header, body, num_rows, error) from error
        chunk = _with_names(path, header, chunk)
        # Rows are counted only if any may be short: then the last column has a null.
        if chunk[:, -1].null_count():
            columns = max(index for index, name in enumerate(header.names, start=1) if name or index == 1)
            short_rows = _count_short_rows(body, columns, len(chunk), header.delimiter)
            if short_rows:
                notes["short_rows"] = notes.get("short_rows", 0) + short_rows
        num_rows += len(chunk)
        yield chunk
    if not num_rows:
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")


def _read_header(path: Path, *, may_lack_names: bool = False) -> Header:
    text = next(read_text_blocks(path, block_bytes=_HEADER_BYTES))
    return read_header(path, text, may_lack_names=may_lack_names)


def _with_names(path: Path, header: Header, chunk: pl.DataFrame) -> pl.DataFrame:
    """Return a chunk with the names of its columns, without empty ones that have none, as of a delimiter at the end."""
    for index, name in enumerate(header.names):
        if index and not name and chunk[:, index].str.strip_chars().replace("", None).null_count() < len(chunk):
            raise _unnamed_column_error(path, index)
    columns = [index for index, name in enumerate(header.names) if name or not index]
    chunk = chunk[:, columns] if len(columns) < len(header.names) else chunk
    chunk.columns = [header.names[index] for index in columns]
    return chunk


def _unnamed_column_error(path: Path, index: int) -> errors.DataError:
    return errors.DataError(f"'{path.name}' has no name for column {index + 1}. Name it or remove it.")


def _count_short_rows(body: str, columns: int, rows: int, delimiter: str) -> int:
    """Count the rows that are not blank and have fewer cells than there are columns."""
    if '"' in body:
        try:
            reader = csv.reader(io.StringIO(body), delimiter=delimiter)
            return sum(len(cells) < columns and any(map(str.strip, cells)) for cells in reader)
        except csv.Error:
            # A cell longer than Python's reader takes: delimiters are counted instead, and quoted ones may hide a row.
            pass
    if body.count(delimiter) == rows * (columns - 1):
        return 0
    lines = (line for line in body.split("\n") if line.strip(f" \t{delimiter}"))
    return sum(line.count(delimiter) < columns - 1 for line in lines)


def _bad_row_error(path: Path, header: Header, body: str, num_rows: int, error: Exception) -> errors.DataError:
    """Return the error for rows that polars refuses, after ``num_rows`` others, with the first row that is wrong."""
    # The error of polars names no row, so they are read again here.
    reader = csv.reader(io.StringIO(body), strict=True, delimiter=header.delimiter)
    separators, names = DELIMITERS[header.delimiter], [name for name in header.names if name]
    decimals = ", and write decimals by points" if header.delimiter == "," else ""
    row, line = num_rows + header.first_row, 0
    try:
        for cells in reader:
            if len(cells) > len(header.names):
                return errors.DataError(
                    f"'{path.name}' row {row} has {pluralize(len(cells), 'cell')}, the header has "
                    f"{pluralize(len(names), 'column')} ({format_names(names)}). Name all columns in the first row, "
                    f"put cells that hold {separators} in quotes{decimals}."
                )
            row, line = row + 1, reader.line_num
    except csv.Error:
        return errors.DataError(
            f"'{path.name}' row {row} has a quote that is not closed, or not at the end of its cell: "
            f"{quote(body.split(chr(10))[line])}. Close it, or remove it."
        )
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again.")


def _scan_parquet(path: Path) -> pl.LazyFrame:
    check_binary(path)
    try:
        scan = pl.scan_parquet(path, glob=False)
        scan.collect_schema()
    except _DAMAGE as error:
        raise _parquet_error(path, error) from error
    return scan


def _read_parquet_chunks(path: Path, columns: Sequence[str], cells: int) -> Iterator[pl.DataFrame]:
    scan = _scan_parquet(path)
    try:
        rows = int(scan.select(pl.len()).collect().item())
        if not rows:
            raise errors.DataError(
                f"'{path.name}' has no rows; its columns are {format_names(columns)}. Add a row for each series and "
                "time."
            )
        chunk_rows = max(_MIN_CHUNK_ROWS, cells // len(columns))
        for first in range(0, rows, chunk_rows):
            # Row groups outside of the slice are not read.
            yield scan.select(columns).slice(first, chunk_rows).collect()
    except _DAMAGE as error:
        raise _parquet_error(path, error) from error


def _parquet_error(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is damaged or is not a Parquet file ({reason}). Write it again.")


@dataclass(frozen=True)
class Header:
    """The beginning of a CSV file.

    Attributes:
        delimiter: The character between columns.
        names: Names of the columns, without repeated blanks; empty for columns without one.
        line: The text of the row of names; one that was made where the file has none.
        end: Number of characters up to the first row of data.
        first_row: Number of the first row of data; rows are counted from 1, also those before the header.
        is_annotated: Whether InfluxDB's annotations stand before the names.
    """

    delimiter: str
    names: list[str]
    line: str
    end: int
    first_row: int
    is_annotated: bool


def read_header(path: Path, text: str, *, may_lack_names: bool = False) -> Header:
    """Read the names of the columns of a file that begins with this text, whole rows of it.

    If the first row of data ends with a delimiter more than the names do, the columns have one without a name more.

    Args:
        path: The file, for messages.
        text: Its first rows.
        may_lack_names: Whether a first row of numbers belongs to the data, whose columns get default names.

    Raises:
        DataError: If the file has no row of names, names a column twice, or begins with a row that may be either.
    """
    excel, annotations = _EXCEL_LINE.match(text), _ANNOTATIONS.match(text)
    preamble = excel or annotations
    start = preamble.end() if preamble else 0
    delimiter = excel[1] if excel else detect_delimiter(text[start:] if start else text)
    reader = csv.reader(_lines(text, start), delimiter=delimiter)
    try:
        names = [" ".join(name.split()) for name in next(reader, [])]
    except csv.Error as error:
        reason = str(error).removesuffix(".")
        raise errors.DataError(
            f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again."
        ) from error
    end = start + sum(map(len, islice(_lines(text, start), reader.line_num)))
    try:
        first_cells = next(reader, [])
    except csv.Error:
        # The reader of the rows names the row at fault.
        first_cells = []
    if may_lack_names and not _has_names(path, names, _rows(_first_rows(text[start:]), delimiter)[1:]):
        names = list(default_channel_names(len(names)))
        line = delimiter.join(names) + "\n"
        return Header(delimiter, names, line, start, text.count("\n", 0, start) + 1, is_annotated=False)
    check_names(path, names)
    line = text[start:end]
    if len(first_cells) == len(names) + 1 and not first_cells[-1].strip():
        names, line = [*names, ""], line.rstrip("\n") + delimiter + "\n"
    first_row = text.count("\n", 0, start) + 2
    return Header(delimiter, names, line, end, first_row, annotations is not None)


def check_names(path: Path, names: list[str]) -> None:
    """Refuse a table without names of columns, or with the same name for two of them."""
    duplicate = next((name for name in names if name and names.count(name) > 1), None)
    if not any(names):
        raise errors.DataError(f"'{path.name}' begins with a blank row; the first row must name the columns.")
    if duplicate is not None:
        raise errors.DataError(f"'{path.name}' has the column '{duplicate}' twice. Rename one of them.")


def _has_names(path: Path, first: list[str], rows: list[list[str]]) -> bool:
    """Return True if the first row of a file, before these, names the columns, False if all of it are numbers.

    Raises:
        DataError: If it holds 0, 1, 2, ..., as pandas names columns, and the numbers may be written like that.
    """
    cells = [cell for cell in first if cell]
    if not cells or not all(
        cell in MISSING_CELLS or _NUMBER.fullmatch(cell) or _DECIMAL_COMMA.fullmatch(cell) for cell in cells
    ):
        return True
    if cells != [str(index) for index in range(len(cells))]:
        return False
    columns = [index for index, cell in enumerate(first) if cell]
    # Programs write a number such as 0.5 next to 1.0, and not to 1.
    if not any(_INTEGER.fullmatch(row[index]) for row in rows for index in columns if index < len(row)):
        return True
    raise errors.DataError(
        f"'{path.name}' begins with {', '.join(cells)}, which may be the names of its columns or its first sample. "
        f"Name the columns in the first row, such as {', '.join(default_channel_names(len(cells)))}."
    )


def detect_delimiter(text: str) -> str:
    """Return the character between the columns of a text.

    It is the one with which most rows have as many cells as the header and most cells are numbers or dates.
    """
    sample = _first_rows(text)
    header = next(iter(sample.splitlines()), "")
    candidates = [mark for mark in DELIMITERS if mark in header]
    # Most files have one candidate, which needs no comparison.
    if len(candidates) > 1:
        return max(candidates, key=lambda mark: _score(sample, mark))
    return candidates[0] if candidates else ","


def _lines(text: str, start: int) -> Iterator[str]:
    # Without a copy of the text, which has some megabytes.
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _first_rows(text: str) -> str:
    end = -1
    for _ in range(_SAMPLE_ROWS + 1):
        end = text.find("\n", end + 1)
        if end < 0:
            return text.lstrip("\n")
    return text[:end].lstrip("\n")


def _rows(sample: str, delimiter: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(sample), delimiter=delimiter) if row]
    except csv.Error:
        # A cell longer than Python's reader takes: not a table with this delimiter.
        return []


def _score(sample: str, delimiter: str) -> tuple[float, float]:
    header, *rows = _rows(sample, delimiter) or [[]]
    if not rows or len(header) < 2:
        return (0.0, 0.0)
    cells = [cell.strip() for row in rows for cell in row]
    typed = sum(bool(_PLAIN.fullmatch(cell) or _DECIMAL_COMMA.fullmatch(cell)) for cell in cells)
    return sum(len(row) == len(header) for row in rows) / len(rows), typed / len(cells)


def read_sheet_names(path: Path, sheet: str | None) -> list[str]:
    """Return the names in the first row of a sheet.

    Args:
        path: The workbook.
        sheet: Its sheet; None: the only one.

    Raises:
        UnknownNameError: If there is no such file or sheet.
        DataError: If the file is no workbook, has several sheets of which none is named, or cells without a value of
            their own.
        ConfigError: If the package that reads workbooks is not installed.
    """
    reader, name = _open(path, sheet)
    # Empty names as in CSV; the package numbers them.
    frame = _load(path, reader, name, header_row=None, n_rows=1, dtypes="string")
    return ["" if cell is None else " ".join(cell.split()) for cell in (frame.row(0) if len(frame) else [""])]


def read_sheet(path: Path, sheet: str | None) -> pl.DataFrame:
    """Return the rows of a sheet below its first one, with dates and numbers as such.

    The arguments and errors are those of :func:`read_sheet_names`.
    """
    names = read_sheet_names(path, sheet)
    reader, name = _open(path, sheet)
    # Without a limit on the sample, a column of numbers whose last cell is text is text throughout.
    frame = _load(path, reader, name, header_row=None, skip_rows=1, schema_sample_rows=None, column_names=names)
    if not len(frame):
        raise errors.DataError(
            f"'{path.name}' sheet '{name}' has a header but no rows. Add a row for each series and time."
        )
    return frame


def _open(path: Path, sheet: str | None) -> tuple[ExcelReader, str]:
    """Return a reader of the workbook, and the name of the sheet to read."""
    try:
        import fastexcel
    except ImportError as error:
        raise errors.ConfigError(
            f"Workbooks such as '{path.name}' are read with the extra 'excel': pip install -e '.[excel]' in the "
            "checkout, or save the sheet as CSV."
        ) from error
    check_binary(path)
    try:
        files = _sheet_files(path)
        name = _select(path, list(files), sheet)
        with zipfile.ZipFile(path) as archive, archive.open(files[name]) as content:
            _check_cells(path, name, content)
        return fastexcel.read_excel(path), name
    except (fastexcel.FastExcelError, ElementTree.ParseError, *_DAMAGED_ARCHIVE) as error:
        raise _damage_error(path, error) from error


def _load(path: Path, reader: ExcelReader, name: str, **options: Any) -> pl.DataFrame:
    import fastexcel

    try:
        frame = reader.load_sheet(name, **options).to_polars()
    except fastexcel.FastExcelError as error:
        raise _damage_error(path, error) from error
    assert isinstance(frame, pl.DataFrame)
    return frame


def _damage_error(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is damaged or is no .xlsx workbook ({reason}). Save it again.")


def _sheet_files(path: Path) -> dict[str, str]:
    """Return the file of each sheet within the workbook, by the name of the sheet."""
    with zipfile.ZipFile(path) as archive:
        relations = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
        targets = {relation.attrib["Id"]: relation.attrib["Target"] for relation in relations}
        book = ElementTree.fromstring(archive.read("xl/workbook.xml"))
        sheets = [element for element in book.iter() if element.tag.endswith("}sheet")]
        # Relative to the folder of the workbook, or absolute in the archive.
        files = {each.attrib["name"]: targets[each.attrib[_RELATION]] for each in sheets}
        return {name: file.removeprefix("/") if file.startswith("/") else f"xl/{file}" for name, file in files.items()}


def _select(path: Path, sheets: list[str], sheet: str | None) -> str:
    if sheet is None and len(sheets) > 1:
        raise errors.DataError(
            f"'{path.name}' has {len(sheets)} sheets ({format_names(sheets)}). Name the one to read by data.sheet.",
            settings={"sheet": sheets[0]},
        )
    if sheet is not None and sheet not in sheets:
        raise errors.unknown("sheet", sheet, sheets, f"'{path.name}' has {format_names(sheets)}.")
    return sheets[0] if sheet is None else sheet


def _check_cells(path: Path, sheet: str, content: IO[bytes]) -> None:
    """Refuse merged cells, of which only the first has a value, and formulas, whose value may never have been saved."""
    pending = b""
    while block := content.read(_BLOCK_BYTES):
        text = pending + block
        if formula := _FORMULA.search(text):
            raise errors.DataError(
                f"'{path.name}' sheet '{sheet}' has a formula in cell {formula[1].decode()}. Copy the cells and paste "
                "them as values, or save the sheet as CSV."
            )
        if merged := _MERGED.search(text):
            raise errors.DataError(
                f"'{path.name}' sheet '{sheet}' has merged cells, {merged[1].decode()}. Unmerge them and fill each "
                "cell."
            )
        pending = text[-_OVERLAP_BYTES:]
