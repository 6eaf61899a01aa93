"""The direction of imports between packages and files, from the code of every file.

Imports inside functions and under ``TYPE_CHECKING`` count: a reader follows them too.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from pathlib import Path

import pytest

from packages import PACKAGES

MAY_IMPORT = {
    "stablernn": {"stablernn_registry"},
    "stablernn_registry": set(),
    "stablernn_client": set(),
    "stablernn_runtime": {"stablernn_registry"},
    "stablernn_server": {"stablernn_client", "stablernn_registry", "stablernn_runtime"},
    "stablernn_cli": {"stablernn", "stablernn_client", "stablernn_registry", "stablernn_runtime", "stablernn_server"},
    "stablernn_papers": {"stablernn", "stablernn_cli"},
}


def module_name(path: Path, package: str) -> str:
    parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join((package, *parts)).removesuffix(".__init__")


MODULES = {module_name(path, package): path for package, folder in PACKAGES.items() for path in folder.rglob("*.py")}


@functools.cache
def imported_modules(module: str) -> set[str]:
    """Modules of ours that a module imports; ``from a import b`` is the module ``a.b`` if there is one, else ``a``."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            anchor = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*anchor, *([node.module] if node.module else [])])
            names |= {full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names}
    return names & MODULES.keys() - {module}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    modules = [module for module in MODULES if module.partition(".")[0] == package]
    assert modules
    for module in modules:
        tops = {name.partition(".")[0] for name in imported_modules(module)}
        forbidden = tops - MAY_IMPORT[package] - {package}
        assert not forbidden, f"{module} imports {forbidden}"


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of a cycle, each of which imports the one before it; an empty list if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_no_files_import_each_other_in_a_cycle() -> None:
    graph = {module: imported_modules(module) for module in MODULES}
    # Were the imports not found, there would be no cycle.
    assert "stablernn_registry.errors" in graph["stablernn_registry.refs"]
    assert "stablernn.cells" in graph["stablernn"]
    assert find_cycle(graph) == []


PACKAGE_FOLDERS = sorted(module for module, path in MODULES.items() if path.name == "__init__.py")


def subfolder(folder: str, module: str) -> str | None:
    """The folder directly below ``folder`` that a module lies in; None if it lies in none."""
    if not module.startswith(f"{folder}."):
        return None
    child = f"{folder}.{module.removeprefix(folder).split('.')[1]}"
    return child if child in PACKAGE_FOLDERS else None


def test_no_sibling_folders_import_each_other_in_a_cycle() -> None:
    for folder in PACKAGE_FOLDERS:
        graph: dict[str, set[str]] = {}
        for module in MODULES:
            if child := subfolder(folder, module):
                siblings = {subfolder(folder, name) for name in imported_modules(module)} - {None, child}
                graph.setdefault(child, set()).update(name for name in siblings if name is not None)
        assert find_cycle(graph) == [], folder
