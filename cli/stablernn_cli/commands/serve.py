"""`stablernn serve`: the REST service. No torch in this process."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from stablernn_cli.errors import CommandError
from stablernn_cli.options import Device
from stablernn_cli.output import JsonOption, Output

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

GRACE_SECONDS = 8.0
"""How long requests may take after the server was told to stop; `docker stop` kills after 10 s."""

MAX_CONNECTIONS = 1000
"""Connections at a time; above it, uvicorn answers 503 by itself."""


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
        Literal["auto", "onnx"],
        typer.Option(
            envvar="STABLERNN_ENGINE", help="What runs the models; auto is ONNX Runtime, which needs no torch."
        ),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Serve models over REST

    Stops on Ctrl-C or SIGTERM after the requests in hand are answered, at most 8 s later. With --json, one document
    with url and models is printed when the server is ready. The registry is the folder STABLERNN_REGISTRY.
    STABLERNN_MODELS, _HOST, _PORT, _DEVICE and _ENGINE stand for the options where these are not given.

    Example: stablernn serve --model digits@production --port 8080
    """
    output = Output.of(context, as_json)
    given: dict[str, Any] = {"models": tuple(models)} if models else {}

    def leave() -> NoReturn:
        output.note("Stopped.")
        sys.stderr.flush()
        os._exit(0)

    # From before the slow imports on: the first process of a container has no default for SIGTERM. An exception in the
    # middle of an import would end in somebody else's traceback, and there is nothing yet that needs an orderly end.
    with _asked_to_stop(leave):
        _run({"host": host, "port": port, "device": device, "engine": engine, **given}, output)
    output.note("Stopped.")


def _run(given: dict[str, Any], output: Output) -> None:
    import logging

    from stablernn_server import Settings, create_app

    logging.getLogger("stablernn_server").setLevel(logging.WARNING if output.quiet else logging.INFO)
    settings = Settings(**given)
    # The port comes first: it is cheap to try, and opening models is not.
    with _bound(settings.host, settings.port) as listener:
        app = create_app(settings)
        with _explained(settings.host, settings.port):
            listener.listen()
        server = _server(app, listener, output)
        # uvicorn raises the signal again once every request is answered.
        with _asked_to_stop(_raise), contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    if not server.started:
        raise CommandError("The server could not start; the lines above say why.")


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


def _server(app: FastAPI, listener: socket.socket, output: Output) -> uvicorn.Server:
    import uvicorn

    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    served = [f"{model.name}:{model.version}" for model in app.state.context.models]

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                _announce(output, url, served)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.context.drain(GRACE_SECONDS)
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            log_level="warning" if output.quiet else "info",
            log_config=None,
            # Requests end by themselves before that.
            timeout_graceful_shutdown=math.ceil(GRACE_SECONDS) + 1,
            limit_concurrency=MAX_CONNECTIONS,
        )
    )


def _announce(output: Output, url: str, served: list[str]) -> None:
    if output.as_json:
        output.document({"url": url, "models": served, "pid": os.getpid()})
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
