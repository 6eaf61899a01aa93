"""Recursive heads: the graphs answer one step ahead, and what they answer is their next input until the horizon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Manifest
from stablernn_runtime.engines.session import CancellationToken
from stablernn_runtime.errors import InputError
from stablernn_runtime.graph import Graph

Array = NDArray[Any]


class Model(Protocol):
    """The part of :class:`~stablernn_runtime.served_model.ServedModel` that a rollout needs."""

    manifest: Manifest
    input_name: str
    sequence: Graph
    step: Graph

    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        stop: CancellationToken | None = None,
        *,
        outside: set[str] | None = None,
    ) -> dict[str, Array]:
        """Check the inputs and run one graph."""
        ...

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states among the outputs by the names of the inputs that they feed."""
        ...


@dataclass(frozen=True)
class Rollout:
    """How the steps of one model follow from each other.

    Attributes:
        horizon: Steps ahead.
        targets: Features that the answers are fed back into.
        known: Features whose values at the steps ahead come with the request.
        offsets: What calibration adds to the quantiles, ``(horizon, targets, quantiles)``; None without it.
    """

    horizon: int
    targets: list[int]
    known: list[int]
    offsets: Array | None

    @classmethod
    def of(cls, manifest: Manifest, calibration: bytes | None) -> Rollout:
        """The roll-out of a version.

        Args:
            manifest: Of a forecast with a recursive head.
            calibration: Its ``calibration.json``, where it has one.

        Raises:
            ValueError: If the two do not fit each other; half a sentence that says how.
        """
        targets = manifest.targets or []
        if strange := [name for name in targets if name not in manifest.features]:
            raise ValueError(f"its recursive head answers '{strange[0]}', which is not one of its features.")
        places = [manifest.features.index(name) for name in (*targets, *(manifest.future or ()))]
        horizon = manifest.horizon or 1
        shape = (horizon, len(targets), len(manifest.quantiles or ()))
        return cls(horizon, places[: len(targets)], places[len(targets) :], _offsets(calibration, shape))

    def run(
        self,
        model: Model,
        inputs: Mapping[str, Array],
        stop: CancellationToken | None = None,
        outside: set[str] | None = None,
    ) -> dict[str, Array]:
        """Outputs over the horizon, and the states after the sequences: what the graph of a direct head gives.

        Args:
            model: The model whose head it is.
            inputs: Of the graph over whole sequences, but for ``future``, which spans the horizon.
            stop: As in :meth:`Graph.run`.
            outside: Likewise; of all steps ahead together.

        Raises:
            InputError: If an input does not fit the model, or an answer is not finite.
        """
        x = np.asarray(inputs[model.input_name])
        future = self._future(x, inputs.get("future"))
        outputs = model.run(model.sequence, {**inputs, **self._ahead(future, 0)}, stop=stop, outside=outside)
        answers = [name for name in outputs if name not in model.sequence.state_outputs]
        steps = {name: [outputs[name]] for name in answers}
        found = dict(outputs)
        constant = {name: value for name, value in inputs.items() if name == "static"}
        for step in range(1, self.horizon):
            given = {**self.next_inputs(model, outputs["mean"], future, step), **constant}
            outputs = model.run(model.step, {**given, **model.next_state(outputs)}, stop=stop, outside=outside)
            for name in answers:
                steps[name].append(outputs[name])
        return found | self.joined(steps)

    def next_inputs(self, model: Model, mean: Array, future: Array | None, step: int) -> dict[str, Array]:
        """What the step graph reads after ``step`` steps ahead: what it answered last, and what is known of then.

        Args:
            model: The model whose head it is.
            mean: The last answer, ``(batch, 1, targets)``.
            future: Of the whole horizon, ``(batch, horizon, future)``.
            step: 1 or more.
        """
        sample = np.full((len(mean), len(model.manifest.features)), np.nan, np.float32)
        sample[:, self.targets] = mean[:, 0]
        if future is not None:
            sample[:, self.known] = future[:, step - 1]
        # A model of patches, of which each is one sample on: it reads them with an axis of their own.
        patched = len(model.step.inputs[model.input_name].shape) == 3
        return {model.input_name: sample[:, None] if patched else sample, **self._ahead(future, step)}

    def joined(self, steps: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
        """The answers of the first steps ahead as one, ``(batch, steps, ...)``, with what calibration adds."""
        found = {name: np.concatenate(values, axis=1) for name, values in steps.items()}
        if "quantiles" in found:
            found["quantiles"] = self.calibrated(found["quantiles"])
        return found

    def calibrated(self, quantiles: Array) -> Array:
        """Quantiles of the first steps ahead, ``(..., steps, targets, quantiles)``, with what calibration adds."""
        if self.offsets is None:
            return quantiles
        return np.sort(quantiles + self.offsets[: quantiles.shape[-3]], axis=-1)

    def _future(self, x: Array, future: Array | None) -> Array | None:
        if future is None or not self.known:
            return None
        given, shape = np.asarray(future), (len(x), self.horizon, len(self.known))
        if given.shape != shape:
            raise InputError(
                f"future must have the shape (batch, {shape[1]}, {shape[2]}) = {shape} to fit x, got {given.shape}."
            )
        return given

    @staticmethod
    def _ahead(future: Array | None, step: int) -> dict[str, Array]:
        return {} if future is None else {"future": future[:, step : step + 1]}


def _offsets(calibration: bytes | None, shape: tuple[int, ...]) -> Array | None:
    if calibration is None:
        return None
    try:
        intervals = json.loads(calibration).get("intervals")
        offsets = None if intervals is None else np.array(intervals["offsets"], np.float32)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError("its calibration.json does not hold the offsets of quantiles.") from error
    if offsets is not None and (offsets.shape != shape or not np.isfinite(offsets).all()):
        raise ValueError(f"its calibration.json must hold finite offsets of the shape {shape}, got {offsets.shape}.")
    return offsets
