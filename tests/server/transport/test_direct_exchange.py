"""Inference requests, which bypass ASGI, on raw connections: beside other requests, in pieces, and interrupted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from connection_helpers import HEALTH, connected, is_closed, read_end, read_error, read_response, read_some
from scheduler_helpers import wait
from server_helpers import Published, Running, json_tensor, serve
from stablernn_runtime import ServedModel
from stablernn_runtime.graph import Graph
from stablernn_server import Settings, create_app
from stablernn_server.http.access_log import AccessLog
from stablernn_server.transport.direct_exchange import DirectExchange
from stablernn_server.transport.http_protocol import HttpProtocol

TOKEN, OTHER_TOKEN = "a-token-of-thirty-two-characters", "another-token-of-32-characters--"
INFER = "/v2/models/animals/infer"


@pytest.fixture(scope="module")
def running(published: Published) -> Iterator[Running]:
    yield from serve(
        create_app(
            Settings(registry=published.root, models=("animals:1",), read_timeout_seconds=1, max_json_bytes=2**16)
        )
    )


@pytest.fixture(scope="module")
def guarded(published: Published) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=published.root, models=("animals:1",), infer_tokens=(TOKEN,))))


def series(seed: int, steps: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(1, steps, 1)).round(3).astype(np.float32)


def content(x: np.ndarray) -> bytes:
    return json.dumps({"inputs": [json_tensor("x", x)], "outputs": [{"name": "probabilities"}]}).encode()


def request(body: bytes, *fields: str, path: str = INFER, method: str = "POST", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join([*lines, "", ""]).encode() + body


def probabilities(model: ServedModel, x: np.ndarray) -> list[float]:
    values: list[float] = model.run_sequence(x)["probabilities"].ravel().tolist()
    return values


def data(body: bytes) -> list[float]:
    return np.float32(json.loads(body)["outputs"][0]["data"]).tolist()


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[DirectExchange]:
    """The exchanges that begin during a test."""
    begun: list[DirectExchange] = []
    start = DirectExchange.start

    def note(self: DirectExchange, coroutine: Any) -> None:
        begun.append(self)
        start(self, coroutine)

    monkeypatch.setattr(DirectExchange, "start", note)
    return begun


def test_pipelined_requests_are_answered_in_order(
    running: Running, animals: ServedModel, exchanges: list[DirectExchange]
) -> None:
    xs = [series(seed, 3 + seed) for seed in range(4)]
    metadata = request(b"", path="/v2/models/animals", method="GET")
    unknown = request(content(xs[0]), path="/v2/models/none/infer")
    bodies = [request(content(x)) for x in xs]
    with connected(running.port) as connection:
        connection.sendall(b"".join([bodies[0], HEALTH, bodies[1], bodies[2], unknown, metadata, b"", bodies[3]]))
        responses = [read_response(connection) for _ in range(7)]
    assert [status for status, _, _ in responses] == [200, 200, 200, 200, 404, 200, 200]
    for place, x in ((0, xs[0]), (2, xs[1]), (3, xs[2]), (6, xs[3])):
        assert data(responses[place][2]) == probabilities(animals, x)
    assert json.loads(responses[5][2])["name"] == "animals"
    assert len({headers["x-request-id"] for _, headers, _ in responses}) == 7
    assert len(exchanges) == 5


def test_many_refused_requests_in_one_piece_are_all_answered(running: Running) -> None:
    count = 3000
    with connected(running.port) as connection:
        sender = threading.Thread(target=connection.sendall, args=(request(b"", path="/v2/models/n/infer") * count,))
        sender.start()
        answers = b""
        # In large pieces: an idle connection is closed.
        while (ends := answers.count(b"}")) < count:
            answers += read_some(connection, 2**16)
        assert answers.count(b"HTTP/1.1 404 ") == ends == count
        sender.join()
        connection.sendall(HEALTH)
        assert read_response(connection)[0] == 200


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_may_come_in_pieces(running: Running, animals: ServedModel, size: int, is_chunked: bool) -> None:
    x = series(5, 2)
    body = content(x)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    whole = request(body)
    head = whole[: -len(body)]
    if is_chunked:
        head = head.replace(f"Content-Length: {len(body)}".encode(), b"Transfer-Encoding: chunked")
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\nX-Trailer: a\r\n\r\n"]
    with connected(running.port) as connection:
        # Also a head in two pieces, and the next request right behind the body.
        connection.sendall(head[:9])
        time.sleep(0.01)
        connection.sendall(head[9:])
        for piece in pieces[:-1]:
            connection.sendall(piece)
            time.sleep(0.001)
        connection.sendall(pieces[-1] + whole)
        for _ in range(2):
            status, _, answer = read_response(connection)
            assert (status, data(answer)) == (200, probabilities(animals, x))


@pytest.mark.parametrize("connection_field", ["Upgrade, HTTP2-Settings", "keep-alive, Upgrade"])
@pytest.mark.parametrize("path", [INFER, f"{INFER}?a=b"], ids=["direct", "by ASGI"])
@pytest.mark.parametrize("is_split", [False, True])
def test_an_offer_of_another_protocol_is_ignored(
    running: Running, animals: ServedModel, is_split: bool, path: str, connection_field: str
) -> None:
    """The body belongs to the request, also where it looks like another one."""
    fields = (f"Connection: {connection_field}", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    x = series(8)
    whole = request(content(x), *fields, path=path)
    smuggled = request(HEALTH, *fields, path=path)
    with connected(running.port) as connection:
        for message in (whole, smuggled, whole):
            head, _, body = message.partition(b"\r\n\r\n")
            connection.sendall(head + b"\r\n\r\n" + (b"" if is_split else body))
            if is_split:
                time.sleep(0.05)
                connection.sendall(body)
        responses = [read_response(connection) for _ in range(3)]
        connection.sendall(HEALTH)
        assert read_response(connection)[0] == 200
    assert [status for status, _, _ in responses] == [200, 400, 200]
    assert data(responses[0][2]) == data(responses[2][2]) == probabilities(animals, x)


def test_an_offer_does_not_keep_a_connection_open(running: Running) -> None:
    with connected(running.port) as connection:
        connection.sendall(request(content(series(9)), "Connection: close, Upgrade", "Upgrade: h2c"))
        assert read_response(connection)[0] == 200
        assert read_end(connection) == b""


def test_both_ways_answer_the_same_on_one_connection(running: Running, exchanges: list[DirectExchange]) -> None:
    body = content(series(6))
    paths = [INFER, "/v2/models/%61nimals/infer", f"{INFER}?a=b", "/v2/models/animals/versions/1/infer", INFER]
    with connected(running.port) as connection:
        responses = []
        for path in paths:
            connection.sendall(request(body, "X-Request-Id: seven", path=path))
            responses.append(read_response(connection))
    assert len(exchanges) == 3
    status, headers, answer = responses[0]
    assert status == 200
    assert headers.keys() == {"content-length", "content-type", "date", "x-request-id"}
    for other in responses[1:]:
        assert (other[0], other[2]) == (status, answer)
        assert other[1] | {"date": ""} == headers | {"date": ""}


def test_errors_are_the_same_on_both_ways(running: Running) -> None:
    wrong = [b"{", b"", b"[]", content(series(7)).replace(b'"x"', b'"y"'), b" " * (2**16 + 1)]
    for body in wrong:
        answers = []
        for path in (INFER, f"{INFER}?"):
            with connected(running.port) as connection:
                connection.sendall(request(body, "X-Request-Id: seven", path=path))
                status, headers, answer = read_response(connection)
                answers.append((status, headers | {"date": ""}, answer))
        assert answers[0] == answers[1]
        assert answers[0][0] in (400, 413)


def test_a_client_that_waits_for_a_100_gets_one_if_its_request_is_admitted(guarded: Running) -> None:
    body = content(series(8))
    authorization = f"Authorization: Bearer {TOKEN}"
    with connected(guarded.port) as connection:
        connection.sendall(request(body, "Expect: 100-continue", authorization)[: -len(body)])
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert connection.recv(len(interim)) == interim
        connection.sendall(body)
        assert read_response(connection)[0] == 200
    with connected(guarded.port) as connection:
        connection.sendall(request(body, "Expect: 100-continue")[: -len(body)])
        assert read_response(connection)[0] == 401


def test_each_request_of_a_connection_needs_its_token(guarded: Running) -> None:
    good, bad = f"Authorization: Bearer {TOKEN}", f"Authorization: Bearer {OTHER_TOKEN}"
    cases = [((good,), 200), ((good,), 200), ((bad,), 401), ((), 401), ((good,), 200), ((good, bad), 401)]
    cases += [((good,), 200), ((good, "Origin: http://elsewhere.example"), 403), ((good, "X-Other: a"), 200)]
    with connected(guarded.port) as connection:
        for fields, expected in cases:
            connection.sendall(request(content(series(9)), *fields))
            assert read_response(connection)[0] == expected, fields


def test_a_head_that_was_sent_before_is_not_parsed_again(
    running: Running, animals: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    take_url = HttpProtocol.on_url

    def note(self: HttpProtocol, url: bytes) -> None:
        parsed.append(url)
        take_url(self, url)

    monkeypatch.setattr(HttpProtocol, "on_url", note)
    xs = [series(20 + seed, 1 + seed) for seed in range(6)]
    with connected(running.port) as connection:
        for x in xs:
            connection.sendall(request(content(x)))
            status, _, answer = read_response(connection)
            assert (status, data(answer)) == (200, probabilities(animals, x))
        assert len(parsed) == 1
        # In two pieces, beside other requests, and as before again.
        whole = request(content(xs[0]))
        connection.sendall(whole[:-5])
        time.sleep(0.05)
        connection.sendall(whole[-5:] + HEALTH + whole)
        answers = [read_response(connection) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 200]
        assert data(answers[0][2]) == data(answers[2][2]) == probabilities(animals, xs[0])
        assert len(parsed) == 4
        connection.sendall(whole)
        assert data(read_response(connection)[2]) == probabilities(animals, xs[0])
        # A body above the limit is refused as ever, and the connection closed.
        connection.sendall(request(b" " * (2**16 + 1)))
        assert read_error(connection)[:2] == (413, "too_large")


def test_steps_bypass_asgi_and_are_answered_alike(running: Running, exchanges: list[DirectExchange]) -> None:
    body = json.dumps({"model": "animals", "values": [[0.5], [1.5]]}).encode()
    wrong = json.dumps({"model": "animals", "values": "a"}).encode()
    with connected(running.port) as connection:
        for sent, expected in ((body, 200), (wrong, 400), (b"{", 400)):
            answers = []
            # A percent sign is for ASGI.
            for path in ("/v1/step", "/v1/%73tep"):
                connection.sendall(request(sent, "X-Request-Id: seven", path=path))
                status, headers, answer = read_response(connection)
                fields = json.loads(answer)
                # Each token is of its own time.
                fields.pop("state_token", None)
                answers.append((status, sorted(headers), fields))
            assert answers[0] == answers[1]
            assert answers[0][0] == expected
        assert len(exchanges) == 3
        connection.sendall(request(json.dumps({"model": "animals"}).encode(), path="/v1/sessions"))
        session = json.loads(read_response(connection)[2])["session_id"]
        for step in (1, 2):
            connection.sendall(request(b'{"values": [0.5]}', path=f"/v1/sessions/{session}/step"))
            status, _, answer = read_response(connection)
            assert (status, json.loads(answer)["step"]) == (200, step)
        connection.sendall(request(b'{"values": [0.5]}', path="/v1/sessions/none/step"))
        assert read_response(connection)[0] == 404
        connection.sendall(request(b"", path="/v1/step", method="GET"))
        assert read_response(connection)[0] == 405
    assert len(exchanges) == 6


def test_http_1_0_ends_the_connection(running: Running) -> None:
    with connected(running.port) as connection:
        connection.sendall(request(content(series(10)), version="1.0"))
        status, headers, _ = read_response(connection)
        assert (status, headers["connection"]) == (200, "close")
        assert read_end(connection) == b""


def test_a_body_that_does_not_come_is_a_408(running: Running) -> None:
    with connected(running.port) as connection:
        connection.sendall(request(content(series(11)))[:-5])
        assert read_error(connection)[:2] == (408, "timeout")


def test_a_body_that_is_not_http_is_a_400(running: Running) -> None:
    context = running.app.state.context
    head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    for pause in (0.0, 0.05):
        with connected(running.port) as connection:
            connection.sendall(head)
            time.sleep(pause)
            connection.sendall(b"no length\r\n")
            assert read_error(connection)[:2] == (400, "bad_input")
    wait(lambda: not context.in_flight)


def test_a_client_that_leaves_in_its_body_holds_nothing(running: Running, exchanges: list[DirectExchange]) -> None:
    context = running.app.state.context
    with connected(running.port) as connection:
        connection.sendall(request(content(series(12)))[:-5])
        wait(lambda: context.in_flight)
    wait(lambda: not context.in_flight)
    assert context.budget.held_bytes == 0
    assert exchanges[0].disconnected
    # Nothing is left that only the garbage collector would free.
    assert exchanges[0]._protocol is None


class Block:
    """Keeps runs of a graph from ending until it is released; a run that is cancelled ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.was_cancelled = False
        run = Graph.run

        def blocked(graph: Graph, feeds: Any, names: Any, cancellation: Any = None) -> Any:
            self.begun.set()
            while not self.ended.wait(0.01):
                if cancellation is not None and cancellation.is_set:
                    self.was_cancelled = True
                    break
            return run(graph, feeds, names, cancellation)

        monkeypatch.setattr(Graph, "run", blocked)
        # Not on the event loop, which would wait as well.
        monkeypatch.setattr("stablernn_server.batching.dispatch.INLINE_NS", -1)
        monkeypatch.setattr("stablernn_server.batching.dispatch.INLINE_ALONE_NS", -1)


def test_the_run_of_a_client_that_leaves_is_cancelled(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    context, block = running.app.state.context, Block(monkeypatch)
    with connected(running.port) as connection:
        connection.sendall(request(content(series(13))))
        assert block.begun.wait(10)
    wait(lambda: not context.in_flight)
    wait(lambda: block.was_cancelled)
    assert context.scheduler.pending == 0


def test_a_server_that_stops_answers_what_is_in_flight(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(create_app(Settings(registry=published.root, models=("animals:1",))))
    running = next(server)
    block = Block(monkeypatch)
    with connected(running.port) as connection, connected(running.port) as stalled:
        connection.sendall(request(content(series(14))))
        stalled.sendall(request(content(series(15)))[:-5])
        assert block.begun.wait(10)
        stopping = threading.Thread(target=lambda: next(server, None))
        stopping.start()
        context = running.app.state.context
        wait(lambda: not context.is_ready)
        # Its body does not come while the server drains.
        assert read_error(stalled)[:2] == (503, "not_ready")
        block.ended.set()
        status, headers, _ = read_response(connection)
        assert (status, headers["connection"]) == (200, "close")
        wait(lambda: is_closed(connection))
        stopping.join(20)
        assert not stopping.is_alive()


def test_a_failure_behind_the_response_closes_the_connection(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("the log is broken")

    with connected(running.port) as connection, monkeypatch.context() as broken:
        broken.setattr(AccessLog, "log_request", fail)
        connection.sendall(request(content(series(16))))
        # The response had been written by then.
        assert read_response(connection)[0] == 200
        assert read_end(connection) == b""
    with connected(running.port) as connection:
        connection.sendall(request(content(series(16))))
        assert read_response(connection)[0] == 200
