"""A stream: what a model carries from one sample to the next, and what its streams take and answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary, proxy

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, Manifest, RefError, Signature, StateSignature, Version, parse_ref
from stablernn_registry.errors import did_you_mean
from stablernn_server.clock import Clock
from stablernn_server.covariates import Covariates, observed_features
from stablernn_server.errors import BadTokenError, InputError, ModelLoadError, UnknownModelError, cut
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.state_token import Portable
from stablernn_server.timestamps import countable

Array = NDArray[Any]


class Versions(Protocol):
    """Where a token finds its model again."""

    async def by_digest(self, digest: str, name: str, version: int, deadline: float | None = None) -> OnnxModel: ...


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


class StreamPlan:
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

    def __init__(self, model: OnnxModel) -> None:
        manifest, inputs = model.manifest, model.step.inputs
        # Plans are kept for as long as their models are, which must not be for ever.
        self.model: OnnxModel = proxy(model)
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

    def static(self, given: dict[str, Any] | None) -> Array:
        """Static values by name as ``(1, names)``, NaN where one is not known.

        Raises:
            InputError: If a name or a number is strange.
        """
        return np.array([self.covariates.static_row(given, "static")], np.float32)

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


_plans: WeakKeyDictionary[OnnxModel, StreamPlan] = WeakKeyDictionary()


def plan_of(model: OnnxModel) -> StreamPlan:
    """The plan of a model, made once."""
    plan = _plans.get(model)
    if plan is None:
        plan = _plans[model] = StreamPlan(model)
    return plan


@dataclass(slots=True)
class Stream:
    """One stream, as it is after its last sample.

    Attributes:
        model: The model that it began with; a newer version does not take it over.
        step: Samples taken.
        states: By input name, ``(1, ...)``; none at the beginning, which is zeros.
        static: ``(1, names)``, where the model takes any.
        clock: The time of the last reading.
    """

    model: OnnxModel
    step: int = 0
    states: dict[str, Array] = field(default_factory=dict)
    static: Array | None = None
    clock: Clock = Clock()

    def portable(self) -> Portable:
        """What a token of it holds."""
        shapes = plan_of(self.model).state_shapes
        states = {name: self.states[name][0] if name in self.states else np.zeros(*of) for name, of in shapes.items()}
        static = np.empty(0, np.float32) if self.static is None else self.static[0]
        return Portable(self.model.ref, self.model.digest, self.step, self.clock, static, states)


def is_named(portable: Portable, reference: str) -> bool:
    """Return whether a reference may stand for the version of a state token.

    A name alone or with an alias may stand for any version of the model, since the token itself says which one.

    Args:
        portable: From :meth:`StateTokens.read`.
        reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.

    Raises:
        UnknownModelError: If the reference is none of these.
    """
    try:
        ref = parse_ref(reference)
    except RefError as error:
        raise UnknownModelError(str(error)) from error
    name, _, number = portable.model.rpartition(":")
    return ref.name == name and ref.version in (None, int(number))


async def restored(portable: Portable, versions: Versions, deadline: float | None = None) -> Stream:
    """The stream of a token.

    Args:
        portable: From :meth:`StateTokens.read`.
        versions: The models of this server.
        deadline: Until when to wait for the version to be opened, on the clock of the event loop.

    Raises:
        VersionGoneError: If the version that it belongs to is not there any more.
        BadTokenError: If its states are not those of the version.
    """
    name, _, number = portable.model.rpartition(":")
    return resumed(portable, await versions.by_digest(portable.digest, name, int(number), deadline))


def resumed(portable: Portable, model: OnnxModel) -> Stream:
    """The stream of a token of a known model.

    Raises:
        BadTokenError: If its states are not those of the model.
    """
    plan = plan_of(model)
    shapes = {name: (value.shape, value.dtype) for name, value in portable.states.items()}
    if shapes != plan.state_shapes or portable.static.size not in (0, plan.static_size):
        raise BadTokenError(f"The state token holds states that are not those of {model.described}; begin anew.")
    states = {name: value[None] for name, value in portable.states.items()}
    static = portable.static[None] if portable.static.size else None
    return Stream(model, portable.step, states, static, portable.clock)


def owned(states: Mapping[str, Array]) -> dict[str, Array]:
    """States that keep no one else's alive: those of a batch are parts of one array."""
    return {name: value if value.base is None else value.copy() for name, value in states.items()}
