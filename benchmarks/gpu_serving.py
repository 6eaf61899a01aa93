"""A version served by a server on a GPU, and the devices that ``auto`` chooses for it, for ``benchmarks/gpu.py``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from gpu import NotMeasured

from stablernn_client import Client

ROUNDS = 7
BATCHES = (1, 32)
Array = npt.NDArray[Any]


def measure(has_cuda: bool) -> dict[str, Any]:
    """Return what ``auto`` chose and measured, and milliseconds of requests to a server on each device.

    Raises:
        NotMeasured: If there is a GPU, and ONNX Runtime is built without CUDA.
    """
    if has_cuda and "CUDAExecutionProvider" not in ort.get_available_providers():
        raise NotMeasured(f"ONNX Runtime {ort.__version__} has no CUDA: pip install 'stablernn[cuda]'.")
    hidden, steps = (128, 784) if has_cuda else (8, 64)
    with tempfile.TemporaryDirectory() as place:
        os.environ["STABLERNN_REGISTRY"] = f"{place}/registry"
        train = ["train", "--data", "mnist" if has_cuda else "digits", "--task", "classify", "--cell", "antisymmetric"]
        train += ["--hidden-size", str(hidden), "--set", "training.max_steps=2", "--set", "model.patch_stride=1"]
        train += ["--set", "model.patch_size=1", "--run-dir", f"{place}/run", "--json"]
        _stablernn(*train)
        _stablernn("export", f"{place}/run", "--name", "pixels", "--json")
        doctor = _stablernn("doctor", "--model", "pixels:1", "--json")
        x = np.random.default_rng(0).normal(size=(max(BATCHES), steps, 1)).astype(np.float32)
        requests, probabilities = {}, {}
        for device in ("cpu", "cuda") if has_cuda else ("cpu",):
            with _server(device) as client:
                requests[device] = {str(rows): _time(client, x[:rows]) for rows in BATCHES}
                probabilities[device] = _probabilities(client, x)
    difference = float(np.abs(np.subtract(*probabilities.values())).max()) if len(probabilities) > 1 else None
    return {
        "model": f"antisymmetric, {hidden} units, {steps} steps",
        "auto": doctor["models"][0],
        "rounds": ROUNDS,
        "request_ms": requests,
        "difference": difference,
    }


def _stablernn(*words: str) -> Any:
    """Run a command, and return the document that it prints."""
    process = subprocess.run([sys.executable, "-m", "stablernn_cli", *words], capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"stablernn {words[0]}: {process.stderr.strip().splitlines()[-1]}")
    return json.loads(process.stdout)


@contextmanager
def _server(device: str) -> Iterator[Client]:
    """Start a server on a free port, and return a client of it."""
    command = [sys.executable, "-m", "stablernn_cli", "serve", "--device", device, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            with Client(_first_document(process)["url"]) as client:
                yield client
        finally:
            process.terminate()


def _first_document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the document that a server prints when it is ready."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            document: dict[str, Any] = json.loads("".join(lines))
            return document
    raise RuntimeError("The server ended before it was ready.")


def _probabilities(client: Client, x: Array) -> Array:
    return client.infer("pixels", {"x": x}, outputs=["probabilities"])["probabilities"]


def _time(client: Client, x: Array) -> float:
    times = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        _probabilities(client, x)
        times.append(1e3 * (time.perf_counter() - started))
    return round(statistics.median(times[1:]), 2)
