"""Coverage of intervals over a stream (``--soak``): forecasts after each sample, with the state carried on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stablernn.data import ForecastData
from stablernn.training.evaluation.backtest import RollingForecast, select_origins
from stablernn.training.evaluation.metrics import symmetric_levels
from stablernn.training.evaluation.predictors import BATCH_SIZE, Array, StatefulPredictor

MOST_SAMPLES = 2000
"""Most samples of a series, the last ones of the split."""
MOST_NUMBERS = 2**24
"""Most numbers in the quantiles of all forecasts together; more series have fewer samples each."""


class StreamMonitor(Protocol):
    """Estimates that a server updates with each sample of a stream.

    Attributes:
        false_alarm_rate: Stated bound on the mean number of false alarms a reading; None without a test for drift.
        block: Readings in a block of that test; None without.
        reason: Why there is no test; None if there is one.
    """

    false_alarm_rate: float | None
    block: int | None
    reason: str | None

    def run(self, x: Array, quantiles: Array) -> tuple[Array, int]:
        """Return the adaptive quantiles after each sample of a new stream, and the number of alarms.

        Args:
            x: (samples, stride, channels), raw units.
            quantiles: (samples, horizon, targets, levels), the forecasts after each sample.
        """
        ...


def stream_report(
    predictor: StatefulPredictor, data: ForecastData, split: str, levels: Sequence[float], monitor: StreamMonitor
) -> dict[str, Any]:
    """Stream the series of a split through a forecaster, as a server does, and measure its intervals.

    The model reads the context of the first origin of a series, and after that sample by sample. Estimates begin at
    that origin. A window that is missing from the split ends the stream, and the next one begins another.

    Args:
        predictor: Forecaster with quantiles.
        data: Data of the split.
        split: Split to stream; must have windows.
        levels: Levels of the quantiles, of which two must add up to 1.
        monitor: Estimates of the streams.

    Returns:
        ``series``, ``samples`` and ``readings`` that were streamed; ``coverage``, for each pair of levels ``nominal``,
        ``fixed`` (the model's own intervals) and ``adaptive``, shares of all forecast values that lie inside, and
        ``width``, the mean width of the adaptive intervals over that of the fixed ones; ``alarms``, ``block``,
        ``false_alarm_rate`` (None without a test for drift) and ``drift_reason``.
    """
    windows, stride = data.windows(split), predictor.patch_stride
    all_origins = np.array(windows.origins, dtype=np.int64)
    series_count = len(np.unique(all_origins[:, 0]))
    forecast_size = data.horizon * len(data.targets) * len(levels)
    # All forecasts are held at once, since the monitor gets whole streams.
    limit = max(1, min(MOST_SAMPLES, MOST_NUMBERS // (series_count * forecast_size)))
    numbers, distances = select_origins(windows, limit, stride)
    origins = all_origins[numbers]
    rolling = RollingForecast(predictor, data, windows, stride, BATCH_SIZE)
    quantiles = rolling.run(numbers, origins, int(distances.max()) - distances)["quantiles"]
    pairs = symmetric_levels(levels)
    # Of the fixed and of the adaptive intervals.
    inside, widths = np.zeros((len(pairs), 2)), np.zeros((len(pairs), 2))
    observed = 0
    alarms = 0
    for rows in _streams(origins, stride):
        series, ends = data.series[int(origins[rows[0], 0])], origins[rows, 1]
        x = np.stack([series.values[end - stride : end] for end in ends])
        adaptive, new_alarms = monitor.run(x, quantiles[rows])
        alarms += new_alarms
        truth = np.stack([series.values[end : end + data.horizon][:, list(data.target_indices)] for end in ends])
        is_observed = ~np.isnan(truth)
        observed += int(is_observed.sum())
        for position, pair in enumerate(pairs):
            for column, forecast in enumerate((quantiles[rows], adaptive)):
                lower, upper = (forecast[..., level][is_observed] for level in pair)
                values = truth[is_observed]
                inside[position, column] += ((lower <= values) & (values <= upper)).sum()
                # An unbounded interval has no width that could be averaged.
                width = (upper - lower).astype(np.float64)
                widths[position, column] += width[np.isfinite(width)].sum()
    return {
        "series": series_count,
        "samples": len(numbers),
        "readings": len(numbers) * stride,
        "coverage": [
            {
                "nominal": round(levels[upper] - levels[lower], 6),
                "fixed": fixed / observed if observed else None,
                "adaptive": adapted / observed if observed else None,
                "width": adapted_width / width if width else None,
            }
            for (lower, upper), (fixed, adapted), (width, adapted_width) in zip(
                pairs, inside.tolist(), widths.tolist(), strict=True
            )
        ],
        "alarms": None if monitor.false_alarm_rate is None else alarms,
        "block": monitor.block,
        "false_alarm_rate": monitor.false_alarm_rate,
        "drift_reason": monitor.reason,
    }


def _streams(origins: npt.NDArray[np.int64], stride: int) -> list[npt.NDArray[np.int64]]:
    """Return the rows of origins that follow each other in one series, a sample apart, in the order of time."""
    order = np.lexsort((origins[:, 1], origins[:, 0]))
    series, ends = origins[order].T
    is_next = (series[1:] == series[:-1]) & (ends[1:] - ends[:-1] == stride)
    return np.split(order, np.flatnonzero(~is_next) + 1)
