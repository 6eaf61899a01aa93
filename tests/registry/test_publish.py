from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_cli.output import Output
from stablernn_registry import (
    IntegrityError,
    ManifestError,
    ManifestFields,
    RefError,
    Registry,
    StorageError,
    UnknownRefError,
    Version,
)
from stablernn_registry.files import MARKER

Publish = Callable[..., Version]
Tree = Callable[[Path], dict[str, bytes]]


def test_versions_are_numbered_from_one_and_the_bare_name_is_the_highest(registry: Registry, publish: Publish) -> None:
    assert [publish(content={"a": bytes([n])}).version for n in range(3)] == [1, 2, 3]
    assert registry.get("digits").version == 3
    assert registry.get("digits:2").read("a") == b"\x01"
    assert [(m.name, m.versions, m.aliases) for m in registry.list()] == [("digits", (1, 2, 3), {})]


def test_what_is_published_comes_back(registry: Registry, publish: Publish, fields: dict[str, Any]) -> None:
    version = publish(content={"step.onnx": b"graph", "plots/loss.png": b"png"})
    loaded = registry.get("digits:1")
    assert loaded == version
    assert loaded.ref == "digits:1"
    assert loaded.read("plots/loss.png") == b"png"
    assert loaded.path("step.onnx").read_bytes() == b"graph"
    manifest = json.loads(loaded.manifest.encode())
    assert {key: manifest[key] for key in fields} == fields
    assert manifest["files"]["step.onnx"] == {"bytes": 5, "sha256": hashlib.sha256(b"graph").hexdigest()}
    assert (manifest["schema"], manifest["name"], manifest["version"]) == (1, "digits", 1)


def test_publishing_again_changes_no_file_of_the_first_version(
    registry: Registry, publish: Publish, tree: Tree
) -> None:
    publish()
    before = tree(registry.root)
    publish(content={"step.onnx": b"new"})
    after = tree(registry.root)
    log = "models/digits/log.jsonl"
    assert after[log].startswith(before.pop(log))
    assert before.items() <= after.items()


def test_equal_files_are_stored_once(registry: Registry, publish: Publish) -> None:
    publish("digits", {"a": b"same", "b": b"same"})
    publish("other", {"c": b"same"})
    assert len(list((registry.root / "blobs").rglob("?" * 64))) == 1


def test_published_files_are_read_only_and_readable_by_all(registry: Registry, publish: Publish) -> None:
    old = os.umask(0o022)
    try:
        version = publish()
    finally:
        os.umask(old)
    assert version.path("step.onnx").stat().st_mode & 0o777 == 0o444
    assert (registry.root / "models/digits/log.jsonl").stat().st_mode & 0o777 == 0o644


def test_reading_what_does_not_exist_creates_nothing(registry: Registry) -> None:
    assert registry.list() == ()
    assert registry.verify().ok
    with pytest.raises(UnknownRefError, match="Unknown model 'digits'"):
        registry.get("digits")
    with pytest.raises(UnknownRefError):
        registry.set_alias("digits", "production", 1)
    assert not registry.root.exists()


def test_unknown_version(registry: Registry, publish: Publish) -> None:
    publish()
    with pytest.raises(UnknownRefError, match="Model 'digits' has no version 2, it has only version 1"):
        registry.get("digits:2")
    publish()
    with pytest.raises(UnknownRefError, match="Model 'digits' has no version 9, it has versions 1 to 2"):
        registry.get("digits:9")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lables": []}, "unknown field 'lables'; did you mean 'labels'"),
        ({"labels": None}, "task 'classify' needs the field 'labels', got None"),
        ({"features": ["a", "a"]}, "field 'features': the names must differ, got 'a' twice"),
        ({"quantiles": [0.9, 0.1]}, "quantiles must ascend, got [0.9, 0.1]"),
        (
            {"metrics": {"test": {"mase": float("nan")}}},
            "field 'metrics': JSON has no nan at 'test.mase'; give None where a figure is missing",
        ),
        (
            {"lineage": {"files": [Path("x")]}},
            "field 'lineage': JSON cannot hold a PosixPath at 'files[0]'; give plain numbers, text, lists and dicts",
        ),
        ({"lineage": {"run": "\udcff"}}, "field 'lineage': the text '\\udcff' is not Unicode at 'run'"),
        ({"horizon": "3"}, "field 'horizon': input should be a valid integer, got '3'"),
        ({"features": ["a", "b"]}, "'x' of the graphs has 1 features, got 2"),
        ({"labels": ["a"]}, "'logits' of the graphs has 2 labels, got 1"),
        ({"metrics": {"accuracy": 0.9}}, "metrics are those of a split such as 'test', got 0.9 at 'accuracy'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_fields(registry: Registry, publish: Publish, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(sentence)):
        publish(**change)
    assert not registry.root.exists()


def test_a_cell_that_is_not_that_of_the_network(registry: Registry, publish: Publish) -> None:
    with pytest.raises(ManifestError, match="has the cell 'lstm', got 'lipschitz'"):
        publish(content={"config.json": b'{"model": {"cell": "lstm"}}'})
    assert not registry.root.exists()


def test_fields_that_were_changed_after_they_were_checked(
    registry: Registry, tmp_path: Path, fields: dict[str, Any]
) -> None:
    (tmp_path / "a").write_text("x")
    checked = ManifestFields(**fields, parity={"max_abs_error": 0.0})
    checked.parity["max_abs_error"] = float("inf")
    with pytest.raises(ManifestError, match="field 'parity': JSON has no inf at 'max_abs_error'"):
        registry.publish("digits", {"a": tmp_path / "a"}, checked)


def test_missing_source(registry: Registry, tmp_path: Path, fields: dict[str, Any]) -> None:
    for source in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(ManifestError, match=r"Cannot publish 'step\.onnx'"):
            registry.publish("digits", {"step.onnx": source}, fields)
    assert not registry.root.exists()


@pytest.mark.parametrize("filename", ["../a", "/a", ".a", "a b", "x" * 256])
def test_bad_filename(publish: Publish, filename: str) -> None:
    with pytest.raises(ManifestError, match=r"A file in a version is named like 'weights\.safetensors' or"):
        publish(content={filename: b""})


@pytest.mark.parametrize(
    ("names", "other", "filename"),
    [(["a", "a/b"], "a", "a/b"), (["A", "a"], "A", "a"), (["Plots/x", "plots/y"], "Plots", "plots/y")],
    ids=["file-and-folder", "case", "case-of-a-folder"],
)
def test_files_that_cannot_lie_in_one_folder(
    registry: Registry, publish: Publish, names: list[str], other: str, filename: str
) -> None:
    with pytest.raises(ManifestError, match=f"'{other}' and '{filename}'"):
        publish(content=dict.fromkeys(names, b""))
    assert not registry.root.exists()


@pytest.mark.parametrize("field", ["who", "why"])
@pytest.mark.parametrize("value", [7, "\udcff"])
def test_who_and_why_are_text(registry: Registry, publish: Publish, field: str, value: Any) -> None:
    publish()
    for write in (registry.set_alias, lambda name, alias, version, **fields: registry.rollback(name, alias, **fields)):
        with pytest.raises(ManifestError, match=f"field '{field}'"):
            write("digits", "production", 1, **{field: value})
    assert len(registry.log("digits")) == 1


def test_bad_name_reaches_no_path(registry: Registry, publish: Publish, tmp_path: Path) -> None:
    for name in ("../outside", "/outside", "."):
        for ask in (publish, registry.get, registry.log, registry.verify):
            with pytest.raises(RefError):
                ask(name)
    assert not registry.root.exists()
    assert not (tmp_path / "outside").exists()


def test_root_that_is_something_else(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    registry = Registry(tmp_path)
    sentence = (
        f"{tmp_path} is not a registry: it has no registry.json but holds 'notes.txt'. Point STABLERNN_REGISTRY to a "
        f"registry, or to a new or empty folder."
    )
    publish = lambda: registry.publish("digits", {"a": tmp_path / "notes.txt"}, fields)  # noqa: E731
    for ask in (registry.list, lambda: registry.get("digits"), registry.verify, publish):
        with pytest.raises(StorageError) as error:
            ask()
        assert str(error.value) == sentence
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("where", ["tmp/digits", "tmp", "models/digits", "models/digits/versions", "blobs", "locks"])
def test_a_link_below_the_root_makes_no_write_change_files_elsewhere(
    registry: Registry, publish: Publish, tmp_path: Path, tree: Tree, where: str
) -> None:
    publish()
    folder, outside = registry.root / where, tmp_path / "outside"
    if folder.exists():
        folder.rename(outside)
    else:
        outside.mkdir()
    (outside / "precious").write_text("mine")
    before = tree(outside)
    folder.symlink_to(outside)
    with pytest.raises(IntegrityError) as error:
        publish()
    by_reader = (
        f"{where} is a link in place of a folder: a registry holds plain files and folders only. Restore it from a "
        f"copy of the registry."
    )
    by_writer = (
        f"{where} is a link: a write would change files outside the registry {registry.root}. Take it out; a registry "
        f"holds no links."
    )
    # The log of the model is read before anything is written.
    assert str(error.value) == (by_reader if where == "models/digits" else by_writer)
    assert tree(outside) == before


def test_a_root_that_is_a_link_is_a_registry(publish: Publish, registry: Registry, tmp_path: Path) -> None:
    publish()
    (tmp_path / "link").symlink_to(registry.root)
    registry.root = tmp_path / "link"
    assert Registry(tmp_path / "link").set_alias("digits", "production", 1).to_version == 1


def test_an_empty_folder_is_an_empty_registry(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)
    (tmp_path / "source").write_text("x")
    registry = Registry(tmp_path / "volume")
    assert registry.list() == ()
    registry.publish("digits", {"a": tmp_path / "source"}, fields)
    assert registry.verify().ok
    assert (tmp_path / "volume" / "registry.json").read_bytes() == MARKER


def test_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLERNN_REGISTRY", str(tmp_path / "there"))
    assert Registry().root == tmp_path / "there"
    assert Registry(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.setenv("STABLERNN_REGISTRY", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert Registry().root == tmp_path / "data" / "stablernn" / "registry"


def test_a_newer_schema_says_so(registry: Registry, publish: Publish) -> None:
    from stablernn_registry.errors import RegistryError
    from stablernn_registry.manifest import decode

    data = publish().manifest.encode().replace(b'"schema":1', b'"schema":2')
    with pytest.raises(RegistryError, match="The manifest of 'digits:1' has manifest schema 2, this stablernn"):
        decode(data, "The manifest of 'digits:1'")


def test_text_of_a_publisher_cannot_steer_a_terminal(
    registry: Registry, tmp_path: Path, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;x\x07\x9b2J\u202ea\nb"
    (tmp_path / "model.bin").write_bytes(b"x")
    labels, metrics = [evil, "other"], {"test": {evil: 1.0, "note": evil}}
    version = registry.publish(
        "text",
        {"model.bin": tmp_path / "model.bin"},
        fields | {"labels": labels, "metrics": metrics},
        who=evil,
        why=evil,
    )
    (entry,) = registry.log("text")
    assert (entry.who, entry.why) == ("]0;x2Ja b", "]0;x2Ja b")
    clean = "]0;x2Ja\nb"
    assert version.manifest.labels == [clean, "other"]
    assert version.manifest.metrics == {"test": {clean: 1.0, "note": clean}}
    output = Output()
    output.text(evil)
    output.table((evil,), [[evil]], title=evil)
    output.warn(evil)
    Output(as_json=True).document({evil: evil})
    printed = "".join(capsys.readouterr())
    assert not any(character in printed for character in "\x1b\x07\x9b\u202e")
