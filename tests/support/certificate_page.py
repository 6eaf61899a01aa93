"""The certificate document as a test reads it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from cli_helpers import Workplace
from stablernn_cli.report.document import compose_report
from stablernn_cli.report.page import write_report
from stablernn_cli.targets import certify_target

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


def read_document(workplace: Workplace, target: str, server: str | None = None) -> tuple[Page, dict[str, Any]]:
    """The document of a target in both forms, as ``certify --report`` writes them."""
    with workplace.inside():
        report = compose_report(certify_target(target), server)
        for name in ("document.html", "document.json"):
            write_report(Path(name), report)
    page = Page(workplace.path("document.html").read_text(encoding="utf-8"))
    return page, json.loads(workplace.path("document.json").read_text(encoding="utf-8"))
