"""What the client answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Classification:
    """The classes of one series.

    Attributes:
        label: The most probable class.
        probabilities: By class, most probable first; the first ``top_k`` of them.
    """

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, eq=False)
class Forecast:
    """The forecast of one series, in raw units.

    Attributes:
        mean: ``(horizon, targets)``.
        quantiles: By level, each ``(horizon, targets)``.
        start: ISO 8601 time of the first step ahead; None when the series had no start.
        frequency: Spacing of the steps, or None.
        targets: Names of what is forecast, in the order of the last axis.
    """

    mean: Array
    quantiles: dict[float, Array]
    start: str | None
    frequency: str | None
    targets: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a stream knows after one step.

    Attributes:
        step: Steps that the stream has taken, this one included.
        outputs: By name, such as ``probabilities`` ``(classes,)`` or ``mean`` ``(horizon, targets)``.
        label: The most probable class; None for models that do not classify.
    """

    step: int
    outputs: dict[str, Array]
    label: str | None = None


@dataclass(frozen=True, eq=False)
class StepsResult:
    """What several streams know after one or several steps each.

    Attributes:
        steps: ``(streams,)``, int64: steps that each stream has taken, these included.
        outputs: By name, each ``(streams, steps, ...)``; one step where only the last was asked for.
        labels: ``(streams, steps)``, text; None for models that do not classify.
    """

    steps: Array
    outputs: dict[str, Array]
    labels: Array | None = None

    def of(self, stream: int) -> list[StepResult]:
        """The steps of one of the streams, one by one."""
        count = next((output.shape[1] for output in self.outputs.values()), 0)
        last = int(self.steps[stream])
        return [
            StepResult(
                step=last - count + 1 + place,
                outputs={name: output[stream, place] for name, output in self.outputs.items()},
                label=None if self.labels is None else str(self.labels[stream, place]),
            )
            for place in range(count)
        ]
