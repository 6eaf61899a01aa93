"""The page of all reproduced tables, from their stored results. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.data.messages import pluralize
from stablernn.errors import CheckpointError
from stablernn_papers.progress import current_runs, describe_optional_runs, describe_state, progress
from stablernn_papers.rendering import (
    TITLES,
    format_count,
    format_figure,
    format_length,
    format_number,
    format_published,
    format_range,
    markdown_row,
)
from stablernn_papers.results_file import read_results
from stablernn_papers.statements import VERDICTS, judge_statements
from stablernn_papers.stored_results import picture_name
from stablernn_papers.table import FULL, Column, DataSet, Row, Table, matches_print
from stablernn_papers.tables import TABLES

_HEAD = """# Results

Written by `make docs` from the `results.json` of each table below `papers/stablernn_papers/results`; do not edit by
hand. What each table measures, and how to run it, is in [reproduce.md](reproduce.md).

`full`: all runs of the protocol; `partial`: a share of the training, of the data or of the seeds, so that nothing is
compared with the paper but what the columns say; `not run`: no stored result. Where data sets differ, each has its own
state; those that the papers do not have count for themselves alone. "Ours" is the mean over the seeds with
the smallest and the largest, at the weights that are best by validation; "difference" is ours minus the published
figure, in the same unit. Hours are the seconds of training times its threads, on a machine that was not idle; of runs
on a GPU they are those of the GPU.
"""

_STATEMENTS_HEAD = """
## Statements of the papers

Sentences of the papers in our words, judged by the stored results: `held` where every comparison that the sentence
needs was made and came out so, `not held` where one did not, `not tested` where one is missing and none contradicts it.
One mean is better than another if it is so by more than the larger of both ranges over the seeds. Rows are compared
where the worse one was not trained for a smaller share of its published training; a limit is judged after whole
trainings alone. The last column also says which rows are missing, and where runs were cut short or are single ones.

"""

_HEADER = ("row", "figure", "published", "ours", "difference", "parameters, published", "ours", "done", "hours")

Results = Mapping[str, Any]


def results_page(folder: Path) -> str:
    """Return the page.

    Args:
        folder: Folder with one folder a table.

    Raises:
        CheckpointError: If stored results were edited, or are not of the full protocol.
    """
    stored = {key: read_results(folder / key / "results.json") for key in TABLES}
    for key, results in stored.items():
        if results is not None and (results["table"], results["protocol"]["name"]) != (key, FULL):
            raise CheckpointError(f"'{folder / key / 'results.json'}' is not a result of the full protocol of '{key}'.")
    parts = [_HEAD, "\n", *_overview(stored), _STATEMENTS_HEAD, *_statement_lines(stored)]
    for key, table in TABLES.items():
        parts += _table_section(table, stored[key])
    return "".join(parts)


def _overview(stored: Mapping[str, Results | None]) -> Iterator[str]:
    yield _line(("table", "of", "state", "runs", "rows", "data sets", "seeds", "epochs"))
    yield _line(["---"] * 8)
    for key, table in TABLES.items():
        results = stored[key]
        done = ["-"] * 5
        if results is not None:
            shares = progress(table, FULL, current_runs(table, FULL, results["runs"]))
            done = [f"{shares[name][0]} of {shares[name][1]}" for name in ("runs", "rows", "data", "seeds")]
            epochs = "-" if shares["epochs"] is None else f"{100 * shares['epochs']:.3g} %"
            done.append(f"{epochs} or more" if shares["epochs"] not in (None, 1.0) else epochs)
            done[0] = "; ".join([done[0], *describe_optional_runs(table, results)])
        yield _line((f"[`{key}`](#{key})", table.source, _state(table, results), *done))


def _statement_lines(stored: Mapping[str, Results | None]) -> Iterator[str]:
    judged = judge_statements(stored)
    verdicts = Counter(entry["verdict"] for entry in judged)
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS)
    yield f"Of {len(judged)} statements: {counts}.\n\n"
    yield _line(("table", "statement", "source", "verdict", "figures"))
    yield _line(["---"] * 5)
    for entry in judged:
        link = f"[`{entry['table']}`](#{entry['table']})"
        yield _line((link, entry["statement"], entry["source"], entry["verdict"], entry["figures"]))


def _state(table: Table, results: Results | None) -> str:
    return "not run" if results is None else describe_state(table, results)


def _table_section(table: Table, results: Results | None) -> Iterator[str]:
    yield f"\n## {table.key}\n\n"
    yield f"{table.title[0].upper()}{table.title[1:]}. {table.paper}, {table.source}.\n\n"
    if results is None:
        yield f"Not run: `stablernn reproduce {table.key}`.\n"
    else:
        yield f"{_machine(results)}\n"
    for view in results["views"] if results is not None else ("",):
        rows = [] if results is None else results["views"][view]
        for data in table.data:
            yield from _data_section(table, data, rows, _section_title(table, data, view, results))
    if results is not None and table.has_picture:
        yield f"\n![{table.summary or table.title}](images/{picture_name(table.key)})\n"
    for sentence in _footnotes(table, results):
        yield f"\n{sentence}\n"


def _section_title(table: Table, data: DataSet, view: str, results: Results | None) -> str:
    parts = [data.title] if len(table.data) > 1 else []
    if results is not None and len(results["views"]) > 1:
        parts.append(TITLES[view].format(accuracy=f"{results['match']['validation_accuracy']:.4f}"))
    return ". ".join(parts)


def _machine(results: Results) -> str:
    machine = results["environment"]
    runs = results["runs"]
    commits = sorted({run["commit"] or "unknown" for run in runs}) or [machine["commit"] or "unknown"]
    names = []
    for commit in commits:
        name, _, dirty = commit.partition("-")
        names.append(name[:12] + (" with uncommitted changes" if dirty else ""))
    hours = sum(run["seconds"] * run["threads"] for run in runs) / 3600
    threads = sorted({run["threads"] for run in runs})
    devices = sorted({run["device"] for run in runs})
    return (
        f"Measured {machine['time'][:10]}; trained at commit {', '.join(names)}; torch {machine['packages']['torch']}, "
        f"{machine['platform']}, {', '.join(devices)}, threads {', '.join(map(str, threads))}; {len(runs)} runs, "
        f"{hours:.2f} hours."
    )


def _data_section(table: Table, data: DataSet, view_rows: Sequence[Mapping[str, Any]], title: str) -> Iterator[str]:
    measured = {row["row"]: row for row in view_rows if row["data"] == data.key}
    if not measured and data.is_optional:
        return
    if title:
        yield f"\n**{title}**\n"
    yield "\n" + _line(_HEADER) + _line(["---"] * len(_HEADER))
    for row in table.rows_on(data):
        yield from _row_lines(table, row, data, measured.get(row.key))


def _row_lines(table: Table, row: Row, data: DataSet, measured: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a line a column; what is of the whole row stands in the first one."""
    published = table.published(row, data)
    for number, column in enumerate(table.columns_of(data)):
        figure = None if measured is None else measured["figures"].get(column.figure)
        ours = format_figure(column, figure)
        spread = format_range(column, figure)
        if spread:
            ours = f"{ours} ({spread}; {len(measured['seeds']) if measured else 0} seeds)"
        elif figure is not None:
            ours = f"{ours} ({pluralize(len(figure['values']), 'seed')})"
        cells = [
            column.title,
            format_published(column, published.get(column.key)),
            ours,
            _difference(column, figure, published),
        ]
        whole = ["", "", "", ""] if number else _row_cells(row, data, measured)
        yield _line([f"`{row.key}`" if not number else "", *cells, *whole])


def _row_cells(row: Row, data: DataSet, measured: Mapping[str, Any] | None) -> list[str]:
    printed = row.published_parameters.get(data.key, "-")
    if measured is None:
        return [printed, "-", "-", "-"]
    count = format_count(measured["parameters"])
    if printed != "-" and not matches_print(measured["parameters"], printed):
        count = f"{count}: {row.reason}"
    length = format_length(measured["length"])
    if measured["partial_data"]:
        length = f"{length}, with a part of the data"
    return [printed, count, length, f"{measured['cpu_hours']:.2f}"]


def _difference(column: Column, figure: Mapping[str, Any] | None, published: Mapping[str, float]) -> str:
    if figure is None or column.key not in published:
        return "-"
    unit = 100 if column.percent else 1
    difference = unit * figure[column.statistic] - published[column.key]
    text = format_number(Column(column.title, column.figure, decimals=column.decimals), abs(difference))
    return f"{'-' if difference < 0 else '+'}{text}"


def _footnotes(table: Table, results: Results | None) -> Iterator[str]:
    if results is not None:
        stale = len(results["runs"]) - len(current_runs(table, FULL, results["runs"]))
        if stale:
            yield f"{stale} of the runs have settings that the table no longer has, and do not count as done."
    yield from table.remarks
    if table.unspecified:
        yield f"Not in the paper, so that they were chosen here: {table.unspecified}."


def _line(cells: Sequence[str]) -> str:
    return markdown_row(cells) + "\n"
