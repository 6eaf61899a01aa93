"""Predictors, such as torch models and exported graphs, and their outputs on a source of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.data.windows import Samples, SampleSource
from stablernn.nn.models import SequenceModel

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


class StateName(NamedTuple):
    """Names of one tensor of a model's state, as an input and as an output, and its role."""

    input: str
    output: str
    role: str


class TorchPredictor:
    """A torch model as a predictor: in evaluation mode, without gradients, on the device of the model.

    Args:
        model: Model to run.

    Attributes:
        model: The model.
        input_name: Name of its input, ``x`` or ``tokens``.
        patch_stride: Samples between two steps of the layers.
        states: Names of its states, as in an exported graph.
    """

    def __init__(self, model: SequenceModel) -> None:
        self.model = model
        self.input_name = model.input_name
        self.patch_stride = model.patches.stride
        roles = [role for role, _ in model.state_roles()]
        self.states = [StateName(f"state_{n}", f"state_{n}_out", role) for n, role in enumerate(roles)]

    def run_numpy(self, x: Array, lengths: Array | None = None, **optional: Array | None) -> Outputs:
        return self._run(x, lengths, None, optional)[0]

    def run_sequence(
        self,
        x: Array,
        lengths: Array | None = None,
        state: Mapping[str, Array] | None = None,
        **optional: Array | None,
    ) -> Outputs:
        """Run from a state on, and return the outputs with the state after the last step among them.

        Args:
            x: As for :meth:`run_numpy`.
            lengths: As for :meth:`run_numpy`.
            state: State from :meth:`next_state`; zeros if omitted.
            optional: Optional inputs of the model: ``dt``, ``static``, ``future``.
        """
        initial = None if state is None else tuple(self._tensor(state[name.input]) for name in self.states)
        outputs, final = self._run(x, lengths, initial, optional)
        return outputs | {name.output: _numpy(value) for name, value in zip(self.states, final, strict=True)}

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states among the outputs, by their names as inputs."""
        return {name.input: outputs[name.output] for name in self.states}

    def _run(
        self, x: Array, lengths: Array | None, state: tuple[Tensor, ...] | None, optional: Mapping[str, Array | None]
    ) -> tuple[Outputs, tuple[Tensor, ...]]:
        options: dict[str, Any] = {name: self._tensor(value) for name, value in optional.items() if value is not None}
        # A trainer scores its model between two epochs, so the mode is restored below.
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            # Tokens are indices of a vocabulary, all other inputs are numbers.
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
    # Constrained weights are computed once for all batches, as they do not change in between.
    with cached_weights(predictor.model) if isinstance(predictor, TorchPredictor) else nullcontext():
        for start in range(0, len(source), batch_size):
            batch = source.gather(np.arange(start, min(start + batch_size, len(source))))
            parts.append(predictor.run_numpy(batch.x, batch.lengths, **optional_inputs(batch)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def optional_inputs(batch: Samples) -> dict[str, Array]:
    """Return the inputs of samples in addition to values and lengths, by name: those of ``dt, static, future``."""
    fields = batch._asdict()
    return {name: value for name, value in fields.items() if name not in ("x", "lengths", "y") and value is not None}
