"""Parts of an HTML page. Every text is escaped here and nowhere else: callers pass plain text or :class:`Markup`."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence

from stablernn_registry.documents.rounding import format_lower, format_upper

NOT_PROVED = "not proved"


class Markup(str):
    """HTML whose texts are escaped already."""

    __slots__ = ()


class NumberText(str):
    """A number that is text already, and is laid out as a number."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Return a value as HTML: markup as it is, numbers formatted, anything else as escaped text."""
    return value if isinstance(value, Markup) else Markup(html.escape(plain_text(value)))


def plain_text(value: object) -> str:
    """Return a value as text for people; None is a dash."""
    if value is None:
        return "–"
    # Before int, of which bool is a kind.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    # Rules of a policy, and whatever else another program may have stored.
    return json.dumps(value, ensure_ascii=False)


def upper_bound(value: object, digits: int = 6) -> object:
    """Return an upper bound as text that is rounded up; whole numbers, and None, as they are."""
    return NumberText(format_upper(value, digits)) if isinstance(value, float) else value


def lower_bound(value: object, digits: int = 6) -> object:
    """Return a lower bound as text that is rounded down; whole numbers, and None, as they are."""
    return NumberText(format_lower(value, digits)) if isinstance(value, float) else value


def element(tag: str, *content: object, **attributes: str) -> Markup:
    """Return an element; ``class_`` is the attribute ``class``."""
    # Attributes are quoted, so that escaped quotes cannot end them.
    names = "".join(f' {name.rstrip("_")}="{html.escape(value)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{names}>{join(*content)}</{tag}>")


def join(*content: object) -> Markup:
    """Return several contents one after the other."""
    return Markup("".join(map(escape, content)))


def badge(kind: str) -> Markup:
    """Return the label ``PROVED`` or ``OBSERVED``, which differ in text, border and shade."""
    return element("span", kind.upper(), class_=f"badge {kind}")


def table(columns: Sequence[object], rows: Sequence[Sequence[object]], class_: str = "") -> Markup:
    """Return a table whose header is repeated on every printed page."""
    # Browsers repeat a thead on every page of a print.
    head = element("thead", element("tr", *(element("th", column) for column in columns)))
    body = element("tbody", *(element("tr", *map(_cell, row)) for row in rows))
    return element("table", head, body, class_=class_)


def _cell(value: object) -> Markup:
    # Numbers are not broken over lines.
    is_number = isinstance(value, int | float | NumberText) and not isinstance(value, bool)
    return element("td", value, class_="number") if is_number else element("td", value)


def facts(rows: Mapping[str, object]) -> Markup:
    """Return names and values, one pair a row; pairs without a value are left out."""
    # An empty cell would look like a fact that was forgotten.
    shown = [(name, value) for name, value in rows.items() if value is not None and value != ""]
    body = element("tbody", *(element("tr", element("th", name), element("td", value)) for name, value in shown))
    return element("table", body, class_="facts")


def paragraphs(text: str) -> Markup:
    """Return text with its blank lines as the bounds of paragraphs."""
    return join(*(element("p", part) for part in text.split("\n\n") if part.strip()))


def bullets(texts: Sequence[object]) -> Markup:
    """Return a list."""
    return element("ul", *(element("li", text) for text in texts))
