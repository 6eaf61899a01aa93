"""The interface of a kind of table: what is trained, what is measured, and which figures come of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stablernn.training.jobs import Job, run_jobs
from stablernn_papers.folder import ReproductionFolder, Run
from stablernn_papers.progress import run_settings
from stablernn_papers.table import Protocol, Table
from stablernn_papers.training_runs import Length

Report = Callable[[str], None]
RunResult = dict[str, Any]


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
