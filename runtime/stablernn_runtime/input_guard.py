"""Checks that samples lie in the range of inputs for which a version has its second certificate.

A sample outside says that the certificate does not hold for this sequence; it does not make an answer wrong. It is
counted, logged and reported with the answer, or refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry.certificates import input_ranges
from stablernn_runtime.errors import InputError

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_ROUNDING = 2e-7
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
            self._lower, self._upper = lower - _ROUNDING * np.abs(lower), upper + _ROUNDING * np.abs(upper)

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
