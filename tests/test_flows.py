"""The walks of docs/background/architecture.md name the files that a tracer finds, in the order of first calls."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

import stablernn
from flow_tracer import ROOT, FlowTracer, in_all_but_one
from server_helpers import serve
from stablernn.certificates.projection import project
from stablernn.data import load_data
from stablernn.nn.models import SequenceModel
from stablernn.training.build import create_model, create_trainer
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config
from stablernn.training.tasks import task_for
from stablernn_registry import Registry
from stablernn_server import Settings, create_app
from stablernn_server.batching import dispatch

MODEL_CODE = (
    "stablernn/bounds/",
    "stablernn/cells/",
    "stablernn/engines/",
    "stablernn/nn/",
    "stablernn/param",
    "stablernn/transforms",
    "stablernn/buffers",
)
"""The model itself, which an export calls again and again: the first walk has these files."""
TRANSPORT = tuple(
    f"server/stablernn_server/{name}" for name in ("transport/", "server.py", "supervisor.py", "log_writer.py")
)
"""Files below the application: connections and the process."""

SAMPLE = [[0.5, 1.0]] * 3
"""A sample of a stream: a patch of three steps."""


class NoRecorder:
    """Keeps nothing of a run."""

    def record(self, line: dict[str, Any]) -> None: ...

    def save(self, name: str, checkpoint: Any) -> None: ...


@pytest.fixture
def tracer() -> Iterator[FlowTracer]:
    with FlowTracer().installed() as tracer:
        yield tracer


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of hourly values."""
    path = tmp_path_factory.mktemp("table") / "load.csv"
    values = np.random.default_rng(0).normal(size=(400, 2)).round(3)
    start = datetime(2024, 1, 1)
    rows = [f"{(start + timedelta(hours=hour)).isoformat()},{load},{heat}" for hour, (load, heat) in enumerate(values)]
    path.write_text("\n".join(["ds,y,heat", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def config(source: Path) -> Config:
    return Config.model_validate(
        {"data": {"source": str(source)}, "task": {"horizon": 6}, "model": {"cell": "lipschitz", "hidden_size": 8}}
    )


@pytest.fixture(scope="module")
def model(source: Path, config: Config) -> SequenceModel:
    data = load_data(source, horizon=6)
    model = create_model(resolve(config, task_for(data)), data)
    # As training leaves it: a certified model has balls that its states are compared with.
    for cell in model.rnn.cells:
        project(cell, 1e-3)
    # Which engines are asked before it depends on whether the one of `native` is installed.
    model.rnn.use_engine("fused")
    return model


def walk(title: str) -> list[str]:
    """The files that a walk of the tour names, in its order."""
    text = (ROOT / "docs" / "background" / "architecture.md").read_text()
    section = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE)
    assert section is not None, title
    steps = re.search(r"^1\. .*?(?=\n\n|\Z)", section[1], re.DOTALL | re.MULTILINE)
    assert steps is not None, title
    return re.findall(r"`([\w/]+\.py)`", steps[0])


def in_tour(files: list[str]) -> list[str]:
    """The files as the tour writes them: without the folder of a package, and without the package that a walk is in."""
    names = (re.sub(r"^(\w+/(?=stablernn_)|stablernn/)", "", name) for name in files)
    return [name.removeprefix("stablernn_server/") for name in names]


def left_out(files: list[str], folders: tuple[str, ...]) -> list[str]:
    return [name for name in files if not name.startswith(folders)]


def test_from_a_row_of_a_csv_file_to_a_gradient(
    tracer: FlowTracer, source: Path, config: Config, model: SequenceModel
) -> None:
    data = load_data(source, horizon=6)
    settings = resolve(config, task_for(data))
    trainer = create_trainer(NoRecorder(), settings, task_for(data), model)

    def step() -> None:
        trainer._minibatches.shuffle(torch.Generator())
        trainer._step(trainer._draw(0))

    step()
    with tracer.record():
        load_data(source, horizon=6)
        step()
    assert all(parameter.grad is not None for parameter in model.rnn.parameters())
    assert in_tour(tracer.files) == walk("From a row of a CSV file to a gradient")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, model: SequenceModel) -> tuple[Registry, list[str]]:
    """A registry with a version of the model, and the files that the export and its publication passed."""
    folder = tmp_path_factory.mktemp("export")
    registry = Registry(folder / "registry")
    tracer = FlowTracer()
    with tracer.installed(), tracer.record():
        report = stablernn.export(model.eval(), folder / "files")
        fields = {
            "task": "forecast",
            "cell": "lipschitz",
            "horizon": 6,
            "features": ["y", "heat"],
            "targets": ["y"],
            "quantiles": model.config()["quantiles"],
            "signature": report.signature,
            "parity": report.parity,
            "certificate": report.certificate,
        }
        registry.publish("load", report.files, fields)
    return registry, tracer.files


@pytest.mark.slow
def test_from_an_export_to_a_certificate_in_a_manifest(exported: tuple[Registry, list[str]]) -> None:
    registry, files = exported
    assert registry.get("load:1").manifest.certificate is not None
    assert in_tour(left_out(files, MODEL_CODE)) == walk("From an export to a certificate in a manifest")


class Client:
    """One connection to a server; head and body of a request arrive together, so that each takes the same way."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=30)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return the body of its response."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        with http.client.HTTPResponse(self.socket, method="POST") as response:
            response.begin()
            text = response.read()
        assert response.status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer


@pytest.fixture
def client(
    tracer: FlowTracer, exported: tuple[Registry, list[str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client of a server whose threads are traced."""
    # How long the last runs took decides whether one is made on the event loop; here all are made on threads.
    monkeypatch.setattr(dispatch, "INLINE_NS", -1)
    monkeypatch.setattr(dispatch, "INLINE_ALONE_NS", -1)
    settings = Settings(registry=exported[0].root, models=("load",), state_key="a key of at least thirty-two bytes")
    with contextmanager(serve)(create_app(settings)) as running:
        url = urlsplit(running.url)
        assert url.hostname is not None
        assert url.port is not None
        client = Client(url.hostname, url.port)
        with client.socket:
            yield client


def trace_requests(tracer: FlowTracer, client: Client, path: str, body: dict[str, Any]) -> list[str]:
    """The files that each of several requests passes, or all but one, after some that warm the server up."""
    traces = []
    for number in range(14):
        with tracer.record("server/stablernn_server/http/request.py"):
            client.post(path, body)
            # The server records the request after it has answered.
            time.sleep(0.05)
        if number >= 5:
            traces.append(tracer.files)
    return left_out(in_all_but_one(traces), TRANSPORT)


@pytest.mark.slow
def test_from_an_http_request_to_its_answer(tracer: FlowTracer, client: Client) -> None:
    x = {"name": "x", "shape": [1, 3, 2], "datatype": "FP32", "data": [0.5] * 6}
    files = trace_requests(tracer, client, "/v2/models/load/infer", {"inputs": [x]})
    assert in_tour(files) == walk("From an HTTP request to its answer")


@pytest.mark.slow
def test_a_step_of_a_stream_with_a_state_token(tracer: FlowTracer, client: Client) -> None:
    first = client.post("/v1/step", {"model": "load", "values": SAMPLE})
    body = {"state_token": first["state_token"], "values": SAMPLE}
    files = trace_requests(tracer, client, "/v1/step", body)
    assert in_tour(files) == walk("A step of a stream with a state token")
