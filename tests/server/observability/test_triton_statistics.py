"""Triton's statistics extension, read by NVIDIA's client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from server_helpers import Published, Running, serve
from stablernn_server import Settings, create_app
from stablernn_server.observability.triton_statistics import EXACT_SIZES, ModelStatistics


@pytest.fixture
def counted(published: Published) -> Iterator[Running]:
    """Counts begin at zero for each test."""
    yield from serve(create_app(Settings(registry=published.root, models=("animals@production", "animals:2", "flow"))))


@pytest.fixture
def client(counted: Running) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(f"127.0.0.1:{counted.port}")
    yield client
    client.close()


def infer(client: triton.InferenceServerClient, rows: int, version: str = "", features: int = 1) -> None:
    x = triton.InferInput("x", [rows, 5, features], "FP32")
    x.set_data_from_numpy(np.ones((rows, 5, features), np.float32))
    client.infer("animals", [x], model_version=version)


def stats(client: triton.InferenceServerClient, name: str = "", version: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get_inference_statistics(name, version)["model_stats"]
    return found


def test_requests_are_counted_by_version_and_batch_size(client: triton.InferenceServerClient) -> None:
    before = time.time_ns() // 1_000_000
    for rows in (1, 3, 3):
        infer(client, rows, "1")
    infer(client, 2, "2")
    with pytest.raises(InferenceServerException):
        infer(client, 1, "1", features=2)
    [found] = stats(client, "animals", "1")
    assert (found["inference_count"], found["execution_count"]) == (7, 3)
    assert before <= found["last_inference"] <= time.time_ns() // 1_000_000
    durations = found["inference_stats"]
    counts = {name: entry["count"] for name, entry in durations.items()}
    assert counts == {
        "success": 3,
        "fail": 1,
        "queue": 3,
        "compute_input": 3,
        "compute_infer": 3,
        "compute_output": 3,
        "cache_hit": 0,
        "cache_miss": 0,
    }
    assert durations["success"]["ns"] > durations["compute_infer"]["ns"] + durations["queue"]["ns"] > 0
    assert [(entry["batch_size"], entry["compute_infer"]["count"]) for entry in found["batch_stats"]] == [
        (1, 1),
        (3, 2),
    ]
    # Every request was a run of its own here.
    assert sum(entry["compute_infer"]["ns"] for entry in found["batch_stats"]) == durations["compute_infer"]["ns"]
    [other] = stats(client, "animals", "2")
    assert (other["inference_count"], other["execution_count"]) == (2, 1)


def test_a_name_means_all_its_versions_and_an_alias_one(client: triton.InferenceServerClient) -> None:
    assert [entry["version"] for entry in stats(client, "animals")] == ["1", "2"]
    assert [entry["version"] for entry in stats(client, "animals@production")] == ["1"]
    assert [entry["version"] for entry in stats(client, "animals", "2")] == ["2"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v2/models/fish/stats", 404, "unknown_model"),
        ("/v2/models/animals/versions/9/stats", 404, "unknown_model"),
        ("/v2/models/animals/versions/x/stats", 400, "bad_input"),
    ],
)
def test_what_is_not_served_has_no_statistics(counted: Running, path: str, status: int, code: str) -> None:
    answer = httpx.get(f"{counted.url}{path}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_run_counts_once_for_each_of_its_requests() -> None:
    found = ModelStatistics()
    found.record_run(3, 4, 300, 1000)
    assert found.queue == [3, 300]
    assert found.compute == [3, 3000]
    assert found.sizes == {4: [1, 1000]}


def test_there_are_not_endlessly_many_batch_sizes() -> None:
    found = ModelStatistics()
    for rows in range(1, 5000):
        found.record_run(1, rows, 0, 1)
    assert set(found.sizes) == {*range(1, EXACT_SIZES + 1), 2048, 4096, 8192}
    assert sum(entry[0] for entry in found.sizes.values()) == 4999
