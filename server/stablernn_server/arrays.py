"""The type of numpy arrays whose dtype is known at run time only."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
