"""What is certified beside what a search finds: of every cell as it starts, after training, and trained certified.

    OMP_NUM_THREADS=1 python benchmarks/soundness.py
    OMP_NUM_THREADS=1 python benchmarks/soundness.py --norm-search
    OMP_NUM_THREADS=1 python benchmarks/soundness.py --bounded-inputs

Each stores its results in ``benchmarks/results`` and prints a table of docs/background/stability.md, which ``--table``
does alone. The searches are those of ``tests/bounds`` and ``tests/certificates``, which fail where more is found than
is proved; here it is shown how much less. The second is how much of the gap between the rates that a few norms prove
and the radius below which no norm can is closed by the search for one, for five seeds. The third has the kinds of
certificates for all inputs and for inputs within the range of training, and what a search finds of each.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
from harness import ROOT, Row, log, read_results, stored, table, write_results

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from bounds.box_search import largest_escape, worst_step  # noqa: E402
from bounds.constant_slopes import largest_constant_slope_radius  # noqa: E402
from bounds.growth_search import worst_growth  # noqa: E402
from bounds.specimens import certifiable, digits, trained  # noqa: E402
from bounds.step_search import checked  # noqa: E402
from certificates.trajectory_search import checked_module  # noqa: E402
from stablernn import list_cells  # noqa: E402
from stablernn.bounds.intervals import Box  # noqa: E402
from stablernn.bounds.lure import given_norms  # noqa: E402
from stablernn.cells import StableCell  # noqa: E402
from stablernn.certificates.certificate import KINDS, certify  # noqa: E402
from stablernn.certificates.input_range import InputRange  # noqa: E402
from stablernn.certificates.projection import ONLY_ON_REQUEST  # noqa: E402

STATES = {"start": 0, "trained": 60, "certified": 60}
"""Steps of Adam, on 200 of the digits row by row."""
HIDDEN = 16
SEARCH = {"pairs": 48, "searches": 40}
NORM_SEARCHES = ("rnn", "rnn_orth", "soft_orth", "identity_rnn", "lipschitz", "neural_ode_rnn")
"""Cells that training takes far from where their rate is exact, so that a search for a norm matters."""
SEEDS = range(5)
FOUND_RATE = 0.97
"""Share of the certified rate: of a rate that is three percent too small, the search must find more."""
WIDE = 1e6
"""Radius beyond which a ball excludes nothing that a user would fear, and `train` does not state it as a guarantee."""


def specimen(key: str, state: str, seed: int | None = None) -> Any:
    """Return a model of a cell in a state."""
    is_certified = state == "certified"
    return trained(key, HIDDEN, data=digits(), steps=STATES[state], lr=0.01, certified=is_certified, seed=seed)


def measure_soundness(key: str, state: str) -> Row:
    """Return what is certified of one model and the worst that was found of it."""
    import torch

    model = specimen(key, state)
    certificate = certify(model, stored=False)
    (cell,) = model.rnn.cells
    bound, system = certificate.stacks[0].bounds[0], cell.lure_system()
    seen = {one.claim: one for one in checked(cell, bound, steps=200, **SEARCH)}
    paths = {one.claim: one for one in checked_module(model, certificate, steps=40, pairs=16, searches=25)}
    balls = [one for claim, one in seen.items() if claim.startswith("ball") and "started" not in claim]
    claims = {"rate": seen.get("rate"), "gain": seen.get("gain"), "total_gain": paths.get("largest gain")}
    x, y = digits()
    with torch.no_grad():
        # On the sequences it was trained on: whether training has done anything.
        accuracy = float((model(x).argmax(dim=-1) == y).double().mean())
    return {
        "kind": certificate.kind,
        "accuracy": accuracy,
        "radius": None if system is None else largest_constant_slope_radius(system),
        "growth": worst_growth(cell, bound.covers) if state == "trained" and bound.norm is not None else None,
        **{
            name: None if one is None else {"certified": one.certified, "found": one.found}
            for name, one in {**claims, "ball": balls[0] if balls else None}.items()
        },
        "violations": sum(one.is_violated for one in (*seen.values(), *paths.values())),
    }


def training_range() -> InputRange:
    """Return the default range: that of the digits, half as wide again, in the units of the specimens."""
    x = digits()[0].double().numpy().reshape(-1, digits()[0].shape[-1])
    return InputRange.around_training(x.min(axis=0).tolist(), x.max(axis=0).tolist())


def measure_bounded_inputs(key: str, state: str) -> Row:
    """Return what is certified of one model for all inputs and within the range, and what the search finds of it."""
    model, inputs = specimen(key, state), training_range()
    # The layers alone: the scaling of these models is the identity, and was not fitted.
    free, within = certify(model.rnn, stored=False), certify(model.rnn, stored=False, inputs_within=inputs)
    (cell,), (bound,) = model.rnn.cells, within.stacks[0].bounds
    box = Box(np.array(inputs.lower), np.array(inputs.upper))
    row: Row = {"free": free.kind, "within": within.kind}
    row["balls"] = {ball.state: ball.radius for ball in bound.balls}
    row["escape"] = largest_escape(cell, bound, box, steps=1000) if bound.balls else None
    row["violation"] = (row["escape"] or 0.0) > 0
    # Other cells have the bounds for all inputs, which are searched above.
    is_own = type(cell).step_bound_within is not StableCell.step_bound_within
    if is_own and bound.norm is not None and len(bound.balls) == len(cell.state_names):
        worst = worst_step(cell, bound, box, points=192, searches=60)
        wrong = worst_step(cell, replace(bound, rate=FOUND_RATE * bound.rate), box, points=192, searches=60)
        row["rate"] = {"certified": bound.rate, "found": worst.rate * bound.rate, "wrong_is_found": wrong.is_violation}
        row["gain"] = {"certified": bound.gain, "found": worst.gain * bound.gain}
        row["violation"] |= worst.is_violation
    return row


def measure_norm_search(key: str, seed: int) -> Row:
    """Return the rates of a trained cell without and with the search for a norm, and the radius that none is below."""
    (cell,) = specimen(key, "trained", seed).rnn.cells
    with given_norms():
        before = cell.step_bound().rate
    after, lowest = cell.step_bound().rate, largest_constant_slope_radius(cell.lure_system())
    rates = {"without_search": before, "with_search": after, "radius": lowest}
    return {**rates, "gap_closed": (before - after) / (before - lowest)}


def soundness_table(rows: list[Row]) -> str:
    """Return a line for each cell: of each state what is certified, and what was found in brackets; and summaries."""
    lines = []
    for key, by_state in _by_cell(rows):
        rates = [_pair(by_state[state]["rate"]) if state in by_state else "" for state in STATES]
        after = by_state["trained"]
        limits = ["-" if after[name] is None else f"{after[name]:.4g}" for name in ("radius", "growth")]
        lines.append((f"`{key}`", *rates[:2], *limits, rates[2], _pair(after["gain"]), _pair(after["ball"])))
    columns = ("at the start", "trained", "largest radius, trained", "growth found, trained", "trained `--certified`")
    text = table(("cell", *columns, "input gain, trained", "ball, trained"), lines)
    text += f"\n\n{len(rows)} models, {sum(row['violations'] for row in rows)} violations"
    for state in STATES:
        rated = [row for row in rows if row["state"] == state and row["rate"]]
        found = [row["rate"]["found"] / row["rate"]["certified"] for row in rated]
        excess = [row["rate"]["certified"] / row["radius"] for row in rated if row["radius"]]
        text += f"\n{state}: found / certified {median(found):.3f} (median) and {min(found):.2f} (minimum), "
        text += f"certified / radius {median(excess):.3f} (median) and {max(excess):.2f} (maximum)"
    return text


def norm_search_table(rows: list[Row]) -> str:
    """Return a line for each cell: medians over the seeds, with the smallest and the largest share of the gap."""
    lines = []
    for key in dict.fromkeys(row["cell"] for row in rows):
        of_cell = [row for row in rows if row["cell"] == key]
        names = ("without_search", "with_search", "radius")
        rates = [f"{median(row[name] for row in of_cell):.3f}" for name in names]
        lines.append((f"`{key}`", *rates, harness.spread([row["gap_closed"] for row in of_cell], ".2f")))
    columns = ("rate without the search", "with it", "largest radius", "share of the gap closed")
    share = median(row["gap_closed"] for row in rows)
    return f"{table(('cell', *columns), lines)}\n\nshare of the gap closed, median of all: {share:.2f}"


def bounded_inputs_table(rows: list[Row]) -> str:
    """Return a line for each cell with its kinds, and how many models have each kind."""
    lines, empty = [], {"free": "", "within": ""}
    for key, by_state in _by_cell(rows):
        cells = [f"`{key}`"]
        for state in STATES:
            row = by_state.get(state)
            rate = "" if row is None else _pair(row.get("rate"))
            ball = "" if row is None else f"{max(row['balls'].values()):.4g}" if row["balls"] else "-"
            cells += [(row or empty)["free"], (row or empty)["within"], rate, *([] if state == "start" else [ball])]
        lines.append(cells)
    columns = ("within the range", "rate within (found)")
    header = ["cell", "at the start: all inputs", *columns, "trained: all inputs", *columns, "largest ball"]
    header += ["trained `--certified`: all inputs", *columns, "largest ball"]
    groups = {state: [row for row in rows if row["state"] == state] for state in STATES}
    # As `train` trains it: certified, unless that is only done on request.
    groups["trained by default"] = [
        by_state["trained" if key in ONLY_ON_REQUEST or "certified" not in by_state else "certified"]
        for key, by_state in _by_cell(rows)
    ]
    counts, balls = [], []
    for state, group in groups.items():
        for key, name in (("free", "all inputs"), ("within", "within the range")):
            numbers = Counter(row[key] for row in group)
            counts.append(f"{state}, {name}: " + ", ".join(f"{numbers[kind]} {kind}" for kind in KINDS))
        bounded = [row for row in group if row["within"] == "bounded"]
        wide = [row["cell"] for row in bounded if max(row["balls"].values()) > WIDE]
        names = f" ({', '.join(wide)})" if wide else ""
        text = f"bounded within the range have a ball of more than {WIDE:g}{names}"
        balls.append(f"{state}: {len(wide)} of {len(bounded)} {text}")
    rated = [row["rate"]["wrong_is_found"] for row in rows if "rate" in row]
    violations = sum(row["violation"] for row in rows)
    last = f"{len(rows)} models, {violations} violations, {sum(rated)} of {len(rated)} rates 3 % too small found"
    return "\n".join([table(header, lines), "", *counts, *balls, last])


def _by_cell(rows: list[Row]) -> list[tuple[str, dict[str, Row]]]:
    keys = sorted({row["cell"] for row in rows})
    return [(key, {row["state"]: row for row in rows if row["cell"] == key}) for key in keys]


def _pair(pair: Row | None) -> str:
    return "-" if pair is None else f"{pair['certified']:.4g} ({pair['found']:.4g})"


def states_of(cells: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield each cell with each of its states."""
    regions = certifiable()
    return ((key, state) for key in cells for state in STATES if state != "certified" or key in regions)


def main() -> None:
    parser = harness.arguments_parser(__doc__)
    parser.add_argument("--results", type=Path, help="file to write and to print the table of")
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    parser.add_argument("--norm-search", action="store_true", help="measure what the search for a norm gains")
    parser.add_argument(
        "--bounded-inputs", action="store_true", help="measure certificates within the range of training"
    )
    parser.add_argument("--cells", nargs="+", default=list_cells(), help="measure these alone, and keep other results")
    arguments = parser.parse_args()
    name, measure, write = "soundness", measure_soundness, soundness_table
    jobs: list[tuple[str, Any]] = [*states_of(arguments.cells)]
    facts: Row = {"hidden_size": HIDDEN}
    second = "state"
    if arguments.norm_search:
        name, second, write = "norm_search", "seed", norm_search_table
        measure: Callable[[str, Any], Row] = measure_norm_search
        jobs = [(key, seed) for key in NORM_SEARCHES if key in arguments.cells for seed in SEEDS]
    elif arguments.bounded_inputs:
        name, measure, write = "bounded_inputs", measure_bounded_inputs, bounded_inputs_table
        facts["inputs_within"] = training_range().document()
    path = arguments.results or stored(name)
    rows = read_results(path, {"runs": []})["runs"]
    if not arguments.table:
        began = time.perf_counter()
        rows = [row for row in rows if row["cell"] not in arguments.cells]
        for key, other in jobs:
            rows.append({"cell": key, second: other, **measure(key, other)})
            log(rows[-1])
        conditions = harness.conditions("torch", seconds=round(time.perf_counter() - began), **facts)
        write_results(path, {"conditions": conditions, "runs": rows})
    print(write(rows))


if __name__ == "__main__":
    main()
