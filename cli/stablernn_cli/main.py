"""The app: global options, the commands, and what becomes of an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from stablernn_cli.commands import (
    cells,
    certify,
    data,
    dockerize,
    doctor,
    evaluate,
    export,
    plot,
    predict,
    quickstart,
    registry,
    reproduce,
    serve,
    train,
)
from stablernn_cli.errors import FAILED, INTERRUPTED, Reported, exit_code_of
from stablernn_cli.output import Globals
from stablernn_cli.usage import folded, usage_sentence

MAIN_JOB = "The main job"
LOOKING = "Looking around"

app = typer.Typer(
    name="stablernn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("train", rich_help_panel=MAIN_JOB)(train.train)
app.command("eval", rich_help_panel=MAIN_JOB)(evaluate.evaluate)
app.command("export", rich_help_panel=MAIN_JOB)(export.export)
app.command("certify", rich_help_panel=MAIN_JOB)(certify.certify)
app.command("predict", rich_help_panel=MAIN_JOB)(predict.predict)
app.command("plot", rich_help_panel=MAIN_JOB)(plot.plot)
app.command("serve", rich_help_panel=MAIN_JOB)(serve.serve)
app.command("dockerize", rich_help_panel=MAIN_JOB)(dockerize.dockerize)
app.add_typer(registry.app, name="registry", rich_help_panel=MAIN_JOB)
app.add_typer(cells.app, name="cells", rich_help_panel=LOOKING)
app.add_typer(data.app, name="data", rich_help_panel=LOOKING)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=LOOKING)
app.command("doctor", rich_help_panel=LOOKING)(doctor.doctor)
app.command("quickstart", rich_help_panel=LOOKING)(quickstart.quickstart)

for group in (app, registry.app, cells.app, data.app, reproduce.app):
    for command in group.registered_commands:
        if command.callback is not None:
            command.help = folded(command.callback)


def _print_version(wanted: bool) -> None:
    if wanted:
        from stablernn_cli.version import installed_version

        print(f"stablernn {installed_version() or 'from a checkout that is not installed'}")
        raise typer.Exit


@app.callback()
def stablernn(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors, and what the libraries log.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr; only the answer and errors.")
    ] = False,
) -> None:
    """Train, evaluate, export, register and serve stable recurrent networks.

    Exit codes: 0 done; 1 the work failed or its content is bad; 2 the command line is wrong; 3 a check said no;
    130 stopped by Ctrl-C.
    """
    import logging

    options = context.ensure_object(Globals)
    options.debug = debug
    options.quiet = quiet
    level = logging.DEBUG if debug else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr, force=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. An error becomes one sentence on stderr."""
    options = Globals()
    try:
        code = app(args=arguments, prog_name="stablernn", standalone_mode=False, obj=options)
    except typer.TyperException as error:
        # Without a command, typer has already printed the help.
        if type(error).__name__ != "NoArgsIsHelpError":
            _say(usage_sentence(error, sys.argv[1:] if arguments is None else arguments))
        return error.exit_code
    except typer.Abort:
        _say("Stopped.")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our stdout has seen enough. Python would complain about the flush at exit otherwise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if options.debug:
            import traceback

            traceback.print_exc()
        return _failure(error)
    if code == INTERRUPTED:
        _say("Stopped.")
    return code if isinstance(code, int) else 0


def _failure(error: Exception) -> int:
    code = exit_code_of(error)
    if isinstance(error, Reported):
        return error.exit_code
    if code is not None:
        _say(str(error))
        return code
    if isinstance(error, ModuleNotFoundError) and _is_foreign(error.name):
        _say(
            f"This installation has no '{error.name}', which this command needs. A serving image holds what 'serve' "
            "and 'registry' need, no more; elsewhere, install stablernn again with its dependencies. "
            "See 'stablernn doctor'."
        )
        return FAILED
    if isinstance(error, OSError):
        where = f" '{error.filename}'" if error.filename else ""
        _say(f"The file system refused{where}: {error.strerror or error}.")
        return FAILED
    _say(
        f"This is a fault of stablernn, not yours: {type(error).__name__}: {error}. "
        "Run it again as `stablernn --debug ...` and report the traceback."
    )
    return FAILED


def _is_foreign(module: str | None) -> bool:
    """Whether a whole package of others is missing, and not a part of ours or of one that is there."""
    return module is not None and "." not in module and not module.startswith("stablernn")


def _say(sentence: str) -> None:
    print(f"Error: {sentence}", file=sys.stderr)
