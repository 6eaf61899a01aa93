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
from stablernn_server.runtime.checks import KNOWN, check_dt, check_lengths, checked, converted, count
from stablernn_server.runtime.graph_check import check_graph
from stablernn_server.runtime.guard import StateGuard
from stablernn_server.runtime.rollout import Rollout
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
        rollout: How a recursive head comes to its horizon; None for any other.
        patch_stride: Samples after which the state moves on.
        input_name: ``x``, numbers, or ``tokens``, whole numbers below that of the features.
        next_outputs: Names of the outputs that are states.
        guard: Where the certificate says that states stay.
        guarded: Those outputs that are states with a ball, and the inputs that they feed.
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
        given = [tensor.name for tensor in signature.sequence.inputs]
        self.input_name: str = "tokens" if "tokens" in given and "x" not in given else "x"
        self.rollout: Rollout | None = self._rollout(version) if self.manifest.head == "recursive" else None
        known = self._known_shapes()
        whole: dict[str, list[int | str]] = {"lengths": ["batch"], "dt": ["batch", "time"], **known}
        self._check_convention("sequence", signature.sequence, ["batch", "time"], whole)
        step: list[int | str] = ["batch", *_patch(signature.step, self.input_name)]
        self._check_convention("step", signature.step, step, {"dt": step, **known})
        self.sequence = self._open(version, "sequence", signature.sequence, threads)
        self.step = self._open(version, "step", signature.step, threads)
        shape = self.step.inputs[self.input_name].shape
        self.patch_stride: int = int(shape[1]) if self.input_name == "x" and len(shape) == 3 else 1
        self.next_outputs: frozenset[str] = frozenset(state.output for state in self.states)
        try:
            self.guard = StateGuard(self.manifest.certificate, [state.input for state in self.states])
        except ValueError as error:
            raise self._refusal(str(error)) from error
        self.guarded: dict[str, str] = {
            state.output: state.input for state in self.states if state.input in self.guard.balls
        }

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

    def _rollout(self, version: Version) -> Rollout:
        try:
            has = "calibration.json" in self.manifest.files
            return Rollout.of(self.manifest, version.read("calibration.json") if has else None)
        except (RegistryError, ValueError) as error:
            raise self._refusal(str(error)) from error

    def _known_shapes(self) -> dict[str, list[int | str]]:
        """Shapes of the inputs for what the manifest says is known beside the series."""
        static, future = self.manifest.static or (), self.manifest.future or ()
        steps = 1 if self.rollout else self.manifest.horizon or 1
        shapes: dict[str, list[int | str]] = {"static": ["batch", len(static)], "future": ["batch", steps, len(future)]}
        return {name: shape for name, shape in shapes.items() if shape[-1]}

    def _check_convention(
        self, kind: str, graph: GraphSignature, axes: list[int | str], further: Mapping[str, list[int | str]]
    ) -> None:
        """Raise unless the inputs are ``x`` or ``tokens``, the states and some of ``further``, in shapes served.

        Args:
            kind: ``"sequence"`` or ``"step"``.
            graph: What the manifest says of it.
            axes: The free axes of ``x`` or ``tokens``.
            further: Shapes of further inputs, which a graph may lack, but for those that the manifest speaks of.
        """
        shapes = {tensor.name: tensor.shape for tensor in graph.inputs}
        main = self.input_name
        values: list[int | str] = [len(self.manifest.features)] if main == "x" else []
        known = {main: [*axes, *values], **further}
        if main not in shapes:
            raise self._refusal(f"the {kind} in its signature has no input '{main}'.")
        dtype = next(tensor.dtype for tensor in graph.inputs if tensor.name == main)
        if dtype != ("float32" if main == "x" else "int64"):
            raise self._refusal(f"its signature gives the input '{main}' of {kind} the type {dtype}.")
        for name in KNOWN:
            if name in further and name not in shapes:
                raise self._refusal(
                    f"its manifest has {name} values, the {kind} in its signature has no input for them."
                )
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
                    f"{', '.join(axis for axis in axes if isinstance(axis, str))}."
                )

    def _refusal(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"'{self.name}:{self.version}' cannot be served: {reason}")

    def _warm_up(self) -> None:
        """One run of each graph, so that the first request finds everything in place and a broken graph is not served.

        Raises:
            ModelLoadError: If an answer is not finite, or does not have the shape that the manifest promises.
        """
        x: Array = np.zeros((1, 2, len(self.manifest.features)), np.float32)
        if self.input_name == "tokens":
            x = np.zeros((1, 2), np.int64)
        try:
            answers = self.run_sequence(x)
            axes = self.step.inputs[self.input_name].shape
            self.run_step(np.zeros([size if isinstance(size, int) else 1 for size in axes], x.dtype))
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
        elif self.manifest.output == "real":
            promised["mean"] = (1, 2, targets)
        elif self.manifest.output is not None:
            promised["logits"] = (1, 2, len(self.manifest.labels or ()))
        for name, shape in promised.items():
            got = answers[name].shape if name in answers else None
            if got != shape:
                raise self._refusal(
                    f"its manifest promises the output '{name}' in the shape {shape}, the graph gives {got}."
                )

    def __repr__(self) -> str:
        return f"OnnxModel('{self.name}:{self.version}', device='{self.placement.device}')"

    def run_sequence(
        self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None, **further: Array
    ) -> dict[str, Array]:
        """All outputs for whole sequences, final states included.

        Args:
            x: Shape ``(batch, time, features)``, raw units, NaN where a value is missing; or int64 tokens of the shape
                ``(batch, time)``.
            lengths: Steps of each sequence that count, shape ``(batch,)``; default: all of them.
            state: States to start from, by input name (``state_0``, ...); default: zeros.
            further: Other inputs, such as ``dt``, ``static`` or ``future``.

        Returns:
            Every output by name, such as ``logits``, ``probabilities``, ``state_0_out``. A recursive head is rolled
            out; the states are those after the sequences.

        Raises:
            InputError: If a shape or a value does not fit; the sentence says which.
        """
        inputs: dict[str, Array] = {self.input_name: x, **(state or {}), **further}
        if lengths is not None:
            inputs["lengths"] = lengths
        return self._whole(inputs, None)

    def run_step(self, x: Array, state: Mapping[str, Array] | None = None, **further: Array) -> dict[str, Array]:
        """All outputs after one time step; :meth:`next_state` turns them into the state of the following one.

        Args:
            x: Shape ``(batch, features)``, or ``(batch,)`` of tokens. Of a model of patches ``(batch, stride,
                features)``, the samples of one stride, the missing ones NaN.
            state: As in :meth:`run_sequence`.
            further: Likewise; ``future`` of a recursive head holds one step.
        """
        return self.run(self.step, {self.input_name: x, **(state or {}), **further})

    def run_numpy(
        self,
        x: Array,
        lengths: Array | None = None,
        stop: Stop | None = None,
        *,
        outside: set[str] | None = None,
        dt: Array | None = None,
        static: Array | None = None,
        future: Array | None = None,
    ) -> dict[str, Array]:
        """The answers for whole sequences, without the states; the name is that of ``stablernn.training``'s predictors.

        Args:
            x: As in :meth:`run_sequence`.
            lengths: Likewise.
            stop: As in :meth:`run`.
            outside: Likewise.
            dt: Shape ``(batch, time)``, the time from the step before in regular steps, where the model takes it;
                default: 1.
            static: Shape ``(batch, static)``, what never changes within a series; NaN where not known, the default.
            future: Shape ``(batch, horizon, future)``, what is known of the steps ahead; likewise.
        """
        answers = [name for name in self.sequence.outputs if name not in self.next_outputs]
        given = {self.input_name: x, "lengths": lengths, "dt": dt, "static": static, "future": future}
        inputs = {name: value for name, value in given.items() if value is not None}
        return self._whole(inputs, answers, stop, outside)

    def _whole(
        self,
        inputs: Mapping[str, Array],
        names: Sequence[str] | None,
        stop: Stop | None = None,
        outside: set[str] | None = None,
    ) -> dict[str, Array]:
        """Some outputs, or all, for whole sequences over the whole horizon."""
        if self.rollout is None:
            return self.run(self.sequence, inputs, names, stop, outside=outside)
        found = self.rollout.run(self, inputs, stop, outside)
        return found if names is None else {name: found[name] for name in names}

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The states in ``outputs`` under the names of the inputs that they feed."""
        return {state.input: outputs[state.output] for state in self.states}

    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        stop: Stop | None = None,
        *,
        from_client: bool = False,
        outside: set[str] | None = None,
    ) -> dict[str, Array]:
        """Run one graph on named inputs; those that are optional may be absent.

        Every state that comes out is compared with its ball, whether it is asked for or not.

        Args:
            graph: :attr:`sequence` or :attr:`step`.
            inputs: By name; numbers of any kind, they are converted to what the graph takes.
            outputs: Names of the wanted outputs; default: all.
            stop: Ends the run from another thread.
            from_client: Whether states among the inputs come from outside and not from an earlier run: then they must
                lie in their balls.
            outside: Gets the names of the states that came to lie outside their balls, as the inputs are called.

        Raises:
            InputError: If a name, a shape or a value does not fit, a state from a client lies outside its ball, or the
                values lead to an output that is not finite.
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
        if from_client:
            self.guard.check(feeds)
        fetched = [*names, *(name for name in self.guarded if name not in names)]
        try:
            values: Sequence[Any] = graph.session.run(fetched, feeds, None if stop is None else stop.options)
        except RUNTIME_ERRORS as error:
            if stop is not None and stop.is_set:
                raise NotReadyError("The inference was ended because the server is shutting down.") from error
            raise
        answers: dict[str, Array] = dict(zip(fetched, values, strict=True))
        computed = {self.guarded[name]: value for name, value in answers.items() if name in self.guarded}
        left = self.guard.exited(computed, f"{self.name}:{self.version}")
        if outside is not None:
            outside.update(left)
        for name, value in answers.items():
            # A class or a forecast made of NaN would look like any other.
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                row = int(np.argwhere(~np.isfinite(value))[0][0])
                raise InputError(
                    f"The output '{name}' of {self._label} is not finite for sequence {row}: its values lead beyond "
                    "the range of float32."
                )
        return {name: answers[name] for name in names}

    def elements(self, batch: int, time: int) -> int:
        """Numbers in all inputs and outputs of one run over ``batch`` sequences of ``time`` steps."""
        sizes = {"batch": batch, "time": time}
        tensors = (*self.sequence.inputs.values(), *self.sequence.outputs.values())
        counts = {tensor.name: prod(sizes[d] if isinstance(d, str) else d for d in tensor.shape) for tensor in tensors}
        rolled = 0
        if self.rollout is not None:
            answers = [name for name in self.sequence.outputs if name not in self.next_outputs]
            rolled = (self.rollout.horizon - 1) * sum(counts.get(name, 0) for name in (*answers, "future"))
        return sum(counts.values()) + rolled

    def check_values(self, what: str, values: Array, features: Sequence[str] | None = None) -> Array:
        """``values`` of shape ``(..., features)`` as the graphs take them.

        Args:
            what: What to call them in errors.
            values: Numbers in raw units, NaN where one is missing.
            features: Names of the last axis; default: all that the model has.

        Returns:
            float32, contiguous and aligned.

        Raises:
            InputError: If the features are not as many as the model's, or a value is infinite or beyond float32.
        """
        features = self.manifest.features if features is None else features
        if values.shape[-1] != len(features):
            names = f" ({', '.join(features)})" if len(features) <= 8 else ""
            raise InputError(
                f"{what} has {count(values.shape[-1], 'feature')}, {self._label} expects {len(features)}{names}."
            )
        values = converted(what, values, np.dtype(np.float32))
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
        main = self.input_name
        if main not in inputs:
            raise InputError(f"The input '{main}' is missing; {self._label} takes {_listing(graph.inputs)}.")
        x = self._checked_main(graph, np.asarray(inputs[main]))
        sizes: dict[str, int] = {
            word: size for word, size in zip(graph.inputs[main].shape, x.shape, strict=True) if isinstance(word, str)
        }
        feeds = {main: x}
        for name, spec in graph.inputs.items():
            if name == main:
                continue
            shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
            if name in inputs:
                feeds[name] = checked(name, np.asarray(inputs[name]), spec, shape, main)
                if name == "lengths":
                    check_lengths(feeds[name], sizes["time"], main)
                if name == "dt":
                    check_dt(feeds[name], self.max_dt)
            elif name == "lengths":
                feeds[name] = np.full(shape, sizes["time"], np.int64)
            elif name == "dt":
                feeds[name] = np.ones(shape, np.float32)
            elif spec.optional:
                feeds[name] = np.full(shape, np.nan if name in KNOWN else 0, np.dtype(spec.dtype))
            else:
                raise InputError(f"The input '{name}' is missing; {self._label} takes {_listing(graph.inputs)}.")
        return feeds

    def _checked_main(self, graph: Graph, x: Array) -> Array:
        name = self.input_name
        spec = graph.inputs[name]
        if x.ndim != len(spec.shape):
            shape = f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
            raise InputError(f"{name} must have the shape {shape} for {self._label}, got {x.shape}.")
        for axis, size in zip(spec.shape, x.shape, strict=True):
            if size == 0 and axis in AXES:
                raise InputError(f"{name} is empty: it needs at least one {AXES[axis]}, got the shape {x.shape}.")
        return self.check_values("x", x) if name == "x" else self._checked_tokens(x)

    def _checked_tokens(self, tokens: Array) -> Array:
        tokens = converted("tokens", tokens, np.dtype(np.int64))
        outside = (tokens < 0) | (tokens >= len(self.manifest.features))
        if outside.any():
            where = tuple(int(i) for i in np.argwhere(outside)[0])
            raise InputError(
                f"tokens must be from 0 to {len(self.manifest.features) - 1}, their places in the vocabulary of "
                f"{self._label}, got {int(tokens[where])} at {where}."
            )
        return tokens


def _patch(step: GraphSignature, main: str) -> list[int | str]:
    """The axis over the samples of one stride, which steps of a model of patches have between batch and features."""
    shape = next((tensor.shape for tensor in step.inputs if tensor.name == main), [])
    return shape[1:2] if len(shape) == 3 and isinstance(shape[1], int) else []


def _unknown_tensor(side: str, given: str, specs: Mapping[str, TensorSignature], label: str) -> InputError:
    verb = "takes" if side == "input" else "gives"
    return InputError(f"Unknown {side} '{cut(given)}'.{near(given, specs)} The {label} {verb} {_listing(specs)}.")


def _listing(specs: Mapping[str, TensorSignature]) -> str:
    return ", ".join(f"{spec.name} (optional)" if spec.optional else spec.name for spec in specs.values())
