"""Folder of a reproduction: ordinary run directories, their measurements, and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn.atomic_files import read_json, to_json_types, write_json
from stablernn.errors import ConfigError
from stablernn_papers.table import FULL, DataSet, ProtocolName, Row, Table

if TYPE_CHECKING:
    from stablernn.training.jobs import JobLocks
    from stablernn.training.run_directory import RunDirectory

ROOT = Path("reproductions")
"""Default folder of all reproductions, relative to the working directory."""


def default_folder(root: Path, table: Table, protocol: ProtocolName) -> Path:
    """Return the default folder of a table; each protocol has its own, so that none overwrites another."""
    return root / (table.key if protocol == FULL else f"{table.key}-{protocol}")


@dataclass(frozen=True)
class Run:
    """One row of a table on one data set with one seed: a training run, or a measurement without training.

    Attributes:
        row: The row.
        data: The data set.
        seed: Seed of the training.
        path: The run directory.
        label: Row and data set in messages; the row alone where there is one data set.
    """

    row: Row
    data: DataSet
    seed: int
    path: Path
    label: str

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def directory(self) -> RunDirectory:
        # Imported here because it loads torch, which listing tables does not need.
        from stablernn.training.run_directory import RunDirectory

        return RunDirectory(self.path)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Content of ``summary.json``; None while the run is not done."""
        path = self.path / "summary.json"
        return dict(read_json(path)) if path.is_file() else None

    @property
    def is_done(self) -> bool:
        return (self.path / "summary.json").is_file()

    @property
    def accuracies(self) -> dict[int, float]:
        """Validation accuracy after each epoch, by epoch number."""
        return {line["epoch"]: line["validation"]["accuracy"] for line in self.directory.records()}

    def first_epoch_at(self, accuracy: float) -> int | None:
        """Return the first epoch with at least this validation accuracy; None if there is none."""
        epochs = (epoch for epoch, epoch_accuracy in self.accuracies.items() if epoch_accuracy >= accuracy)
        return next(epochs, None)


class ReproductionFolder:
    """Files of one reproduction.

    Args:
        path: The folder, which may not exist yet.
        table: The table.
        protocol: The protocol.
    """

    def __init__(self, path: Path, table: Table, protocol: ProtocolName) -> None:
        self.path = path
        self.table = table
        self.data_sets = table.data_sets(protocol)
        self.protocol = path / "protocol.json"
        self.results = path / "results.json"
        self.page = path / "table.md"
        self.figure = path / f"{table.key}.png"

    def run(self, row: Row, data: DataSet, seed: int) -> Run:
        """Return the run of a row on a data set, whose name is in the folder's name where there are several."""
        stem, label = row.key, row.key
        if len(self.data_sets) > 1:
            stem, label = f"{row.key}-{data.key}", f"{row.key}, {data.key}"
        return Run(row, data, seed, self.path / "runs" / f"{stem}-{seed}", label)

    def known_runs(self) -> list[Run]:
        """Return the runs whose folders exist, in the order of the data sets, then of the rows, then by seed."""
        runs = []
        for data in self.data_sets:
            for row in self.table.rows_on(data):
                prefix = self.run(row, data, 0).path.name.removesuffix("0")
                # Folders of other names are not ours, and are ignored.
                seeds = [path.name.removeprefix(prefix) for path in (self.path / "runs").glob(f"{prefix}*")]
                runs += [self.run(row, data, seed) for seed in sorted(int(seed) for seed in seeds if seed.isdecimal())]
        return runs

    def finished_runs(self) -> list[Run]:
        """Return the runs that are done."""
        return [run for run in self.known_runs() if run.is_done]

    def measurement(self, run: Run, epoch: int | None = None) -> Path:
        """Return the file of a measurement of a run, at one epoch where the kind of the table has several."""
        suffix = "" if epoch is None else f"-epoch-{epoch}"
        return self.path / "measured" / f"{run.path.name}{suffix}.json"

    @property
    def locks(self) -> JobLocks:
        """Locks of the runs and measurements."""
        # Imported here because it loads torch, which listing tables does not need.
        from stablernn.training.jobs import JobLocks

        return JobLocks(self.path / ".locks")

    def create(self) -> None:
        """Create the folder.

        Raises:
            ConfigError: If it cannot be created.
        """
        try:
            for name in ("runs", "measured"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Cannot create the folder '{error.filename}': {error.strerror}.") from error

    def prepare(self, protocol: Mapping[str, Any], data: Mapping[str, str]) -> None:
        """Store the protocol that all runs of the folder share, or compare it with the stored one.

        Args:
            protocol: Table, name of the protocol, and settings of measurements.
            data: Fingerprints of the data sets that are to be used, by key.

        Raises:
            ConfigError: If the folder contains another reproduction.
        """
        # As JSON types, because a tuple would differ from the list that is read back.
        requested = dict(to_json_types(protocol))
        stored: dict[str, Any] = {}
        if self.protocol.is_file():
            stored = read_json(self.protocol)
            differing = [key for key in requested if stored.get(key) != requested[key]]
            stored_data = stored.get("data", {})
            differing += [f"data of {key}" for key, value in data.items() if stored_data.get(key, value) != value]
            if differing:
                self._refuse(stored, differing)
        elif self._has_unknown_files():
            raise ConfigError(
                f"'{self.path}' has runs but no protocol.json, so their settings are unknown. Name another "
                "folder with --output."
            )
        merged = {**requested, "data": {**stored.get("data", {}), **data}}
        if merged != stored:
            write_json(self.protocol, merged)

    def _has_unknown_files(self) -> bool:
        """Return True if there is a measurement, or a folder that is no run and whose settings nobody can compare."""
        is_run = [(path / "config.yaml").is_file() for path in (self.path / "runs").iterdir()]
        return not all(is_run) or any((self.path / "measured").iterdir())

    def _refuse(self, stored: Mapping[str, Any], differing: Sequence[str]) -> None:
        raise ConfigError(
            f"'{self.path}' contains the {stored.get('name')} reproduction of '{stored.get('table')}', and the "
            f"requested one differs in {', '.join(differing)}. Name another folder with --output, or remove "
            "this one."
        )
