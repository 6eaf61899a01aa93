"""Output of a command: its answer on stdout, notes and progress on stderr."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from stablernn_registry.errors import strip_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Into a pipe or a file no number or path is cut to the width of a terminal.
_PIPED_WIDTH = 200
# Terminals in which rich does not draw a spinner or a bar, so that nothing would be shown at all.
_FIXED_TERMINALS = ("dumb", "unknown")
# More than any table needs.
_UNLIMITED_WIDTH = 100_000


@dataclass
class Globals:
    """Options before the command."""

    debug: bool = False
    quiet: bool = False


class Output:
    """Printer of a command's answer, notes and progress.

    Args:
        as_json: True if the answer is one JSON document instead of tables and text.
        quiet: True to omit notes and progress.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    @classmethod
    def of(cls, context: typer.Context, as_json: bool) -> Output:
        """Return the output of a command, from its ``--json`` and the global options."""
        options = context.find_object(Globals) or Globals()
        return cls(as_json=as_json, quiet=options.quiet)

    @property
    def is_live(self) -> bool:
        """True if progress may be redrawn in place: stderr is a terminal that can move its cursor."""
        return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in _FIXED_TERMINALS and not self.quiet

    def note(self, text: str) -> None:
        """Print a line on stderr, unless quiet."""
        if not self.quiet:
            print(strip_controls(text), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, unless ``--quiet`` asks for errors only."""
        self.note(f"Warning: {text}")

    def document(self, value: object) -> None:
        """Print one JSON document on stdout. NaN and infinities become null."""
        # JSON escapes the other control characters itself.
        print(strip_controls(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)), flush=True)

    def answer(self, document: Any, show: Callable[..., object], *facts: object) -> None:
        """Print a document, as JSON or by a function that gets this output, the document and further facts."""
        if self.as_json:
            self.document(document)
        else:
            show(self, document, *facts)

    def text(self, text: str = "") -> None:
        """Print a line on stdout."""
        print(strip_controls(text), flush=True)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        title: str | None = None,
        optional: Sequence[str] = (),
    ) -> list[str]:
        """Print a table on stdout; columns that hold only numbers are aligned right.

        Args:
            columns: Names of the columns.
            rows: Values of the cells.
            title: Line above the table.
            optional: Columns to leave out, in this order, until the others fit into the terminal.

        Returns:
            The columns that were left out.
        """
        # rich is imported where a table is printed: `--json` and `--help` do without it.
        from rich.measure import Measurement

        console, left_out = self._console(), 0
        grid = _grid(columns, rows, title)
        # A table is measured within the width of its options, by default that of the terminal.
        unlimited = console.options.update(max_width=_UNLIMITED_WIDTH)
        while left_out < len(optional) and Measurement.get(console, unlimited, grid).maximum > console.width:
            left_out += 1
            positions = [index for index, column in enumerate(columns) if column not in optional[:left_out]]
            grid = _grid(
                [columns[index] for index in positions], [[row[index] for index in positions] for row in rows], title
            )
        console.print(grid)
        return list(optional[:left_out])

    def facts(self, facts: Mapping[str, object], *, title: str | None = None) -> None:
        """Print names and values, one pair a line, on stdout."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in facts.items():
            grid.add_row(_cell(name), _cell(value))
        console = self._console()
        if title:
            console.print(Text(strip_controls(title), style="bold"))
        console.print(grid)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Print what is being done, and the stages of it that the library logs; with a spinner in a terminal."""
        if not self.is_live:
            self.note(text)
            with library_stages(self.note):
                yield
            return
        from rich.console import Console
        from rich.text import Text

        # Text, because rich would take brackets in a path for styles.
        with (
            Console(stderr=True).status(Text(text)) as spinner,
            library_stages(lambda stage: spinner.update(Text(stage))),
        ):
            yield

    def _console(self) -> Console:
        from rich.console import Console

        return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


@contextmanager
def library_stages(show: Callable[[str], object]) -> Iterator[None]:
    """Call ``show`` with each stage of long work that the library logs to ``stablernn.progress``."""
    logger = logging.getLogger("stablernn.progress")
    before = logger.handlers, logger.level, logger.propagate
    # Alone: of two that are nested, the inner one shows the stage.
    logger.handlers = [TextHandler(lambda text, _: show(text))]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers, level, logger.propagate = before
        # By its method, which clears what the logger remembers of levels.
        logger.setLevel(level)


class TextHandler(logging.Handler):
    """A handler that passes log records on as their text and whether they are warnings."""

    def __init__(self, show: Callable[[str, bool], object]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage(), record.levelno >= logging.WARNING)


def plain(value: object) -> Any:
    """Convert ``value`` to the types of JSON: tuples become lists, paths text, numpy scalars numbers, NaN None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(element) for key, element in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(element) for element in value]
    # Scalars of numpy have `item`, which gives the Python number; importing numpy here would slow down every command.
    to_python = getattr(value, "item", None)
    if to_python is None:
        return str(value)
    # The text of a float32 is the shortest one that reads back to it, as in CSV and over HTTP.
    return plain(float(str(value)) if str(getattr(value, "dtype", "")) == "float32" else to_python())


def figure(value: object) -> str:
    """Format a number with four significant digits; integers are printed whole."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def count_of(number: int, noun: str) -> str:
    """Return a count with its noun, ``1 epoch`` or ``1,200 epochs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_names(names: Sequence[str], at_most: int = 12) -> str:
    """Join names with commas; a long list is cut and its length added."""
    text = ", ".join(names[:at_most])
    return f"{text}, ... ({len(names)})" if len(names) > at_most else text


def drop_none(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that have a value."""
    return {name: value for name, value in facts.items() if value is not None}


def _grid(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None) -> Table:
    from rich import box
    from rich.table import Table

    grid = Table(
        title=title and strip_controls(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        grid.add_column(strip_controls(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    return grid


def _cell(value: object) -> Any:
    # Text and not a markup string: rich would take brackets in a path or a label for styles.
    from rich.text import Text

    return Text(strip_controls(figure(value)))


def show_metrics(output: Output, metrics: Mapping[str, Any]) -> None:
    """Print metrics with a column for each split; those of baselines are listed below with their name in front."""
    columns = {split: _flatten(scores) for split, scores in metrics.items() if isinstance(scores, Mapping)}
    # The union in order of appearance: not every split has every metric.
    names = list(dict.fromkeys(name for scores in columns.values() for name in scores))
    if names:
        output.text()
        output.table(
            ("metric", *columns), [[name, *(scores.get(name) for scores in columns.values())] for name in names]
        )


def scalar_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of the model itself; those of a baseline are a mapping under its name."""
    return {name: value for name, value in metrics.items() if not isinstance(value, Mapping)}


def data_notes(notes: Mapping[str, Any]) -> str | None:
    """Return a line about the data that the scores depend on, or None if there is nothing to note."""
    # Files of a named dataset that are missing, and those without a checksum to verify.
    labels = {"partial": "only in part, missing or short:", "unchecked": "with no published checksum to compare with:"}
    parts = [f"{labels[key]} {', '.join(notes[key])}" for key in labels if key in notes]
    if "read_as" in notes:
        parts.append(f"read as {notes['read_as']}")
    if "counts" in notes:
        from stablernn.data.messages import format_counts

        parts.append(format_counts(notes["counts"]))
    return f"Data: {'; '.join(parts)}." if parts else None


def _flatten(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name} ")
        else:
            flat[prefix + name] = value
    return flat
