"""Results of a comparison: scores over seeds, ranks over problems, their table in Markdown and LaTeX, and a figure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata, wilcoxon

from stablernn.certificates.plain_words import format_size
from stablernn.errors import DataError
from stablernn.plotting import BLACK, _save, new_figure
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.tasks.task import SampleErrors

SIGNIFICANCE = 0.05
_STRENGTH = ("none", "bounded", "non-expansive", "contracting")
Rows = Sequence[Mapping[str, Any]]


def aggregate(runs: Rows, problems: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of runs.

    Args:
        runs: One row a run, with ``problem``, ``contender``, ``seed`` and the figures of the run.
        problems: Facts about each problem by its name: ``metric`` and, of further models, ``baselines``.

    Returns:
        ``problems``, for each its facts and ``rows`` of contenders, best first: ``score`` (``mean``, ``std``, ``min``,
        ``max``), ``rank``, ``parameters``, ``cpu_seconds``, ``step_ms``, ``certificate``, ``failed`` (runs) and
        ``is_baseline``;
        ``ranks`` with the mean rank of each contender, see :func:`rank`; ``runs``.
    """
    tables = {name: {**facts, **_table(runs, name, facts)} for name, facts in problems.items()}
    return {"problems": tables, "ranks": rank(tables), "runs": list(runs)}


def _table(runs: Rows, problem: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    problem_runs = [run for run in runs if run["problem"] == problem]
    metric = facts["metric"]
    # All runs of a problem have the same splits.
    splits = ("test", "validation", "cross_validation")
    split = next((split for run in problem_runs for split in splits if split in run["metrics"]), "test")
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
        "score": {
            "mean": float(np.mean(finite)),
            # Of a single seed there is none.
            "std": float(np.std(finite, ddof=1)) if len(finite) > 1 else None,
            "min": min(finite),
            "max": max(finite),
        },
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
        means = {name: np.array([each["mean"] for each in rows]) for name, rows in scores.items() if None not in rows}
        pairs = _holm(
            [(one, other, paired_p_value(means[one] - means[other])) for one, other in combinations(means, 2)]
        )
    return {"mean": mean, "problems": len(positions), "wilcoxon": pairs}


def paired_p_value(differences: npt.NDArray[np.float64]) -> float:
    """Return the p-value of Wilcoxon's signed-rank test that paired differences, (units,), are symmetric about 0."""
    # Without pairs that do not differ, which the test leaves out, the distribution is exact for few of them.
    differing = differences[differences != 0]
    return float(tuple(wilcoxon(differing))[1]) if len(differing) else 1.0


def compare_errors(first: SampleErrors, second: SampleErrors) -> dict[str, Any]:
    """Return whether two models differ by more than noise on the samples that both were scored on.

    Differences are averaged over the clusters of samples that are independent of one another, and compared by
    :func:`paired_p_value`; of several kinds of clusters the larger p counts.

    Returns:
        ``metric``; ``samples``; ``p`` and ``is_different`` at the level of :data:`SIGNIFICANCE`; ``units``, their
        number, and ``unit``, their plural noun; ``better``, ``first``, ``second`` or None where the errors are equal.

    Raises:
        DataError: If no sample was scored for both.
    """
    positions = {key: number for number, key in enumerate(second.keys)}
    pairs = [(number, positions[key]) for number, key in enumerate(first.keys) if key in positions]
    if first.metric != second.metric or not pairs:
        raise DataError("The two models have no sample in common. Score both on one file by --data, on its test split.")
    ours, theirs = np.array(pairs).T
    differences = first.errors[ours] - second.errors[theirs]
    is_scored = np.isfinite(differences)
    differences = differences[is_scored]
    tests = []
    for unit, clusters in first.clusters.items():
        _, members = np.unique(clusters[ours][is_scored], return_inverse=True)
        sums = np.bincount(members, weights=differences)
        if len(sums) > 1:
            tests.append((paired_p_value(sums / np.bincount(members)), len(sums), unit))
    # A single cluster says nothing of the noise.
    p, units, unit = max(tests, default=(1.0, 1, next(iter(first.clusters))))
    mean = float(differences.mean()) if len(differences) else 0.0
    return {
        "metric": first.metric,
        "samples": len(differences),
        "better": None if mean == 0 else "first" if mean < 0 else "second",
        "p": p,
        "is_different": p <= SIGNIFICANCE,
        "units": units,
        "unit": unit,
    }


def units_needed(pairs: int) -> int:
    """Return the smallest number of paired units with which the test can separate two of ``pairs`` pairs of models."""
    # All differences of one sign, two-sided: the smallest p that there is.
    return math.ceil(1 - math.log2(SIGNIFICANCE / max(1, pairs)))


def describe_power(units: int, pairs: int, unit: str) -> str:
    """Return what the test can separate at most: with few units no difference is large enough.

    Args:
        units: Paired units.
        pairs: Pairs of models, by which Holm's correction divides the level.
        unit: Plural noun of the units.
    """
    needed = units_needed(pairs)
    if units >= needed:
        return f"{units} {unit} suffice for it to separate models that differ on nearly all of them"
    return f"with fewer than {needed} {unit} it can separate none, however far apart they are"


def describe_test(ranks: Mapping[str, Any]) -> str:
    """Return one sentence on what the test over data sets separates, and what it cannot."""
    pairs, problems = ranks["wilcoxon"], ranks["problems"]
    if problems < 2:
        return (
            "No test is made on a single data set: the standard deviation is that of the seeds, and says nothing of "
            "other data."
        )
    if not pairs:
        return "No test is made: the data sets have different metrics, or a score is missing."
    separated = [f"{pair['first']} from {pair['second']} (p {pair['p']:.2g})" for pair in pairs if pair["is_different"]]
    count = len(pairs) - len(separated)
    found = f"separates {', '.join(separated)}" if separated else "separates no two"
    rest = f" and not the other {count} of {len(pairs)} pairs" if separated and count else ""
    return (
        f"Wilcoxon's signed-rank test with Holm's correction at {SIGNIFICANCE:g} {found}{rest}; "
        f"{describe_power(problems, len(pairs), 'data sets')}."
    )


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
    parts += [f"Scores are the mean ± standard deviation over seeds. {describe_test(results['ranks'])}", ""]
    return "\n".join(parts)


def run_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row of scalars for each run: its settings, costs and the scores of its splits."""
    rows = [
        {key: value for key, value in run.items() if key not in ("metrics", "certificate", "recipe")}
        | {"recipe": " ".join(run["recipe"]), "proved": (run.get("certificate") or {}).get("kind")}
        | {
            f"{split}_{metric}": value
            for split, scores in run["metrics"].items()
            for metric, value in scores.items()
            if not isinstance(value, Mapping)
        }
        for run in results["runs"]
    ]
    # Runs of other tasks have other scores.
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def latex(results: Mapping[str, Any]) -> str:
    """Return a table in LaTeX (booktabs): a row for each contender, a column for each data set, the best in bold."""
    problems = results["problems"]
    names = dict.fromkeys(row["name"] for table in problems.values() for row in table["rows"])
    lines = [
        "% Mean and standard deviation over seeds.",
        f"\\begin{{tabular}}{{l{'r' * len(problems)}}}",
        "\\toprule",
        " & ".join(["", *(_escape(f"{name}, {table['metric']}") for name, table in problems.items())]) + r" \\",
        "\\midrule",
    ]
    for name in names:
        cells = [_escape(name)]
        for table in problems.values():
            row = next((row for row in table["rows"] if row["name"] == name), {"score": None, "rank": None})
            cell = _format_score(row["score"], r"$\pm$")
            cells.append(f"\\textbf{{{cell}}}" if row["rank"] == 1 and row["score"] else cell)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _escape(text: str) -> str:
    """Return text with the characters that LaTeX reads as markup escaped."""
    return re.sub(r"[&%$#_{}]", r"\\\g<0>", text.replace("\\", r"\textbackslash "))


def columns(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the columns of a problem's table."""
    metric = f"{table['split']} {table['metric']}"
    return ("", metric, "rank", "parameters", "CPU s", "ms a step", "proved", "failed")


def table_rows(table: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of a problem's table as text."""
    rows = []
    for row in table["rows"]:
        score = row["score"]
        rows.append(
            [
                row["name"],
                _format_score(score),
                f"{row['rank']:g}",
                "-" if row.get("parameters") is None else f"{row['parameters']:,}",
                "-" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.3g}",
                "-" if row.get("step_ms") is None else f"{row['step_ms']:.3g}",
                _format_certificate(row.get("certificate")),
                str(row.get("failed") or ""),
            ]
        )
    return rows


def _format_score(score: Mapping[str, Any] | None, plus_minus: str = "±") -> str:
    if score is None:
        return "-"
    return f"{score['mean']:.4g}" + ("" if score["std"] is None else f" {plus_minus} {score['std']:.2g}")


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


def plot_critical_difference(path: Path, ranks: Mapping[str, Any]) -> None:
    """Plot the mean ranks on an axis, the best on the left, with a bar along each group that no test tells apart.

    This is the diagram of Demsar (JMLR 2006), with Wilcoxon's test and Holm's correction in place of Nemenyi's.

    Args:
        path: PNG file.
        ranks: Result of :func:`stablernn.compare.results.rank`.
    """
    names = list(ranks["mean"])
    left, right = names[: (len(names) + 1) // 2], names[(len(names) + 1) // 2 :]
    groups = find_groups(ranks)
    figure = new_figure(8, 1.6 + 0.3 * (len(left) + len(groups)))
    axes = figure.subplots()
    axes.set_axis_off()
    low, high = 1, max(2, len(names))
    margin = 0.55 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    base = 0.35 * len(groups) + 0.5
    axes.set_ylim(0.3 - base - len(left), 1.2)
    axes.plot([low, high], [0, 0], color=BLACK, linewidth=1)
    for tick in range(low, high + 1):
        axes.plot([tick, tick], [0, 0.15], color=BLACK, linewidth=1)
        axes.text(tick, 0.25, str(tick), ha="center", va="bottom", fontsize=9)
    for side, edge, align in ((left, low, "right"), (right[::-1], high, "left")):
        for line, name in enumerate(side):
            mean, y = ranks["mean"][name], -base - line
            axes.plot([mean, mean, edge], [0, y, y], color=BLACK, linewidth=0.8)
            text = f"{name}  {mean:.2f} " if align == "right" else f" {mean:.2f}  {name}"
            axes.text(edge, y, text, ha=align, va="center", fontsize=9)
    for number, group in enumerate(groups):
        y = -0.3 - 0.35 * number
        ends = [ranks["mean"][group[0]] - 0.05, ranks["mean"][group[-1]] + 0.05]
        axes.plot(ends, [y, y], color=BLACK, linewidth=3.5, solid_capstyle="round")
    title = f"mean rank over {ranks['problems']} data sets; a bar joins those without a significant difference"
    axes.set_title(title, fontsize=10)
    _save(figure, path)


def find_groups(ranks: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the largest runs of neighbors by rank in which no pair differs, of two or more."""
    names = list(ranks["mean"])
    different = {frozenset((pair["first"], pair["second"])) for pair in ranks["wilcoxon"] if pair["is_different"]}
    groups: list[Sequence[str]] = []
    last = -1
    for start in range(len(names)):
        end = start
        while end + 1 < len(names) and not any(
            frozenset((name, names[end + 1])) in different for name in names[start : end + 1]
        ):
            end += 1
        # A run within the one before it says nothing new.
        if end > max(start, last):
            groups.append(names[start : end + 1])
        last = max(last, end)
    return groups
