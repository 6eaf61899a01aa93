"""The files of the page and the API docs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from page_helpers import Visits, expect
from server_helpers import Running
from stablernn_server.routes import page as page_routes


def test_every_file_of_the_page_is_served(server: Running) -> None:
    assert sorted(path.name for path in page_routes.FOLDER.iterdir()) == sorted(page_routes.FILES)
    types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    with httpx.Client(base_url=server.url) as client:
        for path in ("/", "/docs", *(f"/page/{name}" for name in page_routes.FILES)):
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["content-type"].startswith(types.get(Path(path).suffix, "text/html"))
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-cache"
            again = client.get(path, headers={"If-None-Match": f'"other", W/{answer.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert client.get(path, headers={"If-None-Match": '"other"'}).content == answer.content
            assert client.head(path).headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("path", ["nothing.js", "..%2Fapp.py", "%2e%2e/app.py", ""])
def test_nothing_else_is_served(server: Running, path: str) -> None:
    answer = httpx.get(f"{server.url}/page/{path}")
    assert answer.status_code == 404
    assert answer.json()["code"] == "unknown_path"


def test_the_files_name_no_other_host() -> None:
    for path in page_routes.FOLDER.iterdir():
        found = set(re.findall(r"(?:https?|wss?)://[^\s\"'`)]*", path.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, path.name


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_docs_show_every_route(server: Running, visit: Visits) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    wanted = sorted((method.upper(), path) for path, methods in document["paths"].items() for method in methods)
    page = visit(server, "/docs").page
    page.locator(".route").first.wait_for()
    heads = [text.split() for text in page.locator(".route h3").all_inner_texts()]
    assert sorted((method, path) for method, path in heads) == wanted
    section = page.get_by_role("region", name="POST /v1/timeseries/classify")
    expect(section.get_by_role("group", name="Body")).to_contain_text("options")
    command = section.locator("pre").inner_text()
    assert f"{server.url}/v1/timeseries/classify" in command
    ran = subprocess.run(
        ["bash", "-c", command.replace('"digits"', '"animals"').replace('"top_k":3', '"top_k":1')],
        capture_output=True,
        timeout=30,
    )
    assert json.loads(ran.stdout)["outputs"][0]["content"][0]["label"] in ("cat", "dog", "owl", "rat")
    page.get_by_label("Search routes").fill("forecast")
    expect(page.locator("#route-count")).to_have_text("1 route")
