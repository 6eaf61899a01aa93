"""The page in a browser: tabs, versions that it shows, and what tests read from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from server_helpers import Published
from stablernn_registry import Registry

CHROMIUM = Path("/usr/bin/chromium")
MARKUP = ["<img src=x onerror=alert(1)>", "<b>bold</b>", "&amp;", "'\"`"]
TOKEN = "ünïcode-tôken-of-32-characters-or-more"
ASCII_TOKEN = "infer-token-0123456789abcdef0123456789"
ADMIN_TOKEN = "admin-token-0123456789abcdef0123456789"
CERTIFICATE = {
    "in_words": ["A wrong value does little.", "It is forgotten."],
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


Visits = Callable[..., Visit]
"""Opens a tab: server, path and options of the fixture ``visit``."""


def expect(target: Any) -> Any:
    """Assertions of Playwright, which wait."""
    return pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect(target)


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name).click()


def said(page: Any) -> Any:
    """The sentence above an answer."""
    return page.locator(".attempt [role=status].lead")


def alert(page: Any) -> Any:
    """The error in place of an answer."""
    return page.locator(".attempt [role=alert]")


def numbers_of(cells: Any) -> list[float]:
    """The numbers in cells of a table, which have a real minus and commas between thousands."""
    return [float(text.replace("−", "-").replace(",", "")) for text in cells.all_inner_texts()]


def copy_version(published: Published, registry: Registry, source: str, name: str, **fields: Any) -> None:
    version = published.registry.get(source)
    facts = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    registry.publish(name, {file: version.path(file) for file in version.manifest.files}, {**facts, **fields})


def give_token(page: Any, token: str) -> None:
    page.locator("#token").fill(token)
    page.locator("#token").press("Enter")


def forecasts(page: Any) -> list[dict[str, Any]]:
    """The bodies of the forecasts that the page asks for from now on."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if "forecast" in request.url else None)
    return bodies
