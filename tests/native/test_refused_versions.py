"""Models and files that the server engine ``native`` refuses, and why."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import stablernn as srn
from native_exports import changed_copy, write_version
from stablernn.nn.models import SequenceModel
from step_forms import needs_native

pytestmark = needs_native

try:
    from stablernn_native.description import GraphFile
    from stablernn_native.server_engine import native_engine
except ImportError:
    pass


REFUSED: dict[str, tuple[Callable[[], SequenceModel], str]] = {
    "cell": (lambda: srn.Classifier("gru", 1, 2, 4), "the step of the cell 'gru' is of none of the four families"),
    "dt": (lambda: srn.Classifier("lipschitz", 1, 2, 4, max_dt=2.0), "its steps have a length, dt"),
    "convolutions": (
        lambda: srn.Classifier("lipschitz", 1, 2, 4, patch_size=4, patch_embedding=3, conv_layers=1),
        "its patches pass through convolutions",
    ),
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


@pytest.mark.parametrize(
    "case", [case if case in ("cell", "dt") else pytest.param(case, marks=pytest.mark.slow) for case in REFUSED]
)
def test_another_model_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    make, reason = REFUSED[case]
    model = make()
    model.mark_fitted()
    folder = write_version(model.eval().requires_grad_(False), tmp_path)
    with pytest.raises(ValueError, match="which this engine does not run. Use --engine onnx") as refusal:
        native_engine(folder, "cpu")
    assert str(refusal.value).startswith(reason)


def damaged(tmp_path: Path, versions: Callable[[str], Path], change: Any, model: str = "with A, mean") -> Path:
    return changed_copy(versions(model), tmp_path / "damaged", change)


def other_rows(document: dict[str, Any]) -> None:
    document["stacks"][0][0]["recurrent"]["rows"] = [1, 34]


def endless(document: dict[str, Any]) -> None:
    document["hidden"] = 10**30


def no_layers(document: dict[str, Any]) -> None:
    document["stacks"] = []


def no_number(document: dict[str, Any]) -> str:
    document["stacks"][0][0]["step_size"] = float("nan")
    return str(document).replace("'", '"').replace("None", "null").replace("nan", "NaN").replace("True", "true")


def no_embedding(document: dict[str, Any]) -> None:
    """Inputs of no width, which the kernels would take for inputs without an embedding."""
    document["embeddings"] = [{"weight": {**document["head"]["weight"], "rows": [0, 0]}, "bias": {"fill": 0.0}}]
    document["stacks"][0][0]["input"] = {"fill": 0.0}


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
    "a word for a number": lambda document: document["stacks"][0][0].update(step_size="fast"),
    "a head of another size": lambda document: document["head"].update(weight=document["head"]["bias"]),
    "no bias of modReLU": lambda document: document["stacks"][0][0].update(nonlinearity="modrelu"),
    "an embedding of no width": no_embedding,
    "a matrix of equal numbers": lambda document: document["stacks"][0][0].update(recurrent={"fill": 0.0}),
    "a head without rows": lambda document: document["head"]["weight"].update(rows=[0, 0]),
    "an index in place of rows": lambda document: document["mean"].update(rows=3),
    "rows counted from the end": lambda document: document["stacks"][0][0]["recurrent"].update(rows=[-33, -1]),
    "a fill beyond float32": lambda document: document.update(mean={"fill": 1e300}),
    "a factor beyond float32": lambda document: document["stacks"][0][0]["recurrent"].update(factor=1e300),
    "a product beyond float32": lambda document: document["scale"].update(factor=3e38),
    "a step size beyond float32": lambda document: document["stacks"][0][0].update(step_size=-1e39),
    "answers beyond float32": lambda document: document["head"].update(mean=[1e39] * 3, scale=[1.0] * 3),
    "no temperature": lambda document: document["head"].update(temperature=0),
    "a temperature below 0": lambda document: document["head"].update(temperature=-1.0),
    "a temperature that is 0 in float32": lambda document: document["head"].update(temperature=1e-60),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_damaged_description_is_refused(case: str, tmp_path: Path, versions: Callable[[str], Path]) -> None:
    folder = damaged(tmp_path, versions, UNREADABLE[case])
    with pytest.raises(ValueError, match="export it again, or use --engine onnx|Export it again"):
        native_engine(folder, "cpu")


UNREADABLE_CONTEXTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no context": lambda document: document.pop("context") and None,
    "scaling by constants": lambda document: document.update(context=None),
    "no window": lambda document: document["context"].update(window=0),
    "a negative window": lambda document: document["context"].update(window=-14),
    "a window of no whole number": lambda document: document["context"].update(window=14.0),
    "another window": lambda document: document["context"].update(window=15),
    "a window that no memory has": lambda document: document["context"].update(window=2**31 - 1),
    "a season as long as the window": lambda document: document["context"].update(season=14),
    "no season": lambda document: document["context"].update(season=0),
    "no clip": lambda document: document["context"].pop("clip") and None,
    "a clip of 0": lambda document: document["context"].update(clip=0.0),
    "a scale floor of 0": lambda document: document["context"].update(scale_floor=0.0),
    "a floor of another size": lambda document: document["context"].update(floor=document["stacks"][0][0]["recurrent"]),
    "no members": lambda document: document.update(members=0),
    "more members than stacks": lambda document: document.update(members=3),
    "fewer members than stacks": lambda document: document.update(members=1),
    "members of no layers": lambda document: document.update(stacks=[[], []]),
    "members of other depths": lambda document: document["stacks"][1].append(document["stacks"][1][0]),
    "stacks that are words": lambda document: document.update(stacks=["a", "b"]),
    "one embedding": lambda document: document["embeddings"].pop() and None,
    "no embeddings": lambda document: document.update(embeddings=[]),
    "an embedding of another width": lambda document: document["embeddings"][1]["weight"].update(rows=[0, 4]),
    "a head of the kernels": lambda document: document.update(
        head={**document["embeddings"][0], "temperature": 1.0, "mean": None, "scale": None}
    ),
}


@pytest.mark.parametrize("case", UNREADABLE_CONTEXTS)
def test_a_damaged_context_or_ensemble_is_refused(case: str, tmp_path: Path, versions: Callable[[str], Path]) -> None:
    folder = damaged(tmp_path, versions, UNREADABLE_CONTEXTS[case], "members with embeddings")
    with pytest.raises(ValueError, match=r"xport it again"):
        native_engine(folder, "cpu")


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["context"].update(season=6),
        lambda document: document["context"].update(floor={"fill": 1.0}),
        lambda document: document["stacks"].reverse(),
        lambda document: document["embeddings"].reverse(),
    ],
)
def test_another_context_or_order_of_members_than_that_of_the_graph_is_refused(
    tmp_path: Path, versions: Callable[[str], Path], change: Any
) -> None:
    with pytest.raises(ValueError, match="differs from its graph by .* Use --engine onnx, and report it"):
        native_engine(damaged(tmp_path, versions, change, "members with embeddings"), "cpu")


def test_an_earlier_export_is_refused(tmp_path: Path, versions: Callable[[str], Path]) -> None:
    folder = damaged(tmp_path, versions, lambda document: None)
    graph = onnx.load_from_string((folder / "step.onnx").read_bytes())
    del graph.metadata_props[:]
    (folder / "step.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(ValueError, match="does not describe its layers.* Export it again, or use --engine onnx"):
        native_engine(folder, "cpu")


def test_another_format_is_refused(tmp_path: Path, versions: Callable[[str], Path]) -> None:
    folder = damaged(tmp_path, versions, lambda document: document.update(format=3))
    with pytest.raises(ValueError, match="in format 3, this engine reads format 2"):
        native_engine(folder, "cpu")


@pytest.mark.parametrize("value", [10**4000, -1, True, 2.0, "\x1b[31m", ["a"] * 1000, None])
def test_a_format_that_is_no_small_number_is_not_repeated(
    tmp_path: Path, versions: Callable[[str], Path], value: Any
) -> None:
    folder = damaged(tmp_path, versions, lambda document: document.update(format=value))
    with pytest.raises(ValueError, match="in another format, this engine reads format 2") as refusal:
        native_engine(folder, "cpu")
    assert len(str(refusal.value)) < 250


def test_a_reason_is_repeated_short_and_without_control_characters(
    tmp_path: Path, versions: Callable[[str], Path]
) -> None:
    reason = "it is\x1b[31m red\r\n" + "x" * 100_000
    folder = damaged(tmp_path, versions, lambda document: document.update(reason=reason))
    with pytest.raises(ValueError, match="which this engine does not run") as refusal:
        native_engine(folder, "cpu")
    assert str(refusal.value).startswith("it is[31m redxxx")
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["stacks"][0][0].update(step_size=0.9),
        lambda document: document["stacks"][0][1].update(linear=None),
        lambda document: document["stacks"][0][0].update(nonlinearity="relu"),
        lambda document: document["head"].update(temperature=2.0),
    ],
)
def test_other_numbers_than_those_of_the_graph_are_refused(
    tmp_path: Path, versions: Callable[[str], Path], change: Any
) -> None:
    with pytest.raises(ValueError, match="differs from its graph by .* Use --engine onnx, and report it"):
        native_engine(damaged(tmp_path, versions, change), "cpu")


def test_members_that_share_an_initializer_copy_their_own_rows_only() -> None:
    members, rows = 100, 32
    stacked = np.random.default_rng(0).normal(size=(members * rows, 64)).astype(np.float32)
    graph = onnx.helper.make_graph([], "shared", [], [], [onnx.numpy_helper.from_array(stacked, "stacked")])
    file = GraphFile(onnx.helper.make_model(graph).SerializeToString())
    tracemalloc.start()
    try:
        parts = [file.constant("stacked", rows * i, rows * (i + 1)) for i in range(members)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(np.concatenate(parts), stacked)
    assert peak < 1.5 * stacked.nbytes


def test_a_number_of_many_bytes_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="its step.onnx is not an ONNX model"):
        GraphFile(b"\x08" + b"\xff" * 1_000_000 + b"\x01")


def test_a_gpu_is_refused(versions: Callable[[str], Path]) -> None:
    with pytest.raises(RuntimeError, match="The engine 'native' runs on the CPU"):
        native_engine(versions("with A, mean"), "cuda")


def test_an_unknown_path_is_refused(versions: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLERNN_NATIVE_PATH", "sse")
    with pytest.raises(ValueError, match="names the path 'sse'"):
        native_engine(versions("with A, mean"), "cpu")
