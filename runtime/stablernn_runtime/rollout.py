"""Recursive heads: the graphs answer one step ahead, and each answer is the next input until the horizon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Manifest, Version
from stablernn_runtime.errors import InputError
from stablernn_runtime.graph import CancellationToken, Graph

Array = NDArray[Any]


class Model(Protocol):
    """The part of :class:`~stablernn_runtime.served_model.ServedModel` that a rollout needs."""

    manifest: Manifest
    input_name: str

    @property
    def sequence(self) -> Graph:
        """The graph over whole sequences."""
        ...

    @property
    def step(self) -> Graph:
        """The graph of one time step."""
        ...

    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        cancellation: CancellationToken | None = None,
        *,
        violations: set[str] | None = None,
    ) -> dict[str, Array]:
        """Check the inputs and run one graph."""
        ...

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states among the outputs by the names of the inputs that they feed."""
        ...


@dataclass(frozen=True)
class Rollout:
    """The steps of a recursive head to its horizon.

    Attributes:
        horizon: Steps ahead.
        target_indices: Features that the answers are fed back into.
        future_indices: Features whose values at the steps ahead come with the request.
        offsets: Calibration of the quantiles, which is added to them, ``(horizon, targets, quantiles)``; None without.
    """

    horizon: int
    target_indices: list[int]
    future_indices: list[int]
    offsets: Array | None

    @classmethod
    def from_version(cls, version: Version) -> Rollout:
        """Return the rollout of a version, with its calibration if it has one.

        Raises:
            RegistryError: If a file is damaged.
            ValueError: As :meth:`from_manifest`.
        """
        has_calibration = "calibration.json" in version.manifest.files
        return cls.from_manifest(version.manifest, version.read("calibration.json") if has_calibration else None)

    @classmethod
    def from_manifest(cls, manifest: Manifest, calibration: bytes | None) -> Rollout:
        """Return the rollout of a version.

        Args:
            manifest: Manifest of a forecast with a recursive head.
            calibration: Content of ``calibration.json``, where the version has one.

        Raises:
            ValueError: If the two do not fit each other; the message is half a sentence.
        """
        targets = manifest.targets or []
        if unknown := [name for name in targets if name not in manifest.features]:
            raise ValueError(f"its recursive head answers '{unknown[0]}', which is not one of its features.")
        target_indices = [manifest.features.index(name) for name in targets]
        future_indices = [manifest.features.index(name) for name in manifest.future or ()]
        horizon = manifest.horizon or 1
        shape = (horizon, len(targets), len(manifest.quantiles or ()))
        return cls(horizon, target_indices, future_indices, _read_offsets(calibration, shape))

    def run(
        self,
        model: Model,
        inputs: Mapping[str, Array],
        cancellation: CancellationToken | None = None,
        violations: set[str] | None = None,
    ) -> dict[str, Array]:
        """Return the outputs over the horizon and the states after the sequences, as a direct head gives them.

        Args:
            model: The model of the head.
            inputs: Inputs of the graph over whole sequences, but ``future`` spans the horizon.
            cancellation: As in :meth:`ServedModel.run`.
            violations: Likewise, for all steps ahead together.

        Raises:
            InputError: If an input does not fit the model, or an answer is not finite.
            NotReadyError: If the run was ended.
        """
        x = np.asarray(inputs[model.input_name])
        future = self._check_future(x, inputs.get("future"))
        outputs = model.run(
            model.sequence, {**inputs, **self._future_at(future, 0)}, cancellation=cancellation, violations=violations
        )
        # The states to return: those before the first step ahead.
        results = dict(outputs)
        names = [name for name in outputs if name not in model.sequence.state_outputs]
        steps = {name: [outputs[name]] for name in names}
        static = {name: value for name, value in inputs.items() if name == "static"}
        for step in range(1, self.horizon):
            feeds = {**self.next_inputs(model, outputs["mean"], future, step), **static, **model.next_state(outputs)}
            outputs = model.run(model.step, feeds, cancellation=cancellation, violations=violations)
            for name in names:
                steps[name].append(outputs[name])
        return results | self.join_steps(steps)

    def next_inputs(self, model: Model, mean: Array, future: Array | None, step: int) -> dict[str, Array]:
        """Return the inputs of the step graph after ``step`` steps ahead: its last answer, and the known values.

        Args:
            model: The model of the head.
            mean: The last answer, ``(batch, 1, targets)``.
            future: Values that are known ahead, for the whole horizon, ``(batch, horizon, future)``.
            step: 1 or more.
        """
        # Features that are neither answered nor known ahead are missing.
        sample = np.full((len(mean), len(model.manifest.features)), np.nan, np.float32)
        sample[:, self.target_indices] = mean[:, 0]
        if future is not None:
            sample[:, self.future_indices] = future[:, step - 1]
        # A model of patches, each one sample on from the one before, reads (batch, 1, features).
        has_patch_axis = len(model.step.inputs[model.input_name].shape) == 3
        return {model.input_name: sample[:, None] if has_patch_axis else sample, **self._future_at(future, step)}

    def join_steps(self, steps: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
        """Return the answers of the first steps ahead, calibrated, as one array each, ``(batch, steps, ...)``.

        Args:
            steps: The answers of each step, ``(batch, 1, ...)``, by output name.
        """
        outputs = {name: np.concatenate(values, axis=1) for name, values in steps.items()}
        if "quantiles" in outputs:
            outputs["quantiles"] = self.calibrate(outputs["quantiles"])
        return outputs

    def calibrate(self, quantiles: Array) -> Array:
        """Add the offsets to quantiles of the first steps ahead, ``(..., steps, targets, quantiles)``."""
        if self.offsets is None:
            return quantiles
        # The offsets of neighboring levels may make their quantiles cross.
        return np.sort(quantiles + self.offsets[: quantiles.shape[-3]], axis=-1)

    def _check_future(self, x: Array, future: Array | None) -> Array | None:
        if future is None or not self.future_indices:
            return None
        values, shape = np.asarray(future), (len(x), self.horizon, len(self.future_indices))
        if values.shape != shape:
            raise InputError(
                f"future must have the shape (batch, {shape[1]}, {shape[2]}) = {shape} to fit x, got {values.shape}."
            )
        return values

    @staticmethod
    def _future_at(future: Array | None, step: int) -> dict[str, Array]:
        return {} if future is None else {"future": future[:, step : step + 1]}


def _read_offsets(calibration: bytes | None, shape: tuple[int, ...]) -> Array | None:
    if calibration is None:
        return None
    try:
        # It may lack intervals: the gate of a forecast stands in the same file.
        intervals = json.loads(calibration).get("intervals")
        offsets = None if intervals is None else np.array(intervals["offsets"], np.float32)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError("its calibration.json does not hold the offsets of quantiles.") from error
    if offsets is not None and (offsets.shape != shape or not np.isfinite(offsets).all()):
        raise ValueError(f"its calibration.json must hold finite offsets of the shape {shape}, got {offsets.shape}.")
    return offsets
