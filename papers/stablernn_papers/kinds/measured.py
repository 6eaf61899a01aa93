"""Kinds of tables whose rows are measured without training."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from stablernn.atomic_files import read_json, write_json
from stablernn.errors import ConfigError
from stablernn.training.loop.device import environment
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Kind, Outcome, Request, RunResult
from stablernn_papers.training_runs import Length


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
