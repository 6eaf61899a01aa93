"""Robustness report of a classifier: attacks, certified radii, noise and curvature, on a sample of sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.certificates.certified_radius import certified_radii
from stablernn.data import ClassificationData
from stablernn.errors import CertificateError, ConfigError
from stablernn.export.step import weights_digest
from stablernn.nn.models import Classifier
from stablernn.robustness.attacks import (
    KINDS,
    Box,
    NoiseInput,
    PerturbedClassifier,
    change_norms,
    deepfool,
    differentiable_copy,
    noise_curve,
    pgd,
)
from stablernn.robustness.hessian import loss_hessian
from stablernn.robustness.settings import NORMS, Norm, Settings
from stablernn.training.evaluation.predictors import BATCH_SIZE
from stablernn.training.evaluation.scorers import ClassificationScorer, PredictorNames, open_classification
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.minibatches import Batch

Array = npt.NDArray[Any]
Stage = Callable[[str], AbstractContextManager[Any]]
"""Returns a context that is entered for a stage of the report, such as a progress display."""

QUANTILES = tuple(index / 20 for index in range(21))
"""Quantiles of the certified radii in the report."""


@dataclass(frozen=True)
class Sample:
    """The sequences on which robustness is measured.

    Attributes:
        batch: The sequences as tensors on the device of the model.
        low: Smallest value of each feature in training, (features,), in raw units.
        high: Largest value of each feature in training, (features,), in raw units.
    """

    batch: Batch
    low: Array
    high: Array


def robustness(
    model: Classifier,
    data: ClassificationData,
    split: str = "test",
    settings: Settings | None = None,
    *,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    stage: Stage | None = None,
) -> dict[str, Any]:
    """Measure the robustness of a classifier; docs/reference/reports.md explains each key of the report.

    Args:
        model: The classifier in evaluation mode; it is not changed.
        data: The dataset; one of its splits is attacked, and curvature is measured on its training split.
        split: The attacked split: train, validation or test.
        settings: Settings of the report; None: the defaults.
        labels: The classes of the model, in its order; None: those of the data.
        features: The features that the model was trained on, in its order; None: those of the data.
        stage: Function that returns a context for each stage, for a progress display.

    Raises:
        DataError: If the split is empty, or the model was trained on another kind of data.
        ConfigError: If no gradient passes the cell.
    """
    if model.rnn.first.cells[0].is_fixed:
        raise ConfigError(
            f"Attacks follow gradients, and none passes the cell '{model.rnn.first.cell}', so that they would find "
            "nothing. Leave the report on robustness out, or take another cell."
        )
    settings, enter_stage = settings or Settings(), stage or (lambda title: nullcontext())
    scorer = open_classification(data, split, PredictorNames(features=features, outputs=labels))
    sample = _draw_sample(model, data, scorer, settings)
    with enter_stage("certified radii"):
        is_correct, radii, reason = _certify(model, sample)
    certified = _certified_document(sample, is_correct, radii, reason, settings)
    attacks = []
    for name, title, attack in (("pgd", "PGD", _run_pgd), ("deepfool", "DeepFool", _run_deepfool)):
        for norm in NORMS:
            with enter_stage(f"{title}, {norm}"):
                results = attack(model, sample, norm, settings)
            setup = {"name": name, "norm": norm, "budgets": list(settings.budgets(norm))}
            attacks.append({**setup, **results, "certified": certified[norm]})
    noise = {}
    for kind in KINDS:
        with enter_stage(f"noise, {kind.replace('_', ' ')}"):
            noise[kind] = _measure_noise(model, sample, kind, settings)
    with enter_stage("curvature of the loss"):
        hessian = _measure_hessian(model, data, labels, settings) if settings.hessian else None
    return {
        "weights": weights_digest(model),
        "data": data.name,
        "split": split,
        "sequences": len(is_correct),
        "accuracy": float(is_correct.mean()),
        "attacks": attacks,
        "certified": certified,
        "noise": noise,
        "hessian": hessian,
        "settings": asdict(settings),
    }


def _draw_sample(
    model: Classifier, data: ClassificationData, scorer: ClassificationScorer, settings: Settings
) -> Sample:
    training_values = [values for values in data.training_values() if len(values)]
    # Data without a training split: the range of the measured split stands in for it.
    low, high = _feature_ranges(
        training_values or [scorer.source.gather(np.arange(scorer.samples)).x.reshape(-1, model.input_size)]
    )
    return Sample(_draw_batch(model, scorer, settings), low, high)


def _draw_batch(model: Classifier, scorer: ClassificationScorer, settings: Settings) -> Batch:
    count = min(settings.sequences, scorer.samples)
    indices = np.sort(np.random.default_rng(settings.seed).permutation(scorer.samples)[:count])
    samples, device = scorer.source.gather(indices), model.scaling.mean.device
    # Padding after the longest sequence of the sample would only cost steps.
    longest = int(samples.lengths.max())
    dt = None if samples.dt is None else torch.from_numpy(samples.dt[:, :longest]).to(device)
    return Batch(
        torch.from_numpy(np.ascontiguousarray(samples.x[:, :longest])).to(device),
        torch.from_numpy(samples.lengths).to(device),
        torch.from_numpy(np.asarray(scorer.truth[indices], dtype=np.int64)).to(device),
        dt,
    )


def _feature_ranges(values: Sequence[Array]) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each feature; 0 for features that were never observed."""
    rows = np.concatenate(values)
    is_observed = ~np.isnan(rows)
    low = np.where(is_observed, rows, np.inf).min(axis=0)
    high = np.where(is_observed, rows, -np.inf).max(axis=0)
    return np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 0.0)


def _certify(model: Classifier, sample: Sample) -> tuple[Array, Array | None, str | None]:
    """Return the mask of correct sequences, and the certified radii or the reason why there are none."""
    batch = sample.batch
    with cached_weights(model):
        logits = [model(batch.x[rows], batch.lengths[rows], _select_rows(batch.dt, rows)) for rows in _slices(batch)]
        is_correct = (torch.cat(logits).argmax(dim=1) == batch.y).cpu().numpy()
        try:
            radii = [certified_radii(model, batch.x[rows], batch.lengths[rows]) for rows in _slices(batch)]
        except CertificateError as error:
            # Many cells have no certificate; the report then contains the reason.
            return is_correct, None, str(error)
    return is_correct, np.concatenate(radii), None


def _certified_document(
    sample: Sample, is_correct: Array, radii: Array | None, reason: str | None, settings: Settings
) -> dict[str, Any]:
    if radii is None:
        empty_fields = dict.fromkeys(("linf", "l2", "median_radius", "radius_quantiles"))
        return {**empty_fields, "reason": reason}
    # A change of at most r in every one of n values has a 2-norm of at most r sqrt(n).
    values = sample.batch.x.shape[2] * sample.batch.lengths.cpu().numpy()
    radii_by_norm = {"linf": radii / np.sqrt(np.maximum(values, 1)), "l2": radii}
    correct_radii = radii[is_correct]
    return {
        **{
            norm: [float((is_correct & (radii_by_norm[norm] >= budget)).mean()) for budget in settings.budgets(norm)]
            for norm in NORMS
        },
        "median_radius": float(np.median(correct_radii)) if len(correct_radii) else None,
        "radius_quantiles": {
            # "lower" returns a radius that exists, so that no sequence is claimed beyond its own radius.
            norm: np.quantile(radii_by_norm[norm][is_correct], QUANTILES, method="lower").tolist()
            if len(correct_radii)
            else []
            for norm in NORMS
        },
        "reason": None,
    }


def _run_pgd(model: Classifier, sample: Sample, norm: Norm, settings: Settings) -> dict[str, Any]:
    """Return the accuracy at each budget.

    A sequence whose label flips at a budget counts as flipped at all larger ones; for the others, the attack at the
    next budget starts from the last change.
    """
    correct_chunks: list[Tensor] = []
    generator = torch.Generator().manual_seed(settings.seed)
    with differentiable_copy(model) as attacked_model:
        for attacked, truth, box in _parts(attacked_model, sample, settings):
            change = torch.zeros_like(attacked.x)
            with torch.no_grad():
                is_correct = attacked(change).argmax(dim=1) == truth
            correct_by_budget = []
            for budget in settings.budgets(norm):
                remaining = is_correct.nonzero()[:, 0]
                if len(remaining):
                    target = attacked.select(remaining)
                    change[remaining] = pgd(
                        target,
                        truth[remaining],
                        target.mask,
                        norm=norm,
                        budget=budget,
                        steps=settings.steps,
                        step=settings.step,
                        start=change[remaining],
                        random_start=settings.random_start,
                        generator=generator,
                        box=None if box is None else box.select(remaining),
                    )
                    with torch.no_grad():
                        is_correct[remaining] = target(change[remaining]).argmax(dim=1) == truth[remaining]
                correct_by_budget.append(is_correct.clone())
            # (sequences, budgets)
            correct_chunks.append(torch.stack(correct_by_budget, dim=1))
    return {"accuracy": torch.cat(correct_chunks).double().mean(dim=0).tolist()}


def _run_deepfool(model: Classifier, sample: Sample, norm: Norm, settings: Settings) -> dict[str, Any]:
    """Return the accuracy at each budget, that after all steps, and the median perturbation."""
    norm_chunks: list[Tensor] = []
    correct_chunks: list[Tensor] = []
    with differentiable_copy(model) as attacked_model:
        for attacked, truth, box in _parts(attacked_model, sample, settings):
            with torch.no_grad():
                correct_chunks.append(attacked(torch.zeros_like(attacked.x)).argmax(dim=1) == truth)
            change, flipped = deepfool(attacked, attacked.mask, norm=norm, steps=settings.steps, box=box)
            # A label that never flips counts as an infinite perturbation.
            norm_chunks.append(torch.where(flipped, change_norms(change, norm), torch.inf))
    norms, is_correct = torch.cat(norm_chunks).cpu().numpy(), torch.cat(correct_chunks).cpu().numpy()
    median = float(np.median(norms[is_correct])) if is_correct.any() else math.nan
    return {
        "accuracy": [float((is_correct & (norms > budget)).mean()) for budget in settings.budgets(norm)],
        "accuracy_after_steps": float((is_correct & np.isinf(norms)).mean()),
        "median_perturbation": median if math.isfinite(median) else None,
    }


def _measure_noise(model: Classifier, sample: Sample, kind: str, settings: Settings) -> dict[str, list[float]]:
    batch = sample.batch
    predictor = TorchPredictor(model)
    lengths, dt = batch.lengths.cpu().numpy(), None if batch.dt is None else batch.dt.cpu().numpy()

    def predict(x: Array) -> Array:
        probabilities = [
            predictor.run_numpy(x[rows], lengths[rows], dt=None if dt is None else dt[rows])["probabilities"]
            for rows in _slices(batch)
        ]
        predicted: Array = np.concatenate(probabilities).argmax(axis=1)
        return predicted

    _, scale = model.feature_scaling()
    values = NoiseInput(batch.x.cpu().numpy(), lengths, scale.cpu().numpy(), sample.low, sample.high)
    with cached_weights(model):
        return noise_curve(predict, values, batch.y.cpu().numpy(), kind, draws=settings.draws, seed=settings.seed)


def _measure_hessian(
    model: Classifier, data: ClassificationData, labels: Sequence[str] | None, settings: Settings
) -> dict[str, Any] | None:
    scorer = ClassificationScorer(data, "train", labels=labels)
    if not scorer.samples:
        return None
    return loss_hessian(model, _draw_batch(model, scorer, settings), seed=settings.seed)


def _parts(
    model: Classifier, sample: Sample, settings: Settings
) -> Iterator[tuple[PerturbedClassifier, Tensor, Box | None]]:
    """Yield the attacked function, the true classes and the bounds of a change, for some sequences at a time."""
    batch, scaling, (mean, scale) = sample.batch, model.scaling, model.feature_scaling()
    for rows in _slices(batch):
        attacked = PerturbedClassifier(model, batch.x[rows], batch.lengths[rows], _select_rows(batch.dt, rows))
        box = None
        if settings.clip:
            # The range of training in the units of changes, (features,).
            low, high = (
                (scaling.transform(torch.from_numpy(bound).to(attacked.x)) - mean) / scale
                for bound in (sample.low, sample.high)
            )
            box = Box.around(attacked.scaled(), low, high)
        yield attacked, batch.y[rows], box


def _slices(batch: Batch) -> list[slice]:
    return [slice(start, start + BATCH_SIZE) for start in range(0, len(batch.x), BATCH_SIZE)]


def _select_rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]
