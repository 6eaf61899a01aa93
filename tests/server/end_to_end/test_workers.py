"""`stablernn serve` with several processes behind one port, with TLS, and on addresses that others can reach."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from certificate_helpers import make_certificate
from published_models import copy_version
from server_helpers import Published, json_tensor
from serving_helpers import ServeProcess, failed_serve, is_alive, start_serve, until
from stablernn_client import Client, ConnectionFailed
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_server.supervisor import WorkerSlot

QUICK = {"STABLERNN_RELOAD_SECONDS": "0.1"}
TOKEN = "a-token-that-is-long-enough-for-this"
Start = Callable[..., ServeProcess]


@pytest.fixture(scope="module")
def registry(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """``animals`` with versions 1, in production, and 2."""
    found = Registry(tmp_path_factory.mktemp("workers") / "registry")
    for number in (1, 2):
        copy_version(found, published.registry.get(f"animals:{number}"))
    found.set_alias("animals", "production", 1)
    return found


@pytest.fixture(scope="module")
def opened(registry: Registry) -> ServedModel:
    return ServedModel.load(registry.get("animals:1"), "cpu")


@pytest.fixture(scope="module")
def pair(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """Two processes that serve ``animals:1``."""
    log = tmp_path_factory.mktemp("log") / "log"
    server = start_serve(registry.root, log, "--workers", 2, "--model", "animals:1", "--access-log", "off")
    yield server
    server.kill()


@pytest.fixture
def start(registry: Registry, tmp_path: Path) -> Iterator[Start]:
    """Starts servers of this registry, which end with the test."""
    servers: list[ServeProcess] = []

    def begin(*words: object, root: Path | None = None, **environment: str) -> ServeProcess:
        log = tmp_path / f"log-{len(servers)}"
        found = start_serve(root or registry.root, log, "--access-log", "off", *words, environment=environment)
        servers.append(found)
        return found

    yield begin
    for server in servers:
        server.kill()


def worker(answer: httpx.Response) -> str:
    """What tells the process that answered from the others."""
    return answer.headers["x-request-id"].partition("-")[0]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def infer(url: str, x: np.ndarray, **options: Any) -> httpx.Response:
    """One request over a connection of its own, which any of the processes may take."""
    body = {"inputs": [json_tensor("x", x)], "outputs": [{"name": "logits"}]}
    return httpx.post(f"{url}/v2/models/animals/infer", json=body, timeout=30, **options)


def total(url: str, name: str, **labels: str) -> float:
    """The sum of a counter over everything that has these labels."""
    families = parse(httpx.get(f"{url}/metrics").text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"stablernn_{name}" and labels.items() <= sample.labels.items()
    )


def answered_by_both(server: ServeProcess, x: np.ndarray) -> int:
    """Ask until two processes have answered; how often it took."""
    answers: list[str] = []

    def ask() -> bool:
        answers.append(worker(infer(server.url, x)))
        return len(set(answers)) == 2

    until(ask, 30, 0)
    return len(answers)


def test_both_processes_answer_and_count_together(pair: ServeProcess) -> None:
    assert pair.ready["models"] == ["animals:1"]
    assert len(set(pair.ready["workers"])) == 2
    assert pair.process.pid not in pair.ready["workers"]
    assert all(is_alive(pid) for pid in pair.ready["workers"])
    before = total(pair.url, "requests_total", route="/v2/models/{model}/infer", code="200")
    count = answered_by_both(pair, noise(1, 3, 1))
    until(lambda: total(pair.url, "requests_total", route="/v2/models/{model}/infer", code="200") == before + count)


def test_a_state_token_goes_from_one_process_to_the_other(pair: ServeProcess, opened: ServedModel) -> None:
    steps = noise(200, 1, seed=1)
    token, seen = None, []
    for number, values in enumerate(steps):
        begin = {"model": "animals"} if token is None else {"state_token": token}
        answer = httpx.post(f"{pair.url}/v1/step", json={**begin, "values": values.tolist(), "sequence": number + 1})
        assert answer.status_code == 200, answer.text
        token = answer.json()["state_token"]
        seen.append(worker(answer))
        logits = np.array(answer.json()["outputs"][0]["logits"], np.float32)
        assert np.array_equal(logits, opened.run_sequence(steps[None, : number + 1])["logits"][0])
        if number > 10 and len(set(seen)) == 2:
            break
    assert len(set(seen)) == 2


def test_what_one_process_keeps_is_refused(pair: ServeProcess) -> None:
    sequence = {"inputs": [json_tensor("x", noise(1, 1, 1))], "parameters": {"sequence_id": 1, "sequence_start": True}}
    for method, path, body in (
        ("POST", "/v1/sessions", {"model": "animals"}),
        ("POST", "/v1/sessions/anything/step", {"values": [1]}),
        ("GET", "/v1/sessions/anything", None),
        ("DELETE", "/v1/sessions/anything", None),
        ("POST", "/v2/repository/models/animals/load", None),
        ("POST", "/v2/repository/models/animals/unload", None),
        ("POST", "/v2/models/animals/infer", sequence),
    ):
        answer = httpx.request(method, f"{pair.url}{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "one_process_only"), answer.text
    rows = httpx.post(f"{pair.url}/v2/repository/index").json()
    assert [(row["version"], row["state"]) for row in rows] == [("1", "READY"), ("2", "UNAVAILABLE")]


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced_and_its_totals_stay(start: Start) -> None:
    server = start("--workers", 2, "--model", "animals:1")
    x = noise(1, 3, 1)
    count = answered_by_both(server, x)

    def counted() -> float:
        return total(server.url, "requests_total", route="/v2/models/{model}/infer", code="200")

    until(lambda: counted() == count)
    killed = server.ready["workers"][0]
    os.kill(killed, signal.SIGKILL)
    until(lambda: f"server process {killed} ended with exit code -9; starting another" in server.read_log())
    # The other answers meanwhile.
    assert infer(server.url, x).status_code == 200
    until(lambda: counted() == count + 1)
    pids = until(lambda: (found := children(server.process.pid)) and killed not in found and len(found) == 2 and found)
    until(lambda: len({worker(httpx.get(f"{server.url}/v2")) for _ in range(20)}) == 2, 30)
    assert counted() == count + 1
    assert server.stop() == 0
    assert not any(is_alive(pid) for pid in pids)


def test_restarts_are_delayed_for_longer_each_time_until_a_process_was_healthy() -> None:
    slot, delays = WorkerSlot(), []
    for was_healthy in (True, *[False] * 8, True, False):
        slot.schedule_restart(100.0, was_healthy=was_healthy)
        assert slot.start_at == 100.0 + slot.delay_seconds
        delays.append(slot.delay_seconds)
    assert delays == [0, 1, 2, 4, 8, 16, 32, 32, 32, 0, 1]


def children(pid: int) -> list[int]:
    """Return the server processes of a supervisor, without the resource tracker and those that just ended."""
    child_pids = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in child_pids if "resource_tracker" not in (command_line(child) or "resource_tracker")]


def command_line(pid: int) -> str | None:
    """Return the command line of a process: empty for a zombie, None after it was reaped."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None


@pytest.mark.slow
def test_sigterm_ends_all_and_hands_out_tokens(start: Start) -> None:
    server = start("--workers", 2, "--model", "animals:1", STABLERNN_STATE_KEY="k" * 32)
    address = f"ws://127.0.0.1:{server.port}/v1/stream?model=animals"
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(address)) for _ in range(6)]
        for socket in sockets:
            socket.recv(10)
            socket.send(json.dumps({"values": [1.0]}))
            socket.recv(10)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        for socket in sockets:
            goodbye = json.loads(socket.recv(10))
            assert (goodbye["closing"], list(goodbye["state_tokens"])) == (True, ["0"])
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
    assert server.process.wait(30) == 0
    # Docker kills after ten.
    assert time.monotonic() - started < 10
    assert not any(is_alive(pid) for pid in server.ready["workers"])
    assert server.read_log().splitlines()[-1] == "Stopped."
    assert "Traceback" not in server.read_log()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_what_cannot_be_served_ends_the_command(published: Published, tmp_path: Path, workers: int) -> None:
    own = Registry(tmp_path / "registry")
    path = copy_version(own, published.registry.get("animals:1")).path("sequence.onnx")
    path.chmod(0o644)
    path.write_bytes(b"nothing")
    words = ("--workers", workers)
    code, out, err = failed_serve(own.root, *words)
    assert (code, out) == (1, "")
    assert err[-1].startswith("Error: 'animals:1' cannot be served: 'sequence.onnx' of 'animals:1'")
    code, out, unknown = failed_serve(own.root, *words, "--model", "animls")
    assert (code, out) == (2, "")
    assert unknown[-1].startswith("Error: Unknown model 'animls' in the registry ")
    assert not any("Traceback" in line for line in (*err, *unknown))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "own")
    return folder / "own.pem", folder / "own.key"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_tls(certificate: tuple[Path, Path], start: Start, opened: ServedModel, workers: int) -> None:
    files = ("--tls-cert-file", certificate[0], "--tls-key-file", certificate[1])
    server = start("--workers", workers, "--model", "animals:1", *files)
    assert server.url.startswith("https://127.0.0.1:")
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    x = noise(1, 4, 1)
    answer = infer(server.url, x, verify=trust)
    logits = np.array(answer.json()["outputs"][0]["data"], np.float32)
    assert np.array_equal(logits, opened.run_sequence(x)["logits"][0])
    with connect(f"wss://127.0.0.1:{server.port}/v1/stream?model=animals", ssl=trust) as socket:
        assert json.loads(socket.recv(10))["model"] == "animals"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        infer(server.url, x)
    with pytest.raises(httpx.TransportError):
        infer(server.url.replace("https", "http"), x)
    with Client(server.url, ssl_context=trust) as client, client.stream("animals") as stream:
        outputs = [stream.step(value).outputs["logits"] for value in x[0]]
        assert np.array_equal(outputs[-1], logits.ravel())
    with Client(server.url) as client, pytest.raises(ConnectionFailed, match="is not trusted .* pass an ssl_context"):
        client.models()
    assert server.stop() == 0
    assert "Traceback" not in server.read_log()


@pytest.mark.slow
def test_tls_files_that_cannot_be_used(certificate: tuple[Path, Path], registry: Registry) -> None:
    cert, key = certificate
    make_certificate(cert.parent, "other")
    locked, other, absent = cert.parent / "locked.key", cert.parent / "other.key", cert.parent / "none"
    locking = ["openssl", "ec", "-aes256", "-in", str(key), "-out", str(locked), "-passout", "pass:secret"]
    subprocess.run(locking, check=True, capture_output=True)
    # Nobody is asked for the password of the last one.
    for (chain, private), words in {
        (cert, ""): "tls_cert_file is set without tls_key_file",
        ("", key): "tls_key_file is set without tls_cert_file",
        (absent, key): f"{absent} cannot be read",
        (cert, other): "key values mismatch",
        (cert, locked): str(locked),
    }.items():
        options = [*(("--tls-cert-file", chain) if chain else ()), *(("--tls-key-file", private) if private else ())]
        code, out, err = failed_serve(registry.root, *options)
        assert (code, out) == (2, ""), err
        assert err[-1].startswith("Error: ")
        assert words in err[-1]
        assert not any("Traceback" in line for line in err)


@pytest.mark.slow
def test_other_machines_are_let_in_only_with_tokens_or_on_purpose(registry: Registry, start: Start) -> None:
    words = ("--host", "0.0.0.0", "--model", "animals:1")
    code, out, err = failed_serve(registry.root, *words)
    assert (code, out) == (2, "")
    assert err[-1].startswith("Error: The address '0.0.0.0' can be reached from other machines, and no token is ")
    x = noise(1, 2, 1)
    url = f"http://127.0.0.1:{start(*words, STABLERNN_INFER_TOKENS=TOKEN).port}"
    assert infer(url, x).status_code == 401
    assert infer(url, x, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert infer(f"http://127.0.0.1:{start(*words, '--auth', 'off').port}", x).status_code == 200


def break_alias(registry: Registry, published: Published) -> None:
    """Point the alias to a version that cannot be served."""
    version = copy_version(registry, published.registry.get("animals:2"), step_onnx=b"nothing")
    registry.set_alias("animals", "production", version.version)


@pytest.mark.slow
def test_a_process_that_restarts_answers_with_the_version_of_the_others(
    published: Published, start: Start, tmp_path: Path
) -> None:
    own = Registry(tmp_path / "registry")
    for number in (1, 2):
        copy_version(own, published.registry.get(f"animals:{number}"))
    own.set_alias("animals", "production", 1)
    server = start("--workers", 2, "--model", "animals@production", root=own.root, **QUICK)
    own.set_alias("animals", "production", 2)
    x = noise(1, 2, 1)
    until(lambda: {infer(server.url, x).json()["model_version"] for _ in range(10)} == {"2"})
    break_alias(own, published)
    until(lambda: "still answered by version 2" in server.read_log())
    for pid in server.ready["workers"]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: httpx.get(f"{server.url}/v2/health/ready", timeout=30).status_code == 200, 60)
    assert infer(server.url, x).json()["model_version"] == "2"
    parameters = httpx.get(f"{server.url}/v2/models/animals").json()["parameters"]
    assert (parameters["version"], parameters["stale_aliases"]) == ("2", ["production"])
    assert total(server.url, "stale_aliases", model="animals", alias="production") == 1
    own.set_alias("animals", "production", 1)
    until(lambda: infer(server.url, x).json()["model_version"] == "1", 30)
    until(lambda: total(server.url, "stale_aliases") == 0)


@pytest.mark.slow
def test_a_process_that_cannot_take_the_place_of_another_says_why(
    published: Published, start: Start, tmp_path: Path
) -> None:
    own = Registry(tmp_path / "registry")
    path = copy_version(own, published.registry.get("animals:1")).path("step.onnx")
    server = start("--workers", 2, root=own.root)
    whole = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    first, second = server.ready["workers"]
    os.kill(first, signal.SIGKILL)
    until(lambda: "'step.onnx' of 'animals:1'" in server.read_log(), 30)
    (line,) = (line for line in server.read_log().splitlines() if "'step.onnx' of 'animals:1'" in line)
    assert "ended with exit code 0 ('animals:1' cannot be served: " in line
    assert "is damaged" in line
    assert infer(server.url, noise(1, 2, 1)).status_code == 200
    os.kill(second, signal.SIGKILL)
    for request in (partial(httpx.get, f"{server.url}/v2/health/live"), partial(infer, server.url, noise(1, 2, 1))):
        response = until(lambda request=request: (found := request()).status_code != 200 and found)
        assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    path.write_bytes(whole)
    until(lambda: len({worker(httpx.get(f"{server.url}/v2")) for _ in range(20)}) == 2, 60)
    assert server.stop() == 0
    assert "Traceback" not in server.read_log()
