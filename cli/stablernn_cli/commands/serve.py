"""`stablernn serve`: the REST service. This process imports no torch unless an engine needs it."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from stablernn_cli.errors import CommandError
from stablernn_cli.options import Device, JsonOption, option
from stablernn_cli.output import Output, drop_none

if TYPE_CHECKING:
    from stablernn_server import Settings

ACCESS_PANEL = "Access"
STREAMS_PANEL = "Streams"


def serve(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        option(
            "Model to serve, may be repeated; default: the highest version of every model in the registry.",
            "--model",
            metavar="REF",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="STABLERNN_HOST", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="STABLERNN_PORT", min=0, max=65535, help="Port to listen on; 0 selects a free one.")
    ] = 8080,
    device: Annotated[
        Device,
        typer.Option(
            envvar="STABLERNN_DEVICE",
            help="Device to compute on; auto measures a GPU, if one is available, against the CPU.",
        ),
    ] = "auto",
    device_id: Annotated[
        int | None,
        option(
            "Number of the GPU; default: the first one, with several workers worker i takes GPU i modulo their number.",
            metavar="N",
            envvar="STABLERNN_DEVICE_ID",
            min=0,
        ),
    ] = None,
    gpu_mem_limit: Annotated[
        int | None,
        option(
            "Bytes that each graph may take on the GPU; default: all of its memory.",
            metavar="BYTES",
            envvar="STABLERNN_GPU_MEM_LIMIT",
            min=2**20,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|onnx|torch|native",
            envvar="STABLERNN_ENGINE",
            help="Engine that runs the models: onnx (ONNX Runtime, no torch), torch, native (compiled, with "
            "stablernn-native), or one of an installed package; auto is onnx on the CPU, the faster of onnx and torch "
            "on a GPU.",
        ),
    ] = "auto",
    workers: Annotated[
        int,
        typer.Option(
            envvar="STABLERNN_WORKERS",
            min=1,
            help="Processes that share the port. With more than one, streams continue by state tokens and "
            "WebSockets only.",
        ),
    ] = 1,
    state_key_file: Annotated[
        Path | None,
        option(
            "File with the key of state tokens, at least 32 bytes; default: a random one, lost when the server stops.",
            envvar="STABLERNN_STATE_KEY_FILE",
        ),
    ] = None,
    adaptive_intervals: Annotated[
        bool,
        option(
            "Forecasts of streams also have intervals that adapt to how often earlier ones missed "
            "(docs/background/streams.md); a model without quantiles of its own inputs is refused.",
            envvar="STABLERNN_ADAPTIVE_INTERVALS",
            rich_help_panel=STREAMS_PANEL,
        ),
    ] = False,
    drift_false_alarms: Annotated[
        float | None,
        option(
            "Test each stream of forecasts for drift, with at most RATE false alarms a reading on average, such "
            "as 0.0001; a model without a certified forgetting time is refused.",
            metavar="RATE",
            envvar="STABLERNN_DRIFT_FALSE_ALARMS",
            rich_help_panel=STREAMS_PANEL,
        ),
    ] = None,
    auth: Annotated[
        Literal["auto", "off"],
        typer.Option(
            envvar="STABLERNN_AUTH",
            help="auto requires tokens once there are any, and refuses to listen to other machines without them; off "
            "admits everybody.",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = "auto",
    tokens_file: Annotated[
        Path | None,
        option(
            "File with lines ROLE TOKEN, roles infer and admin, readable by its owner only.",
            envvar="STABLERNN_TOKENS_FILE",
            rich_help_panel=ACCESS_PANEL,
        ),
    ] = None,
    tls_cert_file: Annotated[
        Path | None,
        option("Certificate chain (PEM) for https.", envvar="STABLERNN_TLS_CERT_FILE", rich_help_panel=ACCESS_PANEL),
    ] = None,
    tls_key_file: Annotated[
        Path | None,
        option("Private key (PEM) of the certificate.", envvar="STABLERNN_TLS_KEY_FILE", rich_help_panel=ACCESS_PANEL),
    ] = None,
    access_log: Annotated[
        Literal["text", "json", "off"],
        typer.Option(envvar="STABLERNN_ACCESS_LOG", help="Format of the line for each request, on stderr."),
    ] = "text",
    as_json: JsonOption = False,
) -> None:
    """Serve models over REST

    Stops on Ctrl-C or SIGTERM after the requests in flight are answered, at most 8 s later. With --json, one document
    with url and models is printed when the server is ready. The registry is the folder STABLERNN_REGISTRY. Other
    settings, such as limits and batch sizes, are environment variables; docs/reference/server.md lists them.

    Example: stablernn serve --model digits@production --port 8080
    """
    output = Output.of(context, as_json)
    # Every other parameter is a field of Settings, which reads those that are absent from the environment.
    fields = {name: value for name, value in context.params.items() if name != "as_json"}
    settings = drop_none(fields | {"models": tuple(models) if models else None})

    def exit_now() -> NoReturn:
        _note(output, access_log, "Stopped.")
        # Once queued_stderr is active, messages are in its queue.
        getattr(sys.stderr, "drain", sys.stderr.flush)()
        os._exit(0)

    # Before the slow imports: the first process of a container has no default action for SIGTERM. An exception in the
    # middle of an import would end in a traceback of another package, and nothing needs an orderly shutdown yet.
    with _on_stop_signal(exit_now):
        from stablernn_server.log_writer import queued_stderr

        # A slow reader of the log must not block the server, its start or its shutdown.
        with queued_stderr():
            _run(settings, output)
            _note(output, access_log, "Stopped.")


def _run(fields: Mapping[str, Any], output: Output) -> None:
    """Check the settings, bind the port, and serve until a signal arrives."""
    from stablernn_server import Settings
    from stablernn_server.auth import Auth
    from stablernn_server.http.access_log import log_to_stderr
    from stablernn_server.key_files import tls_context

    settings = Settings(**fields)
    log_to_stderr(settings.access_log, quiet=output.quiet)
    # Tokens and certificates are checked here, in one process, before workers start.
    Auth.from_settings(settings).check_address(settings.host, settings)
    tls_context(settings)
    # The port first: binding is cheap, loading models is not.
    with _bound_socket(settings.host, settings.port) as listener:
        if settings.workers > 1:
            _serve_many(settings, listener, output)
        else:
            _serve_one(settings, listener, output)


def _serve_one(settings: Settings, listener: socket.socket, output: Output) -> None:
    from stablernn_server import create_app
    from stablernn_server.observability.multiprocess import prepare_metrics_dir
    from stablernn_server.server import Server

    if settings.metrics_dir is not None:
        prepare_metrics_dir(settings.metrics_dir)
    app = create_app(settings)
    # Models are loaded; a port that another process listens on is noticed here at the latest.
    with _port_errors(settings.host, settings.port):
        listener.listen(1024)
    served = app.state.context.models.served_refs()
    url = _url(settings, listener)
    announce = functools.partial(_announce, output, settings, url)
    server = Server(app, settings, quiet=output.quiet, on_ready=lambda: announce(served, [os.getpid()]))
    # uvicorn raises the signal again after the last request is answered.
    with _on_stop_signal(_interrupt), contextlib.suppress(KeyboardInterrupt):
        server.serve_on(listener)
    if not server.started:
        raise CommandError("The server could not start; see the lines above.")


def _serve_many(settings: Settings, listener: socket.socket, output: Output) -> None:
    from stablernn_server.supervisor import Supervisor

    url = _url(settings, listener)
    supervisor = Supervisor(settings, listener, quiet=output.quiet)
    supervisor.run(functools.partial(_announce, output, settings, url))


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls_cert_file is None else "https"
    # An IPv6 address needs brackets.
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def _bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Give a bound socket that does not listen yet, so that no connection is accepted before the models are loaded.

    Raises:
        CommandError: If the address does not exist or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise CommandError(f"Cannot listen on '{host}': {error.strerror}. Use 127.0.0.1 or 0.0.0.0.") from error
    with socket.socket(family, kind, protocol) as listener:
        if os.name == "posix":
            # Otherwise the port stays taken for a minute after a server has stopped (TIME_WAIT).
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _port_errors(host, port):
            listener.bind(address)
        yield listener


@contextlib.contextmanager
def _port_errors(host: str, port: int) -> Iterator[None]:
    """Translate errors of the socket into CommandError."""
    try:
        yield
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise CommandError(f"Port {port} on {host} {reason}. Choose another --port, or 0 for a free one.") from error


def _announce(output: Output, settings: Settings, url: str, served: list[str], pids: list[int]) -> None:
    if output.as_json:
        output.document({"url": url, "models": served, "pid": os.getpid(), "workers": pids})
    _note(output, settings.access_log, f"Serving {', '.join(served)} at {url}. Stop with Ctrl-C.")


def _note(output: Output, access_log: str, text: str) -> None:
    """Print a line on stderr, in the form of the log."""
    if access_log == "json":
        logging.getLogger("stablernn_server").info("%s", text)
    else:
        output.note(text)


@contextlib.contextmanager
def _on_stop_signal(action: Callable[[], NoReturn]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT by an action, and restore their handlers afterwards."""

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        action()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
