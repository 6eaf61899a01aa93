"""Results of the client's calls."""

from __future__ import annotations

from dataclasses import dataclass

from stablernn_client.arrays import Array


@dataclass(frozen=True)
class Classification:
    """The predicted classes of one series.

    Attributes:
        label: The most probable class.
        probabilities: Probability by class, most probable first, at most ``top_k`` classes.
    """

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, eq=False)
class Forecast:
    """The forecast of one series, in raw units.

    Attributes:
        mean: Mean forecast, ``(horizon, targets)``.
        quantiles: Forecast quantiles by level, each ``(horizon, targets)``.
        start: ISO 8601 time of the first step ahead; None if the series had no start.
        frequency: Frequency of the steps, or None.
        targets: Names of the target variables, in the order of the last axis.
    """

    mean: Array
    quantiles: dict[float, Array]
    start: str | None
    frequency: str | None
    targets: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StepResult:
    """The output of a stream after one step.

    Attributes:
        step: Number of steps the stream has taken, including this one.
        outputs: Arrays by name, such as ``probabilities`` ``(classes,)`` or ``mean`` ``(horizon, targets)``.
        label: The most probable class; None for models that do not classify.
    """

    step: int
    outputs: dict[str, Array]
    label: str | None = None


@dataclass(frozen=True, eq=False)
class StepsResult:
    """The outputs of several streams after one or several steps each.

    Attributes:
        steps: ``(streams,)``, int64: number of steps each stream has taken, including these.
        outputs: Arrays by name, each ``(streams, steps, ...)``; one step if only the last was requested.
        labels: ``(streams, steps)``, text; None for models that do not classify.
    """

    steps: Array
    outputs: dict[str, Array]
    labels: Array | None = None

    def of(self, stream: int) -> list[StepResult]:
        """Return the results of one stream, step by step."""
        num_steps = next((output.shape[1] for output in self.outputs.values()), 0)
        last_step = int(self.steps[stream])
        return [
            StepResult(
                step=last_step - num_steps + 1 + index,
                outputs={name: output[stream, index] for name, output in self.outputs.items()},
                label=None if self.labels is None else str(self.labels[stream, index]),
            )
            for index in range(num_steps)
        ]
