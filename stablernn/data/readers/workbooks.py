"""Sheets of workbooks (``.xlsx``): values only, so formulas and merged cells are refused."""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from xml.etree import ElementTree

import polars as pl

from stablernn import errors
from stablernn.data.messages import format_names
from stablernn.data.readers.paths import SIGNATURE_BYTES, check_regular, check_signature, empty_file_error

if TYPE_CHECKING:
    from fastexcel import ExcelReader

_MERGED = re.compile(rb'<(?:\w+:)?mergeCell [^>]*?ref="([^"]+)"')
_FORMULA = re.compile(rb'<(?:\w+:)?c [^>]*?r="([A-Z]+\d+)"[^>]*>\s*<(?:\w+:)?f[\s>/]')
# Of archives that are damaged, encrypted, or packed in a way that zipfile does not know.
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError, OSError)
_BLOCK_BYTES = 1 << 22
# Longer than the beginning of any cell, so that none is cut by the end of a block.
_OVERLAP_BYTES = 1 << 10
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


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
    check_regular(path)
    if not path.is_file():
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.")
    if not path.stat().st_size:
        raise empty_file_error(path)
    with path.open("rb") as file:
        check_signature(path, file.read(SIGNATURE_BYTES))
    try:
        files = _sheet_files(path)
        name = _select(path, list(files), sheet)
        with zipfile.ZipFile(path) as archive, archive.open(files[name]) as content:
            _check_cells(path, name, content)
        return fastexcel.read_excel(path), name
    except (fastexcel.FastExcelError, ElementTree.ParseError, *_DAMAGE) as error:
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
