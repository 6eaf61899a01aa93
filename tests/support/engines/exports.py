"""Exports that the tests of the server share: to export a model takes seconds, and many of them want the same ones.

What is under test here is the server; that an export is right is for ``tests/export``.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from filelock import FileLock
from torch._export import utils as export_utils
from torch.onnx._internal.exporter._constants import TORCHLIB_OPSET
from torch.onnx._internal.exporter._registration import ONNXRegistry

from stablernn.export import ExportReport, export
from stablernn.export.step import ModelParts, serialize_weights
from stablernn.nn.models import SequenceModel

_state: dict[str, Path] = {}


def keep_in(folder: Path) -> None:
    """Keep exports in a folder that all workers of this run see."""
    folder.mkdir(exist_ok=True)
    _state["folder"] = folder
    read_operators_once()


def shared(name: str) -> Path:
    """A place for something else that all workers of this run see; whoever makes it holds a lock."""
    return _state["folder"] / name


def share_graphs(patch: pytest.MonkeyPatch) -> None:
    """Let exports of the same weights and configuration share their graphs in a run of the tests.

    For tests of commands, which export the same run under other names again and again. Parity is checked each time.
    Where they share them already, nothing is left to do.
    """
    module = sys.modules["stablernn.export"]
    make = module.export_parts
    if hasattr(make, "shares_graphs"):
        return

    def export_parts(model: SequenceModel) -> ModelParts:
        shared = _state["folder"] / f"graphs-{_key(model)}"
        with FileLock(f"{shared}.lock"):
            if not shared.exists():
                shared.write_bytes(pickle.dumps(make(model)))
        exported: ModelParts = pickle.loads(shared.read_bytes())
        return exported

    export_parts.shares_graphs = True  # type: ignore[attr-defined]
    patch.setattr(module, "export_parts", export_parts)


def _key(model: SequenceModel) -> str:
    return hashlib.sha256(serialize_weights(model) + json.dumps(model.config(), sort_keys=True).encode()).hexdigest()[
        :24
    ]


def read_operators_once() -> None:
    """Let torch read its table of ONNX operators once in a process, not twice in each export, and list its own once.

    To parse the source of a thousand operators takes a third of the time of an export of a small model, and to list
    those of torch, for each of its dozens of namespaces, a tenth.
    """
    export_utils._materialize_cpp_cia_ops = functools.cache(export_utils._materialize_cpp_cia_ops)
    read = ONNXRegistry.from_torchlib.__func__

    @functools.cache
    def table(opset_version: int) -> ONNXRegistry:
        return read(ONNXRegistry, opset_version)

    def from_torchlib(cls: type[ONNXRegistry], opset_version: int = TORCHLIB_OPSET) -> ONNXRegistry:
        registry = copy.copy(table(opset_version))
        # An export may register operators of its own.
        registry.functions = {name: list(functions) for name, functions in registry.functions.items()}
        return registry

    ONNXRegistry.from_torchlib = classmethod(from_torchlib)  # type: ignore[assignment]


def exported(model: SequenceModel, folder: Path | str) -> ExportReport:
    """:func:`stablernn.export.export`, made once for the same weights and configuration in a run of the tests."""
    frozen = copy.deepcopy(model).cpu().float().eval()
    shared = _state["folder"] / _key(frozen)
    with FileLock(f"{shared}.lock"):
        if not (shared / "report.json").exists():
            # Most of these models are served with the weights that they were built with.
            frozen.mark_fitted()
            report = export(frozen, shared)
            parts = {"signature": report.signature, "parity": report.parity, "certificate": report.certificate}
            (shared / "report.json").write_text(json.dumps({**parts, "files": list(report.files)}))
    stored = json.loads((shared / "report.json").read_text())
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: Path(shutil.copy(shared / name, folder / name)) for name in stored["files"]}
    return ExportReport(files, stored["signature"], stored["parity"], stored["certificate"])


def scan_bodies(model: onnx.ModelProto) -> dict[str, onnx.GraphProto]:
    """The bodies of a sequence graph that hold its recurrence: ``whole``, ``padded`` and, in some, ``short``."""
    bodies = {}
    for branch in _branches(model.graph):
        for node in branch.node:
            if node.op_type == "Scan" and branch.name in ("short", "whole", "padded"):
                bodies[branch.name] = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    assert {"whole", "padded"} <= bodies.keys()
    return bodies


def _branches(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "If":
                yield attribute.g
                yield from _branches(attribute.g)
