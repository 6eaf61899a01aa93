from __future__ import annotations

from matplotlib.colors import to_hex

from stablernn.data import load_data
from stablernn.plotting import line_styles
from stablernn.training.plots import classes_figure, series_figure


def test_sequences_of_classes_have_the_shared_colors_and_bars_are_not_covered() -> None:
    figure = classes_figure(load_data("digits"))
    balance, *panels = figure.axes
    shared = {color.lower() for color, _ in line_styles(8)}
    for axes in panels:
        assert {to_hex(line.get_color()) for line in axes.lines} <= shared
    assert balance.get_legend() is None


def test_a_series_has_times_and_the_count_of_missing_values() -> None:
    figure = series_figure(load_data("co2"))
    (axes,) = figure.axes
    assert axes.get_xlabel() == "time"
    assert axes.get_title(loc="right") == "59 missing"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["train", "validation", "test", "missing"]
