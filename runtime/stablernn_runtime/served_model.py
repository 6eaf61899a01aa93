"""One registry version, opened for inference: numbers in, numbers out, no HTTP and no torch.

The graphs work in raw units: scaling, held missing values and padding are inside them. :class:`ServedModel` fills in
what a caller may leave out (lengths, states), checks the inputs, and pairs the states of both graphs by name.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, Manifest, RegistryError, Signature, StateSignature, Version
from stablernn_registry.reports import EXAMPLE
from stablernn_runtime.engines.loaded_graphs import ONNX, has_graphs
from stablernn_runtime.engines.select import SessionByRows, open_version
from stablernn_runtime.engines.session import NO_GPU_OPTIONS, RUNTIME_ERRORS, Device, GpuOptions, Placement
from stablernn_runtime.errors import InputError, ModelLoadError, NoStreamsError, OutOfMemoryError, cut
from stablernn_runtime.graph import CancellationToken, Graph, count_row_elements, count_step_elements
from stablernn_runtime.run_batch import BatchItem, run_items
from stablernn_runtime.state_guard import StateGuard
from stablernn_runtime.validation import (
    COVARIATES,
    check_dt,
    check_feature_values,
    check_lengths,
    check_main_shape,
    check_output_names,
    convert_tensor,
    convert_tokens,
    flatten_steps,
    format_tensors,
    unknown_tensor,
)

logger = logging.getLogger(__name__)

Array = NDArray[Any]


MAX_EXAMPLE_BYTES = 1_000_000
"""Largest example that is held in memory; ours have at most about 200 kB."""
_TEST_STEPS = 3
_TOLERANCE = 1e-3
"""Relative and absolute; what rounding can make of a difference lies below."""
_RUN_ERRORS: tuple[type[Exception], ...] = (InputError, OutOfMemoryError, *RUNTIME_ERRORS)
Shape = list[int | str]
"""Sizes; a free axis is a symbol."""


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
        model: ServedModel,
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

    def next_inputs(self, model: ServedModel, mean: Array, future: Array | None, step: int) -> dict[str, Array]:
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


class _SelfTestError(Exception):
    """A graph that does not pass; the message is half a sentence, without the name of the version."""


class ServedModel:
    """A registry version whose graphs are open. Safe to call from several threads at once.

    Use :meth:`load` to open one; the constructor leaves out the self-test.

    Attributes:
        name: The model's name.
        ref: ``NAME:VERSION``.
        version: The version's number.
        aliases: The aliases that pointed at the version when it was opened.
        digest: ``sha256:...`` of the version's manifest.
        manifest: The manifest.
        placement: The device that the graphs run on, the reason, and what ``auto`` measured.
        engine: Name of the engine that runs both graphs: ``onnx``, or one that a package registers.
        engine_reason: Version of the engine and, where ``auto`` chose it, why.
        sequence: The graph over whole sequences.
        resample_steps: Samples to which it resamples complete sequences, so that it has no streams; else None.
        states: The states that both graphs take and give.
        max_dt: The longest time between two steps that the model takes, in regular steps; None for any.
        rollout: The steps of a recursive head to its horizon; None for any other head.
        patch_stride: Samples after which the state moves on; 1 unless the model reads patches.
        input_name: ``x``, numbers, or ``tokens``, whole numbers below the number of features.
        guard: The balls in which the certificate says that states stay.
        step_elements: Numbers in and out of one step of one stream.
        memory_bytes: Estimate of the memory that the open version takes.
        last_requested: When the model was last asked for, on the monotonic clock.
        example: JSON of the stored sample that the model was not fitted on; None without one.
        request_patterns: Kept by the server: the common part of like requests that have passed the checks.
    """

    def __init__(
        self, version: Version, device: Device, threads: int, engine: str, gpu: GpuOptions, *, keeps_memory: bool
    ) -> None:
        self.name: str = version.name
        self.ref: str = version.ref
        self.version: int = version.version
        self.aliases: tuple[str, ...] = tuple(version.aliases)
        self.digest: str = version.digest
        self.manifest: Manifest = version.manifest
        signature = Signature.model_validate(self.manifest.signature)
        if signature.sequence is None or not has_graphs(signature):
            raise self._refusal("its signature lacks 'sequence' or 'step'.")
        self.states: tuple[StateSignature, ...] = tuple(signature.states)
        self.resample_steps: int | None = signature.resample_steps
        self.max_dt: float | None = signature.max_dt
        self.input_name: str = _find_main_input(signature.sequence)
        # Before the graphs are opened, which takes much longer.
        try:
            self.rollout: Rollout | None = Rollout.from_version(version) if self.manifest.head == "recursive" else None
            _check_signature(signature.sequence, signature.step, self.states, self.manifest, self.input_name)
        except (RegistryError, ValueError) as error:
            raise self._refusal(str(error)) from error
        graphs = open_version(version, signature, device, engine, threads, gpu, keeps_memory=keeps_memory)
        self.placement: Placement = graphs.placement
        self.engine: str = graphs.engine
        self.engine_reason: str = graphs.reason
        try:
            states = [state.input for state in self.states]
            self.guard = StateGuard(self.manifest.certificate, states if self.resample_steps is None else None)
        except ValueError as error:
            raise self._refusal(str(error)) from error
        limit = graphs.placement.memory_limit
        self.sequence = Graph(signature.sequence, graphs.sequence, self.states, self.guard, self.ref, limit)
        self._step: Graph | None = None
        self.patch_stride: int = 1
        self.step_elements: int = 0
        if (step := signature.step) is not None and graphs.step is not None:
            self._step = Graph(step, graphs.step, self.states, self.guard, self.ref, limit)
            self.patch_stride = _find_patch_stride(step, self.input_name)
            self.step_elements = count_step_elements(step)
        self._row_elements = count_row_elements(self.sequence, self.rollout.horizon if self.rollout else 1)
        entry = self.manifest.files.get(EXAMPLE)
        self.example: bytes | None = (
            version.read(EXAMPLE) if entry is not None and entry.bytes <= MAX_EXAMPLE_BYTES else None
        )
        self.request_patterns: dict[object, Any] = {}
        # Nanoseconds of a step, by the power of two above the number of streams.
        self._step_ns: dict[int, float] = {}
        # Measured with ONNX Runtime 1.31: four times the graphs' bytes at 128 units for the sessions; the rest is for
        # runs.
        graph_bytes = sum(entry.bytes for name, entry in self.manifest.files.items() if name.endswith(".onnx"))
        self.memory_bytes: int = 6 * graph_bytes + 2**19
        self.last_requested: float = time.monotonic()

    @classmethod
    def load(
        cls,
        version: Version,
        device: Device = "auto",
        threads: int = 1,
        engine: str = ONNX,
        gpu: GpuOptions = NO_GPU_OPTIONS,
        *,
        keeps_memory: bool = False,
    ) -> Self:
        """Open a registry version; every byte that is used is checked against the manifest's hash first.

        Both graphs are run once, and compared with each other on a short series.

        Args:
            version: From ``stablernn_registry.Registry.get``.
            device: ``"cpu"``, ``"cuda"``, or ``"auto"``: the faster of both for each kind of work, which is logged.
            threads: Threads inside one run. With 1, a batch, a single sequence and a stream give the same bits.
            engine: See :func:`~stablernn_runtime.engines.select.open_version`.
            gpu: Settings of the GPU.
            keeps_memory: Whether ONNX Runtime keeps the memory of a run on the CPU for the next one. It is faster where
                runs of one size follow each other, and slower where several run at a time.

        Raises:
            SettingsError: If there is no such engine, or settings of a GPU do not fit the engine or the device.
            ModelLoadError: If a file is damaged, the graph is not one that is served, or the engine cannot run it.
            DeviceError: If the GPU that was asked for does not exist or cannot be used.
        """
        model = cls(version, device, threads, engine, gpu, keeps_memory=keeps_memory)
        try:
            _check_model(model)
        except _SelfTestError as error:
            raise model._refusal(str(error)) from error
        logger.info("%s runs on %s. %s", model.ref, model.placement.device, model.placement.reason)
        logger.info("%s is run by the engine '%s'. %s", model.ref, model.engine, model.engine_reason)
        return model

    @property
    def step(self) -> Graph:
        """The graph of one time step.

        Raises:
            NoStreamsError: If the model needs complete sequences.
        """
        if self._step is None:
            raise NoStreamsError(self.ref, self.resample_steps)
        return self._step

    def _refusal(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"'{self.name}:{self.version}' cannot be served: {reason}")

    def __repr__(self) -> str:
        return f"ServedModel('{self.name}:{self.version}', device='{self.placement.device}')"

    def run_sequence(
        self, x: Array, lengths: Array | None = None, state: Mapping[str, Array] | None = None, **other_inputs: Array
    ) -> dict[str, Array]:
        """Return all outputs for whole sequences, final states included.

        Args:
            x: Shape ``(batch, time, features)``, raw units, NaN where a value is missing; or int64 tokens of the shape
                ``(batch, time)``.
            lengths: Steps of each sequence that count, shape ``(batch,)``; default: all of them.
            state: States to start from, by input name (``state_0``, ...); default: zeros.
            other_inputs: Inputs such as ``dt``, ``static`` or ``future``, in the shapes of :meth:`run_numpy`.

        Returns:
            Every output by name, such as ``logits``, ``probabilities``, ``state_0_out``. A recursive head is rolled
            out; the states are those after the sequences.

        Raises:
            InputError: If a name, a shape or a value does not fit, or an output is not finite; the message says which.
        """
        inputs: dict[str, Array] = {self.input_name: x, **(state or {}), **other_inputs}
        if lengths is not None:
            inputs["lengths"] = lengths
        return self._run_to_horizon(inputs, None)

    def run_step(self, x: Array, state: Mapping[str, Array] | None = None, **other_inputs: Array) -> dict[str, Array]:
        """Return all outputs after one time step; :meth:`next_state` turns them into the state of the following one.

        Args:
            x: Shape ``(batch, features)``, or ``(batch,)`` of tokens. Of a model of patches ``(batch, stride,
                features)``, the samples of one stride, the missing ones NaN.
            state: As in :meth:`run_sequence`.
            other_inputs: Likewise, without the axis over time; ``future`` of a recursive head holds one step.

        Raises:
            InputError: As :meth:`run_sequence`.
        """
        return self.run(self.step, {self.input_name: x, **(state or {}), **other_inputs})

    def run_numpy(
        self,
        x: Array,
        lengths: Array | None = None,
        cancellation: CancellationToken | None = None,
        *,
        violations: set[str] | None = None,
        dt: Array | None = None,
        static: Array | None = None,
        future: Array | None = None,
    ) -> dict[str, Array]:
        """Return the answers for whole sequences, without the states.

        The predictors of ``stablernn.training`` have a method of the same name and meaning.

        Args:
            x: As in :meth:`run_sequence`.
            lengths: Likewise.
            cancellation: As in :meth:`run`.
            violations: Likewise.
            dt: Shape ``(batch, time)``, the time from the step before in regular steps, where the model takes it;
                default: 1.
            static: Shape ``(batch, static)``, values that never change within a series; NaN where not known, the
                default.
            future: Shape ``(batch, horizon, future)``, values that are known of the steps ahead; likewise.

        Raises:
            InputError: As :meth:`run_sequence`.
            NotReadyError: If the run was ended.
        """
        names = [name for name in self.sequence.outputs if name not in self.sequence.state_outputs]
        arguments = {self.input_name: x, "lengths": lengths, "dt": dt, "static": static, "future": future}
        inputs = {name: value for name, value in arguments.items() if value is not None}
        return self._run_to_horizon(inputs, names, cancellation, violations)

    def _run_to_horizon(
        self,
        inputs: Mapping[str, Array],
        names: Sequence[str] | None,
        cancellation: CancellationToken | None = None,
        violations: set[str] | None = None,
    ) -> dict[str, Array]:
        """Return some outputs, or all, for whole sequences over the whole horizon."""
        if self.rollout is None:
            return self.run(self.sequence, inputs, names, cancellation, violations=violations)
        outputs = self.rollout.run(self, inputs, cancellation, violations)
        return outputs if names is None else {name: outputs[name] for name in names}

    def next_state(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states in ``outputs`` under the names of the inputs that they feed."""
        return {state.input: outputs[state.output] for state in self.states}

    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        cancellation: CancellationToken | None = None,
        *,
        from_client: bool = False,
        violations: set[str] | None = None,
    ) -> dict[str, Array]:
        """Run one graph on named inputs; those that are optional may be absent.

        Every state that comes out is compared with its ball, whether it is asked for or not.

        Args:
            graph: :attr:`sequence` or :attr:`step`.
            inputs: By name; numbers of any kind, they are converted to what the graph takes.
            outputs: Names of the wanted outputs; default: all.
            cancellation: Ends the run from another thread.
            from_client: Whether states among the inputs come from a client and not from an earlier run: then they must
                lie in their balls.
            violations: A set to which the names of the states that left their balls are added, as the inputs are
                called.

        Raises:
            InputError: If a name, a shape or a value does not fit, a state from a client lies outside its ball, or the
                values lead to an output that is not finite.
            NotReadyError: If the run was ended.
        """
        (result,) = run_items(graph, [self.prepare(graph, inputs, outputs, from_client=from_client)], cancellation)
        if isinstance(result, InputError):
            raise result
        if violations is not None:
            violations.update(result.violations)
        return result.outputs

    def prepare(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        from_client: bool = False,
    ) -> BatchItem:
        """Check the inputs of a request for :func:`~stablernn_runtime.run_batch.run_items`; arguments: see :meth:`run`.

        Raises:
            InputError: If a name, a shape or a value does not fit, or a state from a client lies outside its ball.
        """
        names = check_output_names(outputs, graph.outputs, self.label)
        feeds, sizes = self._prepare_feeds(graph, inputs)
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
        """Check several steps of some streams, for :func:`~stablernn_runtime.run_batch.run_steps`.

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
        names = check_output_names(outputs, graph.outputs, self.label)
        if main not in inputs:
            raise InputError(f"The input '{main}' is missing; {self.label} takes {format_tensors(graph.inputs)}.")
        x = np.asarray(inputs[main])
        if x.ndim != len(graph.inputs[main].shape) + 1 or 0 in x.shape[:2]:
            shape = ", ".join(("rows", "steps", *map(str, graph.inputs[main].shape[1:])))
            raise InputError(f"{main} must have the shape ({shape}) for steps of {self.label}, got {x.shape}.")
        rows, steps = x.shape[:2]
        # The checks of one step do for all of them at once.
        flat_feeds, _ = self._prepare_feeds(graph, flatten_steps(inputs, rows, steps))
        feeds = {name: value.reshape(rows, steps, *value.shape[1:]) for name, value in flat_feeds.items()}
        # States belong to streams, not to steps.
        for name, array in states.items():
            if name not in (state.input for state in self.states):
                raise unknown_tensor("input", name, graph.inputs, self.label)
            expected = (rows, *(size for size in graph.inputs[name].shape[1:] if isinstance(size, int)))
            feeds[name] = convert_tensor(name, np.asarray(array), graph.inputs[name], expected, main)
        if from_client:
            self.guard.check(feeds)
        return BatchItem(feeds, rows, steps, names, every)

    def estimate_step_ns(self, rows: int) -> float:
        """Estimate the nanoseconds of a step of ``rows`` streams, from steps of as many or fewer; 0 without any."""
        for size in range(rows.bit_length(), 0, -1):
            if size in self._step_ns:
                # Twice the streams are taken to need twice the time.
                return self._step_ns[size] * float(2 ** (rows.bit_length() - size))
        return 0.0

    def record_step_ns(self, rows: int, nanoseconds: float) -> None:
        """Record how long a step of ``rows`` streams took, in a moving average."""
        size = rows.bit_length()
        self._step_ns[size] = 0.8 * self._step_ns.get(size, nanoseconds) + 0.2 * nanoseconds

    def count_elements(self, batch: int, time: int) -> int:
        """Return how many numbers all inputs and outputs of a run over ``batch`` sequences of ``time`` steps hold."""
        fixed, timed = self._row_elements
        return batch * (fixed + time * timed)

    def check_values(self, name: str, values: Array, features: Sequence[str] | None = None) -> Array:
        """Check values of the shape ``(..., features)``, and return them as the graphs take them.

        Args:
            name: Name of the values in errors.
            values: Numbers in raw units, NaN where one is missing.
            features: Names of the last axis; default: all that the model has.

        Returns:
            float32, contiguous and aligned.

        Raises:
            InputError: If the features are not as many as the model's, or a value is infinite or beyond float32.
        """
        return check_feature_values(name, values, features or self.manifest.features, self.label)

    @property
    def last_used(self) -> float:
        """When the model was last asked for or run, on the monotonic clock."""
        last_step = -math.inf if self._step is None else self._step.last_run
        return max(self.last_requested, self.sequence.last_run, last_step)

    @property
    def label(self) -> str:
        """The model as errors name it."""
        return f"model '{self.name}:{self.version}'"

    def _prepare_feeds(self, graph: Graph, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, int]]:
        """Return the given inputs as the graph takes them, and the sizes of its free axes."""
        main = self.input_name
        for name in inputs:
            if name not in graph.inputs:
                raise unknown_tensor("input", name, graph.inputs, self.label)
        if main not in inputs:
            raise InputError(f"The input '{main}' is missing; {self.label} takes {format_tensors(graph.inputs)}.")
        x = self._convert_main(graph, np.asarray(inputs[main]))
        sizes: dict[str, int] = {
            axis: size for axis, size in zip(graph.inputs[main].shape, x.shape, strict=True) if isinstance(axis, str)
        }
        feeds = {main: x}
        for name, spec in graph.inputs.items():
            if name == main:
                continue
            if name in inputs:
                shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
                feeds[name] = convert_tensor(name, np.asarray(inputs[name]), spec, shape, main)
                if name == "lengths":
                    check_lengths(feeds[name], sizes["time"], main)
                if name == "dt":
                    check_dt(feeds[name], self.max_dt)
            # `run_items` fills in lengths and dt, whatever the signature says of them.
            elif not (spec.optional or name in ("lengths", "dt")):
                raise InputError(f"The input '{name}' is missing; {self.label} takes {format_tensors(graph.inputs)}.")
        return feeds, sizes

    def _convert_main(self, graph: Graph, x: Array) -> Array:
        check_main_shape(self.input_name, x, graph.inputs[self.input_name], self.label)
        if self.input_name == "x":
            return self.check_values("x", x)
        return convert_tokens(x, len(self.manifest.features), self.label)


def _find_main_input(sequence: GraphSignature) -> str:
    """Return ``"x"``, numbers, or ``"tokens"``, whole numbers below the number of features."""
    names = [tensor.name for tensor in sequence.inputs]
    return "tokens" if "tokens" in names and "x" not in names else "x"


def _check_signature(
    sequence: GraphSignature,
    step: GraphSignature | None,
    states: Sequence[StateSignature],
    manifest: Manifest,
    main: str,
) -> None:
    """Raise unless the inputs of both graphs are the main one, the states and those of the convention.

    Args:
        sequence: The graph over whole sequences.
        step: The graph of one time step; None for a version of complete sequences.
        states: The states that both graphs take and give.
        manifest: The manifest of the version.
        main: From :func:`_find_main_input`.

    Raises:
        ValueError: If an input has another name, type or shape.
    """
    covariates = _covariate_shapes(manifest)
    free_axes: Shape = ["batch", "time"]
    optional: dict[str, Shape] = {"lengths": ["batch"], "dt": ["batch", "time"], **covariates}
    _check_graph("sequence", sequence, free_axes, optional, states, manifest, main)
    if step is None:
        return
    free_axes = ["batch", *_patch_axis(step, main)]
    _check_graph("step", step, free_axes, {"dt": free_axes, **covariates}, states, manifest, main)


def _covariate_shapes(manifest: Manifest) -> dict[str, Shape]:
    """Return the shapes of the inputs for the static and future values that the manifest names."""
    static, future = manifest.static or (), manifest.future or ()
    # The graphs of a recursive head look one step ahead, whatever its horizon.
    steps = 1 if manifest.head == "recursive" else manifest.horizon or 1
    shapes: dict[str, Shape] = {"static": ["batch", len(static)], "future": ["batch", steps, len(future)]}
    return {name: shape for name, shape in shapes.items() if shape[-1]}


def _find_patch_stride(step: GraphSignature, main: str) -> int:
    """Return the samples of a step of a model of patches, ``(batch, stride, features)``; 1 for any other."""
    axis = _patch_axis(step, main) if main == "x" else []
    return int(axis[0]) if axis else 1


def _patch_axis(step: GraphSignature, main: str) -> Shape:
    """Return the axis over the samples of one stride, which models of patches have between batch and features."""
    shape = next((tensor.shape for tensor in step.inputs if tensor.name == main), [])
    return shape[1:2] if len(shape) == 3 and isinstance(shape[1], int) else []


def _check_graph(
    kind: str,
    graph: GraphSignature,
    free_axes: Shape,
    optional: Mapping[str, Shape],
    states: Sequence[StateSignature],
    manifest: Manifest,
    main: str,
) -> None:
    """Check one graph.

    Args:
        kind: ``"sequence"`` or ``"step"``.
        graph: Its signature.
        free_axes: The axes of the main input before the features.
        optional: Shapes of the inputs that a graph may lack, except those that the manifest has values for.
        states: As of :func:`_check_signature`.
        manifest: Likewise.
        main: Likewise.

    Raises:
        ValueError: As :func:`_check_signature`.
    """
    shapes = {tensor.name: tensor.shape for tensor in graph.inputs}
    features: Shape = [len(manifest.features)] if main == "x" else []
    expected = {main: [*free_axes, *features], **optional}
    if main not in shapes:
        raise ValueError(f"the {kind} in its signature has no input '{main}'.")
    dtype = next(tensor.dtype for tensor in graph.inputs if tensor.name == main)
    if dtype != ("float32" if main == "x" else "int64"):
        raise ValueError(f"its signature gives the input '{main}' of {kind} the type {dtype}.")
    # The model was trained on these values, and requests send them.
    for name in COVARIATES:
        if name in optional and name not in shapes:
            raise ValueError(f"its manifest has {name} values, the {kind} in its signature has no input for them.")
    state_inputs = {state.input for state in states}
    for name, shape in shapes.items():
        if name not in expected and name not in state_inputs:
            raise ValueError(
                f"the {kind} in its signature has an input '{cut(name)}' that is neither a state nor one of "
                f"{', '.join(expected)}."
            )
        if shape != expected.get(name, shape):
            raise ValueError(
                f"its signature gives the input '{name}' of {kind} the shape {shape}, {expected[name]} is served."
            )
    # A run binds only the free axes of the main input, so no other tensor can have one of its own.
    for tensor in (*graph.inputs, *graph.outputs):
        if unknown := [size for size in tensor.shape if isinstance(size, str) and size not in free_axes]:
            raise ValueError(
                f"the axis '{cut(unknown[0])}' of '{cut(tensor.name)}' in its signature of {kind} is not one of "
                f"{', '.join(axis for axis in free_axes if isinstance(axis, str))}."
            )


def _check_model(model: ServedModel) -> None:
    """Run both graphs, and compare what they give with the manifest and with each other.

    Raises:
        _SelfTestError: If a run fails, an output is not finite or not of the shape that the manifest promises, or the
            two graphs, or two devices of the same graph, differ by more than rounding.
    """
    try:
        _warm_up(model)
        if model.resample_steps is None:
            _compare_graphs(model)
        if isinstance(model.sequence.session, SessionByRows):
            _compare_devices(model, model.sequence.session.min_rows)
    except _RUN_ERRORS as error:
        raise _SelfTestError(str(error)) from error


def _warm_up(model: ServedModel) -> None:
    """Run each graph once on zeros, and check the shapes of the outputs."""
    manifest = model.manifest
    # (batch, time, features), or (batch, time) of tokens.
    x: Array = np.zeros((1, 2, len(manifest.features)), np.float32)
    if model.input_name == "tokens":
        x = np.zeros((1, 2), np.int64)
    outputs = model.run_sequence(x)
    if model.resample_steps is None:
        axes = model.step.inputs[model.input_name].shape
        model.run_step(np.zeros([size if isinstance(size, int) else 1 for size in axes], x.dtype))
    for name, shape in _promised_shapes(manifest).items():
        actual = outputs[name].shape if name in outputs else None
        if actual != shape:
            raise _SelfTestError(
                f"its manifest promises the output '{name}' in the shape {shape}, the graph gives {actual}."
            )


def _promised_shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the outputs for one sequence of two steps, by name."""
    targets, horizon = len(manifest.targets or ()), manifest.horizon or 0
    if manifest.task == "classify":
        return {"probabilities": (1, len(manifest.labels or ()))}
    if manifest.task == "forecast":
        shapes: dict[str, tuple[int, ...]] = {"mean": (1, horizon, targets)}
        if manifest.quantiles:
            shapes["quantiles"] = (1, horizon, targets, len(manifest.quantiles))
        return shapes
    if manifest.output == "real":
        return {"mean": (1, 2, targets)}
    return {} if manifest.output is None else {"logits": (1, 2, len(manifest.labels or ()))}


def _compare_graphs(model: ServedModel) -> None:
    """Run a short series as a whole and step by step, and compare all outputs of the step graph, states included.

    The steps are timed, so that the model has an estimate before its first request.
    """
    sequence, step = model.sequence, model.step
    for name in step.outputs:
        if name not in sequence.outputs:
            raise _SelfTestError(
                f"its step graph has the output '{name}', which its sequence graph lacks (it has "
                f"{format_tensors(sequence.outputs)}); export it again."
            )
    axes = step.inputs[model.input_name].shape[1:]
    shape = (_TEST_STEPS, *(size for size in axes if isinstance(size, int)))
    samples = _noise(model, shape)
    # (1, time, ...): a step of a model of patches, (stride, features), becomes as many time steps.
    series = samples.reshape(1, -1, *shape[2:]) if len(shape) == 3 else samples[None]
    # The sequence graph itself: a recursive head is not rolled out here.
    expected = model.run(sequence, {model.input_name: series})
    outputs: dict[str, Array] = {}
    state: dict[str, Array] = {}
    for sample in samples:
        started = time.perf_counter_ns()
        outputs = model.run_step(sample[None], state)
        model.record_step_ns(1, time.perf_counter_ns() - started)
        state = model.next_state(outputs)
    for name, value in outputs.items():
        # Outputs of every step: the step graph gives the last one.
        last = expected[name][:, -1] if "time" in sequence.outputs[name].shape else expected[name]
        if value.shape != last.shape:
            raise _SelfTestError(
                f"the output '{name}' of its step graph has the shape {value.shape}, that of its sequence graph "
                f"{last.shape}; export it again."
            )
        if not np.allclose(value, last, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise _SelfTestError(
                f"the output '{name}' of its step graph is not that of its sequence graph after {_TEST_STEPS} "
                f"steps (they differ by {float(np.abs(value - last).max()):.3g}); export it again."
            )


def _noise(model: ServedModel, shape: Sequence[int]) -> Array:
    """Return random inputs of a model, numbers or tokens; the same each time."""
    noise = np.random.default_rng(0)
    if model.input_name == "tokens":
        return noise.integers(len(model.manifest.features), size=shape)
    return noise.normal(size=shape).astype(np.float32)


def _compare_devices(model: ServedModel, min_rows: int) -> None:
    """Run a sequence alone and as part of a batch, which run on different devices, and compare the outputs."""
    graph = model.sequence
    sizes = {"batch": min_rows, "time": _TEST_STEPS}
    x = _noise(model, [sizes[size] if isinstance(size, str) else size for size in graph.inputs[model.input_name].shape])
    together = model.run(graph, {model.input_name: x})
    for name, value in model.run(graph, {model.input_name: x[:1]}).items():
        if not np.allclose(together[name][:1], value, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise _SelfTestError(
                f"the output '{name}' of a sequence on the GPU is not that on the CPU (they differ by "
                f"{float(np.abs(together[name][:1] - value).max()):.3g}); name one by --device."
            )
