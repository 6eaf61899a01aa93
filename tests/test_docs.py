"""What the README and the pages under docs/ say is run here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer

from stablernn_cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def stablernn_lines() -> list[str]:
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("stablernn ")]


def test_the_python_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(README, "python")
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["logits"].shape == (32, 10)
    assert (tmp_path / "exported" / "sequence.onnx").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:docs|tests|stablernn|registry|server|cli|benchmarks|requirements)/[\w./-]*)`", page.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_code_that_contributing_shows_is_that_of_the_files() -> None:
    excerpts = blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "python")
    assert len(excerpts) >= 5
    for excerpt in excerpts:
        head, code = excerpt.split("\n", 1)
        assert code in (ROOT / head.removeprefix("# ")).read_text(encoding="utf-8"), head


@pytest.mark.parametrize("line", stablernn_lines())
def test_every_command_line_of_the_readme_is_one(line: str) -> None:
    words = shlex.split(line)[1:]
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert command.make_context("stablernn", words).params


@pytest.mark.slow
def test_the_readme_from_data_to_a_served_model(tmp_path: Path) -> None:
    """The shell blocks as they stand, but for the port, the registry's place and the server's end."""
    environment = {**os.environ, "STABLERNN_REGISTRY": str(tmp_path / "registry")}
    commands = {line: [sys.executable, "-m", "stablernn_cli", *shlex.split(line)[1:]] for line in stablernn_lines()}
    serving = [line for line in commands if line.startswith("stablernn serve")]
    assert len(serving) == 1
    for line, command in commands.items():
        if line not in serving:
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([*commands[serving[0]], "--port", str(port)], cwd=tmp_path, env=environment)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        (curl,) = [block for block in blocks(README, "sh") if block.startswith("curl")]
        words = shlex.split(curl.replace("localhost:8080", f"127.0.0.1:{port}").replace("\\\n", " "))
        if shutil.which("curl") is None:
            pytest.skip("curl is not on this machine")
        answer = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        assert len(answer["outputs"][0]["content"][0]["probabilities"]) == 3
    finally:
        server.terminate()
        assert server.wait(timeout=30) == 0
