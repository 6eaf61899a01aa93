"""How fast `stablernn serve` is, beside the runtime alone and other servers, and what it does under overload.

    python benchmarks/serving.py --peers --scratch DIR

installs the peers, one environment each under DIR (never in the repository), measures everything in one run and writes
``benchmarks/results/serving.json``; without ``--peers``, those that DIR holds already are measured. Sections named on
the command line run alone, and the rest of the file is kept. ``--page`` writes the tables of
``docs/performance.md`` from it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
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
from serving_faults import continuity, fuzz, overload, reloads
from serving_load import Load, Server, ServerFailed, exchange, measure, running, split, stablernn
from serving_model import (
    CELL,
    HIDDEN,
    INFER,
    LENGTHS,
    NAME,
    Case,
    NativeOffline,
    Offline,
    cases,
    graph,
    http,
    numbers,
    oip_binary,
    oip_json,
    publish,
)
from serving_model import cases as requests_of
from serving_streams import streams

IN_FLIGHT = 16
WAYS = {"16 on one thread": (16, 1), "2 x 8 on two threads": (8, 2), "one at a time on two threads": (1, 2)}
"""Sequences in a run, and threads that run one after the other each."""
ARENA = "2 x 8 on two threads, with the runtime's arena"


def limit(offline: Offline, case: Case, seconds: float) -> dict[str, Any]:
    """Sequences a second of each way, the best of them, and the time of one sequence alone."""
    rates = {name: _rate(offline, case, *way, seconds) for name, way in WAYS.items()}
    rates[ARENA] = _rate(Offline(offline.content, arena=True), case, *WAYS["2 x 8 on two threads"], seconds)
    return {"rates": rates, "best": max(rates.values()), "p50_ms": _alone(offline, case, seconds)}


def _rate(offline: Offline, case: Case, rows: int, threads: int, seconds: float) -> float:
    counts = [0] * threads
    feeds = [offline.feeds(case.x[place * rows : (place + 1) * rows]) for place in range(threads)]
    gate = threading.Barrier(threads + 1)
    end = [0.0]

    def work(place: int) -> None:
        gate.wait()
        while time.perf_counter() < end[0]:
            offline.session.run(["probabilities"], feeds[place])
            counts[place] += rows

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    began = time.perf_counter()
    end[0] = began + seconds
    gate.wait()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


def _alone(offline: Offline, case: Case, seconds: float) -> float:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        feeds = offline.feeds(case.x[len(times) % len(case.x)][None])
        began = time.perf_counter()
        offline.session.run(["probabilities"], feeds)
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))


Row = dict[str, Any]
PEERS = Path(__file__).parent / "serving_peers"
TOKEN = "for-the-length-of-a-benchmark-on-this-machine"
TOLERANCE = 1e-5
"""How far a peer's probabilities may be from those of the sequence alone; ours may not be at all."""


@dataclass(frozen=True)
class Peer:
    """A server to compare with.

    Attributes:
        title: Its name in the table.
        program: File under ``serving_peers``.
        packages: What pip installs in its environment, which peers of the same packages share.
        ready: Path that answers 200 when it is ready.
        json: Path and form of JSON requests.
        binary: Path and form of binary requests; None where it has none.
        shown: Packages whose versions are recorded.
    """

    title: str
    program: str
    packages: tuple[str, ...]
    ready: str
    json: tuple[str, str]
    binary: tuple[str, str] | None
    shown: tuple[str, ...]


PLAIN = ("fastapi", "uvicorn[standard]", "orjson", "numpy", "onnxruntime")
READY = f"/v2/models/{NAME}/ready"
ALL = {
    "asgi": Peer(
        "plain ASGI + orjson + batching",
        "asgi_batched.py",
        PLAIN,
        "/ready",
        ("/infer", "oip"),
        ("/infer", "oip"),
        ("uvicorn",),
    ),
    "fastapi-batched": Peer(
        "FastAPI + orjson + batching",
        "fastapi_batched.py",
        PLAIN,
        "/ready",
        ("/infer", "oip"),
        ("/infer", "oip"),
        ("fastapi",),
    ),
    "mlserver": Peer(
        "MLServer",
        "mlserver_model.py",
        ("mlserver", "onnxruntime"),
        READY,
        (INFER, "oip"),
        None,
        ("mlserver",),
    ),
    "triton": Peer(
        "NVIDIA Triton (pytriton)",
        "triton_model.py",
        ("nvidia-pytriton", "onnxruntime"),
        READY,
        (INFER, "oip"),
        (INFER, "oip"),
        ("nvidia-pytriton",),
    ),
    "litserve": Peer(
        "LitServe",
        "litserve_model.py",
        ("litserve", "onnxruntime"),
        "/health",
        ("/predict", "probabilities"),
        None,
        ("litserve",),
    ),
    "fastapi": Peer(
        "FastAPI, no batching",
        "fastapi_plain.py",
        PLAIN,
        "/ready",
        ("/infer", "oip"),
        ("/infer-binary", "oip"),
        ("fastapi",),
    ),
    "bentoml": Peer(
        "BentoML",
        "bentoml_model.py",
        ("bentoml", "onnxruntime"),
        "/readyz",
        ("/infer", "list"),
        None,
        ("bentoml",),
    ),
    "kserve": Peer(
        "KServe",
        "kserve_model.py",
        ("kserve", "onnxruntime"),
        READY,
        (INFER, "oip"),
        (INFER, "oip"),
        ("kserve",),
    ),
    "mlflow": Peer(
        "MLflow",
        "mlflow_model.py",
        ("mlflow", "onnxruntime"),
        "/ping",
        ("/invocations", "predictions"),
        None,
        ("mlflow",),
    ),
    "ray": Peer(
        "Ray Serve",
        "ray_model.py",
        ("ray[serve]", "onnxruntime"),
        "/-/healthz",
        ("/infer", "probabilities"),
        ("/infer", "raw"),
        ("ray",),
    ),
}


def environment_of(peer: Peer, scratch: Path) -> Path:
    """Folder of the peer's virtual environment."""
    name = "plain" if peer.packages == PLAIN else peer.program.removesuffix("_model.py")
    return scratch / "environments" / name


def install(scratch: Path, names: list[str]) -> dict[str, str]:
    """Create the environments that are missing, one at a time; the reasons of those that cannot be."""
    failed = {}
    for name in names:
        peer = ALL[name]
        folder = environment_of(peer, scratch)
        if (folder / "complete").exists():
            continue
        print(f"installing {', '.join(peer.packages)}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        words = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*words, *peer.packages], capture_output=True, text=True)
        if done.returncode:
            failed[name] = f"pip could not install it: {done.stderr.strip().splitlines()[-1][:300]}"
        else:
            (folder / "complete").touch()
    return failed


def versions(peer: Peer, scratch: Path) -> str:
    """The versions that were measured, in words."""
    code = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    words = [environment_of(peer, scratch) / "bin" / "python", "-c", code, *peer.shown, "onnxruntime"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def start_peer(peer: Peer, scratch: Path, model: Path) -> Server:
    """The peer, ready to answer."""
    folder = environment_of(peer, scratch)
    work = scratch / "work"
    work.mkdir(exist_ok=True)
    variables = {
        "SPEED_SCRATCH": str(work),
        "SPEED_PEERS": str(PEERS),
        "PYTHONPATH": str(PEERS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    words = [str(folder / "bin" / "python"), str(PEERS / peer.program), str(model), "{port}"]
    return Server(words, peer.ready, scratch / f"{peer.program.removesuffix('.py')}.log", variables)


def authorized(content: bytes) -> bytes:
    """The request with our server's token."""
    return content.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode(), 1)


def request(path: str, form: str, x: np.ndarray, *, binary: bool) -> bytes:
    """One sequence (time, 1) in the words of a server."""
    if form == "oip":
        return oip_binary(path, x) if binary else oip_json(path, x)
    if form == "raw":
        return http(path, x.astype("<f4").tobytes(), {"Content-Type": "application/octet-stream"})
    nested = np.round(x.astype(np.float64), 5).tolist()
    bodies: dict[str, Any] = {
        "probabilities": {"x": numbers(x) if x.shape[1] == 1 else nested},
        "list": {"x": [nested]},
        "predictions": {"inputs": [nested]},
    }
    return http(path, json.dumps(bodies[form]).encode())


def figures(
    port: int,
    paths: dict[str, tuple[str, str] | None],
    cases: dict[int, Case],
    seconds: float,
    tolerance: float,
    sent: Callable[[bytes], bytes] = bytes,
) -> Row:
    """Throughput with 16 clients for JSON and binary at each length, and one client's times."""
    row: Row = {}
    for kind, place in paths.items():
        if place is None:
            continue
        path, form = place
        for steps, case in cases.items():
            load = Load(
                port,
                [sent(request(path, form, x, binary=kind == "binary")) for x in case.x],
                [[[float(value) for value in one]] for one in case.probabilities],
                "raw" if kind == "binary" else form,
                tolerance,
                seconds=seconds,
            )
            row[f"{kind}_{steps}"] = measure(load)
            if steps == max(cases):
                load.clients, load.seconds = 1, max(seconds / 2, 1)
                row[f"{kind}_{steps}_alone"] = measure(load)
    return row


def faults(
    port: int,
    place: tuple[str, str],
    cases: dict[int, Case],
    tolerance: float,
    sent: Callable[[bytes], bytes] = bytes,
) -> Row:
    """Statuses for requests that are wrong, and how sequences of two lengths at once are answered."""
    path, form = place
    pair = np.zeros((8, 2), np.float32)
    wrong = {
        "broken JSON": http(path, b'{"inputs": [{'),
        "two features": request(path, form, pair, binary=False),
        # As long as the number that it replaces, so that the stated length stays right.
        "text": request(path, form, pair[:, :1], binary=False).replace(b"[0.0", b'["a"', 1),
    }
    found: Row = {}
    for name, content in wrong.items():
        answer = split(exchange(port, sent(content)) or b"")
        found[name] = None if answer is None else answer[0]
    mixed = [(x, one) for pair in zip(*[_pairs(case) for case in cases.values()], strict=True) for x, one in pair]
    load = Load(
        port,
        [sent(request(path, form, x, binary=False)) for x, _ in mixed],
        [[[float(value) for value in one]] for _, one in mixed],
        form,
        tolerance,
        seconds=1.5,
    )
    seen = measure(load)
    failed = sum(count for status, count in seen["answers"].items() if status != "200")
    found["mixed"] = {
        "rate": seen["rate"],
        "failed": failed + seen["wrong"] + seen["lost"],
        "examples": seen["examples"],
    }
    return found


def _pairs(case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(case.x, case.probabilities, strict=True))


def ours(scratch: Path, registry: Path, cases: dict[int, Case], seconds: float, engine: str) -> Row:
    """``stablernn serve`` with tokens on; the one difference to its defaults is that the access log is off."""
    options = ("--model", f"{NAME}:1", "--engine", engine)
    environment = {"STABLERNN_INFER_TOKENS": TOKEN}
    with running(stablernn(scratch, registry, *options, environment=environment)) as server:
        start = {"ready_seconds": server.ready_seconds, "rss_mb": server.rss_mb}
        paths: dict[str, tuple[str, str] | None] = {"json": (INFER, "oip"), "binary": (INFER, "oip")}
        row = {**start, **figures(server.port, paths, cases, seconds, 0.0, authorized)}
        row["rss_after_mb"] = server.rss_mb
        refused = split(exchange(server.port, oip_json(INFER, next(iter(cases.values())).x[0])) or b"")
        if refused is None or refused[0] != 401:
            raise RuntimeError(f"Without its token a request must be refused by 401, got {refused}.")
        return {**row, "faults": faults(server.port, (INFER, "oip"), cases, 0.0, authorized)}


def theirs(peer: Peer, scratch: Path, model: Path, cases: dict[int, Case], seconds: float) -> Row:
    """A peer's figures, or the reason why there are none."""
    try:
        server = start_peer(peer, scratch, model)
    except ServerFailed as error:
        return {"failed": str(error)}
    with running(server):
        paths: dict[str, tuple[str, str] | None] = {"json": peer.json, "binary": peer.binary}
        row = {
            "ready_seconds": server.ready_seconds,
            **figures(server.port, paths, cases, seconds, TOLERANCE),
            # Last, because not every server is well after it.
            "faults": faults(server.port, peer.json, cases, TOLERANCE),
        }
    shutil.rmtree(scratch / "work", ignore_errors=True)
    return row


def rounds(
    scratch: Path, registry: Path, model: Path, cases: dict[int, Case], names: list[str], count: int, seconds: float
) -> list[Row]:
    """Each round: the limit, ours, each peer alone; all in one run, so that ratios are of the same minutes."""
    offline = Offline(model.read_bytes())
    engines = {"stablernn": ("auto", cases)}
    if importlib.util.find_spec("stablernn_native") is not None:
        engines["native"] = ("native", requests_of(NativeOffline(registry)))
    found = []
    for number in range(count):
        row: Row = {"limit": {str(steps): limit(offline, case, seconds / 2) for steps, case in cases.items()}}
        for name, (engine, expected) in engines.items():
            row[name] = ours(scratch, registry, expected, seconds, engine)
            _say(number, name, row[name])
        for name in names:
            began = time.perf_counter()
            row[name] = theirs(ALL[name], scratch, model, cases, seconds)
            _say(number, f"{name} ({time.perf_counter() - began:.0f} s)", row[name])
        found.append(row)
    return found


def _say(number: int, name: str, row: Row) -> None:
    loads = {key: value for key, value in row.items() if isinstance(value, dict) and key != "faults"}
    words = [f"{key} {value['rate']:.0f}/s" for key, value in loads.items()]
    wrong = sum(value["wrong"] + value["lost"] for value in loads.values())
    note = row.get("failed", "")
    print(f"round {number + 1} {name}: {', '.join(words)} wrong or lost {wrong} {note}", file=sys.stderr, flush=True)


STORED = RESULTS / "serving.json"
KINDS = ("json_784", "binary_784", "json_64", "binary_64")
SECTIONS = ("compare", "streams", "overload", "continuity", "reloads", "fuzz")
SERVE, NATIVE = "**stablernn serve**", "**stablernn serve --engine native**"
VERSIONS = ("onnxruntime", "uvicorn", "starlette", "fastapi", "uvloop", "httptools", "websockets", "orjson", "numpy")
OVERLOAD_SECONDS = 60.0
STREAM_SECONDS = 5.0


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
