"""Builds the images of Dockerfiles and runs them, without a container engine that has to be running already.

Buildah builds, in a chroot, on a Debian made by debootstrap. What was built is run by Buildah in a chroot, which keeps
user, capabilities and mounts apart but not the network, and by Podman where it can start a container here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BASE = "localhost/stablernn-test-base"
# What the Dockerfiles ask of a base: Python, pip and venv.
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_MINUTES = 60.0


@dataclass(frozen=True)
class Storage:
    """Images and containers in a folder of their own."""

    folder: Path

    def command(self, program: str) -> list[str]:
        storage_options = [
            "--storage-driver",
            "vfs",
            "--root",
            str(self.folder / "root"),
            "--runroot",
            str(self.folder / "run"),
        ]
        return [program, *storage_options, *(["--cgroup-manager", "cgroupfs"] if program == "podman" else [])]

    def buildah(self, *words: object, timeout: float = 5 * _MINUTES) -> subprocess.CompletedProcess[str]:
        command = [*self.command("buildah"), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout)

    def build(self, context: Path, name: str) -> dict[str, Any]:
        """Build the Dockerfile of a folder on the Debian of the tests; the configuration of the image."""
        options = _pip_options()
        index = self.folder / "pip.conf"
        index.write_text("".join(["[global]\n", *(f"{name} = {value}\n" for name, value in options.items())]))
        # How this machine reaches its packages is lent to the build, and is not in the image.
        lent = [f"--volume={index}:/etc/pip.conf:ro"]
        if "cert" in options:
            folder = Path(options["cert"]).parent
            lent.append(f"--volume={folder}:{folder}:ro")
        done = self.buildah(
            *("build", "--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={BASE}"),
            *(*lent, "--tag", name, context),
            timeout=15 * _MINUTES,
        )
        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
        shown = self.buildah("inspect", "--type", "image", name)
        return dict(json.loads(shown.stdout)["Docker"]["config"])


@dataclass
class Container:
    """A server in a container on a port of this machine.

    Attributes:
        process: The program that runs it and passes signals on, or waits for it.
        log: What the server wrote.
        stop: Command that stops it; None: SIGTERM to the server itself.
        inside: Command that the words of another command to run beside it are put after.
    """

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    stop: Sequence[str] | None
    inside: Sequence[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.inside, *words], capture_output=True, text=True, timeout=_MINUTES)

    def terminate(self) -> None:
        """Ask it to stop, as an engine does, without waiting for it."""
        if self.stop is not None:
            subprocess.Popen(self.stop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        else:
            [pid] = re.findall(r'^  "pid": (\d+),?$', self.log.read_text(), re.MULTILINE)
            os.kill(int(pid), signal.SIGTERM)


def make_storage(folder: Path) -> Storage:
    """Storage that holds the base image; skips the test where none can be made, and says why."""
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if os.getuid() != 0:
        pytest.skip("debootstrap and buildah in a chroot need root")
    storage = Storage(folder)
    system = folder / "debian"
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(system)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15 * _MINUTES)
    if done.returncode:
        pytest.skip(f"debootstrap made no Debian here: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    name = storage.buildah("from", "scratch").stdout.strip()
    steps = [
        storage.buildah("add", "--quiet", name, system, "/"),
        storage.buildah("run", "--isolation", "chroot", name, "--", "python3", "--version"),
        storage.buildah("commit", "--quiet", name, BASE),
        storage.buildah("rm", name),
    ]
    shutil.rmtree(system)
    for step in steps:
        if step.returncode:
            pytest.skip(f"buildah cannot work here: {step.stderr.strip().splitlines()[-1]}")
    return storage


@contextlib.contextmanager
def run_by_buildah(
    storage: Storage, image: str, config: Mapping[str, Any], folder: Path, **options: Any
) -> Iterator[Container]:
    """Its entry point and command as the image's user, in a chroot, with the network of this machine."""
    name = storage.buildah("from", image).stdout.strip()
    common = [*storage.command("buildah"), "run", "--isolation", "chroot", "--cap-drop", "all"]
    port = _free_port()
    environment = {"STABLERNN_PORT": str(port), **options.get("environment", {})}
    common += [argument for variable in environment.items() for argument in ("--env", "=".join(variable))]
    common += [
        argument for mount in options.get("mounts", {}).items() for argument in ("--volume", ":".join(map(str, mount)))
    ]
    common += ["--user", options["user"]] if "user" in options else []
    log = folder / "buildah.log"
    words = [*config["Entrypoint"], *config["Cmd"], "--json"]
    try:
        with _started([*common, name, "--", *words], log) as process:
            yield _ready(Container(port, process, log, None, [*common, name, "--"]))
    finally:
        storage.buildah("rm", name)


@contextlib.contextmanager
def run_by_podman(
    storage: Storage, image: str, config: Mapping[str, Any], folder: Path, **options: Any
) -> Iterator[Container]:
    """The image as it is, under all the restrictions that compose.yaml asks for."""
    podman, extra = _podman(storage, image)
    name, port = f"stablernn-test-{os.getpid()}", _free_port()
    environment = {"STABLERNN_PORT": str(port), **options.get("environment", {})}
    command = [*podman, "run", "--name", name, *extra, "--network", "host", "--stop-timeout", "15"]
    command += [argument for variable in environment.items() for argument in ("--env", "=".join(variable))]
    command += ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    command += ["--user", options["user"]] if "user" in options else []
    for source, target in options.get("mounts", {}).items():
        where = target.removesuffix(":ro")
        command += ["--mount", f"type=bind,source={source},target={where},readonly"]
    log = folder / "podman.log"
    try:
        with _started([*command, image], log) as process:
            yield _ready(Container(port, process, log, [*podman, "stop", name], [*podman, "exec", name]))
    finally:
        subprocess.run([*podman, "rm", "--force", name], capture_output=True, timeout=_MINUTES)


RUNNERS = {"buildah": run_by_buildah, "podman": run_by_podman}


def _podman(storage: Storage, image: str) -> tuple[list[str], list[str]]:
    """The command and options with which Podman starts a container on this machine; skips where there are none."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    # A machine whose limits cannot be raised, and one whose control groups are of the first version.
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    message = ""
    for runtime, extra in (([], []), ([], limits), (["--runtime", "runc"], limits)):
        command = [*storage.command("podman"), *runtime]
        # The timer of a health check would need systemd.
        extra = ["--no-healthcheck", *extra]
        trial = [*command, "run", "--rm", "--network", "host", *extra, image, "--version"]
        done = subprocess.run(trial, capture_output=True, text=True, timeout=_MINUTES)
        if done.returncode == 0:
            return command, extra
        message = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it said nothing"
    pytest.skip(f"podman cannot start a container here: {message}")


@contextlib.contextmanager
def _started(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def _ready(container: Container) -> Container:
    deadline = time.monotonic() + 60
    while True:
        assert container.process.poll() is None, container.log.read_text()
        assert time.monotonic() < deadline, container.log.read_text()
        connection = http.client.HTTPConnection("127.0.0.1", container.port, timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return container
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _pip_options() -> dict[str, str]:
    """Return pip's settings for finding packages; those that point to folders of this machine are left out."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    options: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in {"index-url", "extra-index-url", "cert", "trusted-host"} and "file:" not in value:
            options[key] = value.strip("'")
    return options
