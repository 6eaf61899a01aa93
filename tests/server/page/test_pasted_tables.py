"""Tables that are pasted into the page: values, times and covariates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from page_helpers import Visit, forecasts, needs_browser, numbers_of
from server_helpers import Running
from stablernn_runtime.calendar import advance, step_frequency

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@needs_browser
def test_forecast_of_a_table_with_a_heading(server: Running, visit: Callable[..., Visit]) -> None:
    rows = [[1.5, 10 + step, step % 3] for step in range(8)]
    lines = [
        f"2024-01-{step + 1:02},{level},{flow},{'' if step == 4 else rain}"
        for step, (flow, rain, level) in enumerate(rows)
    ]
    series = [[flow, None if step == 4 else rain, level] for step, (flow, rain, level) in enumerate(rows)]
    body = {"model": "flow:1", "inputs": [{"series": series}], "options": {"horizon": 4}}
    [content] = httpx.post(f"{server.url}/v1/timeseries/forecast", json=body).json()["outputs"][0]["content"]

    page = visit(server, "/#/flow").page
    page.get_by_label("Series of flow, rain, level").fill("\n".join(["day,level,flow,rain", *lines]))
    page.get_by_label("Horizon").fill("4")
    page.get_by_role("button", name="Forecast").click()
    said = page.locator(".attempt [role=status].lead")
    playwright.expect(said).to_contain_text(
        "Forecast of 4 steps, based on the last 8 steps. The times of the rows were not used: the model was trained "
        "without a frequency."
    )
    page.get_by_text("Forecast as a table").click()
    table = page.get_by_role("group", name="Forecast as a table")
    heads = table.locator("thead th").all_inner_texts()
    assert heads == ["Step ahead", *(f"{t}{q}" for t in ("flow", "level") for q in ("", ", 0.1", ", 0.5", ", 0.9"))]
    first = numbers_of(table.locator("tbody tr").first.locator("td"))
    wanted = []
    for target in range(2):
        levels = (content["quantiles"][level] for level in ("0.1", "0.5", "0.9"))
        wanted += [content["mean_forecast"][0][target], *(values[0][target] for values in levels)]
    assert first == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    plot = page.locator(".attempt svg.plot")
    assert plot.get_attribute("aria-label").startswith("flow: 8 observed steps and the forecast of 4 steps")
    assert plot.locator(".band").count() == 1
    page.get_by_label("Show").select_option("level")
    playwright.expect(plot).to_have_attribute("aria-label", re.compile("^level: "))


@needs_browser
def test_what_can_be_pasted(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/animals").page
    page.locator("#model-title").wait_for()

    def parse(text: str, *features: str) -> Any:
        script = """async ([text, features]) => {
            const { parseSeries } = await import("/page/series.js");
            try { return parseSeries(text, features); } catch (error) { return error.message; }
        }"""
        return page.evaluate(script, [text, list(features)])

    assert parse("1 2\n3", "a") == {"values": [1, 2, 3], "start": None}
    assert parse("1,,3,", "a")["values"] == [1, None, 3]
    assert parse("1,2,", "a", "b", "c")["values"] == [[1, 2, None]]
    assert parse("[1, NaN, null, -2.5e3]", "a")["values"] == [1, None, None, -2500]
    assert parse('{"series": [[1, 2], [3, null]]}', "a", "b")["values"] == [[1, 2], [3, None]]
    assert parse("1,5; 2\n2,5; na", "a", "b")["values"] == [[1.5, 2], [2.5, None]]
    assert parse("a\tb\n1\t2", "b", "a")["values"] == [[2, 1]]
    assert parse("2024-02-03, 4\n2024-02-04, 5", "a") == {"values": [4, 5], "start": "2024-02-03T00:00:00.000Z"}
    assert parse("1 2, 3\n4,5", "a")["values"] == [1, 2, 3, 4, 5]
    assert parse("ds,y\n2024-02-03,4", "a")["values"] == [4]
    assert parse("x,y\n1,2", "a", "b") == (
        "The heading names x, y; the model takes a, b. Rename the columns, or leave the heading out to give them in "
        "that order."
    )
    for text in ("", "[1, 2", '{"x": 1}', '["1"]', "[1e999]", "1 two 3", "1e999"):
        assert isinstance(parse(text, "a"), str), text


@needs_browser
def test_the_times_of_a_pasted_table_are_those_of_the_forecast(hourly: Running, visit: Callable[..., Visit]) -> None:
    hours = [0, 1, 2, 4, 5, 6, 7, 8]
    rows = [f"north,2024-03-05 {7 + hour:02}:00,{3 + hour % 3}" for hour in hours]
    page = visit(hourly, "/#/hourly").page
    bodies = forecasts(page)
    start = page.get_by_label("Time of the first value")
    playwright.expect(start).to_have_value("")
    page.get_by_label("Series of load").fill("\n".join(["unique_id,ds,load", *rows]))
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(page.locator(".attempt [role=status].lead")).to_contain_text(
        "Forecast of 4 steps from 2024-03-05T16:00:00Z, based on the last 9 steps."
    )
    playwright.expect(start).to_have_value("2024-03-05T07:00:00.000Z")
    # The row of 10:00 is missing: a step without a value.
    series = [3, 4, 5, None, 4, 5, 3, 4, 5]
    assert bodies == [
        {
            "model": "hourly:1",
            "inputs": [{"series": series, "start_timestamp": "2024-03-05T07:00:00.000Z"}],
            "options": {"horizon": 4},
        }
    ]
    answer = httpx.post(f"{hourly.url}/v1/timeseries/forecast", json=bodies[0]).json()["outputs"][0]["content"][0]
    page.get_by_text("Forecast as a table").click()
    table = page.get_by_role("group", name="Forecast as a table")
    assert table.locator("thead th").all_inner_texts() == ["Step ahead", "Time (UTC)", "load"]
    ahead = table.locator("tbody tr")
    assert [row.locator("td").first.inner_text() for row in ahead.all()] == [
        f"2024-03-05 {h}:00" for h in range(16, 20)
    ]
    means = numbers_of(table.locator("tbody td:nth-child(3)"))
    assert means == pytest.approx(answer["mean_forecast"], rel=1e-3, abs=1e-4)
    plot = page.locator(".attempt svg.plot")
    words = plot.locator("text").all_text_contents()
    assert "time (UTC), steps of h" in words
    assert [word for word in words if re.fullmatch(r"2024-03-05 \d\d:00", word)]
    plot.hover()
    playwright.expect(page.locator(".attempt .readout")).to_contain_text(re.compile(r"^2024-03-05 \d\d:00, step \d+: "))


@needs_browser
def test_a_model_with_a_calendar_asks_for_the_time(hourly: Running, visit: Callable[..., Visit]) -> None:
    page = visit(hourly, "/#/hourly").page
    bodies = forecasts(page)
    start, series = page.get_by_label("Time of the first value"), page.get_by_label("Series of load")
    alert = page.locator(".attempt [role=alert]")
    asked = (
        "The model needs the position of each step in the day: enter the time of the first value, or paste a table "
        "with a column ds of times."
    )
    series.fill("1 2 3 4 5 6")
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(alert).to_have_text(asked)
    # Generated series have a time that is as made up as they are, and is gone with them.
    page.get_by_role("button", name="Fill in").click()
    playwright.expect(start).to_have_value("2024-01-01T00:00:00.000Z")
    series.fill("1 2 3 4 5 6 7")
    playwright.expect(start).to_have_value("")
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(alert).to_have_text(asked)
    # Numbers of a column ds are no times where the training data did not say so.
    series.fill("ds,load\n1700000000,1\n1700003600,2")
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(alert).to_have_text(asked)
    assert bodies == []
    start.fill("2024-05-01T03:00")
    series.fill("1 2 3 4 5 6")
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(page.locator(".attempt [role=status].lead")).to_contain_text("from 2024-05-01T09:00:00,")
    assert bodies[0]["inputs"][0]["start_timestamp"] == "2024-05-01T03:00"


@needs_browser
def test_covariates_of_a_pasted_table_are_sent(hourly: Running, visit: Callable[..., Visit]) -> None:
    day = 86_400
    first = 1_709_596_800  # 2024-03-05
    rows = [f"{first + day * step},{step if step < 6 else ''},{step % 2},2.5" for step in range(11)]
    page = visit(hourly, "/#/sales").page
    bodies = forecasts(page)
    page.get_by_label("Series of y, promo").fill("\n".join(["ds,y,promo,size", *rows]))
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(page.locator(".attempt [role=status].lead")).to_contain_text("from 2024-03-11T00:00:00Z,")
    assert bodies[0]["inputs"] == [
        {
            "series": [[step, step % 2] for step in range(6)],
            "start_timestamp": "2024-03-05T00:00:00.000Z",
            "static": {"size": 2.5},
            "future": {"promo": [0, 1, 0, 1]},
        }
    ]


@needs_browser
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "ds,y,promo\n2024-01-02,1,0\n2024-01-01,2,0",
            "The times of the rows must ascend, got 2024-01-01 00:00 after 2024-01-02 00:00. Sort the rows, and paste "
            "one series at a time.",
        ),
        (
            "ds,y,promo\n2024-01-01,1,0\n2024-01-02 06:00,2,0",
            "The model takes steps of D, but 2024-01-02 06:00 is not a whole number of steps after 2024-01-01 00:00.",
        ),
        (
            "unique_id,ds,y,promo\na,2024-01-01,1,0\nb,2024-01-01,2,0",
            "The table holds 2 series in its column unique_id (a, b ...). Paste the rows of one of them.",
        ),
        (
            "ds,y,promo\n2024-01-01,1,0\n2024-02-31,2,0",
            'Line 3 holds "2024-02-31" in the column ds, which is not a time. Write times as 2024-01-31 or '
            "2024-01-31 13:00.",
        ),
        (
            "ds,y,promo,size\n2024-01-01,1,0,1\n2024-01-02,2,0,2",
            "The column size never changes within a series, got 1 and 2.",
        ),
    ],
    ids=["unsorted", "off the grid", "two series", "no time", "static that changes"],
)
def test_tables_that_fit_no_series(hourly: Running, visit: Callable[..., Visit], text: str, sentence: str) -> None:
    page = visit(hourly, "/#/sales").page
    page.get_by_label("Series of y, promo").fill(text)
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(page.locator(".attempt [role=alert]")).to_have_text(sentence)


@needs_browser
def test_the_page_counts_steps_as_the_server_does(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/animals").page
    script = """async (cases) => {
        const { advance, parseTime, stepsBetween } = await import("/page/calendar.js");
        return cases.map(([start, steps, frequency]) => {
            const from = parseTime(start);
            const to = advance(from, steps, frequency);
            return [new Date(to).toISOString().slice(0, 19), stepsBetween(from, to, frequency)];
        });
    }"""
    starts = {
        **dict.fromkeys(("S", "15min", "h", "6h", "D", "2W", "B", "MS", "M", "QS", "YS"), "2024-01-01T06:00"),
        **dict.fromkeys(("W-WED", "3B", "2MS", "Q"), "2024-01-31T00:00"),
        **dict.fromkeys(("ME", "2ME"), "2024-02-29"),
        **dict.fromkeys(("QE", "YE"), "2023-12-31"),
        **dict.fromkeys(("BME", "MS-29", "MS-30"), "2024-02-29"),
        **dict.fromkeys(("BMS", "BQS"), "2024-01-01"),
    }
    cases = [[start, steps, frequency] for frequency, start in starts.items() for steps in (1, 2, 5, 13, 100)]
    wanted = [[advance(start, steps, str(step_frequency(None, frequency))), steps] for start, steps, frequency in cases]
    assert page.evaluate(script, cases) == wanted


@needs_browser
def test_times_that_can_be_pasted(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/animals").page
    script = """async ([text, stamps]) => {
        const { parseNumber, parseTime } = await import("/page/calendar.js");
        const time = parseTime(text) ?? parseNumber(text, stamps);
        return time === null ? null : new Date(time).toISOString();
    }"""
    for text, stamps, time in [
        ("2024-03-05", None, "2024-03-05T00:00:00.000Z"),
        ("2024/3/5 7:30", None, "2024-03-05T07:30:00.000Z"),
        ("2024-03", None, "2024-03-01T00:00:00.000Z"),
        ("2024-03-05T07:30:15.25Z", None, "2024-03-05T07:30:15.250Z"),
        ("2024-03-05 07:30+02:00", None, "2024-03-05T05:30:00.000Z"),
        ("2024-03-05 07:30-0530", None, "2024-03-05T13:00:00.000Z"),
        ("1709596800", "unix-s", "2024-03-05T00:00:00.000Z"),
        ("1709596800000", "unix-ms", "2024-03-05T00:00:00.000Z"),
        ("20240305", "yyyymmdd", "2024-03-05T00:00:00.000Z"),
        ("1709596800", None, None),
        ("1709596800", "step", None),
        ("20240231", "yyyymmdd", None),
        ("202053", "yyyyww", "2020-12-28T00:00:00.000Z"),
        ("202153", "yyyyww", None),
        ("2024366", "yyyyddd", "2024-12-31T00:00:00.000Z"),
        ("2023366", "yyyyddd", None),
        ("20242", "yyyyq", "2024-04-01T00:00:00.000Z"),
        ("20245", "yyyyq", None),
        ("45357.25", "excel", "2024-03-06T06:00:00.000Z"),
        ("2024-02-31", None, None),
        ("2024-03-05 24:00", None, None),
        ("5", None, None),
    ]:
        assert page.evaluate(script, [text, stamps]) == time, text
