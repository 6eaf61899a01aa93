"""What a run says at its end of a loss that diverged and of a model that is of no use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from stablernn.errors import TrainingError
from stablernn.training import load_config, train
from stablernn.training.loop import trainer as trainer_module
from stablernn.training.loop.losses import ForecastObjective
from stablernn.training.loop.trainer import Trainer
from stablernn.training.verdict import compare_with_trivial, describe_decline, judge, searched_scores

NUMBER = r"-?[\d.]+(e[+-]?\d+)?"


def sequences(path: Path, *, learnable: bool) -> str:
    """Sixty sequences of two classes that differ by their level, or by nothing."""
    random = np.random.default_rng(0)
    y = np.arange(60) % 2
    level = y if learnable else np.zeros(60)
    x = level[:, None, None] + 0.1 * random.normal(size=(60, 6, 1))
    np.savez(path, x=x.astype(np.float32), y=y)
    return f"data.source={path}"


def run(folder: Path, source: str, *overrides: str) -> dict[str, Any]:
    tiny = ["model.cell=rnn", "model.hidden_size=4", "training.device=cpu", "training.plots=false"]
    return train(load_config(overrides=[source, *tiny, *overrides]), folder / "run")


def stored(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "run/summary.json").read_text())
    return summary


def test_a_model_that_learned_something_is_not_warned_of(tmp_path: Path) -> None:
    summary = run(tmp_path, sequences(tmp_path / "a.npz", learnable=True), "training.max_steps=60", "training.lr=0.05")
    assert (summary["diverged"], summary["warnings"]) == (False, [])


def test_a_model_that_learned_nothing_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ("training.max_steps=40", "training.calibrate=false", "training.label_smoothing=0")
    summary = run(tmp_path, sequences(tmp_path / "a.npz", learnable=False), *options)
    (sentence,) = summary["warnings"]
    assert re.fullmatch(
        rf"The model is no better than one answer for all sequences \(validation log_loss {NUMBER}, one answer for all "
        rf"sequences 0\.6931\)\. Train it longer, or see benchmarks/accuracy\.md\.",
        sentence,
    )
    assert summary["diverged"] is False
    assert stored(tmp_path)["warnings"] == [sentence]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [sentence]


@pytest.mark.slow
def test_a_rate_that_is_far_too_high_fails_the_run(tmp_path: Path) -> None:
    source = sequences(tmp_path / "a.npz", learnable=False)
    with pytest.raises(TrainingError) as caught:
        run(tmp_path, source, "training.lr=1e9", "training.max_steps=40", "training.calibrate=false")
    assert re.fullmatch(
        rf"Training diverged: the training loss ended at {NUMBER}, from {NUMBER} at the first step, and the best "
        rf"weights are no better than one answer for all sequences \(validation log_loss {NUMBER}, one answer for all "
        rf"sequences 0\.6931\)\. Set a lower training\.lr, such as 0\.\d+, or a smaller training\.clip_norm\.",
        str(caught.value),
    )
    assert (stored(tmp_path)["diverged"], stored(tmp_path)["warnings"]) == (True, [str(caught.value)])


def test_good_weights_of_an_early_epoch_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every loss then counts as diverged at its end.
    monkeypatch.setattr(trainer_module, "DIVERGED", 0.0)
    summary = run(tmp_path, sequences(tmp_path / "a.npz", learnable=True), "training.max_steps=60", "training.lr=0.05")
    (sentence,) = summary["warnings"]
    assert summary["diverged"] is True
    assert f" The weights of epoch {summary['best_epoch']} are kept, the best ones. Set a lower training.lr" in sentence


FORECAST = ("task.horizon=6", "task.context_length=12", "task.season=1")


def test_a_forecast_that_leaves_its_layers_out_is_told_in_the_summary(tmp_path: Path) -> None:
    summary = run(tmp_path, "data.source=co2", *FORECAST, "training.lr=1e-9", "training.max_steps=2")
    assert summary["gate"].keys() == {"share", "skip_error", "layers_error", "standard_error", "windows"}
    assert summary["gate"]["share"] == 0
    assert (summary["diverged"], summary["warnings"]) == (False, [])
    assert json.loads((tmp_path / "run/calibration.json").read_text())["gate"] == summary["gate"]


@pytest.mark.parametrize(
    ("task", "now", "before", "is_warned"),
    [
        ("classify", {"accuracy": 0.7}, {"test": {"accuracy": 0.95}}, True),
        ("classify", {"accuracy": 0.93}, {"test": {"accuracy": 0.95}}, False),
        ("classify", {"accuracy": 0.5}, {}, False),
        ("forecast", {"mase": 2.0}, {"validation": {"mase": 0.5}, "test": {"mase": 1.0}}, True),
        ("forecast", {"mase": 1.4, "mae": 99.0}, {"test": {"mase": 1.0, "mae": 1.0}}, False),
        ("predict-next", {"loss": 3.0}, {"validation": {"loss": 1.5}}, True),
    ],
)
def test_a_model_that_does_much_worse_than_at_training_is_named_with_both_figures(
    task: Any, now: dict[str, float], before: dict[str, Any], is_warned: bool
) -> None:
    sentences = describe_decline("'new.csv'", now, before, task)
    assert bool(sentences) is is_warned
    assert all(f"{next(iter(now.values())):.4g}" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("headline", "figures", "answer"),
    [
        # Of many series it is MASE: errors in the unit of the data are those of the largest series alone.
        ("mase", {"mase": (0.9, 1.2, 1.3, 1.1), "mae": (457, 335, 400, 400)}, None),
        ("mae", {"mase": (0.9, 1.2, 1.3, 1.1), "mae": (457, 335, 400, 400)}, "seasonal naive forecast 335"),
        ("mae", {"mae": (2.777, 11.78, 2.417, 2.013)}, "drift forecast 2.013"),
        ("mae", {"mae": (2.0, 1.0, 1.0, 2.0)}, "the naive forecast 1"),
        ("mae", {"mae": (0.0, 0.0, 0.0, 0.0)}, None),
    ],
)
def test_a_forecast_is_judged_by_the_best_naive_one(
    headline: str, figures: dict[str, tuple[float, ...]], answer: str | None
) -> None:
    names = ("seasonal_naive", "naive", "drift")
    scores: dict[str, Any] = {metric: values[0] for metric, values in figures.items()}
    scores |= {
        name: {metric: values[place] for metric, values in figures.items()} for place, name in enumerate(names, 1)
    }
    trainer = SimpleNamespace(is_diverged=False, settings=SimpleNamespace(method="gradient"))
    comparison = compare_with_trivial("validation", scores, ForecastObjective(headline))
    warnings = judge(cast(Trainer, trainer), comparison, None, is_validated=True).warnings
    assert len(warnings) == (answer is not None)
    assert answer is None or f"{answer})" in warnings[0]


@pytest.mark.parametrize("method", ["closed-form", None])
def test_networks_are_advised_where_none_was_compared(method: str | None) -> None:
    """A search that has scored networks says so by their settings, and its scores stand in for those of a split."""
    settings = {} if method is None else {"training.method": method}
    recipes = [{"name": "linear", "scores": [3.0, 2.0], "settings": {"training.method": "closed-form"}}]
    recipes += [{"name": "other", "scores": [3.0], "settings": settings}]
    choice = {"chosen": "linear", "metric": "mae", "baselines": {"drift": [1.0, 2.0]}, "recipes": recipes}
    comparison = compare_with_trivial("cross_validation", searched_scores(choice), ForecastObjective("mae"))
    trainer = cast(Trainer, SimpleNamespace(is_diverged=False, settings=SimpleNamespace(method="closed-form")))
    (warning,) = judge(trainer, comparison, None, is_validated=False, choice=choice).warnings
    assert "(cross-validation mae 2.5, the drift forecast 1.5)" in warning
    assert ("Compare it with networks" in warning) is (method is not None)
