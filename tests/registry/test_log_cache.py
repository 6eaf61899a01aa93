"""Long logs are replayed in linear time, and one that has not changed is not read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import IntegrityError, Registry, UnknownRefError, Version, log, storage

Publish = Callable[..., Version]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose times count as soon as they are written, as those of a log that nobody wrote to for 2 s."""
    monkeypatch.setattr(log, "_SETTLED_NS", 0)


@pytest.fixture
def decoded_lines(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the log lines that are decoded, in order."""
    numbers: list[int] = []
    parse_lines = log.parse_lines

    def counting_parse_lines(*arguments: Any, **options: Any) -> Iterator[tuple[int, dict[str, Any], str]]:
        for number, tree, line_hash in parse_lines(*arguments, **options):
            numbers.append(number)
            yield number, tree, line_hash

    monkeypatch.setattr(log, "parse_lines", counting_parse_lines)
    return numbers


@pytest.mark.usefixtures("settled")
def test_a_look_at_an_unchanged_log_reads_nothing_of_it(
    registry: Registry, publish: Publish, decoded_lines: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish()
    registry.set_alias("digits", "production", 1)
    reader = Registry(registry.root)
    assert reader.get("digits@production").version == 1
    assert decoded_lines[-2:] == [1, 2]
    decoded_lines.clear()
    read = log.read_or_none
    paths: list[Path] = []
    for module in (log, storage):
        monkeypatch.setattr(
            module, "read_or_none", lambda path, *arguments: (paths.append(path), read(path, *arguments))[1]
        )
    assert reader.resolve("digits@production") == 1
    assert reader.aliases("digits") == {"production": 1}
    assert len(reader.log("digits")) == 2
    assert [model.versions for model in reader.list()] == [(1,)]
    assert reader.get("digits").version == 1
    assert decoded_lines == []
    assert {path.name for path in paths} == {"registry.json", "1.json"}


@pytest.mark.parametrize("is_settled", [True, False])
def test_of_a_longer_log_only_the_new_lines_are_decoded(
    registry: Registry, publish: Publish, decoded_lines: list[int], monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    monkeypatch.setattr(log, "_SETTLED_NS", 0 if is_settled else 10**18)
    publish()
    publish()
    reader = Registry(registry.root)
    before = reader.log("digits")
    decoded_lines.clear()
    assert reader.log("digits") == before
    assert decoded_lines == []
    Registry(registry.root).set_alias("digits", "production", 2)
    publish()
    decoded_lines.clear()
    assert reader.resolve("digits@production") == 2
    assert reader.list()[0].versions == (1, 2, 3)
    assert decoded_lines == [3, 4]
    assert len(before) == 2
    assert reader.log("digits")[:2] == before


def test_a_log_that_was_changed_a_moment_ago_is_read_again_though_its_status_is_the_same(
    registry: Registry, publish: Publish
) -> None:
    """Two changes in one tick of the file system's clock leave equal times."""
    publish()
    registry.get("digits")
    path = registry.root / "models/digits/log.jsonl"
    times = path.stat()
    with open(path, "r+b") as file:
        file.seek(20)
        file.write(b"?")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(IntegrityError, match="line 1 does not match its own sha256"):
        registry.get("digits")


def test_a_status_of_a_moment_ago_does_not_stand_for_the_log(
    registry: Registry, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(log, "_read_status", lambda path: (1, 1, 1, now, now))
    publish()
    reader = Registry(registry.root)
    assert reader.resolve("digits") == 1
    publish()
    assert reader.resolve("digits") == 2


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", ["damaged", "cut", "grown and damaged"])
def test_a_log_that_was_changed_is_checked_from_its_beginning(
    registry: Registry, publish: Publish, change: str
) -> None:
    publish()
    publish()
    reader = Registry(registry.root)
    assert reader.get("digits").version == 2
    path = registry.root / "models/digits/log.jsonl"
    data = path.read_bytes()
    if change == "grown and damaged":
        publish()
        data = path.read_bytes()
    first, other_lines = data.split(b"\n", 1)
    path.write_bytes(other_lines if change == "cut" else first.replace(b"ada", b"bob") + b"\n" + other_lines)
    with pytest.raises(IntegrityError, match="line 1"):
        reader.get("digits")


@pytest.mark.usefixtures("settled")
def test_a_model_that_was_taken_out_is_gone(registry: Registry, publish: Publish) -> None:
    publish()
    publish("other")
    assert registry.get("digits").version == 1
    (registry.root / "models/digits/log.jsonl").unlink()
    with pytest.raises(UnknownRefError):
        registry.get("digits")


@pytest.mark.usefixtures("settled")
def test_the_logs_that_were_read_longest_ago_make_room(
    registry: Registry, publish: Publish, decoded_lines: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "b", "c"):
        publish(name)
    monkeypatch.setattr(log, "MAX_LINES", 3)
    reader = Registry(registry.root)
    reader.log("a")
    reader.log("b")
    reader.log("a")
    # One line too many with this one, so that "b" goes, which was read before "a".
    reader.log("c")
    decoded_lines.clear()
    reader.log("a")
    reader.log("c")
    assert decoded_lines == []
    assert len(reader.log("b")) == 2
    assert decoded_lines == [1, 2]
