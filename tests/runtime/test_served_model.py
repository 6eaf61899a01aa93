"""The runtime without HTTP: bits, defaults, devices, and versions that are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from exports import scan_bodies
from published_models import Published, flip_byte, republished, torch_answer
from stablernn_registry import IntegrityError, Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.errors import DeviceError, InputError, ModelLoadError
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


def test_left_out_inputs_are_full_lengths_and_zero_states(animals: ServedModel) -> None:
    x = np.random.default_rng(3).normal(size=(2, 5, 1)).astype(np.float32)
    state = {s.input: np.zeros((2, *s.shape[1:]), np.float32) for s in animals.states}
    given = animals.run_sequence(x, np.array([5, 5]), state)
    for name, value in animals.run_sequence(x).items():
        assert np.array_equal(given[name], value), name


def test_read_only_and_unaligned_inputs_are_fine(animals: ServedModel) -> None:
    x = np.random.default_rng(4).normal(size=(1, 6, 1)).astype(np.float32)
    unaligned = np.frombuffer(memoryview(b"\0" + x.tobytes())[1:], np.float32).reshape(x.shape)
    assert np.array_equal(animals.run_numpy(unaligned)["logits"], animals.run_numpy(x)["logits"])


def test_a_step_has_its_own_shape(flow: ServedModel) -> None:
    with pytest.raises(InputError, match=r"x must have the shape \(batch, 3\) for model 'flow:1', got \(2, 4, 3\)"):
        flow.run_step(np.zeros((2, 4, 3), np.float32))


def test_infinity_is_named_with_its_place(flow: ServedModel) -> None:
    x = np.zeros((2, 4, 3))
    x[1, 2, 0] = -np.inf
    with pytest.raises(InputError, match=r"x holds an infinite value at \(1, 2, 0\)"):
        flow.run_numpy(x)


def test_sessions_have_one_thread_that_does_not_spin(animals: ServedModel) -> None:
    for graph in (animals.sequence, animals.step):
        options = graph.session.get_session_options()
        assert options.intra_op_num_threads == 1
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert graph.session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.skipif(HAS_CUDA_DRIVER, reason="this machine has an NVIDIA driver")
def test_cuda_without_cuda_is_an_error_that_says_what_is_missing(published: Published) -> None:
    with pytest.raises(DeviceError) as caught:
        ServedModel.load(published.registry.get("animals:1"), "cuda")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        missing = "no NVIDIA driver was found on this machine"
    else:
        missing = f"this build of ONNX Runtime ({ort.__version__}) has no CUDA provider; install onnxruntime-gpu"
    assert str(caught.value) == f"The device 'cuda' cannot be used: {missing}. Use --device cpu or auto."


@pytest.mark.skipif(HAS_CUDA_DRIVER, reason="this machine has an NVIDIA driver")
def test_auto_without_cuda_runs_on_the_cpu_and_says_why(published: Published, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stablernn_runtime"):
        model = ServedModel.load(published.registry.get("animals:1"), "auto")
    assert model.placement.device == "cpu"
    assert model.placement.reason.startswith("auto: CPU, because ")
    assert f"animals:1 runs on cpu. {model.placement.reason}" in caplog.messages


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA_DRIVER, reason="needs an NVIDIA GPU and its driver")
def test_cuda_runs_on_cuda_with_the_numbers_of_the_cpu(published: Published) -> None:
    version = published.registry.get("flow:1")
    gpu = ServedModel.load(version, "cuda")
    assert gpu.sequence.session.ort_session.get_providers()[0] == "CUDAExecutionProvider"
    x = np.random.default_rng(5).normal(size=(4, 60, 3)).astype(np.float32)
    for name, value in ServedModel.load(version, "cpu").run_numpy(x).items():
        np.testing.assert_allclose(gpu.run_numpy(x)[name], value, rtol=1e-3, atol=1e-3)


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


def test_a_missing_graph_is_refused(published: Published, tmp_path: Path) -> None:
    registry = republished(published, tmp_path, lambda fields, files: files.pop("step.onnx") and None)
    assert refusal(registry).startswith("'animals:1' cannot be served: 'animals:1' has no file 'step.onnx'.")


def test_a_graph_that_differs_from_the_signature_is_refused(published: Published, tmp_path: Path) -> None:
    def change(fields: dict[str, Any], files: dict[str, Path]) -> None:
        fields["signature"]["sequence"]["outputs"][1]["name"] = "chances"

    assert refusal(republished(published, tmp_path, change)).startswith(
        "sequence.onnx of 'animals:1' has the outputs {'logits': ('tensor(float)', (-1, 4)), 'probabilities'"
    )


UNUSABLE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no step": (lambda s: s.pop("step"), "its signature lacks 'sequence' or 'step'."),
    "no states": (
        lambda s: s.update(states=[]),
        "the sequence in its signature has an input 'state_0' that is neither a state nor one of x, lengths, dt.",
    ),
    "no x": (
        lambda s: s["step"]["inputs"][0].update(name="y"),
        "the step in its signature has no input 'x'.",
    ),
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


def test_labels_that_do_not_fit_the_graph_are_refused(published: Published, tmp_path: Path) -> None:
    registry = republished(published, tmp_path, lambda fields, files: fields.update(labels=["a", "b"]))
    assert refusal(registry) == (
        "'animals:1' cannot be served: its manifest promises the output 'probabilities' in the shape (1, 2), the graph "
        "gives (1, 4)."
    )


# Graphs that could reach outside themselves.


def graph_bytes(published: Published) -> bytes:
    return published.registry.get("flow:1").read("sequence.onnx")


def test_real_graphs_pass(published: Published) -> None:
    for name in ("sequence.onnx", "step.onnx"):
        check_graph(published.registry.get("flow:1").read(name), name)


def _external_initializer(model: onnx.ModelProto) -> None:
    _external(model.graph.initializer[0])


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


def _contrib_opset(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("my.domain", 1))


def _function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    model.functions.append(helper.make_function("", "f", ["a"], ["b"], [node], [helper.make_opsetid("", 20)]))


def _old_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 13))


def _no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_external_initializer, "g refers to external data; only graphs in a single file are served."),
        (_external_in_the_scan_body, "g refers to external data; only graphs in a single file are served."),
        (_external_by_location_alone, "g refers to external data; only graphs in a single file are served."),
        (_contrib_node, "g uses the operator domain 'com.microsoft'; only standard ONNX operators are served."),
        (_contrib_opset, "g uses the operator domain 'my.domain'; only standard ONNX operators are served."),
        (_function, "g defines functions of its own; only standard ONNX operators are served."),
        (_old_opset, "g uses opset 13; opset 18 or higher is served. Export it again."),
        (_no_opset, "g is not an ONNX model: it names no opset."),
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
