"""Files of meters with one or two defects each, as other programs write them; the same ones in every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

HOURS = 24 * 20
# Clocks in Berlin go back on 2023-10-29 and forward on 2024-03-31.
AUTUMN = datetime(2023, 10, 18, tzinfo=UTC)
SPRING = datetime(2024, 3, 22, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")

Row = tuple[str, ...]


def values(meter: int, count: int = HOURS) -> list[float]:
    noise = np.random.default_rng(meter).normal(size=count) / 5
    return [round(float(v), 3) for v in 10 + 4 * meter + 3 * np.sin(2 * np.pi * np.arange(count) / 24) + noise]


def times(begin: datetime = AUTUMN, count: int = HOURS, hours: float = 1) -> list[datetime]:
    return [begin + timedelta(hours=hours * step) for step in range(count)]


def text_of(moment: datetime, form: str = "%Y-%m-%d %H:%M") -> str:
    return moment.strftime(form)


def long_rows(
    meters: int = 3, form: str = "%Y-%m-%d %H:%M", begin: datetime = AUTUMN, local: bool = False
) -> list[Row]:
    """Rows of name, time and value, of hourly meters."""
    moments = [moment.astimezone(BERLIN) if local else moment for moment in times(begin)]
    return [
        (f"m{meter}", text_of(moment, form), f"{value:.3f}")
        for meter in range(meters)
        for moment, value in zip(moments, values(meter), strict=True)
    ]


def csv_text(rows: Sequence[Row], header: Row = ("unique_id", "ds", "y"), delimiter: str = ",") -> str:
    return "\n".join(delimiter.join(row) for row in (header, *rows)) + "\n"


def _german(rows: Sequence[Row]) -> list[Row]:
    return [(*row[:2], *(cell.replace(".", ",") for cell in row[2:])) for row in rows]


def _semicolons(folder: Path) -> None:
    text = csv_text(_german(long_rows(form="%d.%m.%Y %H:%M")), delimiter=";")
    (folder / "d.csv").write_text(text)


def _latin1(folder: Path) -> None:
    rows = [(name.replace("m", "Zähler "), *rest) for name, *rest in long_rows()]
    (folder / "d.csv").write_bytes(csv_text(rows).encode("cp1252"))


def _utf16_tabs(folder: Path) -> None:
    (folder / "d.csv").write_bytes(csv_text(_german(long_rows()), delimiter="\t").encode("utf-16"))


def _byte_order_mark(folder: Path) -> None:
    (folder / "d.csv").write_bytes(csv_text(long_rows()).encode("utf-8-sig"))


def _local_autumn(folder: Path) -> None:
    (folder / "d.csv").write_text(csv_text(long_rows(local=True)))


def _local_spring(folder: Path) -> None:
    (folder / "d.csv").write_text(csv_text(long_rows(local=True, begin=SPRING)))


def _exact_duplicates(folder: Path) -> None:
    rows = long_rows()
    (folder / "d.csv").write_text(csv_text([row for n, row in enumerate(rows) for _ in range(1 + (n % 50 == 7))]))


def _differing_duplicates(folder: Path) -> None:
    rows = long_rows()
    rows[30:30] = [(*rows[29][:2], "11.5")]
    (folder / "d.csv").write_text(csv_text(rows))


def _unsorted(folder: Path) -> None:
    rows = long_rows()
    order = np.random.default_rng(0).permutation(len(rows))
    (folder / "d.csv").write_text(csv_text([rows[index] for index in order]))


def _three_frequencies(folder: Path) -> None:
    rows = long_rows(2)
    rows += [("q", text_of(moment), f"{10 + n % 7}") for n, moment in enumerate(times(count=4 * HOURS, hours=0.25))]
    rows += [("h3", text_of(moment), f"{10 + n % 5}") for n, moment in enumerate(times(count=HOURS // 3, hours=3))]
    (folder / "d.csv").write_text(csv_text(rows))


def _unix_seconds(folder: Path) -> None:
    stamps = [str(int(moment.timestamp())) for moment in times()]
    rows = [(name, stamps[n % HOURS], value) for n, (name, _, value) in enumerate(long_rows())]
    (folder / "d.csv").write_text(csv_text(rows))


def _codes(folder: Path) -> None:
    rows = long_rows()
    for index in range(20, len(rows), 97):
        rows[index] = (*rows[index][:2], "-9999")
    (folder / "d.csv").write_text(csv_text(rows))


def _text_codes(folder: Path) -> None:
    rows = long_rows()
    for index in range(20, len(rows), 97):
        rows[index] = (*rows[index][:2], "--")
    (folder / "d.csv").write_text(csv_text(rows))


def _text_column(folder: Path) -> None:
    rows = [(*row, ("calm", "wind", "storm")[n // 5 % 3]) for n, row in enumerate(long_rows())]
    (folder / "d.csv").write_text(csv_text(rows, ("unique_id", "ds", "y", "weather")))


def _text_of_series(folder: Path) -> None:
    rows = [(*row, "north" if row[0] == "m0" else "south") for row in long_rows()]
    (folder / "d.csv").write_text(csv_text(rows, ("unique_id", "ds", "y", "region")))


def _workbook(folder: Path) -> None:
    import xlsxwriter

    with xlsxwriter.Workbook(folder / "d.xlsx") as book:
        sheet = book.add_worksheet("meters")
        day = book.add_format({"num_format": "yyyy-mm-dd hh:mm"})
        sheet.write_row(0, 0, ["unique_id", "ds", "y"])
        for number, (name, moment, value) in enumerate(long_rows(2), start=1):
            sheet.write_string(number, 0, name)
            sheet.write_datetime(number, 1, datetime.strptime(moment, "%Y-%m-%d %H:%M"), day)
            sheet.write_number(number, 2, float(value))


def _two_sheets(folder: Path) -> None:
    import xlsxwriter

    with xlsxwriter.Workbook(folder / "d.xlsx") as book:
        for name in ("meters", "notes"):
            sheet = book.add_worksheet(name)
            for number, row in enumerate([("unique_id", "ds", "y"), *long_rows(2)]):
                sheet.write_row(number, 0, row)


def _wide(folder: Path) -> None:
    columns = [values(meter) for meter in range(4)]
    rows = [(text_of(moment), *(str(column[n]) for column in columns)) for n, moment in enumerate(times())]
    (folder / "d.csv").write_text(csv_text(rows, ("date", "a", "b", "c", "d")))


def _other_id(folder: Path) -> None:
    (folder / "d.csv").write_text(csv_text(long_rows(), ("Meter", "ds", "y")))


def _local_with_duplicates(folder: Path) -> None:
    rows = _german(long_rows(local=True, form="%d.%m.%Y %H:%M"))
    rows[100:100] = [rows[99]]
    (folder / "d.csv").write_bytes(csv_text(rows, delimiter=";").encode("cp1252"))


def _unsorted_codes(folder: Path) -> None:
    _codes(folder)
    header, *lines = (folder / "d.csv").read_text().splitlines()
    order = np.random.default_rng(1).permutation(len(lines))
    (folder / "d.csv").write_text("\n".join([header, *(lines[index] for index in order)]) + "\n")


def _short_local_categories(folder: Path) -> None:
    rows = [(*row, "south" if row[0] == "m1" else "north") for row in long_rows(4, local=True)]
    rows += [("m9", text_of(moment), "3.0", "north") for moment in times(count=9)]
    (folder / "d.csv").write_text(csv_text(rows, ("unique_id", "ds", "y", "region")))


@dataclass(frozen=True)
class MessyFile:
    """One file.

    Attributes:
        defect: In words, for the name of the test.
        write: Writes ``name`` into a folder.
        fixes: Settings of the section ``data`` that `data check --fix` writes, besides the source.
        name: The file.
        facts: Notes of the repaired data.
    """

    defect: str
    write: Callable[[Path], None]
    fixes: dict[str, Any] = field(default_factory=dict)
    name: str = "d.csv"
    facts: dict[str, Any] = field(default_factory=dict)


MESSY_FILES = (
    MessyFile(
        "semicolons, decimal commas, days first",
        _semicolons,
        facts={"delimiter": "semicolons", "decimal_mark": "comma"},
    ),
    MessyFile("Latin-1", _latin1, facts={"encoding": "Windows-1252"}),
    MessyFile(
        "UTF-16 with tabs",
        _utf16_tabs,
        {"decimal_mark": ","},
        facts={"encoding": "UTF-16", "delimiter": "tabs", "decimal_mark": "comma"},
    ),
    MessyFile("byte order mark", _byte_order_mark, facts={"encoding": "UTF-8 with a byte order mark"}),
    MessyFile(
        "clocks go back",
        _local_autumn,
        {"timezone": "Europe/Berlin"},
        facts={"local_times_converted": 3 * HOURS, "repeated_hour_rows": 6, "repeated_hour_once": 0},
    ),
    MessyFile("exact duplicates", _exact_duplicates, {"on_duplicate": "last"}, facts={"duplicate_rows": 29}),
    MessyFile(
        "differing duplicates",
        _differing_duplicates,
        {"on_duplicate": "mean"},
        facts={"duplicate_rows": 1, "duplicate_rows_differing": 1},
    ),
    MessyFile("unsorted rows", _unsorted, {"sort": True}),
    MessyFile("three frequencies", _three_frequencies, {"resample": "3h", "aggregate": "mean"}),
    MessyFile("Unix seconds", _unix_seconds, {"stamps": "unix-s"}),
    MessyFile("codes for missing values", _codes, {"missing": [-9999]}),
    MessyFile("text for missing values", _text_codes, {"missing": ["--"]}),
    MessyFile(
        "a column of text",
        _text_column,
        {"categories": {"weather": []}},
        facts={"categories": {"weather": ["calm", "storm", "wind"]}},
    ),
    MessyFile(
        "a column of text, one for each series",
        _text_of_series,
        {"categories": {"region": []}, "static": ["region"]},
        facts={"categories": {"region": ["north", "south"]}},
    ),
    MessyFile("a workbook", _workbook, name="d.xlsx"),
    MessyFile("a workbook of two sheets", _two_sheets, {"sheet": "meters"}, name="d.xlsx"),
    MessyFile("a wide table", _wide, {"target": ["d"]}),
    MessyFile("another name for the series", _other_id, {"id_column": "Meter"}),
    MessyFile(
        "local times, duplicates, semicolons",
        _local_with_duplicates,
        {"timezone": "Europe/Berlin", "on_duplicate": "last"},
        facts={"duplicate_rows": 1, "repeated_hour_rows": 6},
    ),
    MessyFile("unsorted rows and codes", _unsorted_codes, {"sort": True, "missing": [-9999]}),
    MessyFile(
        "local times, a short series, text",
        _short_local_categories,
        {"timezone": "Europe/Berlin", "categories": {"region": []}, "static": ["region"]},
        facts={"series_without_training": {"count": 1, "first": ["m9"]}, "repeated_hour_rows": 8},
    ),
)


def write_local_spring(folder: Path) -> None:
    """Writes local times over the hour that clocks skip."""
    _local_spring(folder)
