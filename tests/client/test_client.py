"""The Python client, blocking and for asyncio, against real servers."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import numpy as np
import pytest

import stablernn_client as package
from client_helpers import Both
from server_helpers import Published, Running, serve
from stablernn_client import (
    BadRequest,
    Busy,
    Client,
    ClientError,
    ConnectionFailed,
    Forbidden,
    NotFound,
    ProtocolError,
    TooLarge,
    Unauthorized,
)
from stablernn_client.bodies import JSON_LENGTH_HEADER, decode_reply, encode_request
from stablernn_client.errors import error_from_reply
from stablernn_client.transport import RetryPolicy
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app

LOUD = np.random.default_rng(5).normal(0, 3, 12).astype(np.float32)
WIDE = np.random.default_rng(6).normal(0, 10, (9, 3)).astype(np.float32)


# Both clients share all but their transport, so that the slow tests alone call everything with both.
KINDS = ["threads", pytest.param("asyncio", marks=pytest.mark.slow)]


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: Running) -> Iterator[Both]:
    with Both.of(request.param, server.url) as both:
        yield both


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def other_server() -> Iterator[str]:
    """An HTTP server that is not this service."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_importing_the_client_loads_no_part_of_the_server() -> None:
    code = (
        "import stablernn_client, sys; "
        "print({'fastapi', 'starlette', 'uvicorn', 'onnxruntime', 'pydantic', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["Client", "Stream", "Streams"])
def test_both_clients_have_the_same_methods(name: str) -> None:
    threads, tasks = (
        {method for method in dir(getattr(package, prefix + name)) if not method.startswith("_")}
        for prefix in ("", "Async")
    )
    assert threads == tasks


def test_models_metadata_and_readiness(client: Both) -> None:
    assert client.models() == ["animals", "co2", "flow"]
    assert client.metadata("animals@production")["parameters"]["version"] == "1"
    assert client.ready() is True


def test_statistics_count_what_was_run(client: Both) -> None:
    def count() -> int:
        [row] = client.statistics("animals:1")
        assert (row["name"], row["version"]) == ("animals", "1")
        return int(row["inference_count"])

    before = count()
    client.classify("animals:1", [LOUD, LOUD])
    assert count() == before + 2
    assert [row["version"] for row in client.statistics("animals")] == ["1", "2"]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_server_that_is_not_there_is_not_ready(kind: str, free_port: int) -> None:
    with Both.of(kind, f"http://127.0.0.1:{free_port}") as client:
        assert client.ready() is False
        with pytest.raises(
            ConnectionFailed, match=f"Cannot connect to http://127.0.0.1:{free_port} .*check the address"
        ):
            client.models()


class TestClassify:
    def test_series_of_different_lengths(self, client: Both, animals: ServedModel) -> None:
        series = [LOUD.tolist(), LOUD[:5], tuple(LOUD[:1].tolist())]
        x = np.zeros((3, 12, 1), np.float32)
        for row, values in zip(x, series, strict=True):
            row[: len(values), 0] = values
        expected = animals.run_numpy(x, np.array([12, 5, 1]))["probabilities"]
        answers = client.classify("animals", series)
        labels = animals.manifest.labels or []
        assert [answer.label for answer in answers] == [labels[row.argmax()] for row in expected]
        got = [[np.float32(answer.probabilities[label]) for label in labels] for answer in answers]
        np.testing.assert_array_equal(got, expected)

    @pytest.mark.parametrize(
        "series",
        [[1.0, None, 3.0], [1.0, float("nan"), 3.0], np.array([1.0, np.nan, 3.0]), np.array([[1.0], [np.nan], [3.0]])],
        ids=["None", "NaN", "array", "array of one feature"],
    )
    def test_one_series_and_missing_values(self, client: Both, animals: ServedModel, series: Any) -> None:
        x = np.array([1.0, np.nan, 3.0], np.float32).reshape(1, 3, 1)
        [answer] = client.classify("animals", series)
        expected = animals.run_numpy(x, np.array([3]))["probabilities"][0]
        assert [np.float32(value) for value in answer.probabilities.values()] == sorted(expected, reverse=True)

    def test_a_batch_in_one_array(self, client: Both) -> None:
        together = client.classify("animals", np.stack([LOUD, LOUD[::-1]])[..., None])
        assert together == [*client.classify("animals", LOUD), *client.classify("animals", LOUD[::-1].tolist())]


class TestForecast:
    def test_several_features_and_targets(self, client: Both, flow: ServedModel) -> None:
        expected = flow.run_numpy(WIDE[None], np.array([9]))
        [answer] = client.forecast("flow", WIDE)
        np.testing.assert_array_equal(answer.mean, expected["mean"][0])
        assert sorted(answer.quantiles) == [0.1, 0.5, 0.9]
        for index, level in enumerate(sorted(answer.quantiles)):
            np.testing.assert_array_equal(answer.quantiles[level], expected["quantiles"][0, :, :, index])
        assert answer.targets == ("flow", "level")

    def test_series_with_times_and_options(self, client: Both) -> None:
        starts = ["2024-01-06", datetime(2024, 2, 3)]
        answers = client.forecast(
            "co2", [LOUD.tolist(), LOUD[:4]], start=starts, frequency="W", horizon=2, quantiles=[0.9]
        )
        assert [answer.start for answer in answers] == ["2024-03-30T00:00:00", "2024-03-02T00:00:00"]
        assert all(answer.mean.shape == (2, 1) and answer.frequency == "W" for answer in answers)
        assert all(list(answer.quantiles) == [0.9] for answer in answers)


class TestInfer:
    def test_every_output(self, client: Both, animals: ServedModel) -> None:
        x, lengths = np.stack([LOUD, LOUD[::-1]])[..., None], np.array([12, 7])
        expected = animals.run_numpy(x, lengths)
        answer = client.infer("animals@production", {"x": x, "lengths": lengths})
        assert answer["state_0_out"].shape[0] == 2
        for name, value in expected.items():
            np.testing.assert_array_equal(answer[name], value)
            assert answer[name].dtype == value.dtype
            assert answer[name].flags.writeable

    @pytest.mark.parametrize("dtype", ["float16", ">f4", "int32", "uint8"])
    def test_types_of_input(self, client: Both, dtype: str) -> None:
        x = np.array([[[1], [2], [3]]], dtype)
        answer = client.infer("animals", {"x": x}, outputs=["logits"])
        assert list(answer) == ["logits"]
        np.testing.assert_array_equal(answer["logits"], client.infer("animals", {"x": [[[1], [2], [3]]]})["logits"])

    @pytest.mark.parametrize("outputs", [None, ["logits"]], ids=["all outputs", "one output"])
    def test_numbers_travel_as_raw_bytes(self, server: Running, outputs: list[str] | None) -> None:
        body, json_length = encode_request({"x": LOUD.reshape(1, 12, 1)}, outputs)
        assert body[json_length:] == LOUD.tobytes()
        headers = {JSON_LENGTH_HEADER: str(json_length)}
        answer = httpx.post(f"{server.url}/v2/models/animals/infer", content=body, headers=headers)
        assert answer.headers["content-type"] == "application/octet-stream"
        decoded = decode_reply(answer.content, answer.headers[JSON_LENGTH_HEADER])
        assert answer.content.endswith(list(decoded.values())[-1].tobytes())


ERRORS: list[tuple[str, Callable[[Any], Any], type[ClientError], int | None, str | None, str]] = [
    ("no such model", lambda c: c.metadata("fish"), NotFound, 404, "unknown_model", "Unknown model 'fish'"),
    ("a model's name with a slash", lambda c: c.metadata("a/b"), NotFound, 404, "unknown_path", "a/b"),
    ("no series", lambda c: c.classify("animals", np.ones((0, 3, 1))), BadRequest, None, None, "at least one series"),
    ("too large", lambda c: c.classify("animals", np.ones((90, 900, 1))), TooLarge, 413, "too_large", "limit"),
    ("infinite", lambda c: c.classify("animals", [1, np.inf]), BadRequest, None, None, "series holds an infinite"),
    ("ragged", lambda c: c.infer("animals", {"x": [[1], [2, 3]]}), BadRequest, None, None, "input 'x' must be a rect"),
    ("boolean", lambda c: c.infer("animals", {"x": [[True]]}), BadRequest, None, None, "got bool"),
    ("deep", lambda c: c.classify("animals", [np.ones((2, 2, 2))]), BadRequest, None, None, r"series\[0\] must .* 3\."),
    ("static", lambda c: c.forecast("co2", LOUD, static={"a": np.inf}), BadRequest, None, None, r"static\['a'\] hol"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "status", "code", "message"), [pytest.param(*row[1:], id=row[0]) for row in ERRORS]
)
def test_errors(
    client: Both,
    call: Callable[[Any], Any],
    kind: type[ClientError],
    status: int | None,
    code: str | None,
    message: str,
) -> None:
    with pytest.raises(kind, match=message) as caught:
        call(client)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "localhost:8080"}, "must look like http://127.0.0.1:8080, got 'localhost:8080'"),
        ({"url": "http://a", "token": "two words"}, "one word of printable ASCII"),
        ({"url": "http://a", "timeout": 0}, "above 0, got 0"),
        ({"url": "http://a", "timeout": float("inf")}, "finite number of seconds"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        Client(**arguments)


@pytest.fixture(scope="module")
def guarded(published: Published) -> Iterator[Running]:
    settings = Settings(
        registry=published.root, models=("animals:2",), infer_tokens=("i" * 32,), admin_tokens=("a" * 32,)
    )
    yield from serve(create_app(settings))


@pytest.mark.parametrize("kind", KINDS)
def test_roles(guarded: Running, kind: str) -> None:
    for token in (None, "w" * 32):
        with Both.of(kind, guarded.url, token=token) as client:
            for call in (client.models, lambda: client.classify("animals", LOUD), lambda: client.stream("animals")):
                with pytest.raises(Unauthorized):
                    call()
            assert client.ready()
    with Both.of(kind, guarded.url, token="i" * 32) as client, client.stream("animals") as stream:
        assert client.classify("animals", LOUD)[0].label == stream.collect(LOUD)[-1].label
    # The client has no method for administrators, so the reply is converted directly.
    path = f"{guarded.url}/v2/repository/models/animals/unload"
    answer = httpx.post(path, headers={"Authorization": f"Bearer {'i' * 32}"})
    assert type(error_from_reply(answer.status_code, answer.headers, answer.content)) is Forbidden


class TestBusy:
    """A server that is starting answers 503 with Retry-After."""

    @pytest.fixture
    def starting(self, published: Published) -> Iterator[Running]:
        settings = Settings(registry=published.root, models=("animals:2",))
        yield from serve(create_app(settings))

    @pytest.mark.parametrize("kind", ["threads", "asyncio"])
    def test_a_call_is_retried_after_the_requested_delay(self, starting: Running, kind: str) -> None:
        context = starting.app.state.context
        started = context.is_started
        context.is_started = False
        timer = threading.Timer(1.0, setattr, (context, "is_started", started))
        with Both.of(kind, starting.url, timeout=30) as client:
            assert not client.ready()
            timer.start()
            assert client.classify("animals", LOUD)
        timer.join()

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_delay_beyond_the_timeout_is_an_error(self, starting: Running, kind: str) -> None:
        starting.app.state.context.is_started = False
        with Both.of(kind, starting.url, timeout=0.5) as client, pytest.raises(Busy, match="starting") as caught:
            client.classify("animals", LOUD)
        assert caught.value.status == 503
        assert caught.value.code == "not_ready"
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 0.5


def test_a_server_that_is_not_this_service(other_server: str) -> None:
    with Client(other_server) as client:
        with pytest.raises(ProtocolError, match="status 501 and no error of this service; check the address"):
            client.classify("animals", LOUD)
        with pytest.raises(ProtocolError, match="not reply as this service does .*; check the address"):
            client.stream("animals")


def test_many_threads_share_a_client(server: Running) -> None:
    failures: list[BaseException] = []

    def work(client: Client, number: int) -> None:
        try:
            for _ in range(10):
                x = np.full((1, 3, 1), number, np.float32)
                np.testing.assert_array_equal(client.infer("animals", {"x": x})["logits"], expected[number])
        except BaseException as error:
            failures.append(error)

    with Client(server.url) as client:
        expected = [
            client.infer("animals", {"x": np.full((1, 3, 1), number, np.float32)})["logits"] for number in range(8)
        ]
        threads = [threading.Thread(target=work, args=(client, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_an_attempt_that_the_deadline_would_cut_off_is_not_made() -> None:
    error = Busy("Try again later.", status=503, code="busy", retry_after=0.95)
    assert RetryPolicy(60).next_delay(error) == 0.95
    with pytest.raises(Busy) as caught:
        RetryPolicy(1).next_delay(error)
    assert caught.value is error
