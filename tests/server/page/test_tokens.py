"""Bearer tokens that the page asks for."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from page_helpers import ASCII_TOKEN, TOKEN, Visit, needs_browser
from server_helpers import Running

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


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
