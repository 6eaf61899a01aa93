from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import Registry, Version

PAGE = (Path(__file__).parents[2] / "docs" / "background" / "registry.md").read_text()
EXAMPLE, READER = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for filename in ("step.onnx", "weights.safetensors", "robustness.json"):
        (tmp_path / "out" / filename).write_bytes(filename.encode())
    names: dict[str, Any] = {}
    exec(EXAMPLE, names)
    assert names["graph"] == b"step.onnx"
    assert names["registry"].get("pump@production").version == 1
    assert names["report"] == b"robustness.json"


def test_a_reader_without_our_package_finds_the_same_bytes_and_any_change(
    registry: Registry, publish: Callable[..., Version]
) -> None:
    content = {"step.onnx": b"graph", "plots/loss.png": b"png"}
    publish(content={"step.onnx": b"older"})
    publish(content=content)
    registry.set_alias("digits", "production", 2)
    (report := registry.root.parent / "report.json").write_text("{}")
    registry.record("digits:2", "robustness", {"robustness.json": report})
    names: dict[str, Any] = {}
    exec(READER, names)
    assert "stablernn" not in READER
    assert names["read_version"](registry.root, "digits", 2) == content
    log = registry.root / "models/digits/log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"why":null', b'"why":nulL', 1))
    with pytest.raises((AssertionError, ValueError)):
        names["read_version"](registry.root, "digits", 2)
