"""The figures of one trained model at one epoch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablernn.certificates.certificate import prove
from stablernn.data import ClassificationData
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import Classifier
from stablernn.reproduce.table import Curvature, Protocol
from stablernn.robustness.hessian import loss_hessian
from stablernn.robustness.report import robustness
from stablernn.training import TorchPredictor, load_run, predict
from stablernn.training.batches.losses import Batch
from stablernn.training.evaluation.scorers import ClassificationScorer
from stablernn.training.loop.device import torch_settings

ATTACKS = {"pgd": ("pgd", "linf"), "deepfool_l2": ("deepfool", "l2"), "deepfool_linf": ("deepfool", "linf")}
"""Figures that are an accuracy under attack at the table's budget: name and norm of the attack."""


def measure(run: Path, epoch: int, protocol: Protocol) -> dict[str, Any]:
    """What a run's weights after one epoch reach.

    Args:
        run: Its directory.
        epoch: Whose weights.
        protocol: What is measured, and how.

    Returns:
        ``epoch``; ``accuracy`` on the whole test split and ``validation_accuracy``; ``kind`` of what is proved; as far
        as the protocol asks for them the ``robustness`` report, changes in raw units, and the ``hessian``.
    """
    with torch_settings(torch.device("cpu"), seed=0, threads=1):
        loaded = load_run(run, epoch)
        data, model = loaded.load_data(), loaded.model
        assert isinstance(data, ClassificationData)
        assert isinstance(model, Classifier)
        scores = {}
        for split in ("validation", "test"):
            scorer = ClassificationScorer(data, split)
            scores[split] = scorer.score(predict(TorchPredictor(model), scorer.source))["accuracy"]
        found: dict[str, Any] = {
            "epoch": epoch,
            "accuracy": scores["test"],
            "validation_accuracy": scores["validation"],
            "kind": prove(model).kind,
        }
        raw = in_raw_units(model)
        if protocol.attacks is not None:
            found["robustness"] = robustness(raw, data, "test", protocol.attacks)
            # The digest of a copy in raw units is that of no file.
            found["robustness"].pop("weights", None)
        if protocol.curvature is not None:
            found["hessian"] = _hessian(raw, data, protocol.curvature)
    return found


def figures(measured: Mapping[str, Any], headline: Mapping[str, float]) -> dict[str, float | None]:
    """What the columns of a table may show.

    Args:
        measured: What :func:`measure` gives.
        headline: The budget of each figure of :data:`ATTACKS`, one of those in the report.

    Returns:
        ``accuracy``; with a robustness report those of :data:`ATTACKS` and ``median_radius``; with a Hessian
        ``hessian_largest``, ``hessian_trace`` and ``hessian_condition``.
    """
    found: dict[str, float | None] = {"accuracy": measured["accuracy"]}
    report, hessian = measured.get("robustness"), measured.get("hessian")
    if report is not None:
        for figure, (name, norm) in ATTACKS.items():
            attack = next(one for one in report["attacks"] if (one["name"], one["norm"]) == (name, norm))
            found[figure] = attack["accuracy"][attack["budgets"].index(headline[figure])]
        found["median_radius"] = report["certified"]["median_radius"]
    if hessian is not None:
        found["hessian_largest"] = hessian["largest"]
        found["hessian_trace"] = hessian["trace"]
        found["hessian_condition"] = hessian["condition_number"]
    return found


def in_raw_units(model: Classifier) -> Classifier:
    """The same function as a network that takes raw values less their mean, so that changes count in raw units.

    What scaling divides by is taken into the weights of the input, of which curvature is then taken, too.

    Args:
        model: Of one layer with the scaling ``standard`` and a cell whose input acts by ``weight_ih``; it is not
            changed.
    """
    same = copy.deepcopy(model)
    (stack,) = (stack for stack in same.rnn.stacks if isinstance(stack, StableRNN))
    (cell,) = stack.cells
    weight = cell.weight_ih
    assert isinstance(weight, torch.nn.Parameter)
    assert same.scaling.kind == "standard"
    assert weight.shape[1] == len(same.scaling.scale)
    with torch.no_grad():
        weight.div_(same.scaling.scale)
        same.scaling.scale.fill_(1)
    return same


def _hessian(model: Classifier, data: ClassificationData, curvature: Curvature) -> dict[str, Any]:
    count = len(data.train)
    chosen = np.sort(np.random.default_rng(0).permutation(count)[: curvature.sequences])
    samples = data.train.gather(chosen)
    batch = Batch(torch.from_numpy(samples.x), torch.from_numpy(samples.lengths), torch.from_numpy(samples.y))
    return loss_hessian(model, batch, steps=curvature.steps)
