"""The robustness report of a classifier: attacks, certified radii, noise and curvature, on a sample of sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from stablernn.errors import CertificateError
from stablernn.export.weights import weights_digest
from stablernn.nn.models import Classifier
from stablernn.robustness.attacks import Box, Perturbed, deepfool, pgd, prepared, sizes
from stablernn.robustness.hessian import loss_hessian
from stablernn.robustness.noise import KINDS, Values, noise_curve
from stablernn.robustness.settings import NORMS, Norm, Settings
from stablernn.training.batches.losses import Batch
from stablernn.training.evaluation.predictors import BATCH_SIZE
from stablernn.training.evaluation.scorers import ClassificationScorer, open_classification
from stablernn.training.evaluation.torch_predictor import TorchPredictor

Array = npt.NDArray[Any]
Stage = Callable[[str], AbstractContextManager[Any]]
"""Entered with what is being done, left when it is done."""

QUANTILES = tuple(place / 20 for place in range(21))
"""At which the distribution of certified radii is told."""


@dataclass(frozen=True)
class Sample:
    """The sequences that are measured.

    Attributes:
        batch: As tensors, on the model's device.
        low: (features,), the smallest value of each feature in training, raw units.
        high: (features,), the largest one.
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
    """Measure a classifier; docs/robustness.md says what each key of the report means.

    Args:
        model: In evaluation mode; it is not changed.
        data: Its split is attacked; curvature is that of its training split.
        split: train, validation or test.
        settings: How.
        labels: The classes that the model knows, in its order; None: those of the data.
        features: The features that it was trained on, in its order; None: those of the data.
        stage: Entered around each part, for a progress display.

    Raises:
        DataError: If the split is empty, or the data is not of the kind that the model was trained on.
    """
    used, around = settings or Settings(), stage or (lambda words: nullcontext())
    scorer = open_classification(data, split, labels=labels, features=features)
    sample = _sample(model, data, scorer, used)
    with around("certified radii"):
        right, radii, reason = _certified(model, sample)
    certified = _certified_document(sample, right, radii, reason, used)
    attacks = []
    for name, word, attack in (("pgd", "PGD", _pgd), ("deepfool", "DeepFool", _deepfool)):
        for norm in NORMS:
            with around(f"{word}, {norm}"):
                found = attack(model, sample, norm, used)
            about = {"name": name, "norm": norm, "budgets": list(used.budgets(norm))}
            attacks.append({**about, **found, "certified": certified[norm]})
    noise = {}
    for kind in KINDS:
        with around(f"noise, {kind.replace('_', ' ')}"):
            noise[kind] = _noise(model, sample, kind, used)
    with around("curvature of the loss"):
        hessian = _hessian(model, data, labels, used) if used.hessian else None
    return {
        "weights": weights_digest(model),
        "data": data.name,
        "split": split,
        "sequences": len(right),
        "accuracy": float(right.mean()),
        "attacks": attacks,
        "certified": certified,
        "noise": noise,
        "hessian": hessian,
        "settings": asdict(used),
    }


def _sample(model: Classifier, data: ClassificationData, scorer: ClassificationScorer, settings: Settings) -> Sample:
    known = [values for values in data.training_values() if len(values)]
    low, high = _range(known or [scorer.source.gather(np.arange(scorer.samples)).x.reshape(-1, model.input_size)])
    return Sample(_batch(model, scorer, settings), low, high)


def _batch(model: Classifier, scorer: ClassificationScorer, settings: Settings) -> Batch:
    count = min(settings.sequences, scorer.samples)
    chosen = np.sort(np.random.default_rng(settings.seed).permutation(scorer.samples)[:count])
    samples, device = scorer.source.gather(chosen), model.scaling.mean.device
    longest = int(samples.lengths.max())
    dt = None if samples.dt is None else torch.from_numpy(samples.dt[:, :longest]).to(device)
    return Batch(
        torch.from_numpy(np.ascontiguousarray(samples.x[:, :longest])).to(device),
        torch.from_numpy(samples.lengths).to(device),
        torch.from_numpy(np.asarray(scorer.truth[chosen], dtype=np.int64)).to(device),
        dt,
    )


def _range(values: Sequence[Array]) -> tuple[Array, Array]:
    """The smallest and the largest value of each feature; 0 where none was ever seen."""
    joined = np.concatenate(values)
    seen = ~np.isnan(joined)
    low = np.where(seen, joined, np.inf).min(axis=0)
    high = np.where(seen, joined, -np.inf).max(axis=0)
    return np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 0.0)


def _certified(model: Classifier, sample: Sample) -> tuple[Array, Array | None, str | None]:
    """Which sequences are classified rightly, their certified radii, and why there are none."""
    batch = sample.batch
    with cached_weights(model):
        found = [model(batch.x[rows], batch.lengths[rows], _rows(batch.dt, rows)) for rows in _slices(batch)]
        right = (torch.cat(found).argmax(dim=1) == batch.y).cpu().numpy()
        try:
            parts = [certified_radii(model, batch.x[rows], batch.lengths[rows]) for rows in _slices(batch)]
        except CertificateError as error:
            return right, None, str(error)
    return right, np.concatenate(parts), None


def _certified_document(
    sample: Sample, right: Array, radii: Array | None, reason: str | None, settings: Settings
) -> dict[str, Any]:
    if radii is None:
        nothing = dict.fromkeys(("linf", "l2", "median_radius", "radius_quantiles"))
        return {**nothing, "reason": reason}
    # A change of at most r in every one of n values has a 2-norm of at most r sqrt(n).
    values = sample.batch.x.shape[2] * sample.batch.lengths.cpu().numpy()
    own = {"linf": radii / np.sqrt(np.maximum(values, 1)), "l2": radii}
    held = np.where(right, radii, 0.0)[right]
    return {
        **{
            norm: [float((right & (own[norm] >= budget)).mean()) for budget in settings.budgets(norm)] for norm in NORMS
        },
        "median_radius": float(np.median(held)) if len(held) else None,
        "radius_quantiles": {
            norm: np.quantile(own[norm][right], QUANTILES, method="lower").tolist() if len(held) else []
            for norm in NORMS
        },
        "reason": None,
    }


def _pgd(model: Classifier, sample: Sample, norm: Norm, settings: Settings) -> dict[str, Any]:
    """Accuracy at each budget: what fell at a smaller one stays fallen, and the others go on from where they are."""
    right: list[Tensor] = []
    generator = torch.Generator().manual_seed(settings.seed)
    with prepared(model) as copied:
        for rows in _slices(sample.batch):
            attacked, truth = _perturbed(copied, sample.batch, rows), sample.batch.y[rows]
            box = _box(attacked, sample) if settings.clip else None
            change = torch.zeros_like(attacked.x)
            with torch.no_grad():
                stands = attacked(change).argmax(dim=1) == truth
            after = []
            for budget in settings.budgets(norm):
                left = stands.nonzero()[:, 0]
                if len(left):
                    one = attacked.rows(left)
                    change[left] = pgd(
                        one,
                        truth[left],
                        one.free,
                        norm=norm,
                        budget=budget,
                        steps=settings.steps,
                        step=settings.step,
                        start=change[left],
                        random_start=settings.random_start,
                        generator=generator,
                        box=None if box is None else box.rows(left),
                    )
                    with torch.no_grad():
                        stands[left] = one(change[left]).argmax(dim=1) == truth[left]
                after.append(stands.clone())
            right.append(torch.stack(after, dim=1))
    return {"accuracy": torch.cat(right).double().mean(dim=0).tolist()}


def _deepfool(model: Classifier, sample: Sample, norm: Norm, settings: Settings) -> dict[str, Any]:
    reached: list[Tensor] = []
    stood: list[Tensor] = []
    with prepared(model) as copied:
        for rows in _slices(sample.batch):
            attacked = _perturbed(copied, sample.batch, rows)
            box = _box(attacked, sample) if settings.clip else None
            with torch.no_grad():
                stood.append(attacked(torch.zeros_like(attacked.x)).argmax(dim=1) == sample.batch.y[rows])
            change, flipped = deepfool(attacked, attacked.free, norm=norm, steps=settings.steps, box=box)
            reached.append(torch.where(flipped, sizes(change, norm), torch.inf))
    size, right = torch.cat(reached).cpu().numpy(), torch.cat(stood).cpu().numpy()
    median = float(np.median(size[right])) if right.any() else math.nan
    return {
        "accuracy": [float((right & (size > budget)).mean()) for budget in settings.budgets(norm)],
        "accuracy_after_steps": float((right & np.isinf(size)).mean()),
        "median_perturbation": median if math.isfinite(median) else None,
    }


def _noise(model: Classifier, sample: Sample, kind: str, settings: Settings) -> dict[str, list[float]]:
    batch = sample.batch
    predictor = TorchPredictor(model)
    lengths, dt = batch.lengths.cpu().numpy(), None if batch.dt is None else batch.dt.cpu().numpy()

    def predict(x: Array) -> Array:
        found = [
            predictor.run_numpy(x[rows], lengths[rows], dt=None if dt is None else dt[rows])["probabilities"]
            for rows in _slices(batch)
        ]
        predicted: Array = np.concatenate(found).argmax(axis=1)
        return predicted

    values = Values(batch.x.cpu().numpy(), lengths, model.scaling.scale.cpu().numpy(), sample.low, sample.high)
    with cached_weights(model):
        return noise_curve(predict, values, batch.y.cpu().numpy(), kind, draws=settings.draws, seed=settings.seed)


def _hessian(
    model: Classifier, data: ClassificationData, labels: Sequence[str] | None, settings: Settings
) -> dict[str, Any] | None:
    scorer = ClassificationScorer(data, "train", labels=labels)
    if not scorer.samples:
        return None
    return loss_hessian(model, _batch(model, scorer, settings), seed=settings.seed)


def _perturbed(model: Classifier, batch: Batch, rows: slice) -> Perturbed:
    return Perturbed(model, batch.x[rows], batch.lengths[rows], _rows(batch.dt, rows))


def _box(attacked: Perturbed, sample: Sample) -> Box:
    scaling = attacked.model.scaling
    low, high = (
        (scaling.transform(torch.from_numpy(end).to(attacked.x)) - scaling.mean) / scaling.scale
        for end in (sample.low, sample.high)
    )
    return Box.around(attacked.scaled(), low, high)


def _slices(batch: Batch) -> list[slice]:
    return [slice(start, start + BATCH_SIZE) for start in range(0, len(batch.x), BATCH_SIZE)]


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]
