"""Where a reproduction lies: ordinary run directories, what was measured of them, and the results."""

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
"""Below the working directory."""


def default_folder(root: Path, table: Table, protocol: ProtocolName) -> Path:
    """Where a table goes unless a folder is named: one for each protocol, so that none replaces the other."""
    return root / (table.key if protocol == FULL else f"{table.key}-{protocol}")


@dataclass(frozen=True)
class Run:
    """One model of a table.

    Attributes:
        cell: Key of the catalog.
        seed: Of its training.
        path: Its run directory.
    """

    cell: str
    seed: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.cell}, seed {self.seed}"

    @property
    def directory(self) -> RunDirectory:
        # Tables are listed without torch, which this module imports.
        from stablernn.training.run_directory import RunDirectory

        return RunDirectory(self.path)

    @property
    def is_done(self) -> bool:
        return (self.path / "summary.json").is_file()

    @property
    def accuracies(self) -> dict[int, float]:
        """Validation accuracy after each epoch."""
        return {line["epoch"]: line["validation"]["accuracy"] for line in self.directory.records()}

    def first_epoch_at(self, accuracy: float) -> int | None:
        """The first epoch that reaches a validation accuracy; None where none does."""
        return next((epoch for epoch, reached in self.accuracies.items() if reached >= accuracy), None)


class Folder:
    """Names of the files of one reproduction.

    Args:
        path: The folder; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.protocol = path / "protocol.json"
        self.results = path / "results.json"
        self.page = path / "table.md"

    def picture(self, table: Table) -> Path:
        return self.path / f"{table.key}.png"

    def run(self, cell: str, seed: int) -> Run:
        return Run(cell, seed, self.path / "runs" / f"{cell}-{seed}")

    def finished(self, table: Table) -> list[Run]:
        """The runs that are done, in the order of the table, then by seed."""
        found = []
        for cell in table.cells:
            seeds = [path.name.removeprefix(f"{cell}-") for path in (self.path / "runs").glob(f"{cell}-*")]
            runs = [self.run(cell, seed) for seed in sorted(int(seed) for seed in seeds if seed.isdecimal())]
            found += [run for run in runs if run.is_done]
        return found

    def measured(self, run: Run, epoch: int) -> Path:
        return self.path / "measured" / f"{run.cell}-{run.seed}-epoch-{epoch}.json"

    def begin(self, protocol: Mapping[str, Any]) -> None:
        """Keep what all runs of the folder share, or hold it against what is there.

        Raises:
            ConfigError: If the folder cannot be made, or holds something else.
        """
        try:
            for part in ("runs", "measured"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Cannot make the folder '{error.filename}': {error.strerror}.") from error
        now = to_json_types(protocol)
        if not self.protocol.is_file():
            if any((self.path / "runs").iterdir()):
                raise ConfigError(
                    f"'{self.path}' has runs and no protocol.json, so that nobody knows how they were made. Name "
                    "another folder with --output."
                )
            write_json(self.protocol, now)
            return
        before = read_json(self.protocol)
        different = [key for key in now if before.get(key) != now[key]]
        if different:
            raise ConfigError(
                f"'{self.path}' holds the {before.get('name')} reproduction of '{before.get('table')}', and what is "
                f"asked for differs in {', '.join(different)}. Name another folder with --output, or remove this one."
            )

    def read_results(self) -> dict[str, Any] | None:
        """What was found; None where nothing was yet, or what is there cannot be read."""
        try:
            found = read_json(self.results)
        except CheckpointError:
            return None
        return found if isinstance(found, dict) else None
