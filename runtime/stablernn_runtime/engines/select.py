"""Selects engine and device of a version: as named, or the fastest on this machine where they are ``auto``.

A GPU launches a kernel for every node of every time step, which may take longer than one sequence on the CPU; with
many sequences at a time it is the other way round. So each kind of work gets its own device. All candidates run in
turn, so that a machine that becomes slower meanwhile slows all of them.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, Manifest, Signature, Version
from stablernn_runtime.engines.devices import count_gpus
from stablernn_runtime.engines.loaded_graphs import (
    ONNX,
    LoadedGraphs,
    describe_tensors,
    first_line,
    fixed_sizes,
    graphs_of,
    read_file,
)
from stablernn_runtime.engines.plugins import AUTO, TORCH, entry_points, open_named
from stablernn_runtime.engines.session import (
    NO_GPU_OPTIONS,
    RUN_ERRORS,
    BoundSession,
    Device,
    EngineFailure,
    GpuOptions,
    Session,
    check_gpu_options,
    choose_device,
    create_run_options,
    open_session,
)
from stablernn_runtime.errors import DeviceError, ModelLoadError
from stablernn_runtime.graph_safety import check_graph

logger = logging.getLogger(__name__)
Array = NDArray[Any]
TimedRun = Callable[[ort.RunOptions], object]
"""One run; the options end it from another thread."""

BATCH = NO_GPU_OPTIONS.batch
"""Sequences of a measured batch where no other number is given."""
STEPS = 128
"""Time steps of the measured sequences where the version does not tell its own."""
MAX_STEPS = 1000
"""Time steps of the measured sequences at most."""
LIMIT_SECONDS = 10.0
"""Time for all measurements of a version together. A graph can be built to run for years."""
_TIMED_RUNS = 5
ONNX_RUNTIME = f"ONNX Runtime {ort.__version__}"

Candidate = tuple[str, Device]
"""Name of an engine, and the device that it runs on."""


@dataclass(frozen=True)
class Workload:
    """One kind of work of a model.

    Attributes:
        is_step: Whether it is one step of streams, and not whole sequences.
        rows: Number of sequences or streams.
        steps: Time steps of the sequences; 1 for a step.
    """

    is_step: bool
    rows: int
    steps: int = 1

    def __str__(self) -> str:
        if self.is_step:
            return "one step" if self.rows == 1 else f"one step of {self.rows} streams"
        return f"one sequence of {self.steps} steps" if self.rows == 1 else f"{self.rows} sequences"


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of a run of each kind of work.

    Attributes:
        milliseconds: By kind of work; infinite where no run ended within the time limit, or one failed.
        failure: The first failure of a run, as a sentence; empty without one.
    """

    milliseconds: Mapping[Workload, float]
    failure: str = ""

    def __str__(self) -> str:
        figures = ", ".join(
            f"{workload} {time:.3g} ms" if math.isfinite(time) else f"{workload} not finished"
            for workload, time in self.milliseconds.items()
        )
        return f"{figures} ({self.failure.rstrip('.')})" if self.failure else figures


@dataclass
class Runs:
    """The runs of one candidate: milliseconds of the first one, which also sets things up, and of those after it."""

    first_ms: float = math.inf
    timed_ms: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def median_ms(self) -> float:
        if self.failure:
            return math.inf
        return statistics.median(self.timed_ms) if self.timed_ms else self.first_ms


class SessionByRows:
    """Runs few sequences with one session, and more of them with another.

    Args:
        small: For runs of fewer than ``min_rows`` sequences.
        large: For the others.
        min_rows: Sequences from which a run goes to ``large``.
    """

    def __init__(self, small: Session, large: Session, min_rows: int) -> None:
        self.small, self.large, self.min_rows = small, large, min_rows

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
    ) -> Sequence[Any]:
        """Run as :meth:`Session.run`, with the session for as many sequences."""
        # All inputs have the batch as their first axis.
        rows = len(next(iter(feeds.values())))
        return (self.small if rows < self.min_rows else self.large).run(names, feeds, options)


@dataclass(frozen=True)
class DeviceChoice:
    """The device of each kind of work, by name.

    Attributes:
        single: Of a whole sequence alone.
        batch: Of a batch of whole sequences.
        min_batch_rows: Sequences from which a run goes to the device of batches; 1 where both are the same.
        step: Of steps of streams; None for a version without streams.
    """

    single: Device
    batch: Device
    min_batch_rows: int
    step: Device | None

    @property
    def devices(self) -> set[Device]:
        """The devices that the choice needs."""
        return {device for device in (self.single, self.batch, self.step) if device is not None}

    def __str__(self) -> str:
        sequences = f"sequences on {self.single}"
        if self.batch != self.single:
            sequences = f"up to {self.min_batch_rows - 1} sequences on {self.single}, more on {self.batch}"
        return sequences if self.step is None else f"{sequences}, steps on {self.step}"


def open_onnx(
    version: Version,
    signature: Signature,
    device: Device,
    threads: int,
    gpu: GpuOptions = NO_GPU_OPTIONS,
    *,
    keeps_memory: bool = False,
) -> LoadedGraphs:
    """Open the graphs of a version, whose inputs and outputs must agree with the manifest.

    Args:
        version: The version.
        signature: Signature of its manifest, which must have its graphs.
        device: ``"auto"`` is CUDA where nothing is known to be missing, else the CPU.
        threads: Threads inside one run.
        gpu: Settings of the GPU.
        keeps_memory: As for :func:`~stablernn_runtime.engines.session.open_session`.

    Raises:
        ModelLoadError: If a file is damaged, or a graph is not one that is served.
        DeviceError: If CUDA does not load.
        SettingsError: If there are settings of a GPU for the CPU.
    """
    placement = choose_device(device, gpu)
    sessions: dict[str, Session] = {}
    for kind, graph in graphs_of(signature):
        label = f"{kind}.onnx of '{version.ref}'"
        content = read_file(version, f"{kind}.onnx", "cannot be served")
        check_graph(content, label)
        session = open_session(content, label, placement, threads, keeps_memory=keeps_memory)
        for side, stated, actual in (
            ("inputs", graph.inputs, session.get_inputs()),
            ("outputs", graph.outputs, session.get_outputs()),
        ):
            # A free dimension reports its symbol; None and a differing symbol are free too, a number is not.
            tensors = {arg.name: (arg.type, fixed_sizes(arg.shape)) for arg in actual}
            if tensors != (expected := describe_tensors(stated)):
                raise ModelLoadError(
                    f"{label} has the {side} {tensors}, but the manifest's signature states {expected}."
                )
        # On the CPU, arrays are read in place, and bound buffers save time for steps of few streams alone.
        sessions[kind] = session if placement.device == "cpu" else BoundSession(session, placement)
    return LoadedGraphs(ONNX, ONNX_RUNTIME, placement, sessions["sequence"], sessions.get("step"))


@dataclass(frozen=True)
class Request:
    """The version to open, and what all candidates for it have in common.

    Attributes:
        version: The version; every byte that is used is checked against the manifest's hash first.
        signature: Signature of its manifest, which must have its graphs.
        threads: Threads inside one run.
        gpu: Settings of the GPU.
    """

    version: Version
    signature: Signature
    threads: int = 1
    gpu: GpuOptions = NO_GPU_OPTIONS

    def open(self, engine: str, device: Device) -> LoadedGraphs:
        """Open the version with one engine on one device; errors: see :func:`open_version`."""
        gpu = NO_GPU_OPTIONS if device == "cpu" else self.gpu
        if engine == ONNX:
            return open_onnx(self.version, self.signature, device, self.threads, gpu)
        return open_named(self.version, self.signature, device, engine, self.threads, gpu)


@dataclass(frozen=True)
class _Selection:
    """An engine with the device of each kind of work, and the figures that selected it."""

    engine: str
    choice: DeviceChoice
    engine_reason: str
    device_reason: str
    measured_ms: Mapping[str, Mapping[str, float | None]]


_SELECTIONS: dict[tuple[str, tuple[Candidate, ...], GpuOptions], _Selection] = {}
"""By a version's digest, the candidates and the GPU."""


def open_version(
    version: Version,
    signature: Signature,
    device: Device,
    engine: str,
    threads: int,
    gpu: GpuOptions = NO_GPU_OPTIONS,
    *,
    keeps_memory: bool = False,
) -> LoadedGraphs:
    """Open the graphs of a version.

    Args:
        version: The version; every byte that is used is checked against the manifest's hash first.
        signature: Signature of its manifest, which must have its graphs.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: the CPU without a GPU that can be used; with one, the faster of
            both for each kind of work.
        engine: ``"onnx"``, the name of an entry point, or ``"auto"``: ONNX Runtime on the CPU; on a GPU, where torch
            is installed, the faster of ONNX Runtime and the engine ``torch``.
        threads: Threads inside one run.
        gpu: Settings of the GPU.
        keeps_memory: As for :func:`~stablernn_runtime.engines.session.open_session`; on machines without a GPU.

    Raises:
        SettingsError: If there is no such engine, or settings of a GPU do not fit the engine or the device.
        ModelLoadError: If a file is damaged, the graphs are not those of the signature, or the engine does not work
            here.
        DeviceError: If the GPU that was asked for does not exist or cannot be used.
    """
    check_gpu_options(device, gpu)
    request = Request(version, signature, threads, gpu)
    if engine not in (ONNX, TORCH, AUTO):
        # Engines of packages choose their device themselves.
        return open_named(version, signature, device, engine, threads, gpu)
    if device == "cpu" or not count_gpus():
        if engine == TORCH:
            return open_named(version, signature, device, TORCH, threads, gpu)
        graphs = open_onnx(version, signature, device, threads, gpu, keeps_memory=keeps_memory)
        return graphs if engine == ONNX else replace(graphs, reason=f"auto: {ONNX_RUNTIME}, as always on the CPU")
    return open_fastest(request, candidates_for(engine, device))


def candidates_for(engine: str, device: Device) -> list[Candidate]:
    """Return the engines and devices to choose from on a machine with a GPU; the first one wins a tie.

    Args:
        engine: ``"onnx"``, ``"torch"`` or ``"auto"``.
        device: ``"cuda"`` or ``"auto"``.
    """
    devices: list[Device] = ["cuda"] if device == "cuda" else ["cpu", "cuda"]
    candidates: list[Candidate] = [(ONNX if engine == AUTO else engine, each) for each in devices]
    # On the CPU, auto is always ONNX Runtime. find_spec does not import torch, which takes seconds.
    if engine == AUTO and TORCH in entry_points() and importlib.util.find_spec(TORCH):
        candidates.append((TORCH, "cuda"))
    return candidates


def open_fastest(request: Request, candidates: Sequence[Candidate]) -> LoadedGraphs:
    """Open a version with the fastest of several engines and devices; with those that work here.

    They are measured once: a version that is closed and opened again, or that another alias names, keeps engine and
    devices.

    Args:
        request: The version.
        candidates: Engines and devices; the first one wins a tie.

    Raises:
        ModelLoadError: If no candidate can serve the version, or ONNX Runtime refuses its graphs.
        DeviceError: If no candidate can use its device.
    """
    key = request.version.digest, tuple(candidates), request.gpu
    if (selection := _SELECTIONS.get(key)) is not None:
        try:
            return _assemble(
                selection,
                {device: request.open(selection.engine, device) for device in selection.choice.devices},
            )
        except DeviceError as error:
            # A GPU that has failed since.
            logger.warning("%s is measured again: %s", request.version.ref, error)
    opened, failures = _open_all(request, candidates)
    if len(opened) == 1:
        return _explain_only(opened[0], failures, request.gpu)
    selection = _select(opened, request.signature, sequence_steps(request.version.manifest), request.gpu.batch)
    if failures:
        notes = "; ".join(_explain_failure(candidate, error) for candidate, error in failures.items())
        selection = replace(selection, engine_reason=f"{selection.engine_reason}; {notes}")
    _SELECTIONS[key] = selection
    return _assemble(selection, _by_device(opened, selection.engine))


def select_fastest(
    opened: Sequence[LoadedGraphs],
    signature: Signature,
    steps: int = STEPS,
    batch: int = BATCH,
    limit_seconds: float = LIMIT_SECONDS,
) -> LoadedGraphs:
    """Measure engines and devices, and return the fastest with the figures of all in its reasons.

    The engine is the one with the smallest geometric mean over all kinds of work, since sequences and steps of a
    version go through the same engine. Each kind of work then gets the fastest device of that engine.

    Args:
        opened: The open graphs of one version; the first one wins a tie.
        signature: Signature of the version.
        steps: Time steps of the measured sequences.
        batch: Sequences and streams of a measured batch.
        limit_seconds: Time for all measurements.
    """
    selection = _select(opened, signature, steps, batch, limit_seconds)
    return _assemble(selection, _by_device(opened, selection.engine))


def _open_all(
    request: Request, candidates: Sequence[Candidate]
) -> tuple[list[LoadedGraphs], dict[Candidate, Exception]]:
    """Return the open graphs of all candidates that work here, and why the others do not."""
    opened: list[LoadedGraphs] = []
    failures: dict[Candidate, Exception] = {}
    for engine, device in candidates:
        try:
            opened.append(request.open(engine, device))
        except ModelLoadError as error:
            # A version that ONNX Runtime refuses is refused; torch may lack a package.
            if engine == ONNX and not opened:
                raise
            failures[engine, device] = error
        except (DeviceError, EngineFailure, MemoryError) as error:
            failures[engine, device] = error
    if not opened:
        raise next(iter(failures.values()))
    for (engine, device), failure in failures.items():
        logger.warning("%s cannot be run by '%s' on %s: %s", request.version.ref, engine, device, failure)
    return opened, failures


def _explain_only(graphs: LoadedGraphs, failures: Mapping[Candidate, Exception], gpu: GpuOptions) -> LoadedGraphs:
    """Return the only graphs that could be opened, with the reason why there was nothing to measure."""
    notes = "; ".join(_explain_failure(candidate, error) for candidate, error in failures.items())
    if any(engine != graphs.engine for engine, _ in failures):
        reason = "as always on the CPU" if graphs.placement.device == "cpu" else f"because {notes}"
        graphs = replace(graphs, reason=f"auto: {graphs.reason}, {reason}")
    if any(device != graphs.placement.device for _, device in failures):
        name = "CPU" if graphs.placement.device == "cpu" else "CUDA"
        unused = f"; {gpu} has no effect" if name == "CPU" and str(gpu) else ""
        graphs = replace(graphs, placement=replace(graphs.placement, reason=f"auto: {name}, because {notes}{unused}"))
    return graphs


def _explain_failure(candidate: Candidate, error: Exception) -> str:
    engine, device = candidate
    # What the sentence of a failed `--device cuda` adds to the reason.
    reason = first_line(error).removeprefix("The device 'cuda' cannot be used: ").rstrip(".")
    for advice in (". Use --device cpu or auto", ", or use --device cpu or auto"):
        reason = reason.removesuffix(advice)
    return f"{engine} cannot be used on {device} ({reason})"


def _select(
    opened: Sequence[LoadedGraphs],
    signature: Signature,
    steps: int,
    batch: int,
    limit_seconds: float = LIMIT_SECONDS,
) -> _Selection:
    has_one_device = len({graphs.placement.device for graphs in opened}) == 1
    labels = [graphs.reason if has_one_device else f"{graphs.reason} on {graphs.placement.device}" for graphs in opened]
    timings = measure(
        dict(zip(labels, opened, strict=True)), signature, workloads(signature, steps, batch), limit_seconds
    )
    by_engine: dict[str, dict[Device, Timing]] = {}
    for label, graphs in zip(labels, opened, strict=True):
        by_engine.setdefault(graphs.engine, {})[graphs.placement.device] = timings[label]
    engine = min(by_engine, key=lambda name: best_mean_ms(by_engine[name]))
    choice = choose_devices(by_engine[engine])
    best = next(graphs for graphs in opened if graphs.engine == engine)
    # The selected one first.
    order = sorted(zip(labels, opened, strict=True), key=lambda row: row[1].engine != engine)
    figures = "; ".join(f"{label}: {timings[label]}" for label, _ in order)
    engine_reason = best.reason
    if len(by_engine) > 1:
        where = f" on {best.placement.device}" if has_one_device else ""
        # The label of the first one is the selected engine itself where all run on the same device.
        shown = figures.removeprefix(f"{best.reason}: ") if has_one_device else figures
        engine_reason = f"auto: {best.reason}, measured{where}: {shown}"
    return _Selection(
        engine,
        choice,
        engine_reason,
        "" if has_one_device else f"auto: {choice}; measured: {figures}",
        {
            label: {
                str(kind): round(time, 4) if math.isfinite(time) else None
                for kind, time in timings[label].milliseconds.items()
            }
            for label, _ in order
        },
    )


def _assemble(selection: _Selection, by_device: Mapping[str, LoadedGraphs]) -> LoadedGraphs:
    """Return graphs that run each kind of work on its device."""
    choice = selection.choice
    single, batch = by_device[choice.single], by_device[choice.batch]
    sequence: Session = single.sequence
    if choice.single != choice.batch:
        sequence = SessionByRows(single.sequence, batch.sequence, choice.min_batch_rows)
    # The GPU, if anything runs on one.
    main = by_device["cuda" if "cuda" in choice.devices else choice.single]
    return replace(
        main,
        reason=selection.engine_reason,
        placement=replace(
            main.placement,
            reason=selection.device_reason or main.placement.reason,
            by_work=asdict(choice),
            measured_ms=selection.measured_ms,
        ),
        sequence=sequence,
        step=None if choice.step is None else by_device[choice.step].step,
    )


def _by_device(opened: Sequence[LoadedGraphs], engine: str) -> dict[str, LoadedGraphs]:
    return {graphs.placement.device: graphs for graphs in opened if graphs.engine == engine}


def sequence_steps(manifest: Manifest) -> int:
    """Return the time steps of a typical sequence of a version: those that it was trained or exported for."""
    steps = manifest.context_length or manifest.parity.get("longest")
    return min(steps, MAX_STEPS) if isinstance(steps, int) and steps > 0 else STEPS


def workloads(signature: Signature, steps: int, batch: int = BATCH) -> list[Workload]:
    """Return the kinds of work of a version: sequences and steps, alone and in a batch."""
    shapes = [(is_step, rows) for is_step in (False, True) for rows in sorted({1, batch})]
    return [
        Workload(is_step, rows, 1 if is_step else steps)
        for is_step, rows in shapes
        if not is_step or signature.step is not None
    ]


def measure(
    candidates: Mapping[str, LoadedGraphs],
    signature: Signature,
    kinds: Sequence[Workload],
    limit_seconds: float = LIMIT_SECONDS,
) -> dict[str, Timing]:
    """Measure each kind of work with each of several engines or devices.

    Args:
        candidates: The open graphs of one version, by name.
        signature: Signature of the version.
        kinds: The kinds of work.
        limit_seconds: Time for all of it. Each kind gets the same share of what the kinds before it left.
    """
    deadline = time.monotonic() + limit_seconds
    by_kind: dict[Workload, dict[str, Runs]] = {}
    for index, kind in enumerate(kinds):
        runs = {name: _timed_run(graphs, signature, kind) for name, graphs in candidates.items()}
        by_kind[kind] = run_in_turn(runs, max(0.0, deadline - time.monotonic()) / (len(kinds) - index))
    return {
        name: Timing(
            {kind: runs[name].median_ms for kind, runs in by_kind.items()},
            next((runs[name].failure for runs in by_kind.values() if runs[name].failure), ""),
        )
        for name in candidates
    }


def geometric_mean(times: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers, which may be infinite: a factor in any counts the same."""
    return math.exp(statistics.fmean(math.log(max(time, 1e-9)) for time in times))


def typical_feeds(graph: GraphSignature, batch: int, steps: int) -> dict[str, Array]:
    """Return every input of a graph: zeros, regular steps, full lengths."""
    sizes = {"batch": batch, "time": steps}
    fill_values = {"lengths": steps, "dt": 1}
    return {
        spec.name: np.full(
            [sizes[size] if isinstance(size, str) else size for size in spec.shape],
            fill_values.get(spec.name, 0),
            np.dtype(spec.dtype),
        )
        for spec in graph.inputs
    }


def _timed_run(graphs: LoadedGraphs, signature: Signature, kind: Workload) -> TimedRun:
    """Return a function that runs a kind of work once."""
    graph, session = (signature.step, graphs.step) if kind.is_step else (signature.sequence, graphs.sequence)
    # The signature and the open graphs belong to one version.
    assert graph is not None
    assert session is not None
    names, feeds = [spec.name for spec in graph.outputs], typical_feeds(graph, kind.rows, kind.steps)
    return lambda options: session.run(names, feeds, options)


def run_in_turn(candidates: Mapping[str, TimedRun], limit_seconds: float) -> dict[str, Runs]:
    """Run candidates in turn a few times.

    Args:
        candidates: A function that runs once, by name.
        limit_seconds: Time for all of it. A candidate whose first run has not ended after an equal share of it is
            stopped, if its run can be, and is not run again. No second run begins after it, and a run that is under
            way is stopped, if it can be.
    """
    deadline = time.monotonic() + limit_seconds
    results = {name: Runs() for name in candidates}
    for index, (name, candidate) in enumerate(candidates.items()):
        share = (deadline - time.monotonic()) / (len(candidates) - index)
        with _options_until(share) as options:
            results[name].first_ms = _run_once(candidate, options, results[name])
    # The last run of each, in seconds. The first one is no measure: it may compile kernels or load libraries.
    latest = {name: 0.0 for name, runs in results.items() if math.isfinite(runs.first_ms)}
    with _options_until(deadline - time.monotonic()) as options:
        for _ in range(_TIMED_RUNS):
            # Every candidate gets the same number of runs, as far as the ones before tell how long one takes.
            if sum(latest.values()) >= deadline - time.monotonic():
                break
            for name in latest:
                # One that cannot be stopped may have taken all that was left.
                if time.monotonic() >= deadline:
                    break
                elapsed = _run_once(candidates[name], options, results[name])
                if math.isfinite(elapsed):
                    results[name].timed_ms.append(elapsed)
                    latest[name] = elapsed / 1e3
    return results


@contextmanager
def _options_until(seconds: float) -> Iterator[ort.RunOptions]:
    """Give options that end a run after some time."""
    options = create_run_options()
    timer = threading.Timer(max(0.0, seconds), setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


def _run_once(candidate: TimedRun, options: ort.RunOptions, runs: Runs) -> float:
    """Return the milliseconds of a run; infinite if it does not end in time or fails, which is noted."""
    started = time.perf_counter()
    try:
        candidate(options)
    except RUN_ERRORS as error:
        # Such as too little memory for a batch, or a kernel that this GPU does not have.
        if not options.terminate:
            runs.failure = first_line(error)
        return math.inf
    return 1e3 * (time.perf_counter() - started)


def choose_devices(timings: Mapping[Device, Timing]) -> DeviceChoice:
    """Choose the fastest device for each kind of work.

    Sequences are chosen for by their number, alone or in a batch. All steps of streams share a device, that of the
    smallest geometric mean over one stream and many, since a stream would else change devices between two steps.

    Args:
        timings: By device; the first one wins a tie. All have the same kinds of work.
    """
    kinds = list(next(iter(timings.values())).milliseconds)
    sequences = [kind for kind in kinds if not kind.is_step]
    steps = [kind for kind in kinds if kind.is_step]
    smallest, largest = min(sequences, key=attrgetter("rows")), max(sequences, key=attrgetter("rows"))
    single, batch = _fastest(timings, [smallest]), _fastest(timings, [largest])
    min_rows = 1 if single == batch else _crossing(timings[single], timings[batch], smallest, largest)
    return DeviceChoice(single, batch, min_rows, _fastest(timings, steps) if steps else None)


def best_mean_ms(timings: Mapping[Device, Timing]) -> float:
    """Return the geometric mean of the times of all kinds of work, each on its fastest device."""
    kinds = next(iter(timings.values())).milliseconds
    return geometric_mean(min(timing.milliseconds[kind] for timing in timings.values()) for kind in kinds)


def _fastest(timings: Mapping[Device, Timing], kinds: Sequence[Workload]) -> Device:
    return min(timings, key=lambda device: geometric_mean(timings[device].milliseconds[kind] for kind in kinds))


def _crossing(small: Timing, large: Timing, smallest: Workload, largest: Workload) -> int:
    """Return the number of sequences from which ``large`` is faster, for times that grow linearly with them."""
    loss = large.milliseconds[smallest] - small.milliseconds[smallest]
    gain = small.milliseconds[largest] - large.milliseconds[largest]
    if not math.isfinite(gain):
        # Only one of them runs a batch at all; nothing tells what the other one would do with a smaller one.
        return smallest.rows + 1
    if not math.isfinite(loss):
        return largest.rows
    share = loss / (loss + gain) if loss + gain > 0 else 0.0
    return min(largest.rows, smallest.rows + max(1, math.ceil(share * (largest.rows - smallest.rows))))
