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
    """Anything that answers a batch of sequences in raw units."""

    def run_numpy(self, x: Array, lengths: Array | None = None, *, dt: Array | None = None) -> Outputs:
        """Outputs for ``x`` (batch, time, features) float32, of which the first ``lengths`` (batch,) steps count.

        Args:
            x: Raw units, NaN where a value is missing.
            lengths: All steps count when omitted.
            dt: (batch, time) float32, the time from the step before, for models that take it.

        Returns:
            ``probabilities`` (batch, classes), or ``mean`` (batch, horizon, targets) and, where the model has them,
            ``quantiles`` (batch, horizon, targets, levels).
        """
        ...


@runtime_checkable
class CachesWeights(Protocol):
    """A predictor that can compute its weights from its parameters once for several runs, such as a torch model."""

    def cached_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters must not change."""
        ...


class Continuing(Protocol):
    """A predictor that can go on from the state in which a sequence left it."""

    @property
    def states(self) -> Sequence[Any]:
        """What has ``input``, ``output`` and ``role`` for each tensor of the state."""
        ...

    @property
    def patch_stride(self) -> int:
        """Samples after which the state moves on."""
        ...

    def run_sequence(
        self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None, **further: Array
    ) -> Outputs: ...

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]: ...


def predict(predictor: Predictor, source: SampleSource, *, batch_size: int = BATCH_SIZE) -> Outputs:
    """The predictor's outputs for every sample of a source, in order."""
    parts: list[Outputs] = []
    with cached_weights(predictor):
        for start in range(0, len(source), batch_size):
            batch = source.gather(np.arange(start, min(start + batch_size, len(source))))
            parts.append(predictor.run_numpy(batch.x, batch.lengths, **further_inputs(batch)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def cached_weights(predictor: object) -> AbstractContextManager[None]:
    """Return a context for several runs of a predictor with the same parameters."""
    # The weights of an exported graph are constants: there is nothing to cache.
    return predictor.cached_weights() if isinstance(predictor, CachesWeights) else nullcontext()


def further_inputs(batch: Samples) -> dict[str, Array]:
    """What samples bring beside values and lengths, by name: ``dt``, ``static``, ``future``, as far as they have it."""
    found = batch._asdict()
    return {name: value for name, value in found.items() if name not in ("x", "lengths", "y") and value is not None}
