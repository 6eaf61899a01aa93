"""The cells whose step is known as data, and the engines that run them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from stablernn.cells import cell_info, list_cells

FAMILIES = ("plain", "residual", "two-stage", "shared gate")
WITHOUT_FORM = {
    # Complex units, whose modReLU couples two numbers, and a first state that is trained.
    "eunn",
    "fc_urnn",
    "kru",
    "urnn",
    # Independent units: a vector in place of the matrix.
    "indrnn",
}
CELLS = [key for key in list_cells() if cell_info(key).family in FAMILIES and key not in WITHOUT_FORM]
"""Cells of these families."""

HAS_NATIVE = find_spec("stablernn_native") is not None
FASTEST = "native" if HAS_NATIVE else "fused"
"""The engine that ``auto`` takes for these cells."""
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="stablernn-native is not installed: make native")
ENGINES = ["fused", pytest.param("native", marks=needs_native)]
