"""The folder of a study: its journal, the run directories of its trials, results and figures."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from stablernn.atomic_files import read_json, write_json
from stablernn.errors import CheckpointError, ConfigError

JOURNAL = "journal"
"""Storage of a study that has no database."""


def default_output(source: str, cells: Sequence[str]) -> Path:
    """Return the default folder of a study, below ``tuning`` in the working directory.

    Args:
        source: Name of the dataset or path of the file.
        cells: Keys of the cells; empty for those of the recipes of `stablernn train`.
    """
    stem = Path(source).name.lower().removesuffix(".gz").rsplit(".", 1)[0]
    slug = re.sub(r"[^a-z0-9_-]+", "-", stem).strip("-") or "data"
    return Path("tuning") / "-".join([slug, *(cells or ("auto",))])


@dataclass(frozen=True)
class Identity:
    """The names that tie a folder to a study.

    Attributes:
        folder: Random name of the folder, by which its trials know it among those of other machines, wherever it lies.
        study: Name of the study.
        storage: ``journal``, or the address of the database without its password.
    """

    folder: str
    study: str
    storage: str


class StudyFolder:
    """Files of a study on this machine.

    Args:
        path: The folder, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity = path / "study.json"
        self.journal = path / "journal.log"
        self.trials = path / "trials"
        self.results = path / "results.json"
        self.plots = path / "plots"

    def run(self, name: str) -> Path:
        """Return the run directory of a trial by its name."""
        return self.trials / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from starting trials or declaring them dead; held for moments."""
        with filelock.FileLock(self.path / ".lock"):
            yield

    def check_storage(self, storage: str) -> None:
        """Refuse a storage other than that of the study, if there is one.

        Raises:
            ConfigError: If the folder belongs to a study in another storage.
        """
        if self.identity.is_file():
            self._read_identity(storage)

    def claim(self, storage: str) -> Identity:
        """Return the identity of the folder, which is created; its study is that of ``storage``.

        Args:
            storage: As of :class:`Identity`.

        Raises:
            ConfigError: If the folder cannot be created, or belongs to a study in another storage.
        """
        try:
            self.trials.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Cannot create the folder '{error.filename}': {error.strerror}.") from error
        with self.locked():
            if not self.identity.is_file():
                # The name is stored, so that the folder can be moved.
                identity = Identity(uuid.uuid4().hex, self.path.resolve().name, storage)
                write_json(self.identity, vars(identity))
                return identity
        return self._read_identity(storage)

    def _read_identity(self, storage: str) -> Identity:
        content = read_json(self.identity)
        try:
            identity = Identity(**content)
        except TypeError:
            raise CheckpointError(
                f"'{self.identity}' does not describe a study. Restore the file, or name another folder with --output."
            ) from None
        if identity.storage != storage:
            raise ConfigError(
                f"The study in '{self.path}' is stored in '{identity.storage}', got '{storage}'. Give the same "
                "--storage, or name another folder with --output."
            )
        return identity
