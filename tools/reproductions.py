"""Results of `stablernn reproduce` in this repository: they are stored, merged, drawn, and written into a page.

    python tools/reproductions.py store reproductions/copy reproductions/mnist-pixel
    python tools/reproductions.py draw robustness

``store`` writes the results of a folder to ``papers/stablernn_papers/results/TABLE``, with their picture in
``docs/images``; then `make docs` writes the page. ``draw`` draws the pictures of stored results again.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json
from stablernn.data.messages import pluralize
from stablernn.errors import CheckpointError, ConfigError, StableRNNError
from stablernn_papers.kinds import kind_of
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
from stablernn_papers.reproduction import table_rows
from stablernn_papers.results import (
    RunDocument,
    current_runs,
    describe_optional_runs,
    describe_state,
    missing_runs,
    progress,
    read_results,
    state_of,
    write_results,
)
from stablernn_papers.statements import VERDICTS, judge_statements
from stablernn_papers.table import FULL, Column, DataSet, Row, Table, matches_print
from stablernn_papers.tables import TABLES, published_table

STORED = Path("papers") / "stablernn_papers" / "results"
"""Folder of the results of all tables, relative to the repository."""
PICTURES = Path("docs") / "images"
"""Folder of their pictures, relative to the repository."""

Results = Mapping[str, Any]

ROOT = Path(__file__).parents[1]


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """Run a command line, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    storing = commands.add_parser("store", help="store results of folders in the repository")
    storing.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="such as reproductions/copy")
    drawing = commands.add_parser("draw", help="draw the pictures of stored results again")
    drawing.add_argument("tables", nargs="+", metavar="TABLE")
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "draw":
            for table in arguments.tables:
                print(*draw(table, root), sep="\n")
        else:
            for folder in arguments.folders:
                print(*store(folder, root), sep="\n")
    except (StableRNNError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def store(folder: Path, root: Path) -> list[str]:
    """Store the results of a reproduction in a checkout; stored runs that the folder lacks stay.

    The folder may be in use by a process that trains.

    Args:
        folder: Folder of the reproduction, such as ``reproductions/copy``.
        root: The repository.

    Returns:
        A sentence about each file that was written.

    Raises:
        ConfigError: If there are no results of the full protocol, they were made from uncommitted changes, or lack runs
            that their comparison needs.
        CheckpointError: If a file was edited, or cannot be read.
    """
    table = _table_of(folder)
    results = read_results(folder / "results.json")
    if results is None:
        raise ConfigError(f"'{folder}' has no results yet. Run 'stablernn reproduce {table.key}' to its end.")
    commits = {f"{run['row']}, seed {run['seed']}": run["commit"] for run in results["runs"]}
    _check_commits(folder, {**commits, "results.json": results["environment"]["commit"]})
    path = root / STORED / table.key / "results.json"
    stored = read_results(path)
    if stored is not None:
        results = merge_results(table, stored, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    results = write_results(path, results)
    return [f"stored {pluralize(len(results['runs']), 'run')}, {results['state']}: {path}", *draw(table.key, root)]


def draw(key: str, root: Path) -> list[str]:
    """Draw the picture of the stored results of a table, if it has one.

    Returns:
        A sentence about the picture; none without a picture.

    Raises:
        ConfigError: If the repository has no results of the table.
        CheckpointError: If they were edited.
    """
    table = published_table(key)
    path = root / STORED / key / "results.json"
    results = read_results(path)
    if results is None:
        raise ConfigError(f"There are no results of '{key}' to draw: '{path}' does not exist.")
    if not table.has_picture:
        return []
    picture = root / PICTURES / picture_name(key)
    kind_of(table).draw(picture, table, results)
    return [f"drew {picture}"]


def picture_name(key: str) -> str:
    """Return the name of the picture of a table in :data:`PICTURES`."""
    return f"reproduce_{key}.png"


def _table_of(folder: Path) -> Table:
    path = folder / "protocol.json"
    if not path.is_file():
        raise ConfigError(f"'{folder}' is no folder of a reproduction: it has no protocol.json.")
    protocol = read_json(path)
    if protocol["name"] != FULL:
        raise ConfigError(
            f"'{folder}' is the {protocol['name']} reproduction of '{protocol['table']}', which compares nothing and "
            "is not stored. Run it without --short."
        )
    return published_table(protocol["table"])


def _check_commits(folder: Path, commits: Mapping[str, str | None]) -> None:
    """Refuse what was made by code that no commit has, given the commit of each run and of the results."""
    unclean = [name for name, commit in commits.items() if commit is None or commit.endswith("-dirty")]
    if unclean:
        raise ConfigError(
            f"'{folder}' was made by code that no commit has: {'; '.join(unclean[:5])}. Commit the changes and run "
            "'stablernn reproduce' again, for runs that are named here in another folder."
        )


def merge_results(table: Table, stored: Results, results: dict[str, Any]) -> dict[str, Any]:
    """Add the runs of stored results that others lack, and compute everything that depends on the runs again.

    Args:
        table: The table.
        stored: Results of the full protocol; of its runs, those count whose settings the table still has.
        results: Later results, whose runs replace the stored ones of the same row, data set and seed.

    Raises:
        ConfigError: If the table compares runs with each other, so that they have to be made in one folder.
    """
    later = {_identity(run): run for run in results["runs"]}
    added = [run for run in current_runs(table, FULL, stored["runs"]) if _identity(run) not in later]
    if not added:
        return results
    if table.kind == "robustness":
        names = "; ".join(f"{run['row']}, seed {run['seed']}" for run in added)
        raise ConfigError(
            f"The new results of '{table.key}' lack runs that the stored ones have: {names}. It compares all runs at "
            "one accuracy, so that they have to be made in one folder: run these too, then store the results."
        )
    order = {(data.key, row.key): n for n, (data, row) in enumerate((d, r) for d in table.data for r in table.rows)}
    runs = sorted([*added, *results["runs"]], key=lambda run: (order[run["data"], run["row"]], run["seed"]))
    merged = {
        **results,
        "missing": missing_runs(table, FULL, runs),
        "progress": progress(table, FULL, runs),
        "runs": runs,
        "views": {view: table_rows(table, FULL, runs, view) for view in results["views"]},
    }
    return {**merged, "state": state_of(table, merged)}


def _identity(run: RunDocument) -> tuple[str, str, int]:
    return run["row"], run["data"], run["seed"]


_HEAD = """# Results

Written from the `results.json` of each table below `papers/stablernn_papers/results` when the site is built.
What each table measures, and how to run it, is in [results of the papers](../background/papers.md).

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
One mean is better than another if it is so by more than the larger of both ranges over the seeds. Only whole trainings
on whole data sets are judged; shorter ones are drawn as curves below. The last column also says which rows are missing,
and where runs are single ones.

"""

_HEADER = ("row", "figure", "published", "ours", "difference", "parameters, published", "ours", "done", "hours")


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


if __name__ == "__main__":
    sys.exit(main())
