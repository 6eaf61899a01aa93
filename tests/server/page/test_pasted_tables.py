"""Tables that are pasted into the page: values, times and covariates."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from page_helpers import Visits, alert, expect, forecasts, numbers_of, press, said
from server_helpers import Running
from stablernn_runtime.calendar import advance, step_frequency
from stablernn_server.routes import page as page_routes

Evaluate = Callable[..., Any]
HOURLY_TIME_NEEDED = (
    "The model needs the position of each step in the day: enter the time of the first value, or paste a table with a "
    "column ds of times."
)


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    """Calls a function of JavaScript with the names of some modules, and arguments, in Node.js."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    folder = shutil.copytree(page_routes.FOLDER, tmp_path_factory.mktemp("page"), dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')

    def evaluate(function: str, *arguments: Any) -> Any:
        modules = "".join(f"import * as {name} from './{name}.js';" for name in ("calendar", "series", "dom"))
        text = f"{modules} console.log(JSON.stringify(({function})(...{json.dumps(arguments)})));"
        command = [node, "--input-type=module", "-e", text]
        return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)

    return evaluate


@pytest.fixture(scope="module")
def parse(evaluate: Evaluate) -> Evaluate:
    """Reads texts, ``(text, features)`` each: what is read of each, or the message of its error."""
    function = """(cases) => cases.map(([text, features]) => {
        try { return series.readSeries(text, { features }); } catch (error) { return error.message; }
    })"""
    return lambda cases: evaluate(function, [(text, features.split()) for text, features in cases])


def test_values_that_can_be_pasted(parse: Evaluate) -> None:
    cases = {
        ("1 2\n3", "a"): [1, 2, 3],
        ("1,,3,", "a"): [1, None, 3],
        ("1,2,", "a b c"): [[1, 2, None]],
        ("[1, NaN, null, -2.5e3]", "a"): [1, None, None, -2500],
        ('{"series": [[1, 2], [3, null]]}', "a b"): [[1, 2], [3, None]],
        ("1,5; 2\n2,5; na", "a b"): [[1.5, 2], [2.5, None]],
        ("a\tb\n1\t2", "b a"): [[2, 1]],
        ("2024-02-03, 4\n2024-02-04, 5", "a"): [4, 5],
        ("1 2, 3\n4,5", "a"): [1, 2, 3, 4, 5],
        ("ds,y\n2024-02-03,4", "a"): [4],
    }
    found = parse(cases)
    assert [each["values"] for each in found] == list(cases.values())
    assert found[7]["times"] == [1_706_918_400_000, 1_707_004_800_000]


def test_texts_that_are_no_series(parse: Evaluate) -> None:
    cases = {
        ("x,y\n1,2", "a b"): "The heading names x, y; the model takes a, b.",
        ("", "a"): "There is no series yet",
        ("[1, 2", "a"): "looks like JSON but is not valid",
        ('{"x": 1}', "a"): 'hold one as "series"',
        ('["1"]', "a"): 'got "1"',
        ("[1e999]", "a"): "holds numbers and null",
        ("1 two 3", "a"): "two",
        ("1e999", "a"): "1e999",
        ("unique_id,ds,y\na,2024-01-01,1\nb,2024-01-01,2", "y"): "2 series in its column unique_id (a, b ...)",
        ("ds,y\n2024-01-01,1\n2024-02-31,2", "y"): 'Line 3 holds "2024-02-31" in the column ds, which is not a time.',
    }
    for message, words in zip(parse(cases), cases.values(), strict=True):
        assert words in message


def test_the_page_counts_steps_as_the_server_does(evaluate: Evaluate) -> None:
    function = """(cases) => cases.map(([start, steps, frequency]) => {
        const from = calendar.parseTime(start);
        const to = calendar.advance(from, steps, frequency);
        return [new Date(to).toISOString().slice(0, 19), calendar.stepsBetween(from, to, frequency)];
    })"""
    starts = {
        **dict.fromkeys(("S", "15min", "h", "D", "2W", "B", "MS", "M", "QS", "YS"), "2024-01-01T06:00"),
        **dict.fromkeys(("W-WED", "3B", "2MS", "Q"), "2024-01-31T00:00"),
        **dict.fromkeys(("ME", "2ME", "BME", "MS-29", "MS-30"), "2024-02-29"),
        **dict.fromkeys(("QE", "YE"), "2023-12-31"),
        **dict.fromkeys(("BMS", "BQS"), "2024-01-01"),
    }
    cases = [[start, steps, frequency] for frequency, start in starts.items() for steps in (1, 5, 13, 100)]
    wanted = [[advance(start, steps, str(step_frequency(None, frequency))), steps] for start, steps, frequency in cases]
    assert evaluate(function, cases) == wanted


def test_times_that_can_be_pasted(evaluate: Evaluate) -> None:
    function = """(cases) => cases.map(([text, stamps]) => {
        const time = calendar.parseTime(text) ?? calendar.parseNumber(text, stamps);
        return time === null ? null : new Date(time).toISOString().slice(0, 19);
    })"""
    times = {
        ("2024-03-05", None): "2024-03-05T00:00:00",
        ("2024/3/5 7:30", None): "2024-03-05T07:30:00",
        ("2024-03", None): "2024-03-01T00:00:00",
        ("2024-03-05T07:30:15.25Z", None): "2024-03-05T07:30:15",
        ("2024-03-05 07:30-0530", None): "2024-03-05T13:00:00",
        ("1709596800", "unix-s"): "2024-03-05T00:00:00",
        ("1709596800000", "unix-ms"): "2024-03-05T00:00:00",
        ("20240305", "yyyymmdd"): "2024-03-05T00:00:00",
        ("202053", "yyyyww"): "2020-12-28T00:00:00",
        ("2024366", "yyyyddd"): "2024-12-31T00:00:00",
        ("20242", "yyyyq"): "2024-04-01T00:00:00",
        ("45357.25", "excel"): "2024-03-06T06:00:00",
    }
    none = ["1709596800", "2024-02-31", "2024-03-05 24:00", "5"]
    wrong = [("1709596800", "step"), ("20240231", "yyyymmdd"), ("202153", "yyyyww"), ("2023366", "yyyyddd")]
    for case in (*((text, None) for text in none), *wrong, ("20245", "yyyyq")):
        times[case] = None
    assert dict(zip(times, evaluate(function, list(times)), strict=True)) == times


def test_upper_bounds_are_rounded_up(evaluate: Evaluate) -> None:
    """From the smallest size that is written with an exponent to the largest, both sides of a rounding."""
    values = [1, 0.87504, 0.87496, 1234.1, 12345.2, 9_999_999.5, 6_723_447_172, 0.000051231, 0.99996]
    shown = ["1", "0.8751", "0.875", "1235", "12,346", "10,000,000", "6.73e+9", "5.13e−5", "1"]
    assert evaluate("(values) => values.map((value) => dom.upperBound(value))", values) == shown


def test_forecast_of_a_table_with_a_heading(server: Running, visit: Visits) -> None:
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
    press(page, "Forecast")
    expect(said(page)).to_contain_text(
        "Forecast of 4 steps, based on the last 8 steps. The times of the rows were not used: the model was trained "
        "without a frequency."
    )
    page.get_by_text("Forecast as a table").click()
    table = page.get_by_role("group", name="Forecast as a table")
    heads = table.locator("thead th").all_inner_texts()
    assert heads == ["Step ahead", *(f"{t}{q}" for t in ("flow", "level") for q in ("", ", 0.1", ", 0.5", ", 0.9"))]
    wanted = []
    for target in range(2):
        levels = (content["quantiles"][level] for level in ("0.1", "0.5", "0.9"))
        wanted += [content["mean_forecast"][0][target], *(values[0][target] for values in levels)]
    first = numbers_of(table.locator("tbody tr").first.locator("td"))
    assert first == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    plot = page.locator(".attempt svg.plot")
    assert plot.get_attribute("aria-label").startswith("flow: 8 observed steps and the forecast of 4 steps")
    assert plot.locator(".band").count() == 1
    page.get_by_label("Show").select_option("level")
    expect(plot).to_have_attribute("aria-label", re.compile("^level: "))


def test_times_and_gaps_of_a_pasted_table_are_those_of_the_forecast(hourly: Running, visit: Visits) -> None:
    hours = [0, 1, 2, 4, 5, 6, 7, 8]
    rows = [f"north,2024-03-05 {7 + hour:02}:00,{3 + hour % 3}" for hour in hours]
    page = visit(hourly, "/#/hourly").page
    bodies = forecasts(page)
    page.get_by_label("Series of load").fill("\n".join(["unique_id,ds,load", *rows]))
    press(page, "Forecast")
    expect(said(page)).to_contain_text("Forecast of 4 steps from 2024-03-05T16:00:00Z, based on the last 9 steps.")
    expect(page.get_by_label("Time of the first value")).to_have_value("2024-03-05T07:00:00.000Z")
    # The row of 10:00 is missing: a step without a value.
    inputs = [{"series": [3, 4, 5, None, 4, 5, 3, 4, 5], "start_timestamp": "2024-03-05T07:00:00.000Z"}]
    assert bodies == [{"model": "hourly:1", "inputs": inputs, "options": {"horizon": 4}}]
    page.get_by_text("Forecast as a table").click()
    table = page.get_by_role("group", name="Forecast as a table")
    assert table.locator("thead th").all_inner_texts() == ["Step ahead", "Time (UTC)", "load"]
    times = table.locator("tbody td:nth-child(2)").all_inner_texts()
    assert times == [f"2024-03-05 {hour}:00" for hour in range(16, 20)]
    plot = page.locator(".attempt svg.plot")
    words = plot.locator("text").all_text_contents()
    assert "time (UTC), steps of h" in words
    assert [word for word in words if re.fullmatch(r"2024-03-05 \d\d:00", word)]
    plot.hover()
    expect(page.locator(".attempt .readout")).to_contain_text(re.compile(r"^2024-03-05 \d\d:00, step \d+: "))


def test_a_model_with_a_calendar_asks_for_the_time(hourly: Running, visit: Visits) -> None:
    page = visit(hourly, "/#/hourly").page
    bodies = forecasts(page)
    start, series = page.get_by_label("Time of the first value"), page.get_by_label("Series of load")
    # Generated series have a time that is as made up as they are, and is gone with them.
    press(page, "Fill in")
    expect(start).to_have_value("2024-01-01T00:00:00.000Z")
    # Numbers of a column ds are no times where the training data did not say so.
    for text in ("1 2 3 4 5 6", "ds,load\n1700000000,1\n1700003600,2"):
        series.fill(text)
        expect(start).to_have_value("")
        press(page, "Forecast")
        expect(alert(page)).to_have_text(HOURLY_TIME_NEEDED)
    assert bodies == []
    start.fill("2024-05-01T03:00")
    series.fill("1 2 3 4 5 6")
    press(page, "Forecast")
    expect(said(page)).to_contain_text("from 2024-05-01T09:00:00,")
    assert bodies[0]["inputs"][0]["start_timestamp"] == "2024-05-01T03:00"


def test_covariates_of_a_pasted_table_are_sent(hourly: Running, visit: Visits) -> None:
    first = 1_709_596_800  # 2024-03-05
    rows = [f"{first + 86_400 * step},{step if step < 6 else ''},{step % 2},2.5" for step in range(11)]
    page = visit(hourly, "/#/sales").page
    bodies = forecasts(page)
    page.get_by_label("Series of y, promo").fill("\n".join(["ds,y,promo,size", *rows]))
    press(page, "Forecast")
    expect(said(page)).to_contain_text("from 2024-03-11T00:00:00Z,")
    assert bodies[0]["inputs"] == [
        {
            "series": [[step, step % 2] for step in range(6)],
            "start_timestamp": "2024-03-05T00:00:00.000Z",
            "static": {"size": 2.5},
            "future": {"promo": [0, 1, 0, 1]},
        }
    ]


def test_tables_that_fit_no_series(hourly: Running, visit: Visits) -> None:
    page = visit(hourly, "/#/sales").page
    for text, words in {
        "ds,y,promo\n2024-01-02,1,0\n2024-01-01,2,0": "must ascend, got 2024-01-01 00:00 after 2024-01-02 00:00.",
        "ds,y,promo\n2024-01-01,1,0\n2024-01-02 06:00,2,0": "2024-01-02 06:00 is not a whole number of steps after",
        "ds,y,promo,size\n2024-01-01,1,0,1\n2024-01-02,2,0,2": "The column size never changes within a series",
    }.items():
        page.get_by_label("Series of y, promo").fill(text)
        press(page, "Forecast")
        expect(alert(page)).to_contain_text(words)
