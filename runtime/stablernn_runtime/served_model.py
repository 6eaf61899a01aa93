"""One registry version, opened for inference: numbers in, numbers out, no HTTP and no torch.

The graphs work in raw units: scaling, held missing values and padding are inside them. What this class adds is what a
caller may leave out (lengths, states), checks whose sentences a user understands, and the pairing of states by name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Self

import numpy as np
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
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.engines.loaded_graphs import ONNX
from stablernn_runtime.engines.select import open_version
from stablernn_runtime.engines.session import RUNTIME_ERRORS, CancellationToken, Device, Placement
from stablernn_runtime.errors import InputError, ModelLoadError, cut
from stablernn_runtime.graph import Graph
from stablernn_runtime.rollout import Rollout
from stablernn_runtime.run_batch import BatchItem, run_parts
from stablernn_runtime.state_guard import StateGuard
from stablernn_runtime.validation import KNOWN, check_dt, check_lengths, checked, converted, count

logger = logging.getLogger(__name__)

Array = NDArray[Any]
AXES: dict[int | str, str] = {"batch": "sequence", "time": "time step"}
_PROBE_STEPS = 3
_PROBE_TOLERANCE = 1e-3
WARM_UP_ERRORS: tuple[type[Exception], ...] = (InputError, *RUNTIME_ERRORS)


class ServedModel:
    """A registry version whose graphs are open. Safe to call from several threads at once.

    Attributes:
        name: The model's name.
        ref: ``NAME:VERSION``.
        version: Its number.
        aliases: The aliases that pointed at the version when it was opened.
        digest: ``sha256:...`` of its manifest.
        manifest: The manifest.
        placement: The device it runs on, and why.
        engine: What runs both graphs: ``onnx``, or an engine that a package registers.
        engine_note: What that is and, where ``auto`` chose, why.
        sequence: The graph over whole sequences.
        step: The graph of one time step.
        states: The states that both graphs take and give.
        rollout: How a recursive head comes to its horizon; None for any other.
        patch_stride: Samples after which the state moves on.
        input_name: ``x``, numbers, or ``tokens``, whole numbers below that of the features.
        guard: Where the certificate says that states stay.
        step_numbers: Numbers in and out of one step of one stream.
        memory_bytes: About what the open version takes.
        last_requested: When it was last asked for, on the monotonic clock.
    """

    def __init__(self, version: Version, device: Device, threads: int, engine: str) -> None:
        self.name: str = version.name
        self.ref: str = version.ref
        self.version: int = version.version
        self.aliases: tuple[str, ...] = tuple(version.aliases)
        self.digest: str = version.digest
        self.manifest: Manifest = version.manifest
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
        opened = open_version(version, signature, device, engine, threads)
        self.placement: Placement = opened.placement
        self.engine: str = opened.engine
        self.engine_note: str = opened.note
        try:
            self.guard = StateGuard(self.manifest.certificate, [state.input for state in self.states])
        except ValueError as error:
            raise self._refusal(str(error)) from error
        self.sequence = Graph(signature.sequence, opened.sequence, self.states, self.guard, self.ref)
        self.step = Graph(signature.step, opened.step, self.states, self.guard, self.ref)
        shape = self.step.inputs[self.input_name].shape
        self.patch_stride: int = int(shape[1]) if self.input_name == "x" and len(shape) == 3 else 1
        self._row_sizes = self._count()
        tensors = (*self.step.inputs.values(), *self.step.outputs.values())
        self.step_numbers: int = sum(prod(size for size in spec.shape if isinstance(size, int)) for spec in tensors)
        # By the power of two above the rows.
        self._step_ns: dict[int, float] = {}
        # Measured with ONNX Runtime 1.31: four times the graphs' bytes at 128 units for the sessions; the rest is for
        # runs.
        graphs = sum(entry.bytes for name, entry in self.manifest.files.items() if name.endswith(".onnx"))
        self.memory_bytes: int = 6 * graphs + 2**19
        self.last_requested: float = time.monotonic()

    @classmethod
    def load(cls, version: Version, device: Device = "auto", threads: int = 1, engine: str = ONNX) -> Self:
        """Open a registry version; every byte that is used is checked against the manifest's hash first.

        Args:
            version: From ``stablernn_registry.Registry.get``.
            device: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where it loads, else the CPU, which is logged.
            threads: Threads inside one run. With 1, a batch, a single sequence and a stream give the same bits.
            engine: ``"onnx"``, the name of an engine that a package registers, or ``"auto"``, see
                :func:`~stablernn_runtime.engines.select.open_version`.

        Raises:
            SettingsError: If there is no such engine.
            ModelLoadError: If a file is damaged, the graph is not one that is served, or the engine cannot run it.
            DeviceError: If ``cuda`` was asked for and does not load.
        """
        model = cls(version, device, threads, engine)
        model._warm_up()
        logger.info("%s runs on %s. %s", model.ref, model.placement.device, model.placement.note)
        logger.info("%s is run by the engine '%s'. %s", model.ref, model.engine, model.engine_note)
        return model

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
        try:
            self._probe()
        except WARM_UP_ERRORS as error:
            raise self._refusal(str(error)) from error

    def _probe(self) -> None:
        """One short series as a whole and step by step: two graphs that do not belong together are not served.

        Raises:
            ModelLoadError: If the sequence graph lacks an output of the step graph, or their answers or states differ
                by more than rounding.
        """
        for name in self.step.outputs:
            if name not in self.sequence.outputs:
                raise self._refusal(
                    f"its step graph has the output '{name}', which its sequence graph lacks (it has "
                    f"{_listing(self.sequence.outputs)}); export it anew."
                )
        axes = self.step.inputs[self.input_name].shape[1:]
        shape = (_PROBE_STEPS, *(size for size in axes if isinstance(size, int)))
        noise = np.random.default_rng(0)
        steps: Array = noise.normal(size=shape).astype(np.float32)
        if self.input_name == "tokens":
            steps = noise.integers(len(self.manifest.features), size=shape)
        readings = steps.reshape(1, -1, *shape[2:]) if len(shape) == 3 else steps[None]
        whole = self.run(self.sequence, {self.input_name: readings})
        outputs: dict[str, Array] = {}
        state: dict[str, Array] = {}
        for sample in steps:
            started = time.perf_counter_ns()
            outputs = self.run_step(sample[None], state)
            self.step_took(1, time.perf_counter_ns() - started)
            state = self.next_state(outputs)
        for name, value in outputs.items():
            other = whole[name][:, -1] if "time" in self.sequence.outputs[name].shape else whole[name]
            if value.shape != other.shape:
                raise self._refusal(
                    f"the output '{name}' of its step graph has the shape {value.shape}, that of its sequence graph "
                    f"{other.shape}; export it anew."
                )
            if not np.allclose(value, other, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE):
                raise self._refusal(
                    f"the output '{name}' of its step graph is not that of its sequence graph after {_PROBE_STEPS} "
                    f"steps (they differ by {float(np.abs(value - other).max()):.3g}); export it anew."
                )

    def __repr__(self) -> str:
        return f"ServedModel('{self.name}:{self.version}', device='{self.placement.device}')"

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
        stop: CancellationToken | None = None,
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
        answers = [name for name in self.sequence.outputs if name not in self.sequence.state_outputs]
        given = {self.input_name: x, "lengths": lengths, "dt": dt, "static": static, "future": future}
        inputs = {name: value for name, value in given.items() if value is not None}
        return self._whole(inputs, answers, stop, outside)

    def _whole(
        self,
        inputs: Mapping[str, Array],
        names: Sequence[str] | None,
        stop: CancellationToken | None = None,
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
        stop: CancellationToken | None = None,
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
        share = run_parts(graph, [self.prepare(graph, inputs, outputs, from_client=from_client)], stop)[0]
        if isinstance(share, InputError):
            raise share
        if outside is not None:
            outside.update(share.outside)
        return share.outputs

    def prepare(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        from_client: bool = False,
    ) -> BatchItem:
        """Check what one request wants of a run; the arguments are those of :meth:`run`.

        Raises:
            InputError: If a name, a shape or a value does not fit, or a state from a client lies outside its ball.
        """
        names = self._wanted(graph, outputs)
        feeds, sizes = self._given(graph, inputs)
        if from_client:
            self.guard.check(feeds)
        return BatchItem(feeds, sizes["batch"], sizes.get("time", 1), names)

    def prepare_steps(
        self,
        inputs: Mapping[str, Array],
        states: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        every: bool = True,
        from_client: bool = False,
    ) -> BatchItem:
        """Check what one request wants of several steps of some streams.

        Args:
            inputs: As of the step, with an axis over the steps after that over the streams: ``x`` of the shape
                ``(rows, steps, ...)``, ``dt`` likewise, ``future`` ``(rows, steps, horizon, features)``; ``static``
                alone is ``(rows, static)``.
            states: By input name, ``(rows, ...)``; zeros where absent.
            outputs: Names of the wanted outputs; default: all but the states.
            every: Whether each step has an answer, or the last alone.
            from_client: As in :meth:`run`.

        Raises:
            InputError: If a name, a shape or a value does not fit, or a state from a client lies outside its ball.
        """
        main, graph = self.input_name, self.step
        if outputs is None:
            outputs = [name for name in graph.outputs if name not in graph.state_outputs]
        names = self._wanted(graph, outputs)
        if main not in inputs:
            raise InputError(f"The input '{main}' is missing; {self.described} takes {_listing(graph.inputs)}.")
        x = np.asarray(inputs[main])
        if x.ndim != len(graph.inputs[main].shape) + 1 or 0 in x.shape[:2]:
            shape = ", ".join(("rows", "steps", *map(str, graph.inputs[main].shape[1:])))
            raise InputError(f"{main} must have the shape ({shape}) for steps of {self.described}, got {x.shape}.")
        rows, steps = x.shape[:2]
        flat: dict[str, Array] = {}
        for name, given in inputs.items():
            value = np.asarray(given)
            if name == "static":
                if value.ndim == 2 and len(value) == rows:
                    value = np.repeat(value, steps, axis=0)
            elif value.shape[:2] == (rows, steps):
                value = value.reshape(rows * steps, *value.shape[2:])
            flat[name] = value
        given_inputs, _ = self._given(graph, flat)
        feeds = {name: value.reshape(rows, steps, *value.shape[1:]) for name, value in given_inputs.items()}
        for name, given in states.items():
            if name not in (state.input for state in self.states):
                raise _unknown_tensor("input", name, graph.inputs, self.described)
            value = np.asarray(given)
            expected = (rows, *(size for size in graph.inputs[name].shape[1:] if isinstance(size, int)))
            feeds[name] = checked(name, value, graph.inputs[name], expected, main)
        if from_client:
            self.guard.check(feeds)
        return BatchItem(feeds, rows, steps, names, every)

    def _wanted(self, graph: Graph, outputs: Sequence[str] | None) -> list[str]:
        names = list(graph.outputs) if outputs is None else list(outputs)
        for name in names:
            if name not in graph.outputs:
                raise _unknown_tensor("output", name, graph.outputs, self.described)
        return names

    def step_ns(self, rows: int) -> float:
        """About how long a step of so many streams takes, from what was measured of as many, or of fewer."""
        for size in range(rows.bit_length(), 0, -1):
            if size in self._step_ns:
                return self._step_ns[size] * float(2 ** (rows.bit_length() - size))
        return 0.0

    def step_took(self, rows: int, nanoseconds: float) -> None:
        """Note how long a step of so many streams took."""
        size = rows.bit_length()
        self._step_ns[size] = 0.8 * self._step_ns.get(size, nanoseconds) + 0.2 * nanoseconds

    def elements(self, batch: int, time: int) -> int:
        """Numbers in all inputs and outputs of one run over ``batch`` sequences of ``time`` steps."""
        fixed, timed = self._row_sizes
        return batch * (fixed + time * timed)

    def _count(self) -> tuple[int, int]:
        """Numbers of one sequence in all inputs and outputs of a run: those of any length, and those of each step."""
        rolled = 0 if self.rollout is None else self.rollout.horizon - 1
        fixed = timed = 0
        for name, tensor in (*self.sequence.inputs.items(), *self.sequence.outputs.items()):
            is_answer = name in self.sequence.outputs and name not in self.sequence.state_outputs
            size = prod(extent for extent in tensor.shape if isinstance(extent, int))
            size *= 1 + rolled if is_answer or name == "future" else 1
            if "time" in tensor.shape:
                timed += size
            else:
                fixed += size
        return fixed, timed

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
                f"{what} has {count(values.shape[-1], 'feature')}, {self.described} expects {len(features)}{names}."
            )
        values = converted(what, values, np.dtype(np.float32))
        if np.count_nonzero(np.isinf(values)):
            where = tuple(int(i) for i in np.argwhere(np.isinf(values))[0])
            raise InputError(
                f"{what} holds an infinite value at {where}; values must be finite within float32, and a missing one "
                "is NaN (null in JSON)."
            )
        return values

    @property
    def last_used(self) -> float:
        """When the model was last asked for or run, on the monotonic clock."""
        return max(self.last_requested, self.sequence.last_run, self.step.last_run)

    @property
    def described(self) -> str:
        """What sentences call it."""
        return f"model '{self.name}:{self.version}'"

    def _given(self, graph: Graph, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, int]]:
        """The inputs as the graph takes them, without those that are left out, and the sizes of its free axes."""
        main = self.input_name
        for name in inputs:
            if name not in graph.inputs:
                raise _unknown_tensor("input", name, graph.inputs, self.described)
        if main not in inputs:
            raise InputError(f"The input '{main}' is missing; {self.described} takes {_listing(graph.inputs)}.")
        x = self._checked_main(graph, np.asarray(inputs[main]))
        sizes: dict[str, int] = {
            word: size for word, size in zip(graph.inputs[main].shape, x.shape, strict=True) if isinstance(word, str)
        }
        feeds = {main: x}
        for name, spec in graph.inputs.items():
            if name == main:
                continue
            if name in inputs:
                shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
                feeds[name] = checked(name, np.asarray(inputs[name]), spec, shape, main)
                if name == "lengths":
                    check_lengths(feeds[name], sizes["time"], main)
                if name == "dt":
                    check_dt(feeds[name], self.max_dt)
            elif not (spec.optional or name in ("lengths", "dt")):
                raise InputError(f"The input '{name}' is missing; {self.described} takes {_listing(graph.inputs)}.")
        return feeds, sizes

    def _checked_main(self, graph: Graph, x: Array) -> Array:
        name = self.input_name
        spec = graph.inputs[name]
        if x.ndim != len(spec.shape):
            shape = f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
            raise InputError(f"{name} must have the shape {shape} for {self.described}, got {x.shape}.")
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
                f"{self.described}, got {int(tokens[where])} at {where}."
            )
        return tokens


def _patch(step: GraphSignature, main: str) -> list[int | str]:
    """The axis over the samples of one stride, which steps of a model of patches have between batch and features."""
    shape = next((tensor.shape for tensor in step.inputs if tensor.name == main), [])
    return shape[1:2] if len(shape) == 3 and isinstance(shape[1], int) else []


def _unknown_tensor(side: str, given: str, specs: Mapping[str, TensorSignature], label: str) -> InputError:
    verb = "takes" if side == "input" else "gives"
    return InputError(
        f"Unknown {side} '{cut(given)}'.{did_you_mean(given, specs)} The {label} {verb} {_listing(specs)}."
    )


def _listing(specs: Mapping[str, TensorSignature]) -> str:
    return ", ".join(f"{spec.name} (optional)" if spec.optional else spec.name for spec in specs.values())
