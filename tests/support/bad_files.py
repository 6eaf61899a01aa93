"""Files made wrong, one fault each, with the sentence in which everything that reads data refuses them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DAYS = [str(np.datetime64("2024-01-01") + day) for day in range(60)]
ROWS = [f"{date},{number % 7}" for number, date in enumerate(DAYS)]


@dataclass(frozen=True)
class BadFile:
    """One fault.

    Attributes:
        fault: In words, for the test's name.
        name: The file that is given; others may lie beside it.
        write: Writes the files into a folder.
        sentence: What is said.
        options: Settings of ``load_data``.
        more: What a check finds besides, code and sentence.
        code: Exit code of ``train``.
    """

    fault: str
    name: str
    write: Callable[[Path], None]
    sentence: str
    options: dict[str, Any] = field(default_factory=dict)
    more: tuple[tuple[str, str], ...] = ()
    code: int = 1


def table(name: str, rows: Sequence[str], header: str = "ds,y") -> Callable[[Path], None]:
    """Writes a CSV file."""

    def write(folder: Path) -> None:
        (folder / name).write_text("\n".join([header, *rows]) + "\n")

    return write


def replaced(changes: dict[int, str]) -> list[str]:
    """The good rows with others in some places."""
    return [changes.get(number, row) for number, row in enumerate(ROWS)]


def labelled(name: str, labels: Sequence[str]) -> Callable[[Path], None]:
    """Writes a ``.tsv`` file with a sequence for each label."""
    lines = [f"{label}\t{number}\t{number * number % 5}\t1" for number, label in enumerate(labels)]

    def write(folder: Path) -> None:
        (folder / name).write_text("\n".join(lines) + "\n")

    return write


def _two_frequencies() -> list[str]:
    hours = [str(np.datetime64("2024-01-01T00:00:00") + np.timedelta64(hour, "h")) for hour in range(60)]
    return [f"a,{date},{n % 5}" for n, date in enumerate(DAYS)] + [f"b,{hour},{n % 3}" for n, hour in enumerate(hours)]


def _swapped() -> list[str]:
    rows = list(ROWS)
    rows[3], rows[30] = rows[30], rows[3]
    return rows


def _cut(folder: Path) -> None:
    (folder / "d.csv.gz").write_bytes(gzip.compress("\n".join(["ds,y", *ROWS]).encode())[:-20])


def _objects(folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.array([[1, 2], [3]], dtype=object), y=[0, 1])


def _unseen(folder: Path) -> None:
    labelled("d_TRAIN.tsv", ["a", "b"] * 6)(folder)
    labelled("d_TEST.tsv", ["a", "c", "c", "d"])(folder)


def _early_test(folder: Path) -> None:
    table("d_TRAIN.csv", ROWS[:50])(folder)
    table("d_TEST.csv", ROWS[40:])(folder)


def _empty_test(folder: Path) -> None:
    table("d_TRAIN.csv", ROWS)(folder)
    table("d_TEST.csv", [])(folder)


BAD_FILES = (
    BadFile(
        "wrong time column",
        "d.csv",
        table("d.csv", ROWS),
        "Unknown column 'day'. 'd.csv' has ds, y.",
        {"time_column": "day"},
        code=2,
    ),
    BadFile(
        "wrong target",
        "d.csv",
        table("d.csv", ROWS),
        "Unknown target 'yy'. Did you mean 'y'? 'd.csv' has y.",
        {"target": ("yy",)},
        code=2,
    ),
    BadFile(
        "unparsable dates",
        "d.csv",
        table("d.csv", replaced({10: "31/01/2024,3", 20: "yesterday,2"})),
        "'d.csv' row 12, column 'ds': '31/01/2024' is not a time. Set data.date_format to the "
        "format, such as '%d/%m/%Y', or write dates as 2024-01-31 13:00.",
        more=(
            ("not_a_time", "'d.csv' column 'ds': 2 of 60 cells are not times; the first is '31/01/2024' in row 12."),
        ),
    ),
    BadFile(
        "mixed frequencies",
        "d.csv",
        table("d.csv", _two_frequencies(), "unique_id,ds,y"),
        "'d.csv' mixes frequencies: series 'b' is 'h', most are 'D'. Split the file by frequency, give the "
        "frequency that all of them share, or aggregate their rows to the longest step with data.resample=D, to "
        "their mean, or with data.aggregate=sum to their sum.",
    ),
    BadFile(
        "duplicate time stamps",
        "d.csv",
        table("d.csv", [*ROWS[:5], ROWS[4], *ROWS[5:9], ROWS[8], *ROWS[9:]]),
        "'d.csv' has the time 2024-01-05 twice, in rows 6 and 7. Name the column that tells series "
        "apart by id_column, or set data.on_duplicate=last.",
        more=(("time_twice", "'d.csv' has 2 rows with a time that their series already has."),),
    ),
    BadFile(
        "unsorted rows",
        "d.csv",
        table("d.csv", _swapped()),
        "'d.csv' is not sorted by time: row 6 has 2024-01-05 after 2024-01-31 in row 5. Sort the rows, or set "
        "data.sort=true.",
        more=(("not_sorted", "'d.csv' has 2 rows that are earlier than the row of their series before."),),
    ),
    BadFile(
        "horizon longer than history",
        "d.csv",
        table("d.csv", ROWS[:20]),
        "'d.csv': series 'd' has 20 steps, 91 are needed: context_length 1 + horizon 30 + validation 30 + test 30. "
        "Shorten these.",
        {"horizon": 30},
    ),
    BadFile(
        "labels unseen in training",
        "d_TRAIN.tsv",
        _unseen,
        "'d_TEST.tsv' has the label 'c', which 'd_TRAIN.tsv' does not have (a, b); a model cannot learn a class that "
        "it never sees. Remove those sequences, or add sequences with the label to the training file.",
        more=(
            (
                "unseen_label",
                "'d_TEST.tsv' has 3 sequences with labels that 'd_TRAIN.tsv' does not have: 'c' (2), 'd' (1).",
            ),
        ),
    ),
    BadFile(
        "test rows before the end of training",
        "d_TRAIN.csv",
        _early_test,
        "'d_TEST.csv': series 'd_TRAIN' begins at 2024-02-10, which is not after 2024-02-19, the end of its training "
        "rows.",
    ),
    BadFile(
        "empty split",
        "d_TRAIN.csv",
        _empty_test,
        "'d_TEST.csv' has a header but no rows. Add a row for each series and time.",
    ),
    BadFile(
        "nothing left to validate on",
        "d.tsv",
        labelled("d.tsv", ["a", "b", "c"]),
        "'d.tsv' has one sequence for each label, none can be held out for validation. Add sequences.",
    ),
    BadFile(
        "cells that are no numbers",
        "d.csv",
        table("d.csv", replaced({7: f"{DAYS[7]},n.a.", 9: f"{DAYS[9]},1;5"})),
        "'d.csv' row 9, column 'y': 'n.a.' is not a number. Correct it, leave it empty if the value is missing, or "
        "name the columns to read by data.channels.",
        more=(("not_a_number", "'d.csv' column 'y': 2 of 60 cells are not numbers; the first is 'n.a.' in row 9."),),
    ),
    BadFile(
        "truncated gzip",
        "d.csv.gz",
        _cut,
        "'d.csv.gz' is cut off or is not gzip data (Compressed file ended before the end-of-stream marker was "
        "reached). Fetch it again.",
    ),
    BadFile(
        "array of objects",
        "d.npz",
        _objects,
        "'d.npz': the array 'x' holds Python objects, which only pickle could read and which are never loaded. Store "
        "sequences of unequal length as one padded array with 'lengths'.",
    ),
)
