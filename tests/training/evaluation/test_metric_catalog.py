"""The catalog of metrics has every metric that is computed, and the facts that others read from it."""

from __future__ import annotations

import numpy as np
import pytest

from stablernn.data.step_data import Output, StepData, StoredSteps
from stablernn.training.evaluation.metric_catalog import Task, direction, find_metric, metrics_of
from stablernn.training.evaluation.metrics import classification_metrics, forecast_metrics, quantile_metrics
from stablernn.training.tasks.predict_next import evaluate_steps


def classification_names() -> set[str]:
    return set(classification_metrics(np.full((4, 2), 0.5), np.array([0, 1, 0, 1])))


def forecast_names() -> set[str]:
    truth = np.ones((2, 3, 1))
    points = forecast_metrics(truth, truth, scale=np.ones((1, 1)), series=np.zeros(2, dtype=np.int64))
    quantiles = quantile_metrics(np.ones((2, 3, 1, 3)), truth, (0.1, 0.5, 0.9))
    # The scorer adds this one, from the naive forecast of the same windows.
    return {*points, *quantiles, "relative_mae"}


class Zeros:
    """Predicts 0 at every step; without a state."""

    def __init__(self, output: Output) -> None:
        self.name = "mean" if output == "real" else "logits"

    def run_sequence(self, x: np.ndarray, lengths: object = None, state: object = None) -> dict[str, np.ndarray]:
        return {self.name: np.zeros((*x.shape[:2], 2))}

    def next_state(self, outputs: object) -> dict[str, np.ndarray]:
        return {}


def predict_next_names() -> set[str]:
    names = set()
    inputs = [np.ones((3, 1), dtype=np.float32)]
    outputs: tuple[Output, ...] = ("categorical", "bernoulli", "real")
    for output in outputs:
        targets = np.array([0, 1, 0]) if output == "categorical" else np.zeros((3, 2), dtype=np.float32)
        splits = [StoredSteps(inputs, [targets]) for _ in range(3)]
        data = StepData(
            "toy", output, False, ("x",), ("a", "b"), *splits, continuous=False, headline="loss", notes={},
            fingerprint="sha256:0",
        )  # fmt: skip
        scores = evaluate_steps(Zeros(output), data)
        names |= {name for name, value in scores.items() if not isinstance(value, dict)}
    return names


COMPUTED = {"classify": classification_names, "forecast": forecast_names, "predict-next": predict_next_names}


@pytest.mark.parametrize("task", COMPUTED)
def test_the_catalog_has_the_computed_metrics_and_no_others(task: Task) -> None:
    computed = COMPUTED[task]()
    for name in computed:
        metric = find_metric(name)
        assert metric is not None, name
        assert task in metric.tasks, name
    for metric in metrics_of(task):
        assert any(metric.has_name(name) for name in computed), metric.name


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("accuracy", "higher"),
        ("macro_f1", "higher"),
        ("roc_auc", "higher"),
        ("log_loss", "lower"),
        ("ece", "lower"),
        ("mse", "lower"),
        ("mae", "lower"),
        ("rmse", "lower"),
        ("mase", "lower"),
        ("smape", "lower"),
        ("wape", "lower"),
        ("crps", "lower"),
        ("pinball_0.1", "lower"),
        ("relative_mae", "lower"),
        ("bpc", "lower"),
        ("perplexity", "lower"),
        ("nll", "lower"),
        ("loss", "lower"),
        ("coverage_0.8", None),
        ("width_0.8", None),
        ("seconds", None),
    ],
)
def test_direction_of_improvement(name: str, better: str | None) -> None:
    assert direction(name) == better
