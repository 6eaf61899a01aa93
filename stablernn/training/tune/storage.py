"""Storages of studies: a journal in the study's folder, or a database that several machines share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial

from stablernn.errors import ConfigError

HEARTBEAT_SECONDS = 60
"""Interval at which a machine tells a database that its trials are alive."""
GRACE_SECONDS = 300
"""Silence after which another machine takes a trial for dead: four heartbeats may be lost."""

OnStale = Callable[[Study, FrozenTrial], None]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what Optuna says about experimental arguments and in its log; errors still raise."""
    optuna.logging.disable_default_handler()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Heartbeats are recorded by the search here, which Optuna knows of its own loop only.
        warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed to be used")
        yield


class _JournalLock(JournalFileOpenLock):
    """A lock on a journal that the operating system frees with its process, however that ends.

    Optuna's own locks are files that a killed process leaves behind, and others wait half a minute for it.

    Args:
        path: The journal.
    """

    def __init__(self, path: Path) -> None:
        # Not the name of the files of Optuna's locks, which mean something by their existence.
        self._file_lock = filelock.FileLock(path.with_suffix(".lock"))

    def acquire(self) -> bool:
        self._file_lock.acquire()
        return True

    def release(self) -> None:
        self._file_lock.release()


def open_journal(path: Path) -> JournalStorage:
    """Return the storage of a journal, which is created.

    Raises:
        ConfigError: If it is not the journal of a study.
    """
    lock = _JournalLock(path)
    if path.is_file():
        lock.acquire()
        try:
            _drop_partial_line(path)
        finally:
            lock.release()
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"'{path}' is not the journal of a study, or is damaged: {error}. Restore the file, or name another folder "
            "with --output."
        ) from error


def _drop_partial_line(path: Path) -> None:
    """Cut off a last line that a power cut left unfinished: no line could be appended to it."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


def without_password(url: str) -> str:
    """Return the address of a database as messages and files may have it.

    Raises:
        ConfigError: If it is none.
    """
    # SQLAlchemy is imported where a database is used.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "--storage is the address of a database as SQLAlchemy takes it, such as sqlite:///study.db or "
            f"postgresql://user:password@host/database, got '{url}'. Leave it out for a journal in --output."
        ) from None


def open_database(url: str, on_stale: OnStale) -> RDBStorage:
    """Return the storage of a database, in which tables are created.

    Args:
        url: Its address.
        on_stale: Called with a trial that was marked as failed, since no machine has told that it is alive.

    Raises:
        ConfigError: If it cannot be opened.
    """
    from sqlalchemy.exc import SQLAlchemyError

    options: dict[str, Any] = {"heartbeat_interval": HEARTBEAT_SECONDS, "grace_period": GRACE_SECONDS}
    try:
        with quiet():
            return RDBStorage(url, **options, heartbeat_stale_trial_callback=on_stale)
    except ImportError as error:
        raise ConfigError(
            f"The database '{without_password(url)}' needs a driver that is not installed: {error.__cause__ or error}. "
            "Install it with pip."
        ) from error
    except (SQLAlchemyError, RuntimeError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        raise ConfigError(
            f"Cannot open the database '{without_password(url)}': {reason.removesuffix('.')}. Check its address and "
            "that it can be reached, or leave --storage out for a journal in --output."
        ) from error
