"""Prometheus metrics: what is counted, by whom it is read, and how several processes share it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from server_helpers import Published, Running, json_tensor, serve
from stablernn_server import Settings, SettingsError, create_app
from stablernn_server.observability.multiprocess import prepare_metrics_dir, remove_worker_gauges
from stablernn_server.observability.telemetry import MAX_ROUTES, RATIO_RUNS, Telemetry

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class InputGuard:
    outside_count = 0


class Guard:
    violation_count = 0

    def __init__(self) -> None:
        self.inputs = InputGuard()


class Model:
    """What telemetry wants to know of a model."""

    def __init__(self, name: str = "digits", version: int = 3) -> None:
        self.name = name
        self.version = version
        self.guard = Guard()


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """One sample by its exact labels."""
    return found[f"stablernn_{name}", frozenset(labels.items())]


def rendered(telemetry: Telemetry) -> Samples:
    return samples(telemetry.metrics.render("")[0].decode())


def test_a_run_is_counted_once_for_the_batch() -> None:
    telemetry, model = Telemetry(Settings()), Model()
    telemetry.record_run(model, "sequence", 3, 5, 500, 6_000_000, 20_000_000)
    telemetry.record_run(model, "step", 2, 2, 8, 0, 100_000)
    found = rendered(telemetry)
    which = {"model": "digits", "version": "3"}
    run = {**which, "kind": "sequence"}
    assert value(found, "executions_total", **run) == 1
    assert value(found, "executions_total", **which, kind="step") == 1
    assert value(found, "sequences_total", **which) == 5
    assert value(found, "steps_total", **run) == 500
    assert value(found, "steps_total", **which, kind="step") == 8
    assert value(found, "queue_seconds_count", **run) == 3
    assert value(found, "queue_seconds_sum", **run) == pytest.approx(0.006)
    assert value(found, "compute_seconds_count", **run) == 1
    assert value(found, "compute_seconds_sum", **run) == pytest.approx(0.02)
    assert value(found, "batch_rows_sum", **run) == 5


def test_buckets_hold_what_is_at_most_their_bound() -> None:
    telemetry, model = Telemetry(Settings()), Model()
    for rows in (1, 2, 3, 4, 5000):
        telemetry.record_run(model, "step", 4, rows, rows, 4_000_000, 1)
    found = rendered(telemetry)
    run = {"model": "digits", "version": "3", "kind": "step"}
    got = {le: value(found, "batch_rows_bucket", **run, le=le) for le in ("1.0", "2.0", "4.0", "8.0", "4096.0", "+Inf")}
    assert got == {"1.0": 1, "2.0": 2, "4.0": 4, "8.0": 4, "4096.0": 4, "+Inf": 5}
    # Each of the four requests waited 1 ms, which is a bound itself.
    waits = {le: value(found, "queue_seconds_bucket", **run, le=le) for le in ("0.0005", "0.001", "+Inf")}
    assert waits == {"0.0005": 0, "0.001": 20, "+Inf": 20}


def test_paths_that_clients_invent_do_not_become_labels_without_end() -> None:
    telemetry = Telemetry(Settings())
    for number in range(3 * MAX_ROUTES):
        telemetry.record_request(None, f"/invented/{number}", 404, "unknown_path", 0.0)
    lines = [key for key in rendered(telemetry) if key[0] == "stablernn_requests_total"]
    assert len(lines) == MAX_ROUTES
    assert value(rendered(telemetry), "requests_total", model="", version="", route="other", code="404") > MAX_ROUTES


def test_the_norm_ratio_is_the_largest_of_the_last_runs() -> None:
    telemetry, model = Telemetry(Settings()), Model()

    def shown() -> float:
        return value(rendered(telemetry), "state_norm_ratio", model="digits", version="3")

    telemetry.record_norm_ratio(model, 0.25)
    telemetry.record_norm_ratio(model, 0.75)
    telemetry.record_norm_ratio(model, 0.5)
    assert shown() == 0.75
    for _ in range(RATIO_RUNS):
        telemetry.record_norm_ratio(model, 0.5)
    assert shown() == 0.75
    for _ in range(RATIO_RUNS):
        telemetry.record_norm_ratio(model, 0.5)
    assert shown() == 0.5


def test_exits_count_across_a_reload_of_the_same_version() -> None:
    telemetry, old, new = Telemetry(Settings()), Model(), Model()
    for model, exits in ((old, 2), (new, 1), (old, 3), (new, 1)):
        model.guard.violation_count = exits
        telemetry.record_run(model, "step", 1, 1, 1, 0, 1)
    assert value(rendered(telemetry), "state_exits_total", model="digits", version="3") == 4


def test_gauges_and_loads() -> None:
    telemetry = Telemetry(Settings())
    telemetry.set_load(7, 3, 2)
    telemetry.record_load("digits", 3, True, 0.2)
    telemetry.record_load("digits", 4, False, 0.1)
    found = rendered(telemetry)
    assert [value(found, name) for name in ("pending_requests", "sessions", "streams")] == [7, 3, 2]
    assert value(found, "loads_total", model="digits", version="3", result="ok") == 1
    assert value(found, "loads_total", model="digits", version="4", result="failed") == 1
    assert value(found, "load_seconds_count") == 2
    [(labels, one)] = [(dict(key[1]), number) for key, number in found.items() if key[0] == "stablernn_build_info"]
    assert one == 1
    assert labels["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert labels["onnxruntime"]
    assert found["process_resident_memory_bytes", frozenset()] > 10**7


def test_two_applications_in_one_process_count_apart() -> None:
    first, second = Telemetry(Settings()), Telemetry(Settings())
    first.set_load(1, 0, 0)
    second.set_load(2, 0, 0)
    assert value(rendered(first), "pending_requests") == 1
    assert value(rendered(second), "pending_requests") == 2


@pytest.fixture(scope="module")
def counted(published: Published) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=published.root, models=("animals@production",))))


def scrape(url: str) -> Samples:
    answer = httpx.get(f"{url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return samples(answer.text)


def body(rows: int, time_steps: int = 6) -> dict[str, Any]:
    return {"inputs": [json_tensor("x", np.ones((rows, time_steps, 1), np.float32))]}


def test_what_a_server_was_asked_is_in_its_metrics(counted: Running) -> None:
    url = f"{counted.url}/v2/models/animals/infer"
    for rows in (1, 2, 4):
        assert httpx.post(url, json=body(rows)).status_code == 200
    assert httpx.post(url, json={"inputs": []}).status_code == 400
    assert httpx.post(f"{counted.url}/v2/models/fish/infer", json=body(1)).status_code == 404
    assert httpx.get(f"{counted.url}/nothing").status_code == 404
    found = scrape(counted.url)
    which = {"model": "animals", "version": "1"}
    route = "/v2/models/{model}/infer"
    assert value(found, "requests_total", **which, route=route, code="200") == 3
    assert value(found, "requests_total", **which, route=route, code="400") == 1
    assert value(found, "requests_total", model="", version="", route=route, code="404") == 1
    assert value(found, "failures_total", **which, code="bad_input") == 1
    assert value(found, "failures_total", model="", version="", code="unknown_model") == 1
    assert value(found, "failures_total", model="", version="", code="unknown_path") == 1
    assert value(found, "executions_total", **which, kind="sequence") == 3
    assert value(found, "sequences_total", **which) == 7
    assert value(found, "steps_total", **which, kind="sequence") == 42
    assert value(found, "queue_seconds_count", **which, kind="sequence") == 3
    assert value(found, "pending_requests") == 0
    assert value(found, "loads_total", **which, result="ok") == 1


def test_requests_that_are_refused_before_they_are_routed_count_by_their_route(counted: Running) -> None:
    for method, path in (("POST", "/v1/sessions"), ("GET", "/v2/models/animals"), ("GET", "/openapi.json")):
        assert httpx.request(method, f"{counted.url}{path}", headers={"Host": "elsewhere.example"}).status_code == 403
    found = scrape(counted.url)
    for route in ("/v1/sessions", "/v2/models/{model}", "/openapi.json"):
        assert value(found, "requests_total", model="", version="", route=route, code="403") == 1


WORKER = """
import sys, time
from stablernn_server import Settings
from stablernn_server.observability.telemetry import Telemetry

class Model:
    name, version = "digits", 3
    class guard:
        violation_count = 0
        class inputs:
            outside_count = 0

folder, number = sys.argv[1], int(sys.argv[2])
telemetry = Telemetry(Settings(metrics_dir=folder))
for _ in range(number):
    telemetry.record_run(Model, "step", 2, 2, 2, 1000, 1000)
    telemetry.record_request(Model, "/v2/models/{model}/infer", 200, None, 0.01)
telemetry.set_load(0, number, 0)
telemetry.record_norm_ratio(Model, number / 10)
print("counted", flush=True)
for line in sys.stdin:
    import json
    [(_, found)] = telemetry.statistics.totals([("digits", 3)])
    text = telemetry.metrics.render("")[0].decode()
    told = {"metrics": text, "success": found.success[0], "rows": found.rows, "sizes": found.sizes}
    print(json.dumps(told), flush=True)
"""


class Worker:
    def __init__(self, folder: Path, number: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.read())
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_processes_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    (folder / "counter_1.db").write_bytes(b"of an earlier server")
    (folder / "statistics_1.json").write_text("[]")
    prepare_metrics_dir(folder)
    assert list(folder.iterdir()) == []
    workers = [Worker(folder, number) for number in (3, 5)]
    which = {"model": "digits", "version": "3"}
    try:
        assert [worker.read() for worker in workers] == ["counted\n", "counted\n"]
        # The statistics of others are read from files, which are written a moment later.
        deadline = time.monotonic() + 20
        while any(worker.ask()["success"] != 8 for worker in workers):
            assert time.monotonic() < deadline, "the workers do not see each other's statistics"
            time.sleep(0.05)
        for worker in workers:
            told = worker.ask()
            assert (told["rows"], told["sizes"]) == (16, {"2": [8, 8000]})
            found = samples(told["metrics"])
            assert value(found, "executions_total", **which, kind="step") == 8
            assert value(found, "queue_seconds_count", **which, kind="step") == 16
            assert value(found, "queue_seconds_bucket", **which, kind="step", le="+Inf") == 16
            assert value(found, "requests_total", **which, route="/v2/models/{model}/infer", code="200") == 8
            assert value(found, "sessions") == 8
            assert value(found, "state_norm_ratio", **which) == 0.5
            pids = {dict(key[1])["pid"] for key in found if key[0] == "process_resident_memory_bytes"}
            assert pids == {str(each.process.pid) for each in workers}
        gone = workers[1]
        gone.process.send_signal(signal.SIGKILL)
        gone.process.wait()
        remove_worker_gauges(folder, gone.process.pid)
        told = workers[0].ask()
        found = samples(told["metrics"])
        # What was done stays done; what only lived with the worker is gone.
        assert value(found, "executions_total", **which, kind="step") == 8
        assert told["success"] == 8
        assert value(found, "sessions") == 3
        assert value(found, "state_norm_ratio", **which) == 0.3
        pids = {dict(key[1])["pid"] for key in found if key[0] == "process_resident_memory_bytes"}
        assert pids == {str(workers[0].process.pid)}
    finally:
        for worker in workers:
            worker.end()


def test_a_folder_that_comes_too_late_or_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="comes too late: this process has metrics already"):
        Telemetry(Settings(metrics_dir=tmp_path))
    with pytest.raises(SettingsError, match="metrics_dir must be a folder"):
        Telemetry(Settings(metrics_dir=tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be used: "):
        prepare_metrics_dir(tmp_path / "file")


def test_values_move_to_memory_where_the_disk_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    from stablernn_server.observability.prometheus import ReservedDict

    file = tmp_path / "counter_1.db"
    values = ReservedDict(str(file))
    values.write_value("first", 1.0, 0.0)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for number in range(5000):
        values.write_value(f"a longer key of number {number}", float(number), 0.0)
    assert (values.read_value("first")[0], values.read_value("a longer key of number 4999")[0]) == (1.0, 4999.0)
    assert not file.exists()
    late = ReservedDict(str(tmp_path / "gauge_1.db"))
    assert late.read_value("x") == (0.0, 0.0)
    values.close()
    late.close()
    assert list(tmp_path.iterdir()) == []
