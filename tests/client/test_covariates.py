"""The Python client with models of patches, irregular time and covariates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import stream_helpers
from client_helpers import Both, BreakingLine
from exports import exported
from server_helpers import Running, serve
from stablernn.nn.models import Forecaster
from stablernn_client import BadRequest
from stablernn_registry import Registry
from stablernn_server import Settings, create_app

NOISE = np.random.default_rng(11)
LOAD = NOISE.normal(5, 3, (5, 2)).astype(np.float32)
TIMES = [f"2024-03-01T0{hour}:00:00" for hour in range(5)]
PRICES = {"price": [3.0, None, 5.0]}
SIZE = {"size": 2.5, "age": None}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of models of the tests of streams, which are exported once for both."""
    root, shared = tmp_path_factory.mktemp("registry"), stream_helpers.fitted()
    timed, _ = shared["timed"]
    models = {"shop": shared["told"], "timed": (timed, {"features": ["load"]}), "patched": shared["patched"]}
    for name, (model, fields) in models.items():
        report = exported(model.eval(), tmp_path_factory.mktemp("export"))
        facts: dict[str, Any] = {"task": "forecast", "cell": model.rnn.first.cell, "signature": report.signature}
        if isinstance(model, Forecaster):
            facts |= {"targets": ["load"], "horizon": model.horizon, "quantiles": stream_helpers.QUANTILES}
        Registry(root).publish(name, report.files, facts | fields)
    yield from serve(create_app(Settings(registry=root)))


@pytest.fixture(params=["threads", pytest.param("asyncio", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, running: Running) -> Iterator[Both]:
    with Both.of(request.param, running.url) as both:
        yield both


def test_a_forecast_with_covariates(client: Both) -> None:
    options = {"start": TIMES[0], "frequency": "h"}
    [informed] = client.forecast("shop", LOAD, future=PRICES, static=SIZE, **options)
    unknown = {"price": [None] * 3}
    [uninformed] = client.forecast("shop", LOAD, future=unknown, **options)
    assert not np.array_equal(informed.mean, uninformed.mean)
    both = client.forecast("shop", [LOAD, LOAD], future=[PRICES, unknown], static=[SIZE, {}], **options)
    np.testing.assert_array_equal(both[0].mean, informed.mean)
    np.testing.assert_array_equal(both[1].mean, uninformed.mean)


@pytest.mark.parametrize("lost", [(0,), (1, 4)], ids=str)
def test_a_stream_with_covariates(running: Running, client: Both, lost: tuple[int, ...]) -> None:
    """Static covariates travel with the first sample, and are sent again with it while there is no token yet."""
    [forecast] = client.forecast("shop", LOAD, start=TIMES[0], frequency="h", future=PRICES, static=SIZE)
    line = BreakingLine(running.port)
    kind = "threads" if client.is_for_threads else "asyncio"
    with Both.of(kind, line.url) as broken, broken.stream("shop", static=SIZE, token_every=2) as stream:
        before = line.connections
        for index, (sample, time) in enumerate(zip(LOAD, TIMES, strict=True)):
            line.swallow = int(index in lost)
            result = stream.step(sample, time=time, future=PRICES)
        assert line.connections == before + len(lost)
    line.close()
    np.testing.assert_array_equal(result.outputs["mean"], forecast.mean)
    np.testing.assert_array_equal(result.outputs["quantiles"][..., 0], forecast.quantiles[0.1])


def test_static_covariates_belong_to_a_new_stream(client: Both) -> None:
    with pytest.raises(BadRequest, match="static belongs to a new stream"):
        client.stream("shop", static=SIZE, token="x")
    with client.stream("timed", static=SIZE) as stream, pytest.raises(BadRequest, match="static"):
        stream.step(1.0)


@pytest.mark.parametrize("at_once", [True, False], ids=["in one message", "one by one"])
def test_irregular_time(client: Both, at_once: bool) -> None:
    x, dt = LOAD[:, 0], np.array([1, 0.5, 2, 3.25, 1], np.float32)
    [forecast] = client.forecast("timed", x, dt=dt)
    [regular] = client.forecast("timed", x)
    assert not np.array_equal(forecast.mean, regular.mean)
    with client.stream("timed") as stream:
        if at_once:
            result = stream.collect(x, dt=dt)[-1]
        else:
            for value, step in zip(x.tolist(), dt.tolist(), strict=True):
                result = stream.step(value, dt=step)
    np.testing.assert_array_equal(result.outputs["mean"], forecast.mean)
    with client.streams("timed", 2) as streams:
        results = streams.step(np.stack([x, x])[..., None], dt=np.stack([dt, np.ones(5)]))
    np.testing.assert_array_equal(results.outputs["mean"][0, -1], forecast.mean)
    np.testing.assert_array_equal(results.outputs["mean"][1, -1], regular.mean)


@pytest.mark.parametrize(
    ("samples", "dt", "message"),
    [
        ([1, 2], [1], "each of the 2 samples"),
        (iter([1, 2]), [1, 1], "an array or a list of samples"),
        ([1, 2], [[1, 1], [1, 1]], r"each sample, \(1, 2\), got the shape \(1, 2, 2\)"),
    ],
)
def test_spacing_that_does_not_fit(client: Both, samples: Any, dt: Any, message: str) -> None:
    with client.stream("timed") as stream, pytest.raises(BadRequest, match=message):
        stream.collect(samples, dt=dt)


def test_patches(client: Both) -> None:
    """Samples one by one, several at once, and by streams that are out of step."""
    x = NOISE.normal(5, 3, (13, 2)).astype(np.float32)
    answers = client.classify("patched", [x[:3], x[:6], x[:9], x[:12]])
    labels = client.metadata("patched")["parameters"]["labels"]
    expected = np.array([[answer.probabilities[label] for label in labels] for answer in answers], np.float32)
    with client.stream("patched") as stream:
        assert (stream.about.sample_shape, stream.about.patch_stride) == ((2,), 3)
        results = [stream.step(sample) for sample in x[:7]]
        assert [(result.step, bool(result.outputs)) for result in results] == [(n, n % 3 == 0) for n in range(1, 8)]
        assert [results[n].label for n in (2, 5, 6)] == [answers[0].label, answers[1].label, None]
        token = stream.token()
        rest = stream.collect(x[7:])
    assert [(result.step, result.label) for result in rest] == [(9, answers[2].label), (12, answers[3].label)]
    found = [results[2], results[5], *rest]
    np.testing.assert_array_equal([result.outputs["probabilities"] for result in found], expected)
    with client.stream("patched") as stream:
        stream.step(x[0])
        begun = stream.token()
    with client.streams("patched", 2, tokens=[token, begun]) as streams:
        both = streams.step(np.stack([x[7:10], x[1:4]]))
        assert (both.steps.tolist(), both.answers.tolist()) == ([10, 4], [1, 1])
        np.testing.assert_array_equal(both.outputs["probabilities"][:, 0], expected[[2, 0]])
        both = streams.step(np.stack([x[10:12], x[4:6]]), every=False)
        assert [[result.step for result in both.of(row)] for row in (0, 1)] == [[12], [6]]
        np.testing.assert_array_equal(both.outputs["probabilities"][:, 0], expected[[3, 1]])
        both = streams.step(np.stack([x[12:13]] * 2))
        assert (both.answers.tolist(), both.outputs["probabilities"].shape, both.of(0)) == ([0, 0], (2, 0, 3), [])


@pytest.mark.parametrize("taken", [0, 3])
def test_static_covariates_of_a_stream_whose_version_is_no_longer_served(
    running: Running, client: Both, taken: int
) -> None:
    """They are sent again with the first sample, after the token of the zero state."""
    registry = Registry(running.app.state.context.settings.registry)
    first = registry.get("shop:1")
    fields = first.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    second = registry.publish("shop", {name: first.path(name) for name in first.manifest.files}, fields).version
    [forecast] = client.forecast("shop", LOAD, start=TIMES[0], frequency="h", future=PRICES, static=SIZE)
    line = BreakingLine(running.port)
    kind = "threads" if client.is_for_threads else "asyncio"
    with Both.of(kind, line.url) as broken, broken.stream("shop:1", static=SIZE) as stream:
        for index, (sample, time) in enumerate(zip(LOAD, TIMES, strict=True)):
            if index == taken:
                for path in (f"shop:{second}/load", "shop:1/unload"):
                    httpx.post(f"{running.url}/v2/repository/models/{path}").raise_for_status()
                line.swallow = 1
            result = stream.step(sample, time=time, future=PRICES)
        assert (stream.about.version, result.step) == ("1", len(LOAD))
    line.close()
    np.testing.assert_array_equal(result.outputs["mean"], forecast.mean)
    for path in ("shop:1/load", f"shop:{second}/unload"):
        httpx.post(f"{running.url}/v2/repository/models/{path}").raise_for_status()
