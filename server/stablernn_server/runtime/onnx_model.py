"""One registry version, opened for inference: numbers in, numbers out, no HTTP and no torch.

The graphs work in raw units: scaling, held missing values and padding are inside them. What this class adds is what a
caller may leave out (lengths, states), checks whose sentences a user understands, and the pairing of states by name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_registry import Manifest, RegistryError, Version
from stablernn_registry.errors import near
from stablernn_server.errors import DeviceError, InputError, ModelLoadError
from stablernn_server.runtime.graph_check import check_graph
from stablernn_server.runtime.session import RUNTIME_ERRORS, Device, Placement, choose_device, open_session

logger = logging.getLogger(__name__)

Array = NDArray[Any]
DTYPES = {"float32": "tensor(float)", "int64": "tensor(int64)"}
WARM_UP_ERRORS: tuple[type[Exception], ...] = (InputError, *RUNTIME_ERRORS)


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph, as the manifest's signature states it.

    Attributes:
        name: Its name in the graph.
        dtype: ``"float32"`` or ``"int64"``.
        shape: A number for a fixed dimension, a word (``"batch"``, ``"time"``) for a free one.
        optional: Whether a caller may leave it out.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    optional: bool = False


class Graph:
    """One ONNX graph with its session; its inputs and outputs agree with the manifest, or it does not open."""

    def __init__(
        self,
        content: bytes,
        what: str,
        inputs: Mapping[str, TensorSpec],
        outputs: Mapping[str, TensorSpec],
        placement: Placement,
        threads: int,
    ) -> None:
        check_graph(content, what)
        self.inputs = inputs
        self.outputs = outputs
        self.session: ort.InferenceSession = open_session(content, what, placement, threads)
        self._check(what, "inputs", self.inputs, self.session.get_inputs())
        self._check(what, "outputs", self.outputs, self.session.get_outputs())

    @staticmethod
    def _check(what: str, side: str, specs: Mapping[str, TensorSpec], actual: Sequence[Any]) -> None:
        # A free dimension reports its symbol; None and a differing symbol are free too, a number is not.
        found = {arg.name: (arg.type, tuple(d if isinstance(d, int) else -1 for d in arg.shape)) for arg in actual}
        stated = {
            spec.name: (DTYPES.get(spec.dtype, spec.dtype), tuple(d if isinstance(d, int) else -1 for d in spec.shape))
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
        states: What the signature says of each state: ``input``, ``output``, ``shape``, ``dtype``, ``role``.
    """

    def __init__(self, version: Version, placement: Placement, threads: int) -> None:
        self.name: str = version.name
        self.version: int = version.version
        self.aliases: tuple[str, ...] = tuple(version.aliases)
        self.digest: str = version.digest
        self.manifest: Manifest = version.manifest
        self.placement = placement
        self.states: tuple[Mapping[str, Any], ...] = tuple(self._signature("states"))
        self.sequence = self._open(version, "sequence", threads)
        self.step = self._open(version, "step", threads)
        self._state_outputs = frozenset(state["output"] for state in self.states)

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

    def _open(self, version: Version, kind: Literal["sequence", "step"], threads: int) -> Graph:
        try:
            content = version.read(f"{kind}.onnx")
        except RegistryError as error:
            raise ModelLoadError(f"'{version.name}:{version.version}' cannot be served: {error}") from error
        what = f"{kind}.onnx of '{version.name}:{version.version}'"
        inputs, outputs = (_specs(self._signature(kind, side)) for side in ("inputs", "outputs"))
        return Graph(content, what, inputs, outputs, self.placement, threads)

    def _signature(self, *path: str) -> list[Mapping[str, Any]]:
        """One list of the manifest's signature, which the registry stores without knowing what it means."""
        node: Any = self.manifest.signature
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        required = {"name", "dtype", "shape"} if path != ("states",) else {"input", "output", "shape"}
        if not isinstance(node, list) or not all(isinstance(item, dict) and required <= item.keys() for item in node):
            raise ModelLoadError(
                f"'{self.name}:{self.version}' cannot be served: its manifest has no usable signature.{'.'.join(path)}."
            )
        return node

    def _warm_up(self) -> None:
        """One run of each graph, so that the first request finds everything in place and a broken graph is not served.

        Raises:
            ModelLoadError: If the answers do not have the shapes that the manifest promises, or are not finite.
        """
        x = np.zeros((1, 2, len(self.manifest.features)), np.float32)
        try:
            answers = self.run_sequence(x)
            stepped = self.run_step(x[:, 0])
        except WARM_UP_ERRORS as error:
            raise ModelLoadError(f"'{self.name}:{self.version}' cannot be served: {error}") from error
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
                raise ModelLoadError(
                    f"'{self.name}:{self.version}' cannot be served: its manifest promises the output '{name}' in the "
                    f"shape {shape}, the graph gives {got}."
                )
        for name, value in [*answers.items(), *stepped.items()]:
            if not np.isfinite(value).all():
                raise ModelLoadError(
                    f"'{self.name}:{self.version}' cannot be served: a series of zeros makes its output '{name}' "
                    "infinite or NaN."
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

    def run_numpy(self, x: Array, lengths: Array | None = None) -> dict[str, Array]:
        """The answers for whole sequences, without the states."""
        answers = [name for name in self.sequence.outputs if name not in self._state_outputs]
        inputs = {"x": x} if lengths is None else {"x": x, "lengths": lengths}
        return self.run(self.sequence, inputs, answers)

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The states in ``outputs`` under the names of the inputs that they feed."""
        return {state["input"]: outputs[state["output"]] for state in self.states}

    def run(self, graph: Graph, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run one graph on named inputs; those that are optional may be absent.

        Args:
            graph: :attr:`sequence` or :attr:`step`.
            inputs: By name; numbers of any kind, they are converted to what the graph takes.
            outputs: Names of the wanted outputs; default: all.

        Raises:
            InputError: If a name, a shape or a value does not fit.
        """
        names = list(graph.outputs) if outputs is None else list(outputs)
        for name in names:
            if name not in graph.outputs:
                raise _unknown_tensor("output", name, graph.outputs, self._label)
        for name in inputs:
            if name not in graph.inputs:
                raise _unknown_tensor("input", name, graph.inputs, self._label)
        feeds = self._feeds(graph, inputs)
        values: Sequence[Any] = graph.session.run(names, feeds)
        return dict(zip(names, values, strict=True))

    def elements(self, batch: int, time: int) -> int:
        """Numbers that one run over ``batch`` sequences of ``time`` steps holds: its input and its states."""
        features = int(self.sequence.inputs["x"].shape[-1])
        states = sum(int(np.prod([d for d in state["shape"] if isinstance(d, int)])) for state in self.states)
        return batch * (time * features + states)

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
            elif name == "lengths":
                feeds[name] = np.full(shape, sizes["time"], np.int64)
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
        features = spec.shape[-1]
        if x.shape[-1] != features:
            named = self.manifest.features
            names = f" ({', '.join(named)})" if named and len(named) <= 8 else ""
            raise InputError(
                f"x has {_count(x.shape[-1], 'feature')}, {self._label} expects {features}{names}: shape {shape}, "
                f"got {x.shape}."
            )
        for word, size in zip(spec.shape, x.shape, strict=True):
            if size == 0:
                raise InputError(f"x is empty: shape {shape} needs at least one {word}, got {x.shape}.")
        x = _converted("x", x, spec)
        if np.isinf(x).any():
            where = tuple(int(i) for i in np.argwhere(np.isinf(x))[0])
            raise InputError(
                f"x holds an infinite value at {where}; values must be finite within float32, and a missing one is NaN "
                "(null in JSON)."
            )
        return x


def _specs(entries: Sequence[Mapping[str, Any]]) -> dict[str, TensorSpec]:
    return {
        entry["name"]: TensorSpec(
            entry["name"], entry["dtype"], tuple(entry["shape"]), bool(entry.get("optional", False))
        )
        for entry in entries
    }


def _checked(name: str, value: Array, spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    if value.shape != shape:
        words = f"({', '.join(map(str, spec.shape))})"
        raise InputError(f"{name} must have the shape {words} = {shape} to fit x, got {value.shape}.")
    value = _converted(name, value, spec)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"{name} holds values that are not finite; only x may have missing values.")
    return value


def _converted(name: str, value: Array, spec: TensorSpec) -> Array:
    """``value`` in the dtype of the graph, contiguous and aligned, as the runtime's C code needs it."""
    dtype = np.dtype(spec.dtype)
    if value.dtype.kind not in ("iu" if dtype.kind == "i" else "iuf"):
        kind = "whole numbers" if dtype.kind == "i" else "numbers"
        raise InputError(f"{name} must hold {kind} ({spec.dtype}), got {value.dtype}.")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which is reported by the caller
        return np.require(value, dtype, ["C", "A"])


def _check_lengths(lengths: Array, time: int) -> None:
    if lengths.min() < 1 or lengths.max() > time:
        worst = int(lengths.max() if lengths.max() > time else lengths.min())
        raise InputError(f"lengths must lie between 1 and the {_count(time, 'time step')} of x, got {worst}.")


def _unknown_tensor(side: str, given: str, specs: Mapping[str, TensorSpec], label: str) -> InputError:
    verb = "takes" if side == "input" else "gives"
    return InputError(f"Unknown {side} '{given}'.{near(given, specs)} The {label} {verb} {_listing(specs)}.")


def _listing(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{spec.name} (optional)" if spec.optional else spec.name for spec in specs.values())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
