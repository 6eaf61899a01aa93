"""Fixtures of the tests of server and client: real models in a real registry, behind a real server on a free port."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from httpx._transports import default as transports

from exports import exported
from server_helpers import Published, Running, serve
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app

LABELS = ["cat", "dog", "owl", "rat"]
QUANTILES = [0.1, 0.5, 0.9]


@pytest.fixture(autouse=True, scope="package")
def _certificates_read_once() -> Iterator[None]:
    """Share httpx's usual TLS context: to read what everyone trusts takes each new client 20 ms of processor time."""
    make, usual = transports.create_ssl_context, httpx.create_ssl_context()

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        return usual if verify is True and cert is None else make(verify, cert, trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transports, "create_ssl_context", create)
        yield


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
            {"cell": "lipschitz", "signature": report.signature, "parity": report.parity, **fields},
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


@pytest.fixture(scope="session")
def server(published: Published) -> Iterator[Running]:
    models = ("animals@production", "animals:2", "flow", "co2:1")
    settings = Settings(registry=published.root, models=models, max_body_bytes=2**20, max_elements=2**16)
    yield from serve(create_app(settings))
