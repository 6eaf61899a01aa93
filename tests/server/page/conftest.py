"""A real server, and a real browser that shows its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from exports import exported
from page_helpers import ASCII_TOKEN, BOUNDED, CERTIFICATE, CHROMIUM, MARKUP, METRICS, WITHDRAWN, Visit, copy_version
from server_helpers import Published, Running, serve
from stablernn import Forecaster
from stablernn.data.forecasting import calendar_periods
from stablernn_registry import Registry
from stablernn_server import Settings, create_app

QUICK = {"test_classification"}
"""The one quick test in a browser."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests in a browser as slow."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()) and getattr(item, "originalname", "") not in QUICK:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def registry(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Thirty models: those of all tests, one whose labels are markup, and copies of it."""
    registry = Registry(tmp_path_factory.mktemp("page"))

    for source, name in (("animals:1", "animals"), ("animals:2", "animals"), ("flow:1", "flow"), ("co2:1", "co2")):
        copy_version(published, registry, source, name)
    copy_version(published, registry, "animals:2", "animals", lineage={"note": "never served"})
    registry.set_alias("animals", "production", 1)
    facts = {"labels": MARKUP, "certificate": CERTIFICATE, "metrics": METRICS}
    copy_version(published, registry, "animals:1", "markup", **facts)
    for number in range(26):
        certificate = {25: WITHDRAWN, 24: BOUNDED}.get(number)
        copy_version(published, registry, "animals:1", f"sensor-{number:02}", certificate=certificate)
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
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


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
