"""Reading of settings: YAML files, overrides, merging of layers, and error messages for what is not allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stablernn.data.files import is_table
from stablernn.data.options import option_descriptions
from stablernn.errors import ConfigError, did_you_mean
from stablernn.terms import terms
from stablernn.training.run_directory import RunDirectory
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
    """Load settings from a file, options and overrides; later layers win.

    Args:
        path: A YAML file with sections ``data``, ``task``, ``model`` and ``training``.
        overrides: ``"training.lr=0.01"`` and the like; the value is read as YAML, or ``a,b`` as a list. They come last.
        defaults: A tree of settings that the file overrides.
        options: Values by dotted key, between file and overrides; those that are None are skipped.

    Raises:
        ConfigError: If the file cannot be read, a key does not exist, or a value is not allowed.

    Example:
        >>> load_config(overrides=["data.source=digits", "model.cell=lipschitz", "training.lr=1e-3"]).training.lr
        0.001
    """
    # From the lowest layer to the highest.
    layers = [dict(defaults or {}), _read(path) if path is not None else {}]
    layers += [_branch(key, value) for key, value in (options or {}).items() if value is not None]
    layers += [_parse_override(text) for text in overrides]
    return _merge_layers(layers)


def merge_settings(stored: Config, changes: Config) -> Config:
    """Return stored settings with those that ``changes`` was made with; what it left to defaults stays as stored.

    Raises:
        ConfigError: If the two do not go together.
    """
    return _merge_layers([stored.tree(), changes.model_dump(mode="json", exclude_unset=True)])


def _merge_layers(layers: Sequence[Mapping[str, Any]]) -> Config:
    tree: dict[str, Any] = {}
    for layer in layers:
        # Before the merge, in which both would stand.
        _replace_length(tree, layer)
        tree = _merge(tree, layer)
    return validate(tree)


def validate(tree: Mapping[str, Any]) -> Config:
    """Return the settings in a tree of JSON types.

    Raises:
        ConfigError: If a key does not exist or is missing, or a value is not allowed.
    """
    try:
        return Config.model_validate({key: {} if value is None else value for key, value in tree.items()})
    except ValidationError as error:
        # An unknown key explains why another is missing: a mistyped one is both.
        first = min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")
        raise ConfigError(_format_validation_error(first)) from None


def with_stamps_of_training(stored: Config, frequency: str | None) -> Config:
    """Return stored settings that say how whole numbers were read as times, even if they were written before that key.

    Days written as YYYYMMDD were taken for dates then; such numbers are refused now unless ``data.stamps`` names them.

    Args:
        stored: The settings of a run or of a registry version.
        frequency: Frequency alias of its data; None where there is none.
    """
    # With numpy, which a list of runs does without.
    from stablernn.data.table.frequency import parse_frequency

    is_calendar = frequency is not None and parse_frequency(frequency).kind != "index"
    if "stamps" in stored.data.model_fields_set or not is_calendar or not is_table(stored.data.source):
        return stored
    return stored.updated("data", stamps="yyyymmdd")


class _Loader(yaml.SafeLoader):
    """Safe YAML with the floats and booleans of YAML 1.2 and without keys that silently replace another.

    ``1e-3`` is a number; ``no``, ``yes``, ``on`` and ``off`` are strings, such as the name of a column.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML reads, takes `no` for false and `1e-3`, without a dot, for a string.
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
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


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
        raise ConfigError(f"'{path}' must hold the sections {_format_names(_SECTIONS)}, got {tree!r}.")
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
        return _branch(key.strip(), _split_list(key.strip(), _parse_yaml(value)))
    except yaml.YAMLError as error:
        raise ConfigError(f"The value of '{key.strip()}' is not valid YAML: {_reason(error)}.") from error


def _split_list(key: str, value: Any) -> Any:
    """Return the parts of a text such as ``a,b`` where the setting is a list, any other value as it is."""
    section, _, name = key.partition(".")
    field = _SECTIONS[section].model_fields.get(name) if section in _SECTIONS else None
    if field is None or not isinstance(value, str) or not _has_tuple(field.annotation):
        return value
    parts = [part.strip() for part in value.split(",")]
    # A single comma may stand for a missing value.
    return [_parse_scalar(part) for part in parts] if len(parts) > 1 and all(parts) else value


def _parse_scalar(text: str) -> Any:
    """Return the value of a part of a list; text that is none in YAML, such as a dash, as it is."""
    try:
        value = _parse_yaml(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, str | int | float) else text


def _has_tuple(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_has_tuple, get_args(annotation)))


def _branch(key: str, value: Any) -> dict[str, Any]:
    """Return ``{"a": {"b": value}}`` for the key ``a.b``."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


def _replace_length(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Let ``epochs`` of a later layer replace ``max_steps`` of an earlier one, and vice versa."""
    later, earlier = above.get("training"), below.get("training")
    if isinstance(later, Mapping) and isinstance(earlier, Mapping):
        for key, other in (("epochs", "max_steps"), ("max_steps", "epochs")):
            if later.get(key) is not None and other not in later:
                below["training"] = {**earlier, other: None}


def _format_validation_error(error: ErrorDetails) -> str:
    """Return the message for an error of pydantic, in the terms of this configuration."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown_key(path)
    if error["type"] == "missing":
        return f"{path} is missing: {_describe(path)}"
    if error["type"] == "value_error":
        # Raised by a check of ours, whose message is complete.
        return str(error.get("ctx", {})["error"])
    value = error["input"]
    if path in _SECTIONS:
        return f"{path} must be a section with keys ({_format_names(_keys(path))}), got {value!r}."
    rule = error["msg"].replace("Input should be", "must be").replace("valid tuple", "list")
    # For a choice of strings, pydantic lists them in quotes in the context of the error.
    allowed = re.findall(r"'([^']+)'", error.get("ctx", {}).get("expected", ""))
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    return f"{_name_of(path)} {rule}, got {value!r}.{hint}"


def _name_of(path: str) -> str:
    """Return what a user calls a setting, or an item of one, such as ``data.calendar.0``."""
    section, key, *items = path.split(".")
    return ".".join([terms().key(f"{section}.{key}"), *items])


def _unknown_key(path: str) -> str:
    section, _, key = path.rpartition(".")
    # A key that stands in the wrong section, or in none, is meant as written; else it is a typing mistake.
    candidates = [f"{other}.{key}" for other in _SECTIONS if key in _keys(other)]
    if not candidates:
        close = get_close_matches(key, _keys(section) or _SECTIONS, n=1)
        candidates = [f"{section}.{name}" if section else name for name in close]
    hint = f" Did you mean '{candidates[0]}'?" if candidates else ""
    subject = f"'{section}' has" if section in _SECTIONS else "Sections are"
    return f"Unknown key '{path}'.{hint} {subject} {_format_names(_keys(section) or _SECTIONS)}."


def _keys(section: str) -> list[str]:
    return list(_SECTIONS[section].model_fields) if section in _SECTIONS else []


def _describe(path: str) -> str:
    section, _, key = path.rpartition(".")
    if section not in _SECTIONS:
        return f"the settings need this section, with keys {_format_names(_keys(path))}."
    return option_descriptions(_SECTIONS[section])[key]


def _format_names(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(names)


def stored_settings(directory: RunDirectory) -> Config:
    """Return the resolved settings of a run.

    Raises:
        ConfigError: If ``config.yaml`` cannot be read.
        CheckpointError: If ``data.json`` cannot be read.
    """
    # data.json is written before config.yaml, so a run has one.
    stored = load_config(directory.config).as_stored()
    return with_stamps_of_training(stored, directory.read_data().get("frequency"))
