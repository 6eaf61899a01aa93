"""``.arff``, Weka's format, as the UCR and UEA archives use it for one channel and for several."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float64Array
from stablernn.data.files import read_text
from stablernn.data.messages import pluralize, quote
from stablernn.data.readers.ucr_tsv import check_label, number_lines, parse_numbers, strip_padding, to_float32
from stablernn.data.sequences import Sequences, default_channel_names, plain_labels

_NUMERIC = ("numeric", "real", "integer")
_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)\s*(.*)""", re.IGNORECASE)
# A comment behind content: not within quotes, where a blank is before it, since labels such as 50% are seldom quoted.
_COMMENT = re.compile(r"""((?:[^\s'"]|\s(?!%)|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*)\s%.*""")
_FIELD = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*?)\s*(?:,|$)""")


@dataclass
class _Header:
    """Declarations of the ``@attribute`` lines.

    Attributes:
        steps: Numbers in each row; in a relational file those of each channel.
        is_relational: Whether rows hold several channels in quotes.
        labels: The classes; None without a class.
    """

    steps: int = 0
    is_relational: bool = False
    labels: list[str] | None = None


def read_arff(path: Path) -> Sequences:
    r"""Read an ``.arff`` file: ``@attribute`` lines, then one sequence per row, with comments from ``%`` on.

    One channel: a numeric attribute for each step. Several: one relational attribute, whose cells hold the channels
    in quotes, separated by a literal ``\n``. The class is the last attribute, in braces; without one the sequences have
    no labels. ``?`` is missing; missing values at the end of a row are padding, which is cut and counted in
    ``notes["trailing_missing_cut"]``.

    Raises:
        DataError: If header or rows break the format, or the attributes are not those of time series.
        UnknownNameError: If there is no such file.
    """
    header, rows = _read_header(path)
    values: list[Float64Array] = []
    labels: list[str] = []
    num_cut = 0
    for number, line in rows:
        fields = _split_fields(path, number, line)
        if header.labels is not None:
            # A row of one field has no values; the error says so below.
            label = _unquote(fields.pop()) if len(fields) > 1 else ""
            labels.append(check_label(path, number, label, header.labels, "its attribute"))
        channels = _split_channels(path, number, fields) if header.is_relational else [fields]
        for channel in channels:
            if len(channel) != header.steps:
                raise errors.DataError(
                    f"'{path.name}' line {number} has {pluralize(len(channel), 'value')} where its attributes are "
                    f"{header.steps}."
                )
        if values and len(channels) != values[0].shape[1]:
            raise errors.DataError(
                f"'{path.name}' line {number} has {pluralize(len(channels), 'channel')}, the rows before have "
                f"{values[0].shape[1]}."
            )
        sequence = np.stack([parse_numbers(path, number, channel) for channel in channels], axis=1)
        values.append(strip_padding(path, number, sequence))
        num_cut += len(sequence) - len(values[-1])
    return Sequences(
        name=path.name,
        values=to_float32(path, values),
        labels=plain_labels(path.name, labels) if header.labels is not None else None,
        features=default_channel_names(values[0].shape[1]),
        notes={"trailing_missing_cut": num_cut} if num_cut else {},
        locations=tuple(f"line {number}" for number, _ in rows),
    )


def _read_header(path: Path) -> tuple[_Header, list[tuple[int, str]]]:
    header = _Header()
    rows: list[tuple[int, str]] = []
    in_data = in_relation = False
    for number, text in number_lines(read_text(path)):
        comment = _COMMENT.fullmatch(text.strip()) if "%" in text else None
        line = (comment[1] if comment else text).strip()
        if line.startswith("%"):
            continue
        key = line.split(None, 1)[0].lower()
        if in_data:
            rows.append((number, line))
        elif key == "@data":
            in_data = True
        elif key == "@attribute":
            in_relation = _declare(path, number, line, header, in_relation)
        elif key == "@end":
            in_relation = False
        elif key != "@relation":
            raise errors.DataError(
                f"'{path.name}' line {number} stands before '@data' and is none of @relation, @attribute, @end "
                "and a comment."
            )
    if not header.steps:
        raise errors.DataError(f"'{path.name}' has no numeric attribute, so it holds no series.")
    if not rows:
        raise errors.DataError(f"'{path.name}' has no sequences behind '@data'. Add a line for each.")
    return header, rows


def _declare(path: Path, number: int, line: str, header: _Header, in_relation: bool) -> bool:
    """Add one attribute to the header; return True if the next ones are inside the relational one."""
    # A line that is no attribute has the type "" and is refused below.
    match = _ATTRIBUTE.fullmatch(line)
    kind = match.group(2).strip() if match else ""
    if header.labels is not None:
        raise errors.DataError(f"'{path.name}' line {number}: the class must be the last attribute.")
    if kind.lower() in _NUMERIC and not (header.is_relational and not in_relation):
        header.steps += 1
    elif kind.lower() == "relational" and not header.steps and not header.is_relational:
        header.is_relational = True
        return True
    elif kind.startswith("{") and kind.endswith("}") and not in_relation:
        header.labels = [_unquote(field) for field in _FIELD.findall(kind[1:-1]) if field]
    else:
        raise errors.DataError(
            f"'{path.name}' line {number}: an attribute of type {quote(kind)} does not belong here. A file of series "
            "has numeric ones, or one relational one of these, and at the end the class in braces."
        )
    return in_relation


def _split_fields(path: Path, number: int, line: str) -> list[str]:
    if line.startswith("{"):
        raise errors.DataError(f"'{path.name}' line {number} is a sparse row, which is not read. Write all values.")
    # The pattern also matches the empty text at the end of the line.
    fields = _FIELD.findall(line)
    return fields if line.rstrip().endswith(",") else fields[:-1] or fields


def _split_channels(path: Path, number: int, fields: list[str]) -> list[list[str]]:
    field = fields[0]
    if len(fields) != 1 or field[:1] not in ("'", '"'):
        raise errors.DataError(
            f"'{path.name}' line {number} must have all channels in one pair of quotes, got {quote(field)}."
        )
    return [channel.split(",") for channel in field[1:-1].replace("\\r", "").split("\\n")]


def _unquote(text: str) -> str:
    """Return the text without quotes around it and without the backslashes that escape characters in them."""
    text = text.strip()
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text
