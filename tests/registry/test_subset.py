"""Copies of selected versions: a registry in which they are unchanged."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stablernn_registry import IntegrityError, Registry, StorageError, Version
from stablernn_registry.copies import copy_versions

Publish = Callable[..., Version]


@pytest.fixture
def selected(registry: Registry, publish: Publish, tmp_path: Path) -> Version:
    """Version 2 of three, with an alias and a record."""
    for number in (1, 2, 3):
        publish(content={"weights": b"weights %d" % number})
    publish("co2", {"weights": b"of another model"})
    registry.set_alias("digits", "production", 1)
    registry.set_alias("digits", "production", 2)
    (tmp_path / "report.json").write_text("{}")
    registry.record("digits:2", "robustness", {"report.json": tmp_path / "report.json"})
    return registry.get("digits@production")


def test_it_keeps_number_digest_alias_history_and_records(
    registry: Registry, selected: Version, tmp_path: Path
) -> None:
    copy = copy_versions(registry, [selected, selected], tmp_path / "copy")
    copied = copy.get("digits@production")
    assert (copied.ref, copied.digest, copied.manifest) == ("digits:2", selected.digest, selected.manifest)
    assert copied.read("weights") == b"weights 2"
    assert copy.log("digits") == registry.log("digits")
    [record] = copy.records("digits:2")
    assert record.read("report.json") == b"{}"
    assert copy.verify("digits:2").ok
    assert [model.name for model in copy.list()] == ["digits"]


def test_files_of_other_versions_stay_behind(registry: Registry, selected: Version, tmp_path: Path) -> None:
    copy = copy_versions(registry, [selected], tmp_path / "copy")
    assert copy.get("digits").ref == "digits:3"
    with pytest.raises(IntegrityError, match=r"'weights' of 'digits:3' .* is missing"):
        copy.get("digits").read("weights")
    assert not copy.verify().ok


def test_everybody_may_read_it(registry: Registry, selected: Version, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        copy = copy_versions(registry, [selected], tmp_path / "copy")
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (copy.root, *copy.root.rglob("*"))}
    assert all(mode == (0o755 if path.is_dir() else 0o444) for path, mode in modes.items()), modes


@pytest.mark.parametrize("what", ["blob", "manifest", "log"])
def test_damage_is_not_copied(registry: Registry, selected: Version, tmp_path: Path, what: str) -> None:
    root = registry.root
    path = {
        "blob": selected.path("weights"),
        "manifest": root / "models" / "digits" / "versions" / "3.json",
        "log": root / "models" / "digits" / "log.jsonl",
    }[what]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"2", b"3", 1))
    with pytest.raises(IntegrityError, match="is damaged"):
        copy_versions(registry, [selected], tmp_path / "copy")


def test_a_folder_that_holds_something_is_refused(registry: Registry, selected: Version, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("")
    with pytest.raises(StorageError, match="is not empty. Copy versions to a new or empty folder."):
        copy_versions(registry, [selected], tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["mine"]
