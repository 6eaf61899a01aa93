"""Bearer tokens that the page asks for."""

from __future__ import annotations

import re

import httpx

from page_helpers import ASCII_TOKEN, TOKEN, Visits, expect, press, said
from server_helpers import Running


def test_token(guarded: Running, visit: Visits) -> None:
    made = visit(guarded, "/")
    made.expected = {401}
    page = made.page
    dialog = page.get_by_role("dialog", name="This server needs a token")
    refused = httpx.get(f"{guarded.url}/v2").json()["error"]
    expect(dialog).to_contain_text(refused)
    expect(page.get_by_label("Bearer token")).to_be_focused()
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    unknown = httpx.get(f"{guarded.url}/v2", headers={"Authorization": "Bearer nobody"}).json()["error"]
    expect(dialog).to_contain_text(unknown)
    page.keyboard.type(ASCII_TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#model-title")).to_have_text("animals")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert not [address for address in made.addresses if ASCII_TOKEN in address]
    press(page, "Fill in")
    press(page, "Classify")
    expect(said(page)).to_contain_text("Class ")
    press(page, "Start")
    expect(page.locator(".stream .lead")).to_contain_text(re.compile(r"Step [1-9]\d*: "))
    press(page, "Stop")
    page.reload()
    expect(page.locator("#model-title")).to_have_text("animals")
    press(page, "Forget token")
    expect(dialog).to_contain_text(refused)
    page.keyboard.press("Escape")
    expect(page.locator("#list-problem [role=alert]")).to_contain_text(refused)
    assert page.evaluate("sessionStorage.length") == 0


def test_who_gives_no_token_is_not_asked_again_for_what_was_under_way(guarded: Running, visit: Visits) -> None:
    made = visit(guarded, "/")
    made.expected = {401}
    page, held = made.page, []
    page.route("**/v2/repository/index", lambda route: held.append(route))
    with page.expect_request("**/v2/repository/index"):
        page.reload()
    dialog = page.get_by_role("dialog", name="This server needs a token")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    for route in held:
        route.continue_()
    expect(page.locator("#list-problem [role=alert]")).to_contain_text("This server needs a token")
    expect(dialog).to_be_hidden()
    press(page, "Try again")
    expect(dialog).to_be_visible()
