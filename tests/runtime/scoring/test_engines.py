"""Programs for engines of tables give the bits of one process, and those of streams, killed at random, of sequences.

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
import polars as pl
import pytest

from published_models import Published
from stablernn_runtime.scoring import Scorer
from supervised_engine import QUIX_RECOVERY_ERROR, SupervisedEngine

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
    """Compare the last outputs with those of whole histories; return how many events were stepped more than once."""
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
    return sum(not answer["again"] for answer in answers) - len(by_event)


class Answers:
    """The answers in files that an engine is writing."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self.folder = folder
        self.pattern = pattern

    def count(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob(self.pattern))

    def read(self) -> list[dict[str, Any]]:
        contents = [path.read_bytes() for path in self.folder.glob(self.pattern)]
        return [json.loads(line) for text in contents for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def are_complete(self) -> bool:
        if self.count() < SENSORS * STEPS:
            return False
        return len({(answer["key"], answer["number"]) for answer in self.read()}) == SENSORS * STEPS


def run_with_kills(
    engine: SupervisedEngine, answers: Answers, before_start: Callable[[int], None] | None = None
) -> None:
    """Start an engine four times, kill it three times after a random number of answers, and end it after the last.

    Args:
        engine: The engine.
        answers: Its answers.
        before_start: Function that is called with the number of kills before each start but those of the supervisor.
    """
    noise = np.random.default_rng()
    counts = []
    for kills in range(4):
        least = answers.count() + noise.integers(500, 8_000)
        deadline = time.monotonic() + 300
        if before_start is not None:
            before_start(kills)
        engine.start()
        try:
            while not (answers.are_complete() if kills == 3 else answers.count() >= least):
                engine.check()
                assert time.monotonic() < deadline, f"The engine made no progress, after {engine.restarts} restarts."
                time.sleep(0.1)
            time.sleep(noise.random() / 4)
        finally:
            engine.kill()
        counts.append(answers.count())
    print(f"answers at each kill: {counts}, {engine.restarts} restarts by the supervisor")


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
    values, events = make_events(np.random.default_rng())
    program = str(ENGINES / "stream_with_quix.py")
    words = [str(quix), str(KAFKA), "run", program, broker(events), str(published.registry.root), "animals:1"]
    state = tmp_path / "state"
    answers = Answers(tmp_path, "answers.jsonl")
    command = [*words, "events", "answers"]
    variables = environment(quix, STATE_DIR=str(state))
    engine = SupervisedEngine(command, tmp_path / "log", variables, known_error=QUIX_RECOVERY_ERROR)

    def before_start(kills: int) -> None:
        if kills == 2:
            # The next process has nothing but the changelog topic.
            shutil.rmtree(state)

    run_with_kills(engine, answers, before_start)
    repeated = check(answers.read(), values, Scorer.find("animals:1", registry=published.registry.root))
    print(f"{len(events)} events, {repeated} stepped again")


def test_flink_gives_the_bits_of_whole_sequences(
    published: Published, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if shutil.which("java") is None:
        pytest.skip("Flink needs Java")
    flink = install(tmp_path_factory.mktemp("flink"), "apache-flink==2.3.0")
    values, events = make_events(np.random.default_rng())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "events").write_text("".join(json.dumps(event) + "\n" for event in events))
    answers = Answers(tmp_path / "out", "*/part-*")
    words = [str(flink), str(ENGINES / "stream_with_flink.py"), str(published.registry.root), "animals:1"]
    words += [str(tmp_path / name) for name in ("in", "out", "checkpoints")]
    run_with_kills(SupervisedEngine(words, tmp_path / "log", environment(flink), tmp_path), answers)
    assert check(answers.read(), values, Scorer.find("animals:1", registry=published.registry.root)) == 0


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packages = ("dask[dataframe,distributed]==2026.8.0", "pyspark==4.3.0", "pandas", "pyarrow")
    return install(tmp_path_factory.mktemp("engines"), *packages)


@pytest.mark.parametrize("engine", ["dask", "spark"])
def test_engines_give_the_bits_of_one_process(
    engine: str, interpreter: Path, published: Published, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for number in range(3):
        steps = noise.integers(1, 40, size=200)
        columns = {
            "unique_id": np.repeat([f"meter-{number}-{row}" for row in range(200)], steps),
            "ds": np.concatenate([np.arange(count) for count in steps]),
            "loudness": noise.normal(size=steps.sum()).astype(np.float32),
        }
        pl.DataFrame(columns).write_parquet(tmp_path / "in" / f"{number}.parquet")
    words = [str(published.registry.root), "animals@production", str(tmp_path / "in"), str(tmp_path / "out")]
    program = ENGINES / f"score_with_{engine}.py"
    variables = environment(interpreter, PYSPARK_PYTHON=str(interpreter), SPARK_LOCAL_IP="127.0.0.1")
    done = subprocess.run([interpreter, program, *words], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = pl.read_parquet(tmp_path / "out" / "*.parquet").sort("id")
    scorer = Scorer.find("animals:1", registry=published.registry.root)
    alone = pl.concat(
        [scorer.score(pl.read_parquet(tmp_path / "in" / f"{number}.parquet")) for number in range(3)]
    ).sort("id")
    assert len(answers) == 600
    assert answers.equals(alone)
