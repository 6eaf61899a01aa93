"""How fast `stablernn serve` is, beside the runtime alone and other servers, and what it does under overload.

    python benchmarks/serving.py --peers --scratch DIR

installs the peers, one environment each under DIR (never in the repository), measures everything in one run and writes
``benchmarks/results/serving.json``; without ``--peers``, those that DIR holds already are measured. Sections named on
the command line run alone, and the rest of the file is kept. ``--page`` writes the tables of
``docs/performance.md`` from it.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness import (
    DOCS,
    RESULTS,
    facts,
    given_command,
    processor,
    read_results,
    replace_tables,
    rounded,
    spread,
    table,
    write_results,
)
from serving_compare import ALL, environment_of, install, rounds, versions
from serving_faults import continuity, fuzz, overload, reloads
from serving_model import CELL, HIDDEN, LENGTHS, Case, Offline, cases, graph, publish
from serving_streams import streams

STORED = RESULTS / "serving.json"
KINDS = ("json_784", "binary_784", "json_64", "binary_64")
SECTIONS = ("compare", "streams", "overload", "continuity", "reloads", "fuzz")
SERVE, NATIVE = "**stablernn serve**", "**stablernn serve --engine native**"
VERSIONS = ("onnxruntime", "uvicorn", "starlette", "fastapi", "uvloop", "httptools", "websockets", "orjson", "numpy")
OVERLOAD_SECONDS = 60.0
STREAM_SECONDS = 5.0

Row = dict[str, Any]


class Bench:
    """The model on disk, and the sections."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.scratch: Path = arguments.scratch
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory(dir=self.scratch, prefix="registry-")
        self.registry = Path(self.folder.name)
        publish(self.registry)
        self.model = self.scratch / "sequence.onnx"
        self.model.write_bytes(graph(self.registry))
        self.cases: dict[int, Case] = cases(Offline(self.model.read_bytes()))
        self.sections: dict[str, Callable[[], Row]] = {
            "compare": self.compare,
            "streams": lambda: streams(self.scratch, self.registry, self._seconds(STREAM_SECONDS)),
            "overload": lambda: overload(
                self.scratch, self.registry, self.cases[max(LENGTHS)], self._seconds(OVERLOAD_SECONDS)
            ),
            "continuity": lambda: continuity(self.scratch, self.registry),
            "reloads": lambda: reloads(self.scratch),
            "fuzz": lambda: fuzz(self.scratch, self.registry, self.cases[min(LENGTHS)]),
        }

    def _seconds(self, default: float) -> float:
        return default if self.arguments.seconds is None else float(self.arguments.seconds)

    def compare(self) -> Row:
        """The limit, ours and the peers in rounds: medians, spreads, and ratios within each round."""
        names = list(ALL) if not self.arguments.peers else self.arguments.peers
        failed = install(self.scratch, names) if self.arguments.peers is not None else {}
        there = [name for name in names if (environment_of(ALL[name], self.scratch) / "complete").exists()]
        found = rounds(
            self.scratch,
            self.registry,
            self.model,
            self.cases,
            there,
            self.arguments.rounds,
            self._seconds(3.0),
        )
        peers: Row = {name: {"title": ALL[name].title, "failed": reason} for name, reason in failed.items()}
        for name in there:
            reasons = [row[name]["failed"] for row in found if "failed" in row[name]]
            peers[name] = {"title": ALL[name].title, "versions": versions(ALL[name], self.scratch)}
            peers[name] |= {"failed": reasons[0]} if reasons else summary([row[name] for row in found])
        limits = {steps: limit_of([row["limit"][steps] for row in found]) for steps in found[0]["limit"]}
        result: Row = {"rounds": len(found), "limit": limits}
        for engine in ("stablernn", "native"):
            if engine in found[0]:
                result[engine] = self._ours(found, engine)
        return {**result, "peers": peers}

    def _ours(self, rounds: list[Row], engine: str) -> Row:
        """Summarize our server with one engine, beside the limit of each round."""
        summarized = summary([row[engine] for row in rounds])
        for kind, case in loads_of(summarized).items():
            best = [row["limit"][kind.split("_")[1]]["best"] for row in rounds]
            case["of_limit"] = [row[engine][kind]["rate"] / one for row, one in zip(rounds, best, strict=True)]
        steps = max(LENGTHS)
        summarized["ms_over_limit"] = [
            row[engine][f"json_{steps}_alone"]["p50_ms"] - row["limit"][str(steps)]["p50_ms"] for row in rounds
        ]
        return summarized


def limit_of(rows: list[Row]) -> Row:
    """Medians of what the runtime alone did."""
    ways = {name: statistics.median(row["rates"][name] for row in rows) for name in rows[0]["rates"]}
    best = [row["best"] for row in rows]
    return {"ways": ways, "best": best, "p50_ms": statistics.median(row["p50_ms"] for row in rows)}


def summary(rows: list[Row]) -> Row:
    """Of one server over the rounds: rates of each round, medians of the times, counts of all answers."""
    found: Row = {}
    for key, first in rows[0].items():
        if key == "faults":
            found[key] = first
            continue
        values = [row[key] for row in rows]
        if not isinstance(first, dict):
            found[key] = values
            continue
        answers: Counter[str] = Counter()
        for value in values:
            answers.update(value["answers"])
        found[key] = {
            "rate": [value["rate"] for value in values],
            **{name: statistics.median(value[name] or 0.0 for value in values) for name in ("p50_ms", "p99_ms")},
            "answers": dict(answers),
            **{name: sum(value[name] for value in values) for name in ("wrong", "lost")},
            "generator_cores": statistics.median(value["generator_cores"] for value in values),
        }
        if examples := [example for value in values for example in value["examples"]]:
            found[key]["examples"] = examples[:3]
    return found


def tables(results: Row) -> dict[str, str]:
    """Return the tables of the page by their names; sections that were not run have none."""
    writers = {"compare": _compare, "streams": _streams}
    written = {name: writers.get(name, facts)(results[name]) for name in SECTIONS if name in results}
    if "compare" in results:
        compare = results["compare"]
        written["faults"] = table(
            ("server", "broken JSON", "two features", "text", "both lengths: failed"),
            (
                (
                    title,
                    *(status or "-" for name, status in row["faults"].items() if name != "mixed"),
                    row["faults"]["mixed"]["failed"],
                )
                for title, row in _servers(compare)
                if title != NATIVE
            ),
        )
    rows = [(name, results[name]["conditions"]) for name in SECTIONS if name in results]
    written["conditions"] = table(
        ("section", "date", "processor", "cores", "load before", "seconds", "versions", "command"),
        (
            (
                name,
                *(found[key] for key in ("date", "processor", "cores", "load_before", "seconds")),
                ", ".join(f"{package} {number}" for package, number in found["versions"].items()),
                f"`{found['command']}`",
            )
            for name, found in rows
        ),
    )
    return written


def _servers(compare: Row) -> list[tuple[str, Row]]:
    """Return our server with each engine, then the peers that were measured, the fastest first."""
    ours = [(title, compare[name]) for title, name in ((SERVE, "stablernn"), (NATIVE, "native")) if name in compare]
    peers = [peer for peer in compare["peers"].values() if "json_784" in peer]
    peers.sort(key=lambda peer: -statistics.median(peer["json_784"]["rate"]))
    return [*ours, *((f"{peer['title']} ({peer['versions'].partition(',')[0]})", peer) for peer in peers)]


def _compare(compare: Row) -> str:
    limits = compare["limit"]
    best, alone = {steps: statistics.median(limits[steps]["best"]) for steps in limits}, limits["784"]["p50_ms"]
    rows: list[tuple[object, ...]] = [
        (
            "the runtime in process, the limit",
            *(f"{best[kind.split('_')[1]]:,.0f}" for kind in KINDS),
            f"{alone:.2f}",
            "",
            "",
            "",
            "",
        )
    ]
    for title, found in _servers(compare):
        loads = loads_of(found)
        rows.append(
            (
                title,
                *(spread(found[kind]["rate"]) if kind in found else "-" for kind in KINDS),
                f"{found['json_784_alone']['p50_ms']:.2f}",
                f"{found['json_784']['p99_ms']:.1f}",
                sum(load["wrong"] + load["lost"] for load in loads.values()),
                f"{statistics.median(found['ready_seconds']):.2f}",
                f"{max(found['rss_mb']):.0f}" if "rss_mb" in found else "",
            )
        )
    columns = ("JSON req/s", "binary req/s", "T=64 JSON req/s", "T=64 binary req/s", "one client p50 ms")
    return table(("server", *columns, "p99 ms, 16 clients", "wrong or lost", "start, s", "MB"), rows)


def loads_of(server: Row) -> Row:
    """Return the measured loads among a server's facts."""
    return {name: found for name, found in server.items() if isinstance(found, dict) and name != "faults"}


def _streams(found: Row) -> str:
    columns = ("sockets", "steps/s, as fast as answered", "arriving steps/s", "p50 ms", "p99 ms", "wrong or lost")
    return table(
        ("frames", *columns),
        (
            (
                name,
                *(f"{row['fastest'][key]:,.0f}" for key in ("sockets", "steps_per_second")),
                *(f"{row['paced'][key]:,.1f}" for key in ("offered_steps_per_second", "p50_ms", "p99_ms")),
                sum(part["wrong"] + part["lost"] for part in (row["fastest"], row["paced"])),
            )
            for name, row in found.items()
            if name not in ("conditions", "server")
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; default: all")
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path(tempfile.gettempdir()) / "stablernn-serving",
        help="where environments, models and logs go; default: %(default)s",
    )
    parser.add_argument(
        "--peers", nargs="*", choices=list(ALL), metavar="PEER", help=f"install these first ({', '.join(ALL)}) or all"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often compare goes over all servers")
    parser.add_argument("--seconds", type=float, help="of each measurement; default: 3, streams 5, overload 60")
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    arguments = parser.parse_args()
    if strange := set(arguments.sections) - set(SECTIONS):
        parser.error(f"unknown section '{min(strange)}'; there are {', '.join(SECTIONS)}")
    if not arguments.page:
        run(arguments, arguments.sections or list(SECTIONS))
    replace_tables(DOCS / "performance.md", tables(read_results(STORED)))


def run(arguments: argparse.Namespace, names: list[str]) -> None:
    """The sections, each written as soon as it is done."""
    bench = Bench(arguments)
    for name in names:
        began = time.perf_counter()
        load = os.getloadavg()[0]
        print(f"{name} ...", file=sys.stderr, flush=True)
        found = bench.sections[name]()
        conditions = {
            "command": given_command({"--scratch": "DIR"}),
            "date": time.strftime("%Y-%m-%d"),
            "seconds": time.perf_counter() - began,
            "cores": len(os.sched_getaffinity(0)),
            "processor": processor(),
            "load_before": load,
            "python": platform.python_version(),
            "model": f"{CELL}, hidden size {HIDDEN}",
            "versions": {package: installed(package) for package in VERSIONS},
        }
        # Read again: another section may have been written meanwhile.
        write_results(STORED, {**read_results(STORED), name: rounded({"conditions": conditions, **found})})


def installed(package: str) -> str:
    """Version of a package; of ONNX Runtime, also where its build for GPUs is installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return version(f"{package}-gpu")


if __name__ == "__main__":
    main()
