"""Tables of accuracy under attack and of the curvature of the loss, in two views of the same runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablernn.atomic_files import read_json, write_json
from stablernn.certificates.certificate import prove
from stablernn.data import ClassificationData
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import Classifier
from stablernn.robustness.hessian import loss_hessian
from stablernn.robustness.report import robustness
from stablernn.training import TorchPredictor, load_run, predict
from stablernn.training.evaluation.scorers import ClassificationScorer
from stablernn.training.jobs import Job
from stablernn.training.loop.device import torch_settings
from stablernn.training.loop.minibatches import Batch
from stablernn_papers.folder import Run
from stablernn_papers.kinds.kind import Outcome, Request, RunResult
from stablernn_papers.kinds.trained import TrainedKind
from stablernn_papers.plots import plot_robustness
from stablernn_papers.table import Curvature, Protocol, ProtocolName, Table
from stablernn_papers.tables import published_table

WHOLE, MATCHED = "whole", "matched"
"""Views of the same runs: the best weights, and those of the first epoch with a common validation accuracy."""


class RobustnessKind(TrainedKind):
    """Robustness reports of the best weights, and of those of the first epoch at a common validation accuracy."""

    views = (WHOLE, MATCHED)

    def work(self, request: Request) -> Outcome:
        table, folder = request.table, request.folder
        runs = self.train(request)
        target = request.match_accuracy or min(max(run.accuracies.values()) for run in runs)
        views = {run.path: _view_epochs(run, target) for run in runs}
        # By file, so that an epoch that is in both views is measured once.
        files = {
            folder.measurement(run, epoch): (run, epoch)
            for run in runs
            for epoch in views[run.path].values()
            if epoch is not None
        }
        jobs = [
            Job(
                f"{run.name}, epoch {epoch}",
                measure_run,
                (run.path, epoch, table.key, request.rules.name, path),
                key=f"measured-{path.stem}",
                is_done=path.is_file,
            )
            for path, (run, epoch) in files.items()
            if not path.is_file()
        ]
        request.run_remaining(jobs, "measured", len(files))
        return Outcome(
            [self._describe(request, run, views[run.path]) for run in runs],
            {"match": {"validation_accuracy": target, "given": request.match_accuracy is not None}},
        )

    def _describe(self, request: Request, run: Run, views: Mapping[str, int | None]) -> RunResult:
        epochs = sorted({epoch for epoch in views.values() if epoch is not None})
        measurements = [read_json(request.folder.measurement(run, epoch)) for epoch in epochs]
        return {
            **self.describe_training(request, run),
            "validation_accuracies": list(run.accuracies.values()),
            "views": dict(views),
            "measured": [
                {**measurement, "figures": extract_figures(measurement, request.table.headline)}
                for measurement in measurements
            ],
        }

    def draw(self, path: Path, table: Table, results: Mapping[str, Any]) -> None:
        plot_robustness(path, results)


def measure_run(directory: Path, epoch: int, key: str, protocol: ProtocolName, path: Path) -> None:
    """Measure a run after one epoch and write the measurement to a file."""
    write_json(path, measure(directory, epoch, published_table(key).protocol(protocol)))


def _view_epochs(run: Run, target_accuracy: float) -> dict[str, int | None]:
    """Return the epoch whose weights each view uses."""
    return {WHOLE: read_json(run.directory.summary)["best_epoch"], MATCHED: run.first_epoch_at(target_accuracy)}


ATTACKS = {"pgd": ("pgd", "linf"), "deepfool_l2": ("deepfool", "l2"), "deepfool_linf": ("deepfool", "linf")}
"""Attack and norm of each figure that is an accuracy under attack at the budget of the table."""


def measure(run: Path, epoch: int, protocol: Protocol) -> dict[str, Any]:
    """Measure the weights of a run after one epoch.

    Args:
        run: Run directory.
        epoch: Epoch after which the weights were stored.
        protocol: The measurements to take and their settings.

    Returns:
        ``epoch``; ``accuracy`` on the whole test split and ``validation_accuracy``; ``kind`` of the certificate; if the
        protocol asks for them, the ``robustness`` report with changes in raw units, and the ``hessian``.
    """
    # One thread and a fixed seed, so that a measurement can be repeated to the last digit.
    with torch_settings(torch.device("cpu"), seed=0, threads=1):
        loaded = load_run(run, epoch)
        data, model = loaded.load_data(), loaded.model
        assert isinstance(data, ClassificationData)
        assert isinstance(model, Classifier)
        scores = {}
        for split in ("validation", "test"):
            scorer = ClassificationScorer(data, split)
            scores[split] = scorer.score(predict(TorchPredictor(model), scorer.source))["accuracy"]
        measurement: dict[str, Any] = {
            "epoch": epoch,
            "accuracy": scores["test"],
            "validation_accuracy": scores["validation"],
            "kind": prove(model).kind,
        }
        raw_model = in_raw_units(model)
        if protocol.attacks is not None:
            measurement["robustness"] = robustness(raw_model, data, "test", protocol.attacks)
            # The copy in raw units has other weights, so its digest matches no file.
            measurement["robustness"].pop("weights", None)
        if protocol.curvature is not None:
            measurement["hessian"] = _measure_hessian(raw_model, data, protocol.curvature)
    return measurement


def extract_figures(measurement: Mapping[str, Any], headline: Mapping[str, float]) -> dict[str, float | None]:
    """Extract the figures for the columns of a table.

    Args:
        measurement: Result of :func:`measure`.
        headline: The budget of each figure of :data:`ATTACKS`, which must be in the report.

    Returns:
        ``accuracy``; with a robustness report the figures of :data:`ATTACKS` and ``median_radius``; with a Hessian
        ``hessian_largest``, ``hessian_trace`` and ``hessian_condition``.
    """
    figures: dict[str, float | None] = {"accuracy": measurement["accuracy"]}
    report, hessian = measurement.get("robustness"), measurement.get("hessian")
    if report is not None:
        for figure, (name, norm) in ATTACKS.items():
            attack = next(entry for entry in report["attacks"] if (entry["name"], entry["norm"]) == (name, norm))
            figures[figure] = attack["accuracy"][attack["budgets"].index(headline[figure])]
        figures["median_radius"] = report["certified"]["median_radius"]
    if hessian is not None:
        figures["hessian_largest"] = hessian["largest"]
        figures["hessian_trace"] = hessian["trace"]
        figures["hessian_condition"] = hessian["condition_number"]
    return figures


def in_raw_units(model: Classifier) -> Classifier:
    """Return the same function as a network that only subtracts the mean, so that changes are in raw units.

    The scale is moved into the input weights, with respect to which the curvature is measured too.

    Args:
        model: Model of one layer with the scaling ``standard`` or ``none`` and a cell whose input is multiplied by
            ``weight_ih``; it is not changed.
    """
    raw_model = copy.deepcopy(model)
    (stack,) = (stack for stack in raw_model.rnn.stacks if isinstance(stack, StableRNN))
    (cell,) = stack.cells
    weight = cell.weight_ih
    assert isinstance(weight, torch.nn.Parameter)
    assert raw_model.scaling.kind in ("standard", "none")
    assert weight.shape[1] == len(raw_model.scaling.scale)
    with torch.no_grad():
        # W ((x - mean) / scale) = (W / scale) (x - mean)
        weight.div_(raw_model.scaling.scale)
        raw_model.scaling.scale.fill_(1)
    return raw_model


def _measure_hessian(model: Classifier, data: ClassificationData, curvature: Curvature) -> dict[str, Any]:
    count = len(data.train)
    indices = np.sort(np.random.default_rng(0).permutation(count)[: curvature.sequences])
    samples = data.train.gather(indices)
    batch = Batch(torch.from_numpy(samples.x), torch.from_numpy(samples.lengths), torch.from_numpy(samples.y))
    return loss_hessian(model, batch, steps=curvature.steps)
