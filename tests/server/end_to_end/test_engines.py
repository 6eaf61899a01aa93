"""Engines behind the command and the server: errors, metadata, and the numbers that clients get."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from websockets.sync.client import connect

import stablernn as srn
from engine_helpers import CUDA_ENGINES, KINDS, NEEDS_GPU, environment, publish, random_inputs
from published_models import Published, torch_answer
from serving_helpers import ServeProcess, failed_serve, start_serve
from stablernn.export.parity import SEQUENCE_CAP, max_errors
from step_forms import needs_native

pytestmark = pytest.mark.slow

# A classifier of two layers with a mean, a forecaster of single steps, a cell that the native engine does not run, and
# a forecaster of the kind that training builds by default, as an ensemble.
MAKERS = KINDS | {
    "window": lambda: srn.Forecaster(
        "lipschitz", 1, 5, 9, scaling="context", window=16, season=7, skip="linear", patch_size=4, members=2
    )
}
ON_CUDA = [pytest.param((*each.values, "cuda"), marks=[*each.marks, *NEEDS_GPU]) for each in CUDA_ENGINES]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Published:
    kinds = ["classes", "recursive", "members", "window"]
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), kinds, MAKERS)


def start(zoo: Published, folder: Path, engine: str, *words: str) -> ServeProcess:
    models = [word for name in ("classes", "recursive", "window") for word in ("--model", name)]
    return start_serve(zoo.root, folder / "log", "--engine", engine, *words, *models, environment=import_paths(engine))


def import_paths(engine: str) -> dict[str, str]:
    """The path of a process that finds the distribution of an engine where this one finds it."""
    folders = []
    if engine == "native":
        import stablernn_native

        folders.append(Path(stablernn_native.__file__).parents[1])
    return {"PYTHONPATH": environment(*folders)["PYTHONPATH"]}


@pytest.fixture(
    scope="module",
    params=[("torch", "cpu"), pytest.param(("native", "cpu"), marks=needs_native), *ON_CUDA],
    ids=lambda param: "-".join(param),
)
def served(
    request: pytest.FixtureRequest, zoo: Published, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, ServeProcess]]:
    """Engine, device, and a real process that was told to use them."""
    engine, device = request.param
    server = start(zoo, tmp_path_factory.mktemp("served"), engine, "--device", device)
    yield engine, device, server
    server.kill()


@pytest.fixture(scope="module")
def native(zoo: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    server = start(zoo, tmp_path_factory.mktemp("native"), "native")
    yield server
    server.kill()


@pytest.fixture
def client(native: ServeProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=native.url, timeout=30) as client:
        yield client


def triton_infer(url: str, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    client = triton.InferenceServerClient(url.removeprefix("http://"))
    tensors = []
    for key, value in inputs.items():
        tensors.append(triton.InferInput(key, list(value.shape), "INT64" if value.dtype == np.int64 else "FP32"))
        tensors[-1].set_data_from_numpy(value)
    result = client.infer(name, tensors)
    outputs = {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}
    client.close()
    return outputs


def session(client: httpx.Client, name: str, pieces: list[np.ndarray]) -> dict[str, Any]:
    """The last answer to a stream of samples, of which NaN is a missing value."""
    opened = client.post("/v1/sessions", json={"model": name}).raise_for_status().json()
    answer: dict[str, Any] = {}
    for values in pieces:
        body = {"values": np.where(np.isnan(values), None, values).tolist()}
        answer = client.post(f"/v1/sessions/{opened['session_id']}/step", json=body).raise_for_status().json()
    return answer


def test_a_foreign_client_and_a_session_get_the_numbers_of_the_model(
    served: tuple[str, str, ServeProcess], zoo: Published
) -> None:
    engine, device, server = served
    model = zoo.torch_models["classes:1"]
    allowed = SEQUENCE_CAP if device == "cuda" else 1e-5
    with httpx.Client(base_url=server.url, timeout=30) as client:
        facts = client.get("/v2/models/classes").json()["parameters"]
        assert (facts["engine"], facts["device"]) == (engine, device)
        assert f"classes:1 is run by the engine '{engine}'" in server.read_log() or engine == "onnx"
        inputs, _ = random_inputs(model, seed=3)
        inputs = {name: inputs[name] for name in ("x", "lengths")}
        expected = torch_answer(model, inputs["x"], inputs["lengths"])
        outputs = triton_infer(server.url, "classes", inputs)
        assert max_errors(expected, {name: outputs[name] for name in expected})[1] <= allowed
        x = np.random.default_rng(4).uniform(100, 600, (1, 9, 2)).astype(np.float32)
        answer = session(client, "classes", list(x[0]))
    assert answer["step"] == 9
    expected = torch_answer(model, x)["logits"][0]
    np.testing.assert_allclose(answer["outputs"][-1]["logits"], expected, rtol=SEQUENCE_CAP, atol=1e-4)


@needs_native
def test_the_native_engine_needs_no_torch(native: ServeProcess) -> None:
    mapped = Path(f"/proc/{native.process.pid}/maps")
    if not mapped.exists():
        pytest.skip("needs /proc")
    libraries = mapped.read_text()
    assert "kernels.so" in libraries
    assert "libtorch" not in libraries


@needs_native
def test_a_forecast_is_rolled_out(client: httpx.Client, zoo: Published) -> None:
    x = np.random.default_rng(6).uniform(100, 600, (1, 12, 2)).astype(np.float32)
    body = {"model": "recursive", "inputs": [{"series": x[0].tolist()}]}
    outputs = client.post("/v1/timeseries/forecast", json=body).raise_for_status().json()["outputs"]
    expected = torch_answer(zoo.torch_models["recursive:1"], x)["mean"][0]
    mean = np.array(outputs[0]["content"][0]["mean_forecast"], np.float32).reshape(expected.shape)
    np.testing.assert_allclose(mean, expected, rtol=1e-4)


@needs_native
def test_a_stream_of_a_default_forecaster_has_the_bits_of_its_sequence(
    client: httpx.Client, native: ServeProcess, zoo: Published
) -> None:
    x = np.random.default_rng(7).uniform(100, 600, (1, 24, 1)).astype(np.float32)
    x[0, 9] = np.nan
    whole = triton_infer(native.url, "window", {"x": x})
    reply = session(client, "window", list(x[0].reshape(6, 4, 1)))
    for output, expected in torch_answer(zoo.torch_models["window:1"], x).items():
        np.testing.assert_allclose(whole[output], expected, rtol=1e-4)
        assert np.array_equal(np.float32(reply["outputs"][-1][output]), whole[output][0]), output


@needs_native
def test_a_socket_goes_on_from_a_token_with_the_bits_of_a_sequence(client: httpx.Client, native: ServeProcess) -> None:
    x = np.random.default_rng(10).uniform(100, 600, (1, 9, 2)).astype(np.float32)
    expected = triton_infer(native.url, "classes", {"x": x})["logits"][0]
    token = None
    for sample in x[0, :4]:
        body = {"model": "classes", "values": sample.tolist()} | ({"state_token": token} if token else {})
        token = client.post("/v1/step", json=body).raise_for_status().json()["state_token"]
    with connect(native.url.replace("http", "ws") + "/v1/stream?model=classes") as socket:
        socket.recv()
        socket.send(json.dumps({"state_token": token}))
        socket.recv()
        for sample in x[0, 4:]:
            socket.send(json.dumps({"values": sample.tolist()}))
            reply = json.loads(socket.recv())
    assert reply["step"] == 9
    assert np.array_equal(np.float32(reply["outputs"][-1]["logits"]), expected)


def installed_without(folder: Path, *absent: str) -> Path:
    """A folder with what is installed here, but for some packages."""
    folder.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(absent):
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.parametrize(
    ("absent", "sentence", "code"),
    [
        (["torch"], "Error: The engine 'torch' cannot be used: the package 'torch' is not installed here.", 1),
        (
            ["stablernn-", "stablernn_native-", "_editable_impl_stablernn"],
            "Error: The engine 'torch' is not registered in this environment",
            2,
        ),
    ],
    ids=["torch", "the entry point"],
)
def test_serve_says_what_to_install(
    zoo: Published, tmp_path: Path, absent: list[str], sentence: str, code: int
) -> None:
    done = subprocess.run(
        # Without -S, the interpreter would add the folder of everything that is installed.
        [sys.executable, "-S", "-m", "stablernn_cli", "serve", "--port", "0", "--engine", "torch"],
        env=environment(installed_without(tmp_path / "packages", *absent), STABLERNN_REGISTRY=str(zoo.root)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr.splitlines()[-1].startswith(sentence)
    assert done.returncode == code


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (["tensorflow"], "Error: Unknown engine 'tensorflow'. Allowed here: auto, onnx, ", 2),
        pytest.param(
            ["native", "--model", "members"],
            "Error: 'members:1' cannot be served by the engine 'native': the step of the cell 'lstm' ",
            1,
            marks=needs_native,
        ),
    ],
    ids=["unknown", "another cell"],
)
def test_what_an_engine_cannot_run_is_refused(zoo: Published, words: list[str], sentence: str, code: int) -> None:
    exit_code, _, err = failed_serve(zoo.root, "--engine", *words, environment=import_paths(words[0]))
    assert exit_code == code
    assert err[-1].startswith(sentence)
    assert not any("Traceback" in line for line in err)
