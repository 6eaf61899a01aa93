"""The commands and programs of README, docs/start and docs/guides, run block by block as a reader would.

A block of ``sh`` runs in bash and must succeed; one that ends with ``stablernn serve`` is a server that answers until
the next one starts. A block of ``python`` runs in one namespace for each page; with ``title="FILE"`` it is written to
that file instead. Blocks of ``console`` and ``text`` are shown only. The guides begin where docs/start ends.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import first_document

ROOT = Path(__file__).parents[1]
START = [ROOT / "docs" / "start" / f"{name}.md" for name in ("install", "forecast", "classifier", "stream")]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```(sh|python)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::stablernn.errors.UntrainedWarning"),
    pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="bash or curl is missing"),
]


class Reader:
    """Somebody who types what a page says, in a folder of their own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {
            **os.environ,
            "STABLERNN_REGISTRY": str(folder / "registry"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        self.server: subprocess.Popen[str] | None = None

    def read(self, page: Path) -> dict[str, Any]:
        """Run the blocks of a page, and return the names that its programs leave."""
        names: dict[str, Any] = {}
        for language, file, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            code = text.replace("localhost:8080", f"localhost:{self.port}")
            if file:
                (self.folder / file).parent.mkdir(exist_ok=True)
                (self.folder / file).write_text(text, encoding="utf-8")
            elif language == "python":
                exec(compile(code, page.name, "exec"), names)
            elif code.splitlines()[-1].startswith("stablernn serve"):
                *before, serve = code.splitlines()
                self.run("\n".join(before), page)
                self.serve(serve)
            else:
                self.run(code, page)
        return names

    def run(self, code: str, page: Path) -> None:
        command = ["bash", "-e", "-o", "pipefail", "-c", code]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{page.name}:\n{code}\n{done.stdout}\n{done.stderr}"

    def serve(self, command: str) -> None:
        self.stop()
        words = [*shlex.split(command, comments=True), "--port", str(self.port), "--json"]
        self.server = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        # Printed when the server is ready, however long that takes.
        assert first_document(self.server.stdout)["url"]

    def stop(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.communicate()
            self.server = None


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands ``python`` and ``stablernn`` of this environment."""
    folder = tmp_path_factory.mktemp("programs")
    for name, words in (("python", ""), ("stablernn", "-m stablernn_cli ")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Path:
    """The folder of a reader who has followed the pages of docs/start, in their order."""
    reader = Reader(tmp_path_factory.mktemp("start"), programs)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(reader.folder)
        patch.setenv("STABLERNN_REGISTRY", str(reader.folder / "registry"))
        try:
            names = [reader.read(page) for page in START]
        finally:
            reader.stop()
    # The stream that went on after a restart ends as the whole sequence does.
    assert dict(zip(("loose", "tight"), names[-1]["last"], strict=True)) == pytest.approx(
        names[-1]["whole"].probabilities
    )
    return reader.folder


@pytest.fixture
def reader(started: Path, tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    shutil.copytree(started, tmp_path, dirs_exist_ok=True)
    reader = Reader(tmp_path, programs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STABLERNN_REGISTRY", str(tmp_path / "registry"))
    yield reader
    reader.stop()


def test_the_pages_of_the_start(started: Path) -> None:
    assert (started / "forecast.png").read_bytes().startswith(b"\x89PNG")
    assert len((started / "forecast.csv").read_text().splitlines()) == 1 + 2 * 24
    assert len((started / "answers.csv").read_text().splitlines()) > 1


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=lambda page: page.stem)
def test_a_page(page: Path, reader: Reader) -> None:
    reader.read(page)
