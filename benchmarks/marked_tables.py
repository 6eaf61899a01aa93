"""Tables between markers of a page that is otherwise written by hand: ``<!-- name -->`` to ``<!-- /name -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def replace_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables of a page between their markers.

    Args:
        page: The page, a Markdown file.
        tables: Name in the markers -> the new table.

    Raises:
        SystemExit: If the page does not have the markers of a table.
    """
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not block.search(text):
            raise SystemExit(f"{page} has no place for the table '{name}'.")
        text = block.sub(lambda match, table=table: match[1] + table + "\n" + match[2], text)
    page.write_text(text, encoding="utf-8")
