"""How fast `stablernn serve` is, beside the runtime alone and other servers, and what it does under overload.

    python benchmarks/serving.py --peers --scratch DIR

installs the peers, one environment each under DIR (never in the repository), measures everything in one run and writes
``benchmarks/results/serving.json``; without ``--peers``, those that DIR holds already are measured. Sections named on
the command line run alone, and the rest of the file is kept. ``--page`` prints the tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import venv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import Row, log, read_results, rounded, spread, stored, table, write_results
from serving_load import (
    Load,
    Memory,
    Server,
    ServerFailed,
    exchange,
    get,
    masked,
    measure,
    numbers_of,
    running,
    same,
)
from serving_peers.speed_model import CLASSES, Model

STORED = stored("serving")
SECTIONS = ("compare", "streams", "overload")
VERSIONS = ("onnxruntime", "uvicorn", "starlette", "fastapi", "uvloop", "httptools", "websockets", "orjson", "numpy")
NAME, CELL, HIDDEN = "speed", "antisymmetric", 128
LONG, SHORT = 784, 64
"""Lengths of the sequences."""
REQUESTS = 32
"""Different sequences of each length, so that an answer handed to the wrong caller is seen."""
INFER, READY = f"/v2/models/{NAME}/infer", f"/v2/models/{NAME}/ready"
TOKEN = "for-the-length-of-a-benchmark-on-this-machine"
TOLERANCE = 1e-5
"""How far a peer's probabilities may be from those of the sequence alone; ours may not be at all."""
PEER_FILES = Path(__file__).parent / "serving_peers"


class Case(NamedTuple):
    """Sequences of one length (requests, time, 1), and the probabilities of each run alone (requests, classes)."""

    x: np.ndarray
    probabilities: np.ndarray


def publish(root: Path) -> None:
    """Export a model of random weights to the registry at ``root``."""
    import torch

    from stablernn.export import export
    from stablernn.nn.models import Classifier
    from stablernn_registry import Registry

    torch.manual_seed(0)
    model = Classifier(CELL, input_size=1, num_classes=CLASSES, hidden_size=HIDDEN)
    model.fit_scaling([np.random.default_rng(0).normal(size=(200, 1)).astype(np.float32)])
    with tempfile.TemporaryDirectory() as folder:
        report = export(model.eval(), folder)
        fields: dict[str, Any] = {"signature": report.signature, "parity": report.parity, "task": "classify"}
        fields |= {"cell": CELL, "labels": list("0123456789"), "features": ["x"]}
        Registry(root).publish(NAME, report.files, fields)


class Offline(Model):
    """A file of the published version in ONNX Runtime, one thread: where the right numbers come from.

    Args:
        root: The registry.
        file: The file.
        arena: Use the runtime's arena, as it comes: two threads in one session are slower with it than one.
    """

    def __init__(self, root: Path, file: str = "sequence.onnx", *, arena: bool = False) -> None:
        from stablernn_registry import Registry

        self.version = Registry(root).get(f"{NAME}:1")
        super().__init__(self.version.read(file), arena=arena)

    def run_steps(self, x: np.ndarray) -> np.ndarray:
        """Return probabilities after each step (batch, time, classes), by ``step.onnx``."""
        states, found = self.feeds(x), []
        for at in range(x.shape[1]):
            feeds = {"x": x[:, at], **{name: states[name] for name in self.states}}
            answer, *after = self.session.run(["probabilities", *(f"{name}_out" for name in self.states)], feeds)
            states = dict(zip(self.states, after, strict=True))
            found.append(answer)
        return np.stack(found, axis=1)

    def use_native(self) -> Offline:
        """Take the engine ``native`` of the server, whose answers are held against its own numbers."""
        from stablernn_registry import Signature
        from stablernn_runtime.engines.select import open_version

        signature = Signature.model_validate(self.version.manifest.signature)
        self.session = open_version(self.version, signature, "cpu", "native", 1).sequence
        return self


def series(count: int, steps: int, seed: int) -> np.ndarray:
    """Return noise (count, steps, 1) with five decimals, which JSON carries without loss."""
    return np.round(np.random.default_rng(seed).normal(size=(count, steps, 1)), 5).astype(np.float32)


def make_cases(offline: Offline) -> dict[int, Case]:
    """Return the requests of each length."""
    found = {}
    for steps in (LONG, SHORT):
        x = series(REQUESTS, steps, steps)
        found[steps] = Case(x, np.concatenate([offline.run(one[None]) for one in x]))
        distances = np.abs(found[steps].probabilities[:, None] - found[steps].probabilities).max(-1)
        assert distances[~np.eye(REQUESTS, dtype=bool)].min() > 1e-3, "two requests have nearly the same answer"
    return found


def http(path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    """Return a whole request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"Authorization: Bearer {TOKEN}"]
    lines += [f"{name}: {value}" for name, value in (headers or {"Content-Type": "application/json"}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def request(path: str, form: str, x: np.ndarray, *, binary: bool = False, **more: Any) -> bytes:
    """Return one sequence (time, 1) in the words of a server; ``oip`` is the Open Inference Protocol."""
    content, kind = x.astype("<f4").tobytes(), {"Content-Type": "application/octet-stream"}
    if form == "raw":
        return http(path, content, kind)
    # As a client has them that reads decimals: five behind the point.
    nested = np.round(x.astype(np.float64), 5).tolist()
    flat = np.ravel(nested).tolist()
    tensor: Row = {"name": "x", "shape": [1, *x.shape], "datatype": "FP32"}
    output: Row = {"name": "probabilities"}
    if form == "oip" and binary:
        tensor["parameters"], output["parameters"] = {"binary_data_size": len(content)}, {"binary_data": True}
        head = json.dumps({"inputs": [tensor], "outputs": [output], **more}).encode()
        return http(path, head + content, {**kind, "Inference-Header-Content-Length": str(len(head))})
    bodies: dict[str, Any] = {
        "oip": {"inputs": [{**tensor, "data": flat}], "outputs": [output], **more},
        "probabilities": {"x": flat if x.shape[1] == 1 else nested},
        "list": {"x": [nested]},
        "predictions": {"inputs": [nested]},
    }
    return http(path, json.dumps(bodies[form]).encode())


WAYS = {"16 on one thread": (16, 1), "2 x 8 on two threads": (8, 2), "one at a time on two threads": (1, 2)}
"""Sequences in a run, and threads that run one after the other each."""


def measure_limit(registry: Path, case: Case, seconds: float) -> Row:
    """Return sequences a second of each way to run the runtime alone, the best, and the time of one sequence."""
    plain, arena = Offline(registry), Offline(registry, arena=True)
    rates = {name: _rate(plain, case, *way, seconds) for name, way in WAYS.items()}
    two = "2 x 8 on two threads"
    rates[f"{two}, with the runtime's arena"] = _rate(arena, case, *WAYS[two], seconds)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        feeds = plain.feeds(case.x[len(times) % len(case.x)][None])
        began = time.perf_counter()
        plain.session.run(["probabilities"], feeds)
        times.append(time.perf_counter() - began)
    return {"rates": rates, "best": max(rates.values()), "p50_ms": 1e3 * statistics.median(times)}


def _rate(offline: Offline, case: Case, rows: int, threads: int, seconds: float) -> float:
    counts = [0] * threads
    end = time.perf_counter() + seconds

    def work(place: int) -> None:
        feeds = offline.feeds(case.x[place * rows : (place + 1) * rows])
        while time.perf_counter() < end:
            offline.session.run(["probabilities"], feeds)
            counts[place] += rows

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - end + seconds)


@dataclass(frozen=True)
class Peer:
    """A server to compare with.

    Attributes:
        title: Its name in the table.
        program: File under ``serving_peers``, with the words before the model file.
        packages: What pip installs in its environment, which peers of the same packages share; versions are those of
            the first.
        ready: Path that answers 200 when it is ready.
        json: Path and form of JSON requests.
        binary: Path and form of binary requests; None where it has none.
    """

    title: str
    program: str
    packages: str
    ready: str
    json: tuple[str, str]
    binary: tuple[str, str] | None = None

    def folder(self, scratch: Path) -> Path:
        """Return the folder of its virtual environment."""
        return scratch / "environments" / self.packages.partition(" ")[0].replace("[", "-").rstrip("]")

    def is_installed(self, scratch: Path) -> bool:
        return (self.folder(scratch) / "complete").exists()


PLAIN = "fastapi uvicorn[standard] orjson numpy onnxruntime"
OIP, SIMPLE = (INFER, "oip"), ("/infer", "oip")
PEERS = {
    "asgi": Peer(
        "plain ASGI + orjson + batching", "plain.py asgi", f"uvicorn[standard] {PLAIN}", "/ready", SIMPLE, SIMPLE
    ),
    "fastapi-batched": Peer("FastAPI + orjson + batching", "plain.py batched", PLAIN, "/ready", SIMPLE, SIMPLE),
    "mlserver": Peer("MLServer", "mlserver_model.py", "mlserver onnxruntime", READY, OIP),
    "triton": Peer("NVIDIA Triton (pytriton)", "triton_model.py", "nvidia-pytriton onnxruntime", READY, OIP, OIP),
    "litserve": Peer("LitServe", "litserve_model.py", "litserve onnxruntime", "/health", ("/predict", "probabilities")),
    "fastapi": Peer("FastAPI, no batching", "plain.py unbatched", PLAIN, "/ready", SIMPLE, ("/infer-binary", "oip")),
    "bentoml": Peer("BentoML", "bentoml_model.py", "bentoml onnxruntime", "/readyz", ("/infer", "list")),
    "kserve": Peer("KServe", "kserve_model.py", "kserve onnxruntime", READY, OIP, OIP),
    "mlflow": Peer("MLflow", "mlflow_model.py", "mlflow onnxruntime", "/ping", ("/invocations", "predictions")),
    "ray": Peer(
        "Ray Serve",
        "ray_model.py",
        "ray[serve] onnxruntime",
        "/-/healthz",
        ("/infer", "probabilities"),
        ("/infer", "raw"),
    ),
}


def install(scratch: Path, names: Sequence[str]) -> dict[str, str]:
    """Create the environments that are missing, one at a time; return the reasons of those that cannot be."""
    failed = {}
    for name in names:
        peer = PEERS[name]
        if peer.is_installed(scratch):
            continue
        log(f"installing {peer.packages}")
        folder = peer.folder(scratch)
        venv.create(folder, with_pip=True, clear=True)
        words = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *peer.packages.split()]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            failed[name] = f"pip could not install it: {done.stderr.strip().splitlines()[-1][:300]}"
        else:
            (folder / "complete").touch()
    return failed


def versions(peer: Peer, scratch: Path) -> str:
    """Return the versions that were measured, in words."""
    code = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    names = [peer.packages.partition(" ")[0].partition("[")[0], "onnxruntime"]
    words = [peer.folder(scratch) / "bin" / "python", "-c", code, *names]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def start_peer(peer: Peer, scratch: Path, model: Path) -> Server:
    """Return the peer, ready to answer."""
    programs, work = peer.folder(scratch) / "bin", scratch / "work"
    work.mkdir(exist_ok=True)
    variables = {
        "SPEED_SCRATCH": str(work),
        "PYTHONPATH": str(PEER_FILES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    file, *kind = peer.program.split()
    words = [str(programs / "python"), str(PEER_FILES / file), str(model), "{port}", *kind]
    return Server(words, peer.ready, scratch / f"{Path(file).stem}.log", variables)


def start_ours(scratch: Path, registry: Path, *words: str, **environment: str) -> Server:
    """Return ``stablernn serve``, ready to answer."""
    variables = {"STABLERNN_REGISTRY": str(registry), **environment}
    serve = harness.stablernn("--quiet", "serve", "--device", "cpu", "--port", "{port}", "--model", f"{NAME}:1", *words)
    return Server(serve, "/v2/health/ready", scratch / "stablernn.log", variables)


class Places(NamedTuple):
    """Where a server takes requests, and how exact its answers must be."""

    json: tuple[str, str]
    binary: tuple[str, str] | None
    tolerance: float


OURS = Places(OIP, OIP, 0.0)


def figures(port: int, places: Places, cases: dict[int, Case], seconds: float) -> Row:
    """Return the load of 16 clients for JSON and binary at each length, and one client's times."""
    row: Row = {}
    for kind, place in (("json", places.json), ("binary", places.binary)):
        for steps, case in cases.items() if place else ():
            path, form = place or places.json
            requests = [request(path, form, x, binary=kind == "binary") for x in case.x]
            form = "raw" if kind == "binary" else form
            load = Load(port, [requests], [case.probabilities.tolist()], form, places.tolerance, seconds=seconds)
            row[f"{kind}_{steps}"] = measure(load)
            if steps == LONG:
                row[f"{kind}_{steps}_alone"] = measure(replace(load, clients=1, seconds=max(seconds / 2, 1)))
    return row


def faults(port: int, places: Places, cases: dict[int, Case]) -> Row:
    """Return statuses for requests that are wrong, and how sequences of two lengths at once are answered."""
    path, form = places.json
    pair = np.zeros((8, 2), np.float32)
    wrong = {
        "broken JSON": http(path, b'{"inputs": [{'),
        "two features": request(path, form, pair),
        # As long as the number that it replaces, so that the stated length stays right.
        "text": request(path, form, pair[:, :1]).replace(b"[0.0", b'["a"', 1),
    }
    found: Row = {name: exchange(port, content)[0] or None for name, content in wrong.items()}
    sequences = [x for pair in zip(*(case.x for case in cases.values()), strict=True) for x in pair]
    expected = np.stack([case.probabilities for case in cases.values()], axis=1).reshape(-1, CLASSES).tolist()
    requests = [request(path, form, x) for x in sequences]
    seen = measure(Load(port, [requests], [expected], form, places.tolerance, seconds=1.5))
    failed = sum(count for status, count in seen["answers"].items() if status != "200")
    mixed = {"rate": seen["rate"], "failed": failed + seen["wrong"] + seen["lost"], "examples": seen["examples"]}
    return {**found, "mixed": mixed}


def measure_server(server: Server, places: Places, cases: dict[int, Case], seconds: float) -> Row:
    """Return the figures of a server, and stop it."""
    with running(server):
        row = {"ready_seconds": server.ready_seconds, "rss_mb": server.rss_mb}
        row |= figures(server.port, places, cases, seconds)
        # Last, because not every server is well after it.
        return {**row, "rss_after_mb": server.rss_mb, "faults": faults(server.port, places, cases)}


def compare(scratch: Path, registry: Path, arguments: argparse.Namespace) -> Row:
    """Return the limit, ours and the peers in rounds: medians, spreads, and ratios within each round.

    Ours runs with tokens on; the one difference to its defaults is that the access log is off.
    """
    names = arguments.peers or list(PEERS)
    failed = install(scratch, names) if arguments.peers is not None else {}
    there = [name for name in names if PEERS[name].is_installed(scratch)]
    model = scratch / "sequence.onnx"
    model.write_bytes(Offline(registry).version.read("sequence.onnx"))
    cases, seconds = make_cases(Offline(registry)), arguments.seconds or 3.0

    def ours(engine: str, expected: dict[int, Case]) -> Row:
        server = start_ours(scratch, registry, "--engine", engine, STABLERNN_INFER_TOKENS=TOKEN)
        return measure_server(server, OURS, expected, seconds)

    def theirs(peer: Peer) -> Row:
        try:
            server = start_peer(peer, scratch, model)
        except ServerFailed as error:
            return {"failed": str(error)}
        row = measure_server(server, Places(peer.json, peer.binary, TOLERANCE), cases, seconds)
        shutil.rmtree(scratch / "work", ignore_errors=True)
        return {key: value for key, value in row.items() if not key.startswith("rss")}

    runs: dict[str, Callable[[], Row]] = {
        "limit": lambda: {str(steps): measure_limit(registry, case, seconds / 2) for steps, case in cases.items()},
        "stablernn": lambda: ours("auto", cases),
    }
    if importlib.util.find_spec("stablernn_native") is not None:
        native = make_cases(Offline(registry).use_native())
        runs["native"] = lambda: ours("native", native)
    runs |= {name: lambda peer=PEERS[name]: theirs(peer) for name in there}
    found = harness.in_turn({name: _said(name, run) for name, run in runs.items()}, arguments.rounds)
    limits = {steps: summarize_limit([row[steps] for row in found["limit"]]) for steps in map(str, cases)}
    result: Row = {"rounds": arguments.rounds, "limit": limits}
    for engine in {"stablernn", "native"} & runs.keys():
        result[engine] = summarize(found[engine])
        for kind, case in loads_of(result[engine]).items():
            best = limits[kind.split("_")[1]]["best"]
            case["of_limit"] = [rate / limit for rate, limit in zip(case["rate"], best, strict=True)]
    peers: Row = {name: {"title": PEERS[name].title, "failed": reason} for name, reason in failed.items()}
    for name in there:
        reasons = [row["failed"] for row in found[name] if "failed" in row]
        peers[name] = {"title": PEERS[name].title, "versions": versions(PEERS[name], scratch)}
        peers[name] |= {"failed": reasons[0]} if reasons else summarize(found[name])
    return {**result, "peers": peers}


def _said(name: str, run: Callable[[], Row]) -> Callable[[], Row]:
    def said() -> Row:
        row = run()
        rates = [f"{key} {load['rate']:.0f}/s" for key, load in loads_of(row).items() if "rate" in load]
        log(f"{name}: {', '.join(rates)} {row.get('failed', '')}")
        return row

    return said


def summarize_limit(rows: list[Row]) -> Row:
    """Return the medians of what the runtime alone did."""
    ways = harness.medians([row["rates"] for row in rows])
    p50_ms = statistics.median(row["p50_ms"] for row in rows)
    return {"ways": ways, "best": [row["best"] for row in rows], "p50_ms": p50_ms}


def loads_of(server: Row) -> Row:
    """Return the measured loads among a server's facts."""
    return {name: found for name, found in server.items() if isinstance(found, dict) and name != "faults"}


def summarize(rows: list[Row]) -> Row:
    """Return of one server over the rounds: rates of each round, medians of the times, counts of all answers."""
    found: Row = {key: [row[key] for row in rows] for key in rows[0]}
    found["faults"] = rows[0]["faults"]
    for key in loads_of(rows[0]):
        loads = found[key]
        medians = {name: statistics.median(load[name] or 0.0 for load in loads) for name in _MEDIANS}
        found[key] = {
            "rate": [load["rate"] for load in loads],
            **medians,
            "answers": dict(sum((Counter(load["answers"]) for load in loads), Counter())),
            **{name: sum(load[name] for load in loads) for name in ("wrong", "lost")},
            "examples": [example for load in loads for example in load["examples"]][:3],
        }
    return found


_MEDIANS = ("p50_ms", "p99_ms", "generator_cores")
STREAMS, SERIES, STEPS = 1000, 32, 4096
VARIANTS = 8
"""Kinds of sockets, by the series that they carry."""
SHAPES = {
    "16 steps of one stream a frame": (STREAMS, 1, 16, 40_000),
    "one step of 100 streams a frame": (STREAMS // 100, 100, 1, 40_000),
    "one step of one stream a frame": (STREAMS, 1, 1, 8_000),
}
"""Sockets, streams of each, steps in a frame, and steps a second that arrive while latencies are taken."""


def frames(samples: np.ndarray, outputs: np.ndarray, steps: int) -> tuple[list[bytes], list[bytes]]:
    """Return the frames of a socket one after the other, and the answers that they must get.

    Args:
        samples: ``(streams, steps, features)``.
        outputs: ``(streams, steps, numbers)``.
        steps: Steps in a frame.
    """
    wide = len(samples)
    head = np.array([1, 0], "u1").tobytes() + np.array([0], "<u2").tobytes() + np.array([wide, steps], "<u4").tobytes()
    streams = np.arange(wide, dtype="<u4").tobytes()
    sent, expected = [], []
    for begin in range(0, samples.shape[1] - steps + 1, steps):
        end = begin + steps
        sent.append(masked(0x82, head + streams + samples[:, begin:end].astype("<f4").tobytes()))
        taken = np.full(wide, end, "<u8").tobytes()
        expected.append(head + taken + outputs[:, begin:end].astype("<f4").tobytes())
    return sent, expected


def streams(scratch: Path, registry: Path, arguments: argparse.Namespace) -> Row:
    """Return steps a second of each shape as fast as answers come, and latencies where they arrive at a given rate."""
    samples = series(SERIES, STEPS, seed=1)
    outputs = Offline(registry, "step.onnx").run_steps(samples)
    found: Row = {}
    with running(start_ours(scratch, registry)) as server:
        for name, (sockets, wide, steps, offered) in SHAPES.items():
            chosen = [[(number * wide + place) % SERIES for place in range(wide)] for number in range(VARIANTS)]
            lists = [frames(samples[places], outputs[places], steps) for places in chosen[:sockets]]
            load = Load(server.port, *map(list, zip(*lists, strict=True)), clients=sockets, warmup=1.0)
            load.path, load.seconds = f"/v1/stream?model={NAME}&outputs=probabilities", arguments.seconds or 5.0
            size = wide * steps
            fastest, paced = measure(load), measure(replace(load, rate=offered / size))
            shape = {"sockets": sockets, "streams_per_socket": wide, "steps_per_frame": steps}
            fastest |= {**shape, "steps_per_second": fastest["rate"] * size}
            paced |= {**shape, "steps_per_second": paced["rate"] * size, "offered_steps_per_second": offered}
            found[name] = {"fastest": fastest, "paced": paced}
            log(f"streams, {name}: {fastest['steps_per_second']:.0f} steps/s, p50 {paced['p50_ms']} ms")
        found["server"] = {"rss_mb": server.rss_mb}
    return found


CLIENTS = 200
MAX_QUEUE = 100
"""Requests that wait at most, fewer than there are clients: some must be refused."""
TIMEOUT_US = 30_000
"""Deadline of every fourth request, shorter than the queue is long: some must expire."""


def overload(scratch: Path, registry: Path, arguments: argparse.Namespace) -> Row:
    """Return every answer, memory, and the time until one client is served as it was before."""
    case = make_cases(Offline(registry))[LONG]
    plain = [request(INFER, "oip", x) for x in case.x]
    hurried = [request(INFER, "oip", x, parameters={"timeout": TIMEOUT_US}) for x in case.x]
    requests = [hurried[place] if place % 4 == 3 else one for place, one in enumerate(plain)]
    expected = case.probabilities.tolist()
    with running(start_ours(scratch, registry, STABLERNN_MAX_QUEUE=str(MAX_QUEUE))) as server:
        load = Load(server.port, [plain], [expected])
        capacity = measure(load)["rate"]
        idle = measure(replace(load, clients=1, seconds=2))["p50_ms"]
        heavy = Load(server.port, [requests], [expected], clients=CLIENTS, warmup=1, rate=2 * capacity)
        with Memory(server) as memory:
            seen = measure(replace(heavy, seconds=arguments.seconds or 60.0, refusals=(429, 503, 504)))
        return {
            "clients": CLIENTS,
            "capacity_per_second": capacity,
            "offered_per_second": heavy.rate,
            "idle_p50_ms": idle,
            "recovery_seconds": recover(server.port, plain[0], expected[0], idle) - seen["ended"],
            "ready_afterwards": get(server.port, "/v2/health/ready") == 200,
            "memory": memory.facts(),
            "load": seen,
        }


def recover(port: int, content: bytes, expected: list[float], idle_ms: float) -> float:
    """Return when the first began of ten requests in a row that took at most twice what they took before."""
    ends: list[float] = []
    deadline = time.perf_counter() + 60
    while len(ends) < 10 and time.perf_counter() < deadline:
        began = time.perf_counter()
        status, body = exchange(port, content)
        now = time.perf_counter()
        # A connection is opened for each, which takes about a millisecond.
        is_quick = 1e3 * (now - began) <= 2 * idle_ms + 2
        is_right = status == 200 and same(numbers_of("oip", body), expected, 0)
        ends = [*ends, now] if is_quick and is_right else []
    return ends[0] if len(ends) == 10 else math.inf


KINDS = ("json_784", "binary_784", "json_64", "binary_64")
SERVE, NATIVE = "**stablernn serve**", "**stablernn serve --engine native**"


def page_tables(results: Row) -> dict[str, str]:
    """Return the tables of the page by their names; sections that were not run have none."""
    writers: dict[str, Callable[[Row], dict[str, str]]] = {
        "compare": _compare_tables,
        "streams": lambda found: {"streams": _streams_table(found)},
        "overload": lambda found: {"overload": harness.facts(found)},
    }
    measured = [name for name in SECTIONS if name in results]
    written = {key: text for name in measured for key, text in writers[name](results[name]).items()}
    rows = [(name, results[name]["conditions"]) for name in measured]
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


def _compare_tables(compare: Row) -> dict[str, str]:
    limits = compare["limit"]
    best = [f"{statistics.median(limits[kind.split('_')[1]]['best']):,.0f}" for kind in KINDS]
    rows: list[Sequence[object]] = [
        ("the runtime in process, the limit", *best, f"{limits[str(LONG)]['p50_ms']:.2f}", "", "", "", "")
    ]
    # Our server with each engine, then the peers that were measured, the fastest first.
    servers = [(title, compare[name]) for title, name in ((SERVE, "stablernn"), (NATIVE, "native")) if name in compare]
    peers = [peer for peer in compare["peers"].values() if "json_784" in peer]
    peers.sort(key=lambda peer: -statistics.median(peer["json_784"]["rate"]))
    servers += [(f"{peer['title']} ({peer['versions'].partition(',')[0]})", peer) for peer in peers]
    for title, found in servers:
        rows.append(
            (
                title,
                *(spread(found[kind]["rate"]) if kind in found else "-" for kind in KINDS),
                f"{found['json_784_alone']['p50_ms']:.2f}",
                f"{found['json_784']['p99_ms']:.1f}",
                sum(load["wrong"] + load["lost"] for load in loads_of(found).values()),
                f"{statistics.median(found['ready_seconds']):.2f}",
                f"{max(found['rss_mb']):.0f}" if "rss_mb" in found else "",
            )
        )
    wrong = [
        (title, *(row["faults"][name] or "-" for name in _WRONG), row["faults"]["mixed"]["failed"])
        for title, row in servers
        if title != NATIVE
    ]
    columns = ("JSON req/s", "binary req/s", "T=64 JSON req/s", "T=64 binary req/s", "one client p50 ms")
    return {
        "compare": table(("server", *columns, "p99 ms, 16 clients", "wrong or lost", "start, s", "MB"), rows),
        "faults": table(("server", *_WRONG, "both lengths: failed"), wrong),
    }


_WRONG = ("broken JSON", "two features", "text")


def _streams_table(found: Row) -> str:
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
            if name in SHAPES
        ),
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure the sections, each written as soon as it is done."""
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="registry-") as folder:
        publish(Path(folder))
        for name in arguments.sections or SECTIONS:
            began, load = time.perf_counter(), os.getloadavg()[0]
            log(f"{name} ...")
            found = {"compare": compare, "streams": streams, "overload": overload}[name](
                arguments.scratch, Path(folder), arguments
            )
            conditions = harness.conditions(
                placeholders={"scratch": "DIR"},
                seconds=time.perf_counter() - began,
                load_before=load,
                model=f"{CELL}, hidden size {HIDDEN}",
                versions={package: harness.installed(package) for package in VERSIONS},
            )
            # Read again: another section may have been written meanwhile.
            results = read_results(arguments.results)
            write_results(arguments.results, {**results, name: rounded({"conditions": conditions, **found})})


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; default: all")
    scratch = Path(tempfile.gettempdir()) / "stablernn-serving"
    parser.add_argument("--scratch", type=Path, default=scratch, help="where environments, models and logs go")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=list(PEERS),
        metavar="PEER",
        help=f"install these first ({', '.join(PEERS)}) or all",
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often compare goes over all servers")
    parser.add_argument("--seconds", type=float, help="of each measurement; default: 3, streams 5, overload 60")
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"unknown section '{min(unknown)}'; there are {', '.join(SECTIONS)}")
    if not arguments.page:
        run(arguments)
    if arguments.results == STORED:
        harness.print_tables(page_tables(read_results(STORED)))


if __name__ == "__main__":
    main()
