"""A log that nobody reads, or that cannot be written, stops nothing."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import httpx
import pytest

from connection_helpers import connected, health_watched, read_response
from server_helpers import Published
from serving_helpers import command, end_all, giving_up, until
from stablernn_server.log_writer import MAX_QUEUED_BYTES, QueuedStderr, queued_stderr

SLOW_ANSWER_SECONDS = 2.0
REPORT = re.compile(rb"WARNING: (\d+) lines? of the log w\w+ dropped: standard error was not read fast enough\.\n")
REQUEST = b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextmanager
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The end to read from, and the other end as a stream."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        try:
            yield reading, stream
        finally:
            os.close(reading)


def test_lines_arrive_in_order() -> None:
    with pipe() as (reading, stream):
        queued = QueuedStderr(stream)
        for number in range(200):
            queued.write(f"line {number}\n")
        queued.stop()
        assert os.read(reading, 65536).decode() == "".join(f"line {number}\n" for number in range(200))


def test_a_pipe_that_is_full_takes_no_time_and_what_was_dropped_is_reported() -> None:
    line = "x" * 999 + "\n"
    written = 2 * MAX_QUEUED_BYTES // len(line)
    with pipe() as (reading, stream):
        queued = QueuedStderr(stream)
        for _ in range(written):
            queued.write(line)
        dropped = queued.dropped
        assert 0 < dropped < written
        assert not queued.drain(0.1)
        reported = lines = 0
        with os.fdopen(os.dup(reading), "rb") as reader:
            while lines < written - dropped or reported < dropped:
                received = reader.readline()
                report = REPORT.fullmatch(received)
                if report is None:
                    assert received == line.encode()
                    lines += 1
                else:
                    reported += int(report[1])
        assert (lines, reported) == (written - dropped, dropped)
        queued.stop()


def test_a_reader_that_has_stalled_is_waited_for_once() -> None:
    with pipe() as (_, stream):
        queued = QueuedStderr(stream)
        queued.write("x" * 2**17)
        assert not queued.drain(0.1)
        started = time.monotonic()
        queued.stop(60)
        assert time.monotonic() - started < 30


def test_a_full_disk_is_no_error() -> None:
    with open("/dev/full", "w") as stream:
        check_refused(stream)


def test_a_pipe_whose_reader_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        check_refused(stream)


def check_refused(stream: TextIO) -> None:
    queued = QueuedStderr(stream)
    for _ in range(3):
        queued.write("line\n")
    assert queued.drain(10)
    assert queued.dropped == 3
    queued.stop()


def test_logging_handlers_and_print_go_through_the_queue(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("stablernn_server.test_log_writer")
    logger.propagate = False
    stream = sys.stderr
    logger.addHandler(logging.StreamHandler(stream))
    try:
        with queued_stderr() as queued:
            assert sys.stderr is queued
            logger.warning("logged")
            print("printed", file=sys.stderr)
        assert sys.stderr is stream
        logger.warning("at once")
    finally:
        logger.handlers.clear()
        logger.propagate = True
    assert capfd.readouterr().err.splitlines()[-3:] == ["logged", "printed", "at once"]


@contextmanager
def started(registry: Path, folder: Path, stderr: Any, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server with a stderr of any kind, and its port."""
    process = subprocess.Popen(
        command("--model", "animals:1", *words),
        env=os.environ | {"STABLERNN_REGISTRY": str(registry), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    text = ""
    try:
        with giving_up(process):
            for line in process.stdout:
                text += line
                if line == "}\n":
                    break
        assert text, f"the server ended with {process.wait(30)}"
        yield process, int(json.loads(text)["url"].rpartition(":")[2])
    finally:
        end_all(process)
        process.stdout.close()
        process.wait(30)


def dropped_lines(port: int) -> float:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith("stablernn_log_lines_dropped_"))


@pytest.mark.slow
def test_a_reader_that_stalls_stops_no_answer(published: Published, tmp_path: Path, record_property: Any) -> None:
    reading, writing = os.pipe()
    with started(published.root, tmp_path, writing) as (process, port):
        os.close(writing)
        with health_watched(port) as latencies, connected(port) as connection:
            for _ in range(2500):
                connection.sendall(REQUEST)
                assert read_response(connection)[0] == 200
        record_property("worst_health_seconds", latencies.worst)
        print(f"health took at most {latencies.worst:.3f} s")
        assert latencies.worst < SLOW_ANSWER_SECONDS
        process.terminate()
        # Nobody has read a line, and nobody is waited for long.
        assert process.wait(30) == 0
    os.close(reading)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_log_that_cannot_be_written_does_not_stop_the_start(
    published: Published, tmp_path: Path, workers: str
) -> None:
    with (
        open("/dev/full", "w") as full,
        started(published.root, tmp_path, full, "--workers", workers) as (process, port),
    ):
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/v2").status_code == 200
        until(lambda: dropped_lines(port) >= 3)
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.slow
def test_the_last_lines_are_written_before_a_worker_ends(published: Published, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stream, started(published.root, tmp_path, stream, "--workers", "2") as (process, port):
        with connected(port) as connection:
            connection.sendall(REQUEST)
            assert read_response(connection)[0] == 200
        process.terminate()
        assert process.wait(30) == 0
    text = log.read_text()
    assert "GET /v2 200 " in text
    assert text.splitlines()[-1] == "Stopped."
