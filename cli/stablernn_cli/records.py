"""Reports on published versions, kept beside them in the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.output import Output

if TYPE_CHECKING:
    from stablernn_registry import Record


def keep(output: Output, ref: str, kind: str, folder: Path) -> list[dict[str, Any]]:
    """Keep a report on a registry version beside it: every file of a folder, as one record.

    Args:
        output: Is told where it is kept, or why it is not.
        ref: NAME:VERSION.
        kind: Of the record.
        folder: What is kept.

    Returns:
        The record as ``eval --json`` prints it; nothing where the registry cannot be written.
    """
    from stablernn_registry import Registry, StorageError

    registry = Registry()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    try:
        known = {record.entry.seq for record in registry.records(ref)}
        record = registry.record(ref, kind, files)
    except StorageError as error:
        if error.is_done:
            raise
        output.note(f"Note: this report is shown only and not kept in the registry. {error}")
        return []
    done = "Recorded already" if record.entry.seq in known else "Kept"
    output.note(f"{done} beside {ref} as its record '{kind}'. See `stablernn registry show {ref}`.")
    return [described(record)]


def described(record: Record) -> dict[str, Any]:
    """A record as ``registry show --json`` and ``eval --json`` print it."""
    entry = record.entry
    return {
        **entry.model_dump(mode="json", include={"seq", "time", "who", "kind", "why"}),
        "files": {
            name: {"bytes": file.bytes, "sha256": file.sha256, "path": str(record.path(name))}
            for name, file in entry.files.items()
        },
    }
