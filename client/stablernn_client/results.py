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
        step: Number of samples the stream has taken, including this one.
        outputs: Arrays by name, such as ``probabilities`` ``(classes,)`` or ``mean`` ``(horizon, targets)``; none while
            a patch of samples is not full.
        label: The most probable class; None for models that do not classify, or without outputs.
    """

    step: int
    outputs: dict[str, Array]
    label: str | None = None


@dataclass(frozen=True, eq=False)
class StepsResult:
    """The outputs of several streams after one or several samples each.

    Attributes:
        steps: ``(streams,)``, int64: number of samples each stream has taken, including these.
        outputs: Arrays by name, each ``(streams, steps, ...)``; one step if only the last was requested. A model of
            patches has a step for each patch that is full, and NaN behind those of a stream that filled fewer.
        labels: ``(streams, steps)``, text, empty where there is no output; None for models that do not classify.
        answers: ``(streams,)``, int64: number of steps of each stream that have outputs.
        patch_stride: Samples after which a stream has outputs; 1 for models without patches.
    """

    steps: Array
    outputs: dict[str, Array]
    labels: Array | None
    answers: Array
    patch_stride: int = 1

    def of(self, stream: int) -> list[StepResult]:
        """Return the results of one stream, step by step; none while a patch is not full."""
        count, stride = int(self.answers[stream]), self.patch_stride
        last_patch = int(self.steps[stream]) // stride
        return [
            StepResult(
                step=(last_patch - count + 1 + index) * stride,
                outputs={name: output[stream, index] for name, output in self.outputs.items()},
                label=None if self.labels is None else str(self.labels[stream, index]),
            )
            for index in range(count)
        ]
