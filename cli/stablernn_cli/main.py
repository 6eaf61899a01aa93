"""The app: global options, and the reporting of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from stablernn_cli.commands import CommandGroup
from stablernn_cli.errors import FAILED, INTERRUPTED, Reported, exit_code_of
from stablernn_cli.output import Globals
from stablernn_cli.usage import usage_sentence
from stablernn_registry.errors import strip_controls

app = typer.Typer(
    name="stablernn",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from stablernn_cli.version import installed_version

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
            _print_error(usage_sentence(error, sys.argv[1:] if arguments is None else arguments))
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
