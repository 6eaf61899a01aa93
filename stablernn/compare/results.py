"""Results of a comparison: scores over seeds, ranks over problems, and their table in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import rankdata, wilcoxon

from stablernn.certificates.plain_words import format_size
from stablernn.training.evaluation.metric_catalog import direction

SIGNIFICANCE = 0.05
_STRENGTH = ("none", "bounded", "non-expansive", "contracting")
Rows = Sequence[Mapping[str, Any]]


def aggregate(runs: Rows, problems: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of runs.

    Args:
        runs: One row a run, with ``problem``, ``contender``, ``seed`` and the figures of the run.
        problems: Facts about each problem by its name: ``metric`` and, of further models, ``baselines``.

    Returns:
        ``problems``, for each its facts and ``rows`` of contenders, best first: ``score`` (``mean``, ``min``, ``max``),
        ``rank``, ``parameters``, ``cpu_seconds``, ``step_ms``, ``certificate``, ``failed`` (runs) and ``is_baseline``;
        ``ranks`` with the mean rank of each contender, see :func:`rank`; ``runs``.
    """
    tables = {name: {**facts, **_table(runs, name, facts)} for name, facts in problems.items()}
    return {"problems": tables, "ranks": rank(tables), "runs": list(runs)}


def _table(runs: Rows, problem: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    problem_runs = [run for run in runs if run["problem"] == problem]
    metric = facts["metric"]
    # All runs of a problem have the same splits.
    split = next((split for run in problem_runs for split in ("test", "validation") if split in run["metrics"]), "test")
    names = dict.fromkeys(run["contender"] for run in problem_runs)
    rows = [_row(name, [run for run in problem_runs if run["contender"] == name], split, metric) for name in names]
    rows += [
        {"name": name, "is_baseline": True, **_spread([figures["scores"][metric]]), **_costs([figures])}
        for name, figures in facts.get("baselines", {}).items()
    ]
    sign = -1 if direction(metric) == "higher" else 1
    # A contender without a score is behind all others.
    keys = [math.inf if row["score"] is None else sign * row["score"]["mean"] for row in rows]
    for row, place in zip(rows, rankdata(keys), strict=True):
        row["rank"] = float(place)
    rows.sort(key=lambda row: row["rank"])
    return {"split": split, "rows": rows, "trivial": _trivial(problem_runs, split, metric)}


def _row(name: str, runs: Rows, split: str, metric: str) -> dict[str, Any]:
    values = [run["metrics"][split][metric] for run in runs if split in run["metrics"]]
    certificates = [run["certificate"] for run in runs if run.get("certificate")]
    weakest = min(certificates, key=lambda entry: _STRENGTH.index(entry["kind"]), default=None)
    return {
        "name": name,
        "is_baseline": False,
        **_spread(values),
        **_costs(runs),
        "parameters": next((run["parameters"] for run in runs if "parameters" in run), None),
        "step_ms": _median([run["step_ms"] for run in runs if "step_ms" in run]),
        "certificate": weakest,
        "failed": sum("error" in run or bool(run.get("diverged")) for run in runs),
    }


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return {"score": None, "seeds": 0}
    return {
        "score": {"mean": float(np.mean(finite)), "min": min(finite), "max": max(finite)},
        "seeds": len(finite),
    }


def _costs(figures: Rows) -> dict[str, Any]:
    return {"cpu_seconds": _median([entry["cpu_seconds"] for entry in figures])}


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _trivial(runs: Rows, split: str, metric: str) -> dict[str, float]:
    """Return the scores of the baselines that every run has, such as ``ridge`` and ``majority``, by name."""
    for run in runs:
        scores = run["metrics"].get(split, {})
        return {name: entry[metric] for name, entry in scores.items() if isinstance(entry, Mapping) and metric in entry}
    return {}


def rank(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean rank of each contender and baseline over the problems that all of them have a rank on.

    Where all problems have one metric and there are two or more, pairs are compared by Wilcoxon's signed-rank test on
    the means over seeds, with Holm's correction (Demsar, JMLR 2006; Benavoli, Corani, Mangili, JMLR 2016).

    Returns:
        ``mean``, by name, the best first; ``problems``, their number; ``wilcoxon``, pairs with ``p`` and
        ``is_different`` at the level of :data:`SIGNIFICANCE` after the correction, empty where no test is made.
    """
    positions = [{row["name"]: row for row in table["rows"]} for table in tables.values()]
    names = [name for name in positions[0] if all(name in rows for rows in positions)] if positions else []
    mean = {name: float(np.mean([rows[name]["rank"] for rows in positions])) for name in names}
    mean = dict(sorted(mean.items(), key=lambda entry: entry[1]))
    metrics = {table["metric"] for table in tables.values()}
    pairs = []
    if len(positions) > 1 and len(metrics) == 1:
        scores = {name: [rows[name]["score"] for rows in positions] for name in mean}
        complete = [name for name in mean if None not in scores[name]]
        pairs = _holm(
            [(first, second, _p_value(scores[first], scores[second])) for first, second in combinations(complete, 2)]
        )
    return {"mean": mean, "problems": len(positions), "wilcoxon": pairs}


def _p_value(first: Rows, second: Rows) -> float:
    differences = np.array([a["mean"] - b["mean"] for a, b in zip(first, second, strict=True)])
    # The test is not defined where no pair differs.
    return float(tuple(wilcoxon(differences))[1]) if differences.any() else 1.0


def _holm(pairs: Sequence[tuple[str, str, float]]) -> list[dict[str, Any]]:
    """Return pairs with Holm's decision: from the smallest p on, until the first that is not significant."""
    ordered = sorted(pairs, key=lambda pair: pair[2])
    decisions, is_different = [], True
    for number, (first, second, p) in enumerate(ordered):
        is_different = is_different and p <= SIGNIFICANCE / (len(ordered) - number)
        decisions.append({"first": first, "second": second, "p": p, "is_different": is_different})
    return decisions


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of results as Markdown."""
    parts = []
    for name, table in results["problems"].items():
        parts += [f"## {name}", "", *_lines(columns(table), table_rows(table)), "", describe_trivial(table), ""]
    if len(results["problems"]) > 1:
        rows = [[name, f"{value:.2f}"] for name, value in results["ranks"]["mean"].items()]
        parts += [f"## Mean rank over {results['ranks']['problems']} data sets", "", *_lines(("", "rank"), rows), ""]
    return "\n".join(parts)


def columns(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the columns of a problem's table."""
    metric = f"{table['split']} {table['metric']}"
    return ("", metric, "range", "rank", "parameters", "CPU s", "ms a step", "proved", "failed")


def table_rows(table: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of a problem's table as text."""
    rows = []
    for row in table["rows"]:
        score = row["score"]
        rows.append(
            [
                row["name"],
                "-" if score is None else f"{score['mean']:.4g}",
                "-" if score is None or row["seeds"] < 2 else f"{score['min']:.4g} to {score['max']:.4g}",
                f"{row['rank']:g}",
                "-" if row.get("parameters") is None else f"{row['parameters']:,}",
                "-" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.3g}",
                "-" if row.get("step_ms") is None else f"{row['step_ms']:.3g}",
                _format_certificate(row.get("certificate")),
                str(row.get("failed") or ""),
            ]
        )
    return rows


def describe_trivial(table: Mapping[str, Any]) -> str:
    """Return a sentence with the baselines that every run has; empty if there are none."""
    if not table["trivial"]:
        return ""
    values = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in table["trivial"].items())
    return f"Baselines of every run: {values}."


def _format_certificate(certificate: Mapping[str, Any] | None) -> str:
    if certificate is None:
        return "-"
    rate = certificate["contraction_rate"]
    if certificate.get("radius") is not None:
        return f"{certificate['kind']} within {format_size(certificate['radius'])}"
    if certificate["kind"] == "none" or rate is None:
        return str(certificate["kind"])
    return f"{certificate['kind']}, rate {rate:.5g}"


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]
