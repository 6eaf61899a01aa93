"""The catalog of cells: key, paper, guarantee, default options and recommended training settings of each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from stablernn.cells._base import StableCell
from stablernn.errors import ConfigError, did_you_mean, unknown
from stablernn.extensions import cell_entry_points, package_of

Preset = Literal["practical", "paper"]
PRESETS: tuple[Preset, ...] = ("practical", "paper")

OWN_PACKAGE = "stablernn"
_KEY = re.compile(r"[a-z][a-z0-9_]*")
_SIZES = ("self", "input_size", "hidden_size")


@dataclass(frozen=True)
class CellInfo:
    """One entry of the catalog.

    Attributes:
        key: Name on the command line.
        title: Description, in a few words.
        paper: Authors, title and venue.
        year: Year of publication.
        guarantee: The guarantee in words; "none" if there is none.
        family: The family of steps, which an engine may know (``docs/background/architecture.md``).
        equation: Equation of one step, in plain text.
        cell: The class.
        paper_options: The paper's values, if they differ from the defaults of the class.
        paper_source: Source of the paper's values, and which of them are our choice.
        training: Recommended training settings of each preset.
        upper_options: Options of every layer except the first.
        exports: Formats to which its step can be exported.
        package: The package that has the class.
    """

    key: str
    title: str
    paper: str
    year: int
    guarantee: str
    family: str
    equation: str
    cell: type[StableCell]
    paper_options: Mapping[str, Any] = field(default_factory=dict)
    paper_source: str = ""
    training: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    upper_options: Mapping[str, Any] = field(default_factory=dict)
    exports: tuple[str, ...] = ("onnx", "torchscript")
    package: str = OWN_PACKAGE

    def options(self, preset: str = "practical") -> dict[str, Any]:
        """Return every option of the cell with its value under ``preset``."""
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(self.cell.__init__).parameters.items()
            if name not in _SIZES
        }
        _check_preset(preset)
        return defaults | dict(self.paper_options) if preset == "paper" else defaults

    def facts(self) -> dict[str, Any]:
        """Return all facts about the cell that do not need its class, as JSON types.

        Besides the attributes: ``options`` and ``training`` by preset, and ``takes``, which says whether a step takes
        the time since the one before (``dt``) and missing values (``missing``). ``package`` names another package that
        has the cell.
        """
        return {
            "key": self.key,
            "title": self.title,
            "paper": self.paper,
            "year": self.year,
            "guarantee": self.guarantee,
            "family": self.family,
            "exports": list(self.exports),
            "equation": self.equation,
            "options": {preset: self.options(preset) for preset in PRESETS},
            "training": {preset: dict(self.training.get(preset, {})) for preset in PRESETS},
            "paper_source": self.paper_source,
            "takes": {"dt": self.cell.takes_dt, "missing": self.cell.takes_missing},
            **({} if self.package == OWN_PACKAGE else {"package": self.package}),
        }


def practical(lr: float, epochs: int = 60) -> dict[str, Any]:
    """Return our training settings of most cells, at a learning rate and a number of epochs of their own."""
    return {"lr": lr, "schedule": "one-cycle", "epochs": epochs, "batch_size": 32, "clip_norm": 1.0}


# Filled by register_cell() as stablernn.cells imports its modules.
_CATALOG: dict[str, CellInfo] = {}

_Cell = TypeVar("_Cell", bound=type[StableCell])


def register_cell(key: str, **facts: Any) -> Callable[[_Cell], _Cell]:
    """Register a cell class in the catalog, as a decorator.

    A package that names the class in the entry-point group ``stablernn.cells`` has its cell in every process of an
    environment, the command line included; ``docs/guides/cells.md`` shows one.

    Args:
        key: Key of the cell, lower-case letters, digits and underscores; it becomes the attribute ``key`` of the class.
        facts: Other fields of :class:`CellInfo`; the family is "general" by default.

    Raises:
        ValueError: If the key is registered already or has other characters, or the class is no cell.
    """

    def register(cell: _Cell) -> _Cell:
        if key in _CATALOG:
            raise ValueError(f"The cell '{key}' is registered twice, by {_CATALOG[key].cell} and {cell}.")
        # `auto` is the search for a cell.
        if _KEY.fullmatch(key) is None or key == "auto":
            raise ValueError(
                f"The key of a cell is made of lower-case letters, digits and underscores, and is not 'auto', got "
                f"'{key}'."
            )
        if not issubclass(cell, StableCell):
            raise ValueError(f"The cell '{key}' must derive from stablernn.cells.StableCell, got {cell}.")
        cell.key = key
        package = cell.__module__.partition(".")[0]
        _CATALOG[key] = CellInfo(key=key, cell=cell, **{"package": package, "family": "general", **facts})
        return cell

    return register


def list_cells(pattern: str = "*") -> list[str]:
    """Return the keys that match a shell-style pattern, sorted; those of other packages included.

    Example:
        >>> list_cells("lipschitz*")
        ['lipschitz', 'lipschitz_rk2']
    """
    return sorted(key for key in {*_CATALOG, *cell_entry_points()} if fnmatchcase(key, pattern))


def cell_info(key: str) -> CellInfo:
    """Return the catalog's entry for ``key``.

    Raises:
        UnknownNameError: If there is no such cell.
        ConfigError: If it is a cell of another package that cannot be loaded.
    """
    if key not in _CATALOG:
        _load_plugin(key)
    return _CATALOG[key]


def _load_plugin(key: str) -> None:
    """Register the cell of another package.

    Raises:
        UnknownNameError: If no package has such a cell.
        ConfigError: If it cannot be loaded.
    """
    points = cell_entry_points()
    if key not in points:
        raise unknown("cell", key, [*_CATALOG, *points], "See `stablernn cells list`.")
    point = points[key]
    package = package_of(point)
    refusal = f"The cell '{key}' of the package '{package}' could not be loaded"
    try:
        point.load()
    # Code of another package, which may raise anything.
    except Exception as error:
        reason = str(error).removesuffix(".") or type(error).__name__
        raise ConfigError(f"{refusal}: {reason}. Repair or remove that package.") from error
    if key not in _CATALOG:
        raise ConfigError(
            f"{refusal}: its entry point '{point.value}' registers no cell of this key. Decorate the class with "
            f"stablernn.register_cell('{key}', ...)."
        )
    _CATALOG[key] = replace(_CATALOG[key], package=package)


def create_cell(
    key: str, input_size: int, hidden_size: int, *, preset: str = "practical", **options: Any
) -> StableCell:
    """Create a cell.

    Args:
        key: Key in the catalog.
        input_size: Features per time step.
        hidden_size: Length of the state.
        preset: ``practical``, our values, which train on short and long tasks, or ``paper``, the published ones.
        options: Options of the cell, which override the preset.

    Raises:
        UnknownNameError: If there is no such cell.
        ConfigError: If the cell has no such option, the value does not fit it, or the preset does not exist.

    Example:
        >>> create_cell("antisymmetric", 3, 8, damping=0.1).damping
        0.1
    """
    info = cell_info(key)
    allowed = info.options(preset)
    for name in options:
        if name not in allowed:
            takes = ", ".join(sorted(allowed)) or "none"
            raise ConfigError(
                f"The cell '{key}' has no option '{name}'.{did_you_mean(name, allowed)} It takes {takes}."
            )
        _check_type(key, name, options[name], allowed[name])
    try:
        # Each cell checks the ranges of its options itself; to the caller this is a wrong configuration as well.
        return info.cell(input_size, hidden_size, **(allowed | options))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def recommended_training(key: str, preset: str = "practical") -> dict[str, Any]:
    """Return the recommended training settings (``lr``, ``optimizer``, ``schedule``, ...) of a cell under a preset."""
    _check_preset(preset)
    return dict(cell_info(key).training.get(preset, {}))


def _check_type(key: str, name: str, value: object, default: object) -> None:
    """Check that an option is a string, number or Boolean, as its default is; a default of None stands for a number.

    Raises:
        ConfigError: If it is not.
    """
    # Booleans first: in Python they are integers, but true is not a number for an option.
    if isinstance(default, bool):
        fits, expected = isinstance(value, bool), "true or false"
    elif isinstance(default, str):
        fits, expected = isinstance(value, str), "a string"
    else:
        fits, expected = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
        if default is None:
            # None lets the cell choose the number.
            fits, expected = fits or value is None, "a number or null"
        elif isinstance(default, int):
            # An option without a fraction counts something.
            fits, expected = fits and isinstance(value, int), "a whole number"
    if not fits:
        raise ConfigError(f"The option '{name}' of the cell '{key}' takes {expected}, got {value!r}.")


def _check_preset(preset: str) -> None:
    if preset not in PRESETS:
        raise ConfigError(
            f"Unknown preset '{preset}'.{did_you_mean(preset, PRESETS)} It is one of {', '.join(PRESETS)}."
        )
