"""The runtime without HTTP: bits, defaults, devices, and versions that are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from exports import scan_bodies
from published_models import Published, flip_byte, republished, torch_answer
from stablernn_registry import IntegrityError, ManifestFields, Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.errors import ModelLoadError
from stablernn_runtime.graph_safety import check_graph

HAS_CUDA_DRIVER = Path("/proc/driver/nvidia/version").exists()


@pytest.mark.parametrize("ref", ["animals:1", "flow:1"])
def test_stepping_gives_the_bits_of_the_whole_sequence(published: Published, ref: str) -> None:
    model = ServedModel.load(published.registry.get(ref), "cpu")
    x = np.random.default_rng(0).normal(size=(3, 50, len(model.manifest.features))).astype(np.float32)
    x[0, 10:14] = np.nan
    whole = model.run_sequence(x)
    state: Mapping[str, np.ndarray] = {}
    for step in x.swapaxes(0, 1):
        outputs = model.run_step(step, state)
        state = model.next_state(outputs)
    assert outputs.keys() == whole.keys()
    for name, value in whole.items():
        assert np.array_equal(outputs[name], value), name


def test_a_padded_batch_gives_the_bits_of_each_sequence_alone(flow: ServedModel) -> None:
    noise = np.random.default_rng(1)
    lengths = np.array([30, 1, 17], np.int64)
    x = np.zeros((3, 30, 3), np.float32)
    for row, length in zip(x, lengths, strict=True):
        row[:length] = noise.normal(size=(length, 3))
    together = flow.run_numpy(x, lengths)
    for index, length in enumerate(lengths):
        alone = flow.run_numpy(x[index : index + 1, :length])
        for name, value in alone.items():
            assert np.array_equal(together[name][index : index + 1], value), name


def test_run_numpy_gives_the_answers_without_states(flow: ServedModel, published: Published) -> None:
    x = np.random.default_rng(2).normal(size=(2, 8, 3)).astype(np.float32)
    answers = flow.run_numpy(x)
    expected = torch_answer(published.torch_models["flow:1"], x)
    assert answers.keys() == expected.keys() == {"mean", "quantiles"}
    for name, value in expected.items():
        np.testing.assert_allclose(answers[name], value, atol=1e-5)


def test_read_only_and_unaligned_inputs_are_fine(animals: ServedModel) -> None:
    x = np.random.default_rng(4).normal(size=(1, 6, 1)).astype(np.float32)
    unaligned = np.frombuffer(memoryview(b"\0" + x.tobytes())[1:], np.float32).reshape(x.shape)
    assert np.array_equal(animals.run_numpy(unaligned)["logits"], animals.run_numpy(x)["logits"])


def test_sessions_have_one_thread_that_does_not_spin(animals: ServedModel) -> None:
    for graph in (animals.sequence, animals.step):
        options = graph.session.get_session_options()
        assert options.intra_op_num_threads == 1
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert graph.session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.skipif(HAS_CUDA_DRIVER, reason="this machine has an NVIDIA driver")
def test_auto_without_cuda_runs_on_the_cpu_and_says_why(published: Published, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stablernn_runtime"):
        model = ServedModel.load(published.registry.get("animals:1"), "auto")
    assert model.placement.device == "cpu"
    assert model.placement.reason.startswith("auto: CPU, because ")
    assert f"animals:1 runs on cpu. {model.placement.reason}" in caplog.messages


# Versions that are refused: each is the real animals:1 with one thing changed, in a registry of its own.


def refusal(registry: Registry) -> str:
    with pytest.raises(ModelLoadError) as caught:
        ServedModel.load(registry.get("animals"), "cpu")
    return str(caught.value)


def test_a_flipped_byte_is_refused(published: Published, tmp_path: Path) -> None:
    registry = republished(published, tmp_path, lambda fields, files: None)
    flip_byte(registry.get("animals").path("sequence.onnx"))
    with pytest.raises(
        ModelLoadError, match=r"^'animals:1' cannot be served: 'sequence\.onnx' of 'animals:1'"
    ) as caught:
        ServedModel.load(registry.get("animals"), "cpu")
    assert isinstance(caught.value.__cause__, IntegrityError)


def test_a_graph_that_is_none_is_refused(published: Published, tmp_path: Path) -> None:
    def change(fields: dict[str, Any], files: dict[str, Path]) -> None:
        files["step.onnx"] = tmp_path / "step.onnx"
        files["step.onnx"].write_bytes(b"not a graph")

    assert refusal(republished(published, tmp_path, change)) == (
        "step.onnx of 'animals:1' is not an ONNX model: its bytes cannot be read as one."
    )


def test_a_graph_that_differs_from_the_signature_is_refused(published: Published, tmp_path: Path) -> None:
    def change(fields: dict[str, Any], files: dict[str, Path]) -> None:
        fields["signature"]["sequence"]["outputs"][1]["name"] = "chances"

    assert refusal(republished(published, tmp_path, change)).startswith(
        "sequence.onnx of 'animals:1' has the outputs {'logits': ('tensor(float)', (-1, 4)), 'probabilities'"
    )


def test_a_horizon_that_is_not_that_of_the_graphs_is_refused(published: Published, tmp_path: Path) -> None:
    version = published.registry.get("co2:1")
    fields = {**version.manifest.model_dump(include=set(ManifestFields.model_fields)), "horizon": 99}
    files = {name: version.path(name) for name in version.manifest.files}
    wrong = Registry(tmp_path / "registry").publish("wrong", files, fields)
    with pytest.raises(ModelLoadError, match=r"promises the output 'mean' in the shape \(1, 99, 1\)"):
        ServedModel.load(wrong, "cpu")


UNUSABLE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no step": (lambda s: s.pop("step"), "its signature lacks 'sequence' or 'step'."),
    "x in another shape": (
        lambda s: s["step"]["inputs"][0].update(shape=["batch", "time", 1]),
        "its signature gives the input 'x' of step the shape ['batch', 'time', 1], ['batch', 1] is served.",
    ),
    "an unknown axis": (
        lambda s: s["sequence"]["outputs"][0].update(shape=["rows", 4]),
        "the axis 'rows' of 'logits' in its signature of sequence is not one of batch, time.",
    ),
}


@pytest.mark.parametrize("row", UNUSABLE)
def test_a_signature_that_cannot_be_served_is_refused(published: Published, tmp_path: Path, row: str) -> None:
    change, sentence = UNUSABLE[row]
    registry = republished(published, tmp_path, lambda fields, files: change(fields["signature"]))
    assert refusal(registry) == f"'animals:1' cannot be served: {sentence}"


# Graphs that could reach outside themselves.


def graph_bytes(published: Published) -> bytes:
    return published.registry.get("flow:1").read("sequence.onnx")


def _external_in_the_scan_body(model: onnx.ModelProto) -> None:
    body = scan_bodies(model)["whole"]
    body.node.append(helper.make_node("Constant", [], ["k"], value=_external(onnx.TensorProto(dims=[1], data_type=1))))


def _external_by_location_alone(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL


def _external(tensor: onnx.TensorProto) -> onnx.TensorProto:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    return tensor


def _contrib_node(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"))


def _function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    model.functions.append(helper.make_function("", "f", ["a"], ["b"], [node], [helper.make_opsetid("", 20)]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_external_in_the_scan_body, "g refers to external data; only graphs in a single file are served."),
        (_external_by_location_alone, "g refers to external data; only graphs in a single file are served."),
        (_contrib_node, "g uses the operator domain 'com.microsoft'; only standard ONNX operators are served."),
        (_function, "g defines functions of its own; only standard ONNX operators are served."),
    ],
)
def test_a_graph_that_could_reach_outside_is_refused(
    published: Published, change: Callable[[onnx.ModelProto], None], sentence: str
) -> None:
    model = onnx.load_from_string(graph_bytes(published))
    change(model)
    with pytest.raises(ModelLoadError) as caught:
        check_graph(model.SerializeToString(), "g")
    assert str(caught.value) == sentence


def test_every_truncation_is_refused_or_harmless(published: Published) -> None:
    content = graph_bytes(published)
    for size in range(0, len(content), 97):
        with pytest.raises(ModelLoadError):
            check_graph(content[:size], "g")
