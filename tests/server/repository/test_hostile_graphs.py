"""Graphs made to keep a server busy; tests/runtime has those that are refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from hostile_graphs import with_triggered_scan
from published_models import Published
from stock_helpers import Stock


def test_values_that_make_a_step_endless_leave_the_server_alive(published: Published, tmp_path: Path) -> None:
    stock = Stock(tmp_path / "registry", published)
    good = published.registry.get("animals:1")
    stock.copy(good, step_onnx=with_triggered_scan(good.read("step.onnx")))
    with stock.served("animals:3", "flow", request_timeout_seconds=10) as (_, client), ThreadPoolExecutor() as pool:

        def ask(value: float, model: str = "animals", features: int = 1) -> httpx.Response:
            return client.post("/v1/step", json={"model": model, "values": [[value] * features]})

        assert ask(1.0).status_code == 200
        endless = pool.submit(ask, 1e12)
        time.sleep(0.2)
        assert client.get("/v2/health/live").status_code == 200
        assert ask(1.0).status_code == 200
        assert ask(1.0, "flow", 3).status_code == 200
        assert not endless.done()
        assert endless.result(30).json()["code"] == "deadline"
        assert ask(1.0).status_code == 200
