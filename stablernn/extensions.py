"""The packages that add cells and datasets; needs neither torch nor NumPy, and imports none of them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from stablernn.errors import ConfigError

CELL_GROUP = "stablernn.cells"
"""Entry-point group of packages that have cells; the name of an entry point is the key of its cell."""

DATASET_GROUP = "stablernn.datasets"
"""Entry-point group of packages that have datasets; the name of an entry point is the key of its dataset."""

PAPERS_DATASETS = frozenset(
    [
        "adding",
        "cifar10",
        "cifar10-noise-padded",
        "copy",
        "fsdd",
        "fsdd-frames",
        "jsb",
        "musedata",
        "nottingham",
        "piano-midi",
        "ptb-char",
        "ptb-word",
        "timit",
    ]
)
"""Datasets of the package ``stablernn-papers``, for the error where it is not installed."""


def cell_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of the cells of other packages, by key; none is imported.

    Raises:
        ConfigError: If two packages have a cell of the same key.
    """
    return _entry_points(CELL_GROUP, "cell")


@cache
def dataset_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of the datasets of other packages, by key; none is imported.

    Raises:
        ConfigError: If two packages have a dataset of the same key.
    """
    return _entry_points(DATASET_GROUP, "dataset")


def _entry_points(group: str, kind: str) -> dict[str, EntryPoint]:
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = points.setdefault(point.name, point)
        if package_of(other) != package_of(point):
            raise ConfigError(
                f"The packages '{package_of(other)}' and '{package_of(point)}' both have a {kind} '{point.name}'. "
                "Remove one of them."
            )
    return points


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return point.value if point.dist is None else point.dist.name
