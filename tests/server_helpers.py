"""What the server's tests share and import."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI

from stablernn.models import SequenceModel
from stablernn_registry import Registry

DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32"}


@dataclass(frozen=True)
class Published:
    """What the tests serve, and the torch models to compare with, by reference."""

    root: Path
    torch_models: dict[str, SequenceModel]

    @property
    def registry(self) -> Registry:
        return Registry(self.root)


@dataclass(frozen=True)
class Running:
    app: FastAPI
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def serve(app: FastAPI) -> Iterator[Running]:
    """The application on a free port, in a thread, until the iterator is closed."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.01)
    yield Running(app, server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join(20)


def torch_answer(model: SequenceModel, x: np.ndarray, lengths: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """What the torch model itself says."""
    with torch.no_grad():
        outputs, _ = model.run(torch.from_numpy(x), None if lengths is None else torch.from_numpy(lengths))
    return {name: value.numpy() for name, value in outputs.items()}


def json_tensor(name: str, value: np.ndarray) -> dict[str, Any]:
    """An input of the v2 protocol with its numbers in JSON."""
    return {"name": name, "shape": list(value.shape), "datatype": DATATYPES[value.dtype.name], "data": value.tolist()}
