from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stablernn_registry import IntegrityError, Registry, RegistryError, StorageError

CONTENT = {
    "digits:1": {"step.onnx": b"first graph", "plots/loss.png": b"picture"},
    "digits:2": {"step.onnx": b"second graph", "plots/loss.png": b"picture"},
    "co2.weekly:1": {"weights.safetensors": b"w", "empty": b""},
}
MARKER = '{"format":"stablernn-registry","schema":1}'


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Two models, three versions, aliases, a policy; tests that damage it work on a copy or repair it."""
    folder = tmp_path_factory.mktemp("filled")
    registry = Registry(folder / "registry")
    fields: dict[str, Any] = {"task": "predict-next", "cell": "lipschitz", "signature": {}, "features": ["x"]}
    for ref, files in CONTENT.items():
        for filename, data in files.items():
            (folder / filename.replace("/", "-")).write_bytes(data)
        sources = {filename: folder / filename.replace("/", "-") for filename in files}
        registry.publish(ref.split(":")[0], sources, fields, who="ada")
    registry.set_alias("digits", "production", 1, who="ada", why="first release")
    registry.set_alias("digits", "production", 2, who="bob")
    registry.set_policy({"max_parity": 1e-5}, who="ada", why="careful", alias="gated")
    registry.set_policy({"kind": "contracting"}, who="ada", why="more careful", alias="gated")
    return registry


@pytest.fixture
def damaged(filled: Registry, tmp_path: Path) -> Registry:
    """A copy to damage."""
    shutil.copytree(filled.root, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    return Registry(tmp_path / "copy")


def overwrite(path: Path, data: bytes) -> None:
    """Replace the bytes of a file that may be read-only."""
    path.chmod(0o644)
    path.write_bytes(data)


def assert_reads_are_right_or_refused(registry: Registry) -> None:
    for ref, files in CONTENT.items():
        for filename, data in files.items():
            try:
                content = registry.get(ref).read(filename)
            except RegistryError:
                continue
            assert content == data


def test_an_undamaged_registry_is_ok(filled: Registry) -> None:
    report = filled.verify()
    assert (report.ok, report.problems, report.notes) == (True, (), ())
    # registry.json, policy, 3 locks, 2 logs, 3 manifests, 5 different blobs
    assert report.checked == 15
    assert report.ref == str(filled.root)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_is_found(filled: Registry, data: st.DataObject) -> None:
    paths = sorted(path for path in filled.root.rglob("*") if path.is_file() and path.stat().st_size)
    path = data.draw(st.sampled_from(paths), label="file")
    before = path.read_bytes()
    position = data.draw(st.integers(0, len(before) - 1), label="position")
    mask = data.draw(st.integers(1, 255), label="mask")
    after = bytearray(before)
    after[position] ^= mask
    overwrite(path, bytes(after))
    try:
        report = filled.verify()
        assert not report.ok
        assert any(path.name in problem or "registry.json" in problem for problem in report.problems), report
        assert_reads_are_right_or_refused(filled)
    finally:
        overwrite(path, before)
    assert filled.verify().ok


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_file_cut_lengthened_or_taken_away_is_found(filled: Registry, data: st.DataObject) -> None:
    paths = sorted(path for path in filled.root.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths), label="file")
    before = path.read_bytes()
    kinds = ["lengthen"]
    if before:
        kinds += ["cut", "remove"]
    kind = data.draw(st.sampled_from(kinds), label="kind")
    if kind == "remove":
        path.unlink()
    elif kind == "cut":
        # A log cut exactly between two lines is a shorter, sound log: see docs/background/registry.md.
        overwrite(path, before[: -data.draw(st.integers(1, min(len(before), 60)), label="bytes")])
    else:
        overwrite(path, before + data.draw(st.binary(min_size=1, max_size=5), label="bytes"))
    try:
        assert not filled.verify().ok
        assert_reads_are_right_or_refused(filled)
    finally:
        if path.exists():
            path.chmod(0o644)
        path.write_bytes(before)
    assert filled.verify().ok


@pytest.mark.parametrize(
    "stray",
    [
        "notes.txt",
        "blobs/sha256/ab/short",
        "models/digits/versions/3.json",
        "models/digits/versions/1.json~",
        "tmp/digits/whatever",
        "blobs/sha256/00/" + "ab" * 32,
    ],
)
def test_any_stray_file_is_named(damaged: Registry, stray: str) -> None:
    (damaged.root / stray).parent.mkdir(parents=True, exist_ok=True)
    (damaged.root / stray).write_text("x")
    problems = damaged.verify().problems
    assert len(problems) == 1
    assert problems[0].startswith(f"{stray} does not belong in a registry")
    assert problems[0].endswith("take it out.")


def test_a_link_in_place_of_a_file_or_folder_is_named(damaged: Registry) -> None:
    manifest = damaged.root / "models/digits/versions/1.json"
    manifest.rename(damaged.root.parent / "elsewhere.json")
    manifest.symlink_to(damaged.root.parent / "elsewhere.json")
    (damaged.root / "blobs").rename(damaged.root.parent / "blobs")
    (damaged.root / "blobs").symlink_to(damaged.root.parent / "blobs")
    assert damaged.verify().problems == (
        "blobs does not belong in a registry in place of a folder: take it out.",
        "models/digits/versions/1.json does not belong in a registry in place of a file: take it out.",
    )


def test_publishing_the_same_file_again_mends_it(damaged: Registry, tmp_path: Path) -> None:
    damaged.get("digits:1").path("step.onnx").write_bytes(b"First graph")
    (tmp_path / "source").write_bytes(b"first graph")
    damaged.publish("digits", {"step.onnx": tmp_path / "source"}, damaged.get("digits:1").manifest)
    assert damaged.verify().ok


def test_damaged_log_sentence(damaged: Registry, tmp_path: Path) -> None:
    path = damaged.root / "models/digits/log.jsonl"
    path.write_bytes(path.read_bytes().replace(b"first release", b"First release"))
    sentence = (
        "The log of 'digits' (models/digits/log.jsonl) is damaged: line 3 does not match its own sha256. Restore it "
        "from a copy of the registry."
    )
    for ask in (
        damaged.list,
        lambda: damaged.get("digits:2"),
        lambda: damaged.log("digits"),
        lambda: damaged.set_alias("digits", "production", 1),
        lambda: damaged.publish("digits", {"a": path}, damaged.get("co2.weekly").manifest),
    ):
        with pytest.raises(IntegrityError) as error:
            ask()
        assert str(error.value) == sentence
    assert damaged.verify("digits").problems == (sentence,)
    # Another model is still served.
    assert damaged.get("co2.weekly").read("weights.safetensors") == b"w"


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "it is empty"),
        ([0, 1, 3], "line 3 does not follow: its seq is 4"),
        ([1, 0, 2, 3], "line 1 does not follow: its seq is 2"),
        ([0, 1, 2, 3, 3], "line 5 does not follow: its seq is 4"),
    ],
    ids=["none", "dropped", "swapped", "doubled"],
)
def test_log_lines_that_do_not_follow(damaged: Registry, lines: list[int], what: str) -> None:
    path = damaged.root / "models/digits/log.jsonl"
    old = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(old[number] for number in lines))
    assert damaged.verify().problems[0] == (
        f"The log of 'digits' (models/digits/log.jsonl) is damaged: {what}. Restore it from a copy of the registry."
    )


def test_a_line_put_in_by_hand_breaks_the_chain(damaged: Registry) -> None:
    from stablernn_registry.log import PublishEntry, encode

    log = damaged.log("digits")[0]
    assert isinstance(log, PublishEntry)
    forged = encode(PublishEntry(**{**log.model_dump(), "who": "mallory"}))
    path = damaged.root / "models/digits/log.jsonl"
    path.write_bytes(forged + b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    assert damaged.verify().problems[0] == (
        "The log of 'digits' (models/digits/log.jsonl) is damaged: line 2 does not follow: its previous hash is not "
        "that of the line before. Restore it from a copy of the registry."
    )


def test_a_lost_model_is_found(damaged: Registry) -> None:
    shutil.rmtree(damaged.root / "models/co2.weekly")
    sentence = (
        "The model 'co2.weekly' is missing: locks/co2.weekly is there, models/co2.weekly/log.jsonl is not. Restore it "
        "from a copy of the registry; if it was taken out on purpose, take out locks/co2.weekly too."
    )
    assert damaged.verify().problems == (sentence,)
    assert damaged.verify("co2.weekly").problems == (sentence,)
    assert damaged.verify("digits").ok
    # A write that is under way explains it, and so does taking the lock out.
    (damaged.root / "tmp/co2.weekly").mkdir()
    assert damaged.verify().ok
    (damaged.root / "tmp/co2.weekly").rmdir()
    (damaged.root / "locks/co2.weekly").unlink()
    report = damaged.verify()
    assert (report.problems, report.notes) == ((), ("2 blobs belong to no version; they do no harm.",))


def test_a_first_publish_that_fails_leaves_no_lock(damaged: Registry, tmp_path: Path) -> None:
    fields = {"task": "predict-next", "cell": "lipschitz", "signature": {}, "features": ["x"]}
    (damaged.root / "blobs/sha256").rename(tmp_path / "blobs")
    (damaged.root / "blobs/sha256").write_text("in the way")
    with pytest.raises(StorageError):
        damaged.publish("new", {"a": tmp_path / "copy/registry.json"}, fields)
    (damaged.root / "blobs/sha256").unlink()
    (tmp_path / "blobs").rename(damaged.root / "blobs/sha256")
    assert not (damaged.root / "locks/new").exists()
    assert not (damaged.root / "tmp/new").exists()
    assert damaged.verify().ok


@pytest.mark.parametrize(
    ("content", "start"),
    [
        (None, "The registry {root} has lost its registry.json. Restore it: "),
        (MARKER + " \n", "registry.json of the registry {root} is damaged, or written by a newer stablernn. "),
    ],
    ids=["missing", "changed"],
)
def test_registry_json(damaged: Registry, content: str | None, start: str) -> None:
    (damaged.root / "registry.json").unlink()
    if content is not None:
        (damaged.root / "registry.json").write_text(content)
    with pytest.raises(IntegrityError) as error:
        damaged.get("digits")
    assert str(error.value).startswith(start.format(root=damaged.root))
    assert str(error.value).endswith(f"its whole content is {MARKER} and a newline.")
    for ref in (None, "digits"):
        (problem,) = damaged.verify(ref).problems
        assert problem.startswith("registry.json is ")


def test_verify_of_one_version_reads_the_root_and_its_model_but_not_other_models(damaged: Registry) -> None:
    report = damaged.verify("digits@production")
    assert report.ref == "digits@production"
    # registry.json, policy, 3 locks, 1 log, 2 manifests, 2 blobs
    assert (report.ok, report.checked) == (True, 10)
    (damaged.root / "notes.txt").write_text("x")
    assert not damaged.verify("digits@production").ok
