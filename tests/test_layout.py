"""Sizes at which a reader loses the overview: files in a folder, lines of a file, lines of a function."""

from __future__ import annotations

import ast

import pytest

from packages import PACKAGES, ROOT

MAX_FILES = 20
MAX_LINES = 1000
MAX_TEST_LINES = 1000
MAX_BODY_LINES = 70

# One file per cell, command or named dataset: their names are the table of contents.
CATALOGS = {"stablernn/cells", "cli/stablernn_cli/commands"}
# By path, with the reason why the file is longer than MAX_LINES.
LONG_FILES: dict[str, str] = {}

FILES = {
    path.relative_to(ROOT).as_posix(): path
    for folder in [*PACKAGES.values(), ROOT / "native", ROOT / "benchmarks", ROOT / "examples"]
    for path in sorted(folder.rglob("*.py"))
}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_holds_too_many_files(package: str) -> None:
    folders = {path.parent for path in PACKAGES[package].rglob("*.py")}
    assert folders
    sizes = {folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: size for name, size in sizes.items() if size > MAX_FILES and name not in CATALOGS} == {}


def test_no_file_is_too_long() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert too_long.keys() == LONG_FILES.keys(), too_long


def test_no_test_file_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert lengths
    assert {path.name: lines for path, lines in lengths.items() if lines > MAX_TEST_LINES} == {}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from its first statement after the docstring to its end."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{name}:{node.lineno} {node.name}: {body_lines(node)} lines"
        for name, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > MAX_BODY_LINES
    ]
    assert too_long == []
