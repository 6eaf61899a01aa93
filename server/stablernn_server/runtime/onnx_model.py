"""One registry version, opened for inference: numbers in, numbers out, no HTTP and no torch.

The graphs work in raw units: scaling, held missing values and padding are inside them. What this class adds is what a
caller may leave out (lengths, states), checks whose sentences a user understands, and the pairing of states by name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Self

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_registry import (
    GraphSignature,
    Manifest,
    RegistryError,
    Signature,
    StateSignature,
    TensorSignature,
    Version,
)
from stablernn_registry.errors import near
from stablernn_server.errors import DeviceError, InputError, ModelLoadError, NotReadyError, cut
from stablernn_server.runtime.graph_check import check_graph
from stablernn_server.runtime.session import RUNTIME_ERRORS, Device, Placement, Stop, choose_device, open_session

logger = logging.getLogger(__name__)

Array = NDArray[Any]
ONNX_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}
AXES: dict[int | str, str] = {"batch": "sequence", "time": "time step"}
WARM_UP_ERRORS: tuple[type[Exception], ...] = (InputError, *RUNTIME_ERRORS)


class Graph:
    """One ONNX graph with its session; its inputs and outputs agree with the manifest, or it does not open."""

    def __init__(
        self,
        content: bytes,
        what: str,
        signature: GraphSignature,
        placement: Placement,
        threads: int,
    ) -> None:
        check_graph(content, what)
        self.inputs = {tensor.name: tensor for tensor in signature.inputs}
        self.outputs = {tensor.name: tensor for tensor in signature.outputs}
        self.session: ort.InferenceSession = open_session(content, what, placement, threads)
        self._check(what, "inputs", self.inputs, self.session.get_inputs())
        self._check(what, "outputs", self.outputs, self.session.get_outputs())

    @staticmethod
    def _check(what: str, side: str, specs: Mapping[str, TensorSignature], actual: Sequence[Any]) -> None:
        # A free dimension reports its symbol; None and a differing symbol are free too, a number is not.
        found = {arg.name: (arg.type, tuple(d if isinstance(d, int) else -1 for d in arg.shape)) for arg in actual}
        stated = {
            spec.name: (ONNX_TYPES[spec.dtype], tuple(d if isinstance(d, int) else -1 for d in spec.shape))
            for spec in specs.values()
        }
        if found != stated:
            raise ModelLoadError(f"{what} has the {side} {found}, but the manifest's signature states {stated}.")


class OnnxModel:
    """A registry version whose graphs are open. Safe to call from several threads at once.

    Attributes:
        name: The model's name.
        version: Its number.
        aliases: The aliases that pointed at the version when it was opened.
        digest: ``sha256:...`` of its manifest.
        manifest: The manifest.
        placement: The device it runs on, and why.
        sequence: The graph over whole sequences.
        step: The graph of one time step.
        states: The states that both graphs take and give.
    """

    def __init__(self, version: Version, placement: Placement, threads: int) -> None:
        self.name: str = version.name
        self.version: int = version.version
        self.aliases: tuple[str, ...] = tuple(version.aliases)
        self.digest: str = version.digest
        self.manifest: Manifest = version.manifest
        self.placement = placement
        signature = Signature.model_validate(self.manifest.signature)
        if signature.sequence is None or signature.step is None:
            raise self._refusal("its signature lacks 'sequence' or 'step'.")
        self.states: tuple[StateSignature, ...] = tuple(signature.states)
        self.max_dt: float | None = signature.max_dt
        whole: dict[str, list[int | str]] = {"lengths": ["batch"], "dt": ["batch", "time"]}
        self._check_convention("sequence", signature.sequence, ["batch", "time"], whole)
        self._check_convention("step", signature.step, ["batch"], {"dt": ["batch"]})
        self.sequence = self._open(version, "sequence", signature.sequence, threads)
        self.step = self._open(version, "step", signature.step, threads)
        self._state_outputs = frozenset(state.output for state in self.states)

    @classmethod
    def load(cls, version: Version, device: Device = "auto", threads: int = 1) -> Self:
        """Open a registry version; every byte that is used is checked against the manifest's hash first.

        Args:
            version: From ``stablernn_registry.Registry.get``.
            device: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where it loads, else the CPU, which is logged.
            threads: Threads inside one run. With 1, a batch, a single sequence and a stream give the same bits.

        Raises:
            ModelLoadError: If a file is damaged, or the graph is not one that is served.
            DeviceError: If ``cuda`` was asked for and does not load.
        """
        placement = choose_device(device)
        try:
            model = cls(version, placement, threads)
        except DeviceError as error:
            if device != "auto":
                raise
            logger.warning("%s:%d falls back to the CPU: %s", version.name, version.version, error)
            placement = Placement("cpu", "auto: CPU, because ONNX Runtime could not load its CUDA libraries")
            model = cls(version, placement, threads)
        model._warm_up()
        logger.info("%s:%d runs on %s. %s", model.name, model.version, placement.device, placement.note)
        return model

    def _open(self, version: Version, kind: str, signature: GraphSignature, threads: int) -> Graph:
        try:
            content = version.read(f"{kind}.onnx")
        except RegistryError as error:
            raise self._refusal(str(error)) from error
        what = f"{kind}.onnx of '{version.name}:{version.version}'"
        return Graph(content, what, signature, self.placement, threads)

    def _check_convention(
        self, kind: str, graph: GraphSignature, axes: list[int | str], further: Mapping[str, list[int | str]]
    ) -> None:
        """Raise unless the inputs are ``x``, the states and those of ``further``, in shapes that can be filled in.

        Args:
            kind: ``"sequence"`` or ``"step"``.
            graph: What the manifest says of it.
            axes: The free axes of ``x``.
            further: Shapes of further inputs, which a graph may lack.
        """
        shapes = {tensor.name: tensor.shape for tensor in graph.inputs}
        known = {"x": [*axes, len(self.manifest.features)], **further}
        if "x" not in shapes:
            raise self._refusal(f"the {kind} in its signature has no input 'x'.")
        states = {state.input for state in self.states}
        for name, shape in shapes.items():
            if name not in known and name not in states:
                raise self._refusal(
                    f"the {kind} in its signature has an input '{cut(name)}' that is neither a state nor one of "
                    f"{', '.join(known)}."
                )
            if shape != known.get(name, shape):
                raise self._refusal(
                    f"its signature gives the input '{name}' of {kind} the shape {shape}, {known[name]} is served."
                )
        for tensor in (*graph.inputs, *graph.outputs):
            if unknown := [size for size in tensor.shape if isinstance(size, str) and size not in axes]:
                raise self._refusal(
                    f"the axis '{cut(unknown[0])}' of '{cut(tensor.name)}' in its signature of {kind} is not one of "
                    f"{', '.join(map(str, axes))}."
                )

    def _refusal(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"'{self.name}:{self.version}' cannot be served: {reason}")

    def _warm_up(self) -> None:
        """One run of each graph, so that the first request finds everything in place and a broken graph is not served.

        Raises:
            ModelLoadError: If an answer is not finite, or does not have the shape that the manifest promises.
        """
        x = np.zeros((1, 2, len(self.manifest.features)), np.float32)
        try:
            answers = self.run_sequence(x)
            self.run_step(x[:, 0])
        except WARM_UP_ERRORS as error:
            raise self._refusal(str(error)) from error
        targets, horizon = len(self.manifest.targets or ()), self.manifest.horizon or 0
        promised: dict[str, tuple[int, ...]] = {}
        if self.manifest.task == "classify":
            promised["probabilities"] = (1, len(self.manifest.labels or ()))
        elif self.manifest.task == "forecast":
            promised["mean"] = (1, horizon, targets)
            if self.manifest.quantiles:
                promised["quantiles"] = (1, horizon, targets, len(self.manifest.quantiles))
        for name, shape in promised.items():
            got = answers[name].shape if name in answers else None
            if got != shape:
                raise self._refusal(
                    f"its manifest promises the output '{name}' in the shape {shape}, the graph gives {got}."
                )

    def __repr__(self) -> str:
        return f"OnnxModel('{self.name}:{self.version}', device='{self.placement.device}')"

    def run_sequence(
        self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """All outputs for whole sequences, final states included.

        Args:
            x: Shape ``(batch, time, features)``, raw units, NaN where a value is missing.
            lengths: Steps of each sequence that count, shape ``(batch,)``; default: all of them.
            state: States to start from, by input name (``state_0``, ...); default: zeros.

        Returns:
            Every output of the graph by name, such as ``logits``, ``probabilities``, ``state_0_out``.

        Raises:
            InputError: If a shape or a value does not fit; the sentence says which.
        """
        inputs: dict[str, Array] = {"x": x, **(state or {})}
        if lengths is not None:
            inputs["lengths"] = lengths
        return self.run(self.sequence, inputs)

    def run_step(self, x: Array, state: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """All outputs after one time step; :meth:`next_state` turns them into the state of the following one.

        Args:
            x: Shape ``(batch, features)``.
            state: As in :meth:`run_sequence`.
        """
        return self.run(self.step, {"x": x, **(state or {})})

    def run_numpy(
        self, x: Array, lengths: Array | None = None, stop: Stop | None = None, *, dt: Array | None = None
    ) -> dict[str, Array]:
        """The answers for whole sequences, without the states; the name is that of ``stablernn.training``'s predictors.

        Args:
            x: As in :meth:`run_sequence`.
            lengths: Likewise.
            stop: As in :meth:`run`.
            dt: Shape ``(batch, time)``, the time from the step before in regular steps, where the model takes it;
                default: 1.
        """
        answers = [name for name in self.sequence.outputs if name not in self._state_outputs]
        given = {"x": x, "lengths": lengths, "dt": dt}
        inputs = {name: value for name, value in given.items() if value is not None}
        return self.run(self.sequence, inputs, answers, stop)

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The states in ``outputs`` under the names of the inputs that they feed."""
        return {state.input: outputs[state.output] for state in self.states}

    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        stop: Stop | None = None,
    ) -> dict[str, Array]:
        """Run one graph on named inputs; those that are optional may be absent.

        Args:
            graph: :attr:`sequence` or :attr:`step`.
            inputs: By name; numbers of any kind, they are converted to what the graph takes.
            outputs: Names of the wanted outputs; default: all.
            stop: Ends the run from another thread.

        Raises:
            InputError: If a name, a shape or a value does not fit, or the values lead to an output that is not finite.
            NotReadyError: If the run was ended.
        """
        names = list(graph.outputs) if outputs is None else list(outputs)
        for name in names:
            if name not in graph.outputs:
                raise _unknown_tensor("output", name, graph.outputs, self._label)
        for name in inputs:
            if name not in graph.inputs:
                raise _unknown_tensor("input", name, graph.inputs, self._label)
        feeds = self._feeds(graph, inputs)
        try:
            values: Sequence[Any] = graph.session.run(names, feeds, None if stop is None else stop.options)
        except RUNTIME_ERRORS as error:
            if stop is not None and stop.is_set:
                raise NotReadyError("The inference was ended because the server is shutting down.") from error
            raise
        answers: dict[str, Array] = dict(zip(names, values, strict=True))
        for name, value in answers.items():
            # A class or a forecast made of NaN would look like any other.
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                row = int(np.argwhere(~np.isfinite(value))[0][0])
                raise InputError(
                    f"The output '{name}' of {self._label} is not finite for sequence {row}: its values lead beyond "
                    "the range of float32."
                )
        return answers

    def elements(self, batch: int, time: int) -> int:
        """Numbers in all inputs and outputs of one run over ``batch`` sequences of ``time`` steps."""
        sizes = {"batch": batch, "time": time}
        tensors = (*self.sequence.inputs.values(), *self.sequence.outputs.values())
        return sum(prod(sizes[d] if isinstance(d, str) else d for d in tensor.shape) for tensor in tensors)

    def check_values(self, what: str, values: Array) -> Array:
        """``values`` of shape ``(..., features)`` as the graphs take them.

        Args:
            what: What to call them in errors.
            values: Numbers in raw units, NaN where one is missing.

        Returns:
            float32, contiguous and aligned.

        Raises:
            InputError: If the features are not as many as the model's, or a value is infinite or beyond float32.
        """
        features = self.manifest.features
        if values.shape[-1] != len(features):
            names = f" ({', '.join(features)})" if len(features) <= 8 else ""
            raise InputError(
                f"{what} has {_count(values.shape[-1], 'feature')}, {self._label} expects {len(features)}{names}."
            )
        values = _converted(what, values, np.dtype(np.float32))
        if np.isinf(values).any():
            where = tuple(int(i) for i in np.argwhere(np.isinf(values))[0])
            raise InputError(
                f"{what} holds an infinite value at {where}; values must be finite within float32, and a missing one "
                "is NaN (null in JSON)."
            )
        return values

    @property
    def _label(self) -> str:
        return f"model '{self.name}:{self.version}'"

    def _feeds(self, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if "x" not in inputs:
            raise InputError(f"The input 'x' is missing; {self._label} takes {_listing(graph.inputs)}.")
        x = self._checked_x(graph, np.asarray(inputs["x"]))
        sizes: dict[str, int] = {
            word: size for word, size in zip(graph.inputs["x"].shape, x.shape, strict=True) if isinstance(word, str)
        }
        feeds = {"x": x}
        for name, spec in graph.inputs.items():
            if name == "x":
                continue
            shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
            if name in inputs:
                feeds[name] = _checked(name, np.asarray(inputs[name]), spec, shape)
                if name == "lengths":
                    _check_lengths(feeds[name], sizes["time"])
                if name == "dt":
                    _check_dt(feeds[name], self.max_dt)
            elif name == "lengths":
                feeds[name] = np.full(shape, sizes["time"], np.int64)
            elif name == "dt":
                feeds[name] = np.ones(shape, np.float32)
            elif spec.optional:
                feeds[name] = np.zeros(shape, np.dtype(spec.dtype))
            else:
                raise InputError(f"The input '{name}' is missing; {self._label} takes {_listing(graph.inputs)}.")
        return feeds

    def _checked_x(self, graph: Graph, x: Array) -> Array:
        spec = graph.inputs["x"]
        shape = f"({', '.join(map(str, spec.shape))})"
        if x.ndim != len(spec.shape):
            raise InputError(f"x must have the shape {shape} for {self._label}, got {x.shape}.")
        for axis, size in zip(spec.shape, x.shape, strict=True):
            if size == 0 and axis in AXES:
                raise InputError(f"x is empty: it needs at least one {AXES[axis]}, got the shape {x.shape}.")
        return self.check_values("x", x)


def _checked(name: str, value: Array, spec: TensorSignature, shape: tuple[int, ...]) -> Array:
    if value.shape != shape:
        words = f"({', '.join(map(str, spec.shape))})"
        raise InputError(f"{name} must have the shape {words} = {shape} to fit x, got {value.shape}.")
    value = _converted(name, value, np.dtype(spec.dtype))
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"{name} holds values that are not finite; only x may have missing values.")
    return value


def _converted(name: str, value: Array, dtype: np.dtype[Any]) -> Array:
    """``value`` in the dtype of the graph, contiguous and aligned, as the runtime's C code needs it."""
    if value.dtype.kind not in ("iu" if dtype.kind == "i" else "iuf"):
        kind = "whole numbers" if dtype.kind == "i" else "numbers"
        raise InputError(f"{name} must hold {kind} ({dtype}), got {value.dtype}.")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which is reported by the caller
        return np.require(value, dtype, ["C", "A"])


def _check_lengths(lengths: Array, time: int) -> None:
    if lengths.min() < 1 or lengths.max() > time:
        worst = int(lengths.max() if lengths.max() > time else lengths.min())
        raise InputError(f"lengths must lie between 1 and the {_count(time, 'time step')} of x, got {worst}.")


def _check_dt(dt: Array, longest: float | None) -> None:
    if dt.min() < 0:
        raise InputError(f"dt must be 0 or more, the time since the step before, got {dt.min():g}.")
    # In float32 a dt may lie just above the number that it was written as.
    if longest is not None and dt.max() > longest * (1 + 1e-6):
        raise InputError(
            f"dt must be at most {longest:g}, the longest step that the model takes, got {dt.max():g}; "
            "divide the gap into steps with missing values."
        )


def _unknown_tensor(side: str, given: str, specs: Mapping[str, TensorSignature], label: str) -> InputError:
    verb = "takes" if side == "input" else "gives"
    return InputError(f"Unknown {side} '{cut(given)}'.{near(given, specs)} The {label} {verb} {_listing(specs)}.")


def _listing(specs: Mapping[str, TensorSignature]) -> str:
    return ", ".join(f"{spec.name} (optional)" if spec.optional else spec.name for spec in specs.values())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
