"""Reading of settings: YAML files, overrides, merging of layers, and error messages for what is not allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stablernn.errors import ConfigError, near
from stablernn.training.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    Section,
    TaskConfig,
    TrainingConfig,
)

_SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "task": TaskConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
}


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> Config:
    """The settings from a file and what is laid over it; what comes later wins.

    Args:
        path: A YAML file with sections ``data``, ``task``, ``model`` and ``training``.
        overrides: ``"training.lr=0.01"`` and the like; the value is read as YAML. They come last.
        defaults: A tree that lies below the file.
        options: Values by dotted key, between file and overrides; those that are None are passed over.

    Raises:
        ConfigError: If the file cannot be read, a key does not exist, or a value is not allowed.

    Example:
        >>> load_config(overrides=["data.source=digits", "model.cell=lipschitz", "training.lr=1e-3"]).training.lr
        0.001
    """
    layers = [dict(defaults or {}), _read(path) if path is not None else {}]
    layers += [_branch(key, value) for key, value in (options or {}).items() if value is not None]
    layers += [_parse_override(text) for text in overrides]
    return _merge_settings_each_other(layers)


def merge_settings(stored: Config, given: Config) -> Config:
    """The stored settings with those in place that ``given`` was made with; what it left to defaults stays as stored.

    Raises:
        ConfigError: If the two do not go together.
    """
    return _merge_settings_each_other([stored.tree(), given.model_dump(mode="json", exclude_unset=True)])


def _merge_settings_each_other(layers: Sequence[Mapping[str, Any]]) -> Config:
    tree: dict[str, Any] = {}
    for layer in layers:
        _replace_length(tree, layer)
        tree = _merge(tree, layer)
    return validate(tree)


def validate(tree: Mapping[str, Any]) -> Config:
    """The settings in a tree of JSON types.

    Raises:
        ConfigError: If a key does not exist or is missing, or a value is not allowed.
    """
    try:
        return Config.model_validate({key: {} if value is None else value for key, value in tree.items()})
    except ValidationError as error:
        found = error.errors()
        # A key that is not there explains why another is missing.
        raise ConfigError(_sentence(min(found, key=lambda one: one["type"] != "extra_forbidden"))) from None


class _Loader(yaml.SafeLoader):
    """Safe YAML with the floats and booleans of YAML 1.2 and without keys that silently replace another.

    ``1e-3`` is a number; ``no``, ``yes``, ``on`` and ``off`` are words, such as the name of a column.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = _parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration file '{path}': {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not valid YAML: {_reason(error)}.") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"'{path}' must hold the sections {_words(_SECTIONS)}, got {tree!r}.")
    return tree


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error)


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"An override must look like training.lr=0.01, got '{text}'.")
    try:
        return _branch(key.strip(), _parse_yaml(value))
    except yaml.YAMLError as error:
        raise ConfigError(f"The value of '{key.strip()}' is not valid YAML: {_reason(error)}.") from error


def _branch(key: str, value: Any) -> dict[str, Any]:
    """``{"a": {"b": value}}`` for the key ``a.b``."""
    for word in reversed(key.split(".")):
        value = {word: value}
    return dict(value)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


def _replace_length(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Let ``epochs`` of a later layer take the place of ``max_steps`` of an earlier one, and the other way round."""
    later, earlier = above.get("training"), below.get("training")
    if isinstance(later, Mapping) and isinstance(earlier, Mapping):
        for key, other in (("epochs", "max_steps"), ("max_steps", "epochs")):
            if later.get(key) is not None and other not in later:
                below["training"] = {**earlier, other: None}


def _sentence(error: ErrorDetails) -> str:
    """One pydantic error in the words of this configuration."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown_key(path)
    if error["type"] == "missing":
        return f"{path} is missing: {_describe(path)}"
    if error["type"] == "value_error":
        return str(error.get("ctx", {})["error"])
    given = error["input"]
    if path in _SECTIONS:
        return f"{path} must be a section with keys ({_words(_keys(path))}), got {given!r}."
    rule = error["msg"].replace("Input should be", "must be").replace("valid tuple", "list")
    allowed = re.findall(r"'([^']+)'", error.get("ctx", {}).get("expected", ""))
    hint = near(given, allowed) if isinstance(given, str) else ""
    return f"{path} {rule}, got {given!r}.{hint}"


def _unknown_key(path: str) -> str:
    section, _, word = path.rpartition(".")
    # A key that stands in the wrong section, or in none, is meant as written; else it is a typing mistake.
    meant = [f"{other}.{word}" for other in _SECTIONS if word in _keys(other)]
    if not meant:
        close = get_close_matches(word, _keys(section) or _SECTIONS, n=1)
        meant = [f"{section}.{name}" if section else name for name in close]
    hint = f" Did you mean '{meant[0]}'?" if meant else ""
    where = f"'{section}' has" if section in _SECTIONS else "Sections are"
    return f"Unknown key '{path}'.{hint} {where} {_words(_keys(section) or _SECTIONS)}."


def _keys(section: str) -> list[str]:
    return list(_SECTIONS[section].model_fields) if section in _SECTIONS else []


def _describe(path: str) -> str:
    section, _, key = path.rpartition(".")
    if section not in _SECTIONS:
        return f"the settings need this section, with keys {_words(_keys(path))}."
    return f"{_SECTIONS[section].model_fields[key].description}"


def _words(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(names)
