"""The cells whose step is known as data."""

from __future__ import annotations

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
