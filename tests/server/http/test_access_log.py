"""The access log: a line for each request, and nothing of what it holds in any log."""

from __future__ import annotations

import base64
import io
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from server_helpers import Published, Running, json_tensor, serve
from stablernn_server import Settings, create_app
from stablernn_server.http.access_log import redact_path

TOKEN = "infer-marker-5a7f31c0de"
BAD_TOKEN = "wrong-marker-5a7f31c0de"
NUMBER = 0.73519246
WORD = "marker-word-92f1"


class Lines(logging.Handler):
    """Keeps what is logged, as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = io.StringIO()
        self.access: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.text.write(f"{record.name}: {line}\n")
        if record.name == "stablernn_server.access":
            self.access.append(line)

    def wait(self, count: int) -> list[str]:
        """The access lines, when there are so many: a line is written after the answer was sent."""
        deadline = time.monotonic() + 10
        while len(self.access) < count:
            assert time.monotonic() < deadline, f"{len(self.access)} lines of {count}: {self.access}"
            time.sleep(0.01)
        return self.access


@contextmanager
def everything_logged() -> Iterator[Lines]:
    """Whatever any logger says at any level, but for the client's."""
    root, handler = logging.getLogger(), Lines()
    clients = ("httpx", "httpcore", "websockets.client")
    names = ["", *(name for name in logging.Logger.manager.loggerDict if not name.startswith(clients))]
    before = {name: logging.getLogger(name).level for name in names}
    quiet = [logging.getLogger(name) for name in clients]
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)
    for logger in quiet:
        logger.setLevel(logging.CRITICAL)
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        for logger in quiet:
            logger.setLevel(logging.NOTSET)


@contextmanager
def running(published: Published, **settings: Any) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=published.root, models=("animals@production",), **settings)))


def body(number: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {"inputs": [json_tensor("x", np.full((2, 6, 1), number, np.float32))], **fields}


def test_a_line_of_json_for_each_request(published: Published) -> None:
    with everything_logged() as lines, running(published, access_log="json") as server:
        url = f"{server.url}/v2/models/animals/infer"
        content = json.dumps(body()).encode()
        answer = httpx.post(f"{url}?secret=1", content=content, headers={"x-request-id": "mine-1"})
        assert answer.status_code == 200
        httpx.post(url, content=b"{}", headers={"x-request-id": "mine-2"})
        # Metrics and health have no lines unless they fail.
        for path in ("/metrics", "/v2/health/live", "/v2/health/ready"):
            assert httpx.get(f"{server.url}{path}").status_code == 200
        httpx.get(f"{server.url}/v2/health/live", headers={"x-request-id": "mine-4", "Host": "elsewhere.example"})
        httpx.get(f"{server.url}/v2", headers={"x-request-id": "mine-3"})
        found = {line["request_id"]: line for line in map(json.loads, lines.wait(4))}
    first = found["mine-1"]
    assert first["time"].endswith("+00:00")
    assert first["ms"] > 0
    assert first["queue_ms"] >= 0
    assert {name: first[name] for name in ("method", "path", "status", "code", "model", "version", "rows")} == {
        "method": "POST",
        "path": "/v2/models/animals/infer",
        "status": 200,
        "code": None,
        "model": "animals",
        "version": 1,
        "rows": 2,
    }
    assert (first["bytes_in"], first["bytes_out"]) == (len(content), len(answer.content))
    assert (first["caller"], first["role"]) == ("anonymous", None)
    assert (found["mine-2"]["status"], found["mine-2"]["code"]) == (400, "bad_input")
    assert (found.keys(), found["mine-4"]["code"]) == ({f"mine-{n}" for n in range(1, 5)}, "forbidden")
    assert (found["mine-3"]["status"], found["mine-3"]["model"]) == (200, None)


def test_a_short_line_of_text(published: Published) -> None:
    with everything_logged() as lines, running(published, infer_tokens=TOKEN) as server:
        headers = {"x-request-id": "mine-1", "Authorization": f"Bearer {TOKEN}"}
        httpx.post(f"{server.url}/v2/models/animals/infer", json=body(), headers=headers)
        [line] = lines.wait(1)
    assert line.startswith("POST /v2/models/animals/infer 200 ")
    assert " animals:1 rows=2 " in line
    assert line.endswith(" infer-1 mine-1")


def test_no_lines_where_none_are_wanted(published: Published) -> None:
    with everything_logged() as lines, running(published, access_log="off") as server:
        httpx.get(f"{server.url}/v2")
        httpx.get(f"{server.url}/nothing")
    assert lines.access == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_of_inputs_or_tokens_is_in_any_log(published: Published, form: str) -> None:
    good = {"Authorization": f"Bearer {TOKEN}"}
    with everything_logged() as lines, running(published, access_log=form, infer_tokens=TOKEN) as server:
        with httpx.Client(base_url=server.url, headers=good) as client:
            infer = "/v2/models/animals/infer"
            series = {"model": "animals", "inputs": [{"name": WORD, "series": [NUMBER, NUMBER]}]}
            requests: list[tuple[str, dict[str, Any]]] = [
                (infer, {"json": body(NUMBER, id=WORD)}),
                (infer, {"json": body(NUMBER) | {"parameters": {WORD: NUMBER}}}),
                (infer, {"json": {"inputs": [{"name": WORD, "shape": [1], "datatype": "FP32", "data": [NUMBER]}]}}),
                (infer, {"content": f'{{"{WORD}": {NUMBER}'.encode()}),
                (infer, {"content": WORD.encode(), "headers": {"Inference-Header-Content-Length": WORD}}),
                (f"{infer}?{WORD}={NUMBER}", {"json": body(NUMBER)}),
                ("/v1/timeseries/classify", {"json": series}),
                ("/v1/timeseries/classify", {"json": series | {"options": {"top_k": WORD}}}),
                ("/v1/timeseries/forecast", {"json": series}),
                (infer, {"json": body(NUMBER), "headers": {"Authorization": f"Bearer {BAD_TOKEN}"}}),
                (infer, {"json": body(NUMBER), "headers": {"Authorization": f"Basic {BAD_TOKEN}"}}),
                (infer, {"json": body(NUMBER), "headers": {"x-request-id": f"{WORD}\t{BAD_TOKEN}"}}),
            ]
            statuses = [client.post(path, **arguments).status_code for path, arguments in requests]
        stream = f"{server.url.replace('http', 'ws')}/v1/stream?model=animals"
        encoded = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
        with connect(stream, subprotocols=[Subprotocol("stablernn"), Subprotocol(f"bearer.{encoded}")]) as socket:
            socket.recv()
            for frame in (json.dumps({"values": [NUMBER], "id": WORD}), json.dumps({WORD: NUMBER}), WORD):
                socket.send(frame)
                socket.recv()
        with pytest.raises(InvalidStatus):
            connect(f"{stream}&{WORD}={NUMBER}", additional_headers={"Authorization": f"Bearer {BAD_TOKEN}"})
        assert len(lines.wait(len(requests) + 2)) == len(requests) + 2
    assert {200, 400, 401} <= set(statuses)
    text = lines.text.getvalue()
    for marker in (TOKEN, BAD_TOKEN, encoded, WORD, str(NUMBER)[:8], "marker"):
        assert marker not in text, next(line for line in text.splitlines() if marker in line)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v2/models/digits/infer", "/v2/models/digits/infer"),
        ("/v2/models/a b\nPOST /forged 200/infer", "/v2/models/a%20b%0APOST%20/forged%20200/infer"),
        ("/\x1b[2J", "/%1B%5B2J"),
        ("/v1/sessions/0123456789abcdef/step", "/v1/sessions/01234567.../step"),
        ("/v1/sessions", "/v1/sessions"),
        ("/" + "x" * 300, "/" + "x" * 199 + "..."),
    ],
)
def test_paths_as_logs_show_them(path: str, shown: str) -> None:
    assert redact_path(path) == shown
