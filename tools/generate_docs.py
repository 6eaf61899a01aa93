"""Generator of pages of ``docs/``, of tables in ``README.md`` and of the catalogs of cells and datasets.

Run as ``python tools/generate_docs.py`` (``make docs``); a test fails when a file is out of date.
"""

from __future__ import annotations

import inspect
import json
import statistics
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reproductions import STORED, results_page
from stablernn.data import DatasetInfo, dataset_info, list_datasets
from stablernn.extensions import PAPERS_DATASETS, dataset_entry_points
from stablernn.training.evaluation.metric_catalog import TASKS, Task, metrics_of
from stablernn.training.tune.space import (
    CELL_OPTIONS,
    CONTEXT_FACTORS,
    CONTEXT_LENGTH,
    GENERAL,
    OVERLAPS,
    PATCH_SIZE,
    PATCH_STRIDE,
    STRIDE_FACTORS,
)
from stablernn_cli.main import app

if TYPE_CHECKING:
    from stablernn.cells import CellInfo

ROOT = Path(__file__).parents[1]

_COMMANDS_HEAD = """# Command line

Written by `make docs` from the help texts; do not edit by hand.

Exit codes: 0 done; 1 the work failed or its content is bad; 2 the command line is wrong (an unknown command, option,
cell, dataset or reference); 3 a check refused (`registry verify`, a refused alias); 130 stopped by Ctrl-C. Errors are
one sentence on stderr. With `--json` a command prints one JSON document on stdout and nothing else there; progress and
notes go to stderr.
"""


_CELLS_HEAD = """# Cells

Written by `make docs` from the catalog; do not edit by hand. `stablernn cells list` and `stablernn cells show KEY`
print the same. What "stable" means for each of them, with conditions and counterexamples, is in
[stability.md](stability.md); where other code differs, in [compared.md](compared.md).

Every cell trains, exports to ONNX and TorchScript, and is served. Vectors are columns, `.*` is the elementwise product,
`N` is `hidden_size`. Each cell has two presets of options and training settings: `practical`, the default, tuned for
this library, and `paper`, the published values where they are known. Options are set by
`--set model.cell_options.NAME=VALUE`. [A package of your own](#a-cell-in-a-package-of-your-own) can add cells.
"""


_CELLS_TAIL = '''
## A cell in a package of your own

A package that names its class in the entry-point group `stablernn.cells` has a cell that trains, is certified, exports
and is listed like those above, in every command and process of the environment. The name of the entry point is the key.

```toml
# pyproject.toml
[project]
name = "leaky-cells"
version = "1.0"
dependencies = ["stablernn"]

[project.entry-points."stablernn.cells"]
leaky = "leaky_cells:LeakyCell"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
```

```python
# leaky_cells.py
import numpy as np
import torch
from torch import Tensor, nn

import stablernn as srn
from stablernn.bounds.lure import LureSystem


@srn.register_cell(
    "leaky",
    title="leaky integrator whose recurrent matrix has a norm of at most gain",
    paper="none",
    year=2026,
    guarantee="contracting by construction for gain below 1",
    family="general",
    equation="h <- (1 - leak) h + leak tanh(W h + U x + b), W = gain V / max(1, ||V||_F)",
    training={"practical": {"lr": 0.01, "schedule": "one-cycle", "epochs": 30, "batch_size": 32}},
)
class LeakyCell(srn.StableCell):
    def __init__(self, input_size: int, hidden_size: int, *, leak: float = 0.25, gain: float = 0.9) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 < leak <= 1:
            raise ValueError(f"leak must be above 0 and at most 1, got {leak}.")
        self.leak, self.gain = leak, gain
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)

    def materialize(self) -> tuple[Tensor, ...]:
        """The matrices of a step, once for a sequence."""
        return (self.gain * self.weight_hh / torch.linalg.matrix_norm(self.weight_hh).clamp_min(1),)

    def drive(self, x: Tensor) -> Tensor:
        """The part of a step that does not depend on the state, for all steps at once."""
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def step(self, weights, state, drive, dt=None):
        (h,), (w,) = state, weights
        return (h + self.leak * (torch.tanh(nn.functional.linear(h, w) + drive) - h),)

    def lure_system(self) -> LureSystem:
        """The step as h <- F h + G tanh(V h + U x + b), of which a bound is proved; without it, none is."""
        (w,) = self.materialize()
        unit, leak = np.eye(self.hidden_size), float(np.float32(self.leak))
        return LureSystem((1 - leak) * unit, leak * unit, *(t.detach().double().numpy() for t in (w, self.weight_ih)))
```

    pip install ./leaky-cells
    stablernn cells show leaky
    stablernn train --data digits --cell leaky --set model.cell_options.leak=0.5

Options are the keyword arguments of the class; a `ValueError` for a value is shown as it is. Runs and versions name the
package, and need it to be trained further, certified and recomputed; exported graphs run without it. In a program, a
class is registered when its module is imported, with or without an entry point. [architecture.md](architecture.md)
lists what else a cell can declare.
'''


def cells_catalog() -> str:
    """Return the file with the facts about all cells, which ``stablernn cells`` reads."""
    rows = [info.facts() for info in sorted(_own_cells(), key=lambda info: info.key)]
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


def datasets_catalog() -> str:
    """Return the file with the facts about the named datasets of the library, which ``stablernn data list`` reads."""
    others = dataset_entry_points()
    return _datasets(info for info in list_datasets() if info.key not in others)


def papers_datasets_catalog() -> str:
    """Return the file with the facts about the named datasets of the papers."""
    return _datasets(map(dataset_info, sorted(PAPERS_DATASETS)))


def _datasets(infos: Iterable[DatasetInfo]) -> str:
    return json.dumps([info.facts() for info in infos], indent=1, ensure_ascii=False) + "\n"


def cells_page() -> str:
    """Return the page of all cells."""
    return "".join([_CELLS_HEAD, "\n", *_cells_overview(), *_cell_sections(), _CELLS_TAIL])


def _cells_overview() -> Iterator[str]:
    rows = [
        (
            f"[`{info.key}`](#{info.key})",
            str(info.year),
            info.family,
            "yes" if info.cell.takes_dt else "",
            ", ".join(info.exports),
            info.guarantee,
        )
        for info in _by_year()
    ]
    return _table(("cell", "year", "family", "irregular time", "exports to", "guarantee"), rows)


def _cell_sections() -> Iterator[str]:
    for info in _by_year():
        yield f"\n## `{info.key}`\n\n{info.title[0].upper()}{info.title[1:]}. {info.paper}.\n\n"
        yield f"    {info.equation}\n\nGuarantee: {info.guarantee}.\n\n"
        presets = [info.options("practical"), info.options("paper")]
        settings = [dict(info.training.get(preset, {})) for preset in ("practical", "paper")]
        rows = [(f"`{name}`", *(_value(preset.get(name)) for preset in presets)) for name in presets[0]]
        names = dict.fromkeys([*settings[0], *settings[1]])
        rows += [(f"training `{name}`", *(_value(preset.get(name)) for preset in settings)) for name in names]
        yield from _table(("option", "practical", "paper"), rows)
        if info.paper_source:
            yield f"\nSource of `paper`: {info.paper_source}\n"


def _value(value: object) -> str:
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _by_year() -> list[CellInfo]:
    return sorted(_own_cells(), key=lambda info: (info.year, info.key))


def _own_cells() -> list[CellInfo]:
    """Return the cells of this library, without those of other packages in the environment."""
    from stablernn.cells import OWN_PACKAGE, cell_info, list_cells

    return [info for info in map(cell_info, list_cells()) if info.package == OWN_PACKAGE]


def commands_page() -> str:
    """Return the page of all commands."""
    return _COMMANDS_HEAD + "".join(_command_sections(typer.main.get_command(app), "stablernn"))


def _command_sections(command: Any, path: str) -> Iterator[str]:
    yield f"\n## `{path}`\n\n"
    yield f"{_help(command)}\n"
    yield from _parameters(command)
    commands: dict[str, Any] = getattr(command, "commands", {})
    if commands:
        yield "\n| command | |\n| --- | --- |\n"
        for name, child in commands.items():
            yield f"| `{path} {name}` | {_help(child).splitlines()[0]} |\n"
    for name, child in commands.items():
        # Groups first list their commands, which follow with a section each.
        yield from _command_sections(child, f"{path} {name}")


def _help(command: Any) -> str:
    # Paragraphs on one line, as Markdown wants them.
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    lines = [" ".join(paragraph.split("\n")) for paragraph in paragraphs]
    return "\n\n".join(_example(line) for line in lines)


def _example(line: str) -> str:
    example = line.removeprefix("Example: ")
    # Indented by four spaces, which Markdown shows as code.
    return line if example == line else f"    {example}"


def _parameters(command: Any) -> Iterator[str]:
    rows = [_option_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        yield "\n| option | default | |\n| --- | --- | --- |\n"
        yield from rows


def _option_row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.display_name_raw
    default = parameter.default
    # A flag's default is off; a computed default is stated in the text.
    default_text = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    requirement = "required" if parameter.required else default_text
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    return f"| `{name}` | {requirement} | {text} |\n"


def readme(text: str) -> str:
    """Return the README with its tables regenerated."""
    tables = {"cells": _cells_table(), "commands": _commands_table(), "measured": _measured_table()}
    return _fill_tables(text, tables)


def serving(text: str) -> str:
    """Return docs/serving.md with its table of settings regenerated."""
    return _fill_tables(text, {"settings": _settings_table()})


def evaluation(text: str) -> str:
    """Return docs/evaluation.md with its tables of metrics regenerated."""
    return _fill_tables(text, {f"metrics of {task}": _metrics_table(task) for task in TASKS})


def tuning(text: str) -> str:
    """Return docs/tuning.md with its tables of ranges regenerated."""
    return _fill_tables(text, {"general space": _general_space_table(), "cell options": _cell_options_table()})


def _fill_tables(text: str, tables: Mapping[str, Iterable[str]]) -> str:
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        # The comments that mark a table stay; everything between them is replaced.
        before, begin_mark, remainder = text.partition(begin)
        _, end_mark, after = remainder.partition(end)
        if not (begin_mark and end_mark):
            raise ValueError(f"No marks for the table '{name}': {begin.strip()} ... {end}. Put them into the page.")
        text = before + begin + "".join(lines) + end + after
    return text


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        cells = [cell.replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |\n"


def _settings_table() -> Iterator[str]:
    from stablernn_server import Settings

    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, ()) else str(field.default)
        rows.append((f"`STABLERNN_{name.upper()}`", field.description or "", default))
    return _table(("variable", "meaning", "default"), rows)


def _metrics_table(task: Task) -> Iterator[str]:
    rows = [
        (f"`{metric.name}`", metric.formula, metric.unit, metric.better or "", metric.undefined, metric.source)
        for metric in metrics_of(task)
    ]
    return _table(("metric", "formula", "unit", "better", "0/0 and x/0", "source"), rows)


def _general_space_table() -> Iterator[str]:
    rows = [(f"`{parameter.name}`", str(parameter.values), parameter.source) for parameter in GENERAL]
    strides, contexts = (
        ", ".join(f"{factor:g}" for factor in factors) for factors in (STRIDE_FACTORS, CONTEXT_FACTORS)
    )
    rows += [
        (f"`{PATCH_STRIDE}`", f"{strides} times the recommended one", "ours; of a classification"),
        (f"`{PATCH_SIZE}`", f"{OVERLAPS} times the stride", "ours; of a classification"),
        (f"`{CONTEXT_LENGTH}`", f"{contexts} times the recommended one", "ours; of a forecast, as far as series go"),
    ]
    return _table(("setting", "values", "source"), rows)


def _cell_options_table() -> Iterator[str]:
    rows = [
        (
            f"[`{cell}`](cells.md#{cell})",
            f"`{parameter.name}`",
            f"{parameter.values}{', as a share of the units' if parameter.is_share else ''}",
            parameter.source,
        )
        for cell, parameters in CELL_OPTIONS.items()
        for parameter in parameters
    ]
    return _table(("cell", "option", "values", "source"), rows)


def _cells_table() -> Iterator[str]:
    rows = [(f"[`{info.key}`](docs/cells.md#{info.key})", info.title, info.guarantee) for info in _by_year()]
    return _table(("cell", "what", "guarantee"), rows)


def _commands_table() -> Iterator[str]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    rows = [(f"`{name}`", _help(child).splitlines()[0]) for name, child in commands.items()]
    return _table(("command", "what"), rows)


def _measured_table() -> Iterator[str]:
    """Yield a row for each cell and dataset: median, range, parameters and seconds over the seeds of the benchmark."""
    runs = json.loads((ROOT / "benchmarks/results/defaults.json").read_text(encoding="utf-8"))["runs"]
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for run in runs:
        groups.setdefault((run["data"], run["cell"], run["figure"]), []).append(run)
    rows = []
    for (data, cell, figure), seeds in groups.items():
        values = [run["value"] for run in seeds]
        spread = f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        seconds = statistics.median(run["seconds"] for run in seeds)
        rows.append((data, f"`{cell}`", figure, spread, f"{seeds[0]['parameters']:,}", f"{seconds:.0f}"))
    return _table(("data", "cell", "figure", "test, median (range)", "parameters", "training seconds"), rows)


_CONFIGURATION_HEAD = """# Configuration

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
    parts = [
        _CONFIGURATION_HEAD,
        f"are {', '.join(f'`{key}` {value}' for key, value in fallback.items())}.\n",
        _BEFORE_TABLES,
    ]
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
    from stablernn_cli.config_options import flag, setting_options

    flags = {option.key: f"`{flag(name)}`" for name, option in setting_options().items()}
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


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    # The empty default, which the introduction explains.
    if value is None or value == {}:
        return ""
    return "none" if value == () else _value(value)


def _allowed_values(hint: Any) -> str:
    """Return the values that a type allows, as text."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        # None is the empty default, which the page explains once.
        return " or ".join(_allowed_values(part) for part in parts if part is not type(None))
    if origin is Literal:
        return ", ".join(map(_value, parts))
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


WHOLE: Mapping[str, Callable[[], str]] = {
    "docs/cli.md": commands_page,
    "docs/cells.md": cells_page,
    "docs/configuration.md": configuration_page,
    "stablernn/cells/catalog.json": cells_catalog,
    "docs/results.md": lambda: results_page(ROOT / STORED),
    "stablernn/data/named/catalog.json": datasets_catalog,
    "papers/stablernn_papers/datasets/catalog.json": papers_datasets_catalog,
}
"""Generated files, by their path."""
FILLED: Mapping[str, Callable[[str], str]] = {
    "README.md": readme,
    "docs/evaluation.md": evaluation,
    "docs/serving.md": serving,
    "docs/tuning.md": tuning,
}
"""Pages written by hand, of which only the tables are generated."""


def generated(name: str) -> str:
    """Return the content that a file of the repository should have."""
    return WHOLE[name]() if name in WHOLE else FILLED[name]((ROOT / name).read_text(encoding="utf-8"))


def main() -> None:
    """Write all generated files of the repository."""
    for name in (*WHOLE, *FILLED):
        (ROOT / name).write_text(generated(name), encoding="utf-8")


if __name__ == "__main__":
    main()
