"""Predictors and their outputs on a source: a torch model, an exported graph or anything else that answers.

Predictions of an exported graph come through here too, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Samples
from stablernn.data.windows import SampleSource

Array = npt.NDArray[Any]
Outputs = dict[str, Array]

BATCH_SIZE = 256


class Predictor(Protocol):
    """Anything that predicts a batch of sequences in raw units."""

    def run_numpy(self, x: Array, lengths: Array | None = None, *, dt: Array | None = None) -> Outputs:
        """Return the outputs for a batch of sequences.

        Args:
            x: (batch, time, features) float32 in raw units, NaN for a missing value.
            lengths: (batch,), steps of each sequence before its padding; all steps if omitted.
            dt: (batch, time) float32, the time from the step before, for models that take it.

        Returns:
            ``probabilities`` (batch, classes), or ``mean`` (batch, horizon, targets) and, if the model has them,
            ``quantiles`` (batch, horizon, targets, levels).
        """
        ...


@runtime_checkable
class CachesWeights(Protocol):
    """A predictor that can compute its weights from its parameters once for several runs, such as a torch model."""

    def cached_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters must not change."""
        ...


class StatefulPredictor(Protocol):
    """A predictor that can continue from the state after a sequence."""

    @property
    def states(self) -> Sequence[Any]:
        """Names of each tensor of the state, with ``input``, ``output`` and ``role`` as in :class:`StateName`."""
        ...

    @property
    def patch_stride(self) -> int:
        """Samples between two steps of the state."""
        ...

    def run_sequence(
        self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None, **optional: Array
    ) -> Outputs: ...

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]: ...


def predict(predictor: Predictor, source: SampleSource, *, batch_size: int = BATCH_SIZE) -> Outputs:
    """Return the predictor's outputs for every sample of a source, in order; empty for an empty source."""
    parts: list[Outputs] = []
    with cached_weights(predictor):
        for start in range(0, len(source), batch_size):
            batch = source.gather(np.arange(start, min(start + batch_size, len(source))))
            parts.append(predictor.run_numpy(batch.x, batch.lengths, **optional_inputs(batch)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def cached_weights(predictor: object) -> AbstractContextManager[None]:
    """Return a context for several runs of a predictor with the same parameters."""
    # The weights of an exported graph are constants: there is nothing to cache.
    return predictor.cached_weights() if isinstance(predictor, CachesWeights) else nullcontext()


def optional_inputs(batch: Samples) -> dict[str, Array]:
    """Return the inputs of samples in addition to values and lengths, by name: those of ``dt, static, future``."""
    fields = {"dt": batch.dt, "static": batch.static, "future": batch.future}
    return {name: value for name, value in fields.items() if value is not None}
