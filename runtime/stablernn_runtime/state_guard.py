"""Checks that states stay in the balls of the certificate, and samples in the range of inputs of the second one.

A state that a client supplies is refused outside its ball; one that a graph computes is counted, logged and reported
with the answer. Every run of a graph is checked, see :mod:`stablernn_runtime.run_batch`.
A sample outside its range says that the certificate does not hold for this sequence; it does not make an answer wrong.
It is counted, logged and reported with the answer, or refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from stablernn_registry.certificates import input_ranges
from stablernn_runtime.errors import InputError

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_ROUNDING = 1e-4
"""Share of the radius by which float32 arithmetic over long sequences may leave a ball, which is computed in exact
numbers."""
_INPUT_ROUNDING = 2e-7
"""Share of an end of the range by which float32 may round a value equal to it; the certificate allows for it."""


class InputGuard:
    """The range of raw inputs of a version's certificate for bounded inputs; a version without one is not guarded.

    Attributes:
        ranges: Of each feature, in the units of the data; None without such a certificate.
        outside_count: How many samples lay outside, since the version was opened.
    """

    def __init__(self, certificate: Mapping[str, Any] | None) -> None:
        """Read a certificate.

        Args:
            certificate: The certificate of the manifest.

        Raises:
            ValueError: If its range cannot be read; half a sentence.
        """
        bounded = (certificate or {}).get("bounded_inputs")
        self.ranges = None if bounded is None else input_ranges(bounded) if isinstance(bounded, Mapping) else None
        if bounded is not None and self.ranges is None:
            raise ValueError("its certificate has bounded_inputs without a range of inputs that can be read.")
        self.outside_count = 0
        # Guards the count, which requests on several threads increase.
        self._lock = threading.Lock()
        if self.ranges is not None:
            lower, upper = np.array(self.ranges, dtype=np.float64).T
            self._lower, self._upper = lower - _INPUT_ROUNDING * np.abs(lower), upper + _INPUT_ROUNDING * np.abs(upper)

    def check(self, x: Array, lengths: Array | None, label: str, *, is_refused: bool) -> int:
        """Return how many samples lie outside the range; they are counted and logged.

        Values of a shape or type that the model does not take are left to its own checks.

        Args:
            x: ``(batch, time, ..., features)``, raw; NaN is a missing value, which lies in every range.
            lengths: ``(batch,)``, the steps that count; None for all.
            label: The model, as the log names it.
            is_refused: Whether samples outside are refused.

        Raises:
            InputError: If one lies outside and is to be refused.
        """
        if self.ranges is None or x.dtype.kind not in "iuf" or x.ndim < 3 or x.shape[-1] != len(self.ranges):
            return 0
        # Comparisons with NaN are false.
        is_outside = (x < self._lower) | (x > self._upper)
        if lengths is not None and lengths.shape == x.shape[:1]:
            is_counted = np.arange(x.shape[1]) < lengths[:, None]
            is_outside &= is_counted.reshape(*is_counted.shape, *[1] * (x.ndim - 2))
        if not is_outside.any():
            return 0
        first = tuple(int(index) for index in np.argwhere(is_outside)[0])
        low, high = self.ranges[first[-1]]
        message = (
            f"sample {first[1]} of sequence {first[0]} has the value {x[first]:.6g} of feature {first[-1]}, outside "
            f"{low:.6g} to {high:.6g}"
        )
        if is_refused:
            raise InputError(
                f"{message[0].upper()}{message[1:]}, for which this model is certified, and this server refuses such "
                "samples. Check unit and order of the features."
            )
        count = int(is_outside.any(axis=-1).sum())
        with self._lock:
            self.outside_count += count
        logger.warning("%s: %s, for which it is certified; %d such samples in this request", label, message, count)
        return count


class StateBall(BaseModel):
    """The ball in which one state tensor stays, as certificates state it."""

    model_config = ConfigDict(strict=False, extra="ignore")

    state: str
    norm: Literal["l2", "linf"]
    centre: float
    radius: float

    def distances(self, values: Array) -> Array:
        """Return the distance of each row from the center, ``(batch,)``."""
        # (batch, ...) -> (batch, size)
        differences = values.astype(np.float64).reshape(len(values), -1) - self.centre
        norms: Array
        norms = np.abs(differences).max(axis=1) if self.norm == "linf" else np.linalg.norm(differences, axis=1)
        return norms


class StateGuard:
    """The balls of a version's certificate; a version without any is not guarded.

    Attributes:
        balls: By the name of the state input.
        violation_count: How often a computed state lay outside its ball, since the version was opened.
        ratio: The largest norm of a state in the last run, as a share of the radius of its ball.
        inputs: The range of inputs of the certificate for bounded inputs. Balls are those for all inputs.
    """

    def __init__(self, certificate: Mapping[str, Any] | None, states: Sequence[str] | None) -> None:
        """Read a certificate.

        Args:
            certificate: The certificate of the manifest.
            states: The state inputs that the graphs have; None for graphs that keep their states to themselves, of
                which no ball is checked.

        Raises:
            ValueError: If the certificate names another state, or its balls or its range of inputs cannot be read;
                half a sentence.
        """
        try:
            balls = [StateBall.model_validate(ball) for ball in (certificate or {}).get("state_balls") or ()]
        except ValidationError as error:
            raise ValueError(
                f"its certificate has state_balls that cannot be read: {error.errors()[0]['msg']}."
            ) from error
        balls = [] if states is None else balls
        for ball in balls:
            if states is not None and ball.state not in states:
                raise ValueError(f"its certificate speaks of the state '{ball.state}', which its graphs do not have.")
        self.balls = {ball.state: ball for ball in balls}
        self.inputs = InputGuard(certificate)
        self.violation_count = 0
        self.ratio = 0.0
        # Guards the count, which runs on several threads increase.
        self._lock = threading.Lock()

    def check(self, inputs: Mapping[str, Array]) -> None:
        """Refuse a state of a client's that no stream of this model can have come to.

        Args:
            inputs: By name, the states finite and in the shapes of the graph; other inputs are ignored.

        Raises:
            InputError: If one lies outside its ball.
        """
        for name, ball in self.balls.items():
            if name not in inputs:
                continue
            distances = ball.distances(inputs[name])
            row = int(np.argmax(distances))
            if not distances[row] <= ball.radius * (1 + _ROUNDING):
                raise InputError(
                    f"The state '{name}' of sequence {row} has the norm {distances[row]:.6g} ({ball.norm}), and no "
                    f"input leads this model beyond {ball.radius:.6g}: it was not computed by it. Begin without a "
                    "state, or with one that the server gave."
                )

    def find_violations(self, states: Mapping[str, Array], label: str) -> dict[str, Array]:
        """Return the computed states that lie outside their balls; they are counted and logged.

        Args:
            states: States that a graph computed, by the names of the inputs that they feed.
            label: The model, as the log names it.

        Returns:
            By name, which rows lie outside, ``(batch,)``.
        """
        violations = {}
        for name, ball in self.balls.items():
            if name not in states:
                continue
            distances = ball.distances(states[name])
            largest = float(distances.max(initial=0.0))
            if ball.radius > 0:
                self.ratio = largest / ball.radius
            # Negated, since NaN compares as false.
            if not largest <= ball.radius * (1 + _ROUNDING):
                violations[name] = ~(distances <= ball.radius * (1 + _ROUNDING))
                with self._lock:
                    self.violation_count += 1
                logger.warning(
                    "%s: the state '%s' came to the norm %.6g, outside its certified ball of %.6g",
                    label,
                    name,
                    largest,
                    ball.radius,
                )
        return violations
