"""Engines: torch says what the graphs say, and what is chosen, refused and missing is said in words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from engine_helpers import (
    CUDA_ENGINES,
    EACH_KIND,
    NEEDS_GPU,
    allowed,
    environment,
    random_inputs,
    sequence,
    write_plugin,
    zeros,
)
from published_models import Published
from stablernn.export.parity import SEQUENCE_CAP, STEP_TOLERANCE, _split_steps, max_errors
from stablernn.server_engine import TorchGraph
from stablernn_registry import Registry, Signature
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.select import BATCH, Request, candidates_for, open_fastest, open_version, select_fastest
from stablernn_runtime.engines.session import GpuOptions
from stablernn_runtime.errors import DeviceError, ModelLoadError, NotReadyError, SettingsError
from stablernn_runtime.graph import CancellationToken

ONNX_RUNTIME = f"ONNX Runtime {ort.__version__}"


PLACES = [
    ("torch", "cpu"),
    *(pytest.param(*engine.values, "cuda", marks=[*engine.marks, *NEEDS_GPU]) for engine in CUDA_ENGINES),
]
EACH_PLACE = pytest.mark.parametrize(("engine", "device"), PLACES)


def pair(zoo: Published, kind: str, engine: str, device: str) -> tuple[ServedModel, ServedModel]:
    """The same version by ONNX Runtime on the CPU, and by another engine or on another device."""
    version = zoo.registry.get(kind)
    return ServedModel.load(version, "cpu"), ServedModel.load(version, device, engine=engine)


def tolerance(model: ServedModel) -> float:
    return allowed(model) if model.placement.device == "cpu" else SEQUENCE_CAP


@EACH_PLACE
@pytest.mark.parametrize("kind", EACH_KIND)
def test_whole_sequences_agree_within_the_parity_report(zoo: Published, kind: str, engine: str, device: str) -> None:
    onnx, other = pair(zoo, kind, engine, device)
    assert (onnx.engine, other.engine, other.placement.device) == ("onnx", engine, device)
    inputs, _ = random_inputs(zoo.torch_models[f"{kind}:1"], seed=1)
    expected = sequence(onnx, inputs, zeros(onnx, 5))
    actual = sequence(other, inputs, zeros(onnx, 5))
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (value.dtype, value.shape)
        assert actual[name].flags.c_contiguous
    assert max_errors(expected, actual)[1] <= tolerance(other)
    # On from the states that were reached, with other values.
    states, following = onnx.next_state(expected), random_inputs(zoo.torch_models[f"{kind}:1"], seed=2)[0]
    expected, actual = sequence(onnx, following, states), sequence(other, following, states)
    assert max_errors(expected, actual)[1] <= tolerance(other)


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_step_agrees_within_the_parity_report(zoo: Published, kind: str) -> None:
    onnx, by_torch = pair(zoo, kind, "torch", "cpu")
    model = zoo.torch_models[f"{kind}:1"]
    inputs, known = random_inputs(model, seed=3)
    states = onnx.next_state(sequence(onnx, inputs, zeros(onnx, 5)))
    read = {name: value for name, value in inputs.items() if name in (onnx.input_name, "dt")}
    given = {**_split_steps(model, read)[0], **known, **states}
    expected, actual = onnx.run(onnx.step, given), by_torch.run(by_torch.step, given)
    assert {name: (value.dtype, value.shape) for name, value in actual.items()} == {
        name: (value.dtype, value.shape) for name, value in expected.items()
    }
    assert max_errors(expected, actual)[1] <= STEP_TOLERANCE


@EACH_PLACE
@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_stream_comes_to_what_the_whole_sequence_comes_to(
    zoo: Published, kind: str, engine: str, device: str
) -> None:
    served = ServedModel.load(zoo.registry.get(kind), device, engine=engine)
    model = zoo.torch_models[f"{kind}:1"]
    inputs, known = random_inputs(model, seed=4)
    del inputs["lengths"]
    whole = sequence(served, inputs, {})
    states, outputs = zeros(served, 5), {}
    for sample in _split_steps(model, {name: value for name, value in inputs.items() if name not in known}):
        outputs = served.run(served.step, {**sample, **known, **states})
        states = served.next_state(outputs)
    if model.every_step:
        whole = {
            name: value if name in served.sequence.state_outputs else value[:, -1] for name, value in whole.items()
        }
    assert max_errors(whole, outputs)[1] <= tolerance(served)


def test_padding_changes_nothing_beyond_rounding(zoo: Published) -> None:
    by_torch = ServedModel.load(zoo.registry.get("classes"), "cpu", engine="torch")
    inputs, _ = random_inputs(zoo.torch_models["classes:1"], seed=5)
    spoiled = inputs["x"].copy()
    for row, length in zip(spoiled, inputs["lengths"], strict=True):
        row[length:] = 1e30
    assert np.array_equal(
        sequence(by_torch, inputs, {})["logits"], sequence(by_torch, {**inputs, "x": spoiled}, {})["logits"]
    )
    together = sequence(by_torch, inputs, {})
    for row, length in enumerate(inputs["lengths"]):
        alone = sequence(by_torch, {"x": inputs["x"][row : row + 1, :length]}, {})
        assert max_errors(alone, {name: value[row : row + 1] for name, value in together.items()})[1] < 1e-5


@pytest.mark.slow
def test_a_recursive_head_is_rolled_out_as_the_model_does(zoo: Published) -> None:
    by_torch = ServedModel.load(zoo.registry.get("recursive"), "cpu", engine="torch")
    model = zoo.torch_models["recursive:1"]
    generator = np.random.default_rng(6)
    x = generator.uniform(100, 600, (3, 20, 2)).astype(np.float32)
    future = generator.uniform(100, 600, (3, 5, 1)).astype(np.float32)
    with torch.no_grad():
        expected = {
            name: value.numpy()
            for name, value in model.run(torch.from_numpy(x), future=torch.from_numpy(future))[0].items()
        }
    assert expected["mean"].shape == (3, 5, 1)
    assert max_errors(expected, by_torch.run_numpy(x, future=future))[1] <= allowed(by_torch)


def test_outputs_share_no_memory_with_inputs() -> None:
    graph = TorchGraph(lambda inputs: {"kept": inputs["state_0"], "row": inputs["x"][1:]}, torch.device("cpu"))
    feeds = {"state_0": np.ones((2, 3), np.float32), "x": np.ones((2, 3), np.float32)}
    kept, row = graph.run(["kept", "row"], feeds)
    assert not np.shares_memory(kept, feeds["state_0"])
    assert not np.shares_memory(row, feeds["x"])


@pytest.mark.filterwarnings("error")
def test_read_only_inputs_are_fine() -> None:
    graph = TorchGraph(lambda inputs: {"twice": 2 * inputs["x"]}, torch.device("cpu"))
    (twice,) = graph.run(["twice"], {"x": np.frombuffer(np.ones(3, np.float32).tobytes(), np.float32)})
    assert np.array_equal(twice, [2, 2, 2])


def test_too_little_memory_is_a_memory_error() -> None:
    graph = TorchGraph(lambda inputs: {"much": torch.empty(2**50)}, torch.device("cpu"))
    with pytest.raises(MemoryError, match=r"^torch has not enough memory on the device 'cpu'\.$"):
        graph.run(["much"], {})


def test_a_run_that_was_ended_does_not_begin(zoo: Published) -> None:
    by_torch = ServedModel.load(zoo.registry.get("classes"), "cpu", engine="torch")
    stop = CancellationToken()
    assert by_torch.run_numpy(np.zeros((1, 3, 2), np.float32), cancellation=stop)
    stop.set()
    with pytest.raises(NotReadyError):
        by_torch.run_numpy(np.zeros((1, 3, 2), np.float32), cancellation=stop)


# What is chosen, and what is said of it.


FIGURES = re.compile(rf"one sequence of \d+ steps (\S+) ms, {BATCH} sequences (\S+) ms, one step (\S+) ms")


@pytest.mark.parametrize("order", ["the slow one first", "the slow one last"])
def test_the_faster_of_two_is_taken_with_the_figures_of_both(
    zoo: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.syspath_prepend(str(write_plugin(tmp_path)))
    version = zoo.registry.get("classes")
    signature = Signature.model_validate(version.manifest.signature)
    rivals = [open_version(version, signature, "cpu", name, 1) for name in ("sleepy", "onnx")]
    chosen = select_fastest(rivals if order == "the slow one first" else rivals[::-1], signature, steps=7)
    assert chosen.engine == "onnx"
    assert chosen.reason.startswith(f"auto: {ONNX_RUNTIME}, measured on cpu: one sequence of 7 steps ")
    assert "; plugin 1.0: one sequence of 7 steps " in chosen.reason
    quick, slow = (np.prod([float(number) for number in found]) for found in FIGURES.findall(chosen.reason))
    assert quick < slow


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, for which test_gpu.py is")
def test_auto_without_a_usable_gpu_ends_on_the_cpu_or_says_what_is_missing(zoo: Published) -> None:
    version = zoo.registry.get("classes")
    signature = Signature.model_validate(version.manifest.signature)
    # What auto does once a driver reports a GPU, which then cannot be used.
    opened = open_fastest(Request(version, signature), candidates_for("auto", "auto"))
    assert (opened.engine, opened.placement.device) == ("onnx", "cpu")
    assert opened.placement.reason.startswith("auto: CPU, because ")
    with pytest.raises(DeviceError, match=r"^The device 'cuda' cannot be used: .+\. Use --device cpu or auto\.$"):
        open_fastest(Request(version, signature), candidates_for("auto", "cuda"))


# Devices, packages and files that are not there.


PLUGINS: dict[str, tuple[type[Exception], str]] = {
    "no-model": (
        ModelLoadError,
        "'classes:1' cannot be served by the engine 'no-model': the plugin reads no such model.",
    ),
    "no-package": (
        ModelLoadError,
        "The engine 'no-package' cannot be used: the package 'a_package_that_nobody_has' is not installed here. "
        "Install 'some-engines' with all that it needs ('pip install some-engines'), or use --engine onnx.",
    ),
    "failing": (
        ModelLoadError,
        "'classes:1' cannot be served: the engine 'failing' over sequences of 'classes:1' failed: 'a kernel'.",
    ),
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(write_plugin(tmp_path)))


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", PLUGINS)
def test_an_engine_that_does_not_work_here_says_why(zoo: Published, name: str) -> None:
    kind, sentence = PLUGINS[name]
    with pytest.raises(kind) as caught:
        ServedModel.load(zoo.registry.get("classes"), "cpu", engine=name)
    assert str(caught.value) == sentence


@pytest.mark.usefixtures("plugin")
def test_an_engine_of_another_package_runs(zoo: Published) -> None:
    version = zoo.registry.get("classes")
    plain, onnx = ServedModel.load(version, "cpu", engine="plain"), ServedModel.load(version, "cpu")
    assert (plain.engine, plain.engine_reason) == ("plain", "plugin 1.0")
    inputs, _ = random_inputs(zoo.torch_models["classes:1"], seed=7)
    assert max_errors(sequence(onnx, inputs, {}), sequence(plain, inputs, {}))[1] <= allowed(onnx)


@pytest.mark.usefixtures("plugin")
def test_an_engine_that_takes_no_settings_of_a_gpu_refuses_them(zoo: Published) -> None:
    with pytest.raises(SettingsError, match="The engine 'plain' does not take gpu_mem_limit 1048576"):
        ServedModel.load(zoo.registry.get("classes"), "auto", engine="plain", gpu=GpuOptions(memory_limit=2**20))


@pytest.mark.usefixtures("plugin")
def test_an_engine_with_another_signature_is_refused(zoo: Published) -> None:
    with pytest.raises(ModelLoadError) as caught:
        ServedModel.load(zoo.registry.get("classes"), "cpu", engine="other")
    assert str(caught.value).startswith(
        "'classes:1' cannot be served by the engine 'other': its sequence has the outputs {'logits': "
        "('tensor(float)', (-1, 99)), "
    )


def copied(zoo: Published, root: Path, *without: str) -> Registry:
    version = zoo.registry.get("classes")
    fields = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    registry = Registry(root)
    files = {name: version.path(name) for name in version.manifest.files if name not in without}
    registry.publish("classes", files, fields)
    return registry


def test_weights_that_do_not_match_their_digest_are_refused(zoo: Published, tmp_path: Path) -> None:
    registry = copied(zoo, tmp_path)
    assert ServedModel.load(registry.get("classes"), "cpu", engine="torch").engine == "torch"
    blob = registry.get("classes").path("weights.safetensors")
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        ServedModel.load(registry.get("classes"), "cpu", engine="torch")
    assert str(caught.value).startswith(
        "'classes:1' cannot be served by the engine 'torch': 'weights.safetensors' of 'classes:1'"
    )


# A process of its own.


OPENED = """
import sys
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
model = ServedModel.load(Registry(sys.argv[1]).get("classes"), "auto", engine=sys.argv[2])
print(model.engine, "torch" in sys.modules, "stablernn" in sys.modules)
"""


@pytest.mark.parametrize(
    ("engine", "said"), [("auto", "onnx False False"), pytest.param("torch", "torch True True", marks=pytest.mark.slow)]
)
def test_torch_is_imported_for_its_engine_alone(zoo: Published, engine: str, said: str) -> None:
    if engine == "auto" and torch.cuda.is_available():
        pytest.skip("on a GPU auto looks at torch")
    done = subprocess.run(
        [sys.executable, "-c", OPENED, str(zoo.root), engine],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == said
