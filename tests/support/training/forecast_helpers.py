"""Series and predictors whose forecasts can be told by hand; what several tests of forecasts import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from model_helpers import TRAINED
from stablernn.cells import list_cells
from stablernn.data import ForecastData, Series

QUICK_CELLS = {"lipschitz", "lstm", "lru", "exprnn", "gru_d", "scornn"}
EACH_CELL = [pytest.param(cell, marks=[] if cell in QUICK_CELLS else pytest.mark.slow) for cell in list_cells()]
EACH_TRAINED = [pytest.param(cell, marks=[] if cell in QUICK_CELLS else pytest.mark.slow) for cell in TRAINED]
"""All cells, of which the quick tests have one of each form of settings."""


def many_series(values: Sequence[np.ndarray], **changes: Any) -> ForecastData:
    """Series (time, channels) without a file; the first channel is forecast unless ``targets`` says otherwise."""
    channels = tuple(f"c{number}" for number in range(values[0].shape[1]))
    settings: dict[str, Any] = {
        "name": "toy",
        "series": tuple(Series(f"s{n}", np.arange(len(v)), v.astype(np.float32)) for n, v in enumerate(values)),
        "channels": channels,
        "targets": channels[:1],
        "frequency": "1",
        "season": 3,
        "horizon": 2,
        "context_length": 4,
        "validation_steps": 4,
        "test_steps": 9,
        "notes": {},
        "fingerprint": "",
    }
    return ForecastData(**(settings | changes))


class Name(NamedTuple):
    input: str
    output: str
    role: str


class Sums:
    """Forecasts from the sum of all values seen and the last one, as a state of two numbers a channel.

    Step k of the forecast is ``gain**(k + 1)`` times the last value; ``quantiles`` are one below and one above.

    Args:
        gain: Factor of a step.
        targets: Which channels are forecast.
        horizon: Steps.
        weight: Share of the sum that is added, so that a longer memory can be told from a shorter one.
    """

    patch_stride = 1
    states = (Name("state_0", "state_0_out", "sum"), Name("state_1", "state_1_out", "last"))

    def __init__(self, gain: float = 1.0, targets: Sequence[int] = (0,), horizon: int = 2, weight: float = 0.0) -> None:
        self.gain, self.targets, self.horizon, self.weight = gain, list(targets), horizon, weight
        self.inputs: list[np.ndarray] = []
        self.optional_inputs: list[dict[str, np.ndarray]] = []

    def run_sequence(
        self,
        x: np.ndarray,
        lengths: np.ndarray | None = None,
        state: Mapping[str, np.ndarray] | None = None,
        **optional: np.ndarray,
    ) -> dict[str, np.ndarray]:
        self.inputs.append(x)
        self.optional_inputs.append(optional)
        before = np.zeros((len(x), x.shape[2]), dtype=np.float32) if state is None else state["state_0"]
        total = before + np.nansum(x, axis=1)
        last = x[:, -1]
        growth = self.gain ** (np.arange(self.horizon) + 1)
        mean = growth[:, None] * last[:, None, self.targets] + self.weight * total[:, None, self.targets]
        mean = mean.astype(np.float32)
        quantiles = mean[..., None] + np.array([-1, 0, 1], dtype=np.float32)
        return {"mean": mean, "quantiles": quantiles, "state_0_out": total, "state_1_out": last}

    def run_numpy(
        self, x: np.ndarray, lengths: np.ndarray | None = None, **optional: np.ndarray
    ) -> dict[str, np.ndarray]:
        outputs = self.run_sequence(x, lengths, **optional)
        return {name: outputs[name] for name in ("mean", "quantiles")}

    def next_state(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name.input: outputs[name.output] for name in self.states}
