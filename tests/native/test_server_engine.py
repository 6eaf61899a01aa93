"""The server engine ``native``: the numbers of the graphs, streams with the bits of sequences, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import stablernn as srn
from native_exports import MODELS, Arrays, as_trained, sequence_feeds, write_version
from step_forms import CELLS, needs_native

pytestmark = needs_native

try:
    from stablernn_native import available_paths
    from stablernn_native.server_engine import NativeServerEngine, native_engine
except ImportError:
    PATHS: list[str] = []
else:
    PATHS = available_paths()


QUICK = (
    "with A, mean",
    "modrelu, patches",
    "overlapping patches",
    "context",
    "context, logarithms",
    "members with embeddings",
    "logits of every step",
)
"""Together each kind of step, of scaling, of patches and of answers."""


def open_on(path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> NativeServerEngine:
    monkeypatch.setenv("STABLERNN_NATIVE_PATH", path)
    engine = native_engine(folder, "cpu")
    assert engine.version.endswith(f"path {path}")
    return engine


def sequence_values(engine: NativeServerEngine, feeds: Arrays) -> Arrays:
    names = [tensor["name"] for tensor in engine.signature["sequence"]["outputs"]]
    return dict(zip(names, engine.sequence.run(names, feeds), strict=True))


def step_values(engine: NativeServerEngine, feeds: Arrays) -> Arrays:
    names = [tensor["name"] for tensor in engine.signature["step"]["outputs"]]
    return dict(zip(names, engine.step.run(names, feeds), strict=True))


def patch_of(engine: NativeServerEngine) -> int:
    return int(engine.signature["step"]["inputs"][0]["shape"][1]) if len(step_shape(engine)) == 3 else 1


def step_shape(engine: NativeServerEngine) -> list[Any]:
    shape: list[Any] = engine.signature["step"]["inputs"][0]["shape"]
    return shape


def stream(engine: NativeServerEngine, feeds: Arrays, rows: slice) -> Arrays:
    """The outputs after all steps of some rows of equal length, one step at a time."""
    states = {state["input"]: state["output"] for state in engine.signature["states"]}
    constant = {name: value[rows] for name, value in feeds.items() if name not in ("x", "lengths")}
    x, patch = feeds["x"][rows], patch_of(engine)
    values: Arrays = {}
    for start in range(0, x.shape[1], patch):
        samples = x[:, start : start + patch]
        given = {**constant, "x": samples if patch > 1 else samples[:, 0]}
        values = step_values(engine, {**given, **{name: values[out] for name, out in states.items() if values}})
    return values


def last_of(values: Arrays, every_step: bool, engine: NativeServerEngine) -> Arrays:
    outputs = {state["output"] for state in engine.signature["states"]}
    return {name: value[:, -1] if every_step and name not in outputs else value for name, value in values.items()}


@pytest.mark.parametrize(
    ("name", "path"),
    [pytest.param(name, path, marks=[] if name in QUICK else pytest.mark.slow) for name in MODELS for path in PATHS],
)
def test_a_stream_has_the_bits_of_a_sequence_in_any_batch(
    versions: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    engine = open_on(path, versions(name), monkeypatch)
    every_step = "every step" in name
    # More rows than a block of any path, and more steps than a chunk.
    time = 3 * 4 * 6
    feeds = sequence_feeds(dict(engine.signature), 41, time)
    whole = sequence_values(engine, feeds)
    equal = {**feeds, "lengths": np.full(41, time)}
    unpadded = last_of(sequence_values(engine, equal), every_step, engine)
    for rows in (slice(0, 1), slice(7, 12)):
        for output, value in stream(engine, equal, rows).items():
            assert np.array_equal(value, unpadded[output][rows]), output
    # A row alone, cut to its length, and with anything after its end.
    for row in (0, 3, 40):
        span, length = slice(row, row + 1), int(feeds["lengths"][row])
        alone = {key: value[span] for key, value in feeds.items()}
        spoiled = feeds["x"][span].copy()
        spoiled[:, length:] = 1e30
        for given in (
            {**alone, "x": np.ascontiguousarray(feeds["x"][span, :length])},
            {**alone, "x": spoiled},
        ):
            for output, value in last_of(sequence_values(engine, given), every_step, engine).items():
                expected = last_of(whole, every_step, engine)[output][span]
                assert np.array_equal(value, expected), output


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_sequences_agree_with_the_graph(versions: Callable[[str], Path], name: str) -> None:
    folder = versions(name)
    engine = native_engine(folder, "cpu")
    session = ort.InferenceSession((folder / "sequence.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    for batch, time in ((1, 1), (5, 23), (40, 70)):
        feeds = sequence_feeds(dict(engine.signature), batch, time, seed=batch)
        names = [tensor["name"] for tensor in engine.signature["sequence"]["outputs"]]
        for output, expected in zip(names, session.run(names, feeds), strict=True):
            value = sequence_values(engine, feeds)[output]
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
            assert value.flags.c_contiguous
            assert np.abs(value - expected).max() <= 2e-5 * np.abs(expected).max(), output


@pytest.mark.parametrize(
    "key", [key if key == "spectral_rnn" else pytest.param(key, marks=pytest.mark.slow) for key in CELLS]
)
def test_every_cell_of_a_family_is_described(key: str, tmp_path: Path) -> None:
    model = as_trained(srn.Classifier(key, 2, 3, 6, readout="mean"))
    # Opening compares the numbers.
    engine = native_engine(write_version(model, tmp_path), "auto")
    assert engine.device == "cpu"
    assert engine.device_note == "auto: CPU, because the engine 'native' runs on nothing else"


def test_a_sequence_without_steps_keeps_its_states(versions: Callable[[str], Path]) -> None:
    engine = native_engine(versions("with A, mean"), "cpu")
    feeds = sequence_feeds(dict(engine.signature), 3, 8)
    feeds["lengths"][1] = 0
    values = sequence_values(engine, feeds)
    for state in engine.signature["states"]:
        assert np.array_equal(values[state["output"]][1], feeds[state["input"]][1])


@pytest.mark.parametrize("name", ["with A, mean", pytest.param("forecast", marks=pytest.mark.slow)])
def test_threads_give_the_same_bits(versions: Callable[[str], Path], name: str) -> None:
    engine = native_engine(versions(name), "cpu")
    given = [sequence_feeds(dict(engine.signature), 50, 96, seed) for seed in range(6)]
    alone = [sequence_values(engine, feeds) for feeds in given]
    steps = [{k: v[:, :4] if k == "x" and patch_of(engine) > 1 else v[:, 0] if k == "x" else v
              for k, v in feeds.items() if k != "lengths"} for feeds in given]  # fmt: skip
    stepped = [step_values(engine, feeds) for feeds in steps]
    engine.set_threads(3)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda feeds: sequence_values(engine, feeds), given * 3))
        streams = list(pool.map(lambda feeds: step_values(engine, feeds), steps * 3))
    for values, expected in zip([*together, *streams], [*alone * 3, *stepped * 3], strict=True):
        assert all(np.array_equal(values[output], expected[output]) for output in expected)


@pytest.mark.parametrize(
    "name",
    [
        "with A, mean",
        pytest.param("covariates", marks=pytest.mark.slow),
        pytest.param("numbers of every step", marks=pytest.mark.slow),
    ],
)
def test_buffers_carry_the_states(versions: Callable[[str], Path], name: str) -> None:
    engine = native_engine(versions(name), "cpu")
    for rows in (1, 3):
        feeds = sequence_feeds(dict(engine.signature), rows, 5)
        feeds["lengths"][:] = 5
        buffers = engine.step.create_buffers(rows)
        for state, array in buffers.states.items():
            array[...] = feeds[state]
        for key, array in buffers.inputs.items():
            if key != "x":
                array[...] = feeds[key]
        for time in range(5):
            buffers.inputs["x"][...] = feeds["x"][:, time]
            buffers.run()
        expected = stream(engine, feeds, slice(None))
        for output, value in buffers.outputs.items():
            assert np.array_equal(value, expected[output]), output
        for state in engine.signature["states"]:
            assert np.array_equal(buffers.states[state["input"]], expected[state["output"]])


@pytest.mark.parametrize("count", [-5.0, 0.5, 3.25, 1e30, float("inf"), float("nan")])
def test_no_count_of_a_state_leads_out_of_the_window(versions: Callable[[str], Path], count: float) -> None:
    engine = native_engine(versions("context"), "cpu")
    feeds = sequence_feeds(engine.signature, 3, 9)
    states = {state["role"]: state for state in engine.signature["states"]}
    first, steps = states["last values"], states["steps since the first observed value"]
    feeds[steps["input"]][:] = count
    feeds["lengths"][:] = 9
    values = sequence_values(engine, feeds)
    # The samples push the first nine of fourteen steps of three features out of the window.
    assert np.array_equal(values[first["output"]][:, : 5 * 3], feeds[first["input"]][:, 9 * 3 :])


def test_it_needs_no_torch(versions: Callable[[str], Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from stablernn_native.server_engine import native_engine\n"
        f"engine = native_engine(Path({str(versions('with A, mean'))!r}), 'cpu')\n"
        "print(sorted({'torch', 'stablernn', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
