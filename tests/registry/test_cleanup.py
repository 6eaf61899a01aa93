"""Failures after the commit of a write, or while a failed write is cleaned up, do not change how the write ended."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest

from stablernn_registry import CheckResult, PolicyRules, Registry, StorageError, Version, atomic_io

Publish = Callable[..., Version]
Write = Callable[[Registry, Publish, Path], object]


def refuse(candidate: Version, current: Version | None) -> CheckResult:
    return CheckResult("never", False)


def record(registry: Registry, publish: Publish, folder: Path) -> object:
    report = folder / "report"
    report.write_text("1")
    return registry.record("digits:1", "robustness", {"robustness.json": report})


# Each write, and how many lines it adds to the log or to the policy.
WRITES: dict[str, tuple[Write, int]] = {
    "first version": (lambda registry, publish, folder: publish("fresh"), 1),
    "next version": (lambda registry, publish, folder: publish(), 1),
    "first record": (record, 1),
    "record as before": (record, 0),
    "forced alias": (
        lambda registry, publish, folder: registry.set_alias(
            "digits", "production", 1, force=True, why="because", checks=[refuse]
        ),
        1,
    ),
    "next policy": (lambda registry, publish, folder: registry.set_policy({}, why="because", alias="staging"), 1),
}


@pytest.fixture
def registry(fast_folder: Path) -> Registry:
    return Registry(fast_folder / "registry")


@pytest.fixture
def write(registry: Registry, publish: Publish, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], object]:
    """The write of the parameter, with a registry in which it can be done."""
    publish()
    publish()
    for number in (1, 2):
        registry.set_alias("digits", "production", number)
    kind = request.param
    if kind == "record as before":
        record(registry, publish, tmp_path)
    if kind in ("next policy", "withdrawn policy"):
        registry.set_policy(PolicyRules(), why="because")
    return lambda: WRITES[kind][0](registry, publish, tmp_path)


def staging_stays(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> str:
    """An exhausted quota can refuse to remove a folder, too."""
    remove = Path.rmdir

    def rmdir(path: Path) -> None:
        if path.parent == registry.root / "tmp":
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))
        remove(path)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    return "{staging} cannot be removed: Disk quota exceeded. What is left does no harm; the next write removes it."


def stray_folder(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> str:
    """A program that synchronizes folders puts a folder of its own among the staged files."""
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        rename(source, target)
        if Path(source).parent.parent == registry.root / "tmp":
            (Path(source).parent / ".sync").mkdir(exist_ok=True)

    monkeypatch.setattr(os, "replace", replace)
    return (
        "{staging} cannot be removed: {staging}/.sync does not belong in a registry: take it out before the next write."
    )


def lock_complains(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> str:
    release = filelock.FileLock.release

    def complain(lock: filelock.FileLock, force: bool = False) -> None:
        release(lock, force)
        # A lock releases itself once more when it is garbage.
        if not force:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(filelock.FileLock, "release", complain)
    return "{staging} cannot be removed: Input/output error. What is left does no harm; the next write removes it."


def lines(registry: Registry) -> int:
    return sum(len(registry.log(model.name)) for model in registry.list()) + len(registry.policy().entries)


@pytest.mark.parametrize("fail", [staging_stays, stray_folder, lock_complains], ids=lambda fail: fail.__name__)
@pytest.mark.parametrize(
    ("write", "added"), [(kind, WRITES[kind][1]) for kind in WRITES], indirect=["write"], ids=WRITES
)
def test_a_write_that_was_done_succeeds_with_a_warning_though_its_clean_up_fails(
    registry: Registry,
    publish: Publish,
    write: Callable[[], object],
    added: int,
    fail: Callable[[pytest.MonkeyPatch, Registry], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = lines(registry)
    with pytest.MonkeyPatch.context() as patch:
        reason = fail(patch, registry)
        write()
    assert lines(registry) == before + added
    (warning,) = caplog.records
    what = warning.args[0] if isinstance(warning.args, tuple) else None
    staging = "tmp/@policy" if what == "the policy" else f"tmp/{str(what).strip(chr(39))}"
    assert warning.getMessage() == (
        f"The write to {what} is done and must not be repeated; {reason.format(staging=staging)}"
    )
    shutil.rmtree(registry.root / staging / ".sync", ignore_errors=True)
    publish()
    publish("fresh")
    registry.set_policy({}, why="because")
    report = registry.verify()
    assert (report.problems, [note for note in report.notes if "tmp/" in note]) == ((), [])


@pytest.mark.parametrize("write", [kind for kind in WRITES if kind != "record as before"], indirect=True)
def test_a_commit_whose_answer_was_lost_is_one(
    registry: Registry, write: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server may rename a file and lose its connection before it replies."""
    before, rename = lines(registry), os.replace

    def replace(source: Path, target: Path) -> None:
        rename(source, target)
        if Path(target).suffix == ".jsonl":
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "replace", replace)
    write()
    assert lines(registry) == before + 1
    assert registry.verify().ok


@pytest.mark.parametrize("write", [kind for kind in WRITES if kind != "record as before"], indirect=True)
def test_a_commit_that_the_disk_does_not_confirm_is_an_error_that_says_it_was_done(
    registry: Registry, write: Callable[[], object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before, rename, sync = lines(registry), os.replace, atomic_io.sync_folder
    committed: list[Path] = []

    def replace(source: Path, target: Path) -> None:
        rename(source, target)
        if Path(target).suffix == ".jsonl":
            committed.append(Path(target).parent)

    def sync_folder(folder: Path) -> None:
        if folder in committed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(folder)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(atomic_io, "sync_folder", sync_folder)
    staging_stays(monkeypatch, registry)
    with pytest.raises(StorageError, match=r"but the disk did not confirm it \(Input/output error\)") as error:
        write()
    assert error.value.is_done
    assert lines(registry) == before + 1
    assert "is done and must not be repeated" in caplog.text


def test_a_write_that_fails_gives_its_own_reason_though_its_clean_up_fails_too(
    registry: Registry, publish: Publish, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish()

    def full(path: Path, data: bytes, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_io, "write_new", full)
        staging_stays(patch, registry)
        with pytest.raises(StorageError) as error:
            publish()
    assert str(error.value) == (
        f"Could not publish 'digits': no space is left for the registry {registry.root} (No space left on device). "
        f"Nothing was changed; free some space or point STABLERNN_REGISTRY to another disk, then do it again."
    )
    assert not error.value.is_done
    assert caplog.messages == [
        "The write to 'digits' ended early; tmp/digits cannot be removed: Disk quota exceeded. What is left does no "
        "harm; the next write removes it."
    ]
    assert publish().version == 2
