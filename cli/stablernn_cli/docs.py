"""Writes ``docs/cli.md`` from the app itself: ``python -m stablernn_cli.docs docs/cli.md``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from stablernn_cli.main import app

_HEAD = """# Command line

Written by `python -m stablernn_cli.docs docs/cli.md` from the help texts; do not edit by hand.

Exit codes: 0 done; 1 the work failed or its content is bad; 2 the command line is wrong (an unknown command, option,
cell, dataset or reference); 3 a check said no (`registry verify`, a refused alias); 130 stopped by Ctrl-C. Errors are
one sentence on stderr. With `--json` a command prints one JSON document on stdout and nothing else there; progress and
notes go to stderr.
"""


def render() -> str:
    """The whole page."""
    return _HEAD + "".join(_pages(typer.main.get_command(app), "stablernn"))


def _pages(command: Any, path: str) -> Iterator[str]:
    yield f"\n## `{path}`\n\n"
    yield f"{_help(command)}\n"
    yield from _parameters(command)
    commands: dict[str, Any] = getattr(command, "commands", {})
    if commands:
        yield "\n| command | |\n| --- | --- |\n"
        for name, child in commands.items():
            yield f"| `{path} {name}` | {_help(child).splitlines()[0]} |\n"
    for name, child in commands.items():
        yield from _pages(child, f"{path} {name}")


def _help(command: Any) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    lines = [" ".join(paragraph.split("\n")) for paragraph in paragraphs]
    return "\n\n".join(_example(line) for line in lines)


def _example(line: str) -> str:
    example = line.removeprefix("Example: ")
    return line if example == line else f"    {example}"


def _parameters(command: Any) -> Iterator[str]:
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        yield "\n| option | default | |\n| --- | --- | --- |\n"
        yield from rows


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.display_name_raw
    default = parameter.default
    shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    needed = "required" if parameter.required else shown
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    return f"| `{name}` | {needed} | {text} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
