"""The application around the routes: isolation, settings, life cycle, documentation, faults of ours."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_helpers import Published
from stablernn_runtime.engines.devices import available_cpus
from stablernn_server import Settings, SettingsError, create_app
from stablernn_server.errors import STATUS_AND_CODE, ServerError
from stablernn_server.model_repository import ModelRepository
from stablernn_server.observability.telemetry import Telemetry


def test_a_served_model_brings_no_torch_either(published: Published) -> None:
    code = (
        "import sys, stablernn_server as s; "
        f"app = s.create_app(s.Settings(registry={str(published.root)!r})); "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'stablernn', 'onnx'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_codes_of_errors_are_documented() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| (.*?) \|", (ROOT / "docs/reference/http.md").read_text(), re.MULTILINE)
    documented = {
        (int(status), code)
        for statuses, codes in rows
        for status in statuses.split(",")
        for code in re.findall(r"`(\w+)`", codes)
    }
    # The class above others of its status, and a client that has gone, which reads nothing.
    private = {(409, "conflict"), (499, "client_gone")}
    assert set(STATUS_AND_CODE.values()) - private <= documented
    assert all(issubclass(kind, ServerError) for kind in STATUS_AND_CODE)


ROOT = Path(__file__).resolve().parents[2]


async def _get(app: Any, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path)


def test_it_is_ready_only_between_start_up_and_shutdown(published: Published) -> None:
    app = create_app(Settings(registry=published.root, models=("animals",)))

    async def life() -> list[httpx.Response]:
        answers = [await _get(app, "/v2/health/ready")]
        async with app.router.lifespan_context(app):
            answers.append(await _get(app, "/v2/health/ready"))
        answers.append(await _get(app, "/v2/health/ready"))
        answers.append(await _get(app, "/v2/health/live"))
        return answers

    before, within, after, live = asyncio.run(life())
    assert [before.status_code, within.status_code, after.status_code, live.status_code] == [503, 200, 503, 200]
    assert after.json() == {
        "error": "The server is starting or shutting down; try again later.",
        "code": "not_ready",
    }


def test_a_fault_of_ours_is_a_500_that_gives_nothing_away(published: Published) -> None:
    app = create_app(Settings(registry=published.root, models=("animals",)))

    @app.get("/fault")
    async def fault() -> None:
        raise RuntimeError("a secret")

    response = asyncio.run(_get(app, "/fault"))
    assert response.status_code == 500
    assert response.json() == {"error": "Internal server error; the server's log has the details.", "code": "internal"}


def opened(published: Published, *models: str) -> ModelRepository:
    settings = Settings(registry=published.root, models=models)
    return ModelRepository.open(settings, Telemetry(settings))


def test_without_models_every_one_is_served_at_its_highest_version(published: Published) -> None:
    table = opened(published)
    assert table.keys() == [("animals", 2), ("co2", 1), ("flow", 1)]
    assert table.resolve("animals") == ("animals", 2)


def test_the_highest_version_answers_where_no_alias_was_named(published: Published) -> None:
    table = opened(published, "animals:1", "animals:2")
    assert table.resolve("animals") == ("animals", 2)
    assert table.resolve("animals@production") == ("animals", 1)
    found = asyncio.run(table.find_open("animals@production"))
    assert found is table.get("animals", 1)
    assert found is not table.get("animals", 2)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STABLERNN_REGISTRY", str(tmp_path))
    monkeypatch.setenv("STABLERNN_MODELS", "digits@production, co2:3")
    monkeypatch.setenv("STABLERNN_MAX_BODY_BYTES", "1000")
    settings = Settings(port=9000)
    assert settings.registry == tmp_path
    assert settings.models == ("digits@production", "co2:3")
    assert (settings.max_body_bytes, settings.port) == (1000, 9000)


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(SettingsError, match=r"Settings: port: input should be .* 65535, got 70000\."):
        Settings(port=70000)
    with pytest.raises(SettingsError, match="Settings: model: extra inputs"):
        Settings(model="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "garbage"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
    ids=["v2", "v2 without a limit", "v2 unreadable", "v1", "v1 without a limit", "none"],
)
def test_cpus_follow_the_containers_quota(tmp_path: Path, files: dict[str, str], most: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    free = available_cpus(tmp_path / "nothing")
    assert available_cpus(tmp_path) == (free if most is None else most)
    assert free >= 1


def test_the_openapi_document_describes_every_body_and_resolves(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) >= {"/v2/models/{model}/versions/{version}/infer", "/v1/sessions/{session}/step"}
    references = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                references.append(node["$ref"])
            for item in node.values():
                walk(item)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(document)
    schemas = document["components"]["schemas"]
    named = ("InferBody", "ForecastRequest", "ClassifyRequest", "OpenSession", "Samples", "TokenStep", "ErrorBody")
    assert {f"#/components/schemas/{name}" for name in named} <= set(references)
    assert all(reference.removeprefix("#/components/schemas/") in schemas for reference in references)
    queries = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["responses"].keys() >= {"200", "400", "404"}
            assert "422" not in operation["responses"]
            parameters = operation.get("parameters", ())
            assert {item["name"] for item in parameters if item["in"] == "path"} == set(re.findall(r"{(\w+)}", path))
            queries |= {(path, item["name"]) for item in parameters if item["in"] != "path"}
    infer = [path for path in document["paths"] if path.endswith("/infer")]
    assert queries == {
        ("/v1/sessions/{session}", "token"),
        *((path, "Inference-Header-Content-Length") for path in infer),
    }
