"""Scores of the task 'predict-next'."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from predict_next_helpers import frames, running, settings
from stablernn.data.step_data import NO_TARGET, StepData, StoredSteps
from stablernn.nn.models import SequencePredictor
from stablernn.training import TorchPredictor
from stablernn.training.build import create_model
from stablernn.training.evaluation.predictors import predict_segments
from stablernn.training.resolve import resolve
from stablernn.training.tasks import task_for
from stablernn.training.tasks.predict_next import evaluate_steps


def fitted(data: StepData) -> SequencePredictor:
    torch.manual_seed(0)
    model = create_model(resolve(settings(), task_for(data)), data)
    assert isinstance(model, SequencePredictor)
    return model.eval()


def test_a_uniform_model_has_log2_of_the_classes_as_bpc() -> None:
    data = running()
    model = fitted(data)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    scores = evaluate_steps(TorchPredictor(model), data)
    assert scores["bpc"] == pytest.approx(2)
    assert scores["perplexity"] == pytest.approx(4)
    assert scores["loss"] == scores["nll"] == pytest.approx(math.log(4))


def test_carried_state_equals_one_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of one stream in stretches of a few steps has the scores of the whole at once."""
    data = running(60)
    model = fitted(data)
    monkeypatch.setattr("stablernn.training.evaluation.predictors.STREAMS", 1)
    monkeypatch.setattr("stablernn.training.evaluation.predictors.LONGEST", 7)
    parts = list(predict_segments(TorchPredictor(model), data.test, 4, continuous=True))
    assert [part.x.shape[1] for part, _ in parts] == [7] * 8 + [3]
    with torch.no_grad():
        whole = model(torch.from_numpy(data.test.gather([0]).x)).numpy()
    np.testing.assert_allclose(np.concatenate([answer for _, answer in parts], axis=1), whole, atol=1e-6)


def test_scores_of_switches_are_summed_over_them() -> None:
    data = frames(output="bernoulli")
    model = fitted(data)
    total, steps = 0.0, 0
    for x, y in zip(data.test.inputs, data.test.targets, strict=True):  # type: ignore[attr-defined]
        with torch.no_grad():
            share = torch.sigmoid(model(torch.from_numpy(x)[None]))[0].double().numpy()
        total -= float((y * np.log(share) + (1 - y) * np.log(1 - share)).sum())
        steps += len(x)
    scores = evaluate_steps(TorchPredictor(model), data)
    assert scores["nll"] == scores["loss"] == pytest.approx(total / steps, rel=1e-5)
    counts = np.concatenate(data.train.targets)  # type: ignore[attr-defined]
    share = (counts.sum(axis=0) + 1) / (len(counts) + 2)
    y = np.concatenate(data.test.targets)  # type: ignore[attr-defined]
    expected = -(y * np.log(share) + (1 - y) * np.log(1 - share)).sum(axis=1).mean()
    assert scores["frequencies"]["nll"] == pytest.approx(expected, rel=1e-6)


def test_numbers_are_scored_over_those_that_are_there_beside_naive_answers() -> None:
    data = frames()
    model = fitted(data)
    errors, naive, mean = [], [], []
    centre = np.nanmean(np.concatenate(data.train.targets), axis=0)  # type: ignore[attr-defined]
    for x, y in zip(data.test.inputs, data.test.targets, strict=True):  # type: ignore[attr-defined]
        with torch.no_grad():
            answers = model(torch.from_numpy(x)[None])[0].numpy()
        errors.append((answers - y) ** 2)
        naive.append((x - y) ** 2)
        mean.append((centre - y) ** 2)
    scores = evaluate_steps(TorchPredictor(model), data)
    assert scores["mse"] == scores["loss"] == pytest.approx(np.nanmean(np.concatenate(errors)), rel=1e-5)
    assert scores["rmse"] == pytest.approx(math.sqrt(scores["mse"]))
    assert scores["naive"]["mse"] == pytest.approx(np.nanmean(np.concatenate(naive)), rel=1e-5)
    assert scores["mean"]["mse"] == pytest.approx(np.nanmean(np.concatenate(mean)), rel=1e-5)


def test_the_naive_answer_holds_the_last_observed_value_from_stretch_to_stretch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.array([[1, 5], [np.nan, 6], [np.nan, np.nan], [np.nan, np.nan], [2, np.nan]], np.float32)
    y = np.full((5, 2), 1.0, np.float32)
    split = StoredSteps([x], [y])
    data = replace(frames(), train=split, validation=split, test=split)
    monkeypatch.setattr("stablernn.training.evaluation.predictors.LONGEST", 2)
    scores = evaluate_steps(TorchPredictor(fitted(data)), data)
    expected = [0, 16, 0, 25, 0, 25, 0, 25, 1, 25]
    assert scores["naive"]["mse"] == pytest.approx(np.mean(expected))


def test_accuracy_is_counted_over_the_answer_alone() -> None:
    """Of blanks and an answer at the end only the answer is scored by accuracy, in each sequence at its own end."""
    inputs = [np.zeros(5, np.int64), np.zeros(3, np.int64)]
    targets = [np.array([0, 0, 0, 1, 0]), np.array([0, 1, NO_TARGET])]
    split = StoredSteps(inputs, targets)
    data = replace(running(), train=split, validation=split, test=split, continuous=False)
    model = fitted(data)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([5.0, 0.0, 0.0, 0.0]))
    predictor = TorchPredictor(model)
    assert evaluate_steps(predictor, data)["accuracy"] == pytest.approx(5 / 7)
    assert evaluate_steps(predictor, replace(data, answer_steps=2))["accuracy"] == pytest.approx(1 / 3)
