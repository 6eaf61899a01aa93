"""The benchmark of folders and streams: its page, the machines computed from costs, and the use of processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmark_scripts import BENCHMARKS, script, stored_results


def costs(**changes: float) -> Any:
    values = {
        "sequence": 30e-6,
        "input_bytes": 250.0,
        "predict_bytes": 250e6,
        "step": 1e-6,
        "single_step": 100e-6,
        "stream_bytes": 400.0,
        "checkpoint_bytes": 200.0,
        "dump_bytes": 200.0,
        "dump_seconds": 4e-7,
        "load_seconds": 12e-7,
        "shard_bytes": 80e6,
    }
    return script("scaling_page").Costs(**(values | changes))


def test_sequences_need_the_processes_that_finish_them_in_a_night() -> None:
    page = script("scaling_page")
    # 3,000 of 28,800 seconds.
    need = page.sequences_need(costs(), 100_000_000)
    assert need == (pytest.approx(3000 / 28_800), 1, 250e6, 1)
    # 41.7 busy cores are 84 at half use, and a process that hands out files.
    need = page.sequences_need(costs(sequence=12e-3), 100_000_000)
    assert need == (pytest.approx(41.67, abs=0.01), 84, 85 * 250e6, 11)


def test_streams_need_cores_by_their_steps_and_memory_by_their_number() -> None:
    page = script("scaling_page")
    need = page.streams_need(costs(), 100_000_000, 1.0)
    assert need == (pytest.approx(100), 200, pytest.approx(60e9 + 200 * 80e6), 25)
    # Hardly any steps: ten shards by their size, and machines by cores rather than memory.
    need = page.streams_need(costs(), 100_000_000, 1 / 3600)
    assert need == (pytest.approx(0.0278, abs=1e-4), 10, pytest.approx(60.8e9), 2)
    need = page.streams_need(costs(stream_bytes=4000.0), 100_000_000, 1 / 3600)
    assert need.machines == 14
    assert page.streams_need(costs(), 10_000, 1.0) == (pytest.approx(0.01), 1, pytest.approx(86e6), 1)


def test_costs_are_the_highest_that_were_measured() -> None:
    batch, streams = stored_results("batch_prediction"), stored_results("stream_shards")
    measured = script("scaling_page").measured_costs(batch, streams)
    rates = [row["per_processor_second"] for row in streams["rates"]]
    assert measured.single_step == 1 / min(rates)
    assert min(rates) < 1 / measured.step <= max(rates)
    size = str(max(map(int, batch["sizes"])))
    seconds = batch["sizes"][size]["programs"]["predict"]["processor_seconds"]
    assert measured.sequence * int(size) == pytest.approx(seconds)


def test_the_use_of_a_program_contains_processes_that_outlive_it() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}])"
    command = [sys.executable, BENCHMARKS / "process_use.py", sys.executable, "-c", leave]
    use = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert use["processor_seconds"] >= 0.5
    assert use["memory_mib"] > 1


def test_the_status_of_a_program_is_passed_on() -> None:
    command = [sys.executable, BENCHMARKS / "process_use.py", sys.executable, "-c", "raise SystemExit(3)"]
    assert subprocess.run(command, capture_output=True).returncode == 3


def test_answers_are_compared_by_id_and_in_every_bit(tmp_path: Path) -> None:
    same_bits = script("batch_prediction").same_bits
    shares = np.array([0.25, 0.1], np.float32)
    table = pl.DataFrame({"id": ["a", "b"], "label": ["x", "y"], "probability_x": shares})
    other = table.reverse().with_columns(error=pl.lit(None, pl.String))
    next_float = np.nextafter(shares, np.float32(1))
    variants = {
        "first": table,
        "other order": other,
        "next float": table.with_columns(probability_x=next_float),
        "label": table.with_columns(label=pl.Series(["x", "x"])),
        "double": table.with_columns(pl.col("probability_x").cast(pl.Float64)),
        "fewer": table.head(1),
        "reason": other.with_columns(error=pl.Series([None, "no steps"])),
    }
    for name, variant in variants.items():
        (tmp_path / name).mkdir()
        variant.write_parquet(tmp_path / name / "part.parquet")
    equal = {name: same_bits(tmp_path / "first", tmp_path / name) for name in variants}
    assert [name for name, is_equal in equal.items() if is_equal] == ["first", "other order"]
