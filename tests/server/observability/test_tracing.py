"""Traces, sent by OpenTelemetry's own exporter to a collector on this machine that takes them apart."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest

from server_helpers import Published, Running, json_tensor, serve
from stablernn_server import Settings, SettingsError, create_app
from stablernn_server.observability.tracing import Tracing

collected = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as a real collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait(self, count: int) -> dict[str, Any]:
        """The spans by name, when there are so many."""
        deadline = time.monotonic() + 20
        while len(self.spans) < count:
            assert time.monotonic() < deadline, f"{len(self.spans)} spans of {count}"
            time.sleep(0.02)
        assert len(self.spans) == count
        return {span.name: span for span in self.spans}


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        message = collected.ExportTraceServiceRequest.FromString(content)
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        for group in message.resource_spans:
            self.server.resources.append({item.key: item.value.string_value for item in group.resource.attributes})
            for scope in group.scope_spans:
                self.server.spans.extend(scope.spans)
        self.server.headers.append(dict(self.headers))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(collected.ExportTraceServiceResponse().SerializeToString())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield collector
        collector.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


def opened(**settings: Any) -> Tracing:
    tracing = Tracing.open(Settings(traces="otlp", **settings))
    assert tracing is not None
    return tracing


def test_a_request_with_its_wait_and_its_run(collector: Collector) -> None:
    tracing = opened()
    span = tracing.begin("POST", [(b"host", b"h"), (b"traceparent", TRACEPARENT.encode())])
    span.record_run("digits", 3, 2, 16, 4_000_000, 9_000_000)
    span.end("/v2/models/{model}/infer", 200)
    tracing.close()
    spans = collector.wait(3)
    request, queue, compute = (spans[name] for name in ("POST /v2/models/{model}/infer", "queue", "compute"))
    assert {each.trace_id.hex() for each in spans.values()} == {TRACE}
    assert request.parent_span_id.hex() == PARENT
    assert queue.parent_span_id == compute.parent_span_id == request.span_id
    assert queue.end_time_unix_nano - queue.start_time_unix_nano == 4_000_000
    assert compute.end_time_unix_nano - compute.start_time_unix_nano == 9_000_000
    assert queue.end_time_unix_nano == compute.start_time_unix_nano
    assert compute.end_time_unix_nano <= request.end_time_unix_nano
    which = {"stablernn.model": "digits", "stablernn.version": 3, "stablernn.rows": 2}
    assert attributes(queue) == which
    assert attributes(compute) == which | {"stablernn.batch_rows": 16}
    assert attributes(request) == which | {
        "http.request.method": "POST",
        "http.route": "/v2/models/{model}/infer",
        "http.response.status_code": 200,
    }
    assert request.kind == 2, "a span of a server"
    [resource] = collector.resources
    assert resource["service.name"] == "stablernn"
    assert resource["service.version"]


def test_the_standard_variables_are_obeyed(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "digits-service")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=forecasts")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    tracing = opened()
    unsampled = tracing.begin("GET", [])
    unsampled.record_run("digits", 3, 1, 1, 1, 1)
    unsampled.end("/v2", 200)
    tracing.begin("GET", [(b"traceparent", TRACEPARENT.encode())]).end("/v2", 200)
    tracing.close()
    assert list(collector.wait(1)) == ["GET /v2"]
    assert collector.spans[0].trace_id.hex() == TRACE
    [resource] = collector.resources
    assert (resource["service.name"], resource["deployment.environment"]) == ("digits-service", "test")
    [headers] = collector.headers
    assert (headers["x-team"], headers["Content-Encoding"]) == ("forecasts", "gzip")


@pytest.mark.parametrize(
    ("variable", "given", "sentence"),
    [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "grpc",
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; traces are sent by http/protobuf",
        ),
        ("OTEL_TRACES_EXPORTER", "console", "OTEL_TRACES_EXPORTER is 'console'; traces are sent by otlp only"),
    ],
)
def test_variables_that_ask_for_something_else(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, given)
    with pytest.raises(SettingsError, match=sentence):
        opened()
    assert Tracing.open(Settings()) is None


def test_a_collector_that_does_not_answer_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on the port of a socket that was just closed.
    with Collector() as gone:
        url = gone.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    tracing = opened()
    tracing.begin("GET", []).end("/v2", 200)
    thread = threading.Thread(target=tracing.close)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert Tracing.open(Settings()) is None
    with pytest.raises(SettingsError, match=r"OpenTelemetry is not installed here\. Install it with: pip install"):
        opened()


@contextmanager
def running(published: Published) -> Iterator[Running]:
    settings = Settings(registry=published.root, models=("animals@production",), traces="otlp")
    yield from serve(create_app(settings))


def test_a_server_traces_what_it_answers(published: Published, collector: Collector) -> None:
    content = {"inputs": [json_tensor("x", np.ones((2, 6, 1), np.float32))]}
    with running(published) as server:
        url = f"{server.url}/v2/models/animals/infer"
        assert httpx.post(url, json=content, headers={"traceparent": TRACEPARENT}).status_code == 200
        spans = collector.wait(3)
        request = spans["POST /v2/models/{model}/infer"]
        assert request.trace_id.hex() == TRACE
        assert attributes(request)["stablernn.model"] == "animals"
        assert attributes(spans["compute"])["stablernn.batch_rows"] == 2
        assert httpx.get(f"{server.url}/v2/models/fish").status_code == 404
    # The last spans are sent when the server stops.
    assert attributes(collector.wait(4)["GET /v2/models/{model}"])["error.type"] == "unknown_model"
