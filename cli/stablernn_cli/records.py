"""Reports on published versions, stored with them in the registry as records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.output import Output

if TYPE_CHECKING:
    from stablernn_registry import Record


def record_report(output: Output, ref: str, kind: str, folder: Path) -> list[dict[str, Any]]:
    """Store a report on a registry version: every file of a folder, as one record.

    Args:
        output: Prints where the record is, or why there is none.
        ref: NAME:VERSION.
        kind: Type of the record.
        folder: Folder of the report.

    Returns:
        The record as ``eval --json`` prints it; an empty list if the registry cannot be written.
    """
    from stablernn_registry import Registry, StorageError

    registry = Registry()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    try:
        # The registry returns the record that is there already if the files are the same.
        previous = {record.entry.seq for record in registry.records(ref)}
        record = registry.record(ref, kind, files)
    except StorageError as error:
        # A read-only registry must not hide the scores; if the record was written all the same, the error is another.
        if error.is_done:
            raise
        output.note(f"Note: this report is only printed, not stored in the registry. {error}")
        return []
    outcome = "Already stored" if record.entry.seq in previous else "Stored"
    output.note(f"{outcome} with {ref} as its record '{kind}'. See `stablernn registry show {ref}`.")
    return [record_document(record)]


def record_document(record: Record) -> dict[str, Any]:
    """Return a record as ``registry show --json`` and ``eval --json`` print it."""
    entry = record.entry
    return {
        **entry.model_dump(mode="json", include={"seq", "time", "who", "kind", "why"}),
        "files": {
            name: {"bytes": file.bytes, "sha256": file.sha256, "path": str(record.path(name))}
            for name, file in entry.files.items()
        },
    }
