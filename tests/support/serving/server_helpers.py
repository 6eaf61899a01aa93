"""Helpers for tests of the server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from published_models import Published as Published
from published_models import torch_answer as torch_answer
from stablernn_registry import Registry
from stablernn_server import Settings, create_app
from stablernn_server.server import Server

DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32"}


@dataclass(frozen=True)
class Running:
    app: FastAPI
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def serve(app: FastAPI) -> Iterator[Running]:
    """The application on a free port, in a thread, as the command runs it, until the iterator is closed."""
    ready = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        server = Server(app, app.state.context.settings, quiet=True, on_ready=ready.set)
        thread = threading.Thread(target=server.serve_on, args=(listener,), daemon=True)
        thread.start()
        assert ready.wait(20), "the server did not start in time"
        # `closing` ends the iterator by an exception where it waits.
        try:
            yield Running(app, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)


def json_tensor(name: str, value: np.ndarray) -> dict[str, Any]:
    """An input of the v2 protocol with its numbers in JSON."""
    return {"name": name, "shape": list(value.shape), "datatype": DATATYPES[value.dtype.name], "data": value.tolist()}


def served_client(registry: Registry, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a server of a registry, until the iterator is closed."""
    for running in serve(create_app(Settings(registry=registry.root, **settings))):
        with httpx.Client(base_url=running.url) as client:
            yield client


def raw_request(tensors: Mapping[str, np.ndarray], **entries: Any) -> tuple[bytes, dict[str, str]]:
    """The body of an inference request with the numbers of its inputs as raw bytes, and its header."""
    inputs = [
        {"name": name, "shape": list(x.shape), "datatype": DATATYPES[x.dtype.name]}
        | {"parameters": {"binary_data_size": x.nbytes}}
        for name, x in tensors.items()
    ]
    head = json.dumps({"inputs": inputs, **entries}).encode()
    return b"".join([head, *(x.tobytes() for x in tensors.values())]), {
        "Inference-Header-Content-Length": str(len(head))
    }
