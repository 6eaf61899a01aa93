"""``docs/performance.md`` from what ``serving.py`` measured, and ``gpu.py`` on a GPU."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_page import conditions, goal_table

RESULTS = Path(__file__).parent / "results" / "serving.json"
GPU_RESULTS = Path(__file__).parent / "results" / "gpu.json"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
Row = dict[str, Any]
KINDS = ("json_784", "binary_784", "json_64", "binary_64")
SERVE = "**stablernn serve**"
SERVE_NATIVE = "**stablernn serve --engine native**"
SECTIONS = ("compare", "streams", "overload", "continuity", "reloads", "fuzz")


def write_page() -> None:
    """Write the page from the stored results."""
    results, gpu = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, GPU_RESULTS))
    PAGE.write_text(page(results, gpu), encoding="utf-8")


def page(results: Row, gpu: Row) -> str:
    """The whole page; sections that were not run are left out."""
    lines = [_HEAD]
    writers: dict[str, Callable[[Row], Iterator[str]]] = {
        "compare": _compare,
        "streams": _streams,
        "overload": _overload,
        "continuity": _continuity,
        "reloads": _reloads,
        "fuzz": _fuzz,
    }
    lines += ["## Goals", "", "| what | goal | reached | |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {goal} | {reached} | {'yes' if met else 'no'} |" for what, goal, reached, met in goals(results)
    ]
    for name, write in writers.items():
        if name in results:
            lines += ["", *write(results[name])]
    lines += ["", "## Conditions", "", *_conditions(results)]
    lines += ["", "## On a GPU", "", _ON_GPU, "", conditions(gpu["environment"]), "", *goal_table(gpu), ""]
    return "\n".join(lines)


def goals(results: Row) -> Iterator[tuple[str, str, str, bool]]:
    """What, the goal, what was reached, and whether that is enough."""
    if "compare" in results:
        yield from _goals_of_speed(results["compare"])
    if "streams" in results:
        for name, found in results["streams"].items():
            if name not in ("conditions", "server"):
                least = 8_000 if name.startswith("one step of one") else 40_000
                fastest, paced = found["fastest"], found["paced"]
                rate = fastest["steps_per_second"]
                good = not (fastest["wrong"] or fastest["lost"] or paced["wrong"] or paced["lost"])
                yield f"1,000 streams, {name}: steps/s", f"{least:,}", f"{rate:,.0f}", rate >= least and good
                what = f"the same, p99 where {paced['offered_steps_per_second']:,.0f} steps/s arrive"
                yield what, "under 50 ms", f"{paced['p99_ms']:.1f} ms", paced["p99_ms"] < 50 and good
    if "overload" in results:
        yield from _goals_of_overload(results["overload"])
    if "continuity" in results:
        found = results["continuity"]
        differing = found["differing_streams"] + found["differing_from_whole_sequence"]
        what = f"{found['streams']:,} token streams, disconnects and kills: streams with a differing bit"
        yield what, "0", str(differing), differing == 0
    if "reloads" in results:
        found = results["reloads"]
        failed = sum(count for status, count in found["load"]["answers"].items() if status != "200")
        failed += found["load"]["wrong"] + found["load"]["lost"] + found["not_swapped"] + found["not_kept"]
        yield (
            "hot reloads, failed loads that were refused",
            "100, 100",
            f"{found['reloads']}, {found['failed_loads']}",
            (found["reloads"] == found["failed_loads"] == 100),
        )
        yield "requests that failed during them", "0", str(failed), failed == 0
        grown = found["memory"]["grown_mb"]
        yield "memory, last quarter of them against the second", "flat (under 5 MB)", f"{grown:+.1f} MB", grown < 5
    if "fuzz" in results:
        found = results["fuzz"]
        bad = found["server_errors"] + found["hangs_or_lost"] + (not found["right_afterwards"])
        yield f"{found['bodies']:,} mutated bodies: server errors, hangs", "0", str(bad), bad == 0
        grown = found["memory"]["grown_mb"]
        yield "memory, last quarter of them against the second", "flat (under 5 MB)", f"{grown:+.1f} MB", grown < 5


def _goals_of_speed(found: Row) -> Iterator[tuple[str, str, str, bool]]:
    ours, native = found["stablernn"], found.get("native")
    for kind, share in (("json_784", 0.53), ("binary_784", 0.65), ("json_64", 0.28)):
        for engine, row in (("", ours), (", `--engine native`", native)):
            if row is not None:
                reached = statistics.median(row[kind]["of_limit"])
                yield (
                    f"{_shown_kind(kind)}, 16 clients, of the limit{engine}",
                    f"{share:g}",
                    f"{reached:.2f}",
                    reached >= share,
                )
    for name, kind, times in (("asgi", "json_64", 1.2), ("mlserver", "json_784", 1.3), ("triton", "json_784", 1.9)):
        peer = found["peers"].get(name, {})
        if kind in peer:
            reached = statistics.median(ours[kind]["rate"]) / statistics.median(peer[kind]["rate"])
            yield f"{_shown_kind(kind)}, times {peer['title']}", f"{times:g}", f"{reached:.2f}", reached >= times
    for engine, row in (("", ours), (", `--engine native`", native)):
        if row is not None:
            over = statistics.median(row["ms_over_limit"])
            what = f"one client, JSON, T=784: ms above ONNX Runtime alone{engine}"
            yield what, "0.25", f"{over:+.2f}", over <= 0.25
    ready, memory = statistics.median(ours["ready_seconds"]), max(ours["rss_mb"])
    yield "start to ready", "under 2 s", f"{ready:.2f} s", ready < 2
    yield "memory at start", "under 150 MB", f"{memory:.0f} MB", memory < 150
    rows = [ours] if native is None else [ours, native]
    wrong = sum(case["wrong"] + case["lost"] for row in rows for case in loads_of(row).values())
    yield "answers that were wrong or lost", "0", str(wrong), wrong == 0
    statuses = [status for name, status in ours["faults"].items() if name != "mixed"]
    refused = ", ".join(map(str, statuses))
    yield "broken JSON, two features, text", "400, 400, 400", refused, all(status == 400 for status in statuses)
    failed = ours["faults"]["mixed"]["failed"]
    yield "sequences of two lengths at once: failed or wrong", "0", str(failed), failed == 0


def _shown_kind(kind: str) -> str:
    name, steps = kind.split("_")
    return f"{'JSON' if name == 'json' else name}, T={steps}"


def _goals_of_overload(found: Row) -> Iterator[tuple[str, str, str, bool]]:
    load, slope = found["load"], found["memory"]["slope_mb_per_minute"]
    bad = load["wrong"] + load["lost"] + load["outside_contract"]
    yield "200 clients at twice capacity: answers wrong, lost or outside the contract", "0", str(bad), bad == 0
    yield "memory under it, last half", "under 1 MB a minute", f"{slope:+.2f} MB a minute", slope < 1
    seconds = found["recovery_seconds"]
    reached = "not within 60 s" if seconds is None else f"{seconds:.2f} s"
    yield "recovery after it", "within 2 s", reached, seconds is not None and seconds <= 2


def _compare(found: Row) -> Iterator[str]:
    yield "## Requests of one sequence"
    yield ""
    yield _wrapped(_COMPARE.format(rounds="1 round" if found["rounds"] == 1 else f"{found['rounds']} rounds"))
    yield ""
    columns = ("server", "JSON req/s", "binary req/s", "T=64 JSON req/s", "T=64 binary req/s", "one client p50 ms")
    yield f"| {' | '.join(columns)} | p99 ms, 16 clients |"
    yield "|---" * 7 + "|"
    limits = found["limit"]
    long, short = (statistics.median(limits[steps]["best"]) for steps in ("784", "64"))
    alone = f"{limits['784']['p50_ms']:.2f}"
    yield f"| the runtime in process, the limit | {long:,.0f} | {long:,.0f} | {short:,.0f} | {short:,.0f} | {alone} | |"
    for name in limits["784"]["ways"]:
        cells = [f"{limits[steps]['ways'][name]:,.0f}" for steps in ("784", "784", "64", "64")]
        yield f"| - {name} | {' | '.join(cells)} | | |"
    yield _row(SERVE, found["stablernn"])
    if "native" in found:
        yield _row(SERVE_NATIVE, found["native"])
    measured = {name: peer for name, peer in found["peers"].items() if "json_784" in peer}
    for name in sorted(measured, key=lambda one: -statistics.median(measured[one]["json_784"]["rate"])):
        yield _row(measured[name]["title"], measured[name])
    yield ""
    for title, name in ((SERVE, "stablernn"), (SERVE_NATIVE, "native")):
        if name in found:
            shares = [f"{kind.replace('_', ', T=')}: {_spread(found[name][kind]['of_limit'], 2)}" for kind in KINDS]
            yield _wrapped(f"{title}, of the limit in the same round: {'; '.join(shares)}.")
            yield ""
    yield _wrapped("Versions: " + "; ".join(f"{peer['title']}: {peer['versions']}" for peer in measured.values()) + ".")
    for peer in found["peers"].values():
        if "failed" in peer:
            yield ""
            yield f"{peer['title']} was not measured: {peer['failed']}"
        elif wrong := sum(case["wrong"] + case["lost"] for case in loads_of(peer).values()):
            yield ""
            yield f"{peer['title']}: {wrong} answers were wrong or lost."
    yield ""
    yield _wrapped(_FAULTS)
    yield ""
    yield "| server | broken JSON | two features | text | both lengths: failed |"
    yield "|---" * 5 + "|"
    for peer in ({"title": SERVE, **found["stablernn"]}, *measured.values()):
        faults = peer["faults"]
        cells = [str(status or "-") for name, status in faults.items() if name != "mixed"]
        yield f"| {peer['title']} | {' | '.join(cells)} | {faults['mixed']['failed']} |"


def loads_of(server: Row) -> Row:
    """The measured loads among a server's facts."""
    return {name: one for name, one in server.items() if isinstance(one, dict) and name != "faults"}


def _row(title: str, found: Row) -> str:
    cells = [_spread(found[kind]["rate"]) if kind in found else "-" for kind in KINDS]
    alone = f"{found['json_784_alone']['p50_ms']:.2f}"
    return f"| {title} | {' | '.join(cells)} | {alone} | {found['json_784']['p99_ms']:.1f} |"


def _spread(values: list[float], digits: int = 0) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _streams(found: Row) -> Iterator[str]:
    yield "## Streaming"
    yield ""
    yield _wrapped(_STREAMS)
    yield ""
    columns = ("frames", "sockets", "steps/s, as fast as answered", "frames/s", "arriving steps/s", "p50 ms", "p99 ms")
    yield f"| {' | '.join(columns)} | wrong or lost |"
    yield "|---" * 8 + "|"
    for name, one in found.items():
        if name in ("conditions", "server"):
            continue
        fastest, paced = one["fastest"], one["paced"]
        bad = sum(part["wrong"] + part["lost"] for part in (fastest, paced))
        yield (
            f"| {name} | {fastest['sockets']:,} | {fastest['steps_per_second']:,.0f} "
            f"| {fastest['frames_per_second']:,.0f} | {paced['offered_steps_per_second']:,.0f} "
            f"| {paced['p50_ms']:.1f} | {paced['p99_ms']:.1f} | {bad} |"
        )


def _overload(found: Row) -> Iterator[str]:
    load, memory = found["load"], found["memory"]
    yield "## Overload"
    yield ""
    answers = ", ".join(f"{count:,} of {status}" for status, count in load["answers"].items())
    text = _OVERLOAD.format(
        clients=found["clients"],
        seconds=load["seconds"],
        offered=found["offered_per_second"],
        capacity=found["capacity_per_second"],
        answers=answers,
        good=load["rate"],
        p99=load["p99_from_sending_ms"],
        arrival=load["p99_ms"],
        first=memory["first_mb"],
        last=memory["last_mb"],
    )
    yield _wrapped(text)


def _continuity(found: Row) -> Iterator[str]:
    yield "## Streams through kills"
    yield ""
    yield _wrapped(_CONTINUITY.format(**{name: found.get(name, 0) for name in _CONTINUITY_NAMES}))


def _reloads(found: Row) -> Iterator[str]:
    yield "## Reloads under load"
    yield ""
    text = _RELOADS.format(
        reloads=found["reloads"],
        failed=found["failed_loads"],
        seconds=found["seconds"],
        answers=found["load"]["answers"].get("200", 0),
        rate=found["load"]["rate"],
        first=found["memory"]["first_mb"],
        last=found["memory"]["last_mb"],
    )
    yield _wrapped(text)


def _fuzz(found: Row) -> Iterator[str]:
    yield "## Mutated bodies"
    yield ""
    answers = ", ".join(f"{count:,} of {status}" for status, count in found["answers"].items())
    yield _wrapped(_FUZZ.format(bodies=found["bodies"], seconds=found["seconds"], answers=answers))


def _conditions(results: Row) -> Iterator[str]:
    yield "| section | date | cores | load before | seconds | command |"
    yield "|---" * 6 + "|"
    for name in SECTIONS:
        if name in results:
            one = results[name]["conditions"]
            yield (
                f"| {name} | {one['date']} | {one['cores']} | {one['load_before']:.1f} | {one['seconds']:.0f} | "
                f"`{one['command']}` |"
            )
    for line in sorted({_machine(results[name]["conditions"]) for name in SECTIONS if name in results}):
        yield ""
        yield _wrapped(line)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _machine(one: Row) -> str:
    packages = ", ".join(f"{package} {number}" for package, number in one["versions"].items())
    return f"{one['processor']}, Python {one['python']}, {packages}. The model: {one['model']}."


_HEAD = """# Performance

This page is about serving; [docs/speed.md](speed.md) has training steps and inference by themselves. Written by
`python benchmarks/serving.py --page` from `benchmarks/results/serving.json`, and the part on GPUs from `gpu.json`; do
not edit. Clients, server and whatever else the machine did shared its cores. Every answer was compared with the
model's own numbers: those of `stablernn serve` bit for bit, those of the others within 0.00001.
"""
_ON_GPU = """The engines of training, ONNX Runtime and a server on a GPU have a page of their own, [gpu.md](gpu.md),
which also says what was not run on one. Its goals are these:"""
_COMPARE = """Sequences of 784 steps, or of 64 where it says so, of one feature; a request holds one of them and asks
for the probabilities. 16 clients, each sending its next request when the one before is answered. The limit is the best
of the ways below to use ONNX Runtime without any server. Servers ran one after the other in {rounds}; medians, the
smallest and the largest behind them. `--engine native` runs the same version by the compiled kernels of `make native`,
which read its weights from the ONNX file. Peers serve the same ONNX file by the programs in
`benchmarks/serving_peers/`, one server process each, with batching where they have it. Access logs are off everywhere;
`stablernn serve` asks for a token, checks every request and counts it in its metrics."""
_FAULTS = """What they answer to requests that are wrong (the status; - where none came), and how many answers failed
or were wrong while sequences of both lengths came at once for 1.5 s:"""
_STREAMS = """1,000 streams over WebSockets in binary frames, one server process. Each socket has one frame under way.
First as fast as answers come, then with steps that arrive evenly at a given rate, where the time counts from their
arrival."""
_OVERLOAD = """{clients} clients, JSON, T=784; {offered:,.0f} requests a second arrived for {seconds:.0f} s where the
server can answer {capacity:,.0f}. Every fourth had a deadline of 30 ms, and at most 100 may wait. Answers: {answers}.
Of those with status 200, {good:,.0f} a second came, each with the right numbers. The p99 of all answers was
{p99:.0f} ms from sending, and {arrival:,.0f} ms from arrival: what arrives while every client waits is sent later.
Memory went from {first:.0f} to {last:.0f} MB."""
_CONTINUITY_NAMES = (
    *("streams", "steps_each", "kills", "disconnects", "broken", "timeouts", "busy", "answers", "seconds"),
    *("differing_streams", "differing_from_whole_sequence"),
)
_CONTINUITY = """{streams:,} streams at once of {steps_each} steps each, half by `POST /v1/step`, half by WebSockets
with tokens, through {kills} kills of the server (SIGKILL) and {disconnects:,} disconnects before an answer, in
{seconds:.0f} s. {broken:,} attempts failed, {timeouts} timed out, {busy} were told to come again; each was repeated
from the last token. Streams whose outputs differ in any bit from the steps run offline: {differing_streams}; whose last
output differs from the whole sequence run at once: {differing_from_whole_sequence}."""
_RELOADS = """{reloads} times an alias moved to another version, which was loaded, and {failed} times to one that cannot
be loaded, in {seconds:.0f} s, while 8 clients sent requests: {answers:,} answers, {rate:,.0f} a second, each with the
numbers of one of the two versions. Memory went from {first:.0f} to {last:.0f} MB."""
_FUZZ = """{bodies:,} binary bodies with flipped bits, cuts, spliced pieces, other numbers, false lengths or noise, in
{seconds:.0f} s. Answers: {answers}."""
