"""Streams with state by key: steps a second on one core, and memory of many resident keys.

    python benchmarks/stream_shards.py --keys 1000000

exports classifiers of 32 units with random weights to a registry of its own, measures each figure in a process of its
own, and writes ``benchmarks/results/stream_shards.json``. Rates are those of processor time, and of wall-clock time.
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
from harness import given_command

from stablernn_runtime.scoring import Scorer, StreamShard, map_checkpoint

RESULTS = Path(__file__).parent / "results" / "stream_shards.json"
CELLS = ("gru", "antisymmetric")
HIDDEN, CLASSES = 32, 4


def publish(root: Path, cell: str) -> None:
    """Export a classifier of random weights to the registry at ``root``."""
    import torch

    from stablernn.export import export
    from stablernn.nn.models import Classifier
    from stablernn_registry import Registry

    torch.manual_seed(0)
    model = Classifier(cell, input_size=1, num_classes=CLASSES, hidden_size=HIDDEN)
    model.fit_scaling([np.random.default_rng(0).normal(size=(200, 1)).astype(np.float32)])
    with tempfile.TemporaryDirectory() as folder:
        report = export(model.eval(), folder)
        fields = {"task": "classify", "labels": list("abcd"), "features": ["value"], "cell": cell}
        Registry(root).publish(cell, report.files, {"signature": report.signature, "parity": report.parity, **fields})


def read_mib(name: str) -> float:
    """Return ``VmRSS``, the resident memory of this process, or ``VmHWM``, the most that it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def measure_memory(scorer: Scorer, keys: int, checkpoint: Path) -> dict[str, float]:
    """Return the memory of a shard with ``keys`` streams that have taken one sample each, and write its checkpoint."""
    scorer.open()
    before = read_mib("VmRSS")
    shard = StreamShard(scorer)
    for start in range(0, keys, 10_000):
        names = [f"sensor-{key:08d}" for key in range(start, min(start + 10_000, keys))]
        shard.add(names, np.zeros(len(names), np.int64), np.ones((len(names), 1), np.float32))
    resident, peak = read_mib("VmRSS"), read_mib("VmHWM")
    begin = time.process_time()
    with checkpoint.open("wb") as file:
        file.writelines(shard.dump_parts())
    return {
        "keys": keys,
        "before_mib": before,
        "resident_mib": resident,
        "peak_mib": peak,
        "dump_peak_mib": read_mib("VmHWM"),
        "checkpoint_mib": checkpoint.stat().st_size / 2**20,
        "dump_processor_seconds": time.process_time() - begin,
    }


def measure_load(scorer: Scorer, checkpoint: Path) -> dict[str, float]:
    """Return the processor time and memory of reading a checkpoint."""
    scorer.open()
    begin = time.process_time()
    with map_checkpoint(checkpoint) as content:
        StreamShard.load(scorer, content)
    return {"load_processor_seconds": time.process_time() - begin, "load_peak_mib": read_mib("VmHWM")}


def measure_rate(scorer: Scorer, keys: int, batch: int, seconds: float) -> dict[str, float]:
    """Return the steps a second of ``keys`` streams in calls of ``batch`` events."""
    shard = StreamShard(scorer)
    names = [f"sensor-{key:08d}" for key in range(keys)]
    x = np.random.default_rng(0).normal(size=(keys, 1)).astype(np.float32)
    # Keys in an order of their own, as events of a partition have it.
    order = np.random.default_rng(1).permutation(keys)
    calls = [([names[key] for key in part], x[part]) for part in np.split(order, keys // batch)]

    def advance(number: int) -> None:
        for part, samples in calls:
            shard.add(part, np.full(len(part), number), samples)

    advance(0)
    begin, begin_processor, number = time.perf_counter(), time.process_time(), 1
    while time.perf_counter() - begin < seconds:
        advance(number)
        number += 1
    steps = keys * (number - 1)
    return {
        "keys": keys,
        "events_of_a_call": batch,
        "steps": steps,
        "per_processor_second": steps / (time.process_time() - begin_processor),
        "per_second": steps / (time.perf_counter() - begin),
    }


def child(options: argparse.Namespace, root: Path, *words: str) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    code = [sys.executable, __file__, "--registry", str(root), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(code, capture_output=True, text=True, check=True, env=environment)
    return {name: round(value, 3) for name, value in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--registry", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.registry:
        scorer = Scorer.find(options.cell, registry=options.registry)
        if options.batch:
            row = measure_rate(scorer, options.keys, options.batch, options.seconds)
        elif options.checkpoint.exists():
            row = measure_load(scorer, options.checkpoint)
        else:
            row = measure_memory(scorer, options.keys, options.checkpoint)
        print(json.dumps(row))
        return
    memory, rates = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for cell in CELLS:
            publish(Path(folder), cell)
        for cell in CELLS:
            words = ("--cell", cell, "--keys", str(options.keys), "--checkpoint", f"{folder}/{cell}.checkpoint")
            memory[cell] = child(options, Path(folder), *words)
            # The file is there now, so that the next process reads it.
            memory[cell] |= child(options, Path(folder), *words)
            for keys, batch in ((1_000, 1), (1_000, 1_000), (10_000, 10_000), (100_000, 1_000)):
                words = ("--cell", cell, "--keys", str(keys), "--batch", str(batch), "--seconds", str(options.seconds))
                rows = [child(options, Path(folder), *words) for _ in range(options.rounds)]
                rates.append({"cell": cell} | {name: statistics.median(row[name] for row in rows) for name in rows[0]})
                print(rates[-1], file=sys.stderr)
    document: dict[str, Any] = {
        "command": given_command(),
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "hidden_size": HIDDEN,
        "rounds": options.rounds,
        "memory": memory,
        "rates": rates,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
