"""Predictors and their outputs on a source: a torch model, an exported graph or anything else that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.data.arrays import Samples
from stablernn.data.windows import SampleSource
from stablernn.nn.models import SequenceModel

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


class StateName(NamedTuple):
    """One tensor of a model's state: the name by which it enters and leaves, and what it is."""

    input: str
    output: str
    role: str


class TorchPredictor:
    """A torch model as a predictor: evaluation mode, no gradients, on the device where the model is.

    Attributes:
        model: The model.
        states: Names of its states, as in an exported graph.
    """

    def __init__(self, model: SequenceModel) -> None:
        self.model = model
        self.input_name = model.input_name
        self.patch_stride = model.patches.stride
        roles = [role for role, _ in model.state_roles()]
        self.states = [StateName(f"state_{n}", f"state_{n}_out", role) for n, role in enumerate(roles)]

    def run_numpy(self, x: Array, lengths: Array | None = None, **further: Array | None) -> Outputs:
        return self._run(x, lengths, None, further)[0]

    def run_sequence(
        self,
        x: Array,
        lengths: Array | None = None,
        state: Mapping[str, Array] | None = None,
        **further: Array | None,
    ) -> Outputs:
        """:meth:`run_numpy` from a state on, with the state after the last step among the outputs.

        Args:
            x: As :meth:`run_numpy` takes it.
            lengths: Likewise.
            state: What :meth:`next_state` gave; zeros when omitted.
            further: What else the model takes: ``dt``, ``static``, ``future``.
        """
        given = None if state is None else tuple(self._tensor(state[name.input]) for name in self.states)
        outputs, final = self._run(x, lengths, given, further)
        return outputs | {name.output: _numpy(value) for name, value in zip(self.states, final, strict=True)}

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The states among the outputs, under the names by which they enter."""
        return {name.input: outputs[name.output] for name in self.states}

    def _run(
        self, x: Array, lengths: Array | None, state: tuple[Tensor, ...] | None, further: Mapping[str, Array | None]
    ) -> tuple[Outputs, tuple[Tensor, ...]]:
        options: dict[str, Any] = {name: self._tensor(value) for name, value in further.items() if value is not None}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            outputs, final = self.model.run(
                self._tensor(x, np.int64 if self.model.input_name == "tokens" else np.float32),
                None if lengths is None else self._tensor(lengths, np.int64),
                state,
                **options,
            )
        self.model.train(was_training)
        return {name: _numpy(value) for name, value in outputs.items()}, final

    def _tensor(self, values: Array, dtype: npt.DTypeLike = np.float32) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype)).to(device)


def _numpy(value: Tensor) -> Array:
    return np.asarray(value.cpu().numpy())


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
    with cached_weights(predictor.model) if isinstance(predictor, TorchPredictor) else nullcontext():
        for start in range(0, len(source), batch_size):
            batch = source.gather(np.arange(start, min(start + batch_size, len(source))))
            parts.append(predictor.run_numpy(batch.x, batch.lengths, **further_inputs(batch)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def further_inputs(batch: Samples) -> dict[str, Array]:
    """What samples bring beside values and lengths, by name: ``dt``, ``static``, ``future``, as far as they have it."""
    found = batch._asdict()
    return {name: value for name, value in found.items() if name not in ("x", "lengths", "y") and value is not None}
