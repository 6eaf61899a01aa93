"""A registry that changes under a running server, and what the tests of it ask that server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
from onnx import numpy_helper
from prometheus_client.parser import text_string_to_metric_families

from published_models import Published, copy_registry, copy_version
from server_helpers import Running, json_tensor, serve
from stablernn_registry import Version
from stablernn_server import Settings, create_app

STATE_KEY = "a key of state tokens for the servers of these tests"
SECONDS = 0.1
"""Interval at which the servers of these tests look up aliases."""


class Stock:
    """A registry of its own with versions 1 and 2 of ``animals``, the first in production, and ``flow``."""

    def __init__(self, root: Path, published: Published) -> None:
        self.registry = copy_registry(root, published)
        self.published = published

    def copy(self, version: Version, signature: dict[str, Any] | None = None, **files: bytes) -> Version:
        """Publish a copy of ``version`` with another signature, or with some files of another content."""
        return copy_version(self.registry, version, signature, **files)

    def broken(self, kind: str) -> int:
        """Publish a version of ``animals`` that cannot be served; its number."""
        first, second = (self.published.registry.get(f"animals:{number}") for number in (1, 2))
        if kind == "damaged":
            version = self.copy(first, sequence_onnx=first.read("sequence.onnx") + bytes([0x7A, 0]))
            path = version.path("sequence.onnx")
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1] + b"\1")
            return version.version
        if kind == "not finite":
            graph = onnx.load_model_from_string(first.read("sequence.onnx"))
            for tensor in graph.graph.initializer:
                value = numpy_helper.to_array(tensor)
                if value.dtype == np.float32 and value.ndim == 2:
                    tensor.CopyFrom(numpy_helper.from_array(np.full_like(value, np.nan), tensor.name))
            content = io.BytesIO()
            onnx.save_model(graph, content)
            return self.copy(first, sequence_onnx=content.getvalue()).version
        if kind == "of two models":
            return self.copy(first, step_onnx=second.read("step.onnx")).version
        # The last output of the step graph by another name, or without its last number.
        name, size = ("probs", 4) if kind == "of other outputs" else ("probabilities", 3)
        graph = onnx.load_model_from_string(first.read("step.onnx"))
        (node,) = (node for node in graph.graph.node if "probabilities" in node.output)
        node.output[list(node.output).index("probabilities")] = "before"
        graph.graph.initializer.append(numpy_helper.from_array(np.arange(size), "chosen"))
        graph.graph.node.append(onnx.helper.make_node("Gather", ["before", "chosen"], [name], axis=1))
        signature = first.manifest.model_dump()["signature"]
        (output,) = (output for output in graph.graph.output if output.name == "probabilities")
        (stated,) = (output for output in signature["step"]["outputs"] if output["name"] == "probabilities")
        output.name = stated["name"] = name
        output.type.tensor_type.shape.dim[1].dim_value = stated["shape"][1] = size
        return self.copy(first, signature, step_onnx=graph.SerializeToString()).version

    def point(self, number: int) -> None:
        self.registry.set_alias("animals", "production", number)

    @contextmanager
    def served(self, *models: str, **settings: Any) -> Iterator[tuple[Running, httpx.Client]]:
        defaults: dict[str, Any] = {"reload_seconds": SECONDS, "access_log": "off", "state_key": STATE_KEY}
        app = create_app(Settings(registry=self.registry.root, models=models, **(defaults | settings)))
        for running in serve(app):
            with httpx.Client(base_url=running.url, timeout=30) as client:
                yield running, client


SENTENCES = {
    "damaged": "is damaged: it has sha256",
    "not finite": "is not finite",
    "of two models": "of its step graph is not that of its sequence graph",
    "of other outputs": "its step graph has the output 'probs', which its sequence graph lacks (it has logits, ",
    "of another shape": "'probabilities' of its step graph has the shape (1, 3), that of its sequence graph (1, 4);",
}


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def infer(client: httpx.Client, model: str, x: np.ndarray) -> httpx.Response:
    body = {"inputs": [json_tensor("x", x)], "outputs": [{"name": "logits"}]}
    return client.post(f"/v2/models/{model}/infer", json=body)


def logits(answer: httpx.Response) -> tuple[str, np.ndarray]:
    """Return the version that answered, and its logits."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    output = body["outputs"][0]
    return body["model_version"], np.array(output["data"], np.float32).reshape(output["shape"])


def version(client: httpx.Client, model: str = "animals") -> str:
    return logits(infer(client, model, noise(1, 2, 1)))[0]


def index(client: httpx.Client) -> dict[tuple[str, int], tuple[str, str]]:
    rows = client.post("/v2/repository/index").json()
    return {(row["name"], int(row["version"])): (row["state"], row["reason"]) for row in rows}


def refusal(answer: httpx.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["code"], answer.json()["error"]


def loads(client: httpx.Client, model: str, version: int, result: str = "ok") -> int:
    """Return how often a version was loaded with a result, such as ``ok``."""
    labels = {"model": model, "version": str(version), "result": result}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "stablernn_loads_total" and sample.labels == labels:
                return int(sample.value)
    return 0
