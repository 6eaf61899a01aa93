"""What the README and the pages under docs/ say is run here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from cli_helpers import first_document
from stablernn_cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def stablernn_lines() -> list[str]:
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("stablernn ")]


@pytest.mark.slow
def test_the_python_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(README, "python")
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["classifier"].score(names["X"], names["y"]) > 0.95
    assert names["outputs"]["label"] == names["y"][0]
    assert (tmp_path / "exported" / "sequence.onnx").is_file()
    assert (tmp_path / "runs" / "waves" / "config.yaml").is_file()
    assert names["forecaster"].predict().shape == (10,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python.md", "from_torch.md", "tracking.md"])
@pytest.mark.filterwarnings("ignore::stablernn.errors.UntrainedWarning")
def test_the_python_blocks_of_a_page_run_in_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks((ROOT / "docs" / name).read_text(encoding="utf-8"), "python"):
        exec(compile(block, name, "exec"), names)
    results = {
        "python.md": lambda: names["accuracy"] > 0.95 and names["skill"] > 0 and names["scores"].min() > 0.8,
        "from_torch.md": lambda: names["version"].ref == "valve:1" and names["certificate"].kind == "bounded",
        "tracking.md": lambda: names["best"].best < 1,
    }
    assert results[name]()


def test_no_page_and_no_message_installs_the_project_from_an_index() -> None:
    """It is on none; extras are installed from the checkout."""
    folders = ("docs", "examples", "cli", "client", "papers", "registry", "runtime", "server", "stablernn")
    files = [ROOT / "README.md", *(file for name in folders for file in (ROOT / name).rglob("*.[mp][dy]"))]
    assert len(files) > 400
    pattern = re.compile(r"pip install (-\S+ )?'?stablernn\b")
    assert [file.name for file in files if pattern.search(file.read_text(encoding="utf-8"))] == []


def test_the_code_that_contributing_shows_is_that_of_the_files() -> None:
    excerpts = blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "python")
    assert len(excerpts) >= 5
    for excerpt in excerpts:
        head, code = excerpt.split("\n", 1)
        assert code in (ROOT / head.removeprefix("# ")).read_text(encoding="utf-8"), head


def test_every_command_line_of_the_readme_is_one() -> None:
    for line in stablernn_lines():
        words = shlex.split(line)[1:]
        command: Any = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command.make_context("stablernn", words).params, line


def test_every_reference_of_the_readme_was_made_by_a_command_before_it() -> None:
    """A user who types one command after the other never meets a name that is not there."""
    made: set[str] = set()
    for line in stablernn_lines():
        words = shlex.split(line, comments=True)
        if words[1] == "export":
            name = words[words.index("--name") + 1]
            made |= {name} | ({f"{name}@{words[words.index('--alias') + 1]}"} if "--alias" in words else set())
        elif words[1] in ("certify", "predict", "plot", "dockerize"):
            assert words[2] in made, line
        elif words[1] == "serve":
            assert words[words.index("--model") + 1] in made, line
    assert {"load@production", "digits@production"} <= made


NAMED_FILE = re.compile(
    r"`((?:docs|tests|stablernn|registry|server|cli|papers|benchmarks|deploy|requirements)/[\w./-]*)`"
)


def test_every_link_and_every_file_that_a_page_names_exists() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
        assert [link for link in links if not _leads_somewhere(page, link)] == [], page.name
        assert [name for name in NAMED_FILE.findall(text) if not (ROOT / name).exists()] == [], page.name


def _leads_somewhere(page: Path, link: str) -> bool:
    name, _, heading = link.partition("#")
    file = page.parent / name if name else page
    if not file.exists() or not heading:
        return file.exists()
    titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.slow
def test_the_readme_from_a_csv_to_a_served_forecast(tmp_path: Path) -> None:
    """The shell blocks as they stand, but for the port, the registry's place and the server's end."""
    if shutil.which("bash") is None or shutil.which("curl") is None:
        pytest.skip("bash and curl are not on this machine")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, words in (("python", '"$@"'), ("stablernn", '-m stablernn_cli "$@"')):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "STABLERNN_REGISTRY": str(tmp_path / "registry"),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }

    def run(block: str) -> str:
        words = ["bash", "-e", "-o", "pipefail", "-c", block]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        return done.stdout

    section = README.partition("## From a CSV")[2].partition("## In Python")[0]
    steps = blocks(section + README.partition("\n## Docker\n")[2], "sh")
    (serve,) = [block for block in steps if block.startswith("stablernn serve")]
    (ask,) = [block for block in steps if "curl" in block]
    for block in steps:
        if block not in (serve, ask):
            run(block)
    assert (tmp_path / "image" / "Dockerfile").is_file()
    written = (tmp_path / "forecast.csv").read_text(encoding="utf-8").splitlines()
    server = subprocess.Popen(
        [*shlex.split(serve), "--port", "0", "--json"],
        cwd=tmp_path,
        env=environment,
        executable=programs / "stablernn",
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        # Printed when the server is ready, however long that takes.
        address = first_document(server.stdout)["url"].removeprefix("http://")
        content = json.loads(run(ask.replace("localhost:8080", address)))["outputs"][0]["content"][0]
        assert content["start_timestamp"] == "2024-03-11T00:00:00"
        rows = [row.split(",") for row in written[1:4]]
        assert [row[:2] for row in rows] == [["north", f"2024-03-11T0{hour}:00:00"] for hour in range(3)]
        served = [content["mean_forecast"], *(content["quantiles"][level] for level in ("0.1", "0.5", "0.9"))]
        assert [[float(value) for value in row[2:]] for row in rows] == [
            list(step) for step in zip(*served, strict=True)
        ]
    finally:
        server.terminate()
        server.communicate()
    assert server.returncode == 0
