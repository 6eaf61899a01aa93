"""Kinds of certificates for all inputs and for inputs within the range of training, and what a search finds of each.

    OMP_NUM_THREADS=1 python benchmarks/bounded_inputs.py

writes ``benchmarks/results/bounded_inputs.json`` and prints the table of docs/stability.md: every cell as it starts,
after 60 steps of Adam, and after 60 steps inside its certified region, the models of ``benchmarks/soundness.py``.
Searches are those of ``tests/bounds/box_search.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from bounds.box_search import largest_escape, worst_step  # noqa: E402
from bounds.specimens import certifiable, digits, trained  # noqa: E402
from stablernn import list_cells  # noqa: E402
from stablernn.bounds.intervals import Box  # noqa: E402
from stablernn.cells import StableCell  # noqa: E402
from stablernn.certificates.certificate import KINDS, certify  # noqa: E402
from stablernn.certificates.input_range import InputRange  # noqa: E402
from stablernn.certificates.projection import ONLY_ON_REQUEST  # noqa: E402
from stablernn.training.loop.device import code_commit  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "bounded_inputs.json"
STATES = {"start": 0, "trained": 60, "certified": 60}
"""Steps of Adam, on 200 of the digits row by row."""
HIDDEN = 16
FOUND_RATE = 0.97
"""Share of the certified rate: of a rate that is three percent too small, the search must find more."""

WIDE = 1e6
"""Radius beyond which a ball excludes nothing that a user would fear, and `train` does not state it as a guarantee."""

Row = dict[str, Any]


def training_range() -> InputRange:
    """Return the default range: that of the digits, half as wide again, in the units of the specimens."""
    x = digits()[0].double().numpy().reshape(-1, digits()[0].shape[-1])
    return InputRange.around_training(x.min(axis=0).tolist(), x.max(axis=0).tolist())


def measured(key: str, state: str, inputs: InputRange) -> Row:
    """Return what is certified of one model for all inputs and within the range, and what the search finds of it."""
    model = trained(key, HIDDEN, data=digits(), steps=STATES[state], lr=0.01, certified=state == "certified")
    # The layers alone: the scaling of these models is the identity, and was not fitted.
    free, within = certify(model.rnn, stored=False), certify(model.rnn, stored=False, inputs_within=inputs)
    (cell,), (bound,) = model.rnn.cells, within.stacks[0].bounds
    box = Box(np.array(inputs.lower), np.array(inputs.upper))
    row: Row = {"cell": key, "state": state, "free": free.kind, "within": within.kind}
    row["balls"] = {ball.state: ball.radius for ball in bound.balls}
    row["escape"] = largest_escape(cell, bound, box, steps=1000) if bound.balls else None
    # Other cells have the bounds for all inputs, which benchmarks/soundness.py searches.
    is_own = type(cell).step_bound_within is not StableCell.step_bound_within
    if is_own and bound.norm is not None and len(bound.balls) == len(cell.state_names):
        worst = worst_step(cell, bound, box, points=192, searches=60)
        wrong = worst_step(cell, replace(bound, rate=FOUND_RATE * bound.rate), box, points=192, searches=60)
        row["rate"] = {"certified": bound.rate, "found": worst.rate * bound.rate, "wrong_is_found": wrong.is_violation}
        row["gain"] = {"certified": bound.gain, "found": worst.gain * bound.gain}
        row["violation"] = worst.is_violation
    row["violation"] = row.get("violation", False) or (row["escape"] or 0.0) > 0
    return row


def table(rows: list[Row]) -> str:
    """Return Markdown: a line for each cell whose kinds differ or that has bounds of its own within a range."""
    lines = [
        "| cell | at the start: all inputs | within the range | rate within (found) | trained: all inputs "
        "| within the range | rate within (found) | largest ball | trained `--certified`: all inputs "
        "| within the range | rate within (found) | largest ball |",
        "| --- " * 12 + "|",
    ]
    for key in sorted({row["cell"] for row in rows}):
        by_state = {row["state"]: row for row in rows if row["cell"] == key}
        cells = []
        for state in STATES:
            row = by_state.get(state)
            shown = ["", "", ""] if row is None else [row["free"], row["within"], _rate(row.get("rate"))]
            cells += shown if state == "start" else [*shown, _ball(row)]
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ball(row: Row | None) -> str:
    if row is None:
        return ""
    radii = row["balls"].values()
    return f"{max(radii):.4g}" if radii else "-"


def _rate(rate: dict[str, float] | None) -> str:
    return "-" if rate is None else f"{rate['certified']:.4g} ({rate['found']:.4g})"


def summary(rows: list[Row]) -> str:
    """Return how many models have each kind, and how many wrong rates were found."""
    groups = {state: [row for row in rows if row["state"] == state] for state in STATES}
    groups["trained by default"] = _defaults(rows)
    counts = [
        f"{state}, {name}: " + ", ".join(f"{Counter(row[key] for row in group)[kind]} {kind}" for kind in KINDS)
        for state, group in groups.items()
        for key, name in (("free", "all inputs"), ("within", "within the range"))
    ]
    balls = [f"{state}: {_wide_balls(group)}" for state, group in groups.items()]
    rated = [row["rate"] for row in rows if "rate" in row]
    found = sum(rate["wrong_is_found"] for rate in rated)
    violations = sum(row["violation"] for row in rows)
    return "\n".join(
        [
            *counts,
            *balls,
            f"{len(rows)} models, {violations} violations, {found} of {len(rated)} rates 3 % too small found",
        ]
    )


def _wide_balls(rows: list[Row]) -> str:
    """Return how many of the models that are bounded within the range have a ball too wide to exclude anything."""
    bounded = [row for row in rows if row["within"] == "bounded"]
    wide = [row["cell"] for row in bounded if max(row["balls"].values()) > WIDE]
    names = f" ({', '.join(wide)})" if wide else ""
    return f"{len(wide)} of {len(bounded)} bounded within the range have a ball of more than {WIDE:g}{names}"


def _defaults(rows: list[Row]) -> list[Row]:
    """Return the row of each cell as `train` trains it: certified, unless that is only done on request."""
    by_state = {(row["cell"], row["state"]): row for row in rows}
    return [
        by_state[key, "trained"]
        if key in ONLY_ON_REQUEST or (key, "certified") not in by_state
        else by_state[key, "certified"]
        for key in sorted({row["cell"] for row in rows})
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    arguments = parser.parse_args()
    if not arguments.table:
        began, inputs = time.perf_counter(), training_range()
        rows = []
        with_region = certifiable()
        for key in list_cells():
            for state in STATES:
                if state != "certified" or key in with_region:
                    rows.append(measured(key, state, inputs))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        _write(rows, inputs, time.perf_counter() - began)
    rows = json.loads(RESULTS.read_text())["runs"]
    print(table(rows))
    print(f"\n{summary(rows)}")


def _write(rows: list[Row], inputs: InputRange, seconds: float) -> None:
    conditions = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "commit": code_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(seconds),
        "hidden_size": HIDDEN,
        "inputs_within": inputs.document(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"conditions": conditions, "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
