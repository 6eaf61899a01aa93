"""The serving image: its files agree with each other, its install steps serve, and so does the image itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from certificate_helpers import make_certificate
from cli_helpers import first_document
from container_helpers import RUNNERS, Container, Storage, make_storage
from packages import PACKAGES, ROOT
from server_helpers import Published, Running, json_tensor, torch_answer
from serving_helpers import start_serve
from stablernn_registry import Registry
from stablernn_registry.copies import copy_versions

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
FINAL_STAGE = DOCKERFILE.rpartition("\nFROM ")[2]


def pins(variant: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"serve-{variant}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.removesuffix(" \\").split("==") for line in lines if not line.startswith(("#", " ")))


def hashes(variant: str) -> dict[str, list[str]]:
    """Hashes of the files that may be installed, by package."""
    text = (ROOT / "requirements" / f"serve-{variant}.txt").read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==\S+ \\\n((?:    --hash=.*\n)+)", text, flags=re.MULTILINE)
    return {name: re.findall(r"--hash=sha256:([0-9a-f]{64})(?: \\)?\n", lines) for name, lines in entries}


def test_pins_have_the_hashes_of_their_files_are_shared_and_none_is_torch() -> None:
    cpu, gpu = pins("cpu"), pins("gpu")
    for variant, pinned in (("cpu", cpu), ("gpu", gpu)):
        found = hashes(variant)
        assert found.keys() == pinned.keys()
        assert all(len(set(values)) == len(values) > 0 for values in found.values())
        # Wheels of other platforms and versions of Python, too.
        assert len(found["numpy"]) > 10
    shared = cpu.keys() - {"onnxruntime"}
    for table in (pins, hashes):
        assert {name: table("gpu")[name] for name in shared} == {name: table("cpu")[name] for name in shared}
    assert gpu["onnxruntime-gpu"] == cpu["onnxruntime"]
    assert not {"torch", "onnx", "triton"} & (cpu.keys() | gpu.keys())
    assert not any(name.startswith("nvidia-") for name in cpu)
    assert "onnxruntime" not in gpu
    assert re.search(r'--require-hashes \\\n +--requirement "requirements/serve-\${VARIANT}.txt"', DOCKERFILE)


def test_the_extra_cuda_and_the_gpu_image_bring_the_libraries_that_the_gpu_wheel_names() -> None:
    import tomllib
    from importlib import metadata

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = map(Requirement, project["optional-dependencies"]["cuda"])
    (alone,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "onnxruntime-gpu")
    assert (extra.name, extra.extras) == ("onnxruntime-gpu", {"cuda", "cudnn"})
    assert (extra.specifier, extra.marker) == (alone.specifier, alone.marker)
    try:
        named = [Requirement(text) for text in metadata.requires("onnxruntime-gpu") or ()]
    except metadata.PackageNotFoundError:
        pytest.skip("onnxruntime-gpu is not installed on this platform")
    for library in named:
        if library.marker and any(library.marker.evaluate({"extra": name}) for name in ("cuda", "cudnn")):
            assert library.specifier.contains(pins("gpu")[library.name]), library


def declared(project: str, *extras: str) -> set[str]:
    """Names of the requirements of a distribution."""
    import tomllib

    from packaging.requirements import Requirement

    table = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*table["dependencies"], *(text for extra in extras for text in table["optional-dependencies"][extra])]
    return {Requirement(text).name for text in texts}


def imported(package: str) -> set[str]:
    """Distributions that a package imports, wherever in a file."""
    import ast

    modules = set()
    for path in PACKAGES[package].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            modules |= {name.partition(".")[0] for name in names}
    foreign = {name for name in modules if name not in sys.stdlib_module_names and not name.startswith("stablernn")}
    # Import names of several distributions, of paho-mqtt, and of PyYAML.
    return {name.replace("_", "-") for name in foreign} - {"opentelemetry", "paho", "yaml"}


def test_each_distribution_declares_what_it_imports_and_the_image_pins_it() -> None:
    """What something else brings along may go away."""
    assert imported("stablernn_client") <= declared("client")
    assert imported("stablernn_registry") <= declared("registry")
    # An engine of the library has tensors of torch; it brings torch along.
    assert imported("stablernn_runtime") <= declared("runtime", "cpu", "tables") | {"torch"}
    assert imported("stablernn_server") <= declared("server", "cpu")
    # An editable installation of the whole project has the packages of all.
    parts = declared("client") | declared("registry") | declared("runtime", "tables") | declared("server", "commands")
    assert imported("stablernn_cli") | parts <= declared(".")
    assert declared("client") | declared("registry") | declared("runtime") <= pins("cpu").keys()
    assert declared("server", "cpu", "commands") <= pins("cpu").keys()


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored


def test_the_final_stage_is_not_root_and_installs_nothing() -> None:
    assert re.search(r"^USER 10001:10001$", FINAL_STAGE, re.MULTILINE)
    assert FINAL_STAGE.index("\nUSER ") < FINAL_STAGE.index("\nENTRYPOINT ")
    assert not re.search(r"\b(apt-get|pip|gcc|make)\b", FINAL_STAGE)
    assert re.search(r"^VOLUME /registry$", FINAL_STAGE, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["stablernn"\]\nCMD \["serve"\]$', FINAL_STAGE, re.MULTILINE)


def health_command() -> list[str]:
    found = re.search(r"HEALTHCHECK .*?CMD (\[.*?\])\n", FINAL_STAGE, re.DOTALL)
    assert found
    [python, *arguments] = json.loads(found[1])
    assert python == "python"
    return [sys.executable, *arguments]


def is_healthy(**environment: str) -> bool:
    # A proxy that the environment names is not asked: nothing listens on port 1.
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", **environment}
    return subprocess.run(health_command(), env=environment, capture_output=True).returncode == 0


def test_the_health_command_says_yes_to_a_ready_server_and_no_to_none(server: Running) -> None:
    assert is_healthy(STABLERNN_PORT=str(server.port))
    assert not is_healthy(STABLERNN_PORT="1")


@pytest.mark.slow
def test_the_health_command_says_no_to_a_server_that_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = subprocess.Popen(health_command(), env={**os.environ, "STABLERNN_PORT": str(port)})
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            assert command.wait(20) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_health_command_speaks_https_where_the_server_does(published: Published, tmp_path: Path) -> None:
    make_certificate(tmp_path, "own")
    certificate = tmp_path / "own.pem"
    files = ("--tls-cert-file", certificate, "--tls-key-file", tmp_path / "own.key")
    server = start_serve(published.root, tmp_path / "log", "--model", "animals:1", *files)
    try:
        assert is_healthy(STABLERNN_PORT=str(server.port), STABLERNN_TLS_CERT_FILE=str(certificate))
        assert not is_healthy(STABLERNN_PORT=str(server.port), STABLERNN_TLS_CERT_FILE="")
    finally:
        server.kill()


@pytest.mark.slow
def test_the_install_steps_give_an_environment_that_serves_without_torch(published: Published, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    run = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    into = [*run, "--python", python, "install", "--quiet"]
    subprocess.run([*into, "--require-hashes", "--requirement", ROOT / "requirements" / "serve-cpu.txt"], check=True)
    projects = [ROOT, *(ROOT / name for name in ("client", "registry", "runtime", "server"))]
    subprocess.run([*run, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheels", *projects], check=True)
    subprocess.run([*into, "--no-deps", *(tmp_path / "wheels").iterdir()], check=True)

    # Away from the checkout and its path, so that only what was installed can be imported.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STABLERNN"))}
    own["STABLERNN_REGISTRY"] = str(published.root)
    for absent in ("torch", "onnx", "polars"):
        missing = subprocess.run([python, "-c", f"import {absent}"], env=own, cwd=tmp_path, capture_output=True)
        assert b"ModuleNotFoundError" in missing.stderr
    listing = [environment / "bin" / "stablernn", "registry", "list", "--json"]
    listed = subprocess.run(listing, env=own, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert {entry["name"] for entry in json.loads(listed.stdout)} == {"animals", "co2", "flow"}

    command = [environment / "bin" / "stablernn", "serve", "--model", "animals@production", "--port", "0", "--json"]
    process = subprocess.Popen(command, env=own, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        url = first_document(process.stdout)["url"]
        x = np.linspace(-3, 3, 9, dtype=np.float32).reshape(1, 9, 1)
        body = {"inputs": [json_tensor("x", x)], "outputs": [{"name": "probabilities"}]}
        answer = httpx.post(f"{url}/v2/models/animals/infer", json=body)
        assert answer.status_code == 200, answer.text
        expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"]
        np.testing.assert_allclose(answer.json()["outputs"][0]["data"], expected.ravel(), atol=1e-5)
        assert httpx.get(f"{url}/v2/models/animals").json()["parameters"]["device"] == "cpu"
    finally:
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    folder = tmp_path_factory.mktemp("containers")
    yield make_storage(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def checkout_image(storage: Storage) -> dict[str, Any]:
    """The configuration of the image that the Dockerfile of this checkout makes."""
    return storage.build(ROOT, "localhost/checkout")


@pytest.fixture(scope="module")
def context(published: Published, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What ``stablernn dockerize`` wrote, and what it said of it."""
    folder = tmp_path_factory.mktemp("context") / "image"
    command = [sys.executable, "-m", "stablernn_cli", "dockerize", "animals@production", "--output", folder, "--json"]
    environment = {**os.environ, "STABLERNN_REGISTRY": str(published.root)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module")
def models_image(storage: Storage, context: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    return storage.build(context[0], "localhost/models")


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_image_of_the_checkout_serves_a_registry_beside_it(
    storage: Storage,
    checkout_image: dict[str, Any],
    published: Published,
    context: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    runner: str,
) -> None:
    copy_versions(published.registry, [published.registry.get("animals@production")], tmp_path / "registry")
    mounts = {context[0] / "secrets": "/run/secrets:ro", tmp_path / "registry": "/registry:ro"}
    environment = secret_files() | {"STABLERNN_MODELS": "animals@production"}
    options = {"environment": environment, "mounts": mounts}
    with RUNNERS[runner](storage, "localhost/checkout", checkout_image, tmp_path, **options) as container:
        check(container, runner, published, context[0] / "secrets" / "tokens")


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_image_with_its_models_serves_them(
    storage: Storage,
    models_image: dict[str, Any],
    published: Published,
    context: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    runner: str,
) -> None:
    folder, document = context
    options = {
        "environment": secret_files(),
        "mounts": {folder / "secrets": "/run/secrets:ro"},
        "user": document["user"],
    }
    with RUNNERS[runner](storage, "localhost/models", models_image, tmp_path, **options) as container:
        verified = container.run("stablernn", "registry", "verify", "animals:1", "--json")
        assert json.loads(verified.stdout)["ok"] is True
        assert Registry(folder / "registry").get("animals@production").ref == "animals:1"
        check(container, runner, published, Path(document["tokens_file"]))


@pytest.mark.slow
def test_what_the_images_say_of_themselves(
    checkout_image: dict[str, Any], models_image: dict[str, Any], published: Published
) -> None:
    assert checkout_image["Healthcheck"]["Test"] == ["CMD", "python", "-m", "stablernn_cli.healthcheck"]
    assert list(checkout_image["Volumes"]) == ["/registry"]
    assert not models_image.get("Volumes")
    held = published.registry.get("animals:1")
    assert models_image["Labels"]["stablernn.nn.models"] == f"animals:1@{held.digest}"


def secret_files() -> dict[str, str]:
    return {
        "STABLERNN_TOKENS_FILE": "/run/secrets/tokens",
        "STABLERNN_STATE_KEY_FILE": "/run/secrets/state_key",
    }


def check(container: Container, runner: str, published: Published, tokens: Path) -> None:
    """Who it runs as, what is not in it, that it answers rightly and to whom, and how it stops."""
    assert container.run("id", "-u").stdout == "10001\n"
    assert b"ModuleNotFoundError" in container.run("python", "-c", "import torch").stderr.encode()
    assert container.run("sh", "-c", "command -v gcc cc make").returncode != 0
    assert container.run("python", "-m", "stablernn_cli.healthcheck").returncode == 0
    if runner == "podman":
        for path in ("/registry/x", "/opt/stablernn/x", "/x"):
            assert "Read-only file system" in container.run("touch", path).stderr

    x = np.linspace(-3, 3, 9, dtype=np.float32).reshape(1, 9, 1)
    body = json.dumps({"inputs": [json_tensor("x", x)], "outputs": [{"name": "probabilities"}]}).encode()
    path = "/v2/models/animals/infer"
    assert httpx.post(container.url + path, content=body).status_code == 401
    token = dict(line.split() for line in tokens.read_text().splitlines())["infer"]
    headers = {"Authorization": f"Bearer {token}"}
    expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"].ravel()
    answer = httpx.post(container.url + path, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(answer.json()["outputs"][0]["data"], expected, atol=1e-5)

    with contextlib.closing(socket.create_connection(("127.0.0.1", container.port))) as late:
        head = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", f"Content-Length: {len(body)}"]
        late.sendall("\r\n".join([*head, "Expect: 100-continue", "Connection: close", "\r\n"]).encode())
        # The server asks for the body, so the request is in hand when it is told to stop.
        assert late.recv(4096).startswith(b"HTTP/1.1 100 ")
        container.terminate()
        late.sendall(body)
        received = b"".join(iter(lambda: late.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 200 "), received
    [output] = json.loads(received.partition(b"\r\n\r\n")[2])["outputs"]
    np.testing.assert_allclose(output["data"], expected, atol=1e-5)
    assert container.process.wait(30) == 0
    log = container.log.read_text()
    assert log.rstrip().endswith("Stopped."), log
    # What ONNX Runtime would say where it cannot keep an identity to send.
    assert "telemetry" not in log
