"""Helpers for tests of the command line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np

from stablernn_cli.main import run
from stablernn_registry import ManifestFields, Registry, Version

STEPS = 120
HORIZON = 6
UNPLOTTED = "--set training.plots=false"
"""Options of ``train`` that save most of the time of a tiny run."""
NO_PLOTS = tuple(UNPLOTTED.split())
ALIKE = f"--data digits --hidden-size 16 --max-steps 5 --batch-size 16 --free {UNPLOTTED}"
"""Options of ``train``, but for the cell, of runs whose exports share their graphs with those of other modules. All
are free, so that less is proved of some cells than of others."""


@dataclass(frozen=True)
class Result:
    """The result of a command: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout; fails if anything else is there."""
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The error, which is the last line of stderr and the only one that begins like this."""
        lines = [line for line in self.err.splitlines() if line.startswith("Error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("Error: ")


@dataclass(frozen=True)
class Workplace:
    """A folder to work in, with its own registry.

    Attributes:
        folder: Working directory of every command.
    """

    folder: Path

    @property
    def registry(self) -> Path:
        return self.folder / "registry"

    @property
    def environment(self) -> dict[str, str]:
        return {"STABLERNN_REGISTRY": str(self.registry)}

    def path(self, name: str) -> Path:
        return self.folder / name

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Work in this folder, with its registry."""
        with _environment(self.environment), contextlib.chdir(self.folder):
            yield

    def __call__(self, *arguments: object, stderr: TextIO | None = None) -> Result:
        """Run a command in this process, as ``main`` does in its own.

        Args:
            *arguments: Of the command line: the first may be several words, as one types them.
            stderr: What it writes to instead of the result, such as a terminal.
        """
        with self.inside(), _logging():
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(stderr or err):
                code = run(words(*arguments))
        return Result(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments: object) -> Result:
        """Run a command that must succeed."""
        result = self(*arguments)
        assert result.code == 0, result.err
        return result

    def document(self, command: str) -> Any:
        """Run a command that must succeed, and return the document of its ``--json``."""
        return self.ok(f"-q {command} --json").json

    def refusal(self, *arguments: object, code: int = 2) -> str:
        """Run a command that must be refused, with this exit code, and return its sentence."""
        result = self(*arguments)
        assert result.code == code, result.err
        return result.sentence

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        return subprocess.Popen(
            command(*arguments),
            cwd=self.folder,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )


def run_alone(workplace: Workplace, *arguments: object) -> tuple[Result, bool]:
    """Run a command in a fresh interpreter; also return True if it imported torch."""
    code = (
        "import sys; from stablernn_cli.main import run; code = run(sys.argv[1:]);"
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *words(*arguments)],
        cwd=workplace.folder,
        env=os.environ | workplace.environment,
        capture_output=True,
        text=True,
    )
    *lines, has_torch = process.stderr.splitlines()
    return Result(process.returncode, process.stdout, "\n".join(lines)), has_torch == "True"


def republish(
    workplace: Workplace, ref: str, files: Mapping[str, bytes | None] | None = None, **fields: object
) -> Version:
    """The next version of ``digits``, with the files and fields of another but for some; None leaves a file out."""
    registry = Registry(workplace.registry)
    source = registry.get(ref)
    folder = workplace.path("republished")
    content = {name: source.read(name) for name in source.manifest.files} | dict(files or {})
    paths = {name: folder / name for name, data in content.items() if data is not None}
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[name] or b"")
    stated = source.manifest.model_dump(include=set(ManifestFields.model_fields))
    return registry.publish("digits", paths, {**stated, **fields})


def republish_certificate(workplace: Workplace, ref: str, certificate: dict[str, Any]) -> Version:
    """The next version of ``digits`` with another certificate, and the norms that are stored with a version."""
    norms = json.loads(Registry(workplace.registry).get(ref).read("certificate.json"))["metrics"]
    content = encoded({**certificate, "metrics": norms})
    return republish(workplace, ref, {"certificate.json": content}, certificate=certificate)


def encoded(document: object) -> bytes:
    return json.dumps(document).encode()


@contextlib.contextmanager
def served(workplace: Workplace) -> Iterator[str]:
    """The URL of a server in this process, with the highest versions of a registry."""
    from server_helpers import serve
    from stablernn_server import Settings, create_app

    with contextlib.contextmanager(serve)(create_app(Settings(registry=workplace.registry))) as running:
        yield running.url


def post(url: str, body: object) -> Any:
    """The JSON document that a server answers."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@contextlib.contextmanager
def copied(source: Workplace, folder: Path) -> Iterator[Workplace]:
    """A copy of a workplace at ``folder``, to change."""
    shutil.copytree(source.folder, folder)
    yield Workplace(folder)
    # Published files are read-only, which must not keep pytest from clearing up.
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def command(*arguments: object) -> list[str]:
    """A command line that runs without the installed script."""
    return [sys.executable, "-m", "stablernn_cli", *words(*arguments)]


def words(*arguments: object) -> list[str]:
    """Split the first argument as a shell does, and take the others as they are."""
    return [*shlex.split(str(arguments[0])), *map(str, arguments[1:])] if arguments else []


def write_load(path: Path, columns: tuple[str, ...] = ("heat", "power", "wind"), steps: int = STEPS) -> None:
    """A wide CSV of daily values with a week's rhythm; one value is missing."""
    day = np.arange(steps)
    values = {
        "heat": 20 + 5 * np.sin(2 * np.pi * day / 7),
        "power": 300 + 40 * np.cos(2 * np.pi * day / 7) + day / 10,
        "wind": 4 + np.sin(day),
    }
    dates = np.datetime_as_string(np.datetime64("2024-01-01") + day, unit="D")
    lines = [",".join(("ds", *columns))]
    for number, date in enumerate(dates):
        shown = ["" if (name, number) == ("wind", 10) else f"{values[name][number]:.4f}" for name in columns]
        lines.append(",".join((str(date), *shown)))
    path.write_text("\n".join(lines) + "\n")


def first_document(stream: IO[str]) -> Any:
    """The JSON document that a running command has printed so far."""
    lines = []
    for line in stream:
        lines.append(line)
        if line == "}\n":
            break
    return json.loads("".join(lines))


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """A command sets up the logging of its process; here others come after it."""
    loggers = [
        logging.getLogger(name) for name in (None, "stablernn_server", "stablernn_server.access", "stablernn_runtime")
    ]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    try:
        yield
    finally:
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.propagate = propagate
            logger.handlers[:] = handlers


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
