"""Where everything that a command says goes: its answer to stdout, all else to stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]

# Wide enough that no figure or path is cut where there is no terminal to fit into.
_PIPED_WIDTH = 200


@dataclass
class Globals:
    """The options that stand before the command."""

    debug: bool = False
    quiet: bool = False


class Output:
    """What one command prints.

    Args:
        as_json: Whether the answer is one JSON document instead of tables and text.
        quiet: Whether notes and progress are left out.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    @classmethod
    def of(cls, context: typer.Context, as_json: bool) -> Output:
        """The output of a command, from its ``--json`` and the global options."""
        options = context.find_object(Globals) or Globals()
        return cls(as_json=as_json, quiet=options.quiet)

    @property
    def is_live(self) -> bool:
        """Whether progress may be drawn over itself: somebody watches stderr."""
        return sys.stderr.isatty() and not self.quiet

    def note(self, text: str) -> None:
        """A line on stderr, unless quiet."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, unless ``--quiet`` asks for errors only."""
        self.note(f"Warning: {text}")

    def document(self, value: object) -> None:
        """One JSON document on stdout. Figures that JSON lacks become null."""
        print(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False), flush=True)

    def text(self, text: str = "") -> None:
        """A line on stdout."""
        print(text, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
        """A table on stdout; columns that hold only numbers are aligned right."""
        from rich import box
        from rich.table import Table

        grid = Table(
            title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
        )
        for index, column in enumerate(columns):
            numeric = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
            grid.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            grid.add_row(*(_cell(value) for value in row))
        self._console().print(grid)

    def facts(self, facts: Mapping[str, object], *, title: str | None = None) -> None:
        """Names and values below each other, on stdout."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in facts.items():
            grid.add_row(Text(name), _cell(value))
        console = self._console()
        if title:
            console.print(Text(title, style="bold"))
        console.print(grid)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Says what is being done, with a spinner where somebody watches."""
        if not self.is_live:
            self.note(text)
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield

    def _console(self) -> Console:
        from rich.console import Console

        return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def plain(value: object) -> Any:
    """``value`` in the types of JSON: tuples become lists, paths text, numpy's numbers Python's, NaN None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    item = getattr(value, "item", None)
    if item is None:
        return str(value)
    # The text of a float32 is the shortest one that reads back to it, as in CSV and over HTTP.
    return plain(float(str(value)) if str(getattr(value, "dtype", "")) == "float32" else item())


def figure(value: object) -> str:
    """A number as people read it: four significant digits, whole numbers whole."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def _cell(value: object) -> Any:
    # Text and not markup: brackets in a path or a label are just brackets.
    from rich.text import Text

    return Text(figure(value))
