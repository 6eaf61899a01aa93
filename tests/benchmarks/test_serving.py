"""The serving benchmark's own parts: a generator that overlooked a fault would make every figure worthless."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmark_scripts import script

RIGHT = [0.25, 0.75]
OTHER = [0.75, 0.25]


class Handler(BaseHTTPRequestHandler):
    """Answers as the path says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        kind = self.path.strip("/")
        if kind == "lost":
            self.close_connection = True
            return
        status, headers = 200, {}
        body = json.dumps({"id": str(id(self)), "outputs": [{"data": OTHER if kind == "wrong" else RIGHT}]}).encode()
        if kind.startswith("busy"):
            status, body = 503, b'{"error": "Full.", "code": "busy"}'
            headers = {"Retry-After": "1"} if kind == "busy" else {}
        if kind == "fault":
            status, body = 500, b"Internal Server Error"
        self.send_response(status)
        # A header that ends in the name of another one, as in the binary protocol.
        for name, value in {"Inference-Header-Content-Length": "7", **headers}.items():
            self.send_header(name, value)
        if kind == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            parts = [body[:5], body[5:], b""]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def seen(port: int, kind: str, **more: Any) -> Any:
    load, model = script("serving_load"), script("serving_model")
    asked = load.Load(port, [model.http(f"/{kind}", b"{}")], [[RIGHT]], clients=2, seconds=0.2, warmup=0.05, **more)
    return load.measure(asked)


@pytest.mark.parametrize("kind", ["right", "chunked"])
def test_right_answers_count(port: int, kind: str) -> None:
    found = seen(port, kind)
    assert found["rate"] > 0
    assert set(found["answers"]) == {"200"}
    assert (found["wrong"], found["lost"], found["outside_contract"]) == (0, 0, 0)


def test_wrong_numbers_are_seen_and_do_not_count(port: int) -> None:
    found = seen(port, "wrong")
    assert found["wrong"] > 0
    assert found["rate"] == 0


def test_one_bit_is_a_wrong_number_and_a_tolerance_allows_it() -> None:
    same = script("serving_load").same
    (near,) = struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", 0.25))[0] + 1))
    assert same([0.25], [0.25], 0.0)
    assert not same([near], [0.25], 0.0)
    assert same([near], [0.25], 1e-5)
    assert not same([0.25, 0.0], [0.25], 1e-5)


def test_requests_without_an_answer_are_lost(port: int) -> None:
    assert seen(port, "lost")["lost"] > 0


@pytest.mark.parametrize(("kind", "fine"), [("busy", True), ("busy-without-retry-after", False), ("fault", False)])
def test_only_refusals_of_the_contract_are_allowed(port: int, kind: str, fine: bool) -> None:
    found = seen(port, kind, refusals=[503])
    assert (found["outside_contract"] == 0) == fine
    assert found["rate"] == 0


def test_arrivals_keep_their_rate(port: int) -> None:
    found = seen(port, "right", rate=100.0)
    assert found["sent"] <= 1 + 100 * found["seconds"]


def test_a_frame_of_each_size_of_length_is_read_back() -> None:
    stream = script("serving_streams")
    for size in (0, 125, 126, 65535, 65536):
        content = bytes(size)
        sent = stream.masked(0x82, content)
        # The server's frames have neither the bit nor the key of the mask.
        head = len(sent) - size - 4
        answer = bytes([sent[0], sent[1] & 127]) + sent[2:head] + content
        assert stream.unframed(answer + b"rest") == (0x82, content, b"rest")
        assert stream.unframed(answer[:-1]) is None or size == 0


def test_mutated_bodies_are_the_same_every_time_and_differ_from_the_right_one() -> None:
    fuzz, model = script("serving_faults"), script("serving_model")
    bases = [model.oip_binary_body(x) for x in model.series(2, 4, seed=0)]
    requests = [fuzz.mutated(number, bases) for number in range(200)]
    assert requests == [fuzz.mutated(number, bases) for number in range(200)]
    assert len(set(requests)) > 180


def test_the_slope_of_memory_is_that_of_the_last_half() -> None:
    memory = script("serving_load").Memory(None)
    memory.samples = [(float(second), 100.0 + max(second - 60, 0) / 60) for second in range(120)]
    facts = memory.facts()
    assert facts["slope_mb_per_minute"] == pytest.approx(1.0)
    assert facts["last_mb"] == pytest.approx(100.0 + 59 / 60)
