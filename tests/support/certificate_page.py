"""The certificate document as a test reads it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from cli_helpers import Workplace

_TAGS = """
html head meta title style body section div h1 h2 h3 p strong br span table thead tbody tr th td ul ol li code
figure img figcaption
"""
TAGS = set(_TAGS.split())


class Page(HTMLParser):
    """The tags, the attributes and the text of a page; fails on a tag that is closed in the wrong place."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self._texts: list[str] = []
        self._open: list[str] = []
        self.feed(content)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self._texts.append(data)


def read_document(workplace: Workplace, target: str, *options: object) -> tuple[Page, dict[str, Any]]:
    """The document of a target in both forms, but for its time."""
    for name in ("document.html", "document.json"):
        workplace.ok("-q", "certify", target, "--report", name, *options)
    page = Page(workplace.path("document.html").read_text(encoding="utf-8"))
    return page, json.loads(workplace.path("document.json").read_text(encoding="utf-8"))
