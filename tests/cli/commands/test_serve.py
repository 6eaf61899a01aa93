"""`serve`: a real process on a real port."""

from __future__ import annotations

import concurrent.futures
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


def test_it_says_where_it_is_and_what_it_serves(server: Server) -> None:
    assert server.ready["models"] == ["digits:1", "load:1"]
    assert server.ready["pid"] == server.process.pid
    assert server.get("/v2/health/ready")


def test_forecasts_over_rest_are_those_of_predict(server: Server, trained: Workplace) -> None:
    rows = list(csv.DictReader(io.StringIO(trained.path("load.csv").read_text())))[-12:]
    series = [[float(row[name]) for name in ("heat", "power", "wind")] for row in rows]
    body = {"model": "load", "inputs": [{"series": series, "start_timestamp": rows[0]["ds"]}]}
    content = server.post("/v1/timeseries/forecast", body)["outputs"][0]["content"][0]
    predicted = trained.ok("-q", "predict", "load", "--input", "load.csv", "--json").json["predictions"]
    by_target = [[row["mean"] for row in predicted if row["target"] == name] for name in ("heat", "power")]
    assert [list(column) for column in zip(*content["mean_forecast"], strict=True)] == by_target


def test_classes_over_rest_are_those_of_predict(server: Server, trained: Workplace, tmp_path: Path) -> None:
    import numpy as np

    x = np.arange(64, dtype=np.float32).reshape(1, 64, 1) % 16
    np.savez(tmp_path / "one.npz", x=x)
    row = trained.ok("-q", "predict", "digits", "--input", tmp_path / "one.npz", "--json").json["predictions"][0]
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


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["SIGTERM", "SIGINT"]
)
def test_it_stops_when_asked(trained: Workplace, tmp_path: Path, number: signal.Signals) -> None:
    running = start(trained, tmp_path / "log", "--model", "digits:1")
    assert running.ready["models"] == ["digits:1"]
    running.process.send_signal(number)
    out, _ = running.process.communicate(timeout=30)
    assert running.process.returncode == 0
    assert out == ""
    lines = [line for line in running.log.read_text().splitlines() if not line.startswith("import time:")]
    assert lines[-1] == "Stopped."
    assert not any("Traceback" in line for line in lines)


@pytest.mark.slow
def test_a_long_inference_does_not_hold_the_stop(
    trained: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets a 503 in our shape when the grace is over, and the process is gone before Docker kills it."""
    steps = 40_000_000
    monkeypatch.setenv("STABLERNN_MAX_STEPS", str(steps))
    monkeypatch.setenv("STABLERNN_MAX_BODY_BYTES", str(2**30))
    monkeypatch.setenv("STABLERNN_MAX_ELEMENTS", str(2**30))
    running = start(trained, tmp_path / "log", "--model", "digits:1")
    size = 4 * steps
    tensor = {"name": "x", "shape": [1, steps, 1], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(
        f"{running.ready['url']}/v2/models/digits/infer",
        head + bytes(size),
        {"Inference-Header-Content-Length": str(len(head))},
    )

    def ask() -> tuple[int, Any]:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        return caught.value.code, json.load(caught.value)

    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        socket.create_connection(("127.0.0.1", int(running.ready["url"].rpartition(":")[2]))) as unfinished,
    ):
        unfinished.sendall(b"POST /v1/timeseries/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{")
        answer = pool.submit(ask)
        time.sleep(4)
        assert not answer.done()
        started = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        out, _ = running.process.communicate(timeout=30)
        assert time.monotonic() - started < 10
        assert answer.result() == (
            503,
            {
                "error": "The server is shutting down and did not finish this request; send it again.",
                "code": "not_ready",
            },
        )
    assert (running.process.returncode, out) == (0, "")


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
        result = trained("serve", "--port", port)
    assert result.sentence == f"Port {port} on 127.0.0.1 is in use. Choose another --port, or 0 for a free one."
    assert (result.code, result.out) == (1, "")


def test_an_address_that_is_not_here(trained: Workplace) -> None:
    # 192.0.2.0/24 is kept for documentation: no machine has such an address.
    result = trained("serve", "--host", "192.0.2.1", "--port", 0, "--auth", "off")
    assert result.sentence == (
        "Port 0 on 192.0.2.1 cannot be used (Cannot assign requested address). Choose another --port, or 0 for a free "
        "one."
    )
    assert result.code == 1


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


def test_nothing_to_serve(empty: Workplace) -> None:
    result = empty("serve", "--port", 0)
    assert result.sentence == (f"The registry {empty.registry} holds no models; publish one with 'stablernn export'.")
    assert (result.code, result.out) == (1, "")


@pytest.mark.slow
def test_estimates_of_streams_are_turned_on_by_option_or_environment(
    trained: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(trained, tmp_path / "log", "--model", "load", "--adaptive-intervals")
    try:
        answer = running.post("/v1/step", {"model": "load", "values": [1.0, 2.0, 3.0]})
    finally:
        running.process.kill()
        running.process.communicate()
    (output,) = answer["outputs"]
    # Nothing has been scored yet.
    assert output["adaptive_quantiles"] == output["quantiles"]
    refused = trained("serve", "--port", 0, "--model", "load", "--drift-false-alarms", 0.001)
    assert refused.code == 1
    assert refused.sentence.startswith("'load:1' cannot be served with a test for drift: its certificate proves no ")
    monkeypatch.setenv("STABLERNN_ADAPTIVE_INTERVALS", "true")
    assert trained("serve", "--port", 0, "--model", "digits").sentence.startswith(
        "'digits:1' cannot be served with adaptive intervals: it is for 'classify', and only forecasts have intervals."
    )
