"""A hundred hot reloads and a hundred failed loads under load: no failed request, memory flat."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from serving_load import Load, numbers_of, result, same, split, start
from serving_model import NAME, Offline, cases, graph, http, oip_json, publish
from serving_process import Memory, exchange, running, stablernn

Row = dict[str, Any]
RELOADS = 100
ALIAS = "production"
STEPS = 64
CLIENTS = 8


def publish_all(root: Path) -> tuple[list[int], list[int]]:
    """Two versions that can be served, and two that cannot: one graph cut short, one that is not what it says."""
    from stablernn_registry import Registry

    registry = Registry(root)
    good = [publish(root, seed=seed) for seed in (0, 1)]
    version = registry.get(f"{NAME}:{good[0]}")
    fields = {"signature": version.manifest.signature, "parity": version.manifest.parity, "task": "classify"}
    fields |= {name: getattr(version.manifest, name) for name in ("cell", "labels", "features")}
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for content in (version.read("sequence.onnx")[:-5000], version.read("step.onnx")):
            files = {name: place / name for name in version.manifest.files}
            for name, file in files.items():
                file.write_bytes(content if name == "sequence.onnx" else version.read(name))
            bad.append(registry.publish(NAME, files, fields).version)
    return good, bad


def reloads(scratch: Path) -> Row:
    """In a registry of its own."""
    from stablernn_registry import Registry

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        root = Path(folder)
        good, bad = publish_all(root)
        registry = Registry(root)
        registry.set_alias(NAME, ALIAS, good[0])
        answers = [cases(Offline(graph(root, version=version)))[STEPS] for version in good]
        assert np.abs(answers[0].probabilities - answers[1].probabilities).max(-1).min() > 1e-3
        path = f"/v2/models/{NAME}@{ALIAS}/infer"
        requests = [oip_json(path, x) for x in answers[0].x]
        expected = [[[float(value) for value in case.probabilities[place]] for case in answers] for place in range(32)]
        reload = http(f"/v2/repository/models/{NAME}@{ALIAS}/load", b"{}")
        environment = {"STABLERNN_RELOAD_SECONDS": "0"}
        found: Row = {"reloads": 0, "failed_loads": 0, "not_swapped": 0, "not_kept": 0, "examples": []}

        def point(number: int) -> tuple[int, bytes]:
            registry.set_alias(NAME, ALIAS, number)
            answer = split(exchange(server.port, reload, timeout=60) or b"")
            return (0, b"") if answer is None else (answer[0], answer[2])

        def serves(which: int) -> bool:
            answer = split(exchange(server.port, requests[0]) or b"")
            return (
                answer is not None
                and answer[0] == 200
                and json.loads(answer[2])["model_version"] == str(good[which])
                and same(numbers_of("oip", answer[2]), expected[0][which], 0)
            )

        server = stablernn(scratch, root, "--model", f"{NAME}@{ALIAS}", environment=environment)
        with running(server), Memory(server) as memory:
            load = start(Load(server.port, requests, expected, clients=CLIENTS, seconds=3600))
            began = time.perf_counter()
            for number in range(RELOADS):
                which = (number + 1) % 2
                status, body = point(good[which])
                if status == 200:
                    found["reloads"] += 1
                else:
                    found["examples"].append(f"{status} {body[:200]!r}")
                found["not_swapped"] += not serves(which)
                status, body = point(bad[number % 2])
                if 400 <= status < 600 and b'"code"' in body:
                    found["failed_loads"] += 1
                    found["refusal"] = json.loads(body)["error"]
                else:
                    found["examples"].append(f"{status} {body[:200]!r}")
                found["not_kept"] += not serves(which)
            found["seconds"] = time.perf_counter() - began
            load.send_signal(signal.SIGTERM)
            seen = result(load)
    found |= {"load": seen, "memory": memory.facts(), "examples": found["examples"][:5]}
    print(
        f"reloads: {found['reloads']} and {found['failed_loads']} failed loads in {found['seconds']:.0f} s, "
        f"not swapped {found['not_swapped']}, not kept {found['not_kept']}, answers {seen['answers']}, wrong "
        f"{seen['wrong']}, lost {seen['lost']}, memory {found['memory']['grown_mb']:+.1f} MB",
        file=sys.stderr,
        flush=True,
    )
    return found
