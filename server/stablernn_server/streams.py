"""A stream: what a model carries from one sample to the next, and what its streams take and answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary, proxy

import numpy as np
from numpy.typing import NDArray

from stablernn_registry.errors import near
from stablernn_server.clock import Clock
from stablernn_server.covariates import Covariates
from stablernn_server.errors import BadTokenError, InputError, cut
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.state_token import Portable
from stablernn_server.timestamps import countable

Array = NDArray[Any]


class Versions(Protocol):
    """Where a token finds its model again."""

    async def by_digest(self, digest: str, name: str, version: int, deadline: float | None = None) -> OnnxModel: ...


class StreamPlan:
    """What the streams of one model take and answer.

    Attributes:
        model: The model; whoever has a plan has to keep it.
        covariates: What it is told beside the values.
        sample_shape: Of one sample as clients send it: the features without those of the calendar, ``()`` for tokens,
            with an axis over the samples of a stride for models of patches.
        graph_shape: The same as the graph takes it.
        dtype: Of the samples.
        readings: Time steps in a sample.
        takes_dt: Whether the model is told the time between readings.
        frequency: Word of the calendar to count regular steps by; None without one.
        outputs: Shape for each step, by name.
        static_size: Values that never change within a stream.
        state_shapes: Of one stream, by input name, with their types.
    """

    def __init__(self, model: OnnxModel) -> None:
        manifest, inputs = model.manifest, model.step.inputs
        # Plans are kept for as long as their models are, which must not be for ever.
        self.model: OnnxModel = proxy(model)
        self.covariates = Covariates(self.model, "time")
        self.graph_shape = tuple(int(size) for size in inputs[model.input_name].shape[1:])
        observed = len(self.covariates.observed)
        self.sample_shape = (*self.graph_shape[:-1], observed) if self.graph_shape else ()
        self.dtype = np.dtype(inputs[model.input_name].dtype)
        self.readings = model.patch_stride
        self.takes_dt = "dt" in inputs
        self.frequency = countable(manifest.frequency)
        self.outputs = {
            name: tuple(int(size) for size in spec.shape[1:])
            for name, spec in model.step.outputs.items()
            if name not in model.next_outputs
        }
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
    def datatype(self) -> str:
        """The samples' type in the words of the v2 protocol."""
        return "INT64" if self.dtype.kind == "i" else "FP32"

    @property
    def labels(self) -> list[str] | None:
        """The classes of a classifier."""
        return self.model.manifest.labels if self.model.manifest.task == "classify" else None

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
        for name in names or ():
            if name not in self.outputs:
                raise InputError(
                    f"Unknown output '{cut(name)}'.{near(name, self.outputs)} The {self.model.described} gives "
                    f"{', '.join(self.outputs)} at each step."
                )
        if names and len(set(names)) < len(names):
            raise InputError(f"outputs names one output twice: {', '.join(names)}.")
        return names or list(self.outputs)


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
