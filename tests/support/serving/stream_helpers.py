"""Models of every kind that streams, and clients of ``/v1/stream`` that know the layout of its frames by themselves."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from websockets.sync.client import ClientConnection, connect

from exports import exported
from server_helpers import Published, Running, serve
from stablernn.data.forecasting import calendar_periods
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.stream_spec import stream_spec
from stablernn_server import Settings, create_app

QUANTILES = [0.1, 0.5, 0.9]
LETTERS = ["a", "b", "c", "d", "e"]
WAVES = ["calendar_day_sin", "calendar_day_cos", "calendar_week_sin", "calendar_week_cos"]
STATE_KEY = "a key of state tokens that all servers of the tests share"
X = [1.0, 2.0]
"""One step of the models of two features."""


def built() -> dict[str, tuple[SequenceModel, dict[str, Any]]]:
    """The model and the facts of each name."""
    torch.manual_seed(0)
    noise = np.random.default_rng(0)
    size: dict[str, Any] = {"hidden_size": 6, "quantiles": QUANTILES}
    fed = Forecaster("gru", 3, 4, head="recursive", target_indices=(2, 0), future_indices=(1,), **size)
    fed.offsets.copy_(torch.from_numpy(noise.normal(size=(4, 2, 3)).astype(np.float32)))
    classes: dict[str, Any] = {"task": "classify", "labels": ["x", "y", "z"]}
    waves = {"features": ["load", *WAVES, "price"], "calendar": calendar_periods(["day", "week"])}
    return {
        "classes": (Classifier("rnn", 2, 3, 6), {**classes, "features": ["l", "r"]}),
        "deep": (
            Forecaster("antisymmetric", 3, 5, num_layers=2, target_indices=(0, 2), **size),
            {"features": ["a", "b", "c"], "targets": ["a", "c"], "frequency": "D"},
        ),
        "text": (
            SequencePredictor("lstm", 5, 5, 8, tokens=True),
            {"task": "predict-next", "output": "categorical", "features": LETTERS, "labels": LETTERS},
        ),
        "timed": (Forecaster("lipschitz", 1, 3, max_dt=4.0, **size), {"features": ["load"], "frequency": "h"}),
        "patched": (
            Classifier("lipschitz", 2, 3, 6, readout="all", patch_size=4, patch_stride=3),
            {**classes, "features": ["l", "r"]},
        ),
        "ragged": (
            Forecaster("lipschitz", 1, 3, patch_size=2, patch_stride=2, max_dt=4.0, **size),
            {"features": ["q"]},
        ),
        "still": (
            Forecaster("lipschitz", 1, 3, static_size=2, **size),
            {"features": ["q"], "static": ["size", "age"]},
        ),
        "fed": (fed, {"features": ["a", "b", "c"], "targets": ["c", "a"], "future": ["b"], "head": "recursive"}),
        "told": (
            Forecaster("lipschitz", 6, 3, future_indices=(5, 1, 2, 3, 4), static_size=2, **size),
            {**waves, "future": ["price", *WAVES], "static": ["size", "age"], "frequency": "h"},
        ),
    }


def fitted() -> dict[str, tuple[SequenceModel, dict[str, Any]]]:
    """As :func:`built`, with scalings. The same weights each time, so that tests share the exports of these models."""
    models = built()
    noise = np.random.default_rng(1)
    for name, (model, _) in models.items():
        if name != "text":
            model.fit_scaling([noise.normal(5.0, 3.0, (60, model.input_size)).astype(np.float32)])
    return models


def publish(root: Path, folder: Path, kinds: Collection[str] = ()) -> Published:
    """Version 1 of these models, or of every one, in a registry at ``root``; ``folder`` holds what is exported."""
    models = {name: model for name, model in fitted().items() if not kinds or name in kinds}
    for name, (model, fields) in models.items():
        target = folder / name
        target.mkdir()
        report = exported(model.eval(), target)
        files = dict(report.files)
        cell = report.certificate["cell"]
        facts: dict[str, Any] = {"task": "forecast", "cell": cell, "signature": report.signature, **fields}
        facts["certificate"] = report.certificate
        if isinstance(model, Forecaster):
            facts = {"targets": [fields["features"][0]], "horizon": model.horizon, "quantiles": QUANTILES, **facts}
            if name == "fed":
                files["calibration.json"] = target / "calibration.json"
                files["calibration.json"].write_text(json.dumps({"intervals": {"offsets": model.offsets.tolist()}}))
        Registry(root).publish(name, files, facts)
    return Published(root, {name: model for name, (model, _) in models.items()})


def serving(published: Published, **settings: Any) -> Iterator[Running]:
    """A server whose state tokens are those of every other one."""
    return serve(create_app(Settings(registry=published.root, state_key=STATE_KEY, **settings)))


def samples(model: ServedModel, steps: int, seed: int = 0) -> np.ndarray:
    """Samples of a stream, ``(steps, *sample)``, some of them missing; of a model of patches one by one, too."""
    random = np.random.default_rng(seed)
    shape = (steps, *stream_spec(model).graph_shape)
    if model.input_name == "tokens":
        return random.integers(0, len(LETTERS), shape)
    x = random.normal(5.0, 3.0, shape).astype(np.float32)
    x[random.random(shape) < 0.1] = np.nan
    return x


def distances(model: ServedModel, steps: int, seed: int = 0) -> np.ndarray | None:
    """``dt`` of these samples, the first 1; None where the model takes none."""
    if model.max_dt is None:
        return None
    dt = np.random.default_rng(seed + 1).uniform(0.1, 3.9, steps).astype(np.float32)
    dt[0] = 1
    return dt


def offline(
    model: ServedModel, x: np.ndarray, dt: np.ndarray | None = None, **optional: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the outputs of the sequence graph after each whole patch; of recursive heads, those one step ahead."""
    stride = model.patch_stride
    steps = len(x) // stride
    inputs = dict(optional) if dt is None else {**optional, "dt": dt.reshape(1, -1)}
    if model.manifest.output is not None:
        return {name: value[0] for name, value in outputs(model, model.run_sequence(x[None], **inputs)).items()}
    rows = {name: np.repeat(value, steps, axis=0) if len(value) == 1 else value for name, value in inputs.items()}
    lengths = stride * np.arange(1, steps + 1)
    result = outputs(model, model.run_sequence(np.repeat(x[None], steps, axis=0), lengths, **rows))
    return result if model.rollout is None else {name: value[:, :1] for name, value in result.items()}


def outputs(model: ServedModel, result: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs that are not states."""
    return {name: value for name, value in result.items() if name not in model.step.state_outputs}


def plain(x: np.ndarray) -> Any:
    """An array for JSON, null where a value is missing."""
    if x.dtype.kind == "i":
        return x.tolist()
    return json.loads(json.dumps(x.tolist()).replace("NaN", "null"))


def stacked(objects: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Answers of JSON as float32, one after the other."""
    names = [name for name in objects[0] if name != "label"]
    return {name: np.array([answer[name] for answer in objects], np.float32) for name in names}


def assert_same_bits(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Raise unless both hold the same bits under the same names."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == np.float32
        assert np.array_equal(actual[name], value), name


def failures(running: Running, code: str, model: str = "classes") -> float:
    """Return the failures of a code that the metrics count."""
    start = f'stablernn_failures_total{{code="{code}",model="{model}",version="1"}} '
    lines = httpx.get(f"{running.url}/metrics").text.splitlines()
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


class Wire:
    """A WebSocket to ``/v1/stream``.

    Attributes:
        socket: The connection.
        hello: What the server said first.
    """

    def __init__(self, url: str, model: str, query: str = "", **options: Any) -> None:
        address = f"{url.replace('http', 'ws', 1)}/v1/stream?model={model}{query}"
        self._connection = connect(address, compression=None, max_size=None, **options)

    def __enter__(self) -> Wire:
        self.socket: ClientConnection = self._connection.__enter__()
        self.hello: dict[str, Any] = json.loads(self.socket.recv(10))
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)

    def say(self, **frame: Any) -> dict[str, Any]:
        """A text frame, and the text frame that answers it."""
        self.socket.send(json.dumps(frame))
        reply: dict[str, Any] = json.loads(self.socket.recv(30))
        return reply

    def send(self, content: bytes) -> dict[str, Any] | tuple[list[int], dict[str, np.ndarray], list[str]]:
        """A binary frame; what the text frame of an error says, or steps, outputs by name and tokens."""
        self.socket.send(content)
        answer = self.socket.recv(30)
        if isinstance(answer, str):
            error: dict[str, Any] = json.loads(answer)
            return error
        return self.read(answer)

    def step(
        self, numbers: list[int], x: np.ndarray, **options: Any
    ) -> tuple[list[int], dict[str, np.ndarray], list[str]]:
        """As :meth:`send` of :func:`frame`, for one that must be right."""
        answer = self.send(frame(numbers, x, **options))
        assert isinstance(answer, tuple), answer
        return answer

    def read(self, content: bytes) -> tuple[list[int], dict[str, np.ndarray], list[str]]:
        """A binary answer."""
        version, flags, zero, streams, steps = struct.unpack_from("<BBHII", content)
        assert (version, zero) == (1, 0)
        at = 12
        taken = list(struct.unpack_from(f"<{streams}Q", content, at))
        at += 8 * streams
        values = {}
        for output in self.hello["outputs"]:
            count = streams * steps * int(np.prod(output["shape"]))
            value = np.frombuffer(content, "<f4", count, at).reshape(streams, steps, *output["shape"])
            values[output["name"]] = value
            at += 4 * count
        tokens = []
        for _ in range(streams if flags & 1 else 0):
            (length,) = struct.unpack_from("<I", content, at)
            tokens.append(content[at + 4 : at + 4 + length].decode("ascii"))
            at += 4 + length
        assert at == len(content)
        return taken, values, tokens


def frame(
    numbers: list[int],
    x: np.ndarray,
    *,
    want_tokens: bool = False,
    last: bool = False,
    sequence: list[int] | None = None,
    dt: np.ndarray | None = None,
    tokens: list[str] | None = None,
) -> bytes:
    """A binary frame: ``x`` is ``(streams, steps, *sample)``."""
    flags = want_tokens + 2 * last + 4 * (sequence is not None) + 8 * (dt is not None) + 16 * (tokens is not None)
    parts = [struct.pack("<BBHII", 1, flags, 0, *x.shape[:2]), struct.pack(f"<{len(numbers)}I", *numbers)]
    if sequence is not None:
        parts.append(struct.pack(f"<{len(sequence)}Q", *sequence))
    if dt is not None:
        parts.append(dt.astype("<f4").tobytes())
    for token in tokens or []:
        parts.append(struct.pack("<I", len(token)) + token.encode())
    parts.append(x.astype("<i8" if x.dtype.kind == "i" else "<f4").tobytes())
    return b"".join(parts)


def stream_settings(stream_models: Published) -> Settings:
    """Settings of a server whose state tokens are those of every other one."""
    return Settings(registry=stream_models.root, state_key=STATE_KEY)


def step_body(x: np.ndarray, dt: np.ndarray | None, **further: Any) -> dict[str, Any]:
    """The body of a request for steps."""
    return {"values": plain(x), **further} | ({} if dt is None else {"dt": dt.tolist()})


def post_json(running: Running, path: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return the response to a request, which must succeed."""
    answer = httpx.post(running.url + path, json=content)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def at_or_none(value: np.ndarray | None, place: int | slice) -> np.ndarray | None:
    return None if value is None else np.asarray(value[place])
