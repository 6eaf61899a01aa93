"""A fit as HTML for notebooks: learning curve, certificate, notes on the data."""

from __future__ import annotations

import base64
import html
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablernn.data.notes import data_counts, format_counts
from stablernn.estimators.fitted_run import FittedRun

_DIGITS = 4
"""Digits of a score."""


def fit_as_html(run: FittedRun) -> str:
    """Return the curve of the validation metric, or of the loss, and a table of facts of a run."""
    rows = {**_scores(run.summary), **_proof(run.summary), **_notes(run.data)}
    table = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows.items()
    )
    return f"<div>{_curve(run)}<table>{table}</table></div>"


def _curve(run: FittedRun) -> str:
    """Return the figure of a run as an image; nothing for a registry version, which has no epochs."""
    if not run.history:
        return ""
    # Imported here: matplotlib takes a second to import, and most fits are never shown.
    from stablernn.training.plots.figures import draw_curves

    records = [dict(record) for record in run.history]
    with tempfile.TemporaryDirectory(prefix="stablernn-curve-") as folder:
        draw_curves(Path(folder), records, _headline(run), int(run.summary["best_epoch"]), "")
        figures = [Path(folder) / name for name in ("metric.png", "loss.png")]
        image = next(figure for figure in figures if figure.is_file()).read_bytes()
    return f"<img alt='learning curve' style='max-width:480px' src='data:image/png;base64,{_base64(image)}'>"


def _headline(run: FittedRun) -> str:
    """Return the metric that chose the epoch; an empty text where nothing was held out."""
    # The checkpoint of the best weights names it.
    return str(json.loads(run.files["checkpoints/best.json"])["metric"])


def _scores(summary: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    for split, scores in summary.get("metrics", {}).items():
        numbers = {name: score for name, score in scores.items() if isinstance(score, float | int)}
        rows[f"{split} scores"] = ", ".join(f"{name} {score:.{_DIGITS}g}" for name, score in numbers.items())
    if "seconds" in summary:
        rows["trained"] = f"{summary['epochs']} epochs, {summary['steps']} steps, {summary['seconds']:.1f} s"
    if summary.get("warnings"):
        rows["warnings"] = " ".join(summary["warnings"])
    return rows


def _proof(summary: Mapping[str, Any]) -> dict[str, str]:
    certificate = summary.get("certificate")
    if not certificate:
        return {}
    rate = certificate.get("contraction_rate")
    return {"proved": certificate["kind"] if rate is None else f"{certificate['kind']}, at a rate of {rate:.5f} a step"}


def _notes(data: Mapping[str, Any]) -> dict[str, str]:
    counts = data_counts(data.get("notes") or {})
    return {"data": format_counts(counts)} if counts else {}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
