"""Copies chosen versions into a registry of their own, with their numbers, digests, aliases and history as they are.

A version's number and digest cannot be made anew: publishing gives the next number and another time. So log and
manifests of a model are copied whole, to the byte, and the files only of the versions that are chosen. A reference to
another version is still resolved in the copy, but its files are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from stablernn_registry import atomic_io, log, plain_files
from stablernn_registry.errors import StorageError
from stablernn_registry.layout import MARKER, MAX_LOG_BYTES, MAX_MANIFEST_BYTES, Layout
from stablernn_registry.log import History
from stablernn_registry.manifest import FileEntry, checked
from stablernn_registry.model_version import Record, Version
from stablernn_registry.refs import Ref
from stablernn_registry.registry import Registry

_FOLDER_MODE = 0o755
_FILE_MODE = 0o444


def copy_versions(registry: Registry, versions: Sequence[Version], root: str | Path) -> Registry:
    """Copy versions and what was recorded of them; every byte is checked against its hash on the way.

    Everybody may read the copy, whatever the umask says: it is made for a program that runs under another user.

    Args:
        registry: Where the versions are from.
        versions: What is copied.
        root: Folder of the copy; it must not exist yet or be empty.

    Raises:
        StorageError: If ``root`` holds something, or the disk is full or does not allow it.
        IntegrityError: If a log, a manifest or a file is damaged.
        UnknownRefError: If a model is gone.
    """
    source, target = Layout(registry.root), Layout(Path(root).absolute())
    with atomic_io.explained("copy versions", target.root):
        if target.root.exists() and any(target.root.iterdir()):
            raise StorageError(f"{target.root} is not empty. Copy versions to a new or empty folder.")
        atomic_io.make_folders(target.root)
        atomic_io.write_new(target.marker, MARKER)
        for name in dict.fromkeys(version.name for version in versions):
            _copy_history(registry, source, target, name)
        for version in {version.ref: version for version in versions}.values():
            _copy_files(target, version.manifest.files.items(), version)
            for record in registry.records(Ref(version.name, version.version)):
                _copy_files(target, record.entry.files.items(), record)
        for path in chain([target.root], target.root.rglob("*")):
            path.chmod(_FOLDER_MODE if path.is_dir() else _FILE_MODE)
    return Registry(target.root)


def _copy_history(registry: Registry, source: Layout, target: Layout, name: str) -> None:
    """The log and every manifest that it names."""
    # Read once: what another process publishes in the meantime is not part of the copy.
    data = plain_files.read_or_none(source.log(name), source.root, MAX_LOG_BYTES)
    if data is None:
        # Says that there is no such model.
        registry.log(name)
        raise StorageError(f"Could not copy '{name}': its log came and went. Do it again.")
    history: History = log.decode(data, f"The log of '{name}' ({source.relative(source.log(name))})")
    atomic_io.make_folders(target.versions(name))
    for number, digest in history.digests.items():
        path = source.manifest(name, number)
        manifest = plain_files.read_or_none(path, source.root, MAX_MANIFEST_BYTES)
        checked(manifest, name, number, digest, source.relative(path))
        atomic_io.write_new(target.manifest(name, number), manifest or b"")
    atomic_io.write_new(target.log(name), data)


def _copy_files(target: Layout, files: Iterable[tuple[str, FileEntry]], owner: Version | Record) -> None:
    for filename, entry in files:
        blob = target.blob(entry.sha256)
        if not blob.exists():
            atomic_io.make_folders(blob.parent)
            owner._stored.copy(filename, blob)
