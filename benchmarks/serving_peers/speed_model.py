"""What every peer shares: the same ONNX file in ONNX Runtime, sequences in, class probabilities out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

CLASSES = 10
MAX_BATCH = 16


class Model:
    """One session with one thread inside a run and no spinning, as ours has it.

    Args:
        graph: The ONNX file, or its content.
        arena: Use the runtime's arena.
    """

    def __init__(self, graph: str | bytes, *, arena: bool = True) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
        self.session: Any = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        inputs = self.session.get_inputs()
        self.states = {state.name: state.shape[1:] for state in inputs if state.name.startswith("state")}

    def feeds(self, x: np.ndarray, lengths: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """All inputs for sequences (batch, time, 1), from zero states."""
        rows, steps = x.shape[:2]
        zeros = {name: np.zeros((rows, *shape), np.float32) for name, shape in self.states.items()}
        lengths = np.full(rows, steps, np.int64) if lengths is None else lengths
        return {"x": np.ascontiguousarray(x, np.float32), "lengths": lengths, **zeros}

    def run(self, x: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
        """Probabilities (batch, classes) of sequences (batch, time, 1)."""
        return np.asarray(self.session.run(["probabilities"], self.feeds(x, lengths))[0])

    def run_many(self, sequences: list[np.ndarray]) -> np.ndarray:
        """The same for sequences (time, 1) of any lengths."""
        lengths = np.array([len(one) for one in sequences], np.int64)
        x = np.zeros((len(sequences), lengths.max(), *sequences[0].shape[1:]), np.float32)
        for place, one in enumerate(sequences):
            x[place, : len(one)] = one
        return self.run(x, lengths)


class Batcher:
    """Runs what waits together, up to 16 sequences of one length, on a thread beside the event loop."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.waiting: list[tuple[np.ndarray, asyncio.Future[np.ndarray]]] = []
        self.thread = ThreadPoolExecutor(1)
        self.busy = False

    async def run(self, x: np.ndarray) -> np.ndarray:
        """Probabilities (1, classes) of one sequence (1, time, 1)."""
        future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self.waiting.append((x, future))
        if not self.busy:
            self._next()
        return await future

    def _next(self) -> None:
        shape = self.waiting[0][0].shape
        batch = [item for item in self.waiting if item[0].shape == shape][:MAX_BATCH]
        taken = {id(item) for item in batch}
        self.waiting = [item for item in self.waiting if id(item) not in taken]
        self.busy = True
        work = asyncio.get_running_loop().run_in_executor(
            self.thread, self.model.run, np.concatenate([x for x, _ in batch])
        )
        work.add_done_callback(lambda done: self._finish(batch, done))

    def _finish(self, batch: list[tuple[np.ndarray, asyncio.Future[np.ndarray]]], done: Any) -> None:
        self.busy = False
        if self.waiting:
            self._next()
        for place, (_, future) in enumerate(batch):
            if future.done():
                continue
            if done.exception() is not None:
                future.set_exception(done.exception())
            else:
                future.set_result(done.result()[place : place + 1])


def binary_input(body: bytes, head: int) -> np.ndarray:
    """The one tensor of an Open Inference Protocol request whose JSON head has ``head`` bytes."""
    shape = json.loads(body[:head])["inputs"][0]["shape"]
    return np.frombuffer(body, np.float32, offset=head).reshape(shape)


def binary_answer(probabilities: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """Body and headers of the answer in the same protocol."""
    content = probabilities.astype(np.float32).tobytes()
    about = {"name": "probabilities", "datatype": "FP32", "shape": list(probabilities.shape)}
    about["parameters"] = {"binary_data_size": len(content)}
    head = json.dumps({"model_name": "speed", "model_version": "1", "outputs": [about]}).encode()
    kind = {"content-type": "application/octet-stream"}
    return head + content, {**kind, "inference-header-content-length": str(len(head))}


def arguments() -> tuple[str, int]:
    """Model file and port from the command line."""
    return sys.argv[1], int(sys.argv[2])


def become(program: str, *words: str, **variables: str) -> None:
    """Turn this process into a program of its environment, with this folder to import from."""
    path = Path(sys.executable).parent / program
    os.chdir(Path(__file__).parent)
    os.execve(path, [str(path), *words], {**os.environ, **variables})
