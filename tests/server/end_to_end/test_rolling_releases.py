"""Rolling releases: an alias moves five times and the server restarts twice, and no stream is lost or changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from client_helpers import ServerProcess
from server_helpers import Published
from serving_helpers import until
from stablernn_client import Client
from stablernn_runtime import ServedModel
from stock_helpers import Stock, loads
from stream_helpers import offline, plain, stacked

pytestmark = pytest.mark.slow

RELEASES = 6
STEPS = 3
"""Steps that each stream takes after each release."""
SERIES = np.random.default_rng(9).normal(0, 3, (RELEASES * STEPS, 1)).astype(np.float32)
Take = Callable[[np.ndarray], tuple[str, np.ndarray]]
"""Takes some steps: the version that answered, and probabilities ``(streams, steps, 4)``."""


def single(client: Client, stack: ExitStack, token_every: int) -> Take:
    stream = stack.enter_context(client.stream("animals@production", token_every=token_every))

    def take(x: np.ndarray) -> tuple[str, np.ndarray]:
        outputs = [stream.step(sample).outputs["probabilities"] for sample in x]
        return stream.about.version, np.stack(outputs)[None]

    return take


def shared(client: Client, stack: ExitStack, token_every: int) -> Take:
    streams = stack.enter_context(client.streams("animals", 20, token_every=token_every))

    def take(x: np.ndarray) -> tuple[str, np.ndarray]:
        outputs = streams.step(np.repeat(x[None], 20, axis=0)).outputs["probabilities"]
        return streams.about.version, outputs

    return take


def by_token(url: str) -> Take:
    """A stream of ``/v1/step``, whose requests name the model in different ways."""
    body: dict[str, object] = {"model": "animals"}
    number = 0

    def take(x: np.ndarray) -> tuple[str, np.ndarray]:
        nonlocal body, number
        outputs = []
        for sample in x:
            number += 1
            answer = httpx.post(f"{url}/v1/step", json={**body, "values": plain(sample), "sequence": number}).json()
            outputs += answer["outputs"]
            name = ({}, {"model": "animals"}, {"model": "animals@production"})[number % 3]
            body = {"state_token": answer["state_token"], **name}
        return answer["model_version"], stacked(outputs)["probabilities"][None]

    return take


def test_no_stream_is_lost_or_changed(published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Stock(tmp_path / "registry", published)
    # Those of odd numbers have the weights of the first, the others those of the second.
    for number in range(3, RELEASES + 1):
        stock.copy(published.registry.get(f"animals:{2 - number % 2}"))
    models = [ServedModel.load(published.registry.get(f"animals:{number}"), "cpu") for number in (1, 2)]
    monkeypatch.setenv("STABLERNN_RELOAD_SECONDS", "0.1")
    words = "--model", "animals@production", "--access-log", "off"
    server = ServerProcess(stock.registry.root, tmp_path / "log", *words)
    streams: list[tuple[int, Take]] = []

    def served_version() -> str:
        return str(httpx.get(f"{server.url}/v2/models/animals").raise_for_status().json()["parameters"]["version"])

    with ExitStack() as stack:
        stack.callback(server.kill)
        client = stack.enter_context(Client(server.url, timeout=120))
        for release in range(RELEASES):
            if release:
                stock.point(release + 1)
            if release in (2, 4):
                (server.kill if release == 2 else server.stop)()
                server.start()
            until(lambda release=release: served_version() == str(release + 1))
            # Some ask for tokens often; others have none yet when the alias moves and the server restarts.
            begun = [
                single(client, stack, 2),
                single(client, stack, 32),
                shared(client, stack, 4),
                by_token(server.url),
            ]
            streams += [(release, take) for take in begun]
            for first, take in streams:
                start = (release - first) * STEPS
                version, outputs = take(SERIES[start : start + STEPS])
                assert version == str(first + 1)
                expected = offline(models[first % 2], SERIES[: start + STEPS])["probabilities"][None, start:]
                np.testing.assert_array_equal(outputs, np.repeat(expected, len(outputs), axis=0))
        with httpx.Client(base_url=server.url) as http:
            # Since the last restart: by its alias, and by a token after the alias had moved on.
            assert max(loads(http, "animals", number) for number in range(1, RELEASES + 1)) <= 2
