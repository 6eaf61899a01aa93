"""The device of each kind of work: measured on real sessions of the CPU, of which some have more work."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from published_models import Published
from stablernn_registry import Signature, Version
from stablernn_runtime.engines import select
from stablernn_runtime.engines.loaded_graphs import LoadedGraphs
from stablernn_runtime.engines.select import (
    DeviceChoice,
    Request,
    SessionByRows,
    Timing,
    Workload,
    candidates_for,
    choose_devices,
    open_fastest,
    open_version,
    run_in_turn,
    select_fastest,
)
from stablernn_runtime.engines.session import EngineFailure, GpuOptions, Placement, Session
from stablernn_runtime.errors import DeviceError, ModelLoadError
from stablernn_runtime.served_model import ServedModel

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def version(zoo: Published) -> Version:
    return zoo.registry.get("classes")


def signature_of(version: Version) -> Signature:
    return Signature.model_validate(version.manifest.signature)


class Repeating:
    """A session that runs its graph several times: a fixed number, or as many as there are rows."""

    def __init__(self, session: Session, times: int | None) -> None:
        self.session, self.times = session, times
        self.error = np.float32(0)
        self.rows: list[int] = []

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
    ) -> Sequence[Any]:
        rows = len(next(iter(feeds.values())))
        self.rows.append(rows)
        for _ in range(self.times or rows):
            outputs = self.session.run(names, feeds, options)
        return outputs


class Failing:
    def run(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
    ) -> Sequence[Any]:
        raise EngineFailure("no kernel image is available for execution on the device")


def on(device: str, graphs: LoadedGraphs, sequence: Session | None = None, step: Session | None = None) -> LoadedGraphs:
    """Open graphs as if they ran on a device, with other sessions."""
    placement = Placement("cuda" if device == "cuda" else "cpu")
    return replace(graphs, placement=placement, sequence=sequence or graphs.sequence, step=step or graphs.step)


@pytest.fixture
def graphs(version: Version) -> LoadedGraphs:
    return open_version(version, signature_of(version), "cpu", "onnx", 1)


def test_the_faster_device_gets_everything(version: Version, graphs: LoadedGraphs) -> None:
    assert graphs.step is not None
    slow = on("cuda", graphs, Repeating(graphs.sequence, 10), Repeating(graphs.step, 10))
    chosen = select_fastest([on("cpu", graphs), slow], signature_of(version), steps=20, batch=8)
    assert chosen.placement.by_work == {"single": "cpu", "batch": "cpu", "min_batch_rows": 1, "step": "cpu"}
    assert (chosen.placement.device, chosen.sequence, chosen.step) == ("cpu", graphs.sequence, graphs.step)
    name = graphs.reason
    assert chosen.placement.reason.startswith(
        f"auto: sequences on cpu, steps on cpu; measured: {name} on cpu: one sequence of 20 steps "
    )
    assert f"; {name} on cuda: one sequence of 20 steps " in chosen.placement.reason
    assert list(chosen.placement.measured_ms) == [f"{name} on cpu", f"{name} on cuda"]
    for times in chosen.placement.measured_ms.values():
        assert list(times) == ["one sequence of 20 steps", "8 sequences", "one step", "one step of 8 streams"]
    # And the other way round.
    slow = on("cpu", graphs, Repeating(graphs.sequence, 10), Repeating(graphs.step, 10))
    chosen = select_fastest([slow, on("cuda", graphs)], signature_of(version), steps=20, batch=8)
    assert chosen.placement.by_work == {"single": "cuda", "batch": "cuda", "min_batch_rows": 1, "step": "cuda"}
    assert chosen.placement.device == "cuda"


def test_each_kind_of_work_gets_its_device_and_runs_there(
    version: Version, graphs: LoadedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert graphs.step is not None
    # As many runs as rows on the one, eight runs whatever the rows on the other: as a CPU and a GPU behave.
    cpu, gpu = Repeating(graphs.sequence, None), Repeating(graphs.sequence, 8)
    cpu_step, gpu_step = Repeating(graphs.step, 1), Repeating(graphs.step, 50)
    rivals = [on("cpu", graphs, cpu, cpu_step), on("cuda", graphs, gpu, gpu_step)]
    chosen = select_fastest(rivals, signature_of(version), steps=40, batch=32)
    by_work = chosen.placement.by_work
    assert (by_work["single"], by_work["batch"], by_work["step"]) == ("cpu", "cuda", "cpu")
    assert 2 <= by_work["min_batch_rows"] <= 20
    assert chosen.placement.device == "cuda"
    assert isinstance(chosen.sequence, SessionByRows)
    assert chosen.step is cpu_step
    # The numbers are those of the session for as many rows, whichever runs.
    expected = ServedModel.load(version, "cpu")
    monkeypatch.setattr("stablernn_runtime.served_model.open_version", lambda *_, **options: chosen)
    model = ServedModel.load(version, "auto")
    cpu.rows.clear()
    gpu.rows.clear()
    few, many = by_work["min_batch_rows"] - 1, by_work["min_batch_rows"]
    for rows in (few, many):
        x = np.random.default_rng(rows).uniform(100, 600, (rows, 9, 2)).astype(np.float32)
        outputs = model.run_sequence(x)
        for name, value in expected.run_sequence(x).items():
            assert np.array_equal(outputs[name], value), name
    assert (cpu.rows, gpu.rows) == ([few], [many])


@pytest.mark.parametrize("kind", ["classes", pytest.param("covariates", marks=pytest.mark.slow)])
def test_devices_that_disagree_are_not_served(zoo: Published, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = zoo.registry.get(kind)
    graphs = open_version(version, signature_of(version), "cpu", "onnx", 1)

    class Wrong(Repeating):
        def run(self, *arguments: Any) -> Sequence[Any]:
            first, *others = super().run(*arguments)
            return [first + self.error, *others]

    large = Wrong(graphs.sequence, 1)
    monkeypatch.setattr(
        "stablernn_runtime.served_model.open_version",
        lambda *_, **options: replace(graphs, sequence=SessionByRows(graphs.sequence, large, 6)),
    )
    large.error = np.float32(0)
    ServedModel.load(version, "auto")
    assert large.rows == [6]
    large.error = np.float32(1e4)
    with pytest.raises(ModelLoadError, match="of a sequence on the GPU is not that on the CPU"):
        ServedModel.load(version, "auto")


def test_a_device_that_fails_gets_nothing_and_is_named(version: Version, graphs: LoadedGraphs) -> None:
    broken = on("cuda", graphs, Failing(), Failing())
    chosen = select_fastest([broken, on("cpu", graphs)], signature_of(version), steps=5, batch=4)
    assert chosen.placement.by_work["single"] == chosen.placement.by_work["step"] == "cpu"
    assert "(no kernel image is available for execution on the device)" in chosen.placement.reason
    assert set(chosen.placement.measured_ms[f"{graphs.reason} on cuda"].values()) == {None}


def test_measuring_keeps_its_time_limit(version: Version, graphs: LoadedGraphs) -> None:
    class Endless:
        """A real run again and again, until its options end it."""

        def run(
            self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
        ) -> Sequence[Any]:
            while True:
                graphs.sequence.run(names, feeds, options)

    started = time.monotonic()
    chosen = select_fastest(
        [on("cuda", graphs, Endless()), on("cpu", graphs)], signature_of(version), 5, 4, limit_seconds=1.0
    )
    assert time.monotonic() - started < 3
    assert (chosen.placement.by_work["single"], chosen.placement.by_work["batch"]) == ("cpu", "cpu")
    assert "one sequence of 5 steps not finished, 4 sequences not finished, one step " in chosen.placement.reason


class Clock:
    """The clock of a measurement, on which only the runs take time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(select, "time", clock)
    return clock


def test_a_first_run_that_takes_most_of_the_time_is_no_measure(clock: Clock) -> None:
    """It may compile kernels; two such runs would not have ended in time."""
    ends: list[float] = []

    def compile_first(options: object) -> None:
        clock.seconds += 0.01 if ends else 0.6
        ends.append(clock.seconds)

    times = run_in_turn({"compiled": compile_first}, 1.0)
    assert len(ends) == 6
    assert times["compiled"].median_ms == pytest.approx(10)


def test_no_candidate_is_run_again_after_the_time_limit(clock: Clock) -> None:
    """A run of torch cannot be stopped, and may have taken all that was left."""
    order: list[str] = []

    def overrun(options: object) -> None:
        clock.seconds += 60.0 if "slow" in order else 0.01
        order.append("slow")

    times = run_in_turn({"slow": overrun, "other": lambda options: order.append("other")}, 30.0)
    assert order == ["slow", "other", "slow"]
    assert [times[name].median_ms for name in ("slow", "other")] == pytest.approx([60e3, 0])


ONE, MANY = Workload(False, 1, 50), Workload(False, 101, 50)


@pytest.mark.parametrize(
    ("cpu", "gpu", "rows"),
    [
        # Equal at 51 sequences: 1 + 100 * 10 / (10 + 10).
        ((1.0, 101.0), (11.0, 91.0), 51),
        ((1.0, 12.0), (1000.0, 11.9), 101),
        # Only one of them runs a batch, or a single sequence.
        ((1.0, math.inf), (2.0, 3.0), 2),
    ],
)
def test_the_number_of_sequences_from_which_the_gpu_is_faster(
    cpu: tuple[float, float], gpu: tuple[float, float], rows: int
) -> None:
    timings = {name: Timing({ONE: times[0], MANY: times[1]}) for name, times in (("cpu", cpu), ("cuda", gpu))}
    assert choose_devices(timings) == DeviceChoice("cpu", "cuda", rows, None)


# The choice of a version, by the entry that serve uses.


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with a GPU, whose sessions are real ones of the CPU that run everything three times."""
    opened: list[str] = []

    def open_onnx(version: Version, signature: Signature, device: str, threads: int, gpu: GpuOptions) -> LoadedGraphs:
        opened.append(device)
        graphs = real(version, signature, "cpu", threads)
        if device == "cpu":
            return graphs
        assert graphs.step is not None
        return on("cuda", graphs, Repeating(graphs.sequence, 3), Repeating(graphs.step, 3))

    real = select.open_onnx
    monkeypatch.setattr(select, "open_onnx", open_onnx)
    monkeypatch.setattr(select, "count_gpus", lambda: 1)
    monkeypatch.setattr(select, "_SELECTIONS", {})
    return opened


def test_a_version_is_measured_once(version: Version, two_devices: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "stablernn_runtime"):
        first = ServedModel.load(version, "auto", gpu=GpuOptions(batch=4))
    assert two_devices == ["cpu", "cuda"]
    assert first.placement.by_work["single"] == "cpu"
    assert f"classes:1 runs on cpu. {first.placement.reason}" in caplog.messages
    second = ServedModel.load(version, "auto", gpu=GpuOptions(batch=4))
    # Only the chosen device is opened again.
    assert two_devices == ["cpu", "cuda", "cpu"]
    assert second.placement == first.placement
    # Another GPU, or another batch, is another measurement.
    ServedModel.load(version, "auto", gpu=GpuOptions(1, batch=4))
    assert two_devices == ["cpu", "cuda", "cpu", "cpu", "cuda"]


def test_a_gpu_that_fails_later_is_measured_again(
    version: Version, two_devices: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rivals = candidates_for("onnx", "auto")
    request = Request(version, signature_of(version))
    open_fastest(request, rivals)
    (key,) = select._SELECTIONS
    gpu_only = replace(select._SELECTIONS[key], choice=DeviceChoice("cuda", "cuda", 1, "cuda"))
    monkeypatch.setitem(select._SELECTIONS, key, gpu_only)
    real = select.open_onnx

    def without_gpu(version: Version, signature: Signature, device: str, *rest: Any) -> LoadedGraphs:
        if device == "cuda":
            raise DeviceError("The device 'cuda' cannot be used: it fell off the bus.")
        return real(version, signature, "cpu", *rest)

    monkeypatch.setattr(select, "open_onnx", without_gpu)
    graphs = open_fastest(request, rivals)
    assert graphs.placement.device == "cpu"
    assert "classes:1 is measured again: The device 'cuda' cannot be used: it fell off the bus." in caplog.messages
    assert graphs.placement.reason == ("auto: CPU, because onnx cannot be used on cuda (it fell off the bus)")


def test_kinds_of_work_of_one_engine_stay_together(version: Version, graphs: LoadedGraphs) -> None:
    # Torch on the GPU is best at batches alone; over all kinds of work ONNX Runtime is faster.
    assert graphs.step is not None
    other = on("cuda", replace(graphs, engine="torch", reason="torch 9"), None, Repeating(graphs.step, 200))
    slower = on("cpu", graphs, Repeating(graphs.sequence, 2))
    chosen = select_fastest([slower, other], signature_of(version), steps=10, batch=4)
    assert (chosen.engine, chosen.placement.device) == ("onnx", "cpu")
    assert chosen.reason.startswith(f"auto: {graphs.reason}, measured: {graphs.reason} on cpu: one sequence of 10 ")
    assert "; torch 9 on cuda: one sequence of 10 steps " in chosen.reason
