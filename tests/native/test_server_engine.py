"""The server engine ``native``: the numbers of the graphs, streams with the bits of sequences, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import stablernn as srn
from native_exports import Arrays, as_trained, change_description, sequence_feeds, write_version
from stablernn.nn.models import SequenceModel
from step_forms import CELLS, needs_native

pytestmark = needs_native

try:
    from stablernn_native import available_paths, model
    from stablernn_native.graph_file import GraphFile
    from stablernn_native.server_engine import NativeServerEngine, native_engine
except ImportError:
    PATHS: list[str] = []
else:
    PATHS = available_paths()

MODELS: dict[str, Callable[[], SequenceModel]] = {
    "one unit": lambda: srn.Classifier("rnn", 1, 2, 1),
    "residual": lambda: srn.Classifier("antisymmetric", 2, 3, 37, num_layers=3, readout="last"),
    "with A, mean": lambda: srn.Classifier("lipschitz", 2, 3, 33, num_layers=2, readout="mean", mask_channel=True),
    "two-stage, max": lambda: srn.Classifier("lipschitz_rk2", 1, 3, 17, readout="max"),
    "shared gate, all": lambda: srn.Classifier("antisymmetric_g", 3, 11, 19, num_layers=2, readout="all"),
    "modrelu, patches": lambda: srn.Classifier("exprnn", 2, 3, 40, patch_size=3, patch_stride=3, mask_channel=True),
    "embedding": lambda: srn.Classifier("rnn", 2, 3, 18, patch_size=4, patch_embedding=21, num_layers=2),
    "overlapping patches": lambda: srn.Classifier("lipschitz", 2, 3, 18, patch_size=5, patch_stride=2, readout="all"),
    "as by default": lambda: srn.Classifier(
        "antisymmetric", 1, 10, 24, patch_size=16, patch_stride=4, patch_embedding=12, mask_channel=True, readout="all"
    ),
    "relu": lambda: srn.Classifier("identity_rnn", 2, 3, 9, num_layers=2, scaling="none"),
    "wide": lambda: srn.Classifier("antisymmetric", 1, 10, 128),
    "forecast": lambda: srn.Forecaster("lipschitz", 3, 4, 21, target_indices=(0, 2), patch_size=4, patch_stride=4),
    "covariates": lambda: srn.Forecaster("antisymmetric", 3, 4, 8, future_indices=[1], static_size=2, readout="all"),
    "logits of every step": lambda: srn.SequencePredictor("lipschitz", 2, 5, 23, num_layers=2),
    "numbers of every step": lambda: srn.SequencePredictor("antisymmetric", 2, 3, 12, output="real"),
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the files of one of the models."""
    root, folders = tmp_path_factory.mktemp("versions"), {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = write_version(as_trained(MODELS[name]()), root / str(len(folders)))
        return folders[name]

    return get


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


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("key", CELLS)
def test_every_cell_of_a_family_is_described(key: str, tmp_path: Path) -> None:
    model = as_trained(srn.Classifier(key, 2, 3, 6, num_layers=2, readout="mean"))
    # Opening compares the numbers.
    engine = native_engine(write_version(model, tmp_path), "auto")
    assert engine.device == "cpu"
    assert engine.device_note == "auto: CPU, because the engine 'native' runs on nothing else"


def test_a_linear_part_that_is_scaled_is_found(tmp_path: Path) -> None:
    model = as_trained(srn.Classifier("lipschitz", 2, 3, 6, cell_options={"linear_scale": 0.3, "step_size": 0.07}))
    engine = native_engine(write_version(model, tmp_path), "cpu")
    # Opening compares the numbers, and refuses others.
    assert np.isfinite(sequence_values(engine, sequence_feeds(dict(engine.signature), 2, 5))["logits"]).all()


def test_a_sequence_without_steps_keeps_its_states(versions: Callable[[str], Path]) -> None:
    engine = native_engine(versions("with A, mean"), "cpu")
    feeds = sequence_feeds(dict(engine.signature), 3, 8)
    feeds["lengths"][1] = 0
    values = sequence_values(engine, feeds)
    for state in engine.signature["states"]:
        assert np.array_equal(values[state["output"]][1], feeds[state["input"]][1])


@pytest.mark.parametrize("name", ["with A, mean", "forecast", "logits of every step"])
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


@pytest.mark.parametrize("name", ["shared gate, all", "covariates", "numbers of every step"])
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


REFUSED: dict[str, tuple[Callable[[], SequenceModel], str]] = {
    "cell": (lambda: srn.Classifier("gru", 1, 2, 4), "the step of the cell 'gru' is of none of the four families"),
    "members": (lambda: srn.Classifier("rnn", 1, 2, 4, members=2), "it is an ensemble of 2 members"),
    "dt": (lambda: srn.Classifier("lipschitz", 1, 2, 4, max_dt=2.0), "its steps have a length, dt"),
    "tokens": (lambda: srn.SequencePredictor("rnn", 4, 4, 4, tokens=True), "it reads tokens"),
    "scaling": (
        lambda: srn.Classifier("rnn", 1, 2, 4, scaling="window", window=5),
        "its scaling is 'window'",
    ),
    "changes": (
        lambda: srn.SequencePredictor("rnn", 1, 1, 4, output="real", predict_change=True),
        "it predicts changes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_model_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    make, reason = REFUSED[case]
    model = make()
    model.mark_fitted()
    folder = write_version(model.eval().requires_grad_(False), tmp_path)
    with pytest.raises(ValueError, match="which this engine does not run. Use --engine onnx") as refusal:
        native_engine(folder, "cpu")
    assert str(refusal.value).startswith(reason)


def damaged(tmp_path: Path, versions: Callable[[str], Path], change: Any) -> Path:
    folder = tmp_path / "damaged"
    folder.mkdir()
    for file in versions("with A, mean").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    change_description(folder, change)
    return folder


def other_rows(document: dict[str, Any]) -> None:
    document["layers"][0]["recurrent"]["rows"] = [1, 34]


def endless(document: dict[str, Any]) -> None:
    document["hidden"] = 10**30


def no_layers(document: dict[str, Any]) -> None:
    document["layers"] = []


def no_number(document: dict[str, Any]) -> str:
    document["layers"][0]["step_size"] = float("nan")
    return str(document).replace("'", '"').replace("None", "null").replace("nan", "NaN").replace("True", "true")


def no_embedding(document: dict[str, Any]) -> None:
    """Inputs of no width, which the kernels would take for inputs without an embedding."""
    document["embedding"] = {"weight": {**document["head"]["weight"], "rows": [0, 0]}, "bias": {"fill": 0.0}}
    document["layers"][0]["input"] = {"fill": 0.0}


UNREADABLE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda document: "{",
    "a list": lambda document: "[]",
    "deep": lambda document: "[" * 100_000,
    "no key": lambda document: document.pop("readout") and None,
    "another word": lambda document: document.update(readout="median"),
    "a matrix of other rows": other_rows,
    "sizes that no memory has": endless,
    "no layers": no_layers,
    "no number": no_number,
    "a word for a number": lambda document: document["layers"][0].update(step_size="fast"),
    "a head of another size": lambda document: document["head"].update(weight=document["head"]["bias"]),
    "no bias of modReLU": lambda document: document["layers"][0].update(nonlinearity="modrelu"),
    "an embedding of no width": no_embedding,
    "a matrix of equal numbers": lambda document: document["layers"][0].update(recurrent={"fill": 0.0}),
    "a head without rows": lambda document: document["head"]["weight"].update(rows=[0, 0]),
    "an index in place of rows": lambda document: document["mean"].update(rows=3),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_damaged_description_is_refused(case: str, tmp_path: Path, versions: Callable[[str], Path]) -> None:
    folder = damaged(tmp_path, versions, UNREADABLE[case])
    with pytest.raises(ValueError, match="export it again, or use --engine onnx|Export it again"):
        native_engine(folder, "cpu")


def test_an_earlier_export_is_refused(tmp_path: Path, versions: Callable[[str], Path]) -> None:
    folder = damaged(tmp_path, versions, lambda document: None)
    import onnx

    graph = onnx.load_from_string((folder / "step.onnx").read_bytes())
    del graph.metadata_props[:]
    (folder / "step.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(ValueError, match="does not describe its layers.* Export it again, or use --engine onnx"):
        native_engine(folder, "cpu")


def test_another_format_is_refused(tmp_path: Path, versions: Callable[[str], Path]) -> None:
    folder = damaged(tmp_path, versions, lambda document: document.update(format=2))
    with pytest.raises(ValueError, match="in format 2, this engine reads 1"):
        native_engine(folder, "cpu")


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["layers"][0].update(step_size=0.9),
        lambda document: document["layers"][1].update(linear=None),
        lambda document: document["layers"][0].update(nonlinearity="relu"),
        lambda document: document["head"].update(temperature=2.0),
    ],
)
def test_other_numbers_than_those_of_the_graph_are_refused(
    tmp_path: Path, versions: Callable[[str], Path], change: Any
) -> None:
    with pytest.raises(ValueError, match="differs from its graph by .* Use --engine onnx, and report it"):
        native_engine(damaged(tmp_path, versions, change), "cpu")


def test_a_number_of_many_bytes_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="its step.onnx is not an ONNX model"):
        GraphFile(b"\x08" + b"\xff" * 1_000_000 + b"\x01")


def test_threads_that_have_started_end_before_an_error_is_raised(
    versions: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write into the arrays of the call, which nobody holds any more after it."""
    started: list[threading.Thread] = []

    class Scarce(threading.Thread):
        def start(self) -> None:
            if started:
                raise RuntimeError("can't start new thread")
            started.append(self)
            super().start()

    engine = native_engine(versions("wide"), "cpu")
    engine.set_threads(3)
    monkeypatch.setattr(model.threading, "Thread", Scarce)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        sequence_values(engine, sequence_feeds(engine.signature, 64, 100))
    assert [thread.is_alive() for thread in started] == [False]


def test_a_gpu_is_refused(versions: Callable[[str], Path]) -> None:
    with pytest.raises(RuntimeError, match="The engine 'native' runs on the CPU"):
        native_engine(versions("wide"), "cuda")


def test_an_unknown_path_is_refused(versions: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLERNN_NATIVE_PATH", "sse")
    with pytest.raises(ValueError, match="names the path 'sse'"):
        native_engine(versions("wide"), "cpu")


def test_it_needs_no_torch(versions: Callable[[str], Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from stablernn_native.server_engine import native_engine\n"
        f"engine = native_engine(Path({str(versions('wide'))!r}), 'cpu')\n"
        "print(sorted({'torch', 'stablernn', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
