"""The section of ``docs/accuracy.md`` on the UCR and UEA archives, from the results of ``archive.py``.

``make docs`` writes it. A set is compared by its mean accuracy over the seeds; equal to within half a test sequence is
a draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

METHODS = ("auto", "minirocket", "ridge")
PROOFS = ("contracting", "non-expansive", "bounded", "none")
"""Classes of certificates, the strongest first."""
_DRAW = 0.5
"""Largest difference of a draw, in test sequences."""
_ROUNDING = 1e-6
"""Rounding error of an accuracy times the number of test sequences, far below half of one."""

Row = Mapping[str, Any]
Outcome = Literal["win", "draw", "loss"]


@dataclass(frozen=True)
class SetSummary:
    """The runs on one set, over all seeds.

    Attributes:
        name: Name of the set.
        is_development_set: True if defaults were chosen on the set.
        facts: Its sizes: ``train``, ``test``, ``channels``, ``classes`` and the shortest and longest ``length``; empty
            if the set could not be read.
        accuracies: Mean test accuracy by method; without the methods that have none.
        failures: Reasons of failed runs, by method and seed.
        recipes: Chosen recipes, the most frequent first.
        is_compared: True if every run of ``auto`` compared two recipes or more.
        proof: The weakest class of certificate of any seed; None without a run of ``auto``.
    """

    name: str
    is_development_set: bool
    facts: Mapping[str, Any]
    accuracies: Mapping[str, float]
    failures: Mapping[tuple[str, int], str]
    recipes: tuple[str, ...]
    is_compared: bool
    proof: str | None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of ``auto`` against MiniRocket; None if they cannot be compared.

        A set on which ``auto`` failed while MiniRocket did not is lost. The reverse is not won.
        """
        if "minirocket" not in self.accuracies:
            return None
        if "auto" not in self.accuracies:
            return "loss" if any(method == "auto" for method, _ in self.failures) else None
        if self._is_draw("auto", "minirocket"):
            return "draw"
        return "win" if self.accuracies["auto"] > self.accuracies["minirocket"] else "loss"

    @property
    def is_complete(self) -> bool:
        """True if every method has an accuracy."""
        return all(method in self.accuracies for method in METHODS)

    def rank(self, method: str) -> float:
        """Return the rank of a method among all, 1 for the most accurate one; a draw shares the ranks."""
        others = [other for other in METHODS if other != method]
        draws = sum(self._is_draw(method, other) for other in others)
        better = sum(
            self.accuracies[other] > self.accuracies[method] and not self._is_draw(method, other) for other in others
        )
        return 1 + better + draws / 2

    def _is_draw(self, method: str, other: str) -> bool:
        difference = abs(self.accuracies[method] - self.accuracies[other])
        return bool(difference * self.facts["test"] <= _DRAW + _ROUNDING)


def summarize(rows: Iterable[Row]) -> list[SetSummary]:
    """Return a summary of each set, in the order of the names."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["data"], []).append(row)
    return [_summary(groups[name]) for name in sorted(groups, key=str.lower)]


def _summary(rows: Sequence[Row]) -> SetSummary:
    # The ridge classifier is a figure of the same run as the default.
    runs = {
        "auto": [row["auto"] for row in rows if "auto" in row],
        "minirocket": [row["minirocket"] for row in rows if "minirocket" in row],
    }
    values = {method: [run["accuracy"] for run in runs[method] if "accuracy" in run] for method in runs}
    values["ridge"] = [run["ridge"] for run in runs["auto"] if run.get("ridge") is not None]
    failures = {
        (method, row["seed"]): row[method]["failed"]
        for row in rows
        for method in runs
        if "failed" in row.get(method, {})
    }
    recipes = Counter(run["recipe"] for run in runs["auto"] if "recipe" in run)
    proofs = [run["certificate"] for run in runs["auto"] if "certificate" in run]
    return SetSummary(
        name=rows[0]["data"],
        is_development_set=rows[0]["is_development_set"],
        facts=next((row["set"] for row in rows if row.get("set")), {}),
        accuracies={method: sum(figures) / len(figures) for method, figures in values.items() if figures},
        failures=failures,
        recipes=tuple(recipe for recipe, _ in recipes.most_common()),
        is_compared=all(run["compared"] > 1 for run in runs["auto"] if "compared" in run),
        proof=max(proofs, key=PROOFS.index) if proofs else None,
    )


def archive_section(results: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the lines of the section.

    Args:
        results: The content of ``benchmarks/results/archive.json``; None if there is none.
    """
    yield _SOURCES
    if not results or not results["runs"]:
        yield f"\nNo results are stored yet. This measures and stores them:\n\n{_command('0', '2m')}"
        return
    summaries = summarize(results["runs"])
    seeds = sorted({row["seed"] for row in results["runs"]})
    yield "\n" + _MEASURED.format(budget=results["budget"], **results["conditions"])
    yield "\n" + (_ONE_SEED if len(seeds) == 1 else _SEVERAL_SEEDS).format(seeds=", ".join(map(str, seeds)))
    parts = {
        "are not among the nine": [summary for summary in summaries if not summary.is_development_set],
        "are among the nine": [summary for summary in summaries if summary.is_development_set],
    }
    yield f"\n{_OUTCOMES}\n"
    yield from _outcomes_table(parts)
    for title, part in parts.items():
        if part:
            yield f"\n### Sets that {title}\n\n"
            yield from _sets_table(part)
    names = [summary.name for summary in summaries if not summary.is_compared]
    if names:
        yield f"\nThe budget compared no two recipes, so that the first one was trained, on: {', '.join(names)}.\n"
    yield from _failures(summaries)
    yield f"\n{_command(' '.join(map(str, seeds)), results['budget'])}"


def _outcomes_table(parts: Mapping[str, Sequence[SetSummary]]) -> Iterator[str]:
    yield _line(
        ["sets that", "sets", "wins", "draws", "losses"]
        + [f"mean {method}" for method in METHODS]
        + [f"rank {method}" for method in METHODS]
    )
    yield _line(["---"] * (5 + 2 * len(METHODS)))
    for title, part in parts.items():
        outcomes = Counter(summary.outcome for summary in part)
        complete_sets = [summary for summary in part if summary.is_complete]
        means = [_mean(summary.accuracies[method] for summary in complete_sets) for method in METHODS]
        ranks = [_mean(summary.rank(method) for summary in complete_sets) for method in METHODS]
        yield _line(
            [title, len(part), *(outcomes[outcome] for outcome in ("win", "draw", "loss"))]
            + ["-" if mean is None else f"{mean:.4f}" for mean in means]
            + ["-" if rank is None else f"{rank:.2f}" for rank in ranks]
        )


def _sets_table(summaries: Sequence[SetSummary]) -> Iterator[str]:
    yield _line(["set", "train", "test", "length", "channels", "classes", *METHODS, "outcome", "recipe", "proved"])
    yield _line(["---"] * (9 + len(METHODS)))
    for summary in summaries:
        facts = summary.facts
        accuracies = [summary.accuracies.get(method) for method in METHODS]
        yield _line(
            [
                summary.name,
                *(f"{facts[key]:,}" if facts else "-" for key in ("train", "test")),
                _length(facts["length"]) if facts else "-",
                *(facts.get(key, "-") for key in ("channels", "classes")),
                *("-" if accuracy is None else f"{accuracy:.4f}" for accuracy in accuracies),
                summary.outcome or "-",
                "; ".join(summary.recipes) or "-",
                summary.proof or "-",
            ]
        )


def _failures(summaries: Sequence[SetSummary]) -> Iterator[str]:
    lines = [
        f"- {summary.name}, {method}, seed {seed}: {reason}\n"
        for summary in summaries
        for (method, seed), reason in sorted(summary.failures.items())
    ]
    if lines:
        yield "\nRuns that failed:\n\n"
        yield from lines


def _command(seeds: str, budget: str) -> str:
    words = f"python benchmarks/archive.py --seeds {seeds} --budget {budget} --minirocket"
    return f"    STABLERNN_DATA=... {words}\n"


def _length(length: Sequence[int]) -> str:
    shortest, longest = length
    return f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"


def _mean(values: Iterable[float]) -> float | None:
    figures = list(values)
    return sum(figures) / len(figures) if figures else None


def _line(cells: Iterable[object]) -> str:
    # A bar in the message of an error would end the cell.
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


_SOURCES = """Test accuracy on the published splits of sets of the UCR and UEA archives. Written by `make docs` from the
results of `benchmarks/archive.py`; do not edit.

- `auto`: `stablernn train --data FILE` with a budget and a seed, no other option ([choosing.md](choosing.md)).
- `minirocket`: MiniRocket and a ridge classifier, by aeon; shorter sequences are padded with 0.
- `ridge`: a ridge classifier on the raw values.

Defaults and recipes were chosen on the nine sets of [Classification](#classification). Their test accuracies were known
at that time, so that a win on one of them is no evidence for other data. The training files of Adiac, ArrowHead and
Crop took part in comparisons, too: by their folds recipes were added and put in order
(`benchmarks/cross_validation.py`). Four changes were prompted by test accuracies of earlier runs of this table: the
recipes for many classes by losses on Adiac and Crop, the stricter rules for leaving the default by losses on ArrowHead
and ECG200, and twice in place of four times the epochs and further draws of the folds by the spread over seeds on
ECG200. The first three were decided by folds of training files, or by how errors are estimated; further draws were not
compared with single ones on other data. The runs of ECG5000 and FordA are from before them: two minutes leave no time
for further draws on ECG5000, and FordA has too many sequences for any. The search of a run reads the training file
only.
"""
_MEASURED = """Budget {budget} a run; {cores} cores, {machine}, torch {torch}, Python {python}, {date}. With a budget in
time, a faster or idler machine compares more recipes and trains for more steps; the accuracy depends on it.
"""
_ONE_SEED = """**One seed** ({seeds}): each figure is that of a single search and a single training. Another seed draws
other folds, initial weights and batches, and may choose another recipe; how far the accuracy would move is not measured
here, and a difference of a few test sequences on one set says nothing. The ranges under
[Classification](#classification) show how far three seeds lie apart. Counts and means over many sets are steadier.
"""
_SEVERAL_SEEDS = """Means over the seeds {seeds}, as far as a set has them; `recipe` has every recipe that a seed chose,
`proved` the weakest class of certificate.
"""
_OUTCOMES = """Wins, draws and losses of `auto` against `minirocket`. A draw is an equal accuracy, to within half a test
sequence. A set on which `auto` failed and MiniRocket did not is a loss; the reverse does not count. Means and ranks (1
is the best of the three, draws share ranks) are over the sets for which all three have an accuracy.
"""
