"""Too little memory: a real arena of ONNX Runtime with a limit, in a process of its own, and engines that run out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine_helpers import environment
from published_models import Published
from stablernn_registry import GraphSignature, Signature
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.session import EngineFailure
from stablernn_runtime.errors import InputError, OutOfMemoryError
from stablernn_runtime.graph import CancellationToken, Graph, RunSize, describe_shortage, is_out_of_memory
from stablernn_runtime.run_batch import run_items, run_steps

LIMIT = 2 * 2**20

SERVE = """
import json, sys
import httpx
import numpy as np
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import OrtMemType

# The arena of every session, with a limit as that of a GPU.
info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
ort.create_and_register_allocator(info, ort.OrtArenaCfg({"max_mem": LIMIT, "arena_extend_strategy": 1}))

class Options(ort.SessionOptions):
    def __init__(self):
        super().__init__()
        self.add_session_config_entry("session.use_env_allocators", "1")

ort.SessionOptions = Options

from server_helpers import serve
from stablernn_server import Settings, create_app

settings = Settings(registry=sys.argv[1], models=("animals:1",), device="cpu")
answers = []
for server in serve(create_app(settings)):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        def infer(rows, steps):
            x = np.random.default_rng(0).normal(size=(rows, steps, 1)).astype(np.float32)
            tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}
            answer = client.post("/v2/models/animals/infer", json={"inputs": [tensor]})
            answers.append([answer.status_code, answer.json().get("code"), answer.json().get("error")])
            return answer
        infer(2, 10)
        words = infer(6000, 20).json()["error"].split("; ")[1].split()
        infer(int(words[0]), int(words[3]))
        infer(6000, 20)
        infer(2, 10)
print(json.dumps(answers))
""".replace("LIMIT", str(LIMIT))


@pytest.mark.slow
def test_a_server_that_runs_out_of_memory_says_what_fits_and_serves_on(published: Published) -> None:
    support = [path for path in sys.path if "support" in Path(path).parts]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {support!r}\n{SERVE}", str(published.root)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, large, fitting, repeated, last = json.loads(done.stdout.splitlines()[-1])
    assert [answer[0] for answer in (first, large, fitting, repeated, last)] == [200, 413, 200, 413, 200]
    assert large[1] == "too_large"
    assert large[2].startswith("Model 'animals:1' has too little memory for 6000 sequences of 20 time steps (")
    assert " bytes were asked for, " in large[2]
    assert large[2].endswith(" sequences of 20 time steps fit: send fewer or shorter series at a time.")
    assert repeated[2].split("; ")[1] == large[2].split("; ")[1]


class Limited:
    """A session that runs out of memory above a number of numbers in its main input, as ONNX Runtime reports it."""

    def __init__(self, session: object, largest: int) -> None:
        self.session, self.largest = session, largest
        self.sizes: list[tuple[int, ...]] = []

    def run(self, names: object, feeds: dict[str, np.ndarray], options: object = None, /) -> object:
        self.sizes.append(feeds["x"].shape[:2])
        if feeds["x"].size > self.largest:
            # The message of an arena with a limit, through bound values.
            raise EngineFailure("Error in execution: Available memory of 512 is smaller than requested bytes of 4096")
        return self.session.run(names, feeds, options)  # type: ignore[attr-defined]


def limited(model: ServedModel, graph: Graph, signature: GraphSignature | None, largest: int) -> Graph:
    assert signature is not None
    session = Limited(graph.session, largest)
    return Graph(signature, session, model.states, model.guard, model.ref, memory_limit=2**20)  # type: ignore[arg-type]


@pytest.fixture
def sequences(animals: ServedModel) -> Graph:
    signature = Signature.model_validate(animals.manifest.signature)
    return limited(animals, animals.sequence, signature.sequence, 100)


def run(model: ServedModel, graph: Graph, rows: int, steps: int) -> np.ndarray:
    item = model.prepare(graph, {"x": np.ones((rows, steps, 1), np.float32)}, ["logits"])
    (result,) = run_items(graph, [item], None)
    assert not isinstance(result, InputError)
    return result.outputs["logits"]


@pytest.mark.parametrize(
    ("rows", "steps", "fit"),
    [
        (30, 10, "7 sequences of 10 time steps fit"),
        (2, 80, "one sequence of 80 time steps fits"),
        (3, 1000, "one sequence of 62 time steps fits"),
    ],
)
def test_the_size_that_fits_was_run(animals: ServedModel, sequences: Graph, rows: int, steps: int, fit: str) -> None:
    with pytest.raises(OutOfMemoryError, match=re.escape(fit)):
        run(animals, sequences, rows, steps)
    session = sequences.session
    assert isinstance(session, Limited)
    count = len(session.sizes)
    assert count > 1
    assert np.prod(session.sizes[-1]) <= 100
    # The same request again does not search again; another one does.
    with pytest.raises(OutOfMemoryError, match=fit):
        run(animals, sequences, rows, steps)
    assert len(session.sizes) == count + 1
    with pytest.raises(OutOfMemoryError):
        run(animals, sequences, rows + 1, steps)
    assert len(session.sizes) > count + 2
    assert np.array_equal(run(animals, sequences, 2, 9), animals.run_numpy(np.ones((2, 9, 1), np.float32))["logits"])


def test_where_nothing_fits_no_size_is_named(animals: ServedModel, sequences: Graph) -> None:
    assert isinstance(sequences.session, Limited)
    sequences.session.largest = 0
    with pytest.raises(OutOfMemoryError, match=r"are left\); send fewer or shorter series at a time, or raise"):
        run(animals, sequences, 2, 2)
    assert sequences.session.sizes == [(2, 2), (1, 2), (1, 1)]


def test_a_search_can_be_ended(animals: ServedModel, sequences: Graph) -> None:
    from stablernn_runtime.errors import NotReadyError

    token = CancellationToken()
    session = sequences.session
    assert isinstance(session, Limited)
    session.largest = 0
    real = session.run

    def end_then_run(*arguments: object) -> object:
        token.set()
        return real(*arguments)  # type: ignore[arg-type]

    session.run = end_then_run  # type: ignore[method-assign]
    item = animals.prepare(sequences, {"x": np.ones((30, 10, 1), np.float32)}, ["logits"])
    with pytest.raises(NotReadyError):
        run_items(sequences, [item], token)
    assert len(session.sizes) == 1


def test_steps_of_too_many_streams(animals: ServedModel) -> None:
    signature = Signature.model_validate(animals.manifest.signature)
    steps = limited(animals, animals.step, signature.step, 16)
    item = animals.prepare_steps({"x": np.ones((20, 3, 1), np.float32)}, {})
    with pytest.raises(OutOfMemoryError, match="Model 'animals:1' has too little memory for one step of 20 streams"):
        run_steps(steps, [item], None)
    (result,) = run_steps(steps, [animals.prepare_steps({"x": np.ones((16, 3, 1), np.float32)}, {})], None)
    assert not isinstance(result, InputError)


@pytest.mark.parametrize(
    "message",
    [
        "std::bad_alloc",
        "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4096",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=x ; expr=cudaMalloc((void**)&p, size);",
    ],
)
def test_messages_of_failed_allocations_are_known(message: str) -> None:
    assert is_out_of_memory(EngineFailure(message))
    wrapper = RuntimeError("it failed")
    wrapper.__cause__ = EngineFailure(message)
    assert is_out_of_memory(wrapper)
    assert not is_out_of_memory(EngineFailure("no kernel image is available for execution on the device"))
    assert ("(4096 bytes were asked for)" in describe_shortage(EngineFailure(message), "m:1", RunSize(2, 3))) == (
        "requested buffer" in message
    )
