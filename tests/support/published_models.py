"""Small models that tests of the runtime and of the server share, exported and published to a real registry.

This is a pytest plugin: all tests see its fixtures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from exports import exported
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn_registry import Registry, Version
from stablernn_runtime import ServedModel

LABELS = ["cat", "dog", "owl", "rat"]
QUANTILES = [0.1, 0.5, 0.9]


@dataclass(frozen=True)
class Published:
    """A registry of exported models, and the torch models to compare with, by reference."""

    root: Path
    torch_models: dict[str, SequenceModel]

    @property
    def registry(self) -> Registry:
        return Registry(self.root)


def torch_answer(model: SequenceModel, x: np.ndarray, lengths: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the outputs of the torch model itself."""
    with torch.no_grad():
        outputs, _ = model.run(torch.from_numpy(x), None if lengths is None else torch.from_numpy(lengths))
    return {name: value.numpy() for name, value in outputs.items()}


def copy_version(
    registry: Registry, version: Version, signature: dict[str, Any] | None = None, **files: bytes
) -> Version:
    """Publish a copy of ``version`` with another signature, or with some files of another content.

    Args:
        registry: The registry to publish to.
        version: The version to copy.
        signature: Signature of the copy; default: that of the version.
        files: Contents by name, with ``_`` for the dot of ``.onnx``.
    """
    contents = {name: version.read(name) for name in version.manifest.files}
    contents |= {name.replace("_onnx", ".onnx"): content for name, content in files.items()}
    folder = registry.root.parent / f"files-{time.monotonic_ns()}"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    fields = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    fields |= {} if signature is None else {"signature": signature}
    return registry.publish(version.name, {name: folder / name for name in contents}, fields)


def republished(
    published: Published, root: Path, change: Callable[[dict[str, Any], dict[str, Path]], None]
) -> Registry:
    """Return a new registry with ``animals:1``, after ``change`` of its manifest's fields and its files."""
    version = published.registry.get("animals:1")
    fields = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    files = {name: version.path(name) for name in version.manifest.files}
    change(fields, files)
    registry = Registry(root / "registry")
    registry.publish("animals", files, fields)
    return registry


def publish(registry: Registry, name: str, model: SequenceModel, folder: Path, **fields: Any) -> Version:
    """Export a model to ``folder`` and publish it with the fields of its manifest."""
    report = exported(model.eval(), folder)
    certificate = report.certificate
    facts = {"cell": certificate["cell"], "signature": report.signature, "certificate": certificate, **fields}
    return registry.publish(name, report.files, facts)


def flip_byte(path: Path) -> None:
    """Damage a published file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


def copy_registry(root: Path, published: Published) -> Registry:
    """Return a new registry with versions 1 and 2 of ``animals``, the first in production, and ``flow``."""
    registry = Registry(root)
    for ref in ("animals:1", "animals:2", "flow:1"):
        copy_version(registry, published.registry.get(ref))
    registry.set_alias("animals", "production", 1)
    return registry


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """``animals:1`` (alias production), ``animals:2``; ``flow:1`` with three features and two targets; ``co2:1``."""
    root = tmp_path_factory.mktemp("registry")
    registry = Registry(root)
    models: dict[str, SequenceModel] = {}
    noise = np.random.default_rng(0)

    def publish(name: str, model: SequenceModel, scale: float, **fields: Any) -> None:
        model.fit_scaling([scale * noise.normal(size=(200, model.input_size)).astype(np.float32)])
        report = exported(model.eval(), tmp_path_factory.mktemp("export"))
        version = registry.publish(
            name,
            report.files,
            {"cell": model.rnn.first.cell, "signature": report.signature, "parity": report.parity, **fields},
        )
        models[version.ref] = model

    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Classifier("lipschitz", input_size=1, num_classes=4, hidden_size=16)
        publish("animals", model, 3.0, task="classify", labels=LABELS, features=["loudness"])
    registry.set_alias("animals", "production", 1)

    torch.manual_seed(3)
    publish(
        "flow",
        Forecaster("antisymmetric", 3, 5, hidden_size=8, num_layers=2, target_indices=(0, 2), quantiles=QUANTILES),
        10.0,
        task="forecast",
        features=["flow", "rain", "level"],
        targets=["flow", "level"],
        horizon=5,
        quantiles=QUANTILES,
    )
    torch.manual_seed(4)
    publish(
        "co2",
        Forecaster("lipschitz", 1, 4, hidden_size=8, quantiles=QUANTILES),
        1.0,
        task="forecast",
        features=["co2"],
        targets=["co2"],
        horizon=4,
        context_length=6,
        season=4,
        frequency="W",
        quantiles=QUANTILES,
    )
    return Published(root, models)


@pytest.fixture(scope="session")
def animals(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("animals:1"), "cpu")


@pytest.fixture(scope="session")
def flow(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("flow:1"), "cpu")
