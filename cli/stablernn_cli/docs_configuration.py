"""``docs/configuration.md``: every key of the settings, from their docstrings, below a head on where they come from."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_HEAD = """# Configuration

Written by `make docs` from the code; do not edit by hand.

A run has one tree of settings with the sections `data`, `task`, `model` and `training`. They are set in three places;
what comes later wins:

1. `--config FILE`, a YAML file with these sections,
2. options of the command line, which stand for the most used keys,
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

An option and a `--set` that say different things of one key are an error, and so is a key that does not exist. `1e-3`
is a number; `yes`, `no`, `on` and `off` are words. `null` takes back what a file says, where the default is empty.
`epochs` takes the place of a file's `max_steps`, and the other way round.

**An empty default, None in the text, means "what is recommended for this cell and this data".** A run stores what it
took in the `config.yaml` of its directory; what is empty there, too, is off or belongs to another task.
`stablernn data check SOURCE` says what would be taken before anything is trained, `stablernn cells show CELL` what the
cell recommends.

## What is recommended

Learning rate, optimizer, schedule and the like come from the cell ([cells.md](cells.md)); where it says nothing they
"""

_BETWEEN = """
The rest goes by task and data, with the preset `practical`. Formulas and sources are in
[classification.md](classification.md) and [forecasting.md](forecasting.md), what comes of it beside other methods in
[accuracy.md](accuracy.md).
"""

_BEHIND = """
The gate is not a setting: it is there with a linear skip and a validation split. A recursive head goes sample by
sample: `standard` scaling, no patches, no skip, unless they are set.

The preset `paper` recommends none of this: one sample a step, the last output, standard scores, no skip, no
augmentation, no warm-up, and the cell's own length of training. The task `predict-next` has recommendations of its own
([predict_next.md](predict_next.md)).
"""

_WORDS: dict[Any, str] = {str: "word", int: "whole number", float: "number", bool: "`true`, `false`"}


def configuration_page() -> str:
    """The page of all settings."""
    from stablernn.training.settings.config import DataConfig, ModelConfig, TaskConfig, TrainingConfig
    from stablernn.training.settings.defaults import FALLBACK, FALLBACK_LR, FALLBACK_OPTIMIZER

    fallback = {**FALLBACK, "lr": FALLBACK_LR[FALLBACK_OPTIMIZER]}
    parts = [_HEAD, f"are {', '.join(f'`{key}` {value}' for key, value in fallback.items())}.\n", _BETWEEN]
    for title, rows in (("To classify", _to_classify()), ("To forecast", _to_forecast())):
        parts += [f"\n### {title}\n\n", *_table(("what", "value", "why"), rows)]
    parts.append(_BEHIND)
    sections: dict[str, type[BaseModel]] = {
        "data": DataConfig,
        "task": TaskConfig,
        "model": ModelConfig,
        "training": TrainingConfig,
    }
    for name, section in sections.items():
        parts += [f"\n## `{name}`\n\n{(section.__doc__ or '').strip()}\n\n", *_keys(name, section)]
    return "".join(parts)


def _to_classify() -> list[tuple[str, str, str]]:
    from stablernn.training.tasks.classify import (
        AUGMENTATION,
        HEAD_DROPOUT,
        LABEL_SMOOTHING,
        LEAST_STEPS,
        PATCH_STEPS,
        PATCHES,
    )

    return [
        (
            "`patch_stride`",
            f"the longest training sequence over {PATCHES}, rounded",
            f"the layers take about {PATCHES} steps, however long a sequence is: gradients reach its beginning, and "
            "training is as much faster",
        ),
        ("`patch_size`", f"{PATCH_STEPS} strides", "neighbouring steps share samples, so that no shape is cut in two"),
        ("`patch_embedding`", "`hidden_size`", "the cell sees features of a patch and not its raw samples"),
        (
            "`readout`",
            "`all`",
            "what tells classes apart may lie at the end (last), everywhere (mean) or in one place (max)",
        ),
        ("`head_dropout`", f"{HEAD_DROPOUT}", "the head reads three numbers a unit, of few sequences"),
        ("`scaling`", "`standard`", "how large values are is often what tells classes apart"),
        ("`label_smoothing`", f"{LABEL_SMOOTHING}", "few labels are learned with too much certainty otherwise"),
        (
            ", ".join(f"`{key}`" for key in AUGMENTATION),
            ", ".join(f"{value}" for value in AUGMENTATION.values()),
            "a small set is learned by heart otherwise; `time_warp` is 0 where the time of steps is known",
        ),
        ("`batch_size`", "the cell's, at most a quarter of the sequences, at least 8", "small sets need steps"),
        ("`epochs`", f"the cell's, at least as many as make {LEAST_STEPS} steps", "likewise"),
        ("`calibrate`", "true: one temperature", "networks are surer than they are right"),
    ]


def _to_forecast() -> list[tuple[str, str, str]]:
    from stablernn.training.tasks.forecast import MAX_STEPS, MIN_STEPS, MOST_WINDOWS_A_STEP, PATCHES

    return [
        (
            "`scaling`",
            "`context`; `standard` where a `model.season` of yours does not fit twice into the context",
            "series differ in level and spread, and drift",
        ),
        ("`season`", "the data's where it fits twice into the context, else 1", "its change is the unit of errors"),
        (
            "`log`",
            "true where all values are positive and the largest is 10 times the smallest or more",
            "levels that differ by factors have seasons that do so, too",
        ),
        ("`skip`", "`linear` with the scaling `context`", "a linear map of the context is hard to beat on many series"),
        (
            "`patch_size`, `patch_stride`",
            f"the divisor of the context nearest to the context over {PATCHES}, both",
            "as above",
        ),
        ("`readout`", "`last`", "where a series is now matters most for what comes next"),
        ("`warm_up`", "one context", "a stream is longer than a context; its state must be one that training knew"),
        ("`skip_lr`", "a thirtieth of `lr`", "the skip begins at its solution"),
        (
            "`batch_size`",
            f"the cell's, or a thirty-second of the windows where that is more, at most {MOST_WINDOWS_A_STEP}",
            "overlapping windows differ little",
        ),
        (
            "`epochs`",
            f"5, but from {MIN_STEPS} to {MAX_STEPS:,} steps",
            "likewise",
        ),
        ("gate", "on", "layers that are not better than the linear skip by more than noise do harm later"),
        ("`calibrate`", "true: conformal offsets", "an interval of 80 % is to hold 80 %"),
    ]


def _keys(name: str, section: type[BaseModel]) -> Iterator[str]:
    from stablernn_cli.commands.train import KEYS

    flags = {key: f"`--{option.replace('_', '-')}`" for option, key in KEYS.items()}
    hints = get_type_hints(section, include_extras=True)
    rows = [
        (
            f"`{key}`",
            flags.get(f"{name}.{key}", ""),
            _values(hints[key]),
            _default(field),
            " ".join((field.description or "").split()),
        )
        for key, field in section.model_fields.items()
    ]
    return _table(("key", "option", "values", "default", "meaning"), rows)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(row)} |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value is None or value == {}:
        return ""
    return "none" if value == () else _code(value)


def _values(hint: Any) -> str:
    """What a setting may be, in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_values(part) for part in parts if part is not type(None))
    if origin is Literal:
        return ", ".join(map(_code, parts))
    if origin is tuple:
        words = {str: "words", float: "numbers"}
        return f"list of {words.get(parts[0]) or _values(parts[0])}"
    if origin is dict:
        return "names and values"
    if origin is Annotated:
        return _values(parts[0]) + _range([rule for field in parts[1:] for rule in getattr(field, "metadata", ())])
    return _WORDS[hint]


def _range(rules: Iterable[object]) -> str:
    """Between which values a number lies."""
    words = {"ge": "{:,} or more", "gt": "above {:,}", "le": "at most {:,}", "lt": "below {:,}"}
    said = [text.format(getattr(rule, key)) for rule in rules for key, text in words.items() if hasattr(rule, key)]
    return f", {', '.join(said)}" if said else ""


def _code(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
