"""The page and the API docs: their files, and what they do in a real browser against a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from exports import exported
from server_helpers import Published, Running, serve
from stablernn import Forecaster
from stablernn.data.forecasting.covariates import calendar_periods
from stablernn_registry import Registry
from stablernn_runtime.calendar import advance, step_frequency
from stablernn_server import Settings, create_app
from stablernn_server.routes import page as page_routes

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
needs_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed")
MARKUP = ["<img src=x onerror=alert(1)>", "<b>bold</b>", "&amp;", "'\"`"]
TOKEN = "ünïcode-tôken-of-32-characters-or-more"
ASCII_TOKEN = "infer-token-0123456789abcdef0123456789"
ADMIN_TOKEN = "admin-token-0123456789abcdef0123456789"
CERTIFICATE = {
    "kind": "contracting",
    "holds": True,
    "norm": "l2",
    "contraction_rate": 0.875,
    "step_rate": 0.875,
    "states": ["state_2"],
    "hypotheses": [{"name": "contraction rate", "value": 0.875, "bound": 1.0, "holds": True}],
    "conditions": [
        {"name": "theorem 1 (a)", "value": 0.5, "bound": 0.0, "holds": False, "of": "differential equation"},
    ],
}
WITHDRAWN = {
    "kind": "local",
    "holds": True,
    "conditions": [{"name": "theorem 1 (a)", "value": 0.25, "bound": 0.5, "holds": True}],
}
BOUNDED = {
    "kind": "bounded",
    "holds": True,
    "norm": None,
    "contraction_rate": None,
    "state_balls": [
        {"state": "state_0", "norm": "linf", "centre": 0.0, "radius": 0.99992},
        {"state": "state_1", "norm": "linf", "centre": 0.0, "radius": 12_345.2},
    ],
}
METRICS = {"test": {"accuracy": 0.75, "log_loss": 0.7, "ridge": {"log_loss": 0.5}}, "validation": {"accuracy": 0.625}}


@pytest.fixture(scope="module")
def registry(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Thirty models: those of all tests, one whose labels are markup, and copies of it."""
    registry = Registry(tmp_path_factory.mktemp("page"))

    def copy(source: str, name: str, **fields: Any) -> None:
        version = published.registry.get(source)
        known = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
        registry.publish(name, {file: version.path(file) for file in version.manifest.files}, {**known, **fields})

    copy("animals:1", "animals")
    copy("animals:2", "animals")
    copy("animals:2", "animals", lineage={"note": "never served"})
    registry.set_alias("animals", "production", 1)
    copy("flow:1", "flow")
    copy("co2:1", "co2")
    copy("animals:1", "markup", labels=MARKUP, certificate=CERTIFICATE, metrics=METRICS)
    for number in range(26):
        copy("animals:1", f"sensor-{number:02}", certificate={25: WITHDRAWN, 24: BOUNDED}.get(number))
    return registry


@pytest.fixture(scope="module")
def server(registry: Registry) -> Iterator[Running]:
    names = tuple(entry.name for entry in registry.list() if entry.name != "animals")
    yield from serve(create_app(Settings(registry=registry.root, models=("animals@production", "animals:2", *names))))


@pytest.fixture(scope="module")
def guarded(registry: Registry) -> Iterator[Running]:
    """A server of one model that wants a token."""
    settings = Settings(registry=registry.root, models=("animals:2",), infer_tokens=(ASCII_TOKEN,))
    yield from serve(create_app(settings))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """One tab and what it did.

    Attributes:
        page: Playwright's page.
        url: The server.
        expected: Statuses other than 2xx that the test brings about; the browser reports each on its console.
    """

    page: Any
    url: str
    expected: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def check(self) -> None:
        """No error on the console but those of expected answers, and no request to anywhere else."""
        known = tuple(f"the server responded with a status of {status} " for status in self.expected)
        assert [text for text in self.problems if not any(words in text for words in known)] == []
        host = self.url.removeprefix("http://")
        assert self.addresses
        assert [at for at in self.addresses if not at.startswith((f"http://{host}/", f"ws://{host}/"))] == []


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens a tab; what it did is checked when the test is over."""
    visits = []

    def visit(server: Running, path: str, *, width: int = 1280, scheme: str = "light", clock: bool = False) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(15_000)
        made = Visit(page, server.url)
        page.on("console", lambda message: made.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: made.problems.append(str(error)))
        page.on("dialog", lambda dialog: made.problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: made.addresses.append(request.url))
        page.on("websocket", lambda socket: made.addresses.append(socket.url))
        if clock:
            page.clock.install()
        page.goto(server.url + path)
        visits.append(made)
        return made

    yield visit
    for made in visits:
        made.page.context.close()
        made.check()


def numbers_of(cells: Any) -> list[float]:
    """The numbers in cells of a table, which have a real minus and commas between thousands."""
    return [float(text.replace("−", "-").replace(",", "")) for text in cells.all_inner_texts()]


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


@pytest.mark.parametrize("path", ["nothing.js", "..%2Fapp.py", "%2e%2e/app.py", "__init__.py", "page.py", ""])
def test_nothing_else_is_served(server: Running, path: str) -> None:
    answer = httpx.get(f"{server.url}/page/{path}")
    assert answer.status_code == 404
    assert answer.json()["code"] == "unknown_path"


def test_the_files_name_no_other_host() -> None:
    for path in page_routes.FOLDER.iterdir():
        found = set(re.findall(r"(?:https?|wss?)://[^\s\"'`)]*", path.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, path.name


@needs_browser
def test_classification(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/animals/2").page
    page.get_by_label("Series of loudness").fill("0.5 null 3\n-2.5, NaN, 7")
    page.get_by_role("button", name="Classify").click()
    said = page.locator(".attempt [role=status].lead")
    body = {"model": "animals:2", "inputs": [{"series": [0.5, None, 3, -2.5, None, 7]}]}
    [content] = httpx.post(f"{server.url}/v1/timeseries/classify", json=body).json()["outputs"][0]["content"]
    playwright.expect(said).to_contain_text(f"Class {content['label']}, with a probability of ")
    playwright.expect(said).to_contain_text("Version 2,")
    labels = page.locator(".attempt .bars .label")
    assert labels.all_inner_texts() == list(content["probabilities"])
    page.get_by_text("Probabilities as a table").click()
    table = page.get_by_role("group", name="Probabilities as a table")
    assert numbers_of(table.locator("td")) == pytest.approx(list(content["probabilities"].values()), rel=1e-3)
    assert page.locator(".attempt svg.plot .line").get_attribute("d").count("M") == 3, "two gaps make three pieces"
    assert "6 steps" in page.locator(".attempt svg.plot").get_attribute("aria-label")


@needs_browser
def test_markup_in_labels_stays_text(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/markup").page
    page.get_by_label("Generate").select_option("noise")
    page.get_by_label("Steps", exact=True).fill("12")
    page.get_by_role("button", name="Fill in").click()
    assert len(page.get_by_label("Series of loudness").input_value().split()) == 12
    page.get_by_role("button", name="Classify").click()
    page.locator(".attempt .bars li").first.wait_for()
    assert sorted(page.locator(".attempt .bars .label").all_inner_texts()) == sorted(MARKUP)
    assert page.locator("main img, main b").count() == 0
    assert MARKUP[0] in page.locator("main").inner_text()


@needs_browser
def test_a_certificate_of_the_withdrawn_kind_proves_nothing(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/sensor-25").page
    card = page.get_by_role("region", name="Stability certificate")
    badge = card.locator(".kind")
    playwright.expect(badge).to_have_text("none (stored as local; withdrawn)")
    playwright.expect(badge).not_to_have_class(re.compile("proved"))
    playwright.expect(card).to_contain_text(
        "No contraction rate and no bound on the states is proved for these weights."
    )
    card.get_by_text("What papers ask for").click()
    playwright.expect(card.get_by_role("row").last).to_have_text("theorem 1 (a)0.250.5✓ yes")


@needs_browser
def test_a_bounded_version_is_shown_with_its_radius_rounded_up(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/sensor-24").page
    card = page.get_by_role("region", name="Stability certificate")
    playwright.expect(card.locator(".kind")).to_have_text("bounded within 12,346")
    playwright.expect(card).to_contain_text("Ball of state_0linf norm at most 1")
    # From the smallest size that `number` writes with an exponent to the largest, both sides of a rounding.
    values = [1, 0.87504, 0.87496, 1234.1, 12345.2, 9_999_999.5, 6_723_447_172, 0.000051231, 0.99996]
    shown = page.evaluate(
        "async (values) => { const dom = await import('/page/dom.js'); return values.map((v) => dom.upperBound(v)); }",
        values,
    )
    assert shown == ["1", "0.8751", "0.875", "1235", "12,346", "1.00e+7", "6.73e+9", "5.13e−5", "1"]


@needs_browser
def test_the_facts_of_a_version(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/markup").page
    card = page.get_by_role("region", name="Stability certificate")
    playwright.expect(card).to_contain_text(
        "Two states under the same input approach each other, by a factor of 0.875 per step or faster, whatever the "
        "input."
    )
    card.get_by_text("What the proof rests on").click()
    playwright.expect(card.locator(".holds")).to_have_text("✓ yes")
    card.get_by_text("What papers ask for").click()
    playwright.expect(card.get_by_role("row").last).to_have_text("theorem 1 (a)0.50✗ nodifferential equation")
    page.get_by_role("link", name="animals", exact=False).click()
    playwright.expect(page.locator("#model-title")).to_have_text("animals")
    playwright.expect(page.locator("#model-title")).to_be_focused()
    playwright.expect(page.locator(".versions .alias")).to_have_text("@production")
    playwright.expect(card).to_contain_text("No certificate was computed for this version.")
    page.get_by_role("link", name="version 2").click()
    playwright.expect(page.locator(".versions [aria-current]")).to_have_text("version 2")
    assert page.url.endswith("#/animals/2")
    playwright.expect(page.locator(".versions li", has_text="version 3")).to_have_text("Load version 3")
    # The alias is told of the version that is not shown, too.
    playwright.expect(page.locator(".versions li", has_text="version 1")).to_contain_text("@production")


@needs_browser
def test_figures_of_a_version(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/markup").page
    table = page.get_by_role("group", name="Metrics, test split")
    playwright.expect(table.locator("thead th")).to_have_text(["Metric", "This version", "ridge"])
    playwright.expect(table.locator("tbody tr")).to_have_text(["accuracy0.75", "log loss0.70.5"])
    # Heads stand over their numbers, of methods that have fewer figures too.
    playwright.expect(table.locator("thead th")).to_have_class(["", "number", "number"])
    playwright.expect(page.get_by_role("group", name="Metrics, validation split")).to_be_hidden()


@needs_browser
def test_no_model_is_loaded(registry: Registry, visit: Callable[..., Visit]) -> None:
    for server in serve(create_app(Settings(registry=registry.root, models=("co2",)))):
        httpx.post(f"{server.url}/v2/repository/models/co2/unload").raise_for_status()
        page = visit(server, "/").page
        playwright.expect(page.locator("main h2")).to_have_text("None of the models is loaded.")
        playwright.expect(page.locator("#model-list li").first).to_contain_text("not loaded")
        page.close()


@needs_browser
def test_a_version_that_was_published_after_the_start_is_loaded_from_the_page(
    published: Published, tmp_path: Path, visit: Callable[..., Visit]
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
        playwright.expect(page.locator("#model-title")).to_have_text("late")
        button = page.get_by_role("button", name="Load version 1")
        button.click()
        playwright.expect(page.locator("#model [role=alert]")).to_contain_text("admin")
        page.locator("#token-forget").click()
        give_token(page, ADMIN_TOKEN)
        button.click()
        playwright.expect(page.locator("#model .lead").first).to_contain_text("Classifies ")
        playwright.expect(page.locator("#model-list li", has_text="late")).not_to_contain_text("not loaded")
        # A newer version of a model that is served.
        page.goto(f"{server.url}/#/co2/2")
        page.get_by_role("button", name="Load version 2").click()
        playwright.expect(page.locator(".versions a[aria-current]")).to_have_text("version 2")
        page.close()


def copy_version(published: Published, registry: Registry, source: str, name: str) -> None:
    version = published.registry.get(source)
    facts = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    registry.publish(name, {file: version.path(file) for file in version.manifest.files}, facts)


def give_token(page: Any, token: str) -> None:
    page.locator("#token").fill(token)
    page.locator("#token").press("Enter")


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
def test_sentences_of_errors_are_shown_as_they_are(server: Running, visit: Callable[..., Visit]) -> None:
    made = visit(server, "/#/flow")
    made.expected = {400}
    page = made.page
    body = {"model": "flow:1", "inputs": [{"series": [[1, 2], [3, 4]]}], "options": {"horizon": 5}}
    refused = httpx.post(f"{server.url}/v1/timeseries/forecast", json=body).json()
    page.get_by_label("Series of flow, rain, level").fill("[[1, 2], [3, 4]]")
    page.get_by_role("button", name="Forecast").click()
    alert = page.locator(".attempt [role=alert]")
    playwright.expect(alert.locator("p")).to_have_text(refused["error"])
    playwright.expect(alert).to_contain_text("400 bad_input")
    # What is no series is told before anything is sent.
    page.get_by_label("Series of flow, rain, level").fill("1, 2, 3\n4, many, 6")
    page.get_by_role("button", name="Forecast").click()
    playwright.expect(alert).to_contain_text('Line 2 holds "many", which is not a number.')
    made.expected = {400, 404}
    page.goto(f"{server.url}/#/nobody")
    playwright.expect(page.locator("main [role=alert] p")).to_contain_text("Unknown model 'nobody'.")


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
def test_token(guarded: Running, visit: Callable[..., Visit]) -> None:
    made = visit(guarded, "/")
    made.expected = {401}
    page = made.page
    dialog = page.get_by_role("dialog", name="This server needs a token")
    refused = httpx.get(f"{guarded.url}/v2").json()["error"]
    playwright.expect(dialog).to_contain_text(refused)
    playwright.expect(page.get_by_label("Bearer token")).to_be_focused()
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    unknown = httpx.get(f"{guarded.url}/v2", headers={"Authorization": "Bearer nobody"}).json()["error"]
    playwright.expect(dialog).to_contain_text(unknown)
    page.keyboard.type(ASCII_TOKEN)
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#model-title")).to_have_text("animals")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert not [address for address in made.addresses if ASCII_TOKEN in address]
    page.get_by_role("button", name="Fill in").click()
    page.get_by_role("button", name="Classify").click()
    playwright.expect(page.locator(".attempt [role=status].lead")).to_contain_text("Class ")
    page.get_by_role("button", name="Start").click()
    playwright.expect(page.locator(".stream .lead")).to_contain_text(re.compile(r"Step [1-9]\d*: "))
    page.get_by_role("button", name="Stop").click()
    page.reload()
    playwright.expect(page.locator("#model-title")).to_have_text("animals")
    page.get_by_role("button", name="Forget token").click()
    playwright.expect(dialog).to_contain_text(refused)
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#list-problem [role=alert]")).to_contain_text(refused)
    assert page.evaluate("sessionStorage.length") == 0


@needs_browser
def test_who_gives_no_token_is_not_asked_again_for_what_was_under_way(
    guarded: Running, visit: Callable[..., Visit]
) -> None:
    made = visit(guarded, "/")
    made.expected = {401}
    page, held = made.page, []
    page.route("**/v2/repository/index", lambda route: held.append(route))
    with page.expect_request("**/v2/repository/index"):
        page.reload()
    dialog = page.get_by_role("dialog", name="This server needs a token")
    playwright.expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    playwright.expect(dialog).to_be_hidden()
    for route in held:
        route.continue_()
    playwright.expect(page.locator("#list-problem [role=alert]")).to_contain_text("This server needs a token")
    playwright.expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Try again").click()
    playwright.expect(dialog).to_be_visible()


@needs_browser
def test_keyboard_alone(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/").page
    page.locator("#model-title").wait_for()
    keys = page.keyboard

    def tab_to(name: str) -> None:
        """Presses Tab until the element with this text or label has the focus, which must be seen."""
        for _ in range(60):
            keys.press("Tab")
            script = """() => {
                const at = document.activeElement;
                const { outlineStyle, outlineWidth } = getComputedStyle(at);
                return [at.labels?.[0]?.textContent ?? at.textContent, outlineStyle, parseFloat(outlineWidth)];
            }"""
            text, style, width = page.evaluate(script)
            assert style != "none", f"the focus on {text!r} is not seen"
            assert width >= 2
            if text.startswith(name):
                return
        raise AssertionError(f"Tab does not come to {name!r}")

    tab_to("Skip to the model")
    tab_to("Search models")
    keys.type("co2")
    playwright.expect(page.locator("#model-count")).to_have_text("1 of 30 models")
    tab_to("co2")
    keys.press("Enter")
    playwright.expect(page.locator("#model-title")).to_have_text("co2")
    playwright.expect(page.locator("#model-title")).to_be_focused()
    tab_to("Series of co2")
    keys.type("1 2 3 4 3 2 1")
    tab_to("Forecast")
    keys.press("Enter")
    playwright.expect(page.locator(".attempt [role=status].lead")).to_contain_text("Forecast of 4 steps")
    tab_to("Forecast as a table")
    keys.press("Enter")
    playwright.expect(page.get_by_role("group", name="Forecast as a table")).to_be_visible()


@needs_browser
def test_stream(server: Running, visit: Callable[..., Visit]) -> None:
    page = visit(server, "/#/animals").page
    sent: list[Any] = []
    answered: list[Any] = []

    def listen(socket: Any) -> None:
        socket.on("framesent", lambda frame: sent.append(json.loads(frame)))
        socket.on("framereceived", lambda frame: answered.append(json.loads(frame)))

    page.on("websocket", listen)
    page.get_by_label("Per second").fill("50")
    page.get_by_role("button", name="Start").click()
    playwright.expect(page.locator(".stream .lead")).to_contain_text(re.compile(r"Step \d\d+: "))
    playwright.expect(page.locator(".stream .bars li")).to_have_count(4)
    page.get_by_role("button", name="Stop").click()
    playwright.expect(page.locator(".stream [role=status]")).to_contain_text("Stopped at step ")
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


@pytest.fixture(scope="module")
def hourly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of ``hourly``, three hours at a time by the time of day, and ``sales`` with a promotion and a size."""
    registry = Registry(tmp_path_factory.mktemp("hourly"))

    def publish(name: str, model: Forecaster, features: list[str], **fields: Any) -> None:
        model.fit_scaling([np.random.default_rng(0).normal(5, 3, (60, len(features))).astype(np.float32)])
        report = exported(model.eval(), tmp_path_factory.mktemp("export"))
        known = {"task": "forecast", "signature": report.signature, "features": features, "targets": features[:1]}
        registry.publish(name, report.files, {**known, "horizon": 4, "metrics": METRICS, **fields})

    features = ["load", "calendar_day_sin", "calendar_day_cos"]
    told = {"future": features[1:], "calendar": calendar_periods(["day"]), "frequency": "h"}
    publish("hourly", Forecaster("lem", 3, 4, 4, patch_size=3, future_indices=(1, 2)), features, cell="lem", **told)
    sales = Forecaster("lipschitz", 2, 4, 4, future_indices=(1,), static_size=1)
    stored = {"future": ["promo"], "static": ["size"], "frequency": "D", "preprocessing": {"stamps": "unix-s"}}
    publish("sales", sales, ["y", "promo"], cell="lipschitz", **stored)
    yield from serve(create_app(Settings(registry=registry.root)))


def forecasts(page: Any) -> list[dict[str, Any]]:
    """The bodies of the forecasts that the page asks for from now on."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if "forecast" in request.url else None)
    return bodies


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
        ("2024-02-31", None, None),
        ("2024-03-05 24:00", None, None),
        ("5", None, None),
    ]:
        assert page.evaluate(script, [text, stamps]) == time, text


@needs_browser
def test_stream_of_patches_in_a_calendar(hourly: Running, visit: Callable[..., Visit]) -> None:
    page = visit(hourly, "/#/hourly").page
    sent: list[Any] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))))
    page.get_by_label("Per second").fill("50")
    page.get_by_role("button", name="Start").click()
    playwright.expect(page.locator(".stream [role=status]")).to_contain_text(
        "50 steps of 3 samples per second. Their times are generated, starting at 2024-01-01 00:00."
    )
    playwright.expect(page.locator(".stream .lead")).to_contain_text(re.compile(r"Step \d\d+\."))
    page.get_by_role("button", name="Stop").click()
    playwright.expect(page.locator(".stream [role=alert]")).to_be_empty()
    assert [frame["time"] for frame in sent[:3]] == [f"2024-01-01T0{hour}:00:00.000Z" for hour in (0, 3, 6)]
    assert {len(frame["values"]) for frame in sent} == {3}


@needs_browser
def test_a_stream_shows_the_adaptive_intervals_of_its_server(registry: Registry, visit: Callable[..., Visit]) -> None:
    for server in serve(create_app(Settings(registry=registry.root, models=("co2",), adaptive_intervals=True))):
        page = visit(server, "/#/co2").page
        page.get_by_label("Per second").fill("50")
        page.get_by_role("button", name="Start").click()
        playwright.expect(page.locator(".stream")).to_contain_text(re.compile(r"adaptive quantiles 0\.\d+ to 0\.\d+"))
        page.get_by_role("button", name="Stop").click()
        page.close()


@needs_browser
def test_load_is_polled_while_the_page_is_seen(server: Running, visit: Callable[..., Visit]) -> None:
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
    playwright.expect(tile).to_have_text(re.compile(r"^[1-9][\d.]* /s$"))
    playwright.expect(page.locator(".tiles div", has_text="p50").locator("dd")).to_have_text(re.compile(r"(s|ms)$"))
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    page.evaluate(hide % "true" + "document.dispatchEvent(new Event('visibilitychange'))")
    assert polls(6) == 0
    page.evaluate(hide % "false" + "document.dispatchEvent(new Event('visibilitychange'))")
    assert polls(2) >= 1


@needs_browser
def test_thirty_models_narrow_and_wide(server: Running, visit: Callable[..., Visit]) -> None:
    for width, scheme in ((360, "dark"), (1280, "light")):
        page = visit(server, "/#/flow", width=width, scheme=scheme).page
        playwright.expect(page.locator("#model-count")).to_have_text("30 models")
        page.get_by_role("button", name="Fill in").click()
        page.get_by_role("button", name="Forecast").click()
        page.locator(".attempt .legend").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        page.get_by_label("Search models").fill("sensor 1")
        shown = page.locator("#model-list li:not([hidden]) .name").all_inner_texts()
        assert shown == [f"sensor-{number:02}" for number in range(26) if "1" in f"{number:02}"]


PAIRS = [
    *(("text", ground) for ground in ("ground", "surface", "sunken", "tint")),
    *(("muted", ground) for ground in ("ground", "surface", "sunken", "tint", "danger-tint")),
    *(("accent", ground) for ground in ("ground", "surface", "tint", "on-accent")),
    *(("danger", ground) for ground in ("surface", "danger-tint")),
]
DRAWN = ["accent", "edge", "series-1", "series-2", "series-3", "series-4", "series-5"]


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(server: Running, visit: Callable[..., Visit], scheme: str) -> None:
    page = visit(server, "/docs", scheme=scheme).page
    names = sorted({name for pair in PAIRS for name in pair} | set(DRAWN))
    script = """(names) => {
        const style = getComputedStyle(document.documentElement);
        return names.map((name) => style.getPropertyValue("--" + name).trim());
    }"""
    colours = dict(zip(names, page.evaluate(script, names), strict=True))

    def light(name: str) -> float:
        """Relative luminance, by WCAG 2."""
        parts = [int(colours[name][place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(one: str, other: str) -> float:
        low, high = sorted((light(one), light(other)))
        return (high + 0.05) / (low + 0.05)

    assert (light("ground") > 0.5) == (scheme == "light")
    assert [pair for pair in PAIRS if contrast(*pair) < 4.5] == []
    assert [name for name in DRAWN if contrast(name, "surface") < 3] == []


@needs_browser
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_docs_show_every_route(server: Running, visit: Callable[..., Visit]) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    wanted = sorted((method.upper(), path) for path, methods in document["paths"].items() for method in methods)
    page = visit(server, "/docs").page
    page.locator(".route").first.wait_for()
    heads = [text.split() for text in page.locator(".route h3").all_inner_texts()]
    assert sorted((method, path) for method, path in heads) == wanted
    section = page.get_by_role("region", name="POST /v1/timeseries/classify")
    playwright.expect(section.get_by_role("group", name="Body")).to_contain_text("options")
    command = section.locator("pre").inner_text()
    assert f"{server.url}/v1/timeseries/classify" in command
    ran = subprocess.run(
        ["bash", "-c", command.replace('"digits"', '"animals"').replace('"top_k":3', '"top_k":1')],
        capture_output=True,
        timeout=30,
    )
    assert json.loads(ran.stdout)["outputs"][0]["content"][0]["label"] in ("cat", "dog", "owl", "rat")
    page.get_by_label("Search routes").fill("forecast")
    playwright.expect(page.locator("#route-count")).to_have_text("1 route")
