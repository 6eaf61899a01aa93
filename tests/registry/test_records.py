"""Records of published versions: chained, covered by verify, and never part of the version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import (
    IntegrityError,
    ManifestError,
    Record,
    RecordEntry,
    Registry,
    RobustnessReport,
    Version,
)

Publish = Callable[..., Version]
Tree = Callable[[Path], dict[str, bytes]]
Keep = Callable[..., Record]


@pytest.fixture
def keep(registry: Registry, tmp_path: Path) -> Keep:
    """``keep("digits:1", "robustness", {"robustness.json": b"..."})``."""

    def keep(ref: str, kind: str = "robustness", content: dict[str, bytes] | None = None, **arguments: Any) -> Record:
        sources = {}
        for index, (filename, data) in enumerate((content or {"robustness.json": b"{}"}).items()):
            sources[filename] = tmp_path / f"report-{index}"
            sources[filename].write_bytes(data)
        return registry.record(ref, kind, sources, **arguments)

    return keep


def test_a_record_stands_beside_the_version_and_changes_nothing_of_it(
    registry: Registry, publish: Publish, keep: Keep, tree: Tree
) -> None:
    before, files = publish(), tree(registry.root)
    content = {"robustness.json": b"{}", "plots/robustness.png": b"png"}
    record = keep("digits", content=content, who="bob", why="asked for")
    assert (record.ref, record.entry.kind, record.entry.who, record.entry.why) == (
        "digits:1",
        "robustness",
        "bob",
        "asked for",
    )
    assert {name: record.read(name) for name in record.entry.files} == content
    assert record.path("robustness.json").read_bytes() == b"{}"
    after = registry.get("digits:1")
    assert (after.digest, after.manifest) == (before.digest, before.manifest)
    changed = {name for name, data in tree(registry.root).items() if files.get(name) != data}
    assert {name.partition("/")[0] for name in changed} == {"blobs", "models"}
    assert [name for name in changed if name.startswith("models")] == ["models/digits/log.jsonl"]
    assert registry.records("digits:1") == (record,)
    assert registry.verify().ok


def test_records_are_of_one_version_in_their_order_and_by_kind(
    registry: Registry, publish: Publish, keep: Keep
) -> None:
    publish()
    publish()
    keep("digits:2", content={"robustness.json": b"1"})
    keep("digits:1", "stability", {"stability.json": b"2"})
    keep("digits:2", "stability", {"stability.json": b"3"})
    registry.set_alias("digits", "production", 2)
    for ref in ("digits", "digits:2", "digits@production"):
        assert [record.entry.kind for record in registry.records(ref)] == ["robustness", "stability"]
    assert [record.read("stability.json") for record in registry.records("digits:1")] == [b"2"]
    assert [entry.seq for entry in registry.log("digits") if isinstance(entry, RecordEntry)] == [3, 4, 5]
    assert publish().version == 3
    assert registry.records("digits:3") == ()


def test_what_is_said_already_is_not_said_again(registry: Registry, publish: Publish, keep: Keep, tree: Tree) -> None:
    publish()
    publish()
    first = keep("digits:1")
    before = tree(registry.root)
    assert keep("digits:1", who="someone else") == first
    assert tree(registry.root) == before
    assert keep("digits:2").entry.seq == 4
    assert keep("digits:1", "stability").entry.seq == 5
    keep("digits:1", content={"robustness.json": b"new"})
    # Only the last one counts: what held before may hold again.
    assert keep("digits:1").entry.seq == 7
    # A blob that was damaged is mended as by publishing.
    blob = first.path("robustness.json")
    blob.chmod(0o644)
    blob.write_bytes(b"[]")
    assert not registry.verify("digits:1").ok
    assert keep("digits:1").entry.seq == 7
    assert registry.verify().ok


def test_damage_is_found_and_never_read(registry: Registry, publish: Publish, keep: Keep) -> None:
    publish()
    record = keep("digits:1", content={"robustness.json": b"report", "plots/noise.png": b"png"})
    blob = record.path("robustness.json")
    blob.chmod(0o644)
    blob.write_bytes(b"rePort")
    where = f"blobs/sha256/{blob.parent.name}/{blob.name}"
    what = f"'robustness.json' of the record 'robustness' of 'digits:1' ({where}) is damaged: "
    for ref in (None, "digits:1"):
        (problem,) = registry.verify(ref).problems
        assert problem.startswith(what)
    with pytest.raises(IntegrityError) as error:
        record.read("robustness.json")
    assert str(error.value).startswith(what)
    blob.unlink()
    (problem,) = registry.verify("digits:1").problems
    assert problem.startswith(f"'robustness.json' of the record 'robustness' of 'digits:1' ({where}) is missing.")
    # Of another version nothing is wrong.
    publish()
    assert registry.verify("digits:2").ok
    assert not registry.verify("digits:1").ok


def test_a_line_of_another_version_does_not_follow(registry: Registry, publish: Publish, keep: Keep) -> None:
    from stablernn_registry.log import encode

    publish()
    entry = keep("digits:1").entry
    log = registry.root / "models/digits/log.jsonl"
    first = log.read_bytes().splitlines()[0]
    log.write_bytes(first + b"\n" + encode(entry.model_copy(update={"digest": "sha256:" + "0" * 64})))
    (problem,) = registry.verify().problems
    assert "line 2 does not follow: it records something of a version 1 with another digest." in problem


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (
            ("digits", "Robustness", {}),
            ManifestError,
            "The kind of a record is a word like 'robustness' (a-z 0-9 -, at most 32, beginning with a letter), got "
            "'Robustness'.",
        ),
        (
            ("digits", "robustness", {"a": "nowhere"}),
            ManifestError,
            "Cannot publish 'a': there is no file nowhere.",
        ),
        (("digits", "robustness", {"../a": "nowhere"}), ManifestError, None),
    ],
    ids=[
        "kind",
        "no-file",
        "file-name",
    ],
)
def test_what_cannot_be_recorded_changes_nothing(
    registry: Registry,
    publish: Publish,
    tree: Tree,
    arguments: tuple[str, str, dict[str, str]],
    error: type[Exception],
    sentence: str | None,
) -> None:
    publish()
    before = tree(registry.root)
    with pytest.raises(error) as caught:
        registry.record(*arguments)
    assert sentence is None or str(caught.value) == sentence
    assert tree(registry.root) == before


REPORT: dict[str, Any] = {
    "weights": "sha256:" + "a" * 64,
    "data": "digits",
    "split": "test",
    "sequences": 200,
    "accuracy": 0.975,
    "attacks": [
        {"name": "pgd", "norm": "linf", "budgets": [0.01, 0.1], "accuracy": [0.95, 0.5], "certified": [0.9, 0.0]},
        {"name": "new", "norm": "l2", "budgets": [1.0], "accuracy": [0.25]},
    ],
    "certified": {"linf": [0.9, 0.0], "l2": [0.5], "median_radius": 0.34, "reason": None},
    "noise": {},
}


@pytest.mark.parametrize("content", [b"\xff", b"[]", json.dumps({**REPORT, "accuracy": "high"}).encode()])
def test_what_is_no_report_is_none(content: bytes) -> None:
    assert RobustnessReport.parse(content) is None
