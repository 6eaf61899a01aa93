"""Reads of a registry with foreign files: each ends, and its message says what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import IntegrityError, Registry, RegistryError, StorageError, Version
from stablernn_registry.copies import copy_versions

Publish = Callable[..., Version]
HUGE = 40 * 2**30
PLAIN = "a registry holds plain files and folders only. Restore it from a copy of the registry."
FILES = ["registry.json", "models/digits/log.jsonl", "models/digits/versions/1.json", "policy.jsonl", "BLOB"]
FOLDERS = ["models", "models/digits", "models/digits/versions", "blobs", "blobs/sha256", "PREFIX"]


@pytest.fixture
def version(publish: Publish) -> Version:
    version = publish(content={"step.onnx": b"graph"})
    Registry(version.path("step.onnx").parents[3]).set_policy({"max_parity": 1e-5}, why="careful", who="ada")
    return version


def path_of(registry: Registry, name: str) -> Path:
    sha256 = hashlib.sha256(b"graph").hexdigest()
    return registry.root / name.replace("BLOB", f"blobs/sha256/{sha256[:2]}/{sha256}").replace(
        "PREFIX", f"blobs/sha256/{sha256[:2]}"
    )


def read_all(registry: Registry) -> None:
    registry.policy()
    registry.get("digits").read("step.onnx")


def refusal(work: Callable[[], object], kind: type[RegistryError] = IntegrityError) -> str:
    """Return the message of the error that ``work`` raises, if it ends."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "the read does not end"
    assert [type(error) for error in caught] == [kind] or isinstance(caught[0], kind), caught
    return str(caught[0])


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    target = path.rename(path.parents[len(path.parts) - 1 - path.parts.index("registry")] / f"aside-{path.name}")
    path.symlink_to(target)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def listening(path: Path) -> None:
    path.unlink()
    # The path of a socket has at most about 100 characters.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("replace", "kind"),
    [(pipe, "a named pipe"), (link, "a link"), (folder, "a folder"), (listening, "a socket")],
    ids=["pipe", "link", "folder", "socket"],
)
def test_what_lies_in_the_place_of_a_file_is_not_read(
    version: Version, registry: Registry, name: str, replace: Callable[[Path], None], kind: str
) -> None:
    path = path_of(registry, name)
    replace(path)
    relative = path.relative_to(registry.root).as_posix()
    assert refusal(lambda: read_all(registry)) == f"{relative} is {kind} in place of a file: {PLAIN}"
    problems = registry.verify().problems
    assert [problem for problem in problems if f"{relative} " in problem] == [
        f"{relative} does not belong in a registry in place of a file: take it out."
    ]
    # A copy has no policy.
    if name != "policy.jsonl":
        assert refusal(lambda: copy_versions(registry, [version], registry.root.parent / "copy"))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_in_the_place_of_a_folder_is_not_followed(version: Version, registry: Registry, name: str) -> None:
    path = path_of(registry, name)
    link(path)
    relative = path.relative_to(registry.root).as_posix()
    assert refusal(lambda: read_all(registry)) == f"{relative} is a link in place of a folder: {PLAIN}"
    assert f"{relative} does not belong in a registry in place of a folder: take it out." in registry.verify().problems


def test_a_file_of_another_size_is_not_read(version: Version, registry: Registry) -> None:
    path = path_of(registry, "BLOB")
    path.chmod(0o644)
    os.truncate(path, HUGE)
    relative = path.relative_to(registry.root).as_posix()
    sentence = (
        f"'step.onnx' of 'digits:1' ({relative}) is damaged: it has {HUGE} bytes, its manifest says 5. Restore it from "
        "a copy of the registry, or publish the same file again."
    )
    for work in (version.read, version.check, version.path):
        assert refusal(lambda work=work: work("step.onnx")) == sentence  # type: ignore[misc]
    assert registry.verify().problems == (sentence,)
    # That its hash is 5 bytes' is seen without a look at the rest.
    assert refusal(lambda: copy_versions(registry, [version], registry.root.parent / "copy")) == sentence


def test_a_file_that_is_stated_to_be_huge_is_checked_but_not_held_in_memory(
    version: Version, registry: Registry
) -> None:
    manifest = json.loads((registry.root / "models/digits/versions/1.json").read_bytes())
    manifest["files"]["step.onnx"]["bytes"] = HUGE
    forge(registry, json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    path = path_of(registry, "BLOB")
    path.chmod(0o644)
    os.truncate(path, HUGE)
    forged = registry.get("digits")
    assert refusal(lambda: forged.read("step.onnx"), StorageError) == (
        f"'step.onnx' of 'digits:1' cannot be read: it has {HUGE} bytes, and at most 2147483648 are read into memory. "
        "Read it piece by piece from the path that 'stablernn registry show' prints."
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("registry.json", 2**12),
        ("models/digits/log.jsonl", 2**28),
        ("models/digits/versions/1.json", 2**26),
        ("policy.jsonl", 2**24),
    ],
)
def test_a_document_above_the_size_of_its_kind_is_not_read(
    version: Version, registry: Registry, name: str, size: int
) -> None:
    path = registry.root / name
    path.chmod(0o644)
    os.truncate(path, HUGE)
    sentence = (
        f"{name} has {HUGE} bytes, and no file of its kind has more than {size}. Restore it from a copy of the "
        "registry."
    )
    assert refusal(lambda: read_all(registry)) == sentence
    assert sentence in registry.verify().problems


@pytest.mark.parametrize("depth", [900, 200_000])
def test_a_manifest_that_nests_without_end_is_damage(version: Version, registry: Registry, depth: int) -> None:
    manifest = (registry.root / "models/digits/versions/1.json").read_bytes()
    forge(registry, manifest.replace(b'"lineage":{', b'"lineage":{"deep":' + b"[" * depth + b"]" * depth + b","))
    sentence = "The manifest of 'digits:1' (models/digits/versions/1.json) is not a manifest: "
    assert refusal(lambda: registry.get("digits")).startswith(sentence)
    assert registry.verify().problems[0].startswith(sentence)


def test_a_line_that_nests_without_end_is_damage(version: Version, registry: Registry) -> None:
    path = registry.root / "models/digits/log.jsonl"
    body = b'{"deep":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    path.write_bytes(chained(body))
    assert refusal(lambda: registry.get("digits")) == (
        "The log of 'digits' (models/digits/log.jsonl) is damaged: line 1 nests objects too deeply. Restore it from a "
        "copy of the registry."
    )


def forge(registry: Registry, manifest: bytes) -> None:
    """Put another manifest in the place of the first, with a log that leads to it."""
    folder = registry.root / "models/digits"
    shutil.rmtree(folder / "versions")
    (folder / "versions").mkdir()
    (folder / "versions/1.json").write_bytes(manifest)
    line: dict[str, Any] = json.loads((folder / "log.jsonl").read_bytes())
    del line["sha256"]
    line["digest"] = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    (folder / "log.jsonl").write_bytes(chained(json.dumps(line, separators=(",", ":")).encode()))


def chained(body: bytes) -> bytes:
    """Return a line of a log with its own hash."""
    return body[:-1] + f',"sha256":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode()
