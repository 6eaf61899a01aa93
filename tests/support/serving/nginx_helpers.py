"""Replicas of `stablernn serve` behind nginx, with the configuration of `deploy/nginx`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from packages import ROOT
from serving_helpers import ServeProcess, start_serve, until

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONFIG = ROOT / "deploy" / "nginx" / "stablernn.conf"
TOKEN = "a-token-that-every-replica-accepts"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
MAIN_CONFIG = """{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    log_format replicas '$request_method $uri $status|$upstream_addr|$upstream_status';
    access_log {folder}/access.log replicas;
    include {folder}/stablernn.conf;
}}
"""


@dataclass(frozen=True)
class Passed:
    """A request that nginx has passed on.

    Attributes:
        request: Method and path.
        status: Status of the answer.
        replicas: Numbers of the replicas that were tried, in order.
    """

    request: str
    status: int
    replicas: tuple[int, ...]


class Replicas:
    """Two servers with one registry and one key, nothing else in common, and nginx in front of them.

    Attributes:
        servers: The servers.
        url: URL of nginx.
    """

    def __init__(self, registry: Path, folder: Path, *arguments: str, state_key: str) -> None:
        if NGINX is None:
            pytest.skip("needs nginx: apt-get install nginx-light")
        self._registry, self._folder, self._arguments = registry, folder, arguments
        self._environment = {
            "STABLERNN_STATE_KEY": state_key,
            "STABLERNN_INFER_TOKENS": TOKEN,
            "STABLERNN_ADMIN_TOKENS": f"{TOKEN}-of-the-admin",
            "STABLERNN_FORWARDED_ALLOW_IPS": "127.0.0.1",
        }
        self.servers = [self._start(number, 0) for number in range(2)]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._nginx = self._start_nginx(port)
        try:
            self.wait()
        except BaseException:
            self.close()
            raise

    def _start(self, number: int, port: int) -> ServeProcess:
        folder = self._folder / f"replica-{number}"
        folder.mkdir(exist_ok=True)
        words = ("--port", port, "--access-log", "off", *self._arguments)
        return start_serve(self._registry, folder / "log", *words, environment=self._environment)

    def _start_nginx(self, port: int) -> subprocess.Popen[bytes]:
        assert NGINX is not None
        text = CONFIG.read_text(encoding="utf-8")
        addresses = iter([server.port for server in self.servers])
        text, upstreams = re.subn(r"server 10\.0\.0\.1\d:8080", lambda _: f"server 127.0.0.1:{next(addresses)}", text)
        text, listens = re.subn(r"listen 80;", f"listen 127.0.0.1:{port};", text)
        assert (upstreams, listens) == (2, 1)
        (self._folder / "stablernn.conf").write_text(text)
        # Root's workers would become another user, who cannot write to the folder.
        user = "user root;" if os.geteuid() == 0 else ""
        main = self._folder / "nginx.conf"
        main.write_text(MAIN_CONFIG.format(folder=self._folder, user=user))
        words = [NGINX, "-c", str(main), "-p", str(self._folder), "-e", str(self._folder / "error.log")]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def ask(self, path: str = "/v2") -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=HEADERS, timeout=30)

    def wait(self) -> None:
        """Return once nginx passes requests to both replicas."""

        def names() -> set[str]:
            # What tells a process that answers from others begins its ids.
            return {self.ask().headers.get("x-request-id", "").partition("-")[0] for _ in range(4)} - {""}

        def answered() -> bool:
            try:
                return len(names()) == 2
            except httpx.TransportError:
                return False

        until(answered, 30, 0.1)

    def stop(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """End a replica."""
        if how != signal.SIGKILL:
            assert self.servers[number].stop(how) == 0
        self.servers[number].kill()

    def restart(self, number: int) -> None:
        """Start a replica again at its address."""
        self.servers[number] = self._start(number, self.servers[number].port)

    def ensure(self) -> None:
        """Start again what has ended, and wait until nginx has noticed."""
        for number, server in enumerate(self.servers):
            if server.process.poll() is not None:
                self.restart(number)
        self.wait()

    def metric(self, number: int, name: str) -> float:
        """Return a metric of a replica without labels, asked from itself."""
        text = httpx.get(f"{self.servers[number].url}/metrics", headers=HEADERS).text
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"stablernn_{name}[ {{]", line))

    def mark(self) -> int:
        """Return a position in the log of requests, for :meth:`passed`."""
        return (self._folder / "access.log").stat().st_size

    def passed(self, since: int) -> list[Passed]:
        """Return the requests since a position of the log that nginx has passed on, once they are answered."""
        numbers = {f"127.0.0.1:{server.port}": number for number, server in enumerate(self.servers)}
        requests = []
        for line in (self._folder / "access.log").read_bytes()[since:].decode().splitlines():
            words, addresses, _ = line.split("|")
            request, _, status = words.rpartition(" ")
            tried = tuple(numbers[address] for address in addresses.split(", ") if address in numbers)
            requests.append(Passed(request, int(status), tried))
        return requests

    def close(self) -> None:
        """End all."""
        self._nginx.terminate()
        self._nginx.wait(10)
        for server in self.servers:
            server.kill()
