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

import stablernn_server
from server_helpers import Published, Running
from stablernn_registry import UnknownRefError
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.devices import available_cpus
from stablernn_server import Settings, SettingsError, create_app, errors
from stablernn_server.errors import STATUS_AND_CODE, ServerError
from stablernn_server.model_repository import ModelRepository
from stablernn_server.observability.telemetry import Telemetry


def test_the_package_brings_neither_torch_nor_the_library() -> None:
    code = (
        "import sys, stablernn_server, stablernn_server.app; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'stablernn', 'stablernn_cli', 'onnx', 'polars', 'matplotlib'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_served_model_brings_no_torch_either(published: Published) -> None:
    code = (
        "import sys, stablernn_server as s; "
        f"app = s.create_app(s.Settings(registry={str(published.root)!r})); "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'stablernn', 'onnx'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_only_what_routes_raise_has_a_status() -> None:
    assert {kind.__name__: row for kind, row in STATUS_AND_CODE.items()} == {
        "InputError": (400, "bad_input"),
        "NoStreamsError": (400, "no_streams"),
        "BadTokenError": (400, "bad_token"),
        "ExpiredTokenError": (400, "expired_token"),
        "UnauthorizedError": (401, "unauthorized"),
        "ForbiddenError": (403, "forbidden"),
        "UnknownModelError": (404, "unknown_model"),
        "NoExampleError": (404, "no_example"),
        "UnknownSessionError": (404, "unknown_session"),
        "MethodError": (405, "method_not_allowed"),
        "ReadTimeoutError": (408, "timeout"),
        "ClientGoneError": (499, "client_gone"),
        "VersionGoneError": (409, "version_gone"),
        "OtherModelError": (409, "other_model"),
        "DuplicateStepError": (409, "duplicate_step"),
        "SkippedStepError": (409, "skipped_step"),
        "TimeOrderError": (409, "time_order"),
        "MissingStepsError": (409, "missing_steps"),
        "UnknownSequenceError": (409, "unknown_sequence"),
        "OneProcessError": (409, "one_process_only"),
        "ConflictError": (409, "conflict"),
        "ModelLoadError": (409, "load_failed"),
        "DeviceError": (409, "load_failed"),
        "TooLargeError": (413, "too_large"),
        "OutOfMemoryError": (413, "too_large"),
        "HeadTooLargeError": (431, "head_too_large"),
        "TooManyError": (429, "too_many"),
        "NotReadyError": (503, "not_ready"),
        "BusyError": (503, "busy"),
        "DeadlineError": (504, "deadline"),
    }
    assert all(issubclass(kind, ServerError) for kind in STATUS_AND_CODE)
    tree = errors.__doc__ or ""
    assert all(f" {kind.__name__} " in tree for kind in STATUS_AND_CODE)
    # Only the connection raises it, before there is a request.
    private = {"HeadTooLargeError"}
    assert {kind.__name__ for kind in STATUS_AND_CODE} - private <= set(stablernn_server.__all__)


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


def test_inferences_do_not_stop_the_event_loop(server: Running, client: httpx.Client) -> None:
    async def race() -> list[str]:
        finished: list[str] = []
        async with httpx.AsyncClient(base_url=server.url) as client:

            async def slow() -> None:
                data = [0.0] * 20_000
                tensor = {"name": "x", "shape": [1, 20_000, 1], "datatype": "FP32", "data": data}
                assert (await client.post("/v2/models/animals/infer", json={"inputs": [tensor]})).status_code == 200
                finished.append("slow")

            async def quick() -> None:
                await asyncio.sleep(0.005)
                while "slow" not in finished:
                    assert (await client.get("/v2/health/live")).status_code == 200
                    finished.append("quick")

            await asyncio.gather(slow(), quick())
        return finished

    assert asyncio.run(race()).count("quick") > 3


def opened(published: Published, *models: str) -> ModelRepository:
    settings = Settings(registry=published.root, models=models)
    return ModelRepository.open(settings, Telemetry(settings))


def test_without_models_every_one_is_served_at_its_highest_version(published: Published) -> None:
    table = opened(published)
    assert table.keys() == [("animals", 2), ("co2", 1), ("flow", 1)]
    assert table.resolve("animals") == ("animals", 2)


def test_a_version_that_was_named_twice_is_opened_once(published: Published) -> None:
    table = opened(published, "animals@production", "animals:1")
    assert table.keys() == [("animals", 1)]


def test_the_highest_version_answers_where_no_alias_was_named(published: Published) -> None:
    table = opened(published, "animals:1", "animals:2")
    assert table.resolve("animals") == ("animals", 2)
    assert table.resolve("animals@production") == ("animals", 1)
    found = asyncio.run(table.find_open("animals@production"))
    assert found is table.get("animals", 1)
    assert found is not table.get("animals", 2)


def test_a_reference_to_nothing_is_the_registrys_error(published: Published) -> None:
    with pytest.raises(UnknownRefError):
        create_app(Settings(registry=published.root, models=("animls",)))


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STABLERNN_REGISTRY", str(tmp_path))
    monkeypatch.setenv("STABLERNN_MODELS", "digits@production, co2:3")
    monkeypatch.setenv("STABLERNN_MAX_BODY_BYTES", "1000")
    settings = Settings(port=9000)
    assert settings.registry == tmp_path
    assert settings.models == ("digits@production", "co2:3")
    assert (settings.max_body_bytes, settings.port) == (1000, 9000)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"port": 70000}, "Settings: port: input should be less than or equal to 65535, got 70000."),
        ({"device": "gpu"}, "Settings: device: input should be 'auto', 'cpu' or 'cuda', got 'gpu'."),
        ({"engine": ""}, "Settings: engine: string should have at least 1 character, got ''."),
        ({"inferences": 0}, "Settings: inferences: input should be greater than or equal to 1, got 0."),
        ({"workers": 0}, "Settings: workers: input should be greater than or equal to 1, got 0."),
        ({"model": "x"}, "Settings: model: extra inputs are not permitted, got 'x'."),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**values)
    assert str(caught.value) == sentence


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
    assert set(document["paths"]) >= {
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/{model}",
        "/v2/models/{model}/versions/{version}/infer",
        "/v2/models/{model}/stats",
        "/v2/models/stats",
        "/v2/repository/index",
        "/v2/repository/models/{model}/load",
        "/v2/repository/models/{model}/unload",
        "/v1/timeseries/forecast",
        "/v1/timeseries/classify",
        "/v1/timeseries/models",
        "/v1/sessions",
        "/v1/sessions/{session}",
        "/v1/sessions/{session}/step",
        "/v1/step",
        "/metrics",
    }
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


@pytest.mark.parametrize("task", ["forecast", "classify"])
def test_the_examples_of_the_document_are_well_formed_requests(client: httpx.Client, task: str) -> None:
    name = f"{task.capitalize()}Request"
    example = client.get("/openapi.json").json()["components"]["schemas"][name]["examples"][0]
    served = {"forecast": "co2", "classify": "animals"}[task]
    response = client.post(f"/v1/timeseries/{task}", json={**example, "model": served})
    assert response.status_code == 200, response.text


def test_a_model_says_what_it_is(animals: ServedModel) -> None:
    assert repr(animals) == "ServedModel('animals:1', device='cpu')"
