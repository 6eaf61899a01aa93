"""Adaptive intervals and the test for drift of one version's streams, as options of a server turn them on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Manifest
from stablernn_registry.certificates import current_certificate
from stablernn_runtime import adaptive_intervals, drift
from stablernn_runtime.adaptive_intervals import AdaptiveIntervals, symmetric_pairs
from stablernn_runtime.drift import DriftDetector
from stablernn_runtime.errors import ModelLoadError

Array = NDArray[Any]
States = dict[str, Array]

MAX_STATE_BYTES = 1 << 20
"""Bytes of a stream's estimates at most: a token has four thirds of them in each request, and a server keeps those of
thousands of streams."""
QUANTILES = "quantiles"
"""Output of the graphs that both estimates are computed from."""
ADAPTIVE_QUANTILES = "adaptive_quantiles"
"""Output of a stream with adaptive intervals, in the shape of the quantiles."""
DRIFT_EVIDENCE = "drift_evidence"
"""Output of a stream that is tested for drift: a number, of which 1 or more is an alarm."""


@dataclass(frozen=True)
class OnlineOptions:
    """Estimates that streams update with each sample.

    Attributes:
        adaptive_intervals: Whether streams answer adaptive intervals.
        drift_false_alarms: Upper bound on the mean number of false alarms a reading; None: no test for drift.
    """

    adaptive_intervals: bool = False
    drift_false_alarms: float | None = None

    @property
    def is_on(self) -> bool:
        """True if any estimate is asked for."""
        return self.adaptive_intervals or self.drift_false_alarms is not None

    def outputs(self, graph_outputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the outputs that streams have in addition to those of the graph."""
        shapes = {ADAPTIVE_QUANTILES: graph_outputs[QUANTILES]} if self.adaptive_intervals else {}
        return shapes if self.drift_false_alarms is None else {**shapes, DRIFT_EVIDENCE: (1,)}


@dataclass(frozen=True)
class OnlineUpdate:
    """The result of some samples of some streams.

    Attributes:
        states: By name, ``(streams, ...)``, after the samples.
        outputs: By name, ``(streams, samples, ...)``.
        alarms: Alarms of each stream, ``(streams,)``.
        scores: By nominal coverage of the adaptive intervals, how many forecasts the samples scored and how many of
            these missed, over all streams.
    """

    states: States
    outputs: dict[str, Array]
    alarms: Array
    scores: dict[float, tuple[int, int]]


class OnlineStreams:
    """The estimates of one version's streams. Their states are kept and signed with those of the model.

    Attributes:
        intervals: The adaptive intervals; None without.
        drift: The test for drift; None without.
        state_shapes: Shape and type of each state of a stream, by name; zeros at its beginning.
        observer: Called with each update that streams have taken.
    """

    def __init__(
        self,
        target_indices: list[int],
        levels: list[float],
        intervals: AdaptiveIntervals | None,
        test: DriftDetector | None,
    ) -> None:
        """Combine the estimates.

        Args:
            target_indices: Positions of the forecast variables among the features.
            levels: Levels of the quantiles, ascending.
            intervals: The adaptive intervals; None for none.
            test: The test for drift; None for none.
        """
        self.intervals, self.drift = intervals, test
        self.state_shapes = (intervals.state_shapes if intervals else {}) | (test.state_shapes if test else {})
        self.observer: Callable[[OnlineUpdate], None] = _ignore
        self._target_indices = target_indices
        # The widest pair, whose width is the least sensitive to a few close quantiles.
        self._low, self._high = symmetric_pairs(levels)[-1]
        middle = [index for index, level in enumerate(levels) if math.isclose(level, 0.5)]
        self._median = middle[0] if middle else None

    def advance(self, states: Mapping[str, Array], x: Array, quantiles: Array) -> OnlineUpdate:
        """Take samples of some streams, and the model's forecasts after each of them.

        Args:
            states: By name, ``(streams, ...)``; zeros where absent. They are not changed.
            x: The samples, ``(streams, samples, features)``, or ``(streams, samples, stride, features)`` of patches.
            quantiles: ``(streams, samples, horizon, targets, levels)``.
        """
        readings = x if x.ndim == 4 else x[:, :, None]
        values = readings[..., self._target_indices]
        new_states: States = {}
        outputs: dict[str, Array] = {}
        alarms, scores = np.zeros(len(x), np.int64), {}
        if self.intervals is not None:
            update = self.intervals.advance(states, values, quantiles)
            new_states |= update.states
            outputs[ADAPTIVE_QUANTILES] = update.quantiles
            totals = update.counts.sum(axis=0).tolist()
            scores = {self.intervals.nominal(pair): (scored, missed) for pair, (scored, missed) in enumerate(totals)}
        if self.drift is not None:
            low, high = quantiles[..., self._low], quantiles[..., self._high]
            center = (low + high) / 2 if self._median is None else quantiles[..., self._median]
            drift_states, evidence = self.drift.advance(states, values, center, high - low)
            new_states |= drift_states
            outputs[DRIFT_EVIDENCE] = evidence[..., None]
            alarms = (evidence >= 1).sum(axis=1)
        return OnlineUpdate(new_states, outputs, alarms, scores)

    def complete_states(self, states: Mapping[str, Array]) -> States:
        """Return the states of a token, with those of the estimates that it lacks at their beginning.

        Args:
            states: States of the token, without an axis over streams.
        """
        complete = dict(states)
        for prefix in (adaptive_intervals.PREFIX, drift.PREFIX):
            names = [name for name in self.state_shapes if name.startswith(prefix)]
            # All states of an estimate begin, or none: a token with some of them is damaged.
            if not any(name in states for name in names):
                complete |= {name: np.zeros(*self.state_shapes[name]) for name in names}
        return complete

    def output_shapes(self, graph_outputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the outputs that streams have in addition to those of the graph."""
        rate = None if self.drift is None else self.drift.rate
        return OnlineOptions(self.intervals is not None, rate).outputs(graph_outputs)


def _ignore(update: OnlineUpdate) -> None:
    """Observe nothing: without a server, nobody counts."""


def is_online_state(name: str) -> bool:
    """Return whether a state belongs to an estimate and not to the model."""
    return name.startswith((adaptive_intervals.PREFIX, drift.PREFIX))


def create_online_streams(manifest: Manifest, patch_stride: int, options: OnlineOptions) -> OnlineStreams | None:
    """Return the estimates of a version's streams; None if none is asked for.

    Args:
        manifest: Manifest of the version.
        patch_stride: Readings in a sample.
        options: The estimates.

    Raises:
        ModelLoadError: If the version does not have what they are computed from.
    """
    if not options.is_on:
        return None
    label = f"'{manifest.name}:{manifest.version}'"
    reason = _missing_requirement(manifest)
    if reason is not None:
        option = "adaptive intervals" if options.adaptive_intervals else "a test for drift"
        raise ModelLoadError(
            f"{label} cannot be served with {option}: {reason}. Name the models that can by --model, or leave the "
            "option out."
        )
    levels, targets = list(manifest.quantiles or ()), list(manifest.targets or ())
    horizon = manifest.horizon or 1
    intervals, test = None, None
    if options.adaptive_intervals:
        intervals = AdaptiveIntervals(horizon, len(targets), levels, patch_stride)
    if options.drift_false_alarms is not None:
        try:
            block = block_length(manifest.certificate, manifest.season or 1, patch_stride)
            test = DriftDetector(options.drift_false_alarms, block, horizon, len(targets), patch_stride)
        except ValueError as error:
            raise ModelLoadError(f"{label} cannot be served with a test for drift: {error}") from error
    online = OnlineStreams([manifest.features.index(name) for name in targets], levels, intervals, test)
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in online.state_shapes.values())
    if size > MAX_STATE_BYTES:
        raise ModelLoadError(
            f"{label} cannot be served with estimates: horizon {horizon}, {len(targets)} targets and {len(levels)} "
            f"quantiles make {size:,} bytes a stream, at most {MAX_STATE_BYTES:,} are kept and signed. Train a model "
            "with fewer of them, or leave the option out."
        )
    return online


def _missing_requirement(manifest: Manifest) -> str | None:
    """Return why no estimate can be computed for a version's streams, as a clause; None if they can."""
    if manifest.task != "forecast":
        return f"it is for '{manifest.task}', and only forecasts have intervals"
    if manifest.head == "recursive":
        return (
            "its recursive head forecasts as far as each request asks, and estimates need the whole horizon after each "
            "sample; train with model.head=direct"
        )
    if not symmetric_pairs(manifest.quantiles or ()):
        levels = manifest.quantiles or []
        return f"no two levels of its quantiles add up to 1, as 0.1 and 0.9 do, got {levels}; train with task.quantiles"
    for name in manifest.targets or ():
        if name not in manifest.features:
            return f"its target '{name}' is none of its inputs, so that streams never see its true values"
    return None


def block_length(certificate: Mapping[str, Any] | None, season: int, stride: int) -> int:
    """Return the readings over which a model is proved to forget, in whole seasons.

    Args:
        certificate: Certificate of the model.
        season: Readings of a season; 1 for none.
        stride: Readings of a step of the state.

    Raises:
        ValueError: If the certificate proves no forgetting time; a sentence.
    """
    document = current_certificate(certificate) or {}
    # What holds for all inputs first, then what holds within the range seen in training.
    for part in (document, document.get("bounded_inputs") or {}):
        steps = (part.get("forgetting") or {}).get("steps") if part.get("kind") == "contracting" else None
        if steps is not None and (part.get("time") or {}).get("steps") != "irregular":
            seasons: int = math.ceil(max(1, steps) * stride / season)
            return season * seasons
    raise ValueError(
        "its certificate proves no forgetting time for regular steps, and without one nothing says how far apart two "
        "of its residuals have to be; train with --certified, or with a cell that contracts such as ren."
    )


_streams: WeakKeyDictionary[Any, OnlineStreams] = WeakKeyDictionary()


def attach_online_streams(model: Any, online: OnlineStreams) -> None:
    """Let the streams of a model have estimates, before any of them begins."""
    _streams[model] = online


def online_streams(model: Any) -> OnlineStreams | None:
    """Return the estimates of a model's streams; None without."""
    return _streams.get(model)
