"""Help: complete, current, and there at once."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from cli_helpers import Workplace
from stablernn_cli.commands import ENTRIES
from stablernn_cli.main import app
from stablernn_papers.tables import TABLES

HEAVY = ("torch", "onnxruntime", "polars", "matplotlib", "fastapi", "uvicorn", "numpy", "onnx", "scipy", "filelock")
COMMANDS = {
    "train",
    "tune",
    "eval",
    "certify",
    "export",
    "plot",
    "predict",
    "serve",
    "bridge mqtt",
    "stream export",
    "stream import",
    "dockerize",
    "registry list",
    "registry show",
    "registry alias",
    "registry copy",
    "registry rollback",
    "registry log",
    "registry verify",
    "registry policy show",
    "registry policy set",
    "runs list",
    "runs show",
    "cells list",
    "cells show",
    "data check",
    "data list",
    "data fetch",
    "compare",
    "bench",
    "doctor",
    "quickstart",
    "reproduce list",
    *(f"reproduce {key}" for key in TABLES),
}


def leaves(node: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    node = node or typer.main.get_command(app)
    children = getattr(node, "commands", {})
    if not children:
        yield path, node
    for name, child in children.items():
        yield from leaves(child, f"{path} {name}".strip())


LEAVES = dict(leaves())


def test_the_list_of_commands_shows_the_first_line_of_each_help() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    summaries = {name: command.help.splitlines()[0] for name, command in commands.items()}
    assert summaries == {entry.name: entry.summary for entry in ENTRIES}


def test_flags_are_shown_with_their_opposite_and_without_a_type(empty: Workplace) -> None:
    for command in LEAVES.values():
        flags = [parameter for parameter in command.params if getattr(parameter, "is_flag", False)]
        assert all(flag.secondary_opts and flag.metavar == "" for flag in flags), command.name
    assert empty("cells list --json --no-json").out == empty("cells list").out


def test_help_and_lists_load_nothing_heavy(empty: Workplace) -> None:
    """One process runs all that must load neither; the direction of a metric in a policy needs more, and no torch."""
    lists = ("cells list", "cells show gru", "data list", "reproduce list", "runs list")
    policy = "registry policy set --metric mae --worse-by 0 --why w --json"
    code = f"""
import sys
from stablernn_cli.main import run

def loaded(*names):
    return [name for name in names if name in sys.modules]

codes = [run(["--help"])]
commands = [name for name in sys.modules if name.startswith("stablernn_cli.commands.")]
codes += [run(words.split()) for words in ("--version", "train --help", "registry --help")]
codes += [run(["-q", *words.split()]) for words in {lists}]
print(codes, commands, loaded(*{HEAVY}), file=sys.stderr)
print(run({policy.split()}), loaded("torch"), file=sys.stderr)
"""
    environment = os.environ | empty.environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stderr.splitlines() == [f"{[0] * 9} [] []", "0 []"]
    assert '"better": "lower"' in done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_explains_itself(name: str) -> None:
    text = LEAVES[name].help
    first, *rest = text.split("\n\n")
    assert len(first) < 60, first
    assert first[0].isupper(), first
    assert not first.endswith("."), first
    example = rest[-1]
    assert example.startswith(f"Example: stablernn {name}"), example
    for parameter in LEAVES[name].params:
        assert parameter.help, parameter.name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_example_of_a_command_can_be_parsed(name: str, empty: Workplace) -> None:
    words = shlex.split(LEAVES[name].help.rsplit("Example: stablernn ", 1)[1])
    node: Any = typer.main.get_command(app)
    while words and words[0] in getattr(node, "commands", {}):
        node = node.commands[words.pop(0)]
    assert node.make_context(name, words).params


@pytest.mark.parametrize("name", sorted(COMMANDS - {"serve"}))
def test_every_command_takes_json(name: str) -> None:
    assert "--json" in [option for parameter in LEAVES[name].params for option in parameter.opts]


def test_no_pair_of_flags_takes_the_last_of_two_silently() -> None:
    """A pair such as ``--certified/--free`` must be repeatable, so that ``takes_settings`` sees both; a flag with its
    ``--no-`` is on or off, as the last of them says."""
    parameters = [parameter for command in LEAVES.values() for parameter in command.params]
    pairs = [
        parameter
        for parameter in parameters
        if parameter.secondary_opts and "--no-" not in f"{parameter.opts[0]} {parameter.secondary_opts[0]}"
    ]
    assert [parameter.name for parameter in pairs] == ["certified"]
    assert all(parameter.multiple for parameter in pairs)
