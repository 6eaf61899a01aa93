"""The packages that add cells to the catalog; needs neither torch nor NumPy, and imports none of them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from stablernn.errors import ConfigError

CELL_GROUP = "stablernn.cells"
"""Entry-point group of packages that have cells; the name of an entry point is the key of its cell."""


def cell_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of the cells of other packages, by key; none is imported.

    Raises:
        ConfigError: If two packages have a cell of the same key.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=CELL_GROUP):
        other = points.setdefault(point.name, point)
        if package_of(other) != package_of(point):
            raise ConfigError(
                f"The packages '{package_of(other)}' and '{package_of(point)}' both have a cell '{point.name}'. "
                "Remove one of them."
            )
    return points


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return point.value if point.dist is None else point.dist.name
