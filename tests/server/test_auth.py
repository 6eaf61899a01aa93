"""Tokens, roles, and pages of other hosts: what is read, and what every route asks for."""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server_helpers import Published, Running, serve
from stablernn_server import Settings, SettingsError, create_app
from stablernn_server.auth import ANYONE, Auth, is_loopback, read_tokens, required_access
from stablernn_server.errors import ForbiddenError, UnauthorizedError
from stablernn_server.http.middleware import OriginPolicy
from stablernn_server.key_files import create_state_tokens

INFER = "infer-token-0123456789"
ADMIN = "admin-token-0123456789"
ROLES = {"nobody": None, "a bad token": "some-token-0123456789", "infer": INFER, "admin": ADMIN}
OPEN_PATHS = {"/", "/docs", "/page/{file}", "/v2/health/live", "/v2/health/ready"}
ADMIN_PATHS = {"/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload"}
# What the front answers by itself, so that the framework has no route for it.
INFER_PATHS = {"/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"}
# So that a walk that finds nothing does not pass.
SOME_PATHS = {"/v2", "/v2/models/stats", "/v1/timeseries/forecast", "/metrics"}


def scope_of(path: str = "/v2", token: str | None = None, **fields: Any) -> dict[str, Any]:
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return {"type": "http", "method": "GET", "path": path, "headers": headers, **fields}


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# who may\ninfer {INFER}\n\n  admin   {ADMIN}\n")
    path.chmod(0o600)
    return path


def test_a_tokens_file_and_settings_are_put_together(tokens_file: Path) -> None:
    auth = Auth.from_settings(Settings(tokens_file=tokens_file, infer_tokens="a" * 16 + "," + "b" * 16))
    assert auth.is_on
    assert auth.check(scope_of(token=INFER)) == ("infer-1", "infer")
    assert auth.check(scope_of(token="b" * 16)) == ("infer-3", "infer")
    assert auth.check(scope_of(token=ADMIN)) == ("admin-1", "admin")


def test_tokens_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLERNN_INFER_TOKENS", f" {INFER} ,{'c' * 20}")
    monkeypatch.setenv("STABLERNN_ADMIN_TOKENS", ADMIN)
    auth = Auth.from_settings(Settings())
    assert [identity.role for _, identity in auth.digests] == ["infer", "infer", "admin"]
    assert auth.check(scope_of(token="c" * 20)).name == "infer-2"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"reader {INFER}\n", "line 1, does not begin with a role, got 'reader'"),
        # Which of the two is the token is not known.
        (f"infer {INFER}\n{ADMIN} admin\n", "line 2"),
        ("\nadmin short-0123456\n", "line 2, has 13"),
        (f"infer {INFER} again\n", "line 1"),
        (f"infer\n{INFER}\n", "line 1"),
        (f"infer {INFER}é\n", "line 1"),
        ("# nothing\n", "holds no token"),
        (f"infer {INFER}\nadmin {INFER}\n", "line 2"),
    ],
)
def test_a_tokens_file_that_cannot_be_taken(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(SettingsError) as caught:
        Auth.from_settings(Settings(tokens_file=path))
    message = str(caught.value)
    assert str(path) in message
    assert words in message
    for secret in (INFER, ADMIN, "short-0123456"):
        assert secret not in message


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o620])
def test_a_secret_that_others_can_use_is_refused(tokens_file: Path, mode: int) -> None:
    tokens_file.chmod(mode)
    for read in (read_tokens, lambda path: create_state_tokens(Settings(state_key_file=path))):
        with pytest.raises(SettingsError, match=f"can be used by others, got mode 0{mode:o}; run: chmod"):
            read(tokens_file)
    tokens_file.chmod(0o640)
    assert [token.role for token in read_tokens(tokens_file)] == ["infer", "admin"]


def test_a_short_token_of_the_environment_is_named_but_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"infer_tokens \(STABLERNN_INFER_TOKENS\), token 2 has 5") as caught:
        Auth.from_settings(Settings(infer_tokens=f"{INFER},hello"))
    assert "hello" not in str(caught.value)


def test_no_way_of_printing_settings_shows_a_token() -> None:
    settings = Settings(infer_tokens=INFER, admin_tokens=(ADMIN,))
    shown = f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    assert INFER not in shown
    assert ADMIN not in shown
    # Not even where the value has a type that a token cannot have.
    assert "12345678901234567" not in repr(Settings(infer_tokens=12345678901234567))


def test_off_lets_everybody_in_whatever_is_configured(caplog: pytest.LogCaptureFixture) -> None:
    auth = Auth.from_settings(Settings(auth="off", infer_tokens=INFER))
    assert not auth.is_on
    assert auth.check(scope_of("/v2/repository/models/m/load")) == ANYONE
    assert "auth is off: the 1 configured tokens are not checked" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_on_loopback_no_token_is_needed(host: str) -> None:
    assert is_loopback(host)
    Auth.from_settings(Settings()).check_address(host, Settings())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "2001:db8::1", "no such host"])
def test_other_addresses_need_tokens_or_a_word(host: str) -> None:
    with pytest.raises(SettingsError, match="no token is configured.* --auth off"):
        Auth.from_settings(Settings()).check_address(host, Settings())
    off = Settings(auth="off")
    Auth.from_settings(off).check_address(host, off)
    on = Settings(infer_tokens=INFER)
    Auth.from_settings(on).check_address(host, on)


@pytest.mark.parametrize(
    ("path", "access"),
    [
        ("/", "open"),
        ("/page/style.css", "open"),
        ("/v2/health/live", "open"),
        ("/v2/health/ready", "open"),
        ("/v2/health/ready\n", "infer"),
        ("/v2/health/../models", "infer"),
        ("/page", "infer"),
        ("//", "infer"),
        ("/nothing/of/ours", "infer"),
        ("", "infer"),
        ("/v2/repository/index", "infer"),
        ("/v2/repository/models/m/load", "admin"),
        ("/v2/repository/models/m/unload/", "admin"),
        ("/v2/repository/models/m\nn/load", "admin"),
        ("/v2/repository/models/m/load\n", "admin"),
        ("/v2/repository/models/m/anything", "admin"),
    ],
)
def test_what_a_path_needs(path: str, access: str) -> None:
    assert required_access(path) == access


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b"Bearer"],
        [b"Basic aW5mZXI6aW5mZXI="],
        [b"Bearer " + INFER.encode()] * 2,
        [b"Bearer " + INFER[:-1].encode()],
        [b"Bearer " + INFER.encode() + b"x"],
        [b"Bearer \xff\xfe"],
    ],
)
def test_headers_that_let_nobody_in(values: list[bytes]) -> None:
    auth = Auth.from_settings(Settings(infer_tokens=INFER))
    with pytest.raises(UnauthorizedError) as caught:
        auth.check(scope_of() | {"headers": [(b"authorization", value) for value in values]})
    assert caught.value.headers["WWW-Authenticate"].startswith('Bearer realm="stablernn"')
    assert ("invalid_token" in caught.value.headers["WWW-Authenticate"]) == bool(values)


def test_the_scheme_may_be_written_in_any_case() -> None:
    auth = Auth.from_settings(Settings(infer_tokens=INFER))
    headers = [(b"authorization", b"bEARER   " + INFER.encode() + b" ")]
    assert auth.check(scope_of() | {"headers": headers}).role == "infer"


@pytest.mark.parametrize("token", ["infer-token-0123456789", "~?>~?>~?>~?>~?>~?>", "x" * 17])
def test_a_browser_sends_the_token_as_a_subprotocol(token: str) -> None:
    auth = Auth.from_settings(Settings(infer_tokens=token))
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    assert auth.check(scope_of(type="websocket", subprotocols=["stablernn", f"bearer.{encoded}"])).role == "infer"
    for wrong in (encoded[:-2], encoded + "!", "", "\xe9"):
        with pytest.raises(UnauthorizedError):
            auth.check(scope_of(type="websocket", subprotocols=["stablernn", f"bearer.{wrong}"]))


@pytest.fixture(scope="module")
def guarded(published: Published) -> Iterator[Running]:
    settings = Settings(
        registry=published.root,
        models=("animals@production",),
        infer_tokens=INFER,
        admin_tokens=ADMIN,
        allowed_origins="https://app.example",
    )
    yield from serve(create_app(settings))


def all_routes(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from all_routes(inner.routes)


def expected(path: str, role: str) -> int | None:
    """The status of a refusal; None where the request is let in."""
    if path in OPEN_PATHS:
        return None
    if role in ("nobody", "a bad token"):
        return 401
    return 403 if role == "infer" and path in ADMIN_PATHS else None


def headers_of(role: str) -> dict[str, str]:
    token = ROLES[role]
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("role", ROLES)
def test_every_route_for_every_role(guarded: Running, role: str) -> None:
    walked: set[str] = set()
    with httpx.Client(base_url=guarded.url, headers=headers_of(role)) as client:
        for route in all_routes(guarded.app.routes):
            path = getattr(route, "path", None)
            assert path is not None, f"{route!r} is no route that this test knows how to ask"
            methods = getattr(route, "methods", None)
            if methods is None:
                continue
            walked.add(path)
            filled = re.sub(r"\{[^}]+\}", "1", path)
            for method in methods:
                answer = client.request(method, filled, content=b"{}" if method == "POST" else None)
                refusal = expected(path, role)
                got = f"{method} {path} by {role}: {answer.status_code} {answer.text[:200]}"
                if refusal is None:
                    assert answer.status_code not in (401, 403), got
                else:
                    assert answer.status_code == refusal, got
                if refusal == 401:
                    assert answer.headers["www-authenticate"].startswith("Bearer realm="), got
                if refusal is not None and method != "HEAD":
                    word = {401: "unauthorized", 403: "forbidden"}[refusal]
                    assert answer.json()["code"] == word
        # What nobody answers needs a token, too: an answer would tell what there is.
        for path in (*(path.format(model="animals", version="1") for path in INFER_PATHS), "/nothing", "/v1"):
            for method in ("GET", "POST"):
                refused = client.request(method, path).status_code == 401
                assert refused == (expected(path, role) == 401), f"{method} {path}"
    assert walked >= SOME_PATHS | ADMIN_PATHS | OPEN_PATHS
    documented = httpx.get(f"{guarded.url}/openapi.json", headers=headers_of("infer")).json()["paths"]
    assert walked | INFER_PATHS >= documented.keys()
    for path, operations in documented.items():
        for operation in operations.values():
            # An empty list says that no token is needed.
            assert (operation.get("security") == []) == (path in OPEN_PATHS), path


def websocket_paths(guarded: Running) -> list[str]:
    routes = all_routes(guarded.app.routes)
    return [route.path for route in routes if getattr(route, "methods", None) is None and hasattr(route, "path")]


def handshake(url: str, **arguments: Any) -> int:
    try:
        with connect(url, **arguments) as socket:
            assert socket.response is not None
            return socket.response.status_code
    except InvalidStatus as error:
        return error.response.status_code


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("how", ["header", "subprotocol"])
def test_every_websocket_for_every_role(guarded: Running, role: str, how: str) -> None:
    paths = websocket_paths(guarded)
    assert "/v1/stream" in paths
    for path in paths:
        arguments: dict[str, Any] = {"additional_headers": headers_of(role)}
        token = ROLES[role]
        if how == "subprotocol":
            encoded = base64.urlsafe_b64encode((token or "").encode()).decode().rstrip("=")
            arguments = {"subprotocols": ["stablernn", *([f"bearer.{encoded}"] if token else [])]}
        url = f"ws://127.0.0.1:{guarded.port}{path}?model=animals"
        assert handshake(url, **arguments) == (expected(path, role) or 101)
        # The same from a page of another host.
        assert handshake(url, origin="https://evil.example", **arguments) == 403
        assert handshake(url, origin=f"http://127.0.0.1:{guarded.port}", **arguments) == (expected(path, role) or 101)
        assert handshake(url, origin="https://app.example", **arguments) == (expected(path, role) or 101)


@pytest.mark.parametrize("path", ["/v2/models/animals/infer", "/v2", "/v2/health/live", "/", "/nothing"])
def test_a_page_of_another_host_is_refused(guarded: Running, path: str) -> None:
    with httpx.Client(base_url=guarded.url, headers=headers_of("admin")) as client:
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{guarded.port + 1}", "http://localhost", ""):
            answer = client.post(path, headers={"Origin": origin})
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), origin
            assert "access-control-allow-origin" not in answer.headers


def test_its_own_page_and_listed_ones_are_let_in(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url, headers=headers_of("infer")) as client:
        own = client.get("/v2", headers={"Origin": guarded.url})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers
        listed = client.get("/v2", headers={"Origin": "https://app.example"})
        assert listed.status_code == 200
        assert listed.headers["access-control-allow-origin"] == "https://app.example"
        assert "Origin" in listed.headers["vary"]
        assert "x-request-id" in listed.headers["access-control-expose-headers"]
        # The sentence of a refusal can be read there, too.
        refused = httpx.get(f"{guarded.url}/v2", headers={"Origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"


def test_preflight_requests_need_no_token(guarded: Running) -> None:
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = httpx.options(f"{guarded.url}/v2/models/animals/infer", headers=asked)
    assert answer.status_code == 204
    assert answer.content == b""
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert {"authorization", "content-type"} <= set(answer.headers["access-control-allow-headers"].split(", "))
    answer = httpx.options(f"{guarded.url}/v2/models/animals/infer", headers=asked | {"Origin": "https://evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "LOCALHOST", "192.0.2.7:80", "own:8080"])
def test_on_loopback_without_tokens_its_own_page_has_a_name_that_stands_for_this_machine(host: str) -> None:
    headers = [(b"host", host.encode()), (b"origin", b"http://" + host.encode())]
    origins = OriginPolicy(is_local=True, name="Own")
    assert origins.check(scope_of() | {"headers": headers}) == ()
    assert origins.check(scope_of() | {"headers": headers[:1]}) == ()


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        (None, True),
        ("", True),
        ("app.example", True),
        ("App.Example:443", True),
        ("gateway.example:8080", True),
        ("app.example:80", False),
        ("app.example:8080", False),
        ("gateway.example", False),
        ("rebound.example", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("example.localhost:8080@127.0.0.1", False),
    ],
)
def test_on_loopback_without_tokens_other_names_are_let_in_where_they_are_listed(
    host: str | None, is_let_in: bool
) -> None:
    listed = ("https://app.example", "http://gateway.example:8080")
    scope = scope_of() | {"headers": [] if host is None else [(b"host", host.encode())]}
    assert OriginPolicy().check(scope) == ()
    if is_let_in:
        assert OriginPolicy(listed, is_local=True).check(scope) == ()
        return
    with pytest.raises(ForbiddenError, match=f"got the host '{host}'"):
        OriginPolicy(listed, is_local=True).check(scope)


# A page of rebound.example, whose owner has it resolve to 127.0.0.1, is of the same origin for the browser, which then
# names it in what the page sends, and leaves it out where the page only reads.
@pytest.mark.parametrize(("method", "path"), [("POST", "/v2/models/animals/infer"), ("GET", "/v2/models/animals")])
def test_a_name_that_was_made_to_point_here_is_no_page_of_its_own(
    guarded: Running, server: Running, method: str, path: str
) -> None:
    named = {"Host": f"rebound.example:{server.port}"}
    if method == "POST":
        named["Origin"] = f"http://rebound.example:{server.port}"
    answer = httpx.request(method, f"{server.url}{path}", headers=named)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    # It has no token, so that where one is needed the name may be any.
    assert httpx.request(method, f"{guarded.url}{path}", headers=named).status_code == 401
    allowed = {**named, **headers_of("infer")}
    assert (
        httpx.request(method, f"{guarded.url}{path}", headers=allowed).status_code == {"POST": 400, "GET": 200}[method]
    )


def test_a_name_that_was_made_to_point_here_opens_no_socket(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        url = f"ws://rebound.example:{server.port}/v1/stream?model=animals"
        assert handshake(url, sock=connection) == 403


@pytest.mark.parametrize(
    ("given", "matches"),
    [
        ("https://App.Example", b"https://app.example"),
        ("https://app.example:443/", b"https://app.example"),
        ("http://localhost:3000", b"http://localhost:3000"),
        ("http://[::1]:3000", b"http://[::1]:3000"),
    ],
)
def test_spellings_of_an_origin(given: str, matches: bytes) -> None:
    origins = OriginPolicy([given])
    assert origins.check(scope_of() | {"headers": [(b"host", b"h"), (b"origin", matches)]})
    with pytest.raises(ForbiddenError):
        origins.check(scope_of() | {"headers": [(b"host", b"h"), (b"origin", matches + b"x")]})


@pytest.mark.parametrize(
    "given",
    ["*", "null", "app.example", "https://", "https://app.example/page", "ftp://a", "http://[", "https://é.example"],
)
def test_what_is_no_origin(given: str) -> None:
    with pytest.raises(SettingsError, match="allowed_origins takes origins such as"):
        OriginPolicy([given])


def test_a_tokens_file_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokens")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_tokens, tmp_path / "tokens")
        try:
            with pytest.raises(SettingsError) as caught:
                reading.result(20)
        finally:
            # Ends a read that waits for a writer.
            os.close(os.open(tmp_path / "tokens", os.O_RDWR))
    assert f"{tmp_path / 'tokens'} is not a regular file" in str(caught.value)


def test_a_state_key_file_that_is_far_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "key").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(SettingsError, match="key has more than 1048576 bytes"):
        create_state_tokens(Settings(state_key_file=tmp_path / "key"))
