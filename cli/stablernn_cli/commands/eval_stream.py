"""`stablernn eval --soak`: a split as a stream, with the estimates that `serve` computes.

The library imports nothing of the runtime; this is where the two meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stablernn_cli.output import Output

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stablernn.data import ForecastData

    Array = NDArray[np.generic]

FALSE_ALARM_RATE = 1e-4
"""Rate of false alarms a reading at which a split is tested for drift."""
MOST_ALARMS_A_BLOCK = 0.1
"""Rate of false alarms a block that a test of long blocks does not exceed."""


class ServedEstimates:
    """Adaptive intervals and the test for drift, as `serve` computes them.

    Attributes:
        false_alarm_rate: Stated bound on the mean number of false alarms a reading; None without a test for drift.
        block: Readings in a block of that test; None without.
        reason: Why there is no test; None if there is one.
    """

    def __init__(
        self, data: ForecastData, levels: Sequence[float], stride: int, certificate: Mapping[str, Any]
    ) -> None:
        """Define the estimates of a model's streams.

        Args:
            data: Data of its forecasts.
            levels: Levels of its quantiles, of which two add up to 1.
            stride: Readings in a sample.
            certificate: Its certificate.
        """
        from stablernn_runtime.online.adaptive_intervals import AdaptiveIntervals
        from stablernn_runtime.online.drift import DriftDetector
        from stablernn_runtime.online.online_streams import OnlineStreams, block_length

        self.false_alarm_rate: float | None = None
        self.block: int | None = None
        self.reason: str | None = None
        # The positions of targets are those among the channels, which are what a stream sends.
        targets = list(data.target_indices)
        test = None
        try:
            self.block = block_length(certificate, data.season, stride)
        except ValueError as error:
            self.reason = str(error)
        else:
            # A rate a reading that suits short blocks would be several alarms a block of long ones.
            self.false_alarm_rate = min(FALSE_ALARM_RATE, MOST_ALARMS_A_BLOCK / self.block)
            test = DriftDetector(self.false_alarm_rate, self.block, data.horizon, len(targets), stride)
        intervals = AdaptiveIntervals(data.horizon, len(targets), levels, stride)
        self._online = OnlineStreams(targets, list(levels), intervals, test)

    def run(self, x: Array, quantiles: Array) -> tuple[Array, int]:
        """Return the adaptive quantiles after each sample of a new stream, and the number of alarms.

        Args:
            x: (samples, stride, channels), raw units.
            quantiles: (samples, horizon, targets, levels), the forecasts after each sample.
        """
        from stablernn_runtime.online.online_streams import ADAPTIVE_QUANTILES

        update = self._online.advance({}, x[None], quantiles[None])
        return update.outputs[ADAPTIVE_QUANTILES][0], int(update.alarms[0])


def show(output: Output, report: Mapping[str, Any]) -> None:
    """Print the coverage of the streamed split and its alarms."""
    output.text()
    streamed = report["streamed"]
    if streamed is None:
        output.facts({"intervals": f"none: {report['streamed_reason']}"}, title="Stream")
        return
    facts: dict[str, object] = {"read": f"{streamed['series']} series, {streamed['readings']} readings"}
    for row in streamed["coverage"]:
        fixed, adaptive = (_share(row[name]) for name in ("fixed", "adaptive"))
        facts[f"coverage, {row['nominal']:.0%} nominal"] = f"{fixed} fixed, {adaptive} adaptive"
    if streamed["alarms"] is None:
        facts["alarms of drift"] = f"not tested: {streamed['drift_reason']}"
    else:
        expected = streamed["readings"] * streamed["false_alarm_rate"]
        facts["alarms of drift"] = (
            f"{streamed['alarms']} in blocks of {streamed['block']} readings; without drift at most {expected:.2g} "
            "on average"
        )
    output.facts(facts, title="Stream")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
