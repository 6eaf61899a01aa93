"""The serving image: its files agree with each other, and its install steps give an environment that serves."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from server_helpers import Published, Running, json_tensor, torch_answer

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
FINAL_STAGE = DOCKERFILE.rpartition("\nFROM ")[2]


def pins(variant: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"serve-{variant}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_requirement_is_pinned_and_none_is_torch() -> None:
    cpu, gpu = pins("cpu"), pins("gpu")
    assert not {"torch", "onnx", "triton"} & (cpu.keys() | gpu.keys())
    assert "onnxruntime" in cpu
    assert "onnxruntime-gpu" in gpu
    assert "onnxruntime" not in gpu
    assert not any(name.startswith("nvidia-") for name in cpu)
    shared = cpu.keys() - {"onnxruntime"}
    assert {name: gpu[name] for name in shared} == {name: cpu[name] for name in shared}
    assert gpu["onnxruntime-gpu"] == cpu["onnxruntime"]


def test_the_requirements_hold_everything_that_the_image_imports() -> None:
    named = (ROOT / "requirements" / "serve.in").read_text(encoding="utf-8").splitlines()
    assert {line for line in named if not line.startswith("#")} <= pins("cpu").keys()


def test_everything_that_is_imported_is_declared() -> None:
    """By the packages that the image runs, wherever in a file: what something else brings along may go away."""
    import ast
    import tomllib

    from packaging.requirements import Requirement

    folders = ("registry/stablernn_registry", "server/stablernn_server", "cli/stablernn_cli")
    imported = set()
    for path in itertools.chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            imported |= {name.partition(".")[0] for name in names}
    foreign = {name for name in imported if name not in sys.stdlib_module_names and not name.startswith("stablernn")}
    distributions = {name.replace("_", "-") for name in foreign} - {"yaml"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {Requirement(text).name for text in project["dependencies"]}
    assert distributions <= declared
    named = (ROOT / "requirements" / "serve.in").read_text(encoding="utf-8").split()
    not_in_the_image = {"torch", "polars", "matplotlib", "onnx", "onnxruntime"}
    assert distributions - not_in_the_image <= set(named)


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored


def test_the_final_stage_is_not_root_and_installs_nothing() -> None:
    assert re.search(r"^USER 10001$", FINAL_STAGE, re.MULTILINE)
    assert FINAL_STAGE.index("\nUSER ") < FINAL_STAGE.index("\nENTRYPOINT ")
    assert not re.search(r"\b(apt-get|pip|gcc|make)\b", FINAL_STAGE)
    assert re.search(r"^VOLUME /registry$", FINAL_STAGE, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["stablernn"\]\nCMD \["serve"\]$', FINAL_STAGE, re.MULTILINE)


def test_the_health_command_says_yes_to_a_ready_server_and_no_to_none(server: Running) -> None:
    found = re.search(r"HEALTHCHECK .*?CMD (\[.*?\])\n", FINAL_STAGE, re.DOTALL)
    assert found
    [_, *arguments] = json.loads(found[1])

    def healthy(port: int) -> bool:
        environment = {**os.environ, "STABLERNN_PORT": str(port)}
        return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True).returncode == 0

    assert healthy(server.port)
    assert not healthy(1)


@pytest.mark.slow
def test_the_install_steps_give_an_environment_that_serves_without_torch(published: Published, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    run = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    into = [*run, "--python", python, "install", "--quiet"]
    subprocess.run([*into, "--requirement", ROOT / "requirements" / "serve-cpu.txt"], check=True)
    subprocess.run([*run, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheels", ROOT], check=True)
    [wheel] = (tmp_path / "wheels").glob("stablernn-*.whl")
    subprocess.run([*into, "--no-deps", wheel], check=True)

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
        # One JSON document over several lines; its closing brace stands alone.
        lines = iter(process.stdout.readline, "")
        url = json.loads("".join([*itertools.takewhile(lambda line: line != "}\n", lines), "}"]))["url"]
        x = np.linspace(-3, 3, 9, dtype=np.float32).reshape(1, 9, 1)
        body = {"inputs": [json_tensor("x", x)], "outputs": [{"name": "probabilities"}]}
        answer = httpx.post(f"{url}/v2/models/animals/infer", json=body)
        assert answer.status_code == 200, answer.text
        expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"]
        np.testing.assert_allclose(answer.json()["outputs"][0]["data"], expected.ravel(), atol=1e-5)
        assert httpx.get(f"{url}/v2/models/animals").json()["parameters"]["device"] == "cpu"
    finally:
        process.terminate()
        assert process.wait(30) == 0
