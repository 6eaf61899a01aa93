"""A kill, a full disk or a concurrent process leaves the whole change behind or none of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from stablernn_registry import Registry, StorageError, Version

Publish = Callable[..., Version]
Tree = Callable[[Path], dict[str, bytes]]


@pytest.mark.parametrize(
    ("action", "start", "how"),
    [
        pytest.param("publish", "fresh", "kill", marks=pytest.mark.slow),
        pytest.param("publish", "filled", "kill", marks=pytest.mark.slow),
        pytest.param("alias", "filled", "kill", marks=pytest.mark.slow),
        pytest.param("record", "filled", "kill", marks=pytest.mark.slow),
        pytest.param("record", "filled", "interrupt", marks=pytest.mark.slow),
        pytest.param("policy", "fresh", "kill", marks=pytest.mark.slow),
        pytest.param("policy", "filled", "kill", marks=pytest.mark.slow),
        pytest.param("policy", "filled", "interrupt", marks=pytest.mark.slow),
        ("publish", "filled", "interrupt"),
    ],
    ids=lambda text: text,
)
def test_a_stop_at_any_line_leaves_the_whole_change_or_none(
    fast_folder: Path, action: str, start: str, how: str
) -> None:
    script = Path(__file__).with_name("interrupted_write.py")
    arguments = [str(fast_folder), action, start, how]
    run = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    steps = [json.loads(line) for line in run.stdout.splitlines()]
    stopped = [step for step in steps if step["stopped"]]
    assert len(stopped) > 100
    commits = 0
    for step in steps:
        before, after = step["before"], step["after"]
        assert after["problems"] == [], step
        assert after["lines"] - before["lines"] in ((0, 1) if step["stopped"] else (1,)), step
        done = after["lines"] - before["lines"]
        commits += done and step["stopped"]
        if action == "publish":
            assert after["versions"] == list(range(1, len(before["versions"]) + done + 1)), step
            assert after["aliases"] == before["aliases"]
        else:
            assert after["versions"] == before["versions"]
            assert (after["aliases"] != before["aliases"]) == (bool(done) and action == "alias"), step
        assert after["content"] == ("a" if after["versions"] else None), step
        if not step["stopped"]:
            # The write after a stop cleared what was left behind.
            assert [note for note in after["notes"] if note.startswith("tmp/")] == [], step
    # Both outcomes were met: the stops reach before and past the commit.
    assert 0 < commits < len(stopped)


PUBLISHER = """
import sys
from pathlib import Path
from stablernn_registry import Registry
root, source, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
fields = {"task": "predict-next", "cell": "lipschitz", "signature": {}, "features": ["x"]}
registry = Registry(root)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(count):
    print(registry.publish("digits", {"a": source}, fields, who=sys.argv[4]).version, flush=True)
"""


def test_processes_that_publish_at_once_get_distinct_versions_and_readers_see_whole_ones(tmp_path: Path) -> None:
    processes, each = 2, 4
    root, running = tmp_path / "registry", []
    for number in range(processes):
        source = tmp_path / f"source-{number}"
        source.write_text(f"process {number}")
        arguments = [str(root), str(source), str(each), f"process {number}"]
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", PUBLISHER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    registry, looks, highest = Registry(root), 0, 0
    while any(process.poll() is None for process in running):
        looks += 1
        assert registry.verify().problems == ()
        for model in registry.list():
            assert len(model.versions) >= highest
            highest = len(model.versions)
            version = registry.get("digits")
            assert version.version >= highest
            assert version.read("a").startswith(b"process ")
    assert looks > 1

    got = {}
    for number, process in enumerate(running):
        out, _ = process.communicate()
        assert process.returncode == 0
        got[number] = [int(line) for line in out.split()]
    assert sorted(version for versions in got.values() for version in versions) == list(range(1, processes * each + 1))
    for number, versions in got.items():
        for version in versions:
            assert registry.get(f"digits:{version}").read("a").decode() == f"process {number}"
            assert registry.log("digits")[version - 1].who == f"process {number}"
    report = registry.verify()
    assert (report.ok, report.notes) == (True, ())


def test_a_write_that_waits_too_long_says_for_what(
    registry: Registry, publish: Publish, tree: Tree, lock_elsewhere: Callable[[Path], AbstractContextManager[None]]
) -> None:
    publish()
    before = tree(registry.root)
    with lock_elsewhere(registry.root / "locks/digits"):
        hasty = Registry(registry.root, lock_timeout_seconds=0.1)
        started = time.monotonic()
        with pytest.raises(StorageError) as error:
            hasty.set_alias("digits", "production", 1)
        assert time.monotonic() - started < 5
        assert str(error.value) == (
            f"Another process has been writing to 'digits' for 0.1 s ({registry.root / 'locks/digits'} is locked). "
            f"Wait for it to end, then do it again."
        )
        # Readers and other models do not wait.
        assert hasty.get("digits").version == 1
        publish("other")
    registry.set_alias("digits", "production", 1)
    assert before.items() - tree(registry.root).items() == {
        ("models/digits/log.jsonl", before["models/digits/log.jsonl"])
    }


LIMITED = """
import resource, sys
from pathlib import Path
from stablernn_registry import Registry, StorageError
root, source, limit = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
fields = {"task": "predict-next", "cell": "lipschitz", "signature": {}, "features": ["x"]}
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    if sys.argv[4] == "publish":
        Registry(root).publish("digits", {"small": Path(__file__) if "__file__" in globals() else source, "a": source},
                               fields)
    else:
        Registry(root).set_alias("digits", "production", 1, why="x" * 9000)
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("start", "action", "size", "limit", "what"),
    [
        ("fresh", "publish", 100_000, 50_000, "publish 'digits'"),
        ("fresh", "publish", 100, 500, "publish 'digits'"),
        ("filled", "alias", 100, 4096, "move 'digits@production'"),
    ],
    ids=["in-the-file", "in-the-log", "in-the-log-of-a-move"],
)
def test_a_disk_that_takes_no_more_bytes(
    registry: Registry,
    publish: Publish,
    tmp_path: Path,
    tree: Tree,
    action: str,
    size: int,
    limit: int,
    what: str,
    start: str,
) -> None:
    """The limit on file size is a real refusal by the kernel in the middle of a write."""
    if start == "filled":
        publish()
    before = tree(registry.root)
    source = tmp_path / "source"
    source.write_bytes(b"x" * size)
    arguments = [str(registry.root), str(source), str(limit), action]
    run = subprocess.run([sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True, check=True)
    assert run.stdout == (
        f"Could not {what}: no space is left for the registry {registry.root} (File too large). Nothing was changed; "
        f"free some space or point STABLERNN_REGISTRY to another disk, then do it again.\n"
    )
    after = tree(registry.root)
    assert {name: data for name, data in after.items() if data and name != "registry.json"} == {
        name: data for name, data in before.items() if data and name != "registry.json"
    }
    report = registry.verify()
    assert (report.ok, report.notes) == (True, ())
    assert publish().version == (2 if before else 1)
