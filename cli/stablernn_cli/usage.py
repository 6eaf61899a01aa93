"""One sentence for what typer finds wrong in the command line: what was given, what is allowed, where to look."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import typer

GLOBAL = ("-q", "--quiet", "--debug", "--version")


def usage_sentence(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """The sentence for a usage error.

    Args:
        error: What typer raised.
        arguments: The command line, from which a value that could not be read is quoted.
    """
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "stablernn"
    problem = _problem(error, arguments)
    return f"{problem if problem.endswith(('.', '?')) else problem + '.'} See '{command} --help'."


def _problem(error: typer.TyperException, arguments: Sequence[str]) -> str:
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        if option in GLOBAL:
            return f"'{option}' goes before the command: stablernn {option} ..."
        near = sorted(getattr(error, "possibilities", None) or ())
        return f"Unknown option '{option}'" + (f". Did you mean '{near[0]}'?" if near else "")
    parameter = getattr(error, "param", None)
    if parameter is None or type(error).__name__ == "MissingParameter":
        return error.format_message().replace("No such command", "Unknown command").replace("\n\t", " ")
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.display_name_raw
    given = _given(parameter, arguments)
    got = f", got '{given}'" if given is not None else ""
    return f"{name} {_rule(error.message)}{got}"


def _rule(message: str) -> str:
    """What a value must be, from the words of the library that checked it."""
    choices = re.search(r"is not one of (.+?)\.?$", message)
    if choices:
        return f"must be one of {choices.group(1)}"
    number = re.search(r"should be a valid (\w+)", message)
    if number:
        return {"integer": "must be a whole number", "number": "must be a number"}.get(number.group(1), message)
    return message.removeprefix("Value error, ").replace("Input should be", "must be").rstrip(".")


def _given(parameter: Any, arguments: Sequence[str]) -> str | None:
    """The value of an option as it was written: after it, or behind an equals sign."""
    for position, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in parameter.opts:
            return value if equals else next(iter(arguments[position + 1 : position + 2]), None)
    return None


def folded(function: Callable[..., Any]) -> str:
    """A command's docstring with each paragraph on one line, so that help fits any width of terminal."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
