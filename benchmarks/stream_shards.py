"""Streams with state by key: steps a second on one core, and memory of many resident keys.

    python benchmarks/stream_shards.py --keys 1000000

exports classifiers of 32 units with random weights to a registry of its own, measures each figure in a process of its
own, and writes ``benchmarks/results/stream_shards.json``, which ``--page`` prints as tables.
Rates are those of processor time, and of wall-clock time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Row, log, medians, megabytes, read_results, stored, table, write_results

from stablernn_runtime.scoring import Scorer, StreamShard, map_checkpoint

STORED = stored("stream_shards")
CELLS = ("gru", "antisymmetric")
HIDDEN, CLASSES = 32, 4
RATES = ((1_000, 1), (1_000, 1_000), (10_000, 10_000), (100_000, 1_000))
"""Keys, and events of a call."""
MIB = 2**20


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
        fields: Row = {"task": "classify", "labels": list("abcd"), "features": ["value"], "cell": cell}
        Registry(root).publish(cell, report.files, {"signature": report.signature, "parity": report.parity, **fields})


def read_mib(name: str) -> float:
    """Return ``VmRSS``, the resident memory of this process, or ``VmHWM``, the most that it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def measure_memory(scorer: Scorer, keys: int, checkpoint: str) -> Row:
    """Return the memory of a shard with ``keys`` streams that have taken one sample each, and write its checkpoint."""
    scorer.open()
    before = read_mib("VmRSS")
    shard = StreamShard(scorer)
    for start in range(0, keys, 10_000):
        names = [f"sensor-{key:08d}" for key in range(start, min(start + 10_000, keys))]
        shard.add(names, np.zeros(len(names), np.int64), np.ones((len(names), 1), np.float32))
    peak = read_mib("VmHWM")
    begin = time.process_time()
    with open(checkpoint, "wb") as file:
        file.writelines(shard.dump_parts())
    return {
        "keys": keys,
        "before_mib": before,
        "peak_mib": peak,
        "dump_peak_mib": read_mib("VmHWM"),
        "checkpoint_mib": os.path.getsize(checkpoint) / MIB,
        "dump_processor_seconds": time.process_time() - begin,
    }


def measure_load(scorer: Scorer, checkpoint: str) -> Row:
    """Return the processor time and memory of reading a checkpoint."""
    scorer.open()
    begin = time.process_time()
    with map_checkpoint(Path(checkpoint)) as content:
        StreamShard.load(scorer, content)
    return {"load_processor_seconds": time.process_time() - begin, "load_peak_mib": read_mib("VmHWM")}


def measure_rate(scorer: Scorer, keys: int, batch: int, seconds: float) -> Row:
    """Return the steps a second of ``keys`` streams in calls of ``batch`` events."""
    shard = StreamShard(scorer)
    names = [f"sensor-{key:08d}" for key in range(keys)]
    x = np.random.default_rng(0).normal(size=(keys, 1)).astype(np.float32)
    # Keys in an order of their own, as events of a partition have it.
    order = np.random.default_rng(1).permutation(keys)
    calls = [([names[key] for key in part], x[part]) for part in np.split(order, keys // batch)]
    begin, processor, number = time.perf_counter(), time.process_time(), 0
    while number < 2 or time.perf_counter() - begin < seconds:
        if number == 1:
            # The first step of a stream opens it.
            begin, processor = time.perf_counter(), time.process_time()
        for part, samples in calls:
            shard.add(part, np.full(len(part), number), samples)
        number += 1
    steps = keys * (number - 1)
    return {
        "keys": keys,
        "events_of_a_call": batch,
        "per_processor_second": steps / (time.process_time() - processor),
        "per_second": steps / (time.perf_counter() - begin),
    }


def alone(root: str, cell: str, function: str, *arguments: Any) -> Row:
    """Return what a function of this file gives in a process of its own, on one thread."""
    words = [sys.executable, __file__, "--alone", json.dumps([root, cell, function, arguments])]
    done = subprocess.run(words, stdout=-1, text=True, check=True, env={**os.environ, **harness.ONE_THREAD})
    return {name: round(value, 3) for name, value in json.loads(done.stdout).items()}


def measure(keys: int, seconds: float, rounds: int) -> Row:
    """Return the results of all cells."""
    memory, rates = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for cell in CELLS:
            publish(Path(folder), cell)
            checkpoint = f"{folder}/{cell}.checkpoint"
            memory[cell] = alone(folder, cell, "measure_memory", keys, checkpoint)
            memory[cell] |= alone(folder, cell, "measure_load", checkpoint)
            for sizes in RATES:
                rows = [alone(folder, cell, "measure_rate", *sizes, seconds) for _ in range(rounds)]
                rates.append({"cell": cell} | medians(rows))
                log(rates[-1])
    conditions = harness.conditions()
    return {**conditions, "hidden_size": HIDDEN, "rounds": rounds, "memory": memory, "rates": rates}


def page_table(results: Row) -> str:
    """Return the tables of docs/guides/machines.md, which stand between two markers."""
    rates = table(
        ("cell", "keys", "events of a call", "steps a processor second", "steps a second"),
        (
            (f"`{row['cell']}`", *(f"{row[key]:,.0f}" for key in ("keys", "events_of_a_call", *_RATES)))
            for row in results["rates"]
        ),
    )
    sizes = ("peak_mib", "dump_peak_mib", "load_peak_mib", "before_mib", "checkpoint_mib")
    times = ("dump_processor_seconds", "load_processor_seconds")
    columns = ("memory", "while a checkpoint is written", "while it is read", "without keys", "checkpoint")
    memory = table(
        ("cell", "keys", *columns, "processor time of writing it", "of reading it"),
        (
            (
                *(f"`{cell}`", f"{row['keys']:,}"),
                *(megabytes(row[name] * MIB) for name in sizes),
                *(f"{row[name]:.1f} s" for name in times),
            )
            for cell, row in results["memory"].items()
        ),
    )
    measured = f"Measured on {results['date']} with {results['cores']} cores at a load average of "
    measured += f"{results['load_average']:g}, {results['rounds']} rounds; keys such as `sensor-00000042`."
    return "\n\n".join([rates, memory, measured])


_RATES = ("per_processor_second", "per_second")


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=json.loads, help="a function to run: JSON of registry, cell, name, arguments")
    options = parser.parse_args()
    if options.alone:
        root, cell, function, arguments = options.alone
        print(json.dumps(globals()[function](Scorer.find(cell, registry=Path(root)), *arguments)))
        return
    if not options.page:
        write_results(options.results, measure(options.keys, options.seconds, options.rounds))
    if options.results == STORED:
        harness.print_tables({"streams": page_table(read_results(STORED))})


if __name__ == "__main__":
    main()
