"""README and the pages of docs/ name files and commands that exist; test_pages.py runs them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from catalogs import CATALOGS
from stablernn_cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
STUDIES = sorted((ROOT / "benchmarks").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md", *DOCS, *STUDIES]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folders = "docs|tests|stablernn|registry|server|cli|papers|benchmarks|deploy|requirements|examples|tools"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    named += re.findall(r"python ((?:benchmarks|tools)/\w+\.py)", text)
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links to parts of the reference that is written when the site is built are checked by the build."""
    links = re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text(encoding="utf-8"))
    files = [link for link in links if "://" not in link and "reference/" not in (page.parent / link).as_posix()]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_no_page_and_no_message_installs_the_project_from_an_index() -> None:
    """It is on none; extras are installed from the checkout."""
    folders = ("docs", "examples", "cli", "client", "papers", "registry", "runtime", "server", "stablernn")
    files = [ROOT / "README.md", *(file for folder in folders for file in (ROOT / folder).rglob("*.[mp][dy]"))]
    assert len(files) > 300
    pattern = re.compile(r"pip install (-\S+ )?'?stablernn\b")
    assert [file.name for file in files if pattern.search(file.read_text(encoding="utf-8"))] == []


def command_lines() -> list[str]:
    """Lines of shell blocks that begin with the command, with their continuations."""
    blocks = [
        block
        for page in PAGES
        for block in re.findall(
            r"^```(?:sh|console)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    ]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return sorted({line for line in lines if line.startswith("stablernn ")})


@pytest.mark.parametrize("line", command_lines())
def test_every_command_line_is_one(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert command.make_context("stablernn", words) is not None


@pytest.mark.parametrize("path", CATALOGS)
def test_a_catalog_is_that_of_the_code(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == CATALOGS[path](), "run `make docs`"
