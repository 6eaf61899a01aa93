"""Parts of benchmarks whose faults would make every figure worthless: right answers, held-out folds, coverage."""

from __future__ import annotations

import importlib
import json
import math
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages import ROOT
from stablernn.data.types import ClassificationData
from stablernn.training.search.trial import load_all
from stablernn.training.settings.load import validate

BENCHMARKS = ROOT / "benchmarks"
RIGHT = [0.25, 0.75]


def script(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "minirocket"))
def test_a_script_can_be_imported(name: str) -> None:
    assert script(name).__doc__


class Handler(BaseHTTPRequestHandler):
    """Answers as the path says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        kind = self.path.strip("/")
        if kind == "lost":
            self.close_connection = True
            return
        data = [np.nextafter(np.float32(0.25), np.float32(1)).item(), 0.75] if kind == "one-bit" else RIGHT
        status, headers, body = 200, {}, json.dumps({"outputs": [{"data": data}]}).encode()
        if kind.startswith("busy"):
            status, body = 503, b'{"error": "Full.", "code": "busy"}'
            headers = {"Retry-After": "1"} if kind == "busy" else {}
        self.send_response(status)
        # A header that ends in the name of another one, as in the binary protocol.
        headers |= {"Inference-Header-Content-Length": "7"}
        if kind == "chunked":
            headers["Transfer-Encoding"] = "chunked"
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:], b""))
        else:
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name, value)
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


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        ("right", "rate"),
        ("chunked", "rate"),
        ("one-bit", "wrong"),
        ("lost", "lost"),
        ("busy", None),
        ("busy-without-retry-after", "outside_contract"),
    ],
)
def test_answers_count_as_what_they_are(port: int, kind: str, fact: str | None) -> None:
    load = script("serving_load")
    request = script("serving").http(f"/{kind}", b"{}")
    asked = load.Load(port, [[request]], [[RIGHT]], clients=2, seconds=0.2, warmup=0.05, refusals=(503,))
    seen = load.measure(asked)
    assert [key for key in ("rate", "wrong", "lost", "outside_contract") if seen[key]] == ([fact] if fact else [])


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_a_frame_is_read_back(size: int) -> None:
    load = script("serving_load")
    content = bytes(size)
    sent = load.masked(0x82, content)
    # The server's frames have neither the bit nor the key of the mask.
    head = len(sent) - size - 4
    answer = bytes([sent[0], sent[1] & 127]) + sent[2:head] + content
    assert load.unframed(answer + b"rest") == (0x82, content, b"rest")
    assert load.unframed(answer[:-1]) is None


def answers(probabilities: list[list[float]], truth: list[int]) -> Any:
    return script("cross_validation").HeldOut(np.log(np.array(probabilities)), np.array(truth), 1.5)


def test_probabilities_are_averaged_and_not_logits() -> None:
    average_scores = script("cross_validation").average_scores
    # By the mean of the logits the first network, which is sure, would win both sequences.
    sure = [answers([[0.0001, 0.9999], [0.0001, 0.9999]], [1, 0])] * 2
    others = [[answers([[0.2, 0.8], [0.99, 0.01]], [1, 0])] * 2 for _ in range(2)]
    assert [accuracy for accuracy, _ in average_scores([sure, *others])] == [1.0, 1.0]
    assert [accuracy for accuracy, _ in average_scores([sure])] == [0.5, 0.5]


def test_the_temperature_of_a_fold_comes_from_the_other_folds() -> None:
    right = answers([[0.9, 0.1]] * 50, [0] * 50)
    undecided = answers([[0.9, 0.1]] * 50, [0, 1] * 25)
    (_, loss_of_right), (_, loss_of_undecided) = script("cross_validation").average_scores([[right, undecided]])
    # Where the other fold was half wrong the temperature is high, where it was right it is low.
    assert loss_of_right > -math.log(0.9)
    assert loss_of_undecided > -(math.log(0.9) + math.log(0.1)) / 2


@pytest.mark.slow
def test_a_network_answers_for_the_sequences_of_its_fold_alone(tmp_path: Path) -> None:
    time = np.arange(16)
    x = np.stack([np.sin(time * (0.2 if label else 0.9)) for label in [0, 1] * 10])[..., None].astype(np.float32)
    np.savez(tmp_path / "waves.npz", x=x, y=np.array([0, 1] * 10))
    config = validate(
        {
            "data": {"source": str(tmp_path / "waves.npz")},
            "model": {"cell": "lru", "hidden_size": 8},
            "training": {"refit": True, "max_steps": 20},
        }
    )
    held_out = script("cross_validation").held_out
    folds = [held_out(config, 1, part, 5) for part in range(5)]
    data = load_all(config)
    assert isinstance(data, ClassificationData)
    assert sum(len(fold.truth) for fold in folds) == len(data.train) + len(data.validation)
    np.testing.assert_array_equal(held_out(config, 1, 0, 5).logits, folds[0].logits)
    assert not np.array_equal(held_out(config, 2, 0, 5).logits, folds[0].logits)


def test_coverage_pairs_each_forecast_with_its_true_value() -> None:
    streams = np.arange(10.0)[None]
    # The forecast of each step ahead is right, with a width of 1, but for the second step at the origin 4.
    lower = np.arange(10.0)[None, :, None] + np.arange(1, 3) - 0.5
    lower[0, 4, 1] += 10
    covered, width, score = script("online").coverage(streams, lower, lower + 1, 3, 10)
    assert (covered, width, score) == pytest.approx((13 / 14, 1.0, 1 + 10 * 9.5 / 14))


@pytest.mark.slow
def test_the_use_of_a_program_contains_processes_that_outlive_it(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}])"
    use = script("harness").measure_use([sys.executable, "-c", leave], tmp_path)
    assert use["processor_seconds"] >= 0.5
    with pytest.raises(SystemExit):
        script("harness").measure_use([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
