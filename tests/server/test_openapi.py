"""The OpenAPI document against the server: requests that schemathesis makes up from it, and answers checked by it."""

from __future__ import annotations

import copy
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from server_helpers import Published, Running, serve
from stablernn_server import Settings, create_app

# What a document cannot say, such as how many numbers a series has, makes valid requests fail: that is no check here.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
MODELS = ["animals", "animals@production", "animals:2", "flow", "co2", "fish", "..", "\n"]
"""The last four may be unloaded."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]


@pytest.fixture
def open_server(published: Published) -> Iterator[Running]:
    """Everything is served, and may be unloaded and loaded."""
    yield from serve(create_app(Settings(registry=published.root, max_elements=2**16, access_log="off")))


def narrowed(server: Running) -> dict[str, Any]:
    """The server's document, but that names of models are mostly those that it has, and sessions some that are open."""
    document: dict[str, Any] = httpx.get(f"{server.url}/openapi.json").json()
    opened = [httpx.post(f"{server.url}/v1/sessions", json={"model": name}).json() for name in ("animals", "flow")]
    words = {
        "model": MODELS,
        "version": ["1", "2", "77"],
        "session": [*(session["session_id"] for session in opened), "gone", "%2F"],
    }
    for path, item in document["paths"].items():
        # The others are to go on answering.
        words["model"] = MODELS[-4:] if path.endswith("/unload") else MODELS
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["schema"] = {"type": "string", "enum": words[parameter["name"]]}
    for schema in document["components"]["schemas"].values():
        model = schema.get("properties", {}).get("model")
        if model is not None:
            schema["properties"]["model"] = {"type": "string", "enum": MODELS}
    # Answers have the same tensors with other names.
    schemas = document["components"]["schemas"]
    schemas["Input"] = copy.deepcopy(schemas["InferTensor"])
    schemas["InferBody"]["properties"]["inputs"]["items"] = {"$ref": "#/components/schemas/Input"}
    tensor = schemas["Input"]["properties"]
    tensor["name"] = {"type": "string", "enum": ["x", "lengths", "state_0", "dt"]}
    tensor["datatype"] = {"type": "string", "enum": ["FP32", "INT64", "FP64", "BYTES"]}
    tensor["shape"]["items"] = {"type": "integer", "minimum": -1, "maximum": 4}
    return document


def exercise(server: Running, examples: int) -> Counter[int]:
    """Requests of every route, well formed and not, each with its answer checked; how often each status came."""
    schema = schemathesis.openapi.from_dict(narrowed(server))
    statuses: Counter[int] = Counter()
    with requests.Session() as session:
        for found, mode in itertools.product(schema.get_all_operations(), GenerationMode):
            operation = found.ok()

            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Case) -> None:
                # It would say that the body is the bytes of a tensor, whatever else they look like.
                if case.headers and case.headers.get("Inference-Header-Content-Length") == "0":
                    del case.headers["Inference-Header-Content-Length"]
                answer = case.call_and_validate(server.url, session, checks=CHECKS, timeout=20)
                statuses[answer.status_code] += 1

            try:
                ask()
            except Unsatisfiable:
                # A request without parameters cannot be malformed.
                assert mode is GenerationMode.NEGATIVE
                assert not operation.body
    return statuses


@pytest.mark.slow
def test_made_up_requests_are_answered_as_documented(open_server: Running, caplog: pytest.LogCaptureFixture) -> None:
    statuses = exercise(open_server, 150)
    assert statuses.total() > 3000
    assert statuses.keys() >= {200, 400, 404}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_every_path_answers_every_method_in_our_shape(open_server: Running) -> None:
    document = httpx.get(f"{open_server.url}/openapi.json").json()
    with httpx.Client(base_url=open_server.url) as client:
        for path, item in document["paths"].items():
            named = path.replace("{model}", "fish").replace("{version}", "1").replace("{session}", "s")
            for method in METHODS:
                answer = client.request(method, named)
                if method.lower() not in item and not (method == "HEAD" and path.startswith("/v2/health/")):
                    assert answer.status_code == 405, (method, path)
                    assert set(answer.headers["allow"].lower().split(", ")) >= item.keys()
                if answer.status_code >= 400 and method != "HEAD":
                    assert answer.headers["content-type"] == "application/json"
                    assert answer.json().keys() == {"error", "code"}
