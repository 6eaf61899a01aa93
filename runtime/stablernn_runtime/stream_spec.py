"""The samples that the streams of a version take, and the outputs that they give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, proxy

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, Manifest, Signature, StateSignature, Version
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.calendar import countable
from stablernn_runtime.covariates import Covariates, observed_features
from stablernn_runtime.errors import InputError, ModelLoadError, cut
from stablernn_runtime.served_model import ServedModel

Array = NDArray[Any]


@dataclass(frozen=True)
class StreamFormat:
    """Shapes and types of the samples and outputs of a version's streams.

    Attributes:
        sample_shape: Of one sample as clients send it: the features without those of the calendar, ``()`` for tokens,
            with an axis over the samples of a stride for models of patches.
        graph_shape: The same as the graph takes it.
        dtype: Of the samples.
        outputs: Shape for each step, by name.
    """

    sample_shape: tuple[int, ...]
    graph_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    outputs: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, manifest: Manifest, step: GraphSignature, states: Iterable[StateSignature]) -> StreamFormat:
        """Return the format of a version, which need not be open.

        Args:
            manifest: Of the version.
            step: Signature of its step graph.
            states: Signatures of its states.
        """
        inputs = {tensor.name: tensor for tensor in step.inputs}
        tensor = inputs["x"] if "x" in inputs else inputs["tokens"]
        graph_shape = tuple(int(size) for size in tensor.shape[1:])
        observed = len(observed_features(manifest))
        next_states = {state.output for state in states}
        outputs = {
            output.name: tuple(int(size) for size in output.shape[1:])
            for output in step.outputs
            if output.name not in next_states
        }
        sample_shape = (*graph_shape[:-1], observed) if graph_shape else ()
        return cls(sample_shape, graph_shape, np.dtype(tensor.dtype), outputs)

    @classmethod
    def of_version(cls, version: Version) -> StreamFormat:
        """Return the format of a version by its manifest alone.

        Raises:
            ModelLoadError: If the manifest does not describe a step graph.
        """
        try:
            signature = Signature.model_validate(version.manifest.signature)
            if signature.step is not None:
                return cls.of(version.manifest, signature.step, signature.states)
        except (ValueError, KeyError):
            # Refused below: a signature of other fields, a free axis, or an input of another name.
            pass
        raise ModelLoadError(f"'{version.ref}' cannot be served: its signature does not describe a step graph.")

    @property
    def datatype(self) -> str:
        """The samples' type as the v2 protocol names it."""
        return "INT64" if self.dtype.kind == "i" else "FP32"


class StreamSpec:
    """The inputs and answers of the streams of one model.

    Attributes:
        model: The model; whoever has a plan has to keep it.
        covariates: What it is told beside the values.
        format: Shapes and types of samples and outputs.
        sample_shape: That of the format.
        graph_shape: Likewise.
        dtype: Likewise.
        outputs: Likewise.
        readings: Time steps in a sample.
        takes_dt: Whether the model is told the time between readings.
        frequency: Word of the calendar to count regular steps by; None without one.
        static_size: Values that never change within a stream.
        state_shapes: Of one stream, by input name, with their types.
    """

    def __init__(self, model: ServedModel) -> None:
        manifest, inputs = model.manifest, model.step.inputs
        # Plans are kept for as long as their models are, which must not be for ever.
        self.model: ServedModel = proxy(model)
        self.covariates = Covariates(self.model, "time")
        self.format = StreamFormat.of(manifest, model.step.signature, model.states)
        self.sample_shape, self.graph_shape = self.format.sample_shape, self.format.graph_shape
        self.dtype, self.outputs = self.format.dtype, self.format.outputs
        self.readings = model.patch_stride
        self.takes_dt = "dt" in inputs
        self.frequency = countable(manifest.frequency)
        self.static_size = len(manifest.static or ())
        self._step_shapes = {
            name: tuple(size for size in spec.shape[1:] if isinstance(size, int)) for name, spec in inputs.items()
        }
        self.state_shapes = {
            state.input: (tuple(int(size) for size in state.shape[1:]), np.dtype(state.dtype)) for state in model.states
        }

        self._vocabulary = len(manifest.features)
        self._longest = float(np.finfo(np.float32).max) if model.max_dt is None else model.max_dt

    @property
    def labels(self) -> list[str] | None:
        """The classes of a classifier."""
        return labels_of(self.model.manifest)

    def accepts(self, inputs: Mapping[str, Array], rows: int, steps: int) -> bool:
        """Whether inputs can go to the graph as they are; their types are not looked at.

        Args:
            inputs: By name, without the states; each must be ``(rows, steps, ...)``.
            rows: Streams.
            steps: Samples of each.
        """
        for name, value in inputs.items():
            # What is one axis short would be cut along the wrong one, and numpy would not mind.
            if value.shape != (rows, steps, *self._step_shapes[name]):
                return False
        values = inputs[self.model.input_name]
        if self.dtype.kind == "i":
            if values.min() < 0 or values.max() >= self._vocabulary:
                return False
        elif np.isinf(values).any():
            return False
        dt = inputs.get("dt")
        # NaN compares as false.
        return dt is None or bool(dt.min() >= 0 and dt.max() <= self._longest)

    def chosen(self, names: list[str] | None) -> list[str]:
        """The outputs that are asked for; all of them without ``names``.

        Raises:
            InputError: If there is none of a name, or one is named twice.
        """
        return chosen_outputs(names, self.outputs, self.model.described)


def chosen_outputs(names: Sequence[str] | None, outputs: Iterable[str], label: str) -> list[str]:
    """Return the outputs that are asked for; all of them without ``names``.

    Args:
        names: The wanted outputs.
        outputs: Those of the version.
        label: The version, as errors name it.

    Raises:
        InputError: If there is none of a name, or one is named twice.
    """
    available = list(outputs)
    for name in names or ():
        if name not in available:
            raise InputError(
                f"Unknown output '{cut(name)}'.{did_you_mean(name, available)} The {label} gives "
                f"{', '.join(available)} at each step."
            )
    if names and len(set(names)) < len(names):
        raise InputError(f"outputs names one output twice: {', '.join(names)}.")
    return list(names or available)


def labels_of(manifest: Manifest) -> list[str] | None:
    """The classes of a classifier; None for any other model."""
    return manifest.labels if manifest.task == "classify" else None


_plans: WeakKeyDictionary[ServedModel, StreamSpec] = WeakKeyDictionary()


def stream_spec(model: ServedModel) -> StreamSpec:
    """The plan of a model, made once."""
    plan = _plans.get(model)
    if plan is None:
        plan = _plans[model] = StreamSpec(model)
    return plan
