"""The samples that the streams of a version take, collected to patches where it reads these, and the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, proxy

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, Manifest, Signature, StateSignature, Version
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.calendar import calendar_frequency, data_zone
from stablernn_runtime.covariates import Covariates, observed_features
from stablernn_runtime.errors import BadTokenError, InputError, ModelLoadError, NoStreamsError, cut
from stablernn_runtime.online_streams import (
    QUANTILES,
    OnlineOptions,
    OnlineStreams,
    is_online_state,
    online_streams,
)
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.state_token import StreamSnapshot
from stablernn_runtime.validation import check_dt

Array = NDArray[Any]


PATCH_PREFIX = "patch."
"""Begin of the names of the states that hold the samples of an unfinished patch."""
PatchOutputs = tuple[Array, Mapping[str, Array], Mapping[str, Array]]
"""Rows of streams, their outputs ``(rows, patches, ...)`` and the states after them ``(rows, ...)``."""


@dataclass(frozen=True)
class StreamFormat:
    """Shapes and types of the samples and outputs of a version's streams.

    Attributes:
        sample_shape: Shape of one sample as clients send it: the features without those of the calendar, ``()`` for
            tokens.
        graph_shape: Shape of one sample with the features of the calendar.
        dtype: Type of the samples.
        patch_stride: Samples after which there are outputs; 1 for models without patches.
        has_patches: Whether a step of the graph takes a patch, an axis over samples, if only of one.
        outputs: Shapes of the outputs, by name.
    """

    sample_shape: tuple[int, ...]
    graph_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    patch_stride: int
    has_patches: bool
    outputs: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, manifest: Manifest, step: GraphSignature, states: Iterable[StateSignature]) -> StreamFormat:
        """Return the format of a version, which need not be open.

        Args:
            manifest: Manifest of the version.
            step: Signature of its step graph.
            states: Signatures of its states.
        """
        inputs = {tensor.name: tensor for tensor in step.inputs}
        tensor = inputs["x"] if "x" in inputs else inputs["tokens"]
        # Without the axis over the batch.
        step_shape = tuple(int(size) for size in tensor.shape[1:])
        has_patches = len(step_shape) > 1
        graph_shape = step_shape[1:] if has_patches else step_shape
        observed = len(observed_features(manifest))
        next_states = {state.output for state in states}
        outputs = {
            output.name: tuple(int(size) for size in output.shape[1:])
            for output in step.outputs
            if output.name not in next_states
        }
        sample_shape = (observed,) if graph_shape else ()
        stride = step_shape[0] if has_patches else 1
        return cls(sample_shape, graph_shape, np.dtype(tensor.dtype), stride, has_patches, outputs)

    @classmethod
    def of_version(cls, version: Version, options: OnlineOptions) -> StreamFormat:
        """Return the format of a version by its manifest alone.

        Args:
            version: The version.
            options: The estimates of its streams.

        Raises:
            ModelLoadError: If the manifest does not describe a step graph.
            NoStreamsError: If the version needs complete sequences.
        """
        try:
            signature = Signature.model_validate(version.manifest.signature)
            if signature.resample_steps is not None:
                raise NoStreamsError(version.ref, signature.resample_steps)
            if signature.step is not None:
                graph_format = cls.of(version.manifest, signature.step, signature.states)
                outputs = graph_format.outputs | options.outputs(graph_format.outputs)
                return replace(graph_format, outputs=outputs)
        except NoStreamsError:
            raise
        except (ValueError, KeyError):
            # Refused below. It is a signature of other fields, a free axis, or an input of another name.
            pass
        raise ModelLoadError(f"'{version.ref}' cannot be served: its signature does not describe a step graph.")

    @property
    def datatype(self) -> str:
        """Name of the samples' type in the Open Inference Protocol."""
        return "INT64" if self.dtype.kind == "i" else "FP32"


@dataclass(frozen=True)
class CollectedPatches:
    """The patches that samples of streams fill, and the samples that are left over.

    Attributes:
        inputs: Inputs of the step graph by name, ``(streams, patches, ...)``; samples beyond the patches of a stream
            are missing.
        counts: Patches of each stream, ``(streams,)``.
        lengths: Samples in the patches of each stream, ``(streams,)``.
        states: Samples left over by the name of the state, ``(streams, stride - 1, ...)``, zeros where there are none.
    """

    inputs: dict[str, Array]
    counts: Array
    lengths: Array
    states: dict[str, Array]

    def groups(self) -> Iterator[tuple[Array, dict[str, Array]]]:
        """Yield the rows of streams with equally many samples in patches, with their inputs; not those without any."""
        for length in np.unique(self.lengths[self.lengths > 0]).tolist():
            rows = np.flatnonzero(self.lengths == length)
            yield rows, {name: value[rows, : self.counts[rows[0]]] for name, value in self.inputs.items()}

    def merge(
        self, states: Mapping[str, Array], results: Sequence[PatchOutputs], shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the outputs and the states of all streams after the samples.

        Args:
            states: States before them, ``(streams, ...)``.
            results: The result of each of :meth:`groups`.
            shapes: Shapes of the outputs of a patch, by name.

        Returns:
            Outputs ``(streams, most patches, ...)``, NaN where a stream has filled fewer; and the states.
        """
        count = len(self.counts)
        patch_count = max((next(iter(outputs.values())).shape[1] for _, outputs, _ in results if outputs), default=0)
        # The usual case, in which nothing is copied: all streams are as far as each other.
        if len(results) == 1 and len(results[0][0]) == count:
            _, outputs, next_states = results[0]
            return dict(outputs), {**states, **next_states, **self.states}
        merged = {name: np.full((count, patch_count, *shape), np.nan, np.float32) for name, shape in shapes.items()}
        merged_states = {name: value.copy() for name, value in states.items()}
        for rows, outputs, next_states in results:
            for name in shapes:
                merged[name][rows, : outputs[name].shape[1]] = outputs[name]
            for name, value in next_states.items():
                if name not in merged_states:
                    merged_states[name] = np.zeros((count, *value.shape[1:]), value.dtype)
                merged_states[name][rows] = value
        return merged, {**merged_states, **self.states}


class PatchCollector:
    """Collects the samples of streams for a graph whose step takes a patch of them.

    The samples of an unfinished patch are states of their stream. How many there are follows from the number of samples
    that the stream has taken.

    Attributes:
        stride: Samples in a patch.
        state_shapes: Shape and type of each state of a stream, by name; none for patches of a single sample.
    """

    def __init__(self, stride: int, inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Create the collector.

        Args:
            stride: Samples in a patch.
            inputs: Shape and type of each input of a sample, by name.
        """
        self.stride = stride
        self._inputs = dict(inputs)
        self.state_shapes = {
            PATCH_PREFIX + name: ((stride - 1, *shape), dtype) for name, (shape, dtype) in inputs.items() if stride > 1
        }

    def collect(
        self,
        states: Mapping[str, Array],
        steps: Array,
        inputs: Mapping[str, Array],
        lengths: Array | None = None,
        *,
        is_end: bool = False,
    ) -> CollectedPatches:
        """Return the patches that samples fill together with those that streams have taken before.

        Args:
            states: States of the streams, ``(streams, ...)``; zeros where absent.
            steps: Samples that each stream has taken, ``(streams,)``.
            inputs: The samples by input name, ``(streams, samples, ...)``, which fit the model. Of ``future``, the
                values ahead of the last sample of a patch count; any other input has no place in a patch.
            lengths: Samples of each stream that count, ``(streams,)``; None for all.
            is_end: Whether the streams end: then the last patch counts although it is not full.
        """
        stride, main = self.stride, next(iter(self._inputs))
        rows, samples = inputs[main].shape[:2]
        pending = np.asarray(steps, np.int64) % stride
        totals = pending + (samples if lengths is None else lengths)
        counts = -(-totals // stride) if is_end else totals // stride
        patch_count = int(counts.max())
        # Positions in the joined samples of each stream, of which those in [pending, stride - 1) are unused.
        positions = np.arange((patch_count + 1) * stride)
        is_present = positions < totals[:, None]
        source = np.where(
            is_present, np.where(positions < pending[:, None], positions, positions - pending[:, None] + stride - 1), 0
        )
        left = np.minimum((counts * stride)[:, None] + np.arange(stride - 1), len(positions) - 1)
        is_left = left < totals[:, None]
        index = np.arange(rows)[:, None]
        patches: dict[str, Array] = {}
        left_over: dict[str, Array] = {}
        for name, (shape, dtype) in self._inputs.items():
            value = inputs.get(name)
            if value is None:
                # Only `dt` may be left out.
                value = np.ones((rows, samples, *shape), dtype)
            before = states.get(PATCH_PREFIX + name)
            if before is None:
                before = np.zeros((rows, stride - 1, *shape), dtype)
            # (streams, (patches + 1) * stride, ...)
            joined = np.concatenate([before, value], axis=1)[index, source]
            joined[~is_present] = 1 if name == "dt" else np.nan
            patches[name] = joined[:, : patch_count * stride].reshape(rows, patch_count, stride, *shape)
            if stride > 1:
                remainder = joined[index, left]
                remainder[~is_left] = 0
                left_over[PATCH_PREFIX + name] = remainder
        if "future" in inputs and patch_count:
            ends = np.clip((np.arange(patch_count) + 1) * stride - 1 - pending[:, None], 0, samples - 1)
            patches["future"] = inputs["future"][index, ends]
        return CollectedPatches(patches, counts, np.minimum(counts * stride, totals), left_over)


class StreamSpec:
    """The inputs and answers of the streams of one model.

    Attributes:
        model: The model, which the caller has to keep alive.
        covariates: The inputs beside the observed values.
        format: Shapes and types of samples and outputs.
        sample_shape: That of the format.
        graph_shape: Likewise.
        dtype: Likewise.
        outputs: Likewise.
        patches: Collects samples to patches; None for models without patches.
        takes_dt: Whether the model takes the time between samples.
        frequency: Frequency of the calendar to count regular steps by; None without one.
        data_zone: Zone of times without one; None where they have none.
        static_size: Number of values that never change within a stream.
        state_shapes: Shapes and types of the states of one stream, by input name: those of the model, followed by the
            samples of an unfinished patch and the states of the estimates.
        online: The estimates that the streams update with each sample; None without.
    """

    def __init__(self, model: ServedModel) -> None:
        manifest, inputs = model.manifest, model.step.inputs
        # `stream_spec` caches the specification as long as its model lives, so it must not keep the model alive.
        self.model: ServedModel = proxy(model)
        self.covariates = Covariates(self.model, "time")
        self.format = StreamFormat.of(manifest, model.step.signature, model.states)
        self.sample_shape, self.graph_shape = self.format.sample_shape, self.format.graph_shape
        self.online: OnlineStreams | None = online_streams(model)
        if self.online is not None:
            outputs = self.format.outputs | self.online.output_shapes(self.format.outputs)
            self.format = replace(self.format, outputs=outputs)
        self.dtype, self.outputs = self.format.dtype, self.format.outputs
        self.takes_dt = "dt" in inputs
        self.patches: PatchCollector | None = None
        if self.format.has_patches:
            collected = {model.input_name: (self.graph_shape, self.dtype)}
            if self.takes_dt:
                collected["dt"] = ((), np.dtype(np.float32))
            self.patches = PatchCollector(self.format.patch_stride, collected)
        self.frequency, self.data_zone = calendar_frequency(manifest.frequency), data_zone(manifest)
        self.static_size = len(manifest.static or ())
        self._step_shapes = {
            name: tuple(size for size in spec.shape[1:] if isinstance(size, int)) for name, spec in inputs.items()
        }
        self.state_shapes = {
            state.input: (tuple(int(size) for size in state.shape[1:]), np.dtype(state.dtype)) for state in model.states
        }
        self._model_states = tuple(self.state_shapes)
        if self.patches is not None:
            self.state_shapes |= self.patches.state_shapes
        if self.online is not None:
            self.state_shapes |= self.online.state_shapes
        self._vocabulary_size = len(manifest.features)
        self._max_dt = float(np.finfo(np.float32).max) if model.max_dt is None else model.max_dt

    @property
    def labels(self) -> list[str] | None:
        """The classes of a classifier; None for any other model."""
        return class_labels(self.model.manifest)

    def accepts(self, inputs: Mapping[str, Array], rows: int, steps: int) -> bool:
        """Return whether inputs can go to the graph as they are; their types are not checked.

        Inputs that cannot are left to :meth:`ServedModel.prepare_steps`, which knows the reason.

        Args:
            inputs: By name, without the states; each must be ``(rows, steps, ...)``.
            rows: Number of streams.
            steps: Number of samples of each.
        """
        for name, value in inputs.items():
            # An array that lacks an axis would be sliced along the wrong one, without an error from numpy.
            if value.shape != (rows, steps, *self._step_shapes[name]):
                return False
        values = inputs[self.model.input_name]
        if self.dtype.kind == "i":
            if values.min() < 0 or values.max() >= self._vocabulary_size:
                return False
        elif np.isinf(values).any():
            return False
        dt = inputs.get("dt")
        # NaN compares as false.
        return dt is None or bool(dt.min() >= 0 and dt.max() <= self._max_dt)

    def model_states(self, states: Mapping[str, Array]) -> dict[str, Array]:
        """Return the states that the step graph takes, without those of the estimates."""
        return {name: states[name] for name in self._model_states if name in states}

    def graph_outputs(self, names: Iterable[str]) -> list[str]:
        """Return the outputs to request from the step graph for the outputs of a stream."""
        graph_names = [name for name in names if name in self.model.step.outputs]
        # The estimates need the quantiles, whether or not they are requested.
        return [*graph_names, QUANTILES] if self.online and QUANTILES not in graph_names else graph_names

    def count_elements(self, streams: int, samples: int) -> int:
        """Count the numbers in and out of the steps that samples make, for the limits of a request."""
        return streams * -(-samples // self.format.patch_stride) * self.model.step_elements

    def collect(self, states: Mapping[str, Array], steps: Array, inputs: Mapping[str, Array]) -> CollectedPatches:
        """Return the patches that samples of a model of patches fill.

        What is wrong with a sample is said now, not when its patch is full.

        Args:
            states: States of the streams, ``(streams, ...)``; zeros where absent.
            steps: Samples that each stream has taken, ``(streams,)``.
            inputs: By name, ``(streams, samples, ...)``.

        Raises:
            InputError: If the shape or a value of the samples does not fit the model.
        """
        assert self.patches is not None
        return self.patches.collect(states, steps, self._check_samples(inputs))

    def _check_samples(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        name = self.model.input_name
        x = np.asarray(inputs[name])
        if x.ndim != 2 + len(self.graph_shape) or 0 in x.shape[:2]:
            shape = ", ".join(("streams", "samples", *map(str, self.graph_shape)))
            raise InputError(f"{name} must have the shape ({shape}) for streams of {self.model.label}, got {x.shape}.")
        checked = {**inputs, name: self.model.check_values(name, x)}
        if "dt" in inputs:
            dt = np.asarray(inputs["dt"])
            if dt.shape != x.shape[:2] or not np.isfinite(dt).all():
                raise InputError(
                    f"dt must hold a finite number for each sample, {x.shape[:2]}, got the shape {dt.shape}."
                )
            check_dt(dt, self.model.max_dt)
            checked["dt"] = dt.astype(np.float32, copy=False)
        return checked

    def check_token(self, snapshot: StreamSnapshot) -> StreamSnapshot:
        """Return the content of a token as the streams have it.

        Estimates that were turned on after the token was issued begin with it. Tokens of earlier releases count patches
        in place of samples, and have no unfinished one.

        Raises:
            BadTokenError: If it does not hold what the model's streams on this server have.
        """
        states, step = snapshot.states, snapshot.step
        if snapshot.static.size not in (0, self.static_size):
            raise BadTokenError(
                f"The state token holds static values that are not those of {self.model.label}; begin a new stream."
            )
        patch_shapes = {} if self.patches is None else self.patches.state_shapes
        if patch_shapes and not states.keys() & patch_shapes.keys():
            states = {**states, **{name: np.zeros(shape, dtype) for name, (shape, dtype) in patch_shapes.items()}}
            step *= self.format.patch_stride
        return replace(snapshot, states=self._check_token_states(states), step=step)

    def _check_token_states(self, states: Mapping[str, Array]) -> dict[str, Array]:
        shapes = {name: (value.shape, value.dtype) for name, value in states.items()}
        if shapes == self.state_shapes:
            return dict(states)
        online_names = [name for name in states if is_online_state(name) and name not in self.state_shapes]
        if online_names:
            option = "--adaptive-intervals" if online_names[0].startswith("adaptive.") else "--drift-false-alarms"
            raise BadTokenError(
                f"The state token holds estimates of a server with {option}, which this one was started without; start "
                "it with the option, or begin a new stream."
            )
        complete = dict(states) if self.online is None else self.online.complete_states(states)
        if {name: (value.shape, value.dtype) for name, value in complete.items()} != self.state_shapes:
            raise BadTokenError(
                f"The state token holds states that are not those of {self.model.label}; begin a new stream."
            )
        return complete

    def select_outputs(self, names: list[str] | None) -> list[str]:
        """Return the requested outputs; all of them without ``names``.

        Raises:
            InputError: If a name is unknown, or given twice.
        """
        return select_outputs(names, self.outputs, self.model.label)


def select_outputs(names: Sequence[str] | None, outputs: Iterable[str], label: str) -> list[str]:
    """Return the requested outputs; all of them without ``names``.

    Args:
        names: The requested outputs.
        outputs: The outputs of the version.
        label: The version, as errors name it.

    Raises:
        InputError: If a name is unknown, or given twice.
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


def class_labels(manifest: Manifest) -> list[str] | None:
    """Return the classes of a classifier; None for any other model."""
    return manifest.labels if manifest.task == "classify" else None


_specs: WeakKeyDictionary[ServedModel, StreamSpec] = WeakKeyDictionary()


def stream_spec(model: ServedModel) -> StreamSpec:
    """Return the specification of a model's streams, which is made once."""
    spec = _specs.get(model)
    if spec is None:
        spec = _specs[model] = StreamSpec(model)
    return spec
