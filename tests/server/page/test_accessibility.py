"""The page by keyboard alone, and the contrast of its colors."""

from __future__ import annotations

import pytest

from page_helpers import Visits, expect, said
from server_helpers import Running


def test_keyboard_alone(server: Running, visit: Visits) -> None:
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
    expect(page.locator("#model-count")).to_have_text("1 of 30 models")
    tab_to("co2")
    keys.press("Enter")
    expect(page.locator("#model-title")).to_have_text("co2")
    expect(page.locator("#model-title")).to_be_focused()
    tab_to("Series of co2")
    keys.type("1 2 3 4 3 2 1")
    tab_to("Forecast")
    keys.press("Enter")
    expect(said(page)).to_contain_text("Forecast of 4 steps")
    tab_to("Forecast as a table")
    keys.press("Enter")
    expect(page.get_by_role("group", name="Forecast as a table")).to_be_visible()


PAIRS = [
    *(("text", ground) for ground in ("ground", "surface", "sunken", "tint")),
    *(("muted", ground) for ground in ("ground", "surface", "sunken", "tint", "danger-tint")),
    *(("accent", ground) for ground in ("ground", "surface", "tint", "on-accent")),
    *(("danger", ground) for ground in ("surface", "danger-tint")),
]
DRAWN = ["accent", "edge", "series-1", "series-2", "series-3", "series-4", "series-5"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(server: Running, visit: Visits, scheme: str) -> None:
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
