"""Generator of pages of ``docs/``, of tables in ``README.md`` and of the catalogs of cells and datasets.

Run as ``python -m stablernn_cli.docs`` in the repository (``make docs``); a test fails when a file is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

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
from stablernn_cli.docs_configuration import configuration_page
from stablernn_cli.main import app

if TYPE_CHECKING:
    from stablernn.cells import CellInfo

_HEAD = """# Command line

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
    """Return the file with the facts about all named datasets, which ``stablernn data list`` reads."""
    from stablernn.data import list_datasets
    from stablernn.extensions import dataset_entry_points

    others = dataset_entry_points()
    rows = [info.facts() for info in list_datasets() if info.key not in others]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


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


def render() -> str:
    """Return the page of all commands."""
    return _HEAD + "".join(_command_sections(typer.main.get_command(app), "stablernn"))


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


def readme(text: str, root: Path) -> str:
    """Return the README with its tables regenerated.

    Args:
        text: The current README.
        root: The repository.
    """
    tables = {"cells": _cells_table(), "commands": _commands_table(), "measured": _measured_table(root)}
    return _fill_tables(text, "README.md", tables)


def serving(text: str) -> str:
    """Return docs/serving.md with its table of settings regenerated."""
    return _fill_tables(text, "docs/serving.md", {"settings": _settings_table()})


def evaluation(text: str) -> str:
    """Return docs/evaluation.md with its tables of metrics regenerated."""
    return _fill_tables(text, "docs/evaluation.md", {f"metrics of {task}": _metrics_table(task) for task in TASKS})


def tuning(text: str) -> str:
    """Return docs/tuning.md with its tables of ranges regenerated."""
    return _fill_tables(
        text, "docs/tuning.md", {"general space": _general_space_table(), "cell options": _cell_options_table()}
    )


def accuracy(text: str, root: Path) -> str:
    """Return docs/accuracy.md with its section on the UCR and UEA archives regenerated.

    Args:
        text: The current page.
        root: The repository.
    """
    file = root / "benchmarks" / "results" / "archive.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return _fill_tables(text, "docs/accuracy.md", {"archive": _archive_page(root).archive_section(results)})


def _archive_page(root: Path) -> Any:
    """Import the module that renders the section: it belongs to a benchmark, whose folder is no package."""
    folder = str(root / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("archive_page")
    finally:
        sys.path.remove(folder)


def _fill_tables(text: str, page: str, tables: Mapping[str, Iterable[str]]) -> str:
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        # The comments that mark a table stay; everything between them is replaced.
        before, begin_mark, remainder = text.partition(begin)
        _, end_mark, after = remainder.partition(end)
        if not (begin_mark and end_mark):
            raise ValueError(f"{page} has no marks for the table '{name}': {begin.strip()} ... {end}.")
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


def _measured_table(root: Path) -> Iterator[str]:
    """Yield a row for each cell and dataset: median, range, parameters and seconds over the seeds of the benchmark."""
    runs = json.loads((root / "benchmarks/results/defaults.json").read_text(encoding="utf-8"))["runs"]
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


def main() -> None:
    """Write all generated files of the repository."""
    root = Path(__file__).parents[2]
    (root / "docs" / "cli.md").write_text(render(), encoding="utf-8")
    (root / "docs" / "cells.md").write_text(cells_page(), encoding="utf-8")
    (root / "stablernn" / "cells" / "catalog.json").write_text(cells_catalog(), encoding="utf-8")
    (root / "stablernn" / "data" / "named" / "catalog.json").write_text(datasets_catalog(), encoding="utf-8")
    (root / "docs" / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    # Pages written by hand, of which only the tables are generated.
    serving_page = root / "docs" / "serving.md"
    serving_page.write_text(serving(serving_page.read_text(encoding="utf-8")), encoding="utf-8")
    evaluation_page = root / "docs" / "evaluation.md"
    evaluation_page.write_text(evaluation(evaluation_page.read_text(encoding="utf-8")), encoding="utf-8")
    tuning_page = root / "docs" / "tuning.md"
    tuning_page.write_text(tuning(tuning_page.read_text(encoding="utf-8")), encoding="utf-8")
    accuracy_page = root / "docs" / "accuracy.md"
    accuracy_page.write_text(accuracy(accuracy_page.read_text(encoding="utf-8"), root), encoding="utf-8")
    readme_page = root / "README.md"
    readme_page.write_text(readme(readme_page.read_text(encoding="utf-8"), root), encoding="utf-8")


if __name__ == "__main__":
    main()
