"""A reproduced table as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn.reproduce.table import FULL, Column, Table

TITLES = {
    "whole": "After all epochs: the weights that are best by validation",
    "matched": "At equal clean accuracy: the weights of the first epoch with a validation accuracy of {accuracy}",
}
_BEFORE = (Column("clean", "accuracy", percent=True),)
_NOTHING = ("", "", "", "")
_BEHIND = (Column("median radius", "median_radius"),)


def header(table: Table) -> list[str]:
    """The titles of :func:`lines`."""
    titles = [column.title for column in _columns(table)]
    return ["cell", "", *titles, "proved", "hidden", "parameters", "epoch"]


def lines(table: Table, rows: Sequence[Mapping[str, Any]], *, narrow: bool = False) -> list[list[str]]:
    """For each model what was found and, below it, what the paper prints, ``-`` where it has nothing.

    Args:
        table: Whose rows these are.
        rows: Those of one view.
        narrow: Whether the range over the seeds has a line of its own, and does not stand behind the mean.
    """
    shown = []
    for row in rows:
        found = [(column, row["figures"].get(column.figure)) for column in _columns(table)]
        epochs = _span(row["epochs"])
        about = [" or ".join(row["kinds"]) or "-", str(row["hidden_size"]), f"{row['parameters']:,}", epochs]
        means = [_mean(column, figure) for column, figure in found]
        ranges = [_range(column, figure) for column, figure in found]
        several = any(ranges)
        if not narrow:
            means = [f"{mean} ({range_})" if range_ else mean for mean, range_ in zip(means, ranges, strict=True)]
        shown.append([row["cell"], "here", *means, *about])
        if narrow and several:
            shown.append(["", "range", *(range_ or "-" for range_ in ranges), *_NOTHING])
        published = row["published"] or {}
        printed = [f"{published[c.figure]:g}" if c.figure in published else "-" for c in _columns(table)]
        shown.append(["", "paper", *printed, *_NOTHING])
    return shown


def title(view: str, results: Mapping[str, Any]) -> str:
    return TITLES[view].format(accuracy=f"{results['match']['validation_accuracy']:.4f}")


def notes(results: Mapping[str, Any]) -> list[str]:
    """Sentences that belong to the table wherever it is shown."""
    protocol = results["protocol"]
    found = [] if results["state"] == FULL else [_short(protocol["name"], results["missing"])]
    seeds = sorted({run["seed"] for run in results["runs"]})
    spread = "mean (smallest to largest) over the seeds" if len(seeds) > 1 else "the seed"
    found.append(f"Here: {spread} {', '.join(map(str, seeds))}. Paper: {results['source']} as printed.")
    attacks, headline = protocol["attacks"], protocol["headline"]
    if attacks is not None:
        found.append(
            f"PGD changes each pixel by up to {headline['pgd']:g} of the pixel range; DF2 and DFinf are the shares "
            f"that DeepFool does not flip by a change of at most {headline['deepfool_l2']:g} in the 2-norm and "
            f"{headline['deepfool_linf']:g} a pixel. {attacks['sequences']} test images are attacked, by "
            f"{attacks['steps']} steps; clean is of all test images. Within its radius, in the 2-norm of all pixels, "
            "no change flips a label: that is proved."
        )
    if protocol["curvature"] is not None:
        found.append(
            "lmax, trace and condition (lmax over the modulus of the smallest eigenvalue) are of the loss on "
            f"{protocol['curvature']['sequences']} training images."
        )
    if protocol["lost"]:
        found.append(f"Not in the paper, so that they were chosen here: {protocol['lost']}.")
    left_out = [f"{row['cell']}, seed {seed}" for row in results["views"]["matched"] for seed in row["seeds_left_out"]]
    if left_out:
        found.append(
            f"Never at a validation accuracy of {results['match']['validation_accuracy']:.4f}: {'; '.join(left_out)}."
        )
    return found


def _short(protocol: str, missing: Sequence[str]) -> str:
    if protocol != FULL:
        return "SHORT: the scaled-down protocol, which shows that it works and compares nothing."
    return f"PARTIAL: not all of the protocol is done; missing: {'; '.join(missing)}."


def page(table: Table, results: Mapping[str, Any]) -> str:
    """Both views as Markdown."""
    text = []
    for view, rows in results["views"].items():
        text += [f"**{title(view, results)}**", ""]
        text += [_line(header(table)), _line(["---"] * len(header(table)))]
        text += [_line([f"`{line[0]}`" if line[0] else "", *line[1:]]) for line in lines(table, rows)]
        text.append("")
    return "\n".join([*text, *_paragraphs(notes(results))])


def _paragraphs(sentences: Sequence[str]) -> list[str]:
    return [line for sentence in sentences for line in (sentence, "")]


def _columns(table: Table) -> tuple[Column, ...]:
    return (*_BEFORE, *table.columns, *(_BEHIND if table.full.attacks is not None else ()))


def _span(epochs: Sequence[int]) -> str:
    if not epochs:
        return "-"
    return f"{min(epochs)} to {max(epochs)}" if min(epochs) < max(epochs) else str(epochs[0])


def _mean(column: Column, found: Mapping[str, Any] | None) -> str:
    return "-" if found is None else _number(column, found["mean"])


def _range(column: Column, found: Mapping[str, Any] | None) -> str:
    """The smallest and the largest of several seeds; empty where there is one."""
    if found is None or len(found["values"]) < 2:
        return ""
    return f"{_number(column, found['min'])} to {_number(column, found['max'])}"


def _number(column: Column, value: float) -> str:
    return f"{100 * value:.1f}" if column.percent else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
