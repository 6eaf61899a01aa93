"""The package as a library: what importing it loads, and the example in its docstring."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import stablernn_runtime
from packages import PACKAGES
from published_models import Published
from stablernn_registry import Registry

FORBIDDEN = ("torch", "stablernn", "stablernn_server", "stablernn_client", "stablernn_cli", "fastapi", "starlette")
MODULES = sorted(
    ".".join(path.relative_to(PACKAGES["stablernn_runtime"].parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGES["stablernn_runtime"].rglob("*.py")
)


def loaded_after(code: str) -> str:
    code = f"{code}; import sys; print(*[name for name in {FORBIDDEN!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_its_modules_and_public_names_load_neither_torch_nor_a_web_framework() -> None:
    modules = "; ".join(f"import {module}" for module in MODULES)
    names = "; ".join(f"stablernn_runtime.{name}" for name in stablernn_runtime.__all__)
    assert "stablernn_runtime.engines.plugins" in MODULES
    assert loaded_after(f"{modules}; {names}") == ""


def test_the_example_is_true(published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = published.registry.get("animals:1")
    fields = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    files = {name: version.path(name) for name in version.manifest.files}
    registry = Registry(tmp_path / "registry")
    registry.publish("animals", files, fields)
    registry.set_alias("animals", "production", 1)
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(stablernn_runtime)
    assert results.attempted > 5
    assert results.failed == 0
