"""Reports on a file of some rows, and what they hold."""

from __future__ import annotations

from pathlib import Path

from bad_files import table
from stablernn.data.check import DataReport, check_data


def warnings(report: DataReport) -> dict[str, str]:
    return {finding.code: finding.text for finding in report.warnings}


def check(folder: Path, rows: list[str], header: str = "ds,y", **options: object) -> DataReport:
    table("d.csv", rows, header)(folder)
    return check_data(folder / "d.csv", **options)  # type: ignore[arg-type]
