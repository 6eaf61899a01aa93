"""Copies of versions: in a new registry with the same numbers and history, or as files in an ordinary folder.

Publishing the versions again would give them other numbers and times. So the log and all manifests of a model are
copied byte for byte, but only the files of the selected versions. A reference to another version still resolves in the
copy, but its files are missing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from stablernn_registry import atomic_io, log
from stablernn_registry.errors import RegistryError, StorageError
from stablernn_registry.files import (
    MARKER,
    MAX_LOG_BYTES,
    MAX_MANIFEST_BYTES,
    Layout,
    read_or_none,
    translate_os_errors,
)
from stablernn_registry.log import History
from stablernn_registry.manifest import FileEntry, verify_and_decode
from stablernn_registry.model_version import Record, Version
from stablernn_registry.refs import Ref
from stablernn_registry.registry import Registry

MANIFEST = "manifest.json"
_FOLDER_MODE = 0o755
_FILE_MODE = 0o444


def copy_versions(registry: Registry, versions: Sequence[Version], root: str | Path) -> Registry:
    """Copy versions and their records to a new registry; every byte is checked against its hash on the way.

    Args:
        registry: Registry that has the versions.
        versions: Versions to copy.
        root: Folder of the copy; it must not exist yet or be empty.

    Raises:
        StorageError: If ``root`` is not empty, or the disk is full or does not allow it.
        IntegrityError: If a log, a manifest or a file is damaged.
        UnknownRefError: If a model no longer exists.
    """
    source, destination = Layout(registry.root), Layout(Path(root).absolute())
    with translate_os_errors("copy versions", destination.root):
        if destination.root.exists() and any(destination.root.iterdir()):
            raise StorageError(f"{destination.root} is not empty. Copy versions to a new or empty folder.")
        atomic_io.make_folders(destination.root)
        atomic_io.write_new(destination.marker, MARKER)
        for name in dict.fromkeys(version.name for version in versions):
            _copy_history(registry, source, destination, name)
        for version in {version.ref: version for version in versions}.values():
            _copy_files(destination, version.manifest.files.items(), version)
            for record in registry.records(Ref(version.name, version.version)):
                _copy_files(destination, record.entry.files.items(), record)
        # Readable by everyone, whatever the umask: the copy is made for a program that runs under another user.
        for path in chain([destination.root], destination.root.rglob("*")):
            path.chmod(_FOLDER_MODE if path.is_dir() else _FILE_MODE)
    return Registry(destination.root)


def _copy_history(registry: Registry, source: Layout, destination: Layout, name: str) -> None:
    """Copy the log of a model and every manifest that it names."""
    # Read the log once: versions that another process publishes from now on are not part of the copy.
    data = read_or_none(source.log(name), source.root, MAX_LOG_BYTES)
    if data is None:
        # Raises UnknownRefError if there is no such model.
        registry.log(name)
        raise StorageError(f"Could not copy '{name}': its log came and went. Do it again.")
    history: History = log.decode(data, f"The log of '{name}' ({source.relative(source.log(name))})")
    atomic_io.make_folders(destination.versions(name))
    for number, digest in history.digests.items():
        path = source.manifest(name, number)
        manifest = read_or_none(path, source.root, MAX_MANIFEST_BYTES)
        verify_and_decode(manifest, name, number, digest, source.relative(path))
        atomic_io.write_new(destination.manifest(name, number), manifest or b"")
    atomic_io.write_new(destination.log(name), data)


def _copy_files(destination: Layout, files: Iterable[tuple[str, FileEntry]], owner: Version | Record) -> None:
    for filename, entry in files:
        blob = destination.blob(entry.sha256)
        # Versions with equal files share a blob.
        if not blob.exists():
            atomic_io.make_folders(blob.parent)
            owner._stored_files.copy(filename, blob)


def extract_files(version: Version, folder: str | Path, filenames: Sequence[str] | None = None) -> list[str]:
    """Copy files of a version to a folder, all of them or nothing; every byte is checked against its hash.

    Args:
        version: The version.
        folder: The folder; it must not exist yet or be empty.
        filenames: Names of the files, and of ``manifest.json``, which has their hashes, and the order of features and
            labels. Default: all.

    Returns:
        The names of the copies.

    Raises:
        UnknownRefError: If the version has no such file.
        IntegrityError: If a file is missing in the registry or damaged.
        StorageError: If the folder is not empty, or the disk is full or does not allow it.
    """
    names = list(dict.fromkeys([*version.manifest.files, MANIFEST] if filenames is None else filenames))
    target = Path(folder).absolute()
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StorageError(f"{target} is not an empty folder. Copy the files to a new or empty one.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
            staging = Path(temporary) / target.name
            staging.mkdir()
            for name in names:
                copy = staging / name
                if name == MANIFEST:
                    copy.write_text(version.manifest.model_dump_json(indent=1), encoding="utf-8")
                    continue
                version.check(name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(version.path(name), copy)
            os.replace(staging, target)
    except RegistryError:
        # StorageError is an OSError, too.
        raise
    except OSError as error:
        raise StorageError(
            f"Could not copy '{version.ref}' to {target}: {error.strerror}. Nothing was copied; choose another folder."
        ) from error
    return names
