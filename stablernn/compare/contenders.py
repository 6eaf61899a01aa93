"""Contenders of a comparison, each a cell with a recipe of settings, and problems, each a data set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stablernn.catalog import get_cell_facts
from stablernn.errors import ConfigError
from stablernn.training.settings.config import AUTO

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Recipe:
    """Settings that each cell is trained with.

    Attributes:
        name: Name in tables; empty for the settings that are recommended for a cell.
        settings: The settings, as ``KEY=VALUE``.
    """

    name: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contender:
    """A cell with a recipe.

    Attributes:
        cell: Key of the cell.
        recipe: The recipe.
    """

    cell: str
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{self.cell}, {self.recipe.name}" if self.recipe.name else self.cell


@dataclass(frozen=True)
class Problem:
    """A data set.

    Attributes:
        name: Name in tables.
        source: Name of the data set, or path of its file.
    """

    name: str
    source: str


def make_problems(sources: Sequence[str]) -> list[Problem]:
    """Return the problems of data sets, each with a name of its own.

    Raises:
        ConfigError: If there is none, or one twice.
    """
    if not sources:
        raise ConfigError("A comparison needs data. Give one data set or more with --data.")
    repeated = [source for source in sources if sources.count(source) > 1]
    if repeated:
        raise ConfigError(f"The data set '{repeated[0]}' is given twice. Give it once.")
    stems = [Path(source).name.removesuffix(".gz").rsplit(".", 1)[0].removesuffix("_TRAIN") for source in sources]
    # Two files of the same name in different folders keep their folders.
    names = [stem if stems.count(stem) == 1 else source for stem, source in zip(stems, sources, strict=True)]
    return [Problem(name, source) for name, source in zip(names, sources, strict=True)]


def make_contenders(cells: Sequence[str], recipes: Sequence[Recipe]) -> list[Contender]:
    """Return each cell with each recipe, the cells in the outer loop.

    Raises:
        ConfigError: If there is no cell, one twice, or ``auto``, which is a search.
        UnknownNameError: If a cell does not exist.
    """
    if not cells:
        raise ConfigError("A comparison needs cells. Give their keys with --cells, such as --cells lru,lipschitz.")
    repeated = [cell for cell in cells if cells.count(cell) > 1]
    if repeated:
        raise ConfigError(f"The cell '{repeated[0]}' is given twice. Give it once.")
    if AUTO in cells:
        raise ConfigError(
            "'auto' is a search for settings, not a cell. Run `stablernn train --data ...` without a cell, and compare "
            "the cell and the settings that it prints."
        )
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise ConfigError(f"Two recipes have one name. Got {', '.join(names)}.")
    for cell in cells:
        get_cell_facts(cell)
    return [Contender(cell, recipe) for cell in cells for recipe in (recipes or [Recipe("")])]


def parse_recipe(text: str) -> Recipe:
    """Return the recipe in a text such as ``"short: model.patch_size=4 model.patch_stride=2"``.

    Raises:
        ConfigError: If the text has another form, or has the cell, the data or the seed.
    """
    name, colon, settings = text.partition(":")
    words = settings.split()
    if not (name.strip() and colon and words):
        raise ConfigError(
            "A recipe is a name, a colon and settings, such as 'short: model.patch_size=4 model.patch_stride=2', got "
            f"'{text}'."
        )
    check_overrides(words)
    return Recipe(name.strip(), tuple(words))


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse settings in which the runs of a comparison differ.

    Raises:
        ConfigError: If there is one.
    """
    for key, option in (("model.cell", "--cells"), ("training.seed", "--seeds"), ("data.source", "--data")):
        if any(text.partition("=")[0].strip() == key for text in overrides):
            raise ConfigError(f"{key} is not a setting of all runs of a comparison. Give {option} instead.")


def folder_name(problem: Problem, contender: Contender, seed: int) -> str:
    """Return the name of a run's folder."""
    return "-".join(_UNSAFE.sub("_", part).strip("_") for part in (problem.name, contender.name, str(seed)))
