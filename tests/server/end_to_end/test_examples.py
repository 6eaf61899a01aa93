"""The programs of examples/ as they stand, against a server that wants a token."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_helpers import ServerProcess
from exports import exported
from server_helpers import Published
from stablernn.nn.models import Classifier
from stablernn_registry import Registry

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
TOKEN = "a-token-of-the-examples"
STRIDES = {"plain": 1, "patches": 3}
"""Samples after which each model has a label."""


@pytest.fixture(scope="module", params=["plain", "patches"])
def served(
    request: pytest.FixtureRequest, published: Published, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Address, and which of two models stands for the one that the examples call digits."""
    registry = Registry(tmp_path_factory.mktemp("examples"))
    for name, source in {"digits": "animals:1", "co2": "co2:1"}.items():
        version = published.registry.get(source)
        fields: dict[str, Any] = version.manifest.model_dump(
            exclude={"schema_number", "name", "version", "created", "files"}
        )
        files: dict[str, Any] = {file: version.path(file) for file in version.manifest.files}
        if (name, request.param) == ("digits", "patches"):
            model = Classifier("lipschitz", 1, num_classes=4, hidden_size=8, patch_size=6, patch_stride=3)
            model.fit_scaling([np.arange(30, dtype=np.float32).reshape(30, 1)])
            report = exported(model.eval(), tmp_path_factory.mktemp("export"))
            files, fields = dict(report.files), fields | {"signature": report.signature, "parity": report.parity}
        registry.publish(name, files, fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STABLERNN_INFER_TOKENS", TOKEN)
        process = ServerProcess(registry.root, tmp_path_factory.mktemp("log") / "log")
    yield process.url, request.param
    process.kill()


def commands() -> dict[str, list[str] | None]:
    """How each program is run here; None where this machine lacks what runs it."""
    node = shutil.which("node")
    flags: list[str] = []
    if node:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
        major = int(version.strip().removeprefix("v").partition(".")[0])
        node = node if major >= 20 else None
        flags = ["--experimental-websocket"] if major < 22 else []
    has_curl = shutil.which("bash") and shutil.which("curl")
    return {
        "curl.sh": ["bash", "curl.sh"] if has_curl else None,
        "python_client.py": [sys.executable, "python_client.py"],
        "javascript.mjs": [node, *flags, "javascript.mjs"] if node else None,
    }


def run(name: str, url: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    words = commands()[name]
    if words is None:
        pytest.skip(f"what runs {name} is not on this machine")
    environment = {**os.environ, "STABLERNN_URL": url, "NODE_NO_WARNINGS": "1"}
    if token is not None:
        environment["STABLERNN_TOKEN"] = token
    return subprocess.run(words, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=60)


def test_the_curl_script(served: tuple[str, str]) -> None:
    done = run("curl.sh", served[0])
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^step \d: (cat|dog|owl|rat)$", done.stdout, re.MULTILINE)
    assert "step 4" in done.stdout
    assert '"mean_forecast":[' in done.stdout


def test_the_python_program(served: tuple[str, str]) -> None:
    url, kind = served
    done = run("python_client.py", url)
    assert (done.returncode, done.stderr) == (0, "")
    steps = re.findall(r"^step (\d+): (?:cat|dog|owl|rat)$", done.stdout, re.MULTILINE)
    assert [int(step) for step in steps] == list(range(STRIDES[kind], 49, STRIDES[kind]))
    assert "100 streams, 4800 steps" in done.stdout


def test_the_javascript_program(served: tuple[str, str]) -> None:
    url, kind = served
    done = run("javascript.mjs", url)
    assert (done.returncode, done.stderr) == (0, "")
    steps = re.findall(r"^step (\d+): (?:cat|dog|owl|rat)$", done.stdout, re.MULTILINE)
    assert [int(step) for step in steps] == list(range(STRIDES[kind], 25, STRIDES[kind]))
    assert "stream 1 is at step 24" in done.stdout
    assert "2 streams in one frame, 24 and 24 steps" in done.stdout


@pytest.mark.parametrize("name", ["curl.sh", "python_client.py", "javascript.mjs"])
def test_an_error_of_the_server_is_shown(served: tuple[str, str], name: str) -> None:
    done = run(name, served[0], token=None)
    assert done.returncode != 0
    assert "token" in done.stdout + done.stderr
