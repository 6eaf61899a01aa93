"""Writing of a certificate document, as HTML or JSON by its suffix."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stablernn_cli.errors import UsageError

if TYPE_CHECKING:
    from stablernn_cli.report.document import Report

_PROGRESS = logging.getLogger("stablernn.progress")

SUFFIXES = (".html", ".json")


def check_path(path: Path) -> None:
    """Refuse a path before the certificate is computed.

    Raises:
        UsageError: If the suffix is neither .html nor .json, or the file cannot be created.
    """
    if path.suffix.lower() not in SUFFIXES:
        hint = " For a PDF, write .html, open it in a browser and print it to a file." if path.suffix else ""
        raise UsageError(f"--report writes a .html or .json file, got '{path}'.{hint or ' Add one of these suffixes.'}")
    # Computing a certificate can take a minute, after which a wrong path would be a bad surprise.
    folder = path.parent
    if path.is_dir() or not folder.is_dir():
        problem = "is a folder" if path.is_dir() else f"cannot be written: '{folder}' is not a folder"
        raise UsageError(f"The file of --report, '{path}', {problem}. Name a file in a folder that exists.")
    if not os.access(folder, os.W_OK):
        raise UsageError(
            f"The file of --report, '{path}', cannot be written: no permission for '{folder}'. Name another folder."
        )


def write_report(path: Path, report: Report) -> None:
    """Write a document, replacing a file of that name.

    Raises:
        stablernn.errors.CheckpointError: If the file cannot be written.
    """
    from stablernn.atomic_files import write_bytes, write_json

    if path.suffix.lower() == ".json":
        write_json(path, report.document)
        return
    # Figures are drawn here, and not for JSON.
    from stablernn_cli.report.html_page import render

    _PROGRESS.info("Drawing the figures ...")
    write_bytes(path, render(report).encode("utf-8"))
