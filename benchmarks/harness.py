"""What the benchmarks share: the command and the machine of a run, results as JSON, and tables of pages.

Pages are written by hand; their tables stand between markers, ``<!-- name -->`` to ``<!-- /name -->``.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


def given_command(placeholders: Mapping[str, str] | None = None) -> str:
    """Return the command of this process as it was given.

    Args:
        placeholders: Option -> the word that stands for its value, which is a path of this machine.
    """
    script, *words = sys.argv
    shown = [f"benchmarks/{Path(script).name}"]
    for option, word in zip(["", *words], words, strict=False):
        name, equals, _ = word.partition("=")
        if placeholders and option in placeholders:
            word = placeholders[option]
        elif placeholders and equals and name in placeholders:
            word = f"{name}={placeholders[name]}"
        shown.append(word)
    return "python " + shlex.join(shown)


def processor() -> str:
    """Return the name of the CPU, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def read_results(path: Path) -> Row:
    """Return stored results; empty if there are none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write_results(path: Path, results: Row) -> None:
    """Store results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Return a value with four significant digits, which is more than repeats; what is infinite becomes None."""
    if isinstance(value, dict):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return value if not isinstance(value, float) else float(f"{value:.4g}") if abs(value) < 1e300 else None


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median of several rounds with the smallest and the largest value behind it."""
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def facts(section: Mapping[str, Any], left_out: Sequence[str] = ("conditions", "examples", "ended", "refusal")) -> str:
    """Return a table of the single figures of a section of results, under the names that they have there."""

    def leaves(part: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for key, value in part.items():
            name = f"{prefix}{key.replace('_', ' ')}"
            if isinstance(value, Mapping) and key not in left_out:
                yield from leaves(value, f"{name}: ")
            elif isinstance(value, bool):
                yield name, "yes" if value else "no"
            elif isinstance(value, float | int | str) and key not in left_out:
                yield (
                    name,
                    f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value,
                )

    return table(("", ""), leaves(section, ""))


def replace_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables of a page between their markers.

    Raises:
        SystemExit: If the page does not have the markers of a table.
    """
    text = page.read_text(encoding="utf-8")
    for name, content in tables.items():
        block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
        if not block.search(text):
            raise SystemExit(f"{page} has no place for the table '{name}'.")
        text = block.sub(lambda match, content=content: match[1] + content + "\n" + match[2], text)
    page.write_text(text, encoding="utf-8")
