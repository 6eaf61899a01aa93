"""The files of a version in an ordinary folder, for programs that know no registry."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stablernn_registry.errors import RegistryError, StorageError
from stablernn_registry.model_version import Version

MANIFEST = "manifest.json"


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
