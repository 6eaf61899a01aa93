"""``docs/configuration.md``: every key of the configuration with its description, below an introduction."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_HEAD = """# Configuration

Written by `make docs` from the code; do not edit by hand.

A run has one tree of settings with the sections `data`, `task`, `model` and `training`. They are set in three places;
later ones override earlier ones:

1. `--config FILE`, a YAML file with these sections,
2. options of the command line, for the most used keys,
3. `--set SECTION.KEY=VALUE`, for every key; the value is read as YAML.

```yaml
data: {source: load.csv, calendar: [day, week]}
task: {horizon: 24}
model: {cell: lem}
training: {seed: 1}
```

```sh
stablernn train --config load.yaml --hidden-size 32 --set training.weight_decay=0.01
```

An option and a `--set` with different values for one key are an error, and so is a key that does not exist. `1e-3` is a
number; `yes`, `no`, `on` and `off` are strings. `null` resets a key of the file whose default is empty. `epochs`
replaces a file's `max_steps`, and vice versa.

**An empty default, None in the text, means "the value recommended for this cell and this data".** A run stores the
values that it used in the `config.yaml` of its directory; a key that is empty there too is off or belongs to another
task. `stablernn data check SOURCE` shows the values before anything is trained, `stablernn cells show CELL` the
recommendations of the cell.

## Recommended values

Learning rate, optimizer, schedule and the like come from the cell ([cells.md](cells.md)); if it has none, they
"""

_BEFORE_TABLES = """
All others depend on task and data, with the preset `practical`. Formulas and sources are in
[classification.md](classification.md) and [forecasting.md](forecasting.md), comparisons with other methods in
[accuracy.md](accuracy.md).
"""

_AFTER_TABLES = """
The gate is not a setting: it applies with a linear skip and a validation split. A recursive head works sample by
sample: `standard` scaling, no patches, no skip, unless they are set.

The preset `paper` recommends none of this: one sample a step, the last output, standard scores, no skip, no
augmentation, no warm-up, and the cell's own length of training. The task `predict-next` has its own recommendations
([predict_next.md](predict_next.md)).
"""

_TYPE_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "`true`, `false`"}


def configuration_page() -> str:
    """Return the page of all settings."""
    from stablernn.training.settings.config import DataConfig, ModelConfig, TaskConfig, TrainingConfig
    from stablernn.training.settings.defaults import FALLBACK, FALLBACK_LR, FALLBACK_OPTIMIZER

    fallback = {**FALLBACK, "lr": FALLBACK_LR[FALLBACK_OPTIMIZER]}
    parts = [_HEAD, f"are {', '.join(f'`{key}` {value}' for key, value in fallback.items())}.\n", _BEFORE_TABLES]
    for title, rows in (
        ("To classify", _classification_rows()),
        ("To forecast", _forecast_rows()),
    ):
        parts += [f"\n### {title}\n\n", *_table(("what", "value", "why"), rows)]
    parts.append(_AFTER_TABLES)
    # Defaults and descriptions come from the models that validate the settings, so they cannot be out of date.
    sections: dict[str, type[BaseModel]] = {
        "data": DataConfig,
        "task": TaskConfig,
        "model": ModelConfig,
        "training": TrainingConfig,
    }
    for name, section in sections.items():
        parts += [f"\n## `{name}`\n\n{(section.__doc__ or '').strip()}\n\n", *_key_rows(name, section)]
    return "".join(parts)


def _classification_rows() -> list[tuple[str, str, str]]:
    from stablernn.training.tasks.classify import (
        AUGMENTATION,
        HEAD_DROPOUT,
        LABEL_SMOOTHING,
        LEAST_STEPS,
        PATCH_STEPS,
        PATCHES,
        STEPS_OF_A_CLASS,
    )

    # Numbers are read from the code; only the reasons are written here.
    return [
        (
            "`patch_stride`",
            f"the longest training sequence over {PATCHES}, rounded",
            f"the layers take about {PATCHES} steps for a sequence of any length: gradients reach its beginning, and "
            "training is faster by the same factor",
        ),
        ("`patch_size`", f"{PATCH_STEPS} strides", "neighboring steps overlap, so that no shape is cut in two"),
        ("`patch_embedding`", "`hidden_size`", "the cell sees features of a patch instead of its raw samples"),
        (
            "`readout`",
            "`all`",
            "the feature that separates classes may be at the end (last), everywhere (mean) or in one place (max)",
        ),
        (
            "`head_dropout`",
            f"{HEAD_DROPOUT}",
            "the head has three inputs for each unit, and few sequences to learn from",
        ),
        ("`scaling`", "`standard`", "classes often differ in the level of their values"),
        ("`label_smoothing`", f"{LABEL_SMOOTHING}", "a model of few labels is overconfident otherwise"),
        (
            ", ".join(f"`{key}`" for key in AUGMENTATION),
            ", ".join(f"{value}" for value in AUGMENTATION.values()),
            "a small set is memorized otherwise; `time_warp` is 0 if the steps have times",
        ),
        ("`batch_size`", "the cell's, at most a quarter of the sequences, at least 8", "small sets need steps"),
        (
            "`epochs`",
            f"the cell's, at least as many as make {LEAST_STEPS} steps, and {STEPS_OF_A_CLASS} for each class",
            "as above",
        ),
        ("`calibrate`", "true: one temperature", "networks are overconfident"),
    ]


def _forecast_rows() -> list[tuple[str, str, str]]:
    from stablernn.training.tasks.forecast import MAX_STEPS, MIN_STEPS, MOST_WINDOWS_A_STEP, PATCHES

    return [
        (
            "`scaling`",
            "`context`; `standard` if `model.season` is set and does not fit twice into the context",
            "series differ in level and spread, and drift",
        ),
        ("`season`", "the data's if it fits twice into the context, else 1", "its change is the unit of errors"),
        (
            "`log`",
            "true if all values are positive and the largest is at least 10 times the smallest",
            "where levels differ by factors, so do seasonal swings",
        ),
        ("`skip`", "`linear` with the scaling `context`", "a linear map of the context is hard to beat on many series"),
        (
            "`patch_size`, `patch_stride`",
            f"the divisor of the context nearest to the context over {PATCHES}, both",
            "as above",
        ),
        ("`readout`", "`last`", "the present of a series matters most for its future"),
        ("`warm_up`", "one context", "a stream is longer than a context; training must have seen states like its own"),
        ("`skip_lr`", "a thirtieth of `lr`", "the skip starts at its solution"),
        (
            "`batch_size`",
            f"the cell's, or a thirty-second of the windows if that is more, at most {MOST_WINDOWS_A_STEP}",
            "overlapping windows differ little",
        ),
        (
            "`epochs`",
            f"5, but from {MIN_STEPS} to {MAX_STEPS:,} steps",
            "as above",
        ),
        ("gate", "on", "layers that do not improve on the linear skip by more than noise do harm on new data"),
        ("`calibrate`", "true: conformal offsets", "an 80 % interval should cover 80 %"),
    ]


def _key_rows(name: str, section: type[BaseModel]) -> Iterator[str]:
    from stablernn.data.options import option_descriptions
    from stablernn_cli.config_options import KEYS, flag

    flags = {key: f"`{flag(option)}`" for option, key in KEYS.items()}
    # With the extras, which hold the ranges of numbers.
    hints = get_type_hints(section, include_extras=True)
    descriptions = option_descriptions(section)
    rows = [
        (
            f"`{key}`",
            flags.get(f"{name}.{key}", ""),
            _allowed_values(hints[key]),
            _default(field),
            " ".join(descriptions[key].split()),
        )
        for key, field in section.model_fields.items()
    ]
    return _table(("key", "option", "values", "default", "meaning"), rows)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(row)} |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    # The empty default, which the introduction explains.
    if value is None or value == {}:
        return ""
    return "none" if value == () else _code(value)


def _allowed_values(hint: Any) -> str:
    """Return the values that a type allows, as text."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        # None is the empty default, which the page explains once.
        return " or ".join(_allowed_values(part) for part in parts if part is not type(None))
    if origin is Literal:
        return ", ".join(map(_code, parts))
    if origin is tuple:
        plurals = {str: "strings", float: "numbers"}
        return f"list of {plurals.get(parts[0]) or _allowed_values(parts[0])}"
    if origin is dict:
        return "names and values"
    if origin is Annotated:
        return _allowed_values(parts[0]) + _range(
            [rule for field in parts[1:] for rule in getattr(field, "metadata", ())]
        )
    return _TYPE_NAMES[hint]


def _range(rules: Iterable[object]) -> str:
    """Return the range of a number as text, empty without one."""
    formats = {"ge": "{:,} or more", "gt": "above {:,}", "le": "at most {:,}", "lt": "below {:,}"}
    bounds = [text.format(getattr(rule, key)) for rule in rules for key, text in formats.items() if hasattr(rule, key)]
    return f", {', '.join(bounds)}" if bounds else ""


def _code(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
