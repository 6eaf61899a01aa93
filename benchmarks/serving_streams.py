"""Streaming: a thousand streams over WebSockets, in frames of several steps, of several streams, and of one step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from serving_model import NAME, Offline, graph, series
from serving_process import running, stablernn
from serving_stream_load import Streaming, measure

Row = dict[str, Any]
STREAMS = 1000
SERIES = 32
STEPS = 4096
SHAPES = {
    "16 steps of one stream a frame": (STREAMS, 1, 16),
    "one step of 100 streams a frame": (STREAMS // 100, 100, 1),
    "one step of one stream a frame": (STREAMS, 1, 1),
}
"""Sockets, streams of each, steps in a frame."""
OFFERED = {"16 steps of one stream a frame": 40_000, "one step of 100 streams a frame": 40_000}
"""Steps a second that arrive while latencies are taken; 8,000 where a frame carries one."""


def step_by_step(offline: Offline, samples: np.ndarray) -> np.ndarray:
    """Probabilities after each step (series, steps, classes), by ``step.onnx``."""
    names = list(offline.states)
    states = offline.feeds(samples)
    found = []
    for at in range(samples.shape[1]):
        feeds = {"x": samples[:, at], **{name: states[name] for name in names}}
        answer, *after = offline.session.run(["probabilities", *(f"{name}_out" for name in names)], feeds)
        states = dict(zip(names, after, strict=True))
        found.append(answer)
    return np.stack(found, axis=1)


def streams(scratch: Path, registry: Path, seconds: float) -> dict[str, Row]:
    """Steps a second of each shape as fast as answers come, and latencies where steps arrive at a given rate."""
    samples = series(SERIES, STEPS, seed=1)
    np.save(scratch / "series.npy", samples)
    np.save(scratch / "outputs.npy", step_by_step(Offline(graph(registry, "step.onnx")), samples))
    found: dict[str, Row] = {}
    with running(stablernn(scratch, registry, "--model", f"{NAME}:1")) as server:
        for name, (sockets, wide, steps) in SHAPES.items():
            asked = Streaming(
                server.port,
                f"/v1/stream?model={NAME}&outputs=probabilities",
                str(scratch / "series.npy"),
                str(scratch / "outputs.npy"),
                sockets,
                wide,
                steps,
                seconds=seconds,
            )
            fastest = measure(asked)
            asked.rate = OFFERED.get(name, 8_000) / (wide * steps)
            found[name] = {"fastest": fastest, "paced": measure(asked)}
            paced = found[name]["paced"]
            print(
                f"streams, {name}: {fastest['steps_per_second']:.0f} steps/s; "
                f"at {paced['offered_steps_per_second']:.0f} steps/s p50 {paced['p50_ms']:.1f} ms, "
                f"p99 {paced['p99_ms']:.1f} ms; wrong or lost "
                f"{sum(one['wrong'] + one['lost'] for one in found[name].values())}",
                file=sys.stderr,
                flush=True,
            )
        found["server"] = {"rss_mb": server.rss_mb}
    return found
