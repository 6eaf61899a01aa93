"""The commands by name, each imported when it is used: the list of commands waits for none of them.

Other packages add commands by entry points of the group ``stablernn.commands``, whose objects are Typer apps.
"""

from __future__ import annotations

import importlib
import inspect
from collections import UserDict
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from stablernn_cli.errors import UsageError

MAIN_JOB = "The main job"
LOOKING = "Looking around"


class Entry(NamedTuple):
    """A command as the list of commands shows it."""

    name: str
    panel: str
    summary: str
    """First line of its help, which its docstring repeats; a test compares them."""
    module: str = ""
    """Module of this package."""
    attribute: str = "app"
    """Function of the command, or Typer app of a group of commands."""
    package: str = ""
    """Package that has the command, if it is not this one."""

    @property
    def is_installed(self) -> bool:
        return not self.package or self.name in _entry_points()

    def load(self) -> Any:
        """Return the command, with its options and its help.

        Raises:
            UsageError: If its package is not installed.
        """
        if not self.is_installed:
            raise UsageError(
                f"The command '{self.name}' is in the package '{self.package}', which is not installed. Install it: "
                f"pip install ./{self.package.removeprefix('stablernn-')} in the checkout."
            )
        if self.package:
            target = _entry_points()[self.name].load()
        else:
            target = getattr(importlib.import_module(f"{__name__}.{self.module}"), self.attribute)
        app = target
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(self.name)(target)
        _format_help_texts(app)
        command = typer.main.get_command(app)
        command.name = self.name
        _pair_flags(command)
        return command


ENTRIES = (
    Entry("train", MAIN_JOB, "Train a model", "train", "train"),
    Entry("tune", MAIN_JOB, "Search settings over ranges", "tune", "tune"),
    Entry("eval", MAIN_JOB, "Score a run or a registry version", "evaluate", "evaluate"),
    Entry("export", MAIN_JOB, "Export a run into the registry", "export", "export"),
    Entry("certify", MAIN_JOB, "Compute a model's stability certificate", "certify", "certify"),
    Entry("predict", MAIN_JOB, "Classify or forecast a file, or a folder of files", "predict", "predict"),
    Entry("plot", MAIN_JOB, "Draw a forecast, scores or the curves of a run", "plot", "plot"),
    Entry("serve", MAIN_JOB, "Serve models over REST", "serve", "serve"),
    Entry("bridge", MAIN_JOB, "Answer messages of a broker", "bridge"),
    Entry("stream", MAIN_JOB, "Move streams between checkpoints and servers", "stream"),
    Entry("dockerize", MAIN_JOB, "Write the build context of a container image", "dockerize", "dockerize"),
    Entry("compare", LOOKING, "Compare cells on data sets", "compare", "compare"),
    Entry("bench", LOOKING, "Time a cell's training and inference next to peers", "bench", "bench"),
    Entry("doctor", LOOKING, "Check versions, devices and folders", "doctor", "doctor"),
    Entry("quickstart", LOOKING, "Go from data to a served model", "quickstart", "quickstart"),
    Entry("registry", MAIN_JOB, "Manage trained models: versions, aliases, integrity", "registry"),
    Entry("runs", LOOKING, "List and compare training runs", "runs"),
    Entry("cells", LOOKING, "Look up the cells that can be trained", "cells"),
    Entry("data", LOOKING, "Look up named datasets, check data", "data"),
    Entry("reproduce", LOOKING, "Train published tables again", package="stablernn-papers"),
)


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the commands of other packages by name; none is imported."""
    return {point.name: point for point in entry_points(group="stablernn.commands")}


class CommandGroup(TyperGroup):
    """The group of all commands, each of which is imported when it is looked up."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _LoadedCommands({entry.name: entry for entry in ENTRIES})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # The page shows names and summaries, for which the commands themselves are not needed.
        summaries = [
            TyperCommand(entry.name, help=entry.summary, rich_help_panel=entry.panel)
            for entry in ENTRIES
            if entry.is_installed
        ]
        TyperGroup(name=self.name, commands=summaries, help=self.help, params=self.params).format_help(ctx, formatter)


class _LoadedCommands(UserDict[str, Any]):
    """Commands by name, loaded from their entries when they are first read."""

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if isinstance(command, Entry):
            command = self.data[name] = command.load()
        return command


def _pair_flags(command: Any) -> None:
    """Give each flag the one that undoes it, ``--x/--no-x``, and show neither a type nor a default of it."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar, parameter.show_default = "", False
            (name,) = parameter.opts if len(parameter.opts) == 1 else (None,)
            if name is not None and not parameter.secondary_opts:
                is_negative = name.startswith("--no-")
                parameter.secondary_opts = [name.replace("--no-", "--") if is_negative else f"--no-{name[2:]}"]
    for child in getattr(command, "commands", {}).values():
        _pair_flags(child)


def _format_help_texts(app: typer.Typer) -> None:
    """Put each paragraph of the commands' help on one line: Typer would print the line breaks of the docstrings."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.help = _help_text(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _format_help_texts(group.typer_instance)


def _help_text(function: Callable[..., Any]) -> str:
    """Return a command's docstring with each paragraph on one line, so that the help fits any width of terminal."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
