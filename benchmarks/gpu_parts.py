"""The parts that ``benchmarks/gpu.py`` measures on a GPU: each returns a document of its own."""

from __future__ import annotations

import copy
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
from torch import Tensor, nn

import stablernn as srn
from stablernn.engines import CUDAGraphEngine, list_engines, select_engine
from stablernn.engines.cuda_graph import LOOPED_RUNS
from stablernn.training import Progress, load_config, train
from stablernn_cli.bench import EnsembleState, Sizes
from stablernn_client import Client


class NotMeasured(Exception):
    """Something that a part needs is missing."""


# Every kernel of Triton, and CUDA graphs, against the loop in float64 on the CPU.

CHECKS_CELLS = ("rnn", "antisymmetric", "lipschitz", "lipschitz_rk2", "antisymmetric_g")
"""A cell of each kind of kernel of the engine ``triton``."""
SCAN_CELLS = ("lru", "mingru", "minlstm")
"""The cells of the engine ``scan``."""
TOLERANCES = {"triton": 2e-5, "triton-tf32": 2e-2, "triton-bf16": 1e-1, "scan": 2e-5, "cuda-graph": 1e-4}
"""Largest difference, relative to the largest entry of a tensor, by outputs, last state or any gradient."""
CHECKS_SIZES = ((128, 19, 50), (33, 5, 9), (200, 17, 9))
GRAPH_SIZES = (33, 5, 9)
"""Sizes at which every cell is run by the engine ``cuda-graph``."""
INTERPRETED_SIZES = ((17, 5, 3),)
"""Units, sequences and steps; matrices of 200 units do not stay on chip in float32."""
MOST_PROCESSES = 14


def measure_checks(has_cuda: bool) -> dict[str, Any]:
    """Return the largest error of each kernel."""
    if "triton" not in list_engines():
        raise NotMeasured("The package triton is not installed: pip install 'stablernn[gpu]'.")
    device = "cuda" if has_cuda else "cpu"
    jobs = [
        (cell, engine, *sizes, kind, device)
        for cell in CHECKS_CELLS
        for sizes in (CHECKS_SIZES if has_cuda else INTERPRETED_SIZES)
        for kind in ("equal", "lengths", "dt")
        for engine in ("triton", "triton-tf32", "triton-bf16")
        if not (kind == "dt" and cell == "rnn")
    ]
    if has_cuda:
        jobs += [
            (cell, "scan", *sizes, kind, device)
            for cell in SCAN_CELLS
            for sizes in CHECKS_SIZES
            for kind in ("equal", "lengths")
        ]
        jobs += [(cell, "cuda-graph", *GRAPH_SIZES, "equal", device) for cell in srn.list_cells()]
        jobs += [("lem", "cuda-graph", *GRAPH_SIZES, kind, device) for kind in ("lengths", "dt")]
        # Nearly all of the time goes to compiling kernels, one of each kind.
        with ProcessPoolExecutor(_processes(), get_context("spawn"), _use_one_thread) as pool:
            rows = list(pool.map(check, *zip(*jobs, strict=True)))
    else:
        rows = [check(*job) for job in jobs]
    return {"is_interpreted": not has_cuda, "passed": all(row["passed"] for row in rows), "rows": rows}


def _processes() -> int:
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1))


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def check(cell: str, engine: str, hidden: int, batch: int, time: int, kind: str, device: str) -> dict[str, Any]:
    """Compare values and all gradients of a layer.

    Args:
        cell: Its cell.
        engine: The engine.
        hidden: Units.
        batch: Sequences.
        time: Steps.
        kind: ``equal`` or unequal ``lengths``, or irregular steps, ``dt``.
        device: Where the engine runs.
    """
    torch.manual_seed(0)
    rnn = srn.StableRNN(cell, 3, hidden, max_dt=3.0 if kind == "dt" else None)
    x, dt = torch.randn(batch, time, 3), 3 * torch.rand(batch, time)
    lengths = torch.randint(0, time + 1, (batch,)) if kind == "lengths" else None
    row: dict[str, Any] = {"cell": cell, "engine": engine, "N": hidden, "B": batch, "T": time, "kind": kind}
    try:
        expected = _run(rnn, "loop", "cpu", torch.float64, x, lengths, dt if kind == "dt" else None)
        actual = _run(rnn, engine, device, torch.float32, x, lengths, dt if kind == "dt" else None)
    # One kernel that does not run says nothing of the next.
    except Exception as error:
        return {**row, "error": None, "passed": False, "message": f"{type(error).__name__}: {error}"[:500]}
    error = max(
        float((value - reference).abs().max() / reference.abs().max().clamp(min=1e-30))
        for value, reference in zip(actual, expected, strict=True)
    )
    return {**row, "error": float(f"{error:.2g}"), "passed": error <= TOLERANCES[engine]}


def _run(
    rnn: srn.StableRNN,
    engine: str,
    device: str,
    dtype: torch.dtype,
    x: Tensor,
    lengths: Tensor | None,
    dt: Tensor | None,
) -> list[Tensor]:
    """Return outputs, last state and all gradients, in float64 on the CPU."""
    # In evaluation mode, in which noise is not drawn.
    rnn = copy.deepcopy(rnn).to(device, dtype).eval()
    rnn.engine = engine
    x = x.to(device, dtype).requires_grad_()
    lengths, dt = None if lengths is None else lengths.to(device), None if dt is None else dt.to(x)
    # The engine 'cuda-graph' replays from the next run on what it recorded; of other inputs and weights than the last.
    for left in reversed(range(LOOPED_RUNS + 2 if engine == "cuda-graph" else 1)):
        with torch.no_grad():
            for tensor in (x, *rnn.parameters()) if engine == "cuda-graph" else ():
                tensor.mul_(2.0 if left else 0.5 ** (LOOPED_RUNS + 1))
        outputs, last = rnn(x, lengths=lengths, dt=dt)
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=dtype, device=device).view_as(outputs)
        state = (last,) if isinstance(last, Tensor) else tuple(last)
        loss = (outputs * weights).sum() + torch.stack([tensor.square().sum() for tensor in state]).sum()
        gradients = torch.autograd.grad(loss, [x, *rnn.parameters()], materialize_grads=True)
    if engine == "cuda-graph":
        selected = select_engine(engine, rnn.cells[0], x)
        if not (isinstance(selected, CUDAGraphEngine) and selected.count_recordings(rnn.cells[0])):
            raise RuntimeError("It could not be recorded.")
    return [tensor.detach().cpu().double() for tensor in (outputs, *state, *gradients)]


# Times of a training step (forward and backward) on a GPU by engine and peer.

STEPS_SIZES = tuple(
    Sizes(cell, hidden_size=hidden, batch_size=batch, length=steps)
    for cell, batch, steps, hidden in (
        ("antisymmetric", 128, 784, 128),
        ("lru", 128, 784, 128),
        ("mingru", 128, 784, 128),
        ("antisymmetric", 32, 784, 128),
        ("lipschitz", 128, 784, 128),
        ("antisymmetric", 1024, 256, 64),
        ("antisymmetric", 128, 256, 256),
        ("antisymmetric", 128, 256, 512),
        ("lem", 128, 784, 128),
        ("exprnn", 128, 784, 128),
    )
)
STEPS_SMALL_SIZES = (Sizes("antisymmetric", hidden_size=8, batch_size=2, length=3),)
STEPS_ENGINES = {
    **dict.fromkeys(("antisymmetric", "lipschitz"), ("triton", "triton-tf32", "triton-bf16", "cuda-graph")),
    **dict.fromkeys(("lru", "mingru"), ("scan", "cuda-graph")),
}
"""Engines of a cell besides the loop; of others ``cuda-graph``."""
STEPS_ROUNDS = 7
SECONDS = 100
"""Seconds after which no further size is begun."""

Step = Callable[[], object]


def measure_steps(has_cuda: bool) -> dict[str, Any]:
    """Return a table for each size: its rows in turn, round after round."""
    device, started = torch.device("cuda" if has_cuda else "cpu"), time.perf_counter()
    tables: dict[str, Any] = {}
    for sizes in STEPS_SIZES if has_cuda else STEPS_SMALL_SIZES:
        name = f"{sizes.cell} B={sizes.batch_size} T={sizes.length} N={sizes.hidden_size}"
        if time.perf_counter() - started > SECONDS:
            tables[name] = {"not_measured": f"{SECONDS} seconds had passed."}
            continue
        # The CPU takes a hundred times as long; one table shows it.
        tables[name] = steps_table(sizes, device, with_cpu=not tables)
    return {"is_interpreted": not has_cuda, "rounds": STEPS_ROUNDS, "tables": tables}


def steps_table(sizes: Sizes, device: torch.device, *, with_cpu: bool) -> dict[str, Any]:
    """Return the median and the range of milliseconds of each row, and why a row is missing."""
    rows: dict[str, Step] = {}
    missing: dict[str, str] = {}
    for name, build in builders(sizes, device, with_cpu=with_cpu).items():
        try:
            step = build()
            # The engine 'cuda-graph' records after some runs.
            for _ in range(LOOPED_RUNS + 1):
                step()
            _synchronize(device)
        # A row that cannot run is named, and the others are timed.
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            rows[name] = step
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(STEPS_ROUNDS):
        for name, step in rows.items():
            _synchronize(device)
            started = time.perf_counter()
            step()
            _synchronize(device)
            times[name].append(1e3 * (time.perf_counter() - started))
    figures = {
        name: {"ms": statistics.median(values), "ms_low": min(values), "ms_high": max(values)}
        for name, values in times.items()
    }
    return {
        "rows": {name: {key: round(value, 3) for key, value in row.items()} for name, row in figures.items()},
        "missing": missing,
    }


def builders(sizes: Sizes, device: torch.device, *, with_cpu: bool) -> dict[str, Callable[[], Step]]:
    """Return what makes each row."""
    x = torch.randn(sizes.batch_size, sizes.length, 1, device=device)
    rows: dict[str, Callable[[], Step]] = {
        f"engine {name}": lambda name=name: _training(EnsembleState(sizes, name).to(device), x)
        for name in STEPS_ENGINES.get(sizes.cell, ("cuda-graph",))
        if name in list_engines()
    }
    rows["engine loop"] = lambda: _training(EnsembleState(sizes, "loop").to(device), x)
    rows["nn.LSTM, float32"] = lambda: _training(_LSTM(sizes.hidden_size, allow_tf32=False).to(device), x)
    rows["nn.LSTM, tf32"] = lambda: _training(_LSTM(sizes.hidden_size, allow_tf32=True).to(device), x)
    if with_cpu:
        rows["CPU, engine auto"] = lambda: _training(EnsembleState(sizes).cpu(), x.cpu())
    return rows


class _LSTM(nn.Module):
    """Last state of torch's LSTM, which is cuDNN's on a GPU, with or without the rounding of operands to tf32."""

    def __init__(self, hidden: int, *, allow_tf32: bool) -> None:
        super().__init__()
        self.layer, self.allow_tf32 = nn.LSTM(1, hidden, batch_first=True), allow_tf32

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.layer(x)[1][0]
        return last[-1]


def _training(model: nn.Module, x: Tensor) -> Step:
    """Return a function that computes the gradients of all parameters."""
    parameters = list(model.parameters())

    def step() -> object:
        # The backward pass of cuDNN reads the same flag.
        allowed = getattr(model, "allow_tf32", torch.backends.cudnn.allow_tf32)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
            return torch.autograd.grad(model(x).square().sum(), parameters)

    return step


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# Training steps on one long sequence by engine.

LONG_ENGINES = {
    "rnn": ("shooting", "triton", "torch-rnn", "loop"),
    "gru": ("shooting", "torch-rnn", "loop"),
    "lru": ("scan", "loop"),
}
"""Engines of each cell. ``rnn`` and ``gru`` contract with the weights that they start from."""
LONG_LENGTHS = (4096, 65536)
LOOPED = {"rnn": 65536, "gru": 4096, "lru": 4096}
"""Steps up to which the loop is timed; it takes half a minute for 65,536 steps of a cell with gates."""
LONG_HIDDEN = 64
SMALL_LENGTHS, SMALL_HIDDEN = (256,), 8
LONG_ROUNDS = 5
SLOW = 2.0
"""Seconds of a step after which it is measured once."""


class _Sweeps(logging.Handler):
    """Keeps what the engine ``shooting`` says of its convergence."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def measure_long(has_cuda: bool) -> dict[str, Any]:
    """Return milliseconds of forward and backward pass by cell, length and engine, the engines in turn."""
    device = torch.device("cuda" if has_cuda else "cpu")
    sweeps, logger = _Sweeps(), logging.getLogger("stablernn.engines")
    logger.addHandler(sweeps)
    logger.setLevel(logging.INFO)
    rows = [
        _row_long(cell, length, LONG_HIDDEN if has_cuda else SMALL_HIDDEN, device)
        for cell in LONG_ENGINES
        for length in (LONG_LENGTHS if has_cuda else SMALL_LENGTHS)
    ]
    return {"rounds": LONG_ROUNDS, "rows": rows, "sweeps": sweeps.messages}


def _row_long(cell: str, length: int, hidden: int, device: torch.device) -> dict[str, Any]:
    sizes = Sizes(cell, hidden_size=hidden, batch_size=1, length=length)
    x = torch.randn(1, length, 1, device=device)
    # The interpreter of triton takes minutes for what other engines do in milliseconds.
    names = [
        name for name in LONG_ENGINES[cell] if name in list_engines() and (name != "triton" or device.type == "cuda")
    ]
    models, missing = {}, {}
    if length > LOOPED[cell]:
        names.remove("loop")
        missing["loop"] = "left out: it takes half a minute"
    times: dict[str, list[float]] = {}
    for name in names:
        model = EnsembleState(sizes, name).to(device)
        try:
            # A short sequence warms up the loop, whose graph grows with the length.
            _time_long(model, x[:, :256] if name == "loop" else x, device)
        # A row that cannot run is named, and the others are timed.
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            models[name], times[name] = model, []
    for _ in range(LONG_ROUNDS):
        for name, model in models.items():
            if not times[name] or times[name][0] < 1e3 * SLOW:
                times[name].append(_time_long(model, x, device))
    milliseconds = {name: [round(value, 2) for value in values] for name, values in times.items()}
    return {"cell": cell, "N": hidden, "T": length, "ms": milliseconds, "missing": missing}


def _time_long(model: EnsembleState, x: torch.Tensor, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started)


# Seconds of an epoch of ``stablernn.training.train`` on MNIST pixel by pixel.

TRAINING_CELLS = ("antisymmetric", "lru")
EPOCHS, BATCH = 3, 128


def measure_training(has_cuda: bool) -> dict[str, Any]:
    """Return the seconds of each epoch by cell; without CUDA of a few steps on ``digits``, which needs no files."""
    return {"runs": [measure_cell(cell, has_cuda) for cell in TRAINING_CELLS]}


def measure_cell(cell: str, has_cuda: bool) -> dict[str, Any]:
    """Return the figures of the training of a cell."""
    if has_cuda:
        folder = os.environ.get("STABLERNN_DATA", "")
        if not folder or not (Path(folder) / "mnist").is_dir():
            raise NotMeasured("STABLERNN_DATA names no folder with mnist.")
        settings = ["data.source=mnist", "training.device=cuda", f"training.epochs={EPOCHS}"]
        settings += [f"training.batch_size={BATCH}", "model.hidden_size=128", "model.patch_size=1"]
    else:
        settings = ["data.source=digits", "training.device=cpu", "training.max_steps=4", "model.hidden_size=8"]
    # When the first step of each epoch was done.
    begins: dict[int, float] = {}
    started = time.perf_counter()

    def report(progress: Progress) -> None:
        begins.setdefault(progress.epoch, time.perf_counter())

    with tempfile.TemporaryDirectory() as place:
        summary = train(load_config(None, [f"model.cell={cell}", *settings]), Path(place) / "run", progress=report)
    moments = [*begins.values(), time.perf_counter()]
    seconds = [round(end - begin, 2) for begin, end in zip(moments, moments[1:], strict=False)]
    return {
        "data": "mnist" if has_cuda else "digits",
        "cell": cell,
        "engine": summary["engine"],
        "epochs": summary["epochs"],
        "steps": summary["steps"],
        "seconds_of_all": round(time.perf_counter() - started, 1),
        # The last one contains what a run does in the end: scores, certificate, figures.
        "seconds_of_epochs": seconds,
        "accuracy": summary["metrics"]["test"]["accuracy"],
    }


# An exported graph by ONNX Runtime with CUDA and bound buffers.

ONNX_SIZES = ((1, 784, 128), (32, 784, 128), (256, 784, 128))
ONNX_SMALL_SIZES = ((2, 5, 8),)
ONNX_ROUNDS = 7


def measure_onnx(has_cuda: bool) -> dict[str, Any]:
    """Return milliseconds of a batch of sequences, and the difference from torch on the CPU.

    Raises:
        NotMeasured: If there is a GPU, and ONNX Runtime is built without CUDA.
        RuntimeError: If a session does not run by the provider that was asked for.
    """
    provider = "CUDAExecutionProvider" if has_cuda else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        raise NotMeasured(f"ONNX Runtime {ort.__version__} has no {provider}: pip install 'stablernn[cuda]'.")
    if has_cuda:
        ort.preload_dlls()
    sizes = ONNX_SIZES if has_cuda else ONNX_SMALL_SIZES
    with tempfile.TemporaryDirectory() as place:
        model = srn.Classifier("antisymmetric", 1, 10, sizes[0][2]).eval()
        srn.export(model, Path(place))
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # As in the server: TF32, the default of the provider, rounds operands to 10 bits, which 784 steps add up.
        settings = {"use_tf32": "0"} if has_cuda else {}
        session = ort.InferenceSession(str(Path(place) / "sequence.onnx"), options, providers=[(provider, settings)])
        # ONNX Runtime takes the CPU without an error where CUDA's libraries do not load.
        if session.get_providers()[0] != provider:
            raise RuntimeError(f"ONNX Runtime took {session.get_providers()[0]} in place of {provider}.")
        rows = [_time_onnx(session, model, batch, steps, has_cuda) for batch, steps, _ in sizes]
    return {"provider": provider, "rounds": ONNX_ROUNDS, "rows": rows}


def _time_onnx(session: ort.InferenceSession, model: Any, batch: int, steps: int, has_cuda: bool) -> dict[str, Any]:
    x = torch.randn(batch, steps, 1)
    binding, device = session.io_binding(), "cuda" if has_cuda else "cpu"
    values = {"x": x.numpy(), "lengths": np.full(batch, steps, dtype=np.int64)}
    for argument in session.get_inputs():
        array = values.get(argument.name)
        if array is None:
            # The first state; it is zero, and a flag that a sequence begins is too.
            array = np.zeros([batch if isinstance(size, str) else size for size in argument.shape], np.float32)
        binding.bind_ortvalue_input(argument.name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    for result in session.get_outputs():
        binding.bind_output(result.name, device)
    times = []
    for _ in range(ONNX_ROUNDS + 1):
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        times.append(1e3 * (time.perf_counter() - started))
    names = [result.name for result in session.get_outputs()]
    logits = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))["logits"]
    with torch.no_grad():
        expected, _ = model.run(x)
    reference = expected["logits"].numpy()
    difference = float(np.abs(logits - reference).max() / np.abs(reference).max())
    return {"B": batch, "T": steps, "ms": round(statistics.median(times[1:]), 3), "error": float(f"{difference:.2g}")}


# A version served by a server on a GPU, and the devices that ``auto`` chooses for it.

SERVING_ROUNDS = 7
BATCHES = (1, 32)
Array = npt.NDArray[Any]


def measure_serving(has_cuda: bool) -> dict[str, Any]:
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
                requests[device] = {str(rows): _time_serving(client, x[:rows]) for rows in BATCHES}
                probabilities[device] = _probabilities(client, x)
    difference = float(np.abs(np.subtract(*probabilities.values())).max()) if len(probabilities) > 1 else None
    return {
        "model": f"antisymmetric, {hidden} units, {steps} steps",
        "auto": doctor["models"][0],
        "rounds": SERVING_ROUNDS,
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


def _time_serving(client: Client, x: Array) -> float:
    times = []
    for _ in range(SERVING_ROUNDS + 1):
        started = time.perf_counter()
        _probabilities(client, x)
        times.append(1e3 * (time.perf_counter() - started))
    return round(statistics.median(times[1:]), 2)


MEASURES = {
    "checks": measure_checks,
    "steps": measure_steps,
    "long": measure_long,
    "training": measure_training,
    "onnx": measure_onnx,
    "serving": measure_serving,
}
"""The function of each part, which takes whether there is CUDA."""
