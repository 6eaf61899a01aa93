"""Folder of a reproduction: ordinary run directories, their measurements, and the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn.atomic_files import read_json, to_json_types, write_json
from stablernn.errors import CheckpointError, ConfigError
from stablernn.reproduce.table import FULL, ProtocolName, Table

if TYPE_CHECKING:
    from stablernn.training.run_directory import RunDirectory

ROOT = Path("reproductions")
"""Default folder of all reproductions, relative to the working directory."""


def default_folder(root: Path, table: Table, protocol: ProtocolName) -> Path:
    """Return the default folder of a table; each protocol has its own, so that none overwrites another."""
    return root / (table.key if protocol == FULL else f"{table.key}-{protocol}")


@dataclass(frozen=True)
class Run:
    """The training run of one cell and seed of a table.

    Attributes:
        cell: Key of the cell in the catalog.
        seed: Seed of the training.
        path: The run directory.
    """

    cell: str
    seed: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.cell}, seed {self.seed}"

    @property
    def directory(self) -> RunDirectory:
        # Imported here because it loads torch, which listing tables does not need.
        from stablernn.training.run_directory import RunDirectory

        return RunDirectory(self.path)

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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.protocol = path / "protocol.json"
        self.results = path / "results.json"
        self.page = path / "table.md"

    def figure(self, table: Table) -> Path:
        return self.path / f"{table.key}.png"

    def run(self, cell: str, seed: int) -> Run:
        return Run(cell, seed, self.path / "runs" / f"{cell}-{seed}")

    def finished_runs(self, table: Table) -> list[Run]:
        """Return the runs that are done, in the order of the table, then by seed."""
        finished = []
        for cell in table.cells:
            # Folders of other names are not ours, and are ignored.
            seeds = [path.name.removeprefix(f"{cell}-") for path in (self.path / "runs").glob(f"{cell}-*")]
            runs = [self.run(cell, seed) for seed in sorted(int(seed) for seed in seeds if seed.isdecimal())]
            finished += [run for run in runs if run.is_done]
        return finished

    def measurement(self, run: Run, epoch: int) -> Path:
        return self.path / "measured" / f"{run.cell}-{run.seed}-epoch-{epoch}.json"

    def prepare(self, protocol: Mapping[str, Any]) -> None:
        """Create the folder and store the protocol that all its runs share, or compare it with the stored one.

        Raises:
            ConfigError: If the folder cannot be created, or contains another reproduction.
        """
        try:
            for name in ("runs", "measured"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Cannot create the folder '{error.filename}': {error.strerror}.") from error
        # As JSON types, because a tuple would differ from the list that is read back.
        requested = to_json_types(protocol)
        if not self.protocol.is_file():
            if any((self.path / "runs").iterdir()):
                raise ConfigError(
                    f"'{self.path}' has runs but no protocol.json, so their settings are unknown. Name another "
                    "folder with --output."
                )
            write_json(self.protocol, requested)
            return
        stored = read_json(self.protocol)
        differing_keys = [key for key in requested if stored.get(key) != requested[key]]
        if differing_keys:
            raise ConfigError(
                f"'{self.path}' contains the {stored.get('name')} reproduction of '{stored.get('table')}', and the "
                f"requested one differs in {', '.join(differing_keys)}. Name another folder with --output, or remove "
                "this one."
            )

    def read_results(self) -> dict[str, Any] | None:
        """Return the results; None if there are none yet or the file cannot be read."""
        try:
            results = read_json(self.results)
        except CheckpointError:
            return None
        return results if isinstance(results, dict) else None
