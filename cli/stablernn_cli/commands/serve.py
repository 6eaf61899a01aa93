"""`stablernn serve`: the REST service. No torch in this process, unless an engine that needs it is named."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from stablernn_cli.errors import CommandError
from stablernn_cli.options import Device
from stablernn_cli.output import JsonOption, Output

if TYPE_CHECKING:
    from stablernn_server import Settings

ACCESS = "Who may ask"


def serve(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="REF",
            help="What to serve, may be repeated; default: the highest version of every model in the registry.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="STABLERNN_HOST", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="STABLERNN_PORT", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8080,
    device: Annotated[
        Device,
        typer.Option(envvar="STABLERNN_DEVICE", help="Where to compute; auto takes a GPU where one can be used."),
    ] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|onnx|torch",
            envvar="STABLERNN_ENGINE",
            help="What runs the models: onnx (ONNX Runtime, no torch), torch, or another engine of an installed "
            "package; auto is onnx on the CPU, the faster of both on a GPU.",
        ),
    ] = "auto",
    workers: Annotated[
        int,
        typer.Option(
            envvar="STABLERNN_WORKERS",
            min=1,
            help="Processes that share the port. With more than one, streams are continued by state tokens and "
            "WebSockets only.",
        ),
    ] = 1,
    state_key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="STABLERNN_STATE_KEY_FILE",
            help="File with the key of state tokens, at least 32 bytes; default: a random one, which dies with the "
            "server.",
            show_default=False,
        ),
    ] = None,
    auth: Annotated[
        Literal["auto", "off"],
        typer.Option(
            envvar="STABLERNN_AUTH",
            help="auto asks for tokens as soon as there are any, and refuses to listen to other machines without; off "
            "lets everybody in.",
            rich_help_panel=ACCESS,
        ),
    ] = "auto",
    tokens_file: Annotated[
        Path | None,
        typer.Option(
            envvar="STABLERNN_TOKENS_FILE",
            help="File with lines ROLE TOKEN, roles infer and admin, readable by its owner alone.",
            rich_help_panel=ACCESS,
            show_default=False,
        ),
    ] = None,
    tls_cert_file: Annotated[
        Path | None,
        typer.Option(
            envvar="STABLERNN_TLS_CERT_FILE",
            help="Certificate chain (PEM) to serve https with.",
            rich_help_panel=ACCESS,
            show_default=False,
        ),
    ] = None,
    tls_key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="STABLERNN_TLS_KEY_FILE",
            help="Its private key (PEM).",
            rich_help_panel=ACCESS,
            show_default=False,
        ),
    ] = None,
    access_log: Annotated[
        Literal["text", "json", "off"],
        typer.Option(envvar="STABLERNN_ACCESS_LOG", help="Form of the line about each request, on stderr."),
    ] = "text",
    as_json: JsonOption = False,
) -> None:
    """Serve models over REST

    Stops on Ctrl-C or SIGTERM after the requests in hand are answered, at most 8 s later. With --json, one document
    with url and models is printed when the server is ready. The registry is the folder STABLERNN_REGISTRY. Further
    settings, such as limits and batch sizes, are environment variables; docs/serving.md lists them.

    Example: stablernn serve --model digits@production --port 8080
    """
    output = Output.of(context, as_json)
    given: dict[str, Any] = {"models": tuple(models)} if models else {}

    def leave() -> NoReturn:
        output.note("Stopped.")
        # The queue of queued_stderr, once that is there.
        getattr(sys.stderr, "drain", sys.stderr.flush)()
        os._exit(0)

    # From before the slow imports on: the first process of a container has no default for SIGTERM. An exception in the
    # middle of an import would end in somebody else's traceback, and there is nothing yet that needs an orderly end.
    with _asked_to_stop(leave):
        from stablernn_server.process.log_writer import queued_stderr

        fields = {
            "host": host,
            "port": port,
            "device": device,
            "engine": engine,
            "workers": workers,
            "state_key_file": state_key_file,
            "auth": auth,
            "tokens_file": tokens_file,
            "tls_cert_file": tls_cert_file,
            "tls_key_file": tls_key_file,
            "access_log": access_log,
        }
        # Whoever reads the log must not be able to stop the server, its start or its end.
        with queued_stderr():
            # What is not given is left to the environment, which knows these too.
            _run({name: value for name, value in fields.items() if value is not None} | given, output)
            output.note("Stopped.")


def _run(given: dict[str, Any], output: Output) -> None:
    import logging

    from stablernn_server import Settings
    from stablernn_server.http.access_log import write_to_stderr
    from stablernn_server.security.auth import Auth
    from stablernn_server.security.tls import tls_context

    for package in ("stablernn_server", "stablernn_runtime"):
        logging.getLogger(package).setLevel(logging.WARNING if output.quiet else logging.INFO)
    if not output.quiet:
        write_to_stderr()
    settings = Settings(**given)
    Auth.from_settings(settings).check_address(settings.host, settings)
    tls_context(settings)
    # The port comes first: it is cheap to try, and opening models is not.
    with _bound(settings.host, settings.port) as listener:
        if settings.workers > 1:
            _serve_many(settings, listener, output)
        else:
            _serve_one(settings, listener, output)


def _serve_one(settings: Settings, listener: socket.socket, output: Output) -> None:
    from stablernn_server import create_app
    from stablernn_server.observability.multiprocess import prepare_metrics_dir
    from stablernn_server.process.server import Server

    if settings.metrics_dir is not None:
        prepare_metrics_dir(settings.metrics_dir)
    app = create_app(settings)
    with _explained(settings.host, settings.port):
        listener.listen(1024)
    served = app.state.context.models.served_refs()
    url = _url(settings, listener)
    server = Server(app, settings, quiet=output.quiet, on_ready=lambda: _announce(output, url, served, [os.getpid()]))
    # uvicorn raises the signal again once every request is answered.
    with _asked_to_stop(_raise), contextlib.suppress(KeyboardInterrupt):
        server.serve_on(listener)
    if not server.started:
        raise CommandError("The server could not start; the lines above say why.")


def _serve_many(settings: Settings, listener: socket.socket, output: Output) -> None:
    from stablernn_server.process.supervisor import Supervisor

    url = _url(settings, listener)
    supervisor = Supervisor(settings, listener, quiet=output.quiet)
    supervisor.run(lambda served, pids: _announce(output, url, served, pids))


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls_cert_file is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet: nobody is let in before the models are open.

    Raises:
        CommandError: If the address is not there or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise CommandError(f"Cannot listen on '{host}': {error.strerror}. Use 127.0.0.1 or 0.0.0.0.") from error
    with socket.socket(family, kind, protocol) as listener:
        if os.name == "posix":
            # A port stays taken for a minute after a server stopped; this is what every server does about it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _explained(host, port):
            listener.bind(address)
        yield listener


@contextlib.contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise CommandError(f"Port {port} on {host} {reason}. Choose another --port, or 0 for a free one.") from error


def _announce(output: Output, url: str, served: list[str], pids: list[int]) -> None:
    if output.as_json:
        output.document({"url": url, "models": served, "pid": os.getpid(), "workers": pids})
    output.note(f"Serving {', '.join(served)} at {url}. Stop with Ctrl-C.")


@contextlib.contextmanager
def _asked_to_stop(answer: Callable[[], NoReturn]) -> Iterator[None]:
    """SIGTERM and SIGINT get this answer, and what they got before afterwards."""

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        answer()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise() -> NoReturn:
    raise KeyboardInterrupt
