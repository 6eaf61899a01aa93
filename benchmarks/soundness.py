"""What is certified beside what a search finds: of every cell as it starts, after training, and trained certified.

    OMP_NUM_THREADS=1 python benchmarks/soundness.py
    OMP_NUM_THREADS=1 python benchmarks/soundness.py --norm-search

writes ``benchmarks/results/soundness.json`` and prints the table of docs/stability.md. The searches are those of
``tests/bounds`` and ``tests/certificates``, which fail where more is found than is proved; here it is shown how much
less. The second command writes ``benchmarks/results/norm_search.json``: how much of the gap between the rates that a
few norms prove and the radius below which no norm can is closed by the search for one, for five seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]


from bounds.constant_slopes import largest_constant_slope_radius  # noqa: E402
from bounds.growth_search import worst_growth  # noqa: E402
from bounds.specimens import certifiable, digits, trained  # noqa: E402
from bounds.step_search import Seen, checked  # noqa: E402
from certificates.trajectory_search import checked_module  # noqa: E402
from stablernn import list_cells  # noqa: E402
from stablernn.bounds.lure import given_norms  # noqa: E402
from stablernn.certificates.certificate import certify  # noqa: E402
from stablernn.nn.models import SequenceModel  # noqa: E402
from stablernn.training.loop.device import code_commit  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "soundness.json"
NORM_SEARCH_RESULTS = RESULTS.with_name("norm_search.json")
STATES = {"start": 0, "trained": 60, "certified": 60}
"""Steps of Adam, on 200 of the digits row by row."""
HIDDEN = 16
SEARCH = {"pairs": 48, "searches": 40}
NORM_SEARCHES = ("rnn", "rnn_orth", "soft_orth", "identity_rnn", "lipschitz", "neural_ode_rnn")
"""Cells that training takes far from where their rate is exact, so that a search for a norm matters."""
SEEDS = range(5)

Row = dict[str, Any]


def measured(key: str, state: str) -> Row:
    """What is certified of one model and the worst that was found of it."""
    model = trained(key, HIDDEN, data=digits(), steps=STATES[state], lr=0.01, certified=state == "certified")
    certificate = certify(model, stored=False)
    (cell,) = model.rnn.cells
    bound, system = certificate.stacks[0].bounds[0], cell.lure_system()
    seen = {one.claim: one for one in checked(cell, bound, steps=200, **SEARCH)}
    paths = {one.claim: one for one in checked_module(model, certificate, steps=40, pairs=16, searches=25)}
    balls = [one for claim, one in seen.items() if claim.startswith("ball") and "started" not in claim]
    return {
        "cell": key,
        "state": state,
        "kind": certificate.kind,
        "accuracy": _accuracy(model),
        "rate": _pair(seen.get("rate")),
        "radius": None if system is None else largest_constant_slope_radius(system),
        "growth": worst_growth(cell, bound.covers) if state == "trained" and bound.norm is not None else None,
        "gain": _pair(seen.get("gain")),
        "total_gain": _pair(paths.get("largest gain")),
        "ball": _pair(balls[0] if balls else None),
        "violations": sum(one.is_violated for one in (*seen.values(), *paths.values())),
    }


def norm_search(key: str, seed: int) -> Row:
    """The rates of a trained cell without and with the search for a norm, and the radius that no rate can be below."""
    (cell,) = trained(key, HIDDEN, data=digits(), steps=STATES["trained"], lr=0.01, seed=seed).rnn.cells
    with given_norms():
        before = cell.step_bound().rate
    after, lowest = cell.step_bound().rate, largest_constant_slope_radius(cell.lure_system())
    return {
        "cell": key,
        "seed": seed,
        "without_search": before,
        "with_search": after,
        "radius": lowest,
        "gap_closed": (before - after) / (before - lowest),
    }


def norm_search_table(rows: list[Row]) -> str:
    """A line for each cell: medians over the seeds, with the smallest and the largest share of the gap."""
    lines = [
        "| cell | rate without the search | with it | largest radius | share of the gap closed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for key in NORM_SEARCHES:
        of_cell = [row for row in rows if row["cell"] == key]
        names = ("without_search", "with_search", "radius")
        rates = [f"{median(row[name] for row in of_cell):.3f}" for name in names]
        shares = sorted(row["gap_closed"] for row in of_cell)
        lines.append(f"| `{key}` | {' | '.join(rates)} | {median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f}) |")
    return "\n".join(lines)


def _pair(one: Seen | None) -> dict[str, float] | None:
    return None if one is None else {"certified": one.certified, "found": one.found}


def _accuracy(model: SequenceModel) -> float:
    """On the sequences it was trained on: whether training has done anything."""
    import torch

    x, y = digits()
    with torch.no_grad():
        return float((model(x).argmax(dim=-1) == y).double().mean())


def table(rows: list[Row]) -> str:
    """Markdown: a line for each cell, of each state what is certified, and what was found in brackets."""
    lines = [
        "| cell | at the start | trained | largest radius, trained | growth found, trained | trained `--certified` "
        "| input gain, trained | ball, trained |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key in sorted({row["cell"] for row in rows}):
        by_state = {row["state"]: row for row in rows if row["cell"] == key}
        start, after, certified = (
            _shown(by_state[state]["rate"]) if state in by_state else "" for state in ("start", "trained", "certified")
        )
        trained_row = by_state["trained"]
        limits = [_figure(trained_row[name]) for name in ("radius", "growth")]
        cells = [start, after, *limits, certified, _shown(trained_row["gain"]), _shown(trained_row["ball"])]
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """How close the rates of some models come to what was found, and to the radius that no rate can be below."""
    found = [row["rate"]["found"] / row["rate"]["certified"] for row in rows]
    excess = [row["rate"]["certified"] / row["radius"] for row in rows if row["radius"]]
    return (
        f"found / certified {median(found):.3f} (median) and {min(found):.2f} (minimum), "
        f"certified / radius {median(excess):.3f} (median) and {max(excess):.2f} (maximum)"
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _shown(pair: dict[str, float] | None) -> str:
    return "-" if pair is None else f"{pair['certified']:.4g} ({pair['found']:.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    parser.add_argument("--norm-search", action="store_true", help="only measure what the search for a norm gains")
    parser.add_argument("--cells", nargs="+", default=list_cells(), help="measure these alone, and keep other results")
    arguments = parser.parse_args()
    if arguments.norm_search:
        began = time.perf_counter()
        gains = [norm_search(key, seed) for key in NORM_SEARCHES for seed in SEEDS]
        document = {"conditions": _conditions(time.perf_counter() - began), "runs": gains}
        NORM_SEARCH_RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(norm_search_table(gains))
        print(f"\nshare of the gap closed, median of all: {median(row['gap_closed'] for row in gains):.2f}")
        return
    if not arguments.table:
        began, rows = time.perf_counter(), []
        if set(arguments.cells) != set(list_cells()):
            rows = [row for row in json.loads(RESULTS.read_text())["runs"] if row["cell"] not in arguments.cells]
        for key in arguments.cells:
            for state in STATES:
                if state != "certified" or key in certifiable():
                    rows.append(measured(key, state))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        _write(rows, time.perf_counter() - began, arguments.cells)
    rows = json.loads(RESULTS.read_text())["runs"]
    print(table(rows))
    print(f"\n{len(rows)} models, {sum(row['violations'] for row in rows)} violations")
    for state in STATES:
        print(f"{state}: {summary([row for row in rows if row['state'] == state and row['rate']])}")


def _write(rows: list[Row], seconds: float, cells: list[str]) -> None:
    last_cells = cells if len(cells) < len(list_cells()) else "all"
    conditions = {**_conditions(seconds), "cells_of_the_last_run": last_cells}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"conditions": conditions, "runs": rows}, indent=1) + "\n", encoding="utf-8")


def _conditions(seconds: float) -> Row:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "commit": code_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(seconds),
        "hidden_size": HIDDEN,
    }


if __name__ == "__main__":
    main()
