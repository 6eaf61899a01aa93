"""The app: global options, and errors as one sentence.

The sentence of a usage error has the value, the allowed values, and the command that prints the help.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from stablernn_cli.commands import CommandGroup
from stablernn_cli.errors import FAILED, INTERRUPTED, Reported, exit_code_of
from stablernn_cli.output import Globals
from stablernn_registry.errors import strip_controls

if TYPE_CHECKING:
    from pydantic import BaseModel

app = typer.Typer(
    name="stablernn",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from stablernn_cli import installed_version

        print(f"stablernn {installed_version() or 'from a checkout that is not installed'}")
        raise typer.Exit


@app.callback()
def stablernn(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors and the libraries' log messages.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr; only the answer and errors.")
    ] = False,
) -> None:
    """Train, evaluate, export, register and serve stable recurrent networks.

    Exit codes: 0 done; 1 the work failed or its content is bad; 2 the command line is wrong; 3 a check refused;
    130 stopped by Ctrl-C.
    """
    import logging

    # The same object that `run` reads after an error.
    options = context.ensure_object(Globals)
    options.debug = debug
    options.quiet = quiet
    # `force`: an imported library may have configured the root logger already.
    level = logging.DEBUG if debug else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr, force=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an error is printed as one sentence on stderr."""
    options = Globals()
    try:
        code = app(args=arguments, prog_name="stablernn", standalone_mode=False, obj=options)
    except typer.TyperException as error:
        # Without a command, typer has already printed the help.
        if type(error).__name__ != "NoArgsIsHelpError":
            _print_error(_usage_sentence(error, sys.argv[1:] if arguments is None else arguments))
        return error.exit_code
    except typer.Abort:
        _print_error("Stopped.")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has closed it, as `head` does. Python would report the failing flush at exit otherwise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if options.debug:
            import traceback

            traceback.print_exc()
        return _report(error)
    if code == INTERRUPTED:
        _print_error("Stopped.")
    return code if isinstance(code, int) else 0


def _report(error: Exception) -> int:
    """Print the sentence for an error and return its exit code."""
    code = exit_code_of(error)
    if isinstance(error, Reported):
        return error.exit_code
    if code is not None:
        _print_error(str(error))
        return code
    if isinstance(error, ModuleNotFoundError) and _is_third_party(error.name):
        _print_error(
            f"This installation has no '{error.name}', which this command needs. A serving image has only what "
            "'serve' and 'registry' need; elsewhere, install stablernn again with its dependencies. "
            "See 'stablernn doctor'."
        )
        return FAILED
    if isinstance(error, OSError):
        path = f" '{error.filename}'" if error.filename else " a file"
        _print_error(f"Cannot access{path}: {error.strerror or error}.")
        return FAILED
    _print_error(
        f"This is a bug in stablernn: {type(error).__name__}: {error}. "
        "Run it again as `stablernn --debug ...` and report the traceback."
    )
    return FAILED


def _is_third_party(module: str | None) -> bool:
    """True if a whole third-party package is missing, not a module of an installed package or of stablernn."""
    return module is not None and "." not in module and not module.startswith("stablernn")


def _print_error(sentence: str) -> None:
    # torchrun mixes what its processes print.
    process = f" in process {os.environ.get('RANK')}" if os.environ.get("RANK", "0") != "0" else ""
    print(strip_controls(f"Error{process}: {sentence}"), file=sys.stderr)


_OTHER_COMMANDS = (
    (
        ("promote", "deploy", "release", "set-alias", "tag", "stage"),
        "An alias is moved by: stablernn registry alias NAME@ALIAS VERSION.",
    ),
    (
        ("delete", "remove", "rm", "unregister", "unalias", "archive"),
        "Nothing removes a version or an alias; an alias is moved by: stablernn registry alias NAME@ALIAS VERSION.",
    ),
    (("register", "publish", "push"), "A version is published by: stablernn export RUN --name NAME."),
    (("history",), "The history of a model is shown by: stablernn registry log NAME."),
    (("get", "describe"), "A version is shown by: stablernn registry show REF."),
    (("download", "pull", "export"), "Files are copied by: stablernn registry copy REF --output DIR."),
    (("revert", "undo"), "An alias goes back by: stablernn registry rollback NAME@ALIAS."),
    (("evaluate", "test", "score"), "Models are scored by: stablernn eval TARGET."),
    (("fit",), "Models are trained by: stablernn train --data FILE."),
    (("forecast", "classify"), "Files are answered by: stablernn predict TARGET --input FILE."),
    (("check", "validate"), "Data are checked by: stablernn data check FILE, models by: stablernn registry verify."),
)
"""Names that commands have in other tools, and the command that does it here."""

GLOBAL_OPTIONS = ("-q", "--quiet", "--debug", "--version")


def _usage_sentence(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """Return the sentence for a usage error.

    Args:
        error: Exception from typer.
        arguments: The command line, from which the rejected value is quoted.
    """
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "stablernn"
    problem = _problem(error, arguments)
    return f"{problem if problem.endswith(('.', '?')) else problem + '.'} See '{command} --help'."


def _problem(error: typer.TyperException, arguments: Sequence[str]) -> str:
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        # Typer knows options of the command only, and would suggest a similar one.
        if option in GLOBAL_OPTIONS:
            return f"'{option}' goes before the command: stablernn {option} ..."
        from stablernn.errors import did_you_mean

        # Before similar options: the name of a setting is no mistake in writing.
        if key := _setting_key(option, getattr(error, "ctx", None)):
            return f"Unknown option '{option}'. This command takes it as --set {key}=VALUE."
        # Typer's own list of similar options is not sorted by how similar they are.
        if suggestion := did_you_mean(option, getattr(error, "possibilities", None) or ()):
            return f"Unknown option '{option}'.{suggestion}"
        return f"Unknown option '{option}'"
    parameter = getattr(error, "param", None)
    if advice := _other_command(error):
        return advice
    if parameter is None or type(error).__name__ == "MissingParameter":
        return error.format_message().replace("No such command", "Unknown command").replace("\n\t", " ")
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.display_name_raw
    value = _typed_value(parameter, arguments)
    got = f", got '{value}'" if value is not None else ""
    return f"{name} {_rule(error.message)}{got}"


def _other_command(error: typer.TyperException) -> str | None:
    """Return the sentence for a command that other tools have under another name here; None for any other error."""
    match = re.match(r"No such command '(.+?)'", error.format_message())
    sentences = [sentence for names, sentence in _OTHER_COMMANDS if match is not None and match[1] in names]
    return f"Unknown command '{match[1]}'. {sentences[0]}" if match is not None and sentences else None


def _setting_key(option: str, context: typer.Context | None) -> str | None:
    """Return the setting that an option of `train` stands for, or whose name it has.

    None if there is none, or the command has no --set of that kind.
    """
    from stablernn.training.settings.config import Config
    from stablernn_cli.config_options import flag, setting_options

    parameters = context.command.params if context is not None else ()
    # `predict` and `eval` have a --set, but no --config: theirs takes repairs of data only.
    if not {"overrides", "config"} <= {parameter.name for parameter in parameters}:
        return None
    keys = [(name, option.key) for name, option in setting_options().items()]
    settings = [
        (name, f"{section}.{name}")
        for section, field in Config.model_fields.items()
        for name in cast("type[BaseModel]", field.annotation).model_fields
    ]
    return next((key for name, key in (*keys, *settings) if flag(name) == option), None)


def _rule(message: str) -> str:
    """Rewrite a message of typer or pydantic as a rule: ``must be ...``."""
    # Typer's message for a Literal or an Enum; the others are pydantic's.
    choices = re.search(r"is not one of (.+?)\.?$", message)
    if choices:
        return f"must be one of {choices.group(1)}"
    number = re.search(r"should be a valid (\w+)", message)
    if number:
        return {"integer": "must be a whole number", "number": "must be a number"}.get(number.group(1), message)
    return message.removeprefix("Value error, ").replace("Input should be", "must be").rstrip(".")


def _typed_value(parameter: Any, arguments: Sequence[str]) -> str | None:
    """Return the value of an option as it was typed: the next argument, or the text after an equals sign."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in parameter.opts:
            return value if equals else next(iter(arguments[position + 1 : position + 2]), None)
    return None
