"""Adaptive intervals and the test for drift over every transport: one stream, the same numbers, also after a move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from exports import exported
from server_helpers import Published, Running, serve
from stablernn.nn.models import Forecaster, SequenceModel
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.online_streams import OnlineOptions, create_online_streams
from stablernn_server import ModelLoadError, Settings, create_app
from stream_helpers import QUANTILES, STATE_KEY, Wire, frame, offline, plain, post_json

STEPS = 160
RATE = 0.004


def build() -> dict[str, tuple[SequenceModel, dict[str, Any]]]:
    """The models of the tests, with the fields of their manifests."""
    sizes: dict[str, Any] = {"hidden_size": 6, "quantiles": QUANTILES}
    quick = {"cell_options": {"contraction_rate": 0.05}}
    forecast = {"task": "forecast", "quantiles": QUANTILES}
    return {
        # A step forgets all but a twentieth, so that blocks are short.
        "quick": (
            Forecaster("ren", 2, 12, target_indices=(1,), **quick, **sizes),
            {**forecast, "features": ["a", "b"], "targets": ["b"], "horizon": 12},
        ),
        "patched": (
            Forecaster("ren", 1, 3, patch_size=4, patch_stride=2, **quick, **sizes),
            {**forecast, "features": ["a"], "targets": ["a"], "horizon": 3},
        ),
    }


@pytest.fixture(scope="module")
def forecasters(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root, folder = tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("export")
    models = build()
    noise = np.random.default_rng(0)
    for name, (model, fields) in models.items():
        model.fit_scaling([noise.normal(5.0, 3.0, (200, model.input_size)).astype(np.float32)])
        report = exported(model.eval(), folder / name)
        facts = {
            "cell": model.rnn.first.cell,
            "signature": report.signature,
            "certificate": report.certificate,
            **fields,
        }
        Registry(root).publish(name, report.files, facts)
    return Published(root, {name: model for name, (model, _) in models.items()})


def settings(forecasters: Published, *models: str, **options: Any) -> Settings:
    return Settings(registry=forecasters.root, state_key=STATE_KEY, models=models or ("quick", "patched"), **options)


@pytest.fixture(scope="module")
def running(forecasters: Published) -> Iterator[Running]:
    yield from serve(create_app(settings(forecasters, adaptive_intervals=True, drift_false_alarms=RATE)))


@pytest.fixture(scope="module")
def other(forecasters: Published) -> Iterator[Running]:
    """A replica of ``running``."""
    yield from serve(create_app(settings(forecasters, adaptive_intervals=True, drift_false_alarms=RATE)))


@pytest.fixture(scope="module")
def without(forecasters: Published) -> Iterator[Running]:
    """A server without estimates."""
    yield from serve(create_app(settings(forecasters)))


def shifted_samples(model: ServedModel) -> np.ndarray:
    """Samples of one stream whose level rises in the last quarter, some of them missing."""
    random = np.random.default_rng(7)
    shape = (STEPS * model.patch_stride, len(model.manifest.features))
    x = random.normal(5.0, 3.0, shape).astype(np.float32)
    x[3 * len(x) // 4 :] += 40
    x[random.random(shape) < 0.05] = np.nan
    return x


def expected(forecasters: Published, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Samples, the adaptive quantiles after each of them by the sequence graph, and the number of alarms."""
    version = forecasters.registry.get(name)
    model = ServedModel.load(version, "cpu")
    x = shifted_samples(model)
    quantiles = offline(model, x)["quantiles"]
    online = create_online_streams(version.manifest, model.patch_stride, OnlineOptions(True, RATE))
    assert online is not None
    update = online.advance({}, x.reshape(1, STEPS, model.patch_stride, -1), quantiles[None])
    return x, update.outputs["adaptive_quantiles"][0], int(update.alarms[0])


Answer = tuple[np.ndarray, int]


def as_array(outputs: list[dict[str, Any]]) -> np.ndarray:
    return np.array([output["adaptive_quantiles"] for output in outputs], np.float32)


def by_tokens(running: Running, other: Running, name: str, x: np.ndarray) -> Answer:
    """Each request goes to the other of two servers."""
    outputs, alarms, token = [], 0, None
    for start in range(0, len(x), 10):
        body = {"model": name, "values": plain(x[start : start + 10])} | ({"state_token": token} if token else {})
        answer = post_json((running, other)[start // 10 % 2], "/v1/step", body)
        outputs, token = outputs + answer["outputs"], answer["state_token"]
        alarms += answer.get("drift_alarms", 0)
    return as_array(outputs), alarms


def by_session(running: Running, other: Running, name: str, x: np.ndarray) -> Answer:
    session = post_json(running, "/v1/sessions", {"model": name})["session_id"]
    outputs, alarms = [], 0
    for sample in x:
        answer = post_json(running, f"/v1/sessions/{session}/step", {"values": plain(sample)})
        outputs += answer["outputs"]
        alarms += answer.get("drift_alarms", 0)
    return as_array(outputs), alarms


def by_text_frames(running: Running, other: Running, name: str, x: np.ndarray) -> Answer:
    outputs, alarms = [], 0
    with Wire(running.url, name) as wire:
        for start in range(0, len(x), 7):
            answer = wire.say(values=plain(x[start : start + 7]))
            outputs += answer["outputs"]
            alarms += answer.get("drift_alarms", 0)
    return as_array(outputs), alarms


def by_binary_frames(running: Running, other: Running, name: str, x: np.ndarray) -> Answer:
    """Next to a stream of other values, without the outputs of the graph."""
    before = drift_alarms(running, name)
    parts, alarms = [], 0
    with Wire(running.url, name, "&outputs=adaptive_quantiles,drift_evidence") as wire:
        for start in range(0, len(x), 20):
            part = x[start : start + 20]
            _, outputs, _ = wire.step([4, 9], np.stack([np.full_like(part, 5), part]))
            parts.append(outputs["adaptive_quantiles"][1])
            alarms += int((outputs["drift_evidence"][1] >= 1).sum())
    assert drift_alarms(running, name) - before == alarms
    return np.concatenate(parts), alarms


TRANSPORTS = {
    "tokens": by_tokens,
    "session": by_session,
    "text": by_text_frames,
    "binary": by_binary_frames,
}


def drift_alarms(running: Running, name: str) -> int:
    return int(metric(running, f'stablernn_drift_alarms_total{{model="{name}",version="1"}}'))


def metric(running: Running, name: str) -> float:
    lines = [line for line in httpx.get(running.url + "/metrics").text.splitlines() if line.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


@pytest.mark.parametrize("name", ["quick", "patched"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_answers_the_same_intervals_and_alarms(
    transport: str, name: str, running: Running, other: Running, forecasters: Published
) -> None:
    x, intervals, alarms = expected(forecasters, name)
    send: Callable[[Running, Running, str, np.ndarray], Answer] = TRANSPORTS[transport]
    actual = send(running, other, name, x)
    assert alarms
    assert actual[1] == alarms
    assert np.array_equal(actual[0], intervals)


def test_a_session_and_the_metrics_count_coverage(running: Running, forecasters: Published) -> None:
    x, _, _ = expected(forecasters, "quick")
    name = 'stablernn_interval_scores_total{model="quick",nominal="0.8",result="%s",version="1"}'
    before = [metric(running, name % result) for result in ("covered", "missed")]
    session = post_json(running, "/v1/sessions", {"model": "quick"})["session_id"]
    path = f"{running.url}/v1/sessions/{session}"
    assert httpx.get(path).json()["coverage"] == [{"nominal": 0.8, "scored": 0, "covered": 0}]
    post_json(running, f"/v1/sessions/{session}/step", {"values": plain(x)})
    content = httpx.get(path).json()
    (coverage,) = content["coverage"]
    assert coverage["scored"] > 500
    after = [metric(running, name % result) for result in ("covered", "missed")]
    covered, missed = np.subtract(after, before).tolist()
    assert (covered, covered + missed) == (coverage["covered"], coverage["scored"])
    # Norms are those of the states of the model alone.
    assert all(state["state"].startswith("state_") for state in content["states"])


def test_a_token_from_before_the_option_is_continued(
    running: Running, without: Running, forecasters: Published
) -> None:
    x, _, _ = expected(forecasters, "quick")
    token = post_json(without, "/v1/step", {"model": "quick", "values": plain(x[:20])})["state_token"]
    answer = post_json(running, "/v1/step", {"state_token": token, "values": plain(x[20])})
    assert answer["step"] == 21
    # The estimates begin here.
    (output,) = answer["outputs"]
    assert output["adaptive_quantiles"] == output["quantiles"]
    later = post_json(running, "/v1/step", {"state_token": answer["state_token"], "values": plain(x[21])})["outputs"][0]
    assert later["adaptive_quantiles"] != later["quantiles"]


def test_a_token_with_estimates_is_refused_without_the_option(running: Running, without: Running) -> None:
    token = post_json(running, "/v1/step", {"model": "quick", "values": [5, 5]})["state_token"]
    answer = httpx.post(without.url + "/v1/step", json={"state_token": token, "values": [5, 5]})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_token")
    assert "--adaptive-intervals" in answer.json()["error"]
    with Wire(without.url, "quick") as wire:
        error = wire.send(frame([0], np.full((1, 1, 2), 5, np.float32), tokens=[token]))
        assert isinstance(error, dict)
        assert error["code"] == "bad_token"


def test_a_frame_that_fails_leaves_the_estimates_as_they_were(running: Running, forecasters: Published) -> None:
    x, intervals, _ = expected(forecasters, "quick")
    with Wire(running.url, "quick") as wire:
        wire.step([0], x[None, :30])
        before = metric(running, 'stablernn_interval_scores_total{model="quick"')
        error = wire.send(frame([0, 1], np.full((2, 3, 2), np.inf, np.float32)))
        assert isinstance(error, dict)
        assert metric(running, 'stablernn_interval_scores_total{model="quick"') == before
        _, outputs, _ = wire.step([0], x[None, 30:40])
        assert np.array_equal(outputs["adaptive_quantiles"][0], intervals[30:40])


def refusal(registry: Published, *models: str, **options: Any) -> str:
    with pytest.raises(ModelLoadError) as error:
        create_app(settings(registry, *models, **options))
    return str(error.value)


def test_models_without_what_an_estimate_needs_are_refused_at_start(
    forecasters: Published, published: Published
) -> None:
    assert "'animals:1' cannot be served" in refusal(published, "animals:1", adaptive_intervals=True)
    assert "proves no forgetting time" in refusal(published, "flow", drift_false_alarms=0.001)
    assert refusal(forecasters, "quick", drift_false_alarms=0.5).endswith("give a rate below 0.333.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantiles": None}, r"got \[\]"),
        ({"quantiles": [0.1, 0.5, 0.8]}, r"got \[0.1, 0.5, 0.8\]"),
        ({"targets": ["c"]}, "its target 'c'"),
        ({"head": "recursive"}, "model.head=direct"),
    ],
)
def test_forecasters_without_what_an_estimate_needs_are_refused(
    changes: dict[str, Any], reason: str, forecasters: Published
) -> None:
    manifest = forecasters.registry.get("quick").manifest.model_copy(update=changes)
    with pytest.raises(ModelLoadError, match=reason):
        create_online_streams(manifest, 1, OnlineOptions(adaptive_intervals=True))


def test_estimates_that_make_large_tokens_are_refused(forecasters: Published) -> None:
    levels = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    manifest = forecasters.registry.get("quick").manifest.model_copy(update={"quantiles": levels, "horizon": 40_000})
    with pytest.raises(ModelLoadError, match="horizon 40000, . targets? and 9 quantiles make .* at most 1,048,576"):
        create_online_streams(manifest, 1, OnlineOptions(adaptive_intervals=True))
