"""Text of reproduced tables: header, lines and notes, and a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn_papers.results import describe_state
from stablernn_papers.table import FULL, Column, Table

TITLES = {
    "best": "The weights that are best by validation",
    "measured": "As measured, without training",
    "whole": "After all epochs: the weights that are best by validation",
    "matched": "At equal clean accuracy: the weights of the first epoch with a validation accuracy of {accuracy}",
}
_EMPTY_CELLS = ("", "", "", "", "")

Results = Mapping[str, Any]
ViewRows = Sequence[Mapping[str, Any]]


def sections(table: Table, results: Results) -> list[tuple[str, tuple[Column, ...], ViewRows]]:
    """Return title, columns and rows of each table that is printed: one a view and data set."""
    data_sets = table.data_sets(results["protocol"]["name"])
    printed: list[tuple[str, tuple[Column, ...], ViewRows]] = []
    for view, rows in results["views"].items():
        for data in data_sets:
            data_rows = [row for row in rows if row["data"] == data.key]
            if data_rows:
                view_title = title(view, results)
                section_title = view_title if len(data_sets) == 1 else f"{data.title}. {view_title}"
                printed.append((section_title, table.columns_of(data), data_rows))
    return printed


def header(columns: Sequence[Column]) -> list[str]:
    """Return the titles of the columns of :func:`lines`."""
    return ["row", "", *(column.title for column in columns), "proved", "hidden", "parameters", "epoch", "done"]


def lines(columns: Sequence[Column], rows: ViewRows, *, narrow: bool = False) -> list[list[str]]:
    """Return a line with the measured figures of each model and one with those of the paper, ``-`` if it has none.

    Args:
        columns: Columns of the figures.
        rows: Rows of one view and data set.
        narrow: Whether the range over the seeds is on a separate line instead of after the mean.
    """
    table_lines = []
    for row in rows:
        cells = [(column, row["figures"].get(column.figure)) for column in columns]
        properties = [
            " or ".join(row["kinds"]) or "-",
            format_count(row["hidden_size"]),
            format_count(row["parameters"]),
            _format_span(row["epochs"]),
            format_length(row["length"]),
        ]
        means = [format_figure(column, figure) for column, figure in cells]
        ranges = [format_range(column, figure) for column, figure in cells]
        has_ranges = any(ranges)
        if not narrow:
            means = [f"{mean} ({spread})" if spread else mean for mean, spread in zip(means, ranges, strict=True)]
        table_lines.append([row["row"], "here", *means, *properties])
        if narrow and has_ranges:
            table_lines.append(["", "range", *(spread or "-" for spread in ranges), *_EMPTY_CELLS])
        published = row["published"] or {}
        printed = [format_published(column, published.get(column.key)) for column in columns]
        counts = ["", "", row["published_parameters"] or "", "", ""]
        table_lines.append(["", "paper", *printed, *counts])
    return table_lines


def title(view: str, results: Results) -> str:
    """Return the title of a view."""
    match = results.get("match")
    return TITLES[view].format(accuracy="" if match is None else f"{match['validation_accuracy']:.4f}")


def notes(table: Table, results: Results) -> list[str]:
    """Return the sentences that explain the table, one per note."""
    sentences = [] if results["state"] == FULL else [_incomplete_note(table, results)]
    seeds = sorted({run["seed"] for run in results["runs"]})
    spread = "mean (smallest to largest) over the seeds" if len(seeds) > 1 else "the seed"
    sentences.append(f"Here: {spread} {', '.join(map(str, seeds))}. Paper: {results['source']} as printed.")
    sentences += _robustness_notes(results)
    if results["protocol"]["lost"]:
        sentences.append(f"Not in the paper, so that they were chosen here: {results['protocol']['lost']}.")
    sentences += table.remarks
    left_out = [
        f"{row['row']}, seed {seed}" for row in results["views"].get("matched", ()) for seed in row["seeds_left_out"]
    ]
    if left_out:
        sentences.append(
            f"Never at a validation accuracy of {results['match']['validation_accuracy']:.4f}: {'; '.join(left_out)}."
        )
    return sentences


def _robustness_notes(results: Results) -> list[str]:
    sentences = []
    protocol = results["protocol"]
    attacks, headline = protocol["attacks"], protocol["headline"]
    if attacks is not None:
        sentences.append(
            f"PGD changes each pixel by up to {headline['pgd']:g} of the pixel range; DF2 and DFinf are the shares "
            f"that DeepFool does not flip by a change of at most {headline['deepfool_l2']:g} in the 2-norm and "
            f"{headline['deepfool_linf']:g} a pixel. {attacks['sequences']} test images are attacked, by "
            f"{attacks['steps']} steps; clean is of all test images. Within its radius, in the 2-norm of all pixels, "
            "no change flips a label: that is proved."
        )
    if protocol["curvature"] is not None:
        sentences.append(
            "lmax, trace and condition (lmax over the modulus of the smallest eigenvalue) are of the loss on "
            f"{protocol['curvature']['sequences']} training images."
        )
    return sentences


_MOST_MISSING = 12
"""Names of missing runs that are listed; a table may have hundreds."""


def _incomplete_note(table: Table, results: Results) -> str:
    if results["protocol"]["name"] != FULL:
        return "SHORT: the scaled-down protocol, which shows that it works and compares nothing."
    missing, done = results["missing"], results["progress"]
    sentences = []
    if done["epochs"] is not None and done["epochs"] < 1:
        sentences.append(f"some runs did {100 * done['epochs']:.3g} % of the published training")
    if done["partial_data"]:
        sentences.append("some runs had a part of their data set")
    if missing:
        more = len(missing) - _MOST_MISSING
        names = "; ".join(missing[:_MOST_MISSING]) + (f"; and {more} more" if more > 0 else "")
        sentences.append(f"missing: {names}")
    state = describe_state(table, results)
    summary = "not all of the protocol is done" if state == "partial" else state
    return f"PARTIAL: {'; '.join([summary, *sentences])}."


def page(table: Table, results: Results) -> str:
    """Return all views as Markdown."""
    page_lines = []
    for section_title, columns, rows in sections(table, results):
        page_lines += [f"**{section_title}**", ""]
        page_lines += [markdown_row(header(columns)), markdown_row(["---"] * len(header(columns)))]
        page_lines += [markdown_row([f"`{line[0]}`" if line[0] else "", *line[1:]]) for line in lines(columns, rows)]
        page_lines.append("")
    return "\n".join([*page_lines, *_paragraphs(notes(table, results))])


def _paragraphs(sentences: Sequence[str]) -> list[str]:
    # Markdown needs an empty line between paragraphs.
    return [line for sentence in sentences for line in (sentence, "")]


def _format_span(epochs: Sequence[int]) -> str:
    if not epochs:
        return "-"
    return f"{min(epochs)} to {max(epochs)}" if min(epochs) < max(epochs) else str(epochs[0])


def format_count(number: int | None) -> str:
    """Return a whole number with commas, ``-`` for none."""
    return "-" if number is None else f"{number:,}"


def format_length(length: Mapping[str, Any] | None) -> str:
    """Return how much of the published training was done, such as ``20 of 100 epochs``."""
    return "-" if length is None else f"{length['done']:,} of {length['published']:,} {length['unit']}"


def format_published(column: Column, figure: float | None) -> str:
    """Return a published figure in the digits of its column, ``-`` for none."""
    if figure is None:
        return "-"
    return f"{figure:g}" if column.decimals is None else f"{figure:.{column.decimals}f}"


def format_figure(column: Column, figure: Mapping[str, Any] | None) -> str:
    """Return the statistic of a figure that a column shows, ``-`` for none."""
    return "-" if figure is None else format_number(column, figure[column.statistic])


def format_range(column: Column, figure: Mapping[str, Any] | None) -> str:
    """Format the smallest and the largest value of several seeds; empty for one seed and for an extreme value."""
    if figure is None or len(figure["values"]) < 2 or column.statistic != "mean":
        return ""
    return f"{format_number(column, figure['min'])} to {format_number(column, figure['max'])}"


def format_number(column: Column, value: float) -> str:
    """Return a measured value in the digits of a column."""
    shown = 100 * value if column.percent else value
    return f"{shown:.3g}" if column.decimals is None else f"{shown:.{column.decimals}f}"


def markdown_row(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    # A vertical bar would end the cell.
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
