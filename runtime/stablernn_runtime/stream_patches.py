"""Single samples of streams, collected to the patches by which a model of patches moves on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PREFIX = "patch."
"""Begin of the names of the states that hold the samples of an unfinished patch."""
PatchOutputs = tuple[Array, Mapping[str, Array], Mapping[str, Array]]
"""Rows of streams, their outputs ``(rows, patches, ...)`` and the states after them ``(rows, ...)``."""


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
            PREFIX + name: ((stride - 1, *shape), dtype) for name, (shape, dtype) in inputs.items() if stride > 1
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
            before = states.get(PREFIX + name)
            if before is None:
                before = np.zeros((rows, stride - 1, *shape), dtype)
            # (streams, (patches + 1) * stride, ...)
            joined = np.concatenate([before, value], axis=1)[index, source]
            joined[~is_present] = 1 if name == "dt" else np.nan
            patches[name] = joined[:, : patch_count * stride].reshape(rows, patch_count, stride, *shape)
            if stride > 1:
                remainder = joined[index, left]
                remainder[~is_left] = 0
                left_over[PREFIX + name] = remainder
        if "future" in inputs and patch_count:
            ends = np.clip((np.arange(patch_count) + 1) * stride - 1 - pending[:, None], 0, samples - 1)
            patches["future"] = inputs["future"][index, ends]
        return CollectedPatches(patches, counts, np.minimum(counts * stride, totals), left_over)
