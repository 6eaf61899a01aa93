"""`registry copy`: all files of a version in a folder, or none."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from cli_helpers import Workplace


def test_all_files_have_the_bytes_of_the_manifest(trained: Workplace, tmp_path: Path) -> None:
    document = trained.document(f"registry copy digits --output {tmp_path / 'new' / 'files'}")
    folder = tmp_path / "new" / "files"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(document["files"]) == {*manifest["files"], "manifest.json"}
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"]
    assert [path.name for path in folder.parent.iterdir()] == ["files"]


def test_named_files_are_copied_alone_and_once(trained: Workplace, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    files = "--file step.onnx --file manifest.json --file step.onnx"
    document = trained.document(f"registry copy digits:1 --output {tmp_path / 'files'} {files}")
    assert document["files"] == ["step.onnx", "manifest.json"]
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["manifest.json", "step.onnx"]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("digits --file model.onnx", 2, "model.onnx"),
        ("nothing", 2, "nothing"),
    ],
)
def test_what_is_not_there_is_named(trained: Workplace, tmp_path: Path, words: str, code: int, expected: str) -> None:
    result = trained(f"registry copy {words} --output {tmp_path / 'files'}")
    assert result.code == code
    assert expected in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_left_as_it_is(trained: Workplace, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep")
    result = trained(f"registry copy digits --output {tmp_path}")
    assert result.code == 1
    assert "is not an empty folder" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_file_is_refused(trained: Workplace, tmp_path: Path) -> None:
    copy = Workplace(Path(shutil.copytree(trained.folder, tmp_path / "workplace")))
    path = Path(copy.document("registry show digits")["files"]["step.onnx"]["path"])
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    result = copy(f"registry copy digits --output {tmp_path / 'files'}")
    assert result.code == 1
    assert "step.onnx" in result.err
    assert not (tmp_path / "files").exists()
