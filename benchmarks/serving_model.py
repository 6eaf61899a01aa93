"""What every server of the comparison serves: the model, the requests, and the numbers that are right."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NAME = "speed"
INFER = f"/v2/models/{NAME}/infer"
CELL = "antisymmetric"
HIDDEN = 128
CLASSES = 10
LENGTHS = (784, 64)
REQUESTS = 32
"""Different sequences of each length, so that an answer handed to the wrong caller is seen."""


@dataclass(frozen=True)
class Case:
    """Sequences of one length (requests, time, 1), and the probabilities of each run alone (requests, classes)."""

    x: np.ndarray
    probabilities: np.ndarray


def publish(root: Path, *, seed: int = 0) -> int:
    """Export a model of random weights to the registry at ``root`` and return its version."""
    import torch

    from stablernn.export import export
    from stablernn.nn.models import Classifier
    from stablernn_registry import Registry

    torch.manual_seed(seed)
    model = Classifier(CELL, input_size=1, num_classes=CLASSES, hidden_size=HIDDEN)
    model.fit_scaling([np.random.default_rng(seed).normal(size=(200, 1)).astype(np.float32)])
    with tempfile.TemporaryDirectory() as folder:
        report = export(model.eval(), folder)
        fields: dict[str, Any] = {"signature": report.signature, "parity": report.parity, "task": "classify"}
        fields |= {"cell": CELL, "labels": [str(place) for place in range(CLASSES)], "features": ["x"]}
        return Registry(root).publish(NAME, report.files, fields).version


def graph(root: Path, file: str = "sequence.onnx", version: int = 1) -> bytes:
    """One of the ONNX files of a published version."""
    from stablernn_registry import Registry

    return Registry(root).get(f"{NAME}:{version}").read(file)


class Offline:
    """The ONNX file in ONNX Runtime, one thread: where the numbers come from that answers are held against."""

    def __init__(self, content: bytes, *, arena: bool = False) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # With its arena, as it comes, two threads in one session are slower than one.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
        self.content = content
        self.session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self.states = {
            state.name: state.shape[1:] for state in self.session.get_inputs() if state.name.startswith("state")
        }

    def feeds(self, x: np.ndarray, lengths: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """All inputs for ``x`` (batch, time, 1), from zero states."""
        rows, steps = x.shape[:2]
        zeros = {name: np.zeros((rows, *shape), np.float32) for name, shape in self.states.items()}
        return {"x": x, "lengths": np.full(rows, steps, np.int64) if lengths is None else lengths, **zeros}

    def run(self, x: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
        """Probabilities (batch, classes)."""
        answer: np.ndarray = self.session.run(["probabilities"], self.feeds(x, lengths))[0]
        return answer


def series(count: int, steps: int, seed: int) -> np.ndarray:
    """Noise (count, steps, 1) with five decimals, which JSON carries without loss."""
    return np.round(np.random.default_rng(seed).normal(size=(count, steps, 1)), 5).astype(np.float32)


class NativeOffline(Offline):
    """The same version in the engine ``native`` of the server, whose answers are held against its own numbers."""

    def __init__(self, root: Path) -> None:
        from stablernn_registry import Registry, Signature
        from stablernn_runtime.engines.select import open_version

        version = Registry(root).get(f"{NAME}:1")
        signature = Signature.model_validate(version.manifest.signature)
        super().__init__(version.read("sequence.onnx"))
        self.native = open_version(version, signature, "cpu", "native", 1).sequence

    def run(self, x: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
        """Probabilities (batch, classes)."""
        answer: np.ndarray = self.native.run(["probabilities"], self.feeds(x, lengths))[0]
        return answer


def cases(offline: Offline) -> dict[int, Case]:
    """The requests of each length."""
    found = {}
    for steps in LENGTHS:
        x = series(REQUESTS, steps, steps)
        found[steps] = Case(x, np.concatenate([offline.run(one[None]) for one in x]))
        distances = np.abs(found[steps].probabilities[:, None] - found[steps].probabilities).max(-1)
        assert distances[~np.eye(REQUESTS, dtype=bool)].min() > 1e-3, "two requests have nearly the same answer"
    return found


def http(path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> bytes:
    """A whole request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {"Content-Type": "application/json"}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def numbers(x: np.ndarray) -> list[float]:
    """As a client has them that reads decimals: five behind the point."""
    return [round(float(value), 5) for value in x.ravel()]


def oip_json(path: str, x: np.ndarray, **more: Any) -> bytes:
    """A request of the Open Inference Protocol with its numbers in JSON, for one sequence (time, 1)."""
    tensor = {"name": "x", "shape": [1, *x.shape], "datatype": "FP32", "data": numbers(x)}
    return http(path, json.dumps({"inputs": [tensor], "outputs": [{"name": "probabilities"}], **more}).encode())


def oip_binary_body(x: np.ndarray, **more: Any) -> tuple[bytes, int]:
    """Body and length of its JSON head of the protocol's binary form, for one sequence (time, 1)."""
    content = x.astype("<f4").tobytes()
    tensor = {"name": "x", "shape": [1, *x.shape], "datatype": "FP32", "parameters": {"binary_data_size": len(content)}}
    output = {"name": "probabilities", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [output], **more}).encode()
    return head + content, len(head)


def oip_binary(path: str, x: np.ndarray, **more: Any) -> bytes:
    """The same as a whole request."""
    body, head = oip_binary_body(x, **more)
    kind = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(head)}
    return http(path, body, kind)
