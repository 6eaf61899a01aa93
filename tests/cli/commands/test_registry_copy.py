"""`registry copy`: all files of a version in a folder, or none."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from cli_helpers import Workplace


def test_all_files_have_the_bytes_of_the_manifest(trained: Workplace, tmp_path: Path) -> None:
    document = trained.ok("-q", "registry", "copy", "digits", "--output", tmp_path / "new" / "files", "--json").json
    folder = tmp_path / "new" / "files"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(document["files"]) == {*manifest["files"], "manifest.json"}
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"]
    assert [path.name for path in folder.parent.iterdir()] == ["files"]


def test_one_file_runs_elsewhere(trained: Workplace, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    trained.ok("-q", "registry", "copy", "digits:1", "--output", tmp_path / "files", "--file", "sequence.onnx")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["sequence.onnx"]
    session = ort.InferenceSession(tmp_path / "files" / "sequence.onnx", providers=["CPUExecutionProvider"])
    feeds = {
        argument.name: np.zeros(
            [size if isinstance(size, int) else 1 for size in argument.shape],
            np.int64 if "int64" in argument.type else np.float32,
        )
        for argument in session.get_inputs()
    }
    assert session.run(["probabilities"], {**feeds, "lengths": np.ones(1, np.int64)})[0].sum() == pytest.approx(1)


def test_a_device_gets_the_graph_with_the_order_of_features_and_labels(trained: Workplace, tmp_path: Path) -> None:
    files = ("--file", "step.onnx", "--file", "manifest.json", "--file", "step.onnx")
    document = trained.ok("-q", "registry", "copy", "digits", "--output", tmp_path / "device", *files, "--json").json
    assert document["files"] == ["step.onnx", "manifest.json"]
    assert sorted(path.name for path in (tmp_path / "device").iterdir()) == ["manifest.json", "step.onnx"]
    manifest = json.loads((tmp_path / "device" / "manifest.json").read_text())
    session = ort.InferenceSession(tmp_path / "device" / "step.onnx", providers=["CPUExecutionProvider"])
    shapes = {argument.name: argument.shape for argument in (*session.get_inputs(), *session.get_outputs())}
    assert shapes["x"][-1] == len(manifest["features"])
    assert shapes["probabilities"][-1] == len(manifest["labels"])


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("digits", "--file", "model.onnx"), 2, "model.onnx"),
        (("nothing",), 2, "nothing"),
    ],
)
def test_what_is_not_there_is_named(
    trained: Workplace, tmp_path: Path, words: tuple[str, ...], code: int, expected: str
) -> None:
    result = trained("registry", "copy", *words, "--output", tmp_path / "files")
    assert result.code == code
    assert expected in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_left_as_it_is(trained: Workplace, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep")
    result = trained("registry", "copy", "digits", "--output", tmp_path)
    assert result.code == 1
    assert "is not an empty folder" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_file_is_refused(trained: Workplace, tmp_path: Path) -> None:
    copy = Workplace(Path(shutil.copytree(trained.folder, tmp_path / "workplace")))
    path = Path(copy.ok("-q", "registry", "show", "digits", "--json").json["files"]["step.onnx"]["path"])
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    result = copy("registry", "copy", "digits", "--output", tmp_path / "files")
    assert result.code == 1
    assert "step.onnx" in result.err
    assert not (tmp_path / "files").exists()
