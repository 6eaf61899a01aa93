"""A run directory: one training run as files, written so that it can be resumed after a stop at any moment.

``config.yaml`` (resolved settings), ``env.json``, ``data.json``, ``metrics.jsonl`` (a line an epoch), ``checkpoints/``
(``best`` and ``last``, and one of each epoch where they are kept), ``plots/``, ``example.json`` (where there are
figures: a sample that the model was not fitted on), ``choice.json`` (how the settings were chosen, where they were),
``calibration.json`` (what was fitted after training or by a search, where anything was) and, when the run is done,
``summary.json``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn.atomic_files import read_json, to_json_types, write_bytes
from stablernn.errors import CheckpointError
from stablernn_registry.atomic_io import lock_is_free, lock_open_file

if TYPE_CHECKING:
    from stablernn.training.loop.checkpoint import Checkpoint


_DATA_KEYS = frozenset({"name", "task", "fingerprint", "scaling"})
"""Keys of ``data.json`` that every run has."""


class RunDirectory:
    """Paths of a run's files, and the recorder of its trainer.

    Args:
        path: The directory, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "env.json"
        self.data = path / "data.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.calibration = path / "calibration.json"
        self.choice = path / "choice.json"
        self.example = path / "example.json"
        self.plots = path / "plots"

    @property
    def has_run(self) -> bool:
        return self.config.exists()

    def read_data(self) -> dict[str, Any]:
        """Return the content of ``data.json``.

        Raises:
            CheckpointError: If it cannot be read, or does not describe data.
        """
        content = read_json(self.data)
        missing = _DATA_KEYS if not isinstance(content, dict) else _DATA_KEYS - content.keys()
        if missing:
            raise CheckpointError(
                f"'{self.data}' does not describe the data of a run: it has no '{min(missing)}'. Restore the file, or "
                "train again."
            )
        return dict(content)

    def checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        # Imported here: programs that read a run's JSON files need no torch.
        from stablernn.training.loop.checkpoint import save_checkpoint

        self.checkpoint(name).parent.mkdir(exist_ok=True)
        save_checkpoint(self.checkpoint(name), checkpoint)

    def record(self, line: dict[str, Any]) -> None:
        # The whole file is replaced in one move: a kill while a line is appended would leave half of it.
        before = self.metrics.read_bytes() if self.metrics.exists() else b""
        write_bytes(self.metrics, before + _encode([to_json_types(line)]))

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``.

        Raises:
            CheckpointError: If the file cannot be read, or a line is not JSON.
        """
        if not self.metrics.exists():
            return []
        try:
            lines = self.metrics.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"'{self.metrics}' cannot be read: {error}.") from error
        return [self._parse_record(number, line) for number, line in enumerate(lines, start=1)]

    def _parse_record(self, number: int, line: str) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"Line {number} of '{self.metrics}' is not a JSON object. Restore the file, or train again."
            ) from error

    def drop_records_after(self, epoch: int) -> None:
        """Remove the lines of epochs that a resumed run trains again."""
        if self.metrics.exists():
            write_bytes(self.metrics, _encode([line for line in self.records() if line["epoch"] <= epoch]))


def _encode(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def new_directory(dataset: str, cell: str, root: Path = Path("runs")) -> Path:
    """Create ``<dataset>-<cell>-<number>`` in a folder, with the first number that is free.

    Args:
        dataset: Name of the data.
        cell: Key of the cell.
        root: The folder; it is created if it does not exist.

    Raises:
        OSError: If it cannot be created.
    """
    stem = dataset.lower().removesuffix(".gz").rsplit(".", 1)[0]
    slug = re.sub(r"[^a-z0-9_-]+", "-", stem).strip("-") or "data"
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / f"{slug}-{cell}-{number}"
        # mkdir fails if another run took the number in between, so that two runs never share a directory.
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


@contextmanager
def mark_running(path: Path) -> Iterator[None]:
    """Mark a run directory for :func:`is_running` inside the ``with`` block."""
    if os.name == "nt":
        # Windows opens no folders: nothing is marked.
        yield
        return
    # The directory itself, and no file in it: resuming replaces the files, and a lock stays with the replaced one.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Shared: training waits for no other training, and for `is_running` microseconds at most. Where the file system
        # has no locks, the run counts as stopped until it is done.
        lock_open_file(descriptor, shared=True)
        yield
    finally:
        os.close(descriptor)


def is_running(path: Path) -> bool:
    """Return True if a process on this machine trains the run; False also where the file system has no locks."""
    return lock_is_free(path, os.O_RDONLY) is False
