"""``.tsv`` and ``.txt``, the text formats of the UCR archive, and helpers that readers of archives' text share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, check_resolution, finite_float32
from stablernn.data.files import empty_file_error, is_text_file, read_text
from stablernn.data.messages import format_names, quote
from stablernn.data.sequences import NO_LABEL, Sequences, default_channel_names, plain_labels

Float64Array = npt.NDArray[np.float64]

_DETECTION_LENGTH, _DETECTION_LINES = 1 << 20, 50
_MIN_CELLS = 4
"""Fewer numbers in a line are a table."""


def read_ucr(path: Path) -> Sequences:
    """Read a file of the UCR archive: one sequence per row, the label first, then its values.

    Tabs separate them in ``.tsv``, blanks or commas in ``.txt``. This archive pads sequences of unequal length with
    NaN, so missing values at the end of a row are taken for padding; ``notes["trailing_missing_cut"]`` counts them.

    Raises:
        DataError: If a cell is no number, a row has no values, or nothing is in the file.
        UnknownNameError: If there is no such file.
    """
    values: list[Float64Array] = []
    labels: list[str] = []
    num_cut = 0
    rows = number_lines(read_text(path))
    if not rows:
        # Blank as text and not as bytes: a no-break space, for one.
        raise empty_file_error(path)
    if not is_text_file(path):
        _check_tabs(path, rows[:2])
    for number, line in rows:
        label, *cells = _split_text(line) if is_text_file(path) else line.split("\t")
        sequence = strip_padding(path, number, parse_numbers(path, number, cells)[:, None])
        num_cut += len(cells) - len(sequence)
        values.append(sequence)
        labels.append(label.strip())
    return Sequences(
        name=path.name,
        values=to_float32(path, values),
        labels=plain_labels(path.name, labels),
        features=default_channel_names(1),
        notes={"trailing_missing_cut": num_cut} if num_cut else {},
        locations=tuple(f"line {number}" for number, _ in rows),
    )


def is_ucr_text(path: Path) -> bool:
    """Return True if a text is a file of the UCR archive: lines of numbers that begin with labels, some of them alike.

    Raises:
        DataError: If it is not text, or empty.
    """
    lines = number_lines(read_text(path)[:_DETECTION_LENGTH])[:_DETECTION_LINES]
    rows = [_split_text(line) for _, line in lines]
    if len(rows) < 2 or min(map(len, rows)) < _MIN_CELLS or not all(is_number(cell) for row in rows for cell in row):
        return False
    labels = [float(row[0]) for row in rows]
    return all(label.is_integer() for label in labels) and len(set(labels)) < len(labels)


def _split_text(line: str) -> list[str]:
    return line.split("," if "," in line else None)


def _check_tabs(path: Path, rows: list[tuple[int, str]]) -> None:
    """Refuse other separators than tabs, and a row of names."""
    (number, first), *others = rows
    if "\t" not in first:
        for mark, name in ((";", "semicolons"), (",", "commas"), (" ", "blanks")):
            if len(first.split(mark)) > 1:
                raise errors.DataError(
                    f"'{path.name}' line {number} has {name} and no tabs. Separate the label and the values by tabs."
                )
    if others and not any(map(is_number, first.split("\t"))) and all(map(is_number, others[0][1].split("\t")[1:])):
        raise errors.DataError(
            f"'{path.name}' line {number} holds names and no values ({quote(first)}). A .tsv file has no header; "
            "remove the line."
        )


def number_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, numbered from 1."""
    # Not splitlines(), which also ends lines at form feeds and other separators that editors do not count.
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def strip_padding(path: Path, number: int, sequence: Float64Array) -> Float64Array:
    """Return the sequence (length, channels) of a line up to the last step at which any channel has a value.

    Raises:
        DataError: If no step has one.
    """
    present = np.asarray(np.isfinite(sequence).any(axis=1))
    if not present.any():
        raise errors.DataError(f"'{path.name}' line {number} has a label but no values. Add them, or remove the line.")
    return sequence[: len(sequence) - int(np.argmax(present[::-1]))]


def check_label(path: Path, number: int, label: str, allowed: list[str], source: str) -> str:
    """Return the label of a line if the header, described by ``source``, allows it.

    Raises:
        DataError: If the header lists others only.
    """
    if allowed and label not in (*allowed, *NO_LABEL):
        raise errors.DataError(
            f"'{path.name}' line {number} has the label {quote(label)}, {source} allows {format_names(allowed)}. "
            "Correct one of them."
        )
    return label


def to_float32(path: Path, values: list[Float64Array]) -> list[Float32Array]:
    """Return the sequences (length, channels) in single precision.

    Raises:
        DataError: If a channel's differences would be lost.
    """
    check_resolution(np.concatenate(values), lambda channel: f"'{path.name}': channel {channel}")
    return [sequence.astype(np.float32) for sequence in values]


def parse_numbers(path: Path, number: int, cells: list[str]) -> Float64Array:
    """Parse the cells of one line, which float32 must be able to hold; NaN for ``?`` and ``NaN``.

    Python's ``1_000`` and digits of other scripts are no numbers.

    Raises:
        DataError: If a cell is no number.
    """
    try:
        values = np.array([_parse_number(cell) for cell in cells])
    except ValueError:
        # Only now are cells checked one by one, to name the first that is no number.
        position, cell = next((i, cell) for i, cell in enumerate(cells, start=1) if not is_number(cell))
        advice = "decimals are written with a point" if "," in cell else "a missing one is '?' or 'NaN'"
        raise errors.DataError(
            f"'{path.name}' line {number}, value {position}: {quote(cell)} is not a number; {advice}."
        ) from None
    # Called for its check, whose error names the value; to_float32 converts all lines later.
    finite_float32(values, lambda index: f"'{path.name}' line {number}, value {index[0] + 1}")
    return values


def is_number(cell: str) -> bool:
    """Return True if a cell is a number or marks a missing one."""
    try:
        _parse_number(cell)
    except ValueError:
        return False
    return True


def _parse_number(cell: str) -> float:
    if "_" in cell or not cell.isascii():
        raise ValueError(cell)
    return float("nan") if cell.strip() == "?" else float(cell)
