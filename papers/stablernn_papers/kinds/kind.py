"""The interface of a kind of table: what is trained, what is measured, and which figures come of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json, write_json
from stablernn.errors import ConfigError
from stablernn.training.jobs import Job, run_jobs
from stablernn.training.loop.device import environment
from stablernn_papers.folder import ReproductionFolder, Run
from stablernn_papers.results import run_settings
from stablernn_papers.table import Protocol, Table

Report = Callable[[str], None]
RunResult = dict[str, Any]


@dataclass(frozen=True)
class Length:
    """A length to which runs of the full protocol are cut; with neither it is the whole.

    Attributes:
        epochs: Epochs at most.
        steps: Optimizer steps at most.
    """

    epochs: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Request:
    """A reproduction that was asked for.

    Attributes:
        table: The table.
        rules: The protocol.
        folder: The folder.
        runs: The runs that were asked for, in order.
        length: Length to which training is cut.
        partial_data: Whether a data set of which only a part is on disk is accepted.
        jobs: Number of parallel processes.
        match_accuracy: Validation accuracy at which models are compared, for tables that do so.
        report: Function that is called with a sentence about each finished job, and about other processes.
    """

    table: Table
    rules: Protocol
    folder: ReproductionFolder
    runs: Sequence[Run]
    length: Length = field(default_factory=Length)
    partial_data: bool = False
    jobs: int = 1
    match_accuracy: float | None = None
    report: Report = print

    def run_remaining(self, remaining: Sequence[Job], action: str, total: int) -> None:
        """Run the remaining jobs of a total, and report each one that is done."""
        count = total - len(remaining)

        def report_done(job: Job) -> None:
            nonlocal count
            count += 1
            self.report(f"{action} {count} of {total}: {job.name}")

        run_jobs(remaining, self.jobs, self.folder.locks, report_done, self.report)

    def describe(self, run: Run) -> RunResult:
        """Return the part of a run's description that all kinds have."""
        return {
            "row": run.row.key,
            "cell": run.row.cell,
            "data": run.data.key,
            "seed": run.seed,
            "settings": run_settings(self.table, run.row, run.data, self.rules.name),
        }


@dataclass(frozen=True)
class Outcome:
    """The figures that a reproduction measured.

    Attributes:
        runs: Every finished run of the folder: :meth:`Request.describe`, ``hidden_size``, ``parameters``, ``seconds``,
            ``threads``, ``length`` (None without training), ``views`` (the epoch that each view shows, None if it has
            none) and ``measured`` (for each such epoch ``figures`` by name and the ``kind`` of the certificate).
        document: Further entries of the results.
    """

    runs: list[RunResult]
    document: dict[str, Any] = field(default_factory=dict)


class Kind(ABC):
    """A kind of table."""

    views: Sequence[str]
    """Names of the views, each of which shows every run at one epoch."""

    @abstractmethod
    def prepare(self, request: Request) -> dict[str, str]:
        """Load what the runs need and check finished ones, before the folder is written to.

        Returns:
            Fingerprints of the data sets by their key.
        """

    @abstractmethod
    def work(self, request: Request) -> Outcome:
        """Train and measure what is not done yet, and return the figures of all finished runs of the folder."""

    def draw(self, path: Path, table: Table, results: Mapping[str, Any]) -> None:
        """Draw the figure of the table, if it has one."""
        return None


class MeasuredKind(Kind):
    """A table of measurements that need no training.

    A file ``measured/ROW-SEED.json`` holds the measurement of each row.
    """

    views = ("measured",)

    def prepare(self, request: Request) -> dict[str, str]:
        if request.length != Length() or request.partial_data:
            raise ConfigError(
                f"'{request.table.key}' trains nothing: epochs, steps, partial data are not used by it. Leave them out."
            )
        return {}

    def work(self, request: Request) -> Outcome:
        # Rows are measured together, to be compared: by one process, for which the others wait.
        request.folder.locks.exclusively("measured", lambda: self._measure_remaining(request), request.report)
        runs = [
            request.folder.run(row, data, seed)
            for data in request.folder.data_sets
            for row in request.table.rows_on(data)
            for seed in sorted({*request.rules.seeds, *(run.seed for run in request.runs)})
        ]
        return Outcome([self._describe(request, run) for run in runs if request.folder.measurement(run).is_file()])

    def _measure_remaining(self, request: Request) -> None:
        remaining = [run for run in request.runs if not request.folder.measurement(run).is_file()]
        measured = self.measure(request, remaining)
        for number, (run, measurement) in enumerate(measured, 1):
            write_json(request.folder.measurement(run), measurement | {"environment": _machine()})
            request.report(f"measured {number} of {len(measured)}: {run.name}")

    @abstractmethod
    def measure(self, request: Request, runs: list[Run]) -> list[tuple[Run, dict[str, Any]]]:
        """Measure rows.

        Returns:
            For each row that could be measured ``figures`` by name, ``hidden_size``, ``parameters`` (None without a
            model) and ``seconds``; other entries are kept.
        """

    def _describe(self, request: Request, run: Run) -> RunResult:
        measurement: dict[str, Any] = read_json(request.folder.measurement(run))
        machine = measurement.pop("environment")
        return {
            **request.describe(run),
            "length": None,
            "partial_data": None,
            **{key: machine[key] for key in ("commit", "time", "device", "threads")},
            **{key: value for key, value in measurement.items() if key != "figures"},
            "views": {"measured": 0},
            "measured": [{"epoch": 0, "kind": None, "figures": measurement["figures"]}],
        }


def _machine() -> dict[str, Any]:
    import torch

    return environment(torch.device("cpu"))
