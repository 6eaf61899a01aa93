"""Checks and times the engines of training, whole runs and ONNX Runtime on a GPU.

    STABLERNN_DATA=... python benchmarks/gpu.py          # all of it, about five minutes on one H200
    python benchmarks/gpu.py --only checks --only steps
    python benchmarks/gpu.py --page                      # prints the tables of the results, and measures nothing

Results are ``benchmarks/results/gpu.json``, from which the tables of ``docs/guides/gpu.md`` are written, or another
FILE; without CUDA ``gpu.json`` in the current folder.

Each part runs in a process of its own, so that a failure, even one that leaves the GPU unusable, is recorded with its
message and the next part runs. What a part lacks, such as the package triton, a dataset or a provider of ONNX Runtime,
is recorded as not measured. Without CUDA the same parts run at small sizes, the kernels in Triton's interpreter and
ONNX Runtime on the CPU, and the results say so.
"""

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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import Row, facts, log, read_results, spread, stored, table, write_results

STORED = stored("gpu")
WITHOUT_CUDA = Path("gpu.json")
"""What a machine without CUDA writes, whose results must not take the place of those of a GPU."""
PARTS = {"checks": 120, "steps": 110, "long": 80, "training": 110, "onnx": 50, "serving": 80}
"""The parts, and the seconds after which each is stopped."""
PACKAGES = ("torch", "triton", "onnxruntime-gpu", "numpy")
ROUNDS = 7

Run = Callable[[], object]


class NotMeasured(Exception):
    """Something that a part needs is missing."""


def error_text(error: Exception) -> str:
    """Return the class and the beginning of the message of an error."""
    return f"{type(error).__name__}: {error}"[:500]


def time_rows(
    rows: Mapping[str, Run], rounds: int, warm_runs: int = 1
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return milliseconds of each row, round after round, and why a row could not run: others are timed then.

    A row whose first round takes more than two seconds has no further ones.
    """
    import torch

    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else time.perf_counter
    times: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for name, run in rows.items():
        try:
            for _ in range(warm_runs):
                run()
            synchronize()
        except Exception as error:
            missing[name] = error_text(error)
        else:
            times[name] = []
    for _ in range(rounds):
        for name, values in times.items():
            if values and values[0] > 2e3:
                continue
            synchronize()
            started = time.perf_counter()
            rows[name]()
            synchronize()
            values.append(round(1e3 * (time.perf_counter() - started), 3))
    return times, missing


# Every kernel of Triton, and CUDA graphs, against the loop in float64 on the CPU.

KERNEL_CELLS = ("rnn", "antisymmetric", "lipschitz", "lipschitz_rk2", "antisymmetric_g")
"""A cell of each kind of kernel of the engine ``triton``."""
SCAN_CELLS = ("lru", "mingru", "minlstm")
"""The cells of the engine ``scan``."""
TOLERANCES = {"triton": 2e-5, "triton-tf32": 2e-2, "triton-bf16": 1e-1, "scan": 2e-5, "cuda-graph": 1e-4}
"""Largest difference, relative to the largest entry of a tensor, by outputs, last state or any gradient."""


class Check(NamedTuple):
    """A layer to compare: units, sequences, steps; ``equal`` or unequal ``lengths``, or irregular steps, ``dt``."""

    cell: str
    engine: str
    N: int
    B: int
    T: int
    kind: str


def all_checks(has_cuda: bool) -> Iterator[Check]:
    """Yield what is compared."""
    from stablernn import list_cells

    # Matrices of 200 units do not stay on chip in float32.
    sizes = ((128, 19, 50), (33, 5, 9), (200, 17, 9)) if has_cuda else ((17, 5, 3),)
    engines = ("triton", "triton-tf32", "triton-bf16")
    cells = {**dict.fromkeys(KERNEL_CELLS, engines), **dict.fromkeys(SCAN_CELLS if has_cuda else (), ("scan",))}
    for cell, names in cells.items():
        for size in sizes:
            for kind in ("equal", "lengths", "dt"):
                if not (kind == "dt" and cell in ("rnn", *SCAN_CELLS)):
                    yield from (Check(cell, engine, *size, kind) for engine in names)
    if has_cuda:
        yield from (Check(cell, "cuda-graph", 33, 5, 9, "equal") for cell in list_cells())
        yield from (Check("lem", "cuda-graph", 33, 5, 9, kind) for kind in ("lengths", "dt"))


def measure_checks(has_cuda: bool) -> Row:
    """Return the largest error of each kernel."""
    from stablernn.engines import list_engines

    if "triton" not in list_engines():
        raise NotMeasured("The package triton is not installed: pip install 'stablernn[gpu]'.")
    # Nearly all of the time goes to compiling kernels, one of each kind.
    processes = max(1, min(14, len(os.sched_getaffinity(0)) - 1)) if has_cuda else 1
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        rows = list(pool.map(check, all_checks(has_cuda)))
    return {"is_interpreted": not has_cuda, "passed": all(row["passed"] for row in rows), "rows": rows}


def check(job: Check) -> Row:
    """Compare values and all gradients of a layer."""
    import torch

    from stablernn import StableRNN

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rnn = StableRNN(job.cell, 3, job.N, max_dt=3.0 if job.kind == "dt" else None)
    x, dt = torch.randn(job.B, job.T, 3), 3 * torch.rand(job.B, job.T)
    lengths = torch.randint(0, job.T + 1, (job.B,))
    inputs = {"lengths": lengths} if job.kind == "lengths" else {"dt": dt} if job.kind == "dt" else {}
    row: Row = job._asdict()
    try:
        expected = _run(rnn, "loop", "cpu", torch.float64, x, **inputs)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        actual = _run(rnn, job.engine, device, torch.float32, x, **inputs)
    # One kernel that does not run says nothing of the next.
    except Exception as error:
        return {**row, "error": None, "passed": False, "message": error_text(error)}
    error = max(
        float((value - reference).abs().max() / reference.abs().max().clamp(min=1e-30))
        for value, reference in zip(actual, expected, strict=True)
    )
    return {**row, "error": float(f"{error:.2g}"), "passed": error <= TOLERANCES[job.engine]}


def _run(rnn: Any, engine: str, device: str, dtype: Any, x: Any, lengths: Any = None, dt: Any = None) -> list[Any]:
    """Return outputs, last state and all gradients, in float64 on the CPU."""
    import torch

    from stablernn.engines import CUDAGraphEngine, select_engine
    from stablernn.engines.cuda_graph import LOOPED_RUNS

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
        state = (last,) if isinstance(last, torch.Tensor) else tuple(last)
        loss = (outputs * weights).sum() + torch.stack([tensor.square().sum() for tensor in state]).sum()
        gradients = torch.autograd.grad(loss, [x, *rnn.parameters()], materialize_grads=True)
    if engine == "cuda-graph":
        selected = select_engine(engine, rnn.cells[0], x)
        if not (isinstance(selected, CUDAGraphEngine) and selected.count_recordings(rnn.cells[0])):
            raise RuntimeError("It could not be recorded.")
    return [tensor.detach().cpu().double() for tensor in (outputs, *state, *gradients)]


# Times of a training step (forward and backward) on a GPU by engine and peer.

STEP_SIZES = (
    ("antisymmetric", 128, 128, 784),
    ("lru", 128, 128, 784),
    ("mingru", 128, 128, 784),
    ("antisymmetric", 128, 32, 784),
    ("lipschitz", 128, 128, 784),
    ("antisymmetric", 64, 1024, 256),
    ("antisymmetric", 256, 128, 256),
    ("antisymmetric", 512, 128, 256),
    ("lem", 128, 128, 784),
    ("exprnn", 128, 128, 784),
)
"""Cell, units, sequences and steps."""
STEP_ENGINES = {
    **dict.fromkeys(("antisymmetric", "lipschitz"), ("triton", "triton-tf32", "triton-bf16", "cuda-graph")),
    **dict.fromkeys(("lru", "mingru"), ("scan", "cuda-graph")),
}
"""Engines of a cell besides the loop; of others ``cuda-graph``."""
SECONDS = 100
"""Seconds after which no further size is begun."""


def gradient_step(model: Any, x: Any, allow_tf32: bool | None = None) -> Run:
    """Return a function that computes the gradients of all parameters."""
    import torch

    parameters = list(model.parameters())
    flags = nullcontext if allow_tf32 is None else lambda: torch.backends.cudnn.flags(True, allow_tf32=allow_tf32)

    def step() -> object:
        # The backward pass of cuDNN reads the same flag.
        with flags():
            return torch.autograd.grad(model(x).square().sum(), parameters)

    return step


def measure_steps(has_cuda: bool) -> Row:
    """Return a table for each size: the median and the range of each row, and why a row is missing."""
    from stablernn.engines.cuda_graph import LOOPED_RUNS
    from stablernn_cli.bench import Sizes

    started, tables = time.perf_counter(), {}
    for sizes in (Sizes(*size) for size in (STEP_SIZES if has_cuda else (("antisymmetric", 8, 2, 3),))):
        name = f"{sizes.cell} B={sizes.batch_size} T={sizes.length} N={sizes.hidden_size}"
        if time.perf_counter() - started > SECONDS:
            tables[name] = {"not_measured": f"{SECONDS} seconds had passed."}
            continue
        # The engine 'cuda-graph' records after some runs.
        times, missing = time_rows(step_rows(sizes, has_cuda, is_first=not tables), ROUNDS, LOOPED_RUNS + 1)
        rows = {
            row: {"ms": statistics.median(values), "ms_low": min(values), "ms_high": max(values)}
            for row, values in times.items()
        }
        tables[name] = {"rows": rows, "missing": missing}
    return {"is_interpreted": not has_cuda, "rounds": ROUNDS, "tables": tables}


def step_rows(sizes: Any, has_cuda: bool, *, is_first: bool) -> dict[str, Run]:
    """Return the rows of a size; the CPU, which takes a hundred times as long, is in one table."""
    import torch
    from torch import nn

    from stablernn.engines import list_engines
    from stablernn_cli.bench import EnsembleState, Peer

    device = "cuda" if has_cuda else "cpu"
    x = torch.randn(sizes.batch_size, sizes.length, 1, device=device)
    names = [name for name in STEP_ENGINES.get(sizes.cell, ("cuda-graph",)) if name in list_engines()]
    rows = {f"engine {name}": gradient_step(EnsembleState(sizes, name).to(device), x) for name in (*names, "loop")}
    for title, allow_tf32 in (("float32", False), ("tf32", True)):
        rows[f"nn.LSTM, {title}"] = gradient_step(Peer(nn.LSTM, sizes).to(device), x, allow_tf32)
    if is_first:
        rows["CPU, engine auto"] = gradient_step(EnsembleState(sizes), x.cpu())
    return rows


# Training steps on one long sequence by engine.

LONG_ENGINES = {
    "rnn": ("shooting", "triton", "torch-rnn", "loop"),
    "gru": ("shooting", "torch-rnn", "loop"),
    "lru": ("scan", "loop"),
}
"""Engines of each cell. ``rnn`` and ``gru`` contract with the weights that they start from."""
LOOPED = {"rnn": 65536, "gru": 4096, "lru": 4096}
"""Steps up to which the loop is timed; it takes half a minute for 65,536 steps of a cell with gates."""
LONG_ROUNDS = 5


class Sweeps(logging.Handler):
    """Keeps what the engine ``shooting`` says of its convergence."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def measure_long(has_cuda: bool) -> Row:
    """Return milliseconds of forward and backward pass by cell, length and engine, the engines in turn."""
    import torch

    from stablernn.engines import list_engines
    from stablernn_cli.bench import EnsembleState, Sizes

    sweeps, logger = Sweeps(), logging.getLogger("stablernn.engines")
    logger.addHandler(sweeps)
    logger.setLevel(logging.INFO)
    hidden, device = (64, "cuda") if has_cuda else (8, "cpu")
    found = []
    for cell, engines in LONG_ENGINES.items():
        for length in (4096, 65536) if has_cuda else (256,):
            x, sizes = torch.randn(1, length, 1, device=device), Sizes(cell, hidden, 1, length)
            # The interpreter of triton takes minutes for what other engines do in milliseconds.
            names = [name for name in engines if name in list_engines() and (name != "triton" or has_cuda)]
            missing = {}
            if length > LOOPED[cell]:
                names.remove("loop")
                missing["loop"] = "left out: it takes half a minute"
            rows = {name: gradient_step(EnsembleState(sizes, name).to(device), x) for name in names}
            times, failed = time_rows(rows, LONG_ROUNDS)
            found.append({"cell": cell, "N": hidden, "T": length, "ms": times, "missing": missing | failed})
    return {"rounds": LONG_ROUNDS, "rows": found, "sweeps": sweeps.messages}


# Seconds of an epoch of ``stablernn.training.train`` on MNIST pixel by pixel.


def measure_training(has_cuda: bool) -> Row:
    """Return the seconds of each epoch by cell; without CUDA of a few steps on ``digits``, which needs no files."""
    return {"runs": [measure_cell(cell, has_cuda) for cell in ("antisymmetric", "lru")]}


def measure_cell(cell: str, has_cuda: bool) -> Row:
    """Return the figures of the training of a cell."""
    from stablernn.training import Progress, load_config, train

    if has_cuda:
        if not Path(os.environ.get("STABLERNN_DATA", ""), "mnist").is_dir():
            raise NotMeasured("STABLERNN_DATA names no folder with mnist.")
        settings = ["data.source=mnist", "training.device=cuda", "training.epochs=3"]
        settings += ["training.batch_size=128", "model.hidden_size=128", "model.patch_size=1"]
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
    return {
        "data": "mnist" if has_cuda else "digits",
        "cell": cell,
        **{key: summary[key] for key in ("engine", "epochs", "steps")},
        "seconds_of_all": round(moments[-1] - started, 1),
        # The last one contains what a run does in the end: scores, certificate, figures.
        "seconds_of_epochs": [round(end - begin, 2) for begin, end in zip(moments, moments[1:], strict=False)],
        "accuracy": summary["metrics"]["test"]["accuracy"],
    }


# An exported graph by ONNX Runtime with CUDA and bound buffers.


def measure_onnx(has_cuda: bool) -> Row:
    """Return milliseconds of a batch of sequences, and the difference from torch on the CPU.

    Raises:
        NotMeasured: If there is a GPU, and ONNX Runtime is built without CUDA.
        RuntimeError: If a session does not run by the provider that was asked for.
    """
    import onnxruntime as ort

    import stablernn as srn

    provider = "CUDAExecutionProvider" if has_cuda else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        raise NotMeasured(f"ONNX Runtime {ort.__version__} has no {provider}: pip install 'stablernn[cuda]'.")
    if has_cuda:
        ort.preload_dlls()
    hidden, sizes = (128, ((1, 784), (32, 784), (256, 784))) if has_cuda else (8, ((2, 5),))
    with tempfile.TemporaryDirectory() as place:
        model = srn.Classifier("antisymmetric", 1, 10, hidden).eval()
        srn.export(model, Path(place))
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # As in the server: TF32, the default of the provider, rounds operands to 10 bits, which 784 steps add up.
        settings = {"use_tf32": "0"} if has_cuda else {}
        session = ort.InferenceSession(str(Path(place) / "sequence.onnx"), options, providers=[(provider, settings)])
        # ONNX Runtime takes the CPU without an error where CUDA's libraries do not load.
        if session.get_providers()[0] != provider:
            raise RuntimeError(f"ONNX Runtime took {session.get_providers()[0]} in place of {provider}.")
        rows = [_time_onnx(session, model, batch, steps, has_cuda) for batch, steps in sizes]
    return {"provider": provider, "rounds": ROUNDS, "rows": rows}


def _time_onnx(session: Any, model: Any, batch: int, steps: int, has_cuda: bool) -> Row:
    import onnxruntime as ort
    import torch

    x = torch.randn(batch, steps, 1)
    binding, device = session.io_binding(), "cuda" if has_cuda else "cpu"
    values = {"x": x.numpy(), "lengths": np.full(batch, steps, dtype=np.int64)}
    for argument in session.get_inputs():
        array = values.get(argument.name)
        if array is None:
            # The first state; it is zero, and a flag that a sequence begins is too.
            array = np.zeros([batch if isinstance(size, str) else size for size in argument.shape], np.float32)
        binding.bind_ortvalue_input(argument.name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    names = [result.name for result in session.get_outputs()]
    for name in names:
        binding.bind_output(name, device)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    times, _ = time_rows({"run": run}, ROUNDS)
    logits = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))["logits"]
    with torch.no_grad():
        reference = model.run(x)[0]["logits"].numpy()
    difference = float(np.abs(logits - reference).max() / np.abs(reference).max())
    return {"B": batch, "T": steps, "ms": statistics.median(times["run"]), "error": float(f"{difference:.2g}")}


# A version served by a server on a GPU, and the devices that ``auto`` chooses for it.


def measure_serving(has_cuda: bool) -> Row:
    """Return what ``auto`` chose and measured, and milliseconds of requests to a server on each device.

    Raises:
        NotMeasured: If there is a GPU, and ONNX Runtime is built without CUDA.
    """
    import onnxruntime as ort

    if has_cuda and "CUDAExecutionProvider" not in ort.get_available_providers():
        raise NotMeasured(f"ONNX Runtime {ort.__version__} has no CUDA: pip install 'stablernn[cuda]'.")
    hidden, steps = (128, 784) if has_cuda else (8, 64)
    requests, probabilities = {}, []
    with tempfile.TemporaryDirectory() as place:
        os.environ["STABLERNN_REGISTRY"] = f"{place}/registry"
        train = ["train", "--data", "mnist" if has_cuda else "digits", "--task", "classify", "--cell", "antisymmetric"]
        train += ["--hidden-size", str(hidden), "--set", "training.max_steps=2", "--set", "model.patch_stride=1"]
        harness.run_json([*train, "--set", "model.patch_size=1", "--run-dir", f"{place}/run"])
        harness.run_json(["export", f"{place}/run", "--name", "pixels"])
        doctor = harness.run_json(["doctor", "--model", "pixels:1"])
        x = np.random.default_rng(0).normal(size=(32, steps, 1)).astype(np.float32)
        for device in ("cpu", "cuda") if has_cuda else ("cpu",):
            with serving_client(device) as client:

                def infer(rows: int, client: Any = client) -> Any:
                    return client.infer("pixels", {"x": x[:rows]}, outputs=["probabilities"])["probabilities"]

                times, _ = time_rows({str(rows): lambda rows=rows: infer(rows) for rows in (1, 32)}, ROUNDS)
                requests[device] = {rows: round(statistics.median(values), 2) for rows, values in times.items()}
                probabilities.append(infer(32))
    return {
        "model": f"antisymmetric, {hidden} units, {steps} steps",
        "auto": doctor["models"][0],
        "rounds": ROUNDS,
        "request_ms": requests,
        "difference": float(np.abs(probabilities[0] - probabilities[-1]).max()) if has_cuda else None,
    }


@contextmanager
def serving_client(device: str) -> Iterator[Any]:
    """Start a server on a free port, and return a client of it."""
    from stablernn_client import Client

    command = harness.stablernn("serve", "--device", device, "--port", "0", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                # The document that a server prints when it is ready.
                if line == "}\n":
                    break
            with Client(json.loads("".join(lines))["url"]) as client:
                yield client
        finally:
            process.terminate()


MEASURES: dict[str, Callable[[bool], Row]] = {name: globals()[f"measure_{name}"] for name in PARTS}


def measure_part(name: str) -> Row:
    """Return what a part gives, in this process; whatever goes wrong is a result, and the other parts run."""
    import torch

    has_cuda = torch.cuda.is_available()
    if not has_cuda:
        # Before triton is imported, which decides then how kernels run.
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        return MEASURES[name](has_cuda)
    except NotMeasured as error:
        return {"not_measured": str(error)}
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def run_part(name: str) -> Row:
    """Return what a part gives, by a process of its own; its failure is a result too."""
    started = time.perf_counter()
    command = [sys.executable, __file__, "--part", name]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=PARTS[name])
        # The last line; libraries may print above it.
        lines = process.stdout.strip().splitlines()
        messages = process.stderr.strip().splitlines() or [f"It ended with status {process.returncode}."]
        result = {"error": messages[-1]} if process.returncode or not lines else json.loads(lines[-1])
    except subprocess.TimeoutExpired:
        result = {"error": f"It took longer than {PARTS[name]} seconds and was stopped."}
    return {"seconds": round(time.perf_counter() - started, 1), **result}


def environment() -> Row:
    """Return what the figures depend on."""
    import torch

    gpu = None
    if torch.cuda.is_available():
        properties: Any = torch.cuda.get_device_properties(0)
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        gpu = {
            "name": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "processors": properties.multi_processor_count,
            "shared_memory": getattr(properties, "shared_memory_per_block_optin", None),
            "driver": subprocess.run(query, capture_output=True, text=True).stdout.strip() or None,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    packages = {name: harness.installed(name) for name in PACKAGES}
    return harness.conditions(packages=packages, gpu=gpu)


def page_tables(results: Row) -> dict[str, str]:
    """Return the tables of a page; a part that failed or was not measured has its reason in place of one."""
    about = results["environment"]
    packages = ", ".join(f"{name} {number}" for name, number in about["packages"].items())
    written = {"conditions": facts({**about, "packages": packages, "command": f"`{about['command']}`"}, ())}
    writers: dict[str, Callable[[Row], str]] = {
        "checks": _checks,
        "steps": _steps,
        "long": _long,
        "training": _training,
        "onnx": lambda part: table(
            ("B, T", "ms", "error"),
            ((f"{row['B']}, {row['T']}", f"{row['ms']:.2f}", f"{row['error']:.1e}") for row in part["rows"]),
        ),
        "serving": lambda part: facts({key: part[key] for key in ("model", "auto", "request_ms", "difference")}, ()),
    }
    for name, write in writers.items():
        part = results["parts"].get(name, {"not_measured": "It was left out."})
        reason = part.get("error") or part.get("not_measured")
        written[name] = f"Not measured: {reason}" if reason else write(part)
    return written


def _checks(part: Row) -> str:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in part["rows"]:
        text = row.get("message") or f"{row['error']:.1e}{'' if row['passed'] else ', failed'}"
        rows.setdefault((row["cell"], row["engine"], f"{row['N']}, {row['B']}, {row['T']}"), {})[row["kind"]] = text
    kinds = ("equal", "lengths", "dt")
    return table(
        ("cell", "engine", "N, B, T", "equal lengths", "unequal lengths", "dt"),
        ((*key, *(errors.get(kind, "") for kind in kinds)) for key, errors in rows.items()),
    )


def _steps(part: Row) -> str:
    rows = []
    for name, measured in part["tables"].items():
        for row, found in measured.get("rows", {}).items():
            rows.append((name, row, f"{found['ms']:.2f}", f"{found['ms_low']:.2f} to {found['ms_high']:.2f}"))
        for row, reason in measured.get("missing", {"": measured.get("not_measured", "")}).items():
            rows.append((name, row, "not measured", reason.partition("\n")[0]))
    return table(("sizes", "row", "ms", "range"), rows)


def _long(part: Row) -> str:
    rows = []
    for row in part["rows"]:
        texts = {engine: spread(times, ",.1f") for engine, times in row["ms"].items()}
        texts |= {engine: f"not measured: {reason.splitlines()[0]}" for engine, reason in row["missing"].items()}
        rows += [(row["cell"], row["N"], f"{row['T']:,}", engine, text) for engine, text in texts.items()]
    return "\n".join([table(("cell", "N", "T", "engine", "ms"), rows), "", *(f"- {text}" for text in part["sweeps"])])


def _training(part: Row) -> str:
    return table(
        ("cell", "data", "engine", "steps of an epoch", "seconds", "test accuracy"),
        (
            (
                *(run[key] for key in ("cell", "data", "engine")),
                run["steps"] // run["epochs"],
                ", ".join(f"{value:.2f}" for value in run["seconds_of_epochs"]),
                f"{run['accuracy']:.4f}",
            )
            for run in part["runs"]
        ),
    )


def main() -> None:
    parser = harness.page_parser(__doc__, None)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; can be given several times")
    parser.add_argument("--part", choices=PARTS, help="measure a part in this process, and print it")
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measure_part(options.part)))
        return
    path = STORED
    if not options.page:
        here = environment()
        path = options.results or (WITHOUT_CUDA if here["gpu"] is None else STORED)
        known = read_results(path) if options.only else {}
        if known.get("environment", here)["gpu"] != here["gpu"]:
            raise SystemExit(f"{path} has the results of another machine; give --results another file.")
        results = {"environment": here, "parts": known.get("parts", {})}
        for name in options.only or PARTS:
            log(f"{name} ...")
            results["parts"][name] = run_part(name)
            write_results(path, results)
            print(json.dumps(results["parts"][name], indent=1))
    if path == STORED:
        harness.print_tables(page_tables(read_results(STORED)))


if __name__ == "__main__":
    main()
