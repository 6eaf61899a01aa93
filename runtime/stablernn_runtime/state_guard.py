"""Keeps states where the certificate says that they stay.

A state that a client supplies is refused outside its ball; one that a graph computes is counted, logged and told to
whoever asked. Both happen in :meth:`ServedModel.run`, through which every run of a graph goes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from stablernn_runtime.errors import InputError

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_ROUNDING = 1e-4
"""The share by which float32 arithmetic over long sequences may leave a ball that was computed in exact numbers."""


class StateBall(BaseModel):
    """Where one state tensor stays, as certificates say it."""

    model_config = ConfigDict(strict=False, extra="ignore")

    state: str
    norm: Literal["l2", "linf"]
    centre: float
    radius: float

    def size(self, values: Array) -> Array:
        """The distance of each row from the centre, ``(batch,)``."""
        apart = values.astype(np.float64).reshape(len(values), -1) - self.centre
        found: Array = np.abs(apart).max(axis=1) if self.norm == "linf" else np.linalg.norm(apart, axis=1)
        return found


class StateGuard:
    """The balls of a version's certificate; a version without any is not guarded.

    Attributes:
        balls: By the name of the state input.
        exits: How often a state that a graph computed lay outside, since the version was opened.
        ratio: The largest norm of a state in the last run, as a share of the radius of its ball.
    """

    def __init__(self, certificate: Mapping[str, Any] | None, states: Sequence[str]) -> None:
        """Read a certificate.

        Args:
            certificate: Of the manifest.
            states: The state inputs that the graphs have.

        Raises:
            ValueError: If it names a state that there is not, or its balls are not those of a certificate.
        """
        try:
            balls = [StateBall.model_validate(ball) for ball in (certificate or {}).get("state_balls") or ()]
        except ValidationError as error:
            raise ValueError(
                f"its certificate has state_balls that cannot be read: {error.errors()[0]['msg']}."
            ) from error
        for ball in balls:
            if ball.state not in states:
                raise ValueError(f"its certificate speaks of the state '{ball.state}', which its graphs do not have.")
        self.balls = {ball.state: ball for ball in balls}
        self.exits = 0
        self.ratio = 0.0
        self._lock = threading.Lock()

    def check(self, given: Mapping[str, Array]) -> None:
        """Refuse a state that a client supplies and no stream of this model can have come to.

        Args:
            given: By the name of the input, finite and in the shapes of the graph; may hold other inputs.

        Raises:
            InputError: If one lies outside its ball.
        """
        for name, ball in self.balls.items():
            if name not in given:
                continue
            sizes = ball.size(given[name])
            row = int(np.argmax(sizes))
            if not sizes[row] <= ball.radius * (1 + _ROUNDING):
                raise InputError(
                    f"The state '{name}' of sequence {row} has the norm {sizes[row]:.6g} ({ball.norm}), and no input "
                    f"leads this model beyond {ball.radius:.6g}: it was not computed by it. Begin without a state, or "
                    "with one that the server gave."
                )

    def exited(self, computed: Mapping[str, Array], label: str) -> dict[str, Array]:
        """The states that lie outside, and in which rows; they are counted and logged.

        Args:
            computed: What a graph gave, under the names of the inputs that it feeds.
            label: What to call the model in the log.
        """
        outside = {}
        for name, ball in self.balls.items():
            if name not in computed:
                continue
            sizes = ball.size(computed[name])
            largest = float(sizes.max(initial=0.0))
            if ball.radius > 0:
                self.ratio = largest / ball.radius
            if not largest <= ball.radius * (1 + _ROUNDING):
                outside[name] = ~(sizes <= ball.radius * (1 + _ROUNDING))
                with self._lock:
                    self.exits += 1
                logger.warning(
                    "%s: the state '%s' came to the norm %.6g, outside its certified ball of %.6g",
                    label,
                    name,
                    largest,
                    ball.radius,
                )
        return outside
