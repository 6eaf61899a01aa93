from __future__ import annotations

import os
from pathlib import Path

import pytest

from stablernn_registry.disk import atomic_io


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
