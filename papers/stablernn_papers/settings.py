"""Settings of published tables: values by dotted key, each with the source that it was taken from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Source = Literal["paper", "released code", "ours"]
"""Origin of a value: the paper, the program that its authors released, or a choice of this project."""


@dataclass(frozen=True)
class Setting:
    """The value of one setting of a run.

    Attributes:
        value: The value, a JSON type.
        source: Its origin.
    """

    value: Any
    source: Source


Settings = Mapping[str, Setting]
"""Settings of runs by dotted key, such as ``training.lr`` or ``model.cell_options.step_size``."""

_LENGTHS = {"training.epochs": "training.max_steps", "training.max_steps": "training.epochs"}


def paper(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Return settings that the paper states."""
    return {key: Setting(value, "paper") for key, value in values.items()}


def released(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Return settings of the program that the authors released."""
    return {key: Setting(value, "released code") for key, value in values.items()}


def ours(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Return settings that no source states, so that they were chosen here."""
    return {key: Setting(value, "ours") for key, value in values.items()}


def merge(*layers: Settings) -> dict[str, Setting]:
    """Return all settings; later layers win, and a length in epochs replaces one in steps and vice versa."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        for key in layer:
            merged.pop(_LENGTHS.get(key, ""), None)
        merged.update(layer)
    return merged


def tree(settings: Settings) -> dict[str, Any]:
    """Return the values as a tree with the sections of a configuration file."""
    root: dict[str, Any] = {}
    for key, setting in settings.items():
        *sections, name = key.split(".")
        branch = root
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = setting.value
    return root


def sources(settings: Settings) -> dict[str, Source]:
    """Return the origin of each setting by its key."""
    return {key: setting.source for key, setting in settings.items()}
