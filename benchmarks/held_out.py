"""Probabilities of networks for the folds that they were not trained on, and scores of their averages.

An ensemble of networks that were trained alone is scored without training it: every network is trained once for each
fold, however many ensembles it is in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, logsumexp

from stablernn.data.types import ClassificationData
from stablernn.nn.models import Classifier
from stablernn.training.build import create_model, create_trainer, with_engine
from stablernn.training.calibration import best_temperature, uncalibrated_logits
from stablernn.training.loop.base_trainer import NoRecorder
from stablernn.training.loop.device import pick_device, torch_settings
from stablernn.training.resolve import resolve
from stablernn.training.search.trial import load_all, resample
from stablernn.training.settings.config import Config
from stablernn.training.tasks import task_for

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeldOut:
    """A network's answers for the fold that it was not trained on.

    Attributes:
        logits: ``(sequences, classes)``, before calibration.
        truth: Class numbers, ``(sequences,)``.
        cpu_seconds: Processor time of training and answers.
    """

    logits: Float64Array
    truth: npt.NDArray[np.int64]
    cpu_seconds: float


def held_out(config: Config, weights_seed: int, part: int, parts: int, *, times: int = 1) -> HeldOut:
    """Train on all folds but one, without a validation split, and return the answers for that one.

    Args:
        config: Settings, whose seed draws the folds.
        weights_seed: Seed of the initial weights and of the training.
        part: Number of the fold.
        parts: Number of folds.
        times: Multiple of the recommended epochs.
    """
    fold = resample(load_all(config), parts, seed=config.training.seed, refit=True)[part].without_validation()
    if not isinstance(fold, ClassificationData) or fold.test is None:
        raise TypeError(f"Probabilities of classes need labeled sequences, and '{fold.name}' has none.")
    task, began = task_for(fold), time.process_time()
    seeded = config.training.model_copy(update={"seed": weights_seed})
    settings = resolve(config.model_copy(update={"training": seeded}), task)
    if times > 1:
        assert settings.training.epochs is not None
        longer = seeded.model_copy(update={"epochs": times * settings.training.epochs})
        settings = resolve(config.model_copy(update={"training": longer}), task)
    device = pick_device("cpu")
    with torch_settings(device, seed=weights_seed, threads=1):
        model = create_model(settings, fold)
        settings = with_engine(settings, model, device)
        trainer = create_trainer(NoRecorder(), settings, task, model, certify_epochs=False)
        if not trainer.fit():
            raise KeyboardInterrupt
        trainer.load_best()
        # A training ends in training mode, in which dropout would change the answers.
        model.eval()
        assert isinstance(model, Classifier)
        logits, truth = uncalibrated_logits(model, fold.test)
    return HeldOut(logits, truth, time.process_time() - began)


def average_scores(networks: Sequence[Sequence[HeldOut]]) -> list[tuple[float, float]]:
    """Return accuracy and log loss of the networks' mean probabilities on each fold.

    The temperature of a fold is fitted to the other folds: a mean of more networks is less certain, and differences
    would be those of the certainty otherwise.

    Args:
        networks: Answers of each network, fold after fold.
    """
    means = []
    for fold in zip(*networks, strict=True):
        log_probabilities = [log_softmax(network.logits, axis=1) for network in fold]
        means.append((logsumexp(log_probabilities, axis=0) - np.log(len(fold)), fold[0].truth))
    scores = []
    for number, (logits, truth) in enumerate(means):
        others = [mean for other, mean in enumerate(means) if other != number]
        temperature, _ = best_temperature(*(np.concatenate(arrays) for arrays in zip(*others, strict=True)))
        losses = -log_softmax(logits / temperature, axis=1)[np.arange(len(truth)), truth]
        scores.append((float((logits.argmax(axis=1) == truth).mean()), float(losses.mean())))
    return scores
