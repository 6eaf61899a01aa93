"""`predict` for a folder: the answers of single files, once each, whatever stops the job."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from filelock import FileLock

from cli_helpers import Workplace
from stablernn_cli.commands import predict as job
from stablernn_cli.errors import CommandError

FILES, SEQUENCES, STEPS = 5, 40, 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences in Parquet files, and files that are none of the job."""
    folder, rng = tmp_path_factory.mktemp("meters"), np.random.default_rng(0)
    for number in range(FILES):
        names = [f"{number}-{row:03d}" for row in range(SEQUENCES)]
        columns = {
            "unique_id": np.repeat(names, STEPS),
            "ds": np.tile(np.arange(STEPS), SEQUENCES),
            "pixel": rng.normal(size=SEQUENCES * STEPS),
        }
        pl.DataFrame(columns).write_parquet(folder / f"part-{number}.parquet")
    (folder / "_SUCCESS").touch()
    return folder


@pytest.fixture(scope="module")
def expected(trained: Workplace, source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The answers to each file alone, with an empty column of errors."""
    folder = tmp_path_factory.mktemp("alone")
    for number in range(FILES):
        name = f"part-{number}.parquet"
        trained.ok(f"-q predict digits:1 --input {source / name} --output {folder / name}")
        answers = pl.read_parquet(folder / name).with_columns(error=pl.lit(None, pl.String))
        answers.write_parquet(folder / name)
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.parquet"))}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_answers_are_those_of_single_files(
    trained: Workplace, source: Path, expected: dict[str, bytes], tmp_path: Path, workers: int
) -> None:
    words = f"predict digits:1 --input {source} --output {tmp_path / 'answers'} --workers {workers} --json"
    document = trained.ok(f"-q {words}").json
    assert contents(tmp_path / "answers") == expected
    assert document["rows"] == document["samples"] == FILES * SEQUENCES
    assert (document["files"], document["done"], document["failed"]) == (FILES, FILES, {})
    frame = pl.read_parquet(tmp_path / "answers" / "*.parquet")
    assert frame["id"].is_unique().all()
    assert frame.columns[:2] == ["id", "label"]


@pytest.mark.slow
def test_shards_share_the_files(trained: Workplace, source: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    folder, answers = tmp_path / "in", tmp_path / "out"
    shutil.copytree(source, folder)
    words = f"predict digits:1 --input {folder} --output {answers}"
    # All at once; then a file comes that is before the others by name.
    processes = [trained.start(f"-q {words} --shard {number}/3") for number in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert contents(answers) == expected
    shutil.copy(folder / "part-0.parquet", folder / "a.parquet")
    done = [trained.document(f"{words} --shard {number}/3 --resume") for number in range(3)]
    assert sum(document["done"] for document in done) == 1
    assert sum(document["done_before"] for document in done) == FILES
    assert contents(answers)["a.parquet"] == expected["part-0.parquet"]
    # Another number of shards goes on with all records.
    assert trained.document(f"{words} --resume")["done_before"] == FILES + 1


def test_a_process_refuses_a_model_that_has_changed_since(trained: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in trained.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CommandError, match="'digits:1' has changed"):
        job.Model("digits:1", "sha256:0", "cpu", None).open()


@pytest.mark.slow
def test_two_processes_on_one_shard(trained: Workplace, source: Path, tmp_path: Path) -> None:
    words = f"-q predict digits:1 --input {source} --output {tmp_path} --resume"
    tmp_path.mkdir(exist_ok=True)
    with FileLock(tmp_path / "._done.jsonl.lock"):
        process = trained.start(words)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Another process answers this folder" in err
    trained.ok(words)


def test_answers_of_two_files_are_never_one(trained: Workplace, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.csv", "a.csv.parquet"):
        shutil.copy(source / "part-0.parquet", folder / name)
    result = trained(f"predict digits:1 --input {folder} --output {tmp_path / 'out'}")
    assert result.code == 2
    assert "The answers to 'a.csv' and to 'a.csv.parquet' would be one file" in result.err


def test_a_file_that_changes_meanwhile_is_answered_again(
    trained: Workplace, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(source / "part-0.parquet", folder / "a.parquet")
    answer_file = job.answer_file

    def change(*arguments: Any, **options: Any) -> Any:
        answers = answer_file(*arguments, **options)
        shutil.copy(source / "part-1.parquet", folder / "a.parquet")
        return answers

    words = f"predict digits:1 --input {folder} --output {tmp_path / 'out'} --json"
    with monkeypatch.context() as patch:
        patch.setattr(job, "answer_file", change)
        assert trained(words).json["failed"] == {"a.parquet": "It changed while it was read."}
    assert trained.ok(f"{words} --resume").json["done"] == 1


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_file_that_cannot_be_answered_is_named(
    trained: Workplace, source: Path, expected: dict[str, bytes], tmp_path: Path, workers: int
) -> None:
    folder, answers = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for file in source.glob("*.parquet"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "part-1.parquet").write_text("no table")
    pl.DataFrame({"unique_id": ["a"], "ds": [0], "volume": [1.0]}).write_parquet(folder / "part-2.parquet")
    words = f"predict digits:1 --input {folder} --output {answers} --workers {workers}"
    result = trained(f"{words} --json")
    assert result.code == 3
    assert result.json["failed"].keys() == {"part-1.parquet", "part-2.parquet"}
    assert "not Parquet" in result.json["failed"]["part-1.parquet"]
    assert "pixel" in result.json["failed"]["part-2.parquet"]
    assert contents(answers).keys() == expected.keys() - result.json["failed"].keys()
    for name in result.json["failed"]:
        (folder / name).write_bytes((source / name).read_bytes())
    document = trained.document(f"{words} --resume")
    assert (document["done"], document["done_before"]) == (2, 3)
    assert contents(answers) == expected


def test_strict_stops_at_the_first(trained: Workplace, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.parquet", "b.parquet"):
        (folder / name).write_text("no table")
    result = trained(f"predict digits:1 --input {folder} --output {tmp_path / 'out'} --strict --json")
    assert result.code == 3
    assert list(result.json["failed"]) == ["a.parquet"]


def test_changed_files_are_answered_again(trained: Workplace, source: Path, tmp_path: Path) -> None:
    folder, answers = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("part-0.parquet", "part-1.parquet"):
        (folder / name).write_bytes((source / name).read_bytes())
    words = f"-q predict digits:1 --input {folder} --output {answers} --resume --json"
    trained.ok(words)
    before = contents(answers)
    (folder / "part-0.parquet").write_bytes((source / "part-2.parquet").read_bytes())
    (answers / "part-1.parquet").write_bytes(b"damaged")
    assert trained.ok(words).json["done"] == 2
    assert contents(answers)["part-0.parquet"] != before["part-0.parquet"]
    assert contents(answers)["part-1.parquet"] == before["part-1.parquet"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("digits:1", "There are answers in"),
        ("digits-run --resume", "is that of another job"),
        ("digits:1 --id-column meter --resume", "'id_column' was None, and is now 'meter'"),
        ("digits:1 --engine torch --resume", "'engine' was 'onnx', and is now 'torch'"),
        ("digits:1 --shard 4/4", "--shard must be I/N with I from 0 to N - 1, such as 0/4, got '4/4'"),
        ("digits:1 --shard ''", "--shard must be I/N with I from 0 to N - 1, such as 0/4, got ''"),
    ],
)
def test_another_job_is_refused(trained: Workplace, source: Path, tmp_path: Path, words: str, expected: str) -> None:
    trained.ok(f"-q predict digits:1 --input {source} --output {tmp_path}")
    before = contents(tmp_path)
    result = trained(f"predict {words} --input {source} --output {tmp_path}")
    assert result.code == 2
    assert expected in result.err
    assert contents(tmp_path) == before


def members(session: int) -> list[int]:
    """The processes of a session, the first one left out, and those that have ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != session:
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if os.getsid(int(entry.name)) == session and state != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def stopped(
    trained: Workplace, source: Path, answers: Path, seconds: float, stop: Callable[[int], None]
) -> tuple[int, str]:
    """Run a job with two workers, stop it after a time, and return its exit code and what it printed."""
    words = f"predict digits:1 --input {source} --output {answers} --workers 2 --resume"
    process = trained.start(words, start_new_session=True)
    time.sleep(seconds)
    stop(process.pid)
    _, err = process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while members(process.pid):
        assert time.monotonic() < deadline, "processes of the job are left"
        time.sleep(0.05)
    return process.returncode, err


@pytest.mark.slow
def test_ctrl_c(trained: Workplace, source: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    code, err = stopped(trained, source, tmp_path, 1.5, lambda job: os.killpg(job, signal.SIGINT))
    # The signal may come before the command can catch it, or after its end.
    assert code in (0, 130, -signal.SIGINT)
    assert "Traceback" not in err
    trained.ok(f"-q predict digits:1 --input {source} --output {tmp_path} --resume")
    assert contents(tmp_path) == expected


def kill_job(job: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(job, signal.SIGKILL)


def kill_worker(job: int) -> None:
    # The first one is the tracker of resources.
    for worker in members(job)[1:2]:
        kill_job(worker)


KILLS = [pytest.param(count, marks=[] if count < 3 else pytest.mark.slow) for count in (2, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("count", KILLS)
def test_kills_at_any_moment(
    trained: Workplace, source: Path, expected: dict[str, bytes], tmp_path: Path, count: int
) -> None:
    moments = random.Random(count)
    for number in range(count):
        stop = kill_worker if number % 2 else kill_job
        _, err = stopped(trained, source, tmp_path, moments.uniform(0.3, 3.0), stop)
        assert "Traceback" not in err, err
    (tmp_path / ".part-0.parquet.abc").write_bytes(b"half a file")
    trained.ok(f"-q predict digits:1 --input {source} --output {tmp_path} --resume")
    assert contents(tmp_path) == expected
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {*expected, "_job.json", "_done.jsonl", "._done.jsonl.lock"}
    record = [json.loads(line) for line in (tmp_path / "_done.jsonl").read_text().splitlines()]
    assert {entry["file"] for entry in record} == expected.keys()
