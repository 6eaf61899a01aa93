from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stablernn.atomic_files import write_bytes
from stablernn_registry import Registry, atomic_io

#: Writes into a folder that has a file "staged", by the package that they are of.
WRITES: dict[str, Callable[[Path], object]] = {
    "registry": lambda folder: atomic_io.rename_and_sync(folder / "staged", folder / "final"),
    "policy": lambda folder: Registry(folder / "registry").set_policy({}, why="because"),
    "checkpoints": lambda folder: write_bytes(folder / "final", b"new"),
}


@pytest.mark.parametrize("package", WRITES)
def test_the_folder_of_a_renamed_file_is_synced(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "staged").write_bytes(b"new")
    renamed: list[Path] = []
    unsynced: set[tuple[int, int]] = set()
    rename, sync = os.replace, os.fsync

    def identity(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def replace(source: Path, target: Path) -> None:
        rename(source, target)
        renamed.append(Path(target))
        unsynced.add(identity(os.stat(Path(target).parent)))

    def fsync(handle: int) -> None:
        sync(handle)
        unsynced.discard(identity(os.fstat(handle)))

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    WRITES[package](tmp_path)
    assert renamed
    assert not unsynced


def test_a_folder_that_another_process_makes_in_between_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "locks"
    exists = Path.exists

    def made_by_another_process(path: Path) -> bool:
        os.makedirs(folder, exist_ok=True)
        return exists(path)

    monkeypatch.setattr(Path, "exists", made_by_another_process)
    atomic_io.make_folders(folder)
    assert folder.is_dir()


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "locks").touch()
    with pytest.raises(NotADirectoryError):
        atomic_io.make_folders(tmp_path / "locks" / "digits")
