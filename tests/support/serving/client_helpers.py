"""Helpers for tests of the Python client: both clients by one name, server processes, and a line that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

from cli_helpers import first_document
from serving_helpers import giving_up
from stablernn_client import AsyncClient, Client

STATE_KEY = "a key of at least thirty-two bytes"


class Both:
    """The client for threads or the one for asyncio, called in the same way."""

    def __init__(self, client: Any, runner: asyncio.Runner | None) -> None:
        self._client = client
        self._runner = runner

    @classmethod
    @contextlib.contextmanager
    def of(cls, kind: str, url: str, **options: Any) -> Iterator[Both]:
        if kind == "threads":
            with Client(url, **options) as client:
                yield cls(client, None)
            return
        with asyncio.Runner() as runner:
            both = cls(AsyncClient(url, **options), runner)
            try:
                yield both
            finally:
                both.close()

    @property
    def is_for_threads(self) -> bool:
        return self._runner is None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *args, **options: self.wait(method(*args, **options))

    def wait(self, value: Any) -> Any:
        """Return the result of a call; wait for that of a coroutine."""
        return self._runner.run(value) if isinstance(value, Coroutine) and self._runner else value

    def stream(self, *args: Any, **options: Any) -> BothStream:
        return BothStream(self, self._client.stream(*args, **options))

    def streams(self, *args: Any, **options: Any) -> BothStream:
        return BothStream(self, self._client.streams(*args, **options))


class BothStream:
    """One or several streams of either client, open from the beginning."""

    def __init__(self, client: Both, stream: Any) -> None:
        self._both = client
        self.raw = stream
        if hasattr(stream, "__aenter__"):
            client.wait(stream.__aenter__())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def about(self) -> Any:
        return self.raw.about

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.raw, name)
        return lambda *args, **options: self._both.wait(method(*args, **options))

    def collect(self, samples: Any, **options: Any) -> list[Any]:
        """Return all results of ``steps``."""
        results = self.raw.steps(samples, **options)
        if not hasattr(results, "__aiter__"):
            return list(results)

        async def gather() -> list[Any]:
            return [result async for result in results]

        return self._both.wait(gather())  # type: ignore[no-any-return]


class ServerProcess:
    """``stablernn serve`` as a process of its own, which can be killed and started again on its port."""

    def __init__(self, registry: Path, log: Path, *arguments: str, state_key: str = STATE_KEY) -> None:
        self.registry = registry
        self.log = log
        self.arguments = arguments
        self.port = 0
        self.start(state_key)

    def start(self, state_key: str = STATE_KEY) -> None:
        self.state_key = state_key
        words = ["-m", "stablernn_cli", "serve", "--port", str(self.port), "--json", *self.arguments]
        environment = {"STABLERNN_REGISTRY": str(self.registry), "STABLERNN_STATE_KEY": state_key}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        try:
            with giving_up(self.process):
                self.url: str = first_document(self.process.stdout)["url"]
        except ValueError:
            raise AssertionError(f"The server did not start:\n{self.log.read_text()}") from None
        self.port = int(self.url.rpartition(":")[2])

    def ensure(self, *arguments: str, state_key: str = STATE_KEY) -> None:
        """Run with these arguments and this key: start again only if the process has ended or runs with others."""
        is_running = self.process.poll() is None
        if is_running and (self.arguments, self.state_key) == (arguments, state_key):
            return
        if is_running:
            self.kill()
        self.arguments = arguments
        self.start(state_key)

    def kill(self) -> None:
        """Without a word to anyone."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        """In an orderly way."""
        self.process.terminate()
        assert self.process.wait(30) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart_later(self, seconds: float, state_key: str = STATE_KEY) -> threading.Timer:
        """Start it again from another thread, so that the client finds nobody there for a while."""
        timer = threading.Timer(seconds, self.start, [state_key])
        timer.start()
        return timer


class BreakingLine:
    """A TCP proxy before a server that breaks connections where it is told to.

    Attributes:
        swallow: How many further messages of the server are lost, each together with its connection.
        accept_and_lose: How many further WebSockets are lost once the server has accepted them.
        connections: How many there were.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.swallow = 0
        self.accept_and_lose = 0
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def server_url(self) -> str:
        """Past the line."""
        return f"http://127.0.0.1:{self._server}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._server)) as server:
            answers = threading.Thread(target=self._pump, args=(server, client, True), daemon=True)
            answers.start()
            self._pump(client, server, False)
            answers.join()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if is_answer and self.swallow:
                    self.swallow -= 1
                    break
                if is_answer and self.accept_and_lose and data.startswith(b"HTTP/1.1 101"):
                    self.accept_and_lose -= 1
                    head, end, _ = data.partition(b"\r\n\r\n")
                    sink.sendall(head + end)
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
