"""`serve`: a real process on a real port."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Workplace, first_document


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    ready: dict[str, Any]
    log: Path

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.ready['url']}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.ready['url']}{path}", timeout=20) as answer:
            return json.load(answer)


def start(workplace: Workplace, log: Path, *arguments: str) -> Server:
    with log.open("w") as stderr:
        process = subprocess.Popen(
            # importtime writes every module that is loaded to stderr.
            [sys.executable, "-X", "importtime", "-m", "stablernn_cli", "serve", "--port", "0", "--json", *arguments],
            cwd=workplace.folder,
            env=os.environ | workplace.environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    return Server(process, first_document(process.stdout), log)


@pytest.fixture(scope="module")
def server(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the whole registry."""
    running = start(trained, tmp_path_factory.mktemp("server") / "log")
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def test_forecasts_over_rest_are_those_of_predict(server: Server, trained: Workplace) -> None:
    rows = list(csv.DictReader(io.StringIO(trained.path("load.csv").read_text())))[-12:]
    series = [[float(row[name]) for name in ("heat", "power", "wind")] for row in rows]
    body = {"model": "load", "inputs": [{"series": series, "start_timestamp": rows[0]["ds"]}]}
    content = server.post("/v1/timeseries/forecast", body)["outputs"][0]["content"][0]
    predicted = trained.document("predict load --input load.csv")["predictions"]
    by_target = [[row["mean"] for row in predicted if row["target"] == name] for name in ("heat", "power")]
    assert [list(column) for column in zip(*content["mean_forecast"], strict=True)] == by_target


def test_classes_over_rest_are_those_of_predict(server: Server, trained: Workplace, tmp_path: Path) -> None:
    import numpy as np

    x = np.arange(64, dtype=np.float32).reshape(1, 64, 1) % 16
    np.savez(tmp_path / "one.npz", x=x)
    row = trained.document(f"predict digits --input {tmp_path / 'one.npz'}")["predictions"][0]
    body = {"model": "digits", "inputs": [{"series": x[0, :, 0].tolist()}]}
    content = server.post("/v1/timeseries/classify", body)["outputs"][0]["content"][0]
    assert content["label"] == row["label"]
    assert content["probabilities"] == {label: row[f"probability_{label}"] for label in map(str, range(10))}


def test_no_torch_in_the_process(server: Server) -> None:
    server.get("/v2")
    loaded = {
        line.rsplit("|", 1)[1].strip().partition(".")[0]
        for line in server.log.read_text().splitlines()
        if line.startswith("import time:")
    }
    assert {"onnxruntime", "fastapi", "stablernn_server", "stablernn_registry"} <= loaded
    assert not loaded & {"torch", "stablernn", "onnx", "polars", "matplotlib", "scipy"}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "form"), [(signal.SIGTERM, "text"), (signal.SIGINT, "json")])
def test_it_stops_when_asked(trained: Workplace, tmp_path: Path, number: signal.Signals, form: str) -> None:
    running = start(trained, tmp_path / "log", "--model", "digits:1", "--access-log", form)
    assert running.ready["models"] == ["digits:1"]
    running.process.send_signal(number)
    out, _ = running.process.communicate(timeout=30)
    assert running.process.returncode == 0
    assert out == ""
    lines = [line for line in running.log.read_text().splitlines() if not line.startswith("import time:")]
    assert not any("Traceback" in line for line in lines)
    if form == "json":
        # All lines, that of the missing state key among them.
        lines = [json.loads(line)["message"] for line in lines]
        assert lines[0].startswith("No state key is set")
    assert lines[-1] == "Stopped."


@pytest.mark.slow
def test_it_stops_while_it_opens_models(trained: Workplace, tmp_path: Path) -> None:
    """As the first process of a container it would not hear the signal without a handler of its own."""
    with (tmp_path / "log").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "stablernn_cli", "serve", "--port", "0"],
            cwd=trained.folder,
            env=os.environ | trained.environment,
            stderr=stderr,
        )
    deadline = time.monotonic() + 20
    while "| typer" not in (tmp_path / "log").read_text() or "onnxruntime" not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("import time:")]
    assert lines[-1] == "Stopped."
    assert not any("Traceback" in line for line in lines)


def test_a_port_in_use(trained: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = trained(f"serve --port {port}")
    assert result.sentence == f"Port {port} on 127.0.0.1 is in use. Choose another --port, or 0 for a free one."
    assert (result.code, result.out) == (1, "")


def test_options_come_from_the_environment_too(trained: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("STABLERNN_PORT", str(port))
        assert trained("serve").sentence.startswith(f"Port {port} on 127.0.0.1 is in use.")
    monkeypatch.setenv("STABLERNN_PORT", "0")
    monkeypatch.setenv("STABLERNN_DEVICE", "gpu")
    assert trained("serve").sentence.startswith("--device must be one of 'auto', 'cpu', 'cuda'")
    monkeypatch.delenv("STABLERNN_DEVICE")
    monkeypatch.setenv("STABLERNN_MODELS", "digits,gone")
    assert trained("serve").sentence.startswith("Unknown model 'gone' in the registry ")
