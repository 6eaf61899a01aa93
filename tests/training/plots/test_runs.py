from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from stablernn.errors import ConfigError
from stablernn.training.stored_runs import Epoch, StoredRun, common_metric, plot_runs


def run_with(*scores: dict[str, float | None], metric: str | None = "accuracy", task: str = "classify") -> StoredRun:
    history = tuple(
        Epoch(epoch=number, train_loss=3.0 / number, validation=validation)
        for number, validation in enumerate(scores, 1)
    )
    return StoredRun(Path(f"runs/{task}"), "done", task=task, metric=metric, best_epoch=len(scores), history=history)


FIRST = run_with({"accuracy": 0.5, "log_loss": 1.0}, {"accuracy": None, "log_loss": 0.9}, {"accuracy": 0.8})
SECOND = run_with({"accuracy": 0.6, "log_loss": 1.1})
REFIT = run_with({}, {})


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[float], list[float]]]:
    """Coordinates of the lines that are drawn."""
    lines: list[tuple[list[float], list[float]]] = []
    plot = Axes.plot

    def record(axes: Axes, *coordinates: Any, **options: Any) -> Any:
        drawn = plot(axes, *coordinates, **options)
        lines.extend((list(line.get_xdata()), list(line.get_ydata())) for line in drawn)
        return drawn

    monkeypatch.setattr(Axes, "plot", record)
    return lines


def test_losses_and_metrics_are_drawn_by_epoch(tmp_path: Path, curves: list[tuple[list[float], list[float]]]) -> None:
    plot_runs(tmp_path / "curves.png", [FIRST, SECOND], ["first", "second"])
    losses, metrics = curves[:2], curves[2:]
    assert losses == [([1, 2, 3], [3.0, 1.5, 1.0]), ([1], [3.0])]
    # After each curve the circle of its best epoch; a score that was not finite is left out.
    assert metrics == [([1, 3], [0.5, 0.8]), ([3], [0.8]), ([1], [0.6]), ([1], [0.6])]
    assert (imread(tmp_path / "curves.png")[..., :3] < 0.98).any(axis=-1).mean() > 0.005


def test_a_run_without_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        plot_runs(tmp_path / "curves.png", [FIRST, run_with()], ["first", "second"])
    assert str(error.value) == "The run in 'runs/classify' has no epochs yet: there is nothing to draw. Leave it out."
    assert not (tmp_path / "curves.png").exists()


def test_runs_are_compared_by_a_metric_that_all_validated_ones_have() -> None:
    assert common_metric([FIRST, REFIT, SECOND]) == "accuracy"
    one_series = run_with({"mae": 1.0, "mase": 2.0}, metric="mae", task="forecast")
    many_series = run_with({"mase": 2.0}, metric="mase", task="forecast")
    assert common_metric([one_series, many_series]) == "mase"
    assert common_metric([REFIT]) is None


def test_runs_without_a_common_metric_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        common_metric([FIRST, run_with({"mae": 1.0}, metric="mae", task="forecast")])
    assert str(error.value) == (
        "The runs in 'runs/classify' and 'runs/forecast' have no validation metric in common: they are for 'classify' "
        "and 'forecast'. Draw runs of one task."
    )
