"""Streams on the page."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from page_helpers import Visits, expect, numbers_of, press
from server_helpers import Running, serve
from stablernn_registry import Registry
from stablernn_server import Settings, create_app


def test_stream(server: Running, visit: Visits) -> None:
    page = visit(server, "/#/animals").page
    sent: list[Any] = []
    answered: list[Any] = []

    def listen(socket: Any) -> None:
        socket.on("framesent", lambda frame: sent.append(json.loads(frame)))
        socket.on("framereceived", lambda frame: answered.append(json.loads(frame)))

    page.on("websocket", listen)
    page.get_by_label("Per second").fill("50")
    press(page, "Start")
    expect(page.locator(".stream .lead")).to_contain_text(re.compile(r"Step \d\d+: "))
    expect(page.locator(".stream .bars li")).to_have_count(4)
    press(page, "Stop")
    expect(page.locator(".stream [role=status]")).to_contain_text("Stopped at step ")
    page.get_by_text("Output so far as a table").click()
    table = page.get_by_role("group", name="Output so far as a table")
    shown = dict(zip(table.locator("tbody th").all_inner_texts(), numbers_of(table.locator("td")), strict=True))
    hello, *answers = answered
    assert hello["sample_shape"] == [1]
    stopped = re.search(r"Stopped at step (\d+)", page.locator(".stream .lead").inner_text())
    assert stopped is not None
    step = int(stopped[1])
    assert [answer["step"] for answer in answers[:step]] == list(range(1, step + 1))
    # What was drawn last is what the whole sequence gives in one request.
    series = [frame["values"] for frame in sent[:step]]
    body = {"model": "animals:1", "inputs": [{"series": series}]}
    [content] = httpx.post(f"{server.url}/v1/timeseries/classify", json=body).json()["outputs"][0]["content"]
    assert shown == pytest.approx(content["probabilities"], rel=5e-3)


def test_stream_of_patches_in_a_calendar(hourly: Running, visit: Visits) -> None:
    page = visit(hourly, "/#/hourly").page
    sent: list[Any] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))))
    page.get_by_label("Per second").fill("50")
    press(page, "Start")
    expect(page.locator(".stream [role=status]")).to_contain_text("The model answers after every 3 of them.")
    expect(page.locator(".stream .lead")).to_contain_text(re.compile(r"Step \d\d+\."))
    press(page, "Stop")
    expect(page.locator(".stream [role=alert]")).to_be_empty()
    assert [frame["time"] for frame in sent[:3]] == [f"2024-01-01T0{hour}:00:00.000Z" for hour in (0, 1, 2)]
    # The calendar's features are the server's.
    assert {len(frame["values"]) for frame in sent} == {1}


def test_a_stream_shows_the_adaptive_intervals_of_its_server(registry: Registry, visit: Visits) -> None:
    for server in serve(create_app(Settings(registry=registry.root, models=("co2",), adaptive_intervals=True))):
        page = visit(server, "/#/co2").page
        page.get_by_label("Per second").fill("50")
        press(page, "Start")
        expect(page.locator(".stream")).to_contain_text(re.compile(r"adaptive quantiles 0\.\d+ to 0\.\d+"))
        press(page, "Stop")
        page.close()
