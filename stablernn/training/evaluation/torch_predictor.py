"""A torch model as a predictor."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.nn.models import SequenceModel
from stablernn.training.evaluation.predictors import Array, Outputs


class StateName(NamedTuple):
    """The names of one tensor of a model's state as an input and as an output, and its role."""

    input: str
    output: str
    role: str


class TorchPredictor:
    """A torch model as a predictor: evaluation mode, no gradients, on the device where the model is.

    Attributes:
        model: The model.
        states: Names of its states, as in an exported graph.
        resample_steps: Samples to which it resamples complete sequences; None if it does not.
    """

    def __init__(self, model: SequenceModel) -> None:
        self.model = model
        self.input_name = model.input_name
        self.patch_stride = model.patches.stride
        self.resample_steps = None if model.resampling is None else model.resampling.steps
        roles = [role for role, _ in model.state_roles()]
        self.states = [StateName(f"state_{n}", f"state_{n}_out", role) for n, role in enumerate(roles)]

    def cached_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes its weights from its parameters once instead of in each run."""
        return cached_weights(self.model)

    def run_numpy(self, x: Array, lengths: Array | None = None, **optional: Array | None) -> Outputs:
        return self._run(x, lengths, None, optional)[0]

    def run_sequence(
        self,
        x: Array,
        lengths: Array | None = None,
        state: Mapping[str, Array] | None = None,
        **optional: Array | None,
    ) -> Outputs:
        """Return the outputs of :meth:`run_numpy`, started from a state, and the state after the last step.

        Args:
            x: As :meth:`run_numpy` takes it.
            lengths: As :meth:`run_numpy` takes them.
            state: A result of :meth:`next_state`; default: zeros.
            optional: Other inputs of the model: ``dt``, ``static``, ``future``.
        """
        initial_state = None if state is None else tuple(self._tensor(state[name.input]) for name in self.states)
        outputs, final_state = self._run(x, lengths, initial_state, optional)
        return outputs | {name.output: _numpy(value) for name, value in zip(self.states, final_state, strict=True)}

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states among the outputs, by their names as inputs."""
        return {name.input: outputs[name.output] for name in self.states}

    def _run(
        self, x: Array, lengths: Array | None, state: tuple[Tensor, ...] | None, optional: Mapping[str, Array | None]
    ) -> tuple[Outputs, tuple[Tensor, ...]]:
        options: dict[str, Any] = {name: self._tensor(value) for name, value in optional.items() if value is not None}
        was_training = self.model.training
        # Setting the mode walks through all modules, which is felt in a run of one sequence.
        if was_training:
            self.model.eval()
        with torch.no_grad():
            outputs, final_state = self.model.run(
                self._tensor(x, np.int64 if self.model.input_name == "tokens" else np.float32),
                None if lengths is None else self._tensor(lengths, np.int64),
                state,
                **options,
            )
        if was_training:
            self.model.train()
        return {name: _numpy(value) for name, value in outputs.items()}, final_state

    def _tensor(self, values: Array, dtype: npt.DTypeLike = np.float32) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype)).to(device)


def _numpy(value: Tensor) -> Array:
    return np.asarray(value.cpu().numpy())
