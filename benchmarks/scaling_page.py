"""The tables of ``docs/scaling.md``, from what ``batch_prediction.py`` and ``stream_shards.py`` measured.

python benchmarks/scaling_page.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from harness import replace_tables

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scaling.md"
RESULTS = ROOT / "benchmarks" / "results"
MIB = 2**20
NIGHT_SECONDS = 8 * 3600
USED_SHARE = 0.5
"""Share of a core that is planned for: the rest is room for peaks, restarts and what was not measured."""
MACHINE_CORES, MACHINE_BYTES = 8, 32e9
SHARD_STREAMS = 10_000_000
"""Resident streams above which a shard is split, so that a checkpoint takes seconds."""
LOADS = (10_000, 1_000_000, 100_000_000)
MEMORY_GOAL, MEMORY_SPREAD_GOAL = 300e6, 1.1
STREAMS_GOAL = 600e6
START_GOAL, LOOP_GOAL, WORKERS_GOAL = 2.5, 1.3, 0.6
ONE, TWO = "predict", "predict --workers 2"


class Costs(NamedTuple):
    """What a sequence, a step and a resident stream cost, in processor seconds and bytes.

    Attributes:
        sequence: Processor seconds of a sequence in a folder, start-up included.
        input_bytes: Size of a sequence in its Parquet file.
        predict_bytes: Memory of a process of ``predict``.
        step: Processor seconds of a step in calls of many events, the slowest of the measured ones.
        single_step: The same in calls of one event.
        stream_bytes: Memory of a resident stream.
        checkpoint_bytes: Size of a stream in a checkpoint.
        dump_bytes: Memory of a stream while a checkpoint is written to a file, besides that of the stream.
        dump_seconds: Processor time of a stream to be written to a checkpoint.
        load_seconds: Processor time of a stream to be read from one.
        shard_bytes: Memory of a shard without streams.
    """

    sequence: float
    input_bytes: float
    predict_bytes: float
    step: float
    single_step: float
    stream_bytes: float
    checkpoint_bytes: float
    dump_bytes: float
    dump_seconds: float
    load_seconds: float
    shard_bytes: float


class Need(NamedTuple):
    """What a load needs: cores that are busy all the time, processes, bytes of memory, machines."""

    cores: float
    processes: int
    memory: float
    machines: int


def measured_costs(batch: dict[str, Any], streams: dict[str, Any]) -> Costs:
    """Return the costs by the results, each the highest of those measured."""
    size = max(batch["sizes"], key=int)
    figures = batch["sizes"][size]
    rows = streams["memory"].values()
    many = [row["per_processor_second"] for row in streams["rates"] if row["events_of_a_call"] > 1]
    single = [row["per_processor_second"] for row in streams["rates"] if row["events_of_a_call"] == 1]
    return Costs(
        sequence=figures["programs"][ONE]["processor_seconds"] / int(size),
        input_bytes=figures["input_bytes"] / int(size),
        predict_bytes=max(each["programs"][ONE]["memory_mib"] for each in batch["sizes"].values()) * MIB,
        step=1 / min(many),
        single_step=1 / min(single),
        stream_bytes=max((row["peak_mib"] - row["before_mib"]) * MIB / row["keys"] for row in rows),
        checkpoint_bytes=max(row["checkpoint_mib"] * MIB / row["keys"] for row in rows),
        dump_bytes=max((row["dump_peak_mib"] - row["peak_mib"]) * MIB / row["keys"] for row in rows),
        dump_seconds=max(row["dump_processor_seconds"] / row["keys"] for row in rows),
        load_seconds=max(row["load_processor_seconds"] / row["keys"] for row in rows),
        shard_bytes=max(row["before_mib"] for row in rows) * MIB,
    )


def sequences_need(costs: Costs, sequences: int) -> Need:
    """Return what answering ``sequences`` in a night needs."""
    cores = sequences * costs.sequence / NIGHT_SECONDS
    processes = _processes(cores)
    # Workers are processes beside the first one.
    memory = costs.predict_bytes * (processes if processes == 1 else processes + 1)
    return Need(cores, processes, memory, _machines(processes, memory))


def streams_need(costs: Costs, streams: int, steps_a_second: float) -> Need:
    """Return what resident streams need that take ``steps_a_second`` each."""
    cores = streams * steps_a_second * costs.step
    processes = max(_processes(cores), math.ceil(streams / SHARD_STREAMS))
    memory = streams * (costs.stream_bytes + costs.dump_bytes) + processes * costs.shard_bytes
    return Need(cores, processes, memory, _machines(processes, memory))


def _processes(cores: float) -> int:
    """Return the processes of one thread that keep so many cores busy."""
    return max(1, math.ceil(cores / USED_SHARE))


def _machines(processes: int, memory: float) -> int:
    return max(math.ceil(processes / MACHINE_CORES), math.ceil(memory / MACHINE_BYTES))


def write_page(batch: dict[str, Any], streams: dict[str, Any]) -> None:
    """Replace the tables between their markers in docs/scaling.md."""
    costs = measured_costs(batch, streams)
    tables = {
        "folders": _folders(batch),
        "one file": _one_file(batch),
        "streams": _streams(streams),
        "machines": _machine_tables(batch, costs),
    }
    replace_tables(PAGE, tables)


def _folders(batch: dict[str, Any]) -> str:
    lines = ["| sequences | program | processor time | time | memory of the largest process | bits of the loop |"]
    lines.append("| --- " * 6 + "|")
    for size, figures in batch["sizes"].items():
        for name, row in figures["programs"].items():
            answers = figures["same_bits_as_loop"]
            equal = ("yes" if answers[name] else "no") if name in answers else ""
            title = "loop by hand" if name == "loop" else f"`{name}`" if name in (ONE, TWO) else name
            times = f"{row['processor_seconds']:.1f} s | {row['seconds']:.1f} s"
            lines.append(f"| {int(size):,} | {title} | {times} | {_megabytes(row['memory_mib'] * MIB)} | {equal} |")
        lines += [f"| {int(size):,} | {name} | {reason} | | | |" for name, reason in figures["left_out"].items()]
    conditions = [
        f"{int(size):,} sequences on {figures['date']}, {figures['cores']} cores, load average "
        f"{figures['load_average']:g} at the end, {_rounds(figures['rounds'])}"
        for size, figures in batch["sizes"].items()
    ]
    packages = _packages(batch["packages"])
    # The engines have an environment of their own, with versions of their own.
    own = [figures["engine_packages"] for figures in batch["sizes"].values() if "engine_packages" in figures]
    engines = set(map(_packages, own))
    packages = "; engines with ".join([packages, *sorted(engines)])
    lines += ["", f"Measured with {packages}.", "", *(f"- {condition}." for condition in conditions)]
    return "\n".join([*lines, "", *_goals(batch)])


def _one_file(batch: dict[str, Any]) -> str:
    """Return the table of ``predict`` for one file of all sequences."""
    formats = {".parquet": "Parquet", ".csv": "CSV"}
    lines = ["| sequences | input | answers | processor time | memory |", "| --- " * 5 + "|"]
    for size, figures in batch["one_file"].items():
        for suffix, row in figures["formats"].items():
            measured = f"{row['processor_seconds']:.1f} s | {_megabytes(row['memory_mib'] * MIB)}"
            lines.append(f"| {int(size):,} | {_megabytes(figures['input_bytes'])} | {formats[suffix]} | {measured} |")
    memory = [row["memory_mib"] for figures in batch["one_file"].values() for row in figures["formats"].values()]
    largest = int(max(batch["one_file"], key=int))
    dates = ", ".join(sorted({figures["date"] for figures in batch["one_file"].values()}))
    rounds = min(figures["rounds"] for figures in batch["one_file"].values())
    lines += [
        "",
        f"Most memory / least: {max(memory) / min(memory):.2f}; under {MEMORY_GOAL / 1e6:.0f} MB with {largest:,} "
        f"sequences: {'reached' if max(memory) * MIB < MEMORY_GOAL else 'missed'}. Measured on {dates}, "
        f"{'one round' if rounds == 1 else f'medians of {rounds} rounds'}.",
    ]
    return "\n".join(lines)


def _packages(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _rounds(rounds: dict[str, int]) -> str:
    one = rounds[ONE]
    text = "one round" if one == 1 else f"medians of {one} rounds in turn"
    engines = set(rounds) - {"loop", ONE, TWO}
    return f"{text}, one of the engines" if one > 1 and engines else text


def _goals(batch: dict[str, Any]) -> list[str]:
    """Return the table of the goals with what was reached at each size, and whether it is enough."""
    sizes = batch["sizes"]
    programs = [figures["programs"] for figures in sizes.values()]
    start = batch["start"]
    starts = {name: start["predict"][name] / start["imports"][name] for name in ("seconds", "processor_seconds")}
    memory = [row[ONE]["memory_mib"] * MIB for row in programs]
    loop = [row[ONE]["processor_seconds"] / row["loop"]["processor_seconds"] for row in programs]
    workers = [row[TWO]["seconds"] / row[ONE]["seconds"] for row in programs]
    spread = max(memory) / min(memory)
    equal = [all(figures["same_bits_as_loop"].values()) for figures in sizes.values()]
    left_out = sorted({name for figures in sizes.values() for name in figures["left_out"]})
    compared = f"all programs but {', '.join(left_out)}" if left_out else "all programs"
    torch = "yes" if start["imports_torch"] else "no"
    largest = f"{int(max(sizes, key=int)):,}"
    rows = [
        (f"bits of {compared}", "equal", ["equal" if each else "different" for each in equal], all(equal)),
        ("memory of `predict`", "under 300 MB", list(map(_megabytes, memory)), max(memory) < MEMORY_GOAL),
        (
            "most memory of `predict` / least",
            f"at most {MEMORY_SPREAD_GOAL:g}",
            [f"{spread:.2f}"],
            spread <= MEMORY_SPREAD_GOAL,
        ),
        (
            "processor time: `predict` / loop",
            f"at most {LOOP_GOAL:g} with {largest}",
            [f"{each:.2f}" for each in loop],
            loop[-1] <= LOOP_GOAL,
        ),
        (
            "time: two workers / `predict`",
            f"at most {WORKERS_GOAL:g} with {largest}",
            [f"{each:.2f}" for each in workers],
            workers[-1] <= WORKERS_GOAL,
        ),
        (
            f"time: `predict` of one sequence / `{start['command']}`",
            f"at most {START_GOAL:g}",
            [f"{starts['seconds']:.2f} ({starts['processor_seconds']:.2f} of processor time)"],
            max(starts.values()) <= START_GOAL,
        ),
        ("`predict` imports torch", "no", [torch], torch == "no"),
    ]
    counts = ", ".join(f"{int(size):,}" for size in sizes)
    lines = [f"| goal | wanted | reached, with {counts} sequences | |", "| --- | --- | --- | --- |"]
    for name, wanted, reached, is_met in rows:
        lines.append(f"| {name} | {wanted} | {', '.join(reached)} | {'reached' if is_met else 'missed'} |")
    return lines


def _streams(streams: dict[str, Any]) -> str:
    lines = ["| cell | keys | events of a call | steps a processor second | steps a second |", "| --- " * 5 + "|"]
    for row in streams["rates"]:
        counts = f"{row['keys']:,} | {row['events_of_a_call']:,}"
        rates = f"{row['per_processor_second']:,.0f} | {row['per_second']:,.0f}"
        lines.append(f"| `{row['cell']}` | {counts} | {rates} |")
    lines += [
        "",
        "| cell | keys | memory | while a checkpoint is written | while it is read | without keys | checkpoint | "
        "processor time of writing it | of reading it |",
        "| --- " * 9 + "|",
    ]
    columns = ("peak_mib", "dump_peak_mib", "load_peak_mib", "before_mib", "checkpoint_mib")
    for cell, row in streams["memory"].items():
        sizes = " | ".join(_megabytes(row[name] * MIB) for name in columns)
        seconds = f"{row['dump_processor_seconds']:.1f} s | {row['load_processor_seconds']:.1f} s"
        lines.append(f"| `{cell}` | {row['keys']:,} | {sizes} | {seconds} |")
    rows = streams["memory"].values()
    peak = max(row[name] for row in rows for name in ("dump_peak_mib", "load_peak_mib")) * MIB
    keys = max(row["keys"] for row in rows)
    lines += [
        "",
        f"Goal: under {_megabytes(STREAMS_GOAL)} with {keys:,} keys, also while a checkpoint is written to a file or "
        f"read from it: {'reached' if peak < STREAMS_GOAL else 'missed'} with {_megabytes(peak)}.",
        "",
        f"Measured on {streams['date']} with {streams['cores']} cores at a load average of "
        f"{streams['load_average']:g}, {streams['rounds']} rounds; keys such as `sensor-00000042`.",
    ]
    return "\n".join(lines)


def _machine_tables(batch: dict[str, Any], costs: Costs) -> str:
    largest = int(max(batch["sizes"], key=int))
    lines = [
        "| measured | cost |",
        "| --- | --- |",
        f"| a sequence of {batch['steps']} steps in a folder of {largest:,} | {costs.sequence * 1e6:.0f} µs of a core, "
        f"{_megabytes(costs.predict_bytes)} for each process, {costs.input_bytes:.0f} bytes of input |",
        f"| a step, in calls of 1,000 events or more | {costs.step * 1e6:.2f} µs of a core |",
        f"| a step, in calls of one event | {costs.single_step * 1e6:.0f} µs of a core |",
        f"| a resident stream | {costs.stream_bytes:.0f} bytes, {costs.dump_bytes:.0f} more while a checkpoint is "
        f"written to a file, in which it takes {costs.checkpoint_bytes:.0f}; {_megabytes(costs.shard_bytes)} for each "
        "shard |",
    ]
    loads = [
        (
            f"Sequences in a night of {NIGHT_SECONDS // 3600} hours",
            [sequences_need(costs, count) for count in LOADS],
            _sequence_limits(batch, costs),
        ),
        (
            "Streams that take a step a second",
            [streams_need(costs, count, 1.0) for count in LOADS],
            _step_limits(costs),
        ),
        (
            "Resident streams that take a step an hour",
            [streams_need(costs, count, 1 / 3600) for count in LOADS],
            _resident_limits(costs),
        ),
    ]
    for title, needs, limits in loads:
        lines += ["", f"**{title}**", "", "| number | busy cores | processes | memory | machines | breaks first |"]
        lines.append("| --- " * 6 + "|")
        for count, need, limit in zip(LOADS, needs, limits, strict=True):
            cores = f"{need.cores:.2f}" if need.cores < 1 else f"{need.cores:.0f}"
            cores = cores if need.cores >= 0.005 else "under 0.01"
            figures = f"{cores} | {need.processes} | {_megabytes(need.memory)} | {need.machines}"
            lines.append(f"| {count:,} | {figures} | {limit} |")
    return "\n".join(lines)


def _sequence_limits(batch: dict[str, Any], costs: Costs) -> list[str]:
    sizes = batch["sizes"]
    smallest, largest = min(sizes, key=int), max(sizes, key=int)
    start = batch["start"]["predict"]["processor_seconds"]
    share = start / sizes[smallest]["programs"][ONE]["processor_seconds"]
    programs = sizes[largest]["programs"]
    ratio = programs[ONE]["processor_seconds"] / programs["loop"]["processor_seconds"]
    _, middle, large = LOADS
    return [
        f"Starting the process: {start:.1f} s, {share:.0%} of the processor time of {int(smallest):,} sequences "
        "(measured).",
        f"Nothing: one core takes {_duration(middle * costs.sequence)}, {ratio:.1f} times a loop by hand (measured "
        f"with {int(largest):,}).",
        f"Storage: {_megabytes(large * costs.input_bytes)} in {large // 10_000:,} files are read in one folder, and "
        f"once more by `--resume` to compare their digests. One core takes {_duration(large * costs.sequence)}, so "
        "that shards are for the loss of a machine, not for speed (reasoned).",
    ]


def _step_limits(costs: Costs) -> list[str]:
    small, middle, large = LOADS
    return [
        f"Calls of one event: they would keep {small * costs.single_step:.2g} cores busy (reasoned from their "
        "measured cost). Collect the events of some milliseconds.",
        f"The thread of one shard: its steps take {middle * costs.step:.2g} s of each second (measured with 100,000 "
        "keys), and reading and writing the messages has what is left. Split keys over shards (reasoned).",
        f"The broker: {large:,} messages a second, {_megabytes(large * 100.0)} a second at 100 bytes each. A "
        f"checkpoint of all streams is {_megabytes(large * costs.checkpoint_bytes)} (reasoned).",
    ]


def _resident_limits(costs: Costs) -> list[str]:
    small, middle, large = LOADS
    pause, restart = large * costs.dump_seconds, large * costs.load_seconds
    return [
        f"Nothing: the streams take {_megabytes(small * costs.stream_bytes)}, less than the packages do (reasoned).",
        f"The pause for a checkpoint, in which no event is answered: {middle * costs.dump_seconds:.1f} s of "
        f"processor time. A restart reads it in {middle * costs.load_seconds:.1f} s (measured).",
        f"The checkpoint, if all streams were in one shard: a file of {_megabytes(large * costs.checkpoint_bytes)}, "
        f"a pause of {_duration(pause)}, a restart of {_duration(restart)}. Shards of {SHARD_STREAMS:,} streams "
        f"pause for {SHARD_STREAMS * costs.dump_seconds:.0f} s each (reasoned).",
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _megabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def main() -> None:
    batch, streams = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("batch_prediction", "stream_shards")
    )
    write_page(batch, streams)


if __name__ == "__main__":
    main()
