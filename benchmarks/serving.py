"""How fast `stablernn serve` is, beside the runtime alone and other servers, and what it does under overload.

    python benchmarks/serving.py --peers --scratch DIR

installs the peers, one environment each under DIR (never in the repository), measures everything in one run and writes
``benchmarks/results/serving.json``; without ``--peers``, those that DIR holds already are measured. Sections named on
the command line run alone, and the rest of the file is kept. ``--page`` writes ``docs/performance.md`` from it.
"""

from __future__ import annotations

import argparse
import json
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

from given_command import given_command
from serving_compare import ALL, environment_of, install, rounds, versions
from serving_continuity import continuity
from serving_fuzz import fuzz
from serving_model import CELL, HIDDEN, LENGTHS, Case, Offline, cases, graph, publish
from serving_overload import overload
from serving_page import RESULTS, loads_of, write_page
from serving_reloads import reloads
from serving_streams import streams

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


def rounded(value: Any) -> Any:
    """The same with four significant digits, which is more than repeats."""
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    # Infinity is no number in JSON: whatever did not happen has none.
    return value if not isinstance(value, float) else float(f"{value:.4g}") if abs(value) < 1e300 else None


def processor() -> str:
    """The CPU's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("compare", "streams", "overload", "continuity", "reloads", "fuzz")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(names)}; default: all")
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
    if strange := set(arguments.sections) - set(names):
        parser.error(f"unknown section '{min(strange)}'; there are {', '.join(names)}")
    if not arguments.page:
        run(arguments, arguments.sections or list(names))
    write_page()


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
        results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        results[name] = rounded({"conditions": conditions, **found})
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def installed(package: str) -> str:
    """Version of a package; of ONNX Runtime, also where its build for GPUs is installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return version(f"{package}-gpu")


if __name__ == "__main__":
    main()
