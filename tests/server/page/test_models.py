"""The models on the page: what it shows of a version, which of them it lists, loads and asks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

import published_models
from page_helpers import (
    ADMIN_TOKEN,
    ASCII_TOKEN,
    MARKUP,
    Visits,
    alert,
    copy_version,
    expect,
    forecasts,
    give_token,
    numbers_of,
    press,
    said,
)
from server_helpers import Published, Running, serve
from stablernn_registry import Registry
from stablernn_server import Settings, create_app


def test_classification(server: Running, visit: Visits) -> None:
    page = visit(server, "/#/animals/2").page
    page.get_by_label("Series of loudness").fill("0.5 null 3\n-2.5, NaN, 7")
    press(page, "Classify")
    body = {"model": "animals:2", "inputs": [{"series": [0.5, None, 3, -2.5, None, 7]}]}
    [content] = httpx.post(f"{server.url}/v1/timeseries/classify", json=body).json()["outputs"][0]["content"]
    expect(said(page)).to_contain_text(f"Class {content['label']}, with a probability of ")
    expect(said(page)).to_contain_text("Version 2,")
    labels = page.locator(".attempt .bars .label")
    assert labels.all_inner_texts() == list(content["probabilities"])
    page.get_by_text("Probabilities as a table").click()
    table = page.get_by_role("group", name="Probabilities as a table")
    assert numbers_of(table.locator("td")) == pytest.approx(list(content["probabilities"].values()), rel=1e-3)
    assert page.locator(".attempt svg.plot .line").get_attribute("d").count("M") == 3, "two gaps make three pieces"
    # What is no series is told before anything is sent.
    page.get_by_label("Series of loudness").fill("1, 2, 3\n4, many, 6")
    press(page, "Classify")
    expect(alert(page)).to_contain_text('Line 2 holds "many", which is not a number.')


def test_markup_in_labels_stays_text(server: Running, visit: Visits) -> None:
    page = visit(server, "/#/markup").page
    page.get_by_label("Generate").select_option("noise")
    page.get_by_label("Steps", exact=True).fill("12")
    press(page, "Fill in")
    assert len(page.get_by_label("Series of loudness").input_value().split()) == 12
    press(page, "Classify")
    page.locator(".attempt .bars li").first.wait_for()
    assert sorted(page.locator(".attempt .bars .label").all_inner_texts()) == sorted(MARKUP)
    assert page.locator("main img, main b").count() == 0
    assert MARKUP[0] in page.locator("main").inner_text()


def test_a_certificate_of_the_withdrawn_kind_proves_nothing(server: Running, visit: Visits) -> None:
    page = visit(server, "/#/sensor-25").page
    card = page.get_by_role("region", name="Stability certificate")
    expect(card.locator(".kind")).to_have_text("none (stored as local; withdrawn)")
    expect(card.locator(".kind")).not_to_have_class(re.compile("proved"))
    expect(card).to_contain_text("No contraction rate and no bound on the states is proved")


def test_a_bounded_version_is_shown_with_its_radius_rounded_up(server: Running, visit: Visits) -> None:
    page = visit(server, "/#/sensor-24").page
    card = page.get_by_role("region", name="Stability certificate")
    expect(card.locator(".kind")).to_have_text("bounded within 12,346")
    expect(card).to_contain_text("Bound of state_0linf norm at most 1")


def test_the_facts_and_figures_of_a_version(server: Running, visit: Visits) -> None:
    page = visit(server, "/#/markup").page
    card = page.get_by_role("region", name="Stability certificate")
    expect(card).to_contain_text("approach each other, by a factor of 0.875 per step or faster, whatever the input.")
    expect(card).to_contain_text("A wrong value does little. It is forgotten.")
    card.get_by_text("Figures and conditions").click()
    card.get_by_text("What the proof rests on").click()
    expect(card.locator(".holds")).to_have_text("✓ yes")
    card.get_by_text("What papers ask for").click()
    expect(card.get_by_role("row").last).to_have_text("theorem 1 (a)0.50✗ nodifferential equation")
    table = page.get_by_role("group", name="Metrics, test split")
    expect(table.locator("thead th")).to_have_text(["Metric", "This version", "ridge"])
    expect(table.locator("tbody tr")).to_have_text(["accuracy0.75", "log loss0.70.5"])
    # Heads stand over their numbers, of methods that have fewer figures too.
    expect(table.locator("thead th")).to_have_class(["", "number", "number"])
    expect(page.get_by_role("group", name="Metrics, validation split")).to_be_hidden()
    page.get_by_role("link", name="animals", exact=False).click()
    expect(page.locator("#model-title")).to_have_text("animals")
    expect(page.locator("#model-title")).to_be_focused()
    expect(page.locator(".versions .alias")).to_have_text("@production")
    expect(card).to_contain_text("No certificate was computed for this version.")
    page.get_by_role("link", name="version 2").click()
    expect(page.locator(".versions [aria-current]")).to_have_text("version 2")
    assert page.url.endswith("#/animals/2")
    expect(page.locator(".versions li", has_text="version 3")).to_have_text("Load version 3")
    # The alias is told of the version that is not shown, too.
    expect(page.locator(".versions li", has_text="version 1")).to_contain_text("@production")


def test_a_stored_example_is_answered_when_the_page_opens(published: Published, tmp_path: Path, visit: Visits) -> None:
    registry = Registry(tmp_path)
    series = [[1.5, None, 3.0], [2.5, 1.0, 2.0], [3.5, 0.0, 1.0], [1.0, 1.0, 1.0]]
    example = {
        "split": "test",
        "input": {"series": series},
        "actual": [[1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 1.0, None, 1.0]],
    }
    content = json.dumps(example).encode()
    published_models.copy_version(registry, published.registry.get("flow:1"), **{"example.json": content})
    published_models.copy_version(registry, published.registry.get("animals:1"), **{"example.json": b"[1, 2"})
    for server in serve(create_app(Settings(registry=tmp_path))):
        assert httpx.get(f"{server.url}/v2/models/flow/example").json() == example
        # Any publisher may have written the file.
        damaged = httpx.get(f"{server.url}/v2/models/animals/example")
        assert (damaged.status_code, damaged.json()["code"]) == (404, "no_example")
        made = visit(server, "/")
        made.expected = {404}
        page = made.page
        bodies = forecasts(page)
        page.goto(f"{server.url}/#/flow")
        expect(said(page)).to_contain_text("A sample of the test split. Forecast of 5 steps")
        assert bodies[0]["inputs"] == [{"series": series}]
        expect(page.locator(".attempt .legend")).to_contain_text("what followed")
        # On a phone the answer is seen without scrolling.
        page.set_viewport_size({"width": 390, "height": 844})
        assert said(page).bounding_box()["y"] < 600
        # A file that is dropped is answered in its place.
        text = "1,2,3\n4,5,6"
        transfer = page.evaluate_handle(
            "text => { const data = new DataTransfer(); data.items.add(new File([text], 'a.csv')); return data; }", text
        )
        page.dispatch_event(".attempt", "drop", {"dataTransfer": transfer})
        expect(said(page)).to_contain_text(re.compile("^Forecast of 5 steps, based on the last 2 steps"))
        assert bodies[1]["inputs"] == [{"series": [[1, 2, 3], [4, 5, 6]]}]
        expect(page.locator(".attempt .legend")).not_to_contain_text("what followed")
        page.close()


def test_labels_of_plots_stand_at_whole_hours(server: Running, visit: Visits) -> None:
    page = visit(server, "/#/animals").page
    script = """async ([first, minutes, count]) => {
        const { calendarSteps } = await import('/page/plot.js');
        const timeOf = (step) => first + step * minutes * 60000;
        const steps = calendarSteps([0, count], timeOf, 6);
        return steps?.map((step) => new Date(timeOf(step)).toISOString().slice(5, 16)) ?? null;
    }"""
    start = 1_710_000_000_000  # 2024-03-09 16:00
    labels = page.evaluate(script, [start + 17 * 60_000, 1, 240])
    assert labels == [f"03-09T{hour}:00" for hour in (17, 18, 19, 20)]
    labels = page.evaluate(script, [start, 60, 72])
    assert labels == [f"03-{day}T{hour}:00" for day in (10, 11, 12) for hour in ("00", "12")]
    # Weeks from a Saturday meet no whole unit, although some are the first of a month.
    assert page.evaluate(script, [start - 16 * 3_600_000, 7 * 24 * 60, 150]) is None


def test_no_model_is_loaded(registry: Registry, visit: Visits) -> None:
    for server in serve(create_app(Settings(registry=registry.root, models=("co2",)))):
        httpx.post(f"{server.url}/v2/repository/models/co2/unload").raise_for_status()
        page = visit(server, "/").page
        expect(page.locator("main h2")).to_have_text("None of the models is loaded.")
        expect(page.locator("#model-list li").first).to_contain_text("not loaded")
        page.close()


def test_a_version_that_was_published_after_the_start_is_loaded_from_the_page(
    published: Published, tmp_path: Path, visit: Visits
) -> None:
    registry = Registry(tmp_path)
    copy_version(published, registry, "co2:1", "co2")
    settings = Settings(registry=tmp_path, models=("co2",), infer_tokens=(ASCII_TOKEN,), admin_tokens=(ADMIN_TOKEN,))
    for server in serve(create_app(settings)):
        copy_version(published, registry, "co2:1", "co2")
        copy_version(published, registry, "animals:1", "late")
        made = visit(server, "/#/late")
        made.expected = {401, 403}
        page = made.page
        give_token(page, ASCII_TOKEN)
        # Listed, and no 404.
        expect(page.locator("#model-title")).to_have_text("late")
        button = page.get_by_role("button", name="Load version 1")
        button.click()
        expect(page.locator("#model [role=alert]")).to_contain_text("admin")
        page.locator("#token-forget").click()
        give_token(page, ADMIN_TOKEN)
        button.click()
        expect(page.locator("#model .lead").first).to_contain_text("Classifies ")
        expect(page.locator("#model-list li", has_text="late")).not_to_contain_text("not loaded")
        # A newer version of a model that is served.
        page.goto(f"{server.url}/#/co2/2")
        press(page, "Load version 2")
        expect(page.locator(".versions a[aria-current]")).to_have_text("version 2")
        page.close()


def test_sentences_of_errors_are_shown_as_they_are(server: Running, visit: Visits) -> None:
    made = visit(server, "/#/flow")
    made.expected = {400, 404}
    page = made.page
    body = {"model": "flow:1", "inputs": [{"series": [[1, 2], [3, 4]]}], "options": {"horizon": 5}}
    refused = httpx.post(f"{server.url}/v1/timeseries/forecast", json=body).json()
    page.get_by_label("Series of flow, rain, level").fill("[[1, 2], [3, 4]]")
    press(page, "Forecast")
    expect(alert(page).locator("p")).to_have_text(refused["error"])
    expect(alert(page)).to_contain_text("400 bad_input")
    page.goto(f"{server.url}/#/nobody")
    expect(page.locator("main [role=alert] p")).to_contain_text("Unknown model 'nobody'.")


def test_load_is_polled_while_the_page_is_seen(server: Running, visit: Visits) -> None:
    made = visit(server, "/#/animals", clock=True)
    page = made.page
    page.locator("#model-title").wait_for()

    def polls(seconds: int) -> int:
        """Readings of /metrics in so many seconds of the page's clock."""
        before = made.addresses.count(f"{server.url}/metrics")
        for _ in range(seconds):
            page.clock.run_for(1000)
            page.evaluate("fetch('/v2/health/live').then((answer) => answer.text())")
        return made.addresses.count(f"{server.url}/metrics") - before

    assert polls(6) == 3
    body = {"model": "animals@production", "inputs": [{"series": [1, 2, 3]}]}
    for _ in range(8):
        httpx.post(f"{server.url}/v1/timeseries/classify", json=body).raise_for_status()
    assert polls(2) == 1
    tile = page.locator(".tiles div", has_text="Requests").locator("dd")
    expect(tile).to_have_text(re.compile(r"^[1-9][\d.]* /s$"))
    expect(page.locator(".tiles div", has_text="p50").locator("dd")).to_have_text(re.compile(r"(s|ms)$"))
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    page.evaluate(hide % "true" + "document.dispatchEvent(new Event('visibilitychange'))")
    assert polls(6) == 0
    page.evaluate(hide % "false" + "document.dispatchEvent(new Event('visibilitychange'))")
    assert polls(2) >= 1


def test_thirty_models_narrow_and_wide(server: Running, visit: Visits) -> None:
    for width, scheme in ((360, "dark"), (1280, "light")):
        page = visit(server, "/#/flow", width=width, scheme=scheme).page
        expect(page.locator("#model-count")).to_have_text("30 models")
        press(page, "Fill in")
        press(page, "Forecast")
        page.locator(".attempt .legend").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        page.get_by_label("Search models").fill("sensor 1")
        shown = page.locator("#model-list li:not([hidden]) .name").all_inner_texts()
        assert shown == [f"sensor-{number:02}" for number in range(26) if "1" in f"{number:02}"]
