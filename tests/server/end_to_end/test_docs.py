"""docs/http.md: every command in it that is not about a container is run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from page_helpers import copy_version
from server_helpers import Published, Running, serve
from stablernn_registry import Registry
from stablernn_server import Settings, create_app

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found


@pytest.fixture(scope="module")
def documented(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the models that the page speaks of: the tests' own, under those names."""
    registry = Registry(tmp_path_factory.mktemp("documented"))
    for name, source in {"digits": "animals:1", "co2": "co2:1"}.items():
        copy_version(published, registry, source, name)
    registry.set_alias("digits", "production", 1)
    yield from serve(create_app(Settings(registry=registry.root, models=("digits@production", "co2"))))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.split("\n")[0][-60:])
def test_curl_examples(documented: Running, block: str) -> None:
    script = block.replace("curl -s ", "curl -s --fail-with-body ").replace(
        "localhost:8080", f"127.0.0.1:{documented.port}"
    )
    result = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, timeout=30)
    assert result.returncode == 0, result.stdout
    if b"Inference-Header-Content-Length" not in block.encode():
        decoder, at, text = json.JSONDecoder(), 0, result.stdout.decode()
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            assert "error" not in value or value["error"] is None


def test_python_example(documented: Running, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = blocks("python")
    exec(compile(block.replace("localhost:8080", f"127.0.0.1:{documented.port}"), "docs/http.md", "exec"), {})
    assert capsys.readouterr().out == "(2, 4)\n"
