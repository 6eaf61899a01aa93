"""Batch prediction of a folder next to a loop by hand over the same files: processor time, memory, equal answers.

    python benchmarks/batch_prediction.py --files 10 --sequences 10000

trains a small classifier, publishes it to a registry of its own, writes random sequences to Parquet files, and writes
``benchmarks/results/batch_prediction.json``. Programs run in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from stablernn_registry import Registry

RESULTS = Path(__file__).parent / "results" / "batch_prediction.json"
STEPS, HIDDEN = 64, 32
LOOP = """
import sys
from pathlib import Path
import numpy as np, onnxruntime as ort, polars as pl
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
labels = sys.argv[4].split(",")
for file in sorted(Path(sys.argv[2]).glob("*.parquet")):
    frame = pl.read_parquet(file)
    x = frame["pixel"].to_numpy().astype(np.float32).reshape(-1, int(sys.argv[5]), 1)
    names = frame["unique_id"].gather_every(int(sys.argv[5]))
    states = [argument for argument in session.get_inputs() if argument.name.startswith("state")]
    parts = []
    for start in range(0, len(x), 256):
        batch = x[start : start + 256]
        feeds = {"x": batch, "lengths": np.full(len(batch), batch.shape[1])}
        for state in states:
            dtype = np.int64 if "int64" in state.type else np.float32
            feeds[state.name] = np.zeros((len(batch), *state.shape[1:]), dtype)
        parts.append(session.run(["probabilities"], feeds)[0])
    shares = np.concatenate(parts)
    columns = {"id": names, "label": np.array(labels)[shares.argmax(axis=1)]}
    columns |= {f"probability_{label}": shares[:, number] for number, label in enumerate(labels)}
    pl.DataFrame(columns).write_parquet(Path(sys.argv[3]) / file.name)
"""


def measure(words: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Return seconds, processor seconds and the largest resident memory of a program and its children."""
    # In a process of its own, since the figures of children are those of all before.
    code = (
        "import json, resource, subprocess, sys, time; begin = time.perf_counter(); "
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); seconds = time.perf_counter() - begin; "
        "use = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(json.dumps([seconds, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=True
    )
    seconds, processor, memory = json.loads(process.stdout)
    return {"seconds": seconds, "processor_seconds": processor, "memory_mib": memory}


def write_sequences(folder: Path, files: int, sequences: int) -> None:
    """Write random sequences."""
    import polars as pl

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(files):
        names = [f"meter-{number}-{row:06d}" for row in range(sequences)]
        columns = {
            "unique_id": np.repeat(names, STEPS),
            "ds": np.tile(np.arange(STEPS), sequences),
            "pixel": rng.normal(size=sequences * STEPS).astype(np.float32),
        }
        pl.DataFrame(columns).write_parquet(folder / f"part-{number:03d}.parquet")


def equal_answers(first: Path, second: Path) -> bool:
    """Return whether two folders have the same answers in every bit."""
    import polars as pl

    files = sorted(first.glob("*.parquet"))
    return bool(files) and all(pl.read_parquet(file).equals(pl.read_parquet(second / file.name)) for file in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--sequences", type=int, default=10_000, help="sequences of a file")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        environment = {**os.environ, "STABLERNN_REGISTRY": str(folder / "registry"), "OMP_NUM_THREADS": "1"}
        stablernn = [sys.executable, "-m", "stablernn_cli", "-q"]
        train = ["train", "--data", "digits", "--cell", "lipschitz", "--hidden-size", str(HIDDEN), "--epochs", "1"]
        subprocess.run([*stablernn, *train, "--run-dir", str(folder / "run")], env=environment, check=True)
        subprocess.run([*stablernn, "export", str(folder / "run"), "--name", "digits"], env=environment, check=True)
        version = Registry(folder / "registry").get("digits")
        graph, labels = version.path("sequence.onnx"), version.manifest.labels or ()
        write_sequences(folder / "in", options.files, options.sequences)
        (folder / "loop").mkdir()
        predict = [*stablernn, "predict", "digits:1", "--input", str(folder / "in"), "--resume", "--output"]
        programs = {
            "loop": [sys.executable, "-c", LOOP, str(graph), str(folder / "in"), str(folder / "loop")]
            + [",".join(labels), str(STEPS)],
            "predict": [*predict, str(folder / "one")],
            "predict --workers 2": [*predict, str(folder / "two"), "--workers", "2"],
        }
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
        for _ in range(options.rounds):
            for name, words in programs.items():
                for record in folder.glob("*/_done.jsonl"):
                    record.unlink()
                rounds[name].append(measure(words, environment))
        equal = {
            name: equal_answers(folder / "loop", folder / output)
            for name, output in {"predict": "one", "predict --workers 2": "two"}.items()
        }
    medians = {
        name: {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
        for name, rows in rounds.items()
    }
    document: dict[str, Any] = {
        "command": f"python benchmarks/batch_prediction.py --files {options.files} --sequences {options.sequences}",
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "sequences": options.files * options.sequences,
        "rounds": options.rounds,
        "medians": medians,
        "same_bits_as_loop": equal,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
