from __future__ import annotations

from stablernn.training.tune.study import history_figure


def test_pruned_trials_are_above_the_axis_whose_ticks_would_hide_them() -> None:
    trials = [{"number": number, "value": value} for number, value in enumerate([0.8, None, 0.9, None])]
    figure = history_figure(trials, "accuracy", "higher")
    (axes,) = figure.axes
    lines = {str(line.get_label()): line for line in axes.lines}
    pruned = lines["pruned or failed"]
    assert list(pruned.get_xdata()) == [1, 3]
    assert all(height > 0 for height in pruned.get_ydata())
    assert axes.get_title(loc="left") == "trials of the search, higher is better"
