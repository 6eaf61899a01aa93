"""Builder of the documentation as a site: ``python tools/build_site.py`` (``make docs``) writes ``build/site``.

The pages of ``docs/`` and the studies beside the benchmarks are gathered in ``build/docs`` with the reference, which is
written from the code and not stored; Zensical builds the site from there and fails on a warning. ``--serve`` shows it.
"""

from __future__ import annotations

import argparse
import functools
import html
import http.server
import inspect
import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import catalogs
from reproductions import STORED, results_page
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
from stablernn_server.app import ROUTERS, build_document
from stablernn_server.schemas.common import ERRORS

if TYPE_CHECKING:
    from stablernn.cells import CellInfo

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
STUDIES = "benchmarks"
PYTHON = {
    "Models and training": (
        "stablernn",
        "StableClassifier StableForecaster Classifier Forecaster SequencePredictor StableRNN",
    ),
    "Functions": ("stablernn", "certify export from_torch create_cell list_cells register_cell"),
    "Certificates": ("stablernn.certificates.certificate", "Certificate"),
    "Cells": ("stablernn", "StableCell"),
    "Registry": ("stablernn_registry", "Registry Version"),
    "Runtime": ("stablernn_runtime", "ServedModel"),
    "Client": ("stablernn_client", "Client AsyncClient"),
}
"""The Python interface: its parts, and for each a package with the names that are documented."""

GREEK = {name: f"&{name};" for name in ("alpha", "beta", "gamma", "zeta", "theta", "mu", "nu")}
"""Names of the equations that are Greek letters; ``mu`` and ``nu`` stand for themselves."""


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference, by their name."""
    return {
        "commands": commands_page(),
        "settings": settings_page(),
        "server": "".join(_settings_table()),
        "http": http_page(),
        "python": python_page(),
        "cells": cells_page(),
        "metrics": "".join(f"\n## {task}\n\n{''.join(_metrics_table(task))}" for task in TASKS),
        "datasets": datasets_page(),
        "results": results_page(ROOT / STORED).replace("](images/", "](../images/"),
    }


def equation(text: str) -> str:
    """Return an equation of the catalog of cells as HTML, a line for each of its clauses."""
    return '<div class="equation">' + "<br>".join(_clause(clause) for clause in text.split("; ")) + "</div>\n"


def _clause(text: str) -> str:
    text = html.escape(text).replace("&lt;-", "←").replace(".*", "⊙").replace("&lt;=", "≤").replace("+-", "±")
    text = re.sub(r"\^(-?\w+|\([^)]*\))", r"<sup>\1</sup>", text)
    text = re.sub(r"\b([A-Za-z])_(\{[^}]*\}|\w)(?!\w)", lambda m: f"{m[1]}<sub>{m[2].strip('{}')}</sub>", text)
    text = re.sub(r"\b(" + "|".join(GREEK) + r")\b", lambda match: GREEK[match[1]], text)
    # Single letters are variables.
    return re.sub(r"(?<![\w&<>/;])([A-Za-z])(?![\w;'])", r"<i>\1</i>", text)


def datasets_page() -> str:
    """Return the table of named data sets."""
    infos = json.loads(catalogs.datasets_catalog()) + json.loads(catalogs.papers_datasets_catalog())
    rows = [(f"`{info['name']}`", info["task"], info["title"], info["splits"], info["licence"]) for info in infos]
    head = "# Named data sets\n\n`stablernn data list` shows which are present, `data fetch` loads them.\n\n"
    return head + "".join(_table(("name", "task", "content", "splits", "license"), rows))


def python_page() -> str:
    """Return the page on which mkdocstrings writes the docstrings of the public names."""
    parts = ["# Python\n"]
    for title, (package, names) in PYTHON.items():
        parts += [
            f"\n## {title}\n",
            *(f"\n::: {package}.{name}\n    options: {{heading_level: 3}}\n" for name in names.split()),
        ]
    return "".join(parts)


def http_page() -> str:
    """Return the page of all routes and bodies, from the OpenAPI document."""
    routes = FastAPI(title="stablernn", responses=ERRORS)
    for router in ROUTERS:
        routes.include_router(router)
    document = build_document(routes, needs_token=True)
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).extend(_operation(path, method, operation))
    parts = []
    for tag, lines in groups.items():
        parts += [f"\n## {tag[0].upper()}{tag[1:]}\n", *lines]
    parts.append("\n## Errors\n\n")
    errors = [(str(status), answer["description"]) for status, answer in sorted(ERRORS.items())]
    parts += _table(("status", "meaning"), errors)
    parts.append("\n## Bodies\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _schema(name, schema)
    return "".join(parts)


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"\n### `{method.upper()} {path}`\n\n{operation.get('description', '')}\n"
    content = operation.get("requestBody", {}).get("content", {})
    bodies = [_type(body["schema"]) for body in content.values() if "schema" in body]
    answers = operation["responses"].get("200", {}).get("content", {}).values()
    answer = [_type(body["schema"]) for body in answers if body.get("schema")]
    if bodies:
        yield f"\nBody: {', '.join(dict.fromkeys(bodies))}\n"
    if answer:
        yield f"\nAnswer: {', '.join(dict.fromkeys(answer))}\n"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"\n### {name}\n\n{schema.get('description', '')}\n\n"
    required = schema.get("required", ())
    rows = [
        (f"`{key}`", _type(field), "required" if key in required else _default(field), field.get("description", ""))
        for key, field in schema.get("properties", {}).items()
    ]
    if rows:
        yield from _table(("key", "type", "default", "meaning"), rows)


def _default(field: dict[str, Any]) -> str:
    return "" if field.get("default") is None else f"`{json.dumps(field['default'])}`"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    choices = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    if choices:
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    return str(schema.get("type", "any"))


def commands_page() -> str:
    """Return the page of all commands."""
    return "".join(_command_sections(typer.main.get_command(app), "stablernn"))


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


def cells_page() -> str:
    """Return the page of all cells."""
    return "".join([*_cells_overview(), *_cell_sections()])


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
        yield f"{equation(info.equation)}\nGuarantee: {info.guarantee}.\n\n"
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
    return sorted(catalogs.own_cells(), key=lambda info: (info.year, info.key))


_TYPE_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "`true`, `false`"}


def settings_page() -> str:
    """Return the page of all settings."""
    from stablernn.training.settings.config import DataConfig, ModelConfig, TaskConfig, TrainingConfig
    from stablernn.training.settings.defaults import FALLBACK, FALLBACK_LR, FALLBACK_OPTIMIZER

    fallback = {**FALLBACK, "lr": FALLBACK_LR[FALLBACK_OPTIMIZER]}
    values = ", ".join(f"`{key}` {value}" for key, value in fallback.items())
    parts = [f"A cell without recommendations takes {values}.\n"]
    for title, rows in (
        ("To classify", _classification_rows()),
        ("To forecast", _forecast_rows()),
    ):
        parts += [f"\n### {title}\n\n", *_table(("what", "value", "why"), rows)]
    # Defaults and descriptions come from the models that validate the settings, so they cannot be out of date.
    sections: dict[str, type[BaseModel]] = {
        "data": DataConfig,
        "task": TaskConfig,
        "model": ModelConfig,
        "training": TrainingConfig,
    }
    for name, section in sections.items():
        parts += [f"\n## `{name}`\n\n{(section.__doc__ or '').strip()}\n\n", *_key_rows(name, section)]
    parts += ["\n## Ranges of `tune`\n\n", *_general_space_table(), "\n", *_cell_options_table()]
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
            _default_value(field),
            " ".join(descriptions[key].split()),
        )
        for key, field in section.model_fields.items()
    ]
    return _table(("key", "option", "values", "default", "meaning"), rows)


def _default_value(field: FieldInfo) -> str:
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


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        cells = [cell.replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |\n"


def gather() -> None:
    """Write all pages into the folder from which the site is built."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE)
    for name, text in reference_pages().items():
        page = SOURCE / "reference" / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        # Some pages begin with a part that is written by hand.
        intro = page.read_text(encoding="utf-8") + "\n" if page.exists() else ""
        page.write_text(intro + text, encoding="utf-8")
    (SOURCE / "studies").mkdir()
    for study in sorted((ROOT / STUDIES).glob("*.md")):
        shutil.copy(study, SOURCE / "studies")
    for page in SOURCE.rglob("*.md"):
        # In the repository, studies stand beside the scripts that measured them.
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(f"../../{STUDIES}/", "../studies/").replace("../docs/", "../"), encoding="utf-8")


def main() -> None:
    """Build the site, and serve it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the site on this port of the loopback address")
    arguments = parser.parse_args()
    gather()
    build = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    subprocess.run(build, cwd=ROOT, check=True)
    print(f"Wrote {SITE / 'index.html'}.")
    if arguments.serve is not None:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=SITE)
        with http.server.ThreadingHTTPServer(("127.0.0.1", arguments.serve), handler) as server:
            print(f"http://127.0.0.1:{server.server_port}/ shows it; Ctrl-C stops.", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main()
