"""Text of reproduced tables: header, lines and notes, and a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn.reproduce.table import FULL, Column, Table

TITLES = {
    "whole": "After all epochs: the weights that are best by validation",
    "matched": "At equal clean accuracy: the weights of the first epoch with a validation accuracy of {accuracy}",
}
_FIRST_COLUMNS = (Column("clean", "accuracy", percent=True),)
_EMPTY_CELLS = ("", "", "", "")
_LAST_COLUMNS = (Column("median radius", "median_radius"),)


def header(table: Table) -> list[str]:
    """Return the titles of the columns of :func:`lines`."""
    titles = [column.title for column in _columns(table)]
    return ["cell", "", *titles, "proved", "hidden", "parameters", "epoch"]


def lines(table: Table, rows: Sequence[Mapping[str, Any]], *, narrow: bool = False) -> list[list[str]]:
    """Return a line with the measured figures of each model and one with those of the paper, ``-`` if it has none.

    Args:
        table: The table.
        rows: Rows of one view.
        narrow: Whether the range over the seeds is on a separate line instead of after the mean.
    """
    table_lines = []
    for row in rows:
        cells = [(column, row["figures"].get(column.figure)) for column in _columns(table)]
        epochs = _format_span(row["epochs"])
        properties = [" or ".join(row["kinds"]) or "-", str(row["hidden_size"]), f"{row['parameters']:,}", epochs]
        means = [_format_mean(column, figure) for column, figure in cells]
        ranges = [_format_range(column, figure) for column, figure in cells]
        has_ranges = any(ranges)
        if not narrow:
            means = [f"{mean} ({spread})" if spread else mean for mean, spread in zip(means, ranges, strict=True)]
        table_lines.append([row["cell"], "here", *means, *properties])
        if narrow and has_ranges:
            table_lines.append(["", "range", *(spread or "-" for spread in ranges), *_EMPTY_CELLS])
        published = row["published"] or {}
        printed = [f"{published[c.figure]:g}" if c.figure in published else "-" for c in _columns(table)]
        table_lines.append(["", "paper", *printed, *_EMPTY_CELLS])
    return table_lines


def title(view: str, results: Mapping[str, Any]) -> str:
    """Return the title of a view."""
    return TITLES[view].format(accuracy=f"{results['match']['validation_accuracy']:.4f}")


def notes(results: Mapping[str, Any]) -> list[str]:
    """Return the sentences that explain the table, one per note."""
    protocol = results["protocol"]
    sentences = [] if results["state"] == FULL else [_incomplete_note(protocol["name"], results["missing"])]
    seeds = sorted({run["seed"] for run in results["runs"]})
    spread = "mean (smallest to largest) over the seeds" if len(seeds) > 1 else "the seed"
    sentences.append(f"Here: {spread} {', '.join(map(str, seeds))}. Paper: {results['source']} as printed.")
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
    if protocol["lost"]:
        sentences.append(f"Not in the paper, so that they were chosen here: {protocol['lost']}.")
    left_out = [f"{row['cell']}, seed {seed}" for row in results["views"]["matched"] for seed in row["seeds_left_out"]]
    if left_out:
        sentences.append(
            f"Never at a validation accuracy of {results['match']['validation_accuracy']:.4f}: {'; '.join(left_out)}."
        )
    return sentences


def _incomplete_note(protocol: str, missing: Sequence[str]) -> str:
    if protocol != FULL:
        return "SHORT: the scaled-down protocol, which shows that it works and compares nothing."
    return f"PARTIAL: not all of the protocol is done; missing: {'; '.join(missing)}."


def page(table: Table, results: Mapping[str, Any]) -> str:
    """Return both views as Markdown."""
    page_lines = []
    for view, rows in results["views"].items():
        page_lines += [f"**{title(view, results)}**", ""]
        page_lines += [_markdown_row(header(table)), _markdown_row(["---"] * len(header(table)))]
        page_lines += [_markdown_row([f"`{line[0]}`" if line[0] else "", *line[1:]]) for line in lines(table, rows)]
        page_lines.append("")
    return "\n".join([*page_lines, *_paragraphs(notes(results))])


def _paragraphs(sentences: Sequence[str]) -> list[str]:
    # Markdown needs an empty line between paragraphs.
    return [line for sentence in sentences for line in (sentence, "")]


def _columns(table: Table) -> tuple[Column, ...]:
    return (*_FIRST_COLUMNS, *table.columns, *(_LAST_COLUMNS if table.full.attacks is not None else ()))


def _format_span(epochs: Sequence[int]) -> str:
    if not epochs:
        return "-"
    return f"{min(epochs)} to {max(epochs)}" if min(epochs) < max(epochs) else str(epochs[0])


def _format_mean(column: Column, figure: Mapping[str, Any] | None) -> str:
    return "-" if figure is None else _format_number(column, figure["mean"])


def _format_range(column: Column, figure: Mapping[str, Any] | None) -> str:
    """Format the smallest and the largest value of several seeds; empty if there is one seed."""
    if figure is None or len(figure["values"]) < 2:
        return ""
    return f"{_format_number(column, figure['min'])} to {_format_number(column, figure['max'])}"


def _format_number(column: Column, value: float) -> str:
    return f"{100 * value:.1f}" if column.percent else f"{value:.3g}"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
