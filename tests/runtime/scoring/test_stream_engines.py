"""Programs for engines of streams, killed at random moments, give the bits of whole sequences.

Each runs in an environment of its own, which has the engine beside the packages of this one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from published_models import Published
from stablernn_runtime.scoring import Scorer

ROOT = Path(__file__).parents[3]
ENGINES = ROOT / "examples" / "engines"
KAFKA = ROOT / "tests" / "support" / "kafka_mock.py"
SENSORS, STEPS, LATENESS = 1000, 100, 16

pytestmark = pytest.mark.slow


def install(folder: Path, *packages: str) -> Path:
    """Return an interpreter with an engine, in an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"the engine cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    return python


def environment(interpreter: Path, **variables: str) -> dict[str, str]:
    """Return variables with which libraries of ``interpreter`` come first, and those of this one fill the gaps."""
    packages = [ROOT, *(ROOT / name for name in ("runtime", "registry"))]
    own = next(interpreter.parents[1].glob("lib/python*/site-packages"))
    shared = [path for path in sys.path if path.endswith("site-packages")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*packages, own, *shared])), **variables}


def make_events(noise: np.random.Generator) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return histories, ``(sensors, steps)``, and their events: 5 % twice, and 5 % up to LATENESS steps late."""
    values = noise.normal(size=(SENSORS, STEPS)).astype(np.float32)
    sensors, numbers = np.divmod(noise.permutation(SENSORS * STEPS), STEPS)
    times = numbers + noise.random(len(numbers)) / 2
    late = noise.random(len(numbers)) < 0.05
    times[late] += noise.integers(1, LATENESS, late.sum())
    again = np.flatnonzero(noise.random(len(numbers)) < 0.05)
    times = np.concatenate([times, times[again] + noise.random(len(again)) * LATENESS])
    order = np.concatenate([np.arange(len(numbers)), again])[np.argsort(times, kind="stable")]
    events = [
        {"key": f"sensor-{sensor}", "number": number, "sample": [value]}
        for sensor, number, value in zip(
            sensors[order].tolist(), numbers[order].tolist(), values[sensors, numbers][order].tolist(), strict=True
        )
    ]
    return values, events


def check(answers: list[dict[str, Any]], values: np.ndarray, scorer: Scorer) -> int:
    """Compare the last outputs with those of whole histories; return how many answers came more than once."""
    outputs = scorer.open().run_numpy(values[:, :, None])["probabilities"]
    by_event = defaultdict(set)
    for answer in answers:
        assert (answer["gap"], answer["error"]) == (0, None)
        by_event[answer["key"], answer["number"]].add(np.array(answer["probabilities"], np.float32).tobytes())
    # An answer that comes again has the same bits.
    assert len(by_event) == SENSORS * STEPS
    assert {len(bits) for bits in by_event.values()} == {1}
    for sensor in range(SENSORS):
        assert by_event[f"sensor-{sensor}", STEPS - 1] == {outputs[sensor].tobytes()}
    return len(answers) - len(by_event)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that is being written."""
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def count_answered(path: Path) -> int:
    """Return how many events have an answer; None is read before there are enough lines."""
    if count_lines(path) < SENSORS * STEPS:
        return 0
    return len({(answer["key"], answer["number"]) for answer in read_lines(path)})


def wait_for(is_done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds, and the process still runs."""
    deadline = time.monotonic() + 300
    while not is_done():
        assert process.poll() is None, "the engine ended"
        assert time.monotonic() < deadline, "the engine made no progress"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def quix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("quix"), "quixstreams==3.28.1")


@pytest.fixture
def broker(quix: Path, tmp_path: Path) -> Iterator[Callable[[list[dict[str, Any]]], str]]:
    """Starts Kafka's mock cluster with events; its answers are lines of ``answers.jsonl``."""
    processes = []

    def start(events: list[dict[str, Any]]) -> str:
        (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        words = [quix, KAFKA, "serve", tmp_path / "events.jsonl", tmp_path / "answers.jsonl"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment(quix))
        processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_quix_gives_the_bits_of_whole_sequences(
    quix: Path, broker: Callable[[list[dict[str, Any]]], str], published: Published, tmp_path: Path
) -> None:
    noise = np.random.default_rng()
    values, events = make_events(noise)
    address = broker(events)
    answers, state = tmp_path / "answers.jsonl", tmp_path / "state"
    program = str(ENGINES / "stream_with_quix.py")
    words = [str(quix), str(KAFKA), "run", program, address, str(published.registry.root), "animals:1"]
    with (tmp_path / "log").open("wb") as log:
        for kills in range(4):
            lines = count_lines(answers) + noise.integers(1_000, 25_000)
            variables = environment(quix, STATE_DIR=str(state))
            process = subprocess.Popen([*words, "events", "answers"], env=variables, stdout=log, stderr=log)
            try:
                if kills < 3:
                    wait_for(lambda least=lines: count_lines(answers) >= least, process)
                else:
                    wait_for(lambda: count_answered(answers) == SENSORS * STEPS, process)
            finally:
                process.kill()
                process.wait()
            if kills == 1:
                # The next process has nothing but the changelog topic.
                shutil.rmtree(state)
    scorer = Scorer.find("animals:1", registry=published.registry.root)
    repeated = check(read_lines(answers), values, scorer)
    print(f"{len(events)} events, {repeated} answers came again")
