"""Test figures of the shipped defaults: every cell on digits, three on co2, three seeds each.

    python benchmarks/defaults.py --jobs 2

trains through the command line, one thread a job, and writes ``benchmarks/results/defaults.json``;
``make docs`` puts the table into the README. About 20 minutes on two cores.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import harness
from harness import Row, log, read_results, run_json, shown, stored, write_results

from stablernn import list_cells

DATA: dict[str, tuple[tuple[str, ...], list[str], str]] = {
    "digits": (tuple(list_cells()), ["--hidden-size", "128"], "accuracy"),
    "co2": (("lipschitz", "lvf_mid", "gru"), [], "relative_mae"),
}
"""Cells, options and the figure of each data set."""


def train(data: str, cell: str, seed: int) -> Row:
    """Train once, and return the figures."""
    _, options, figure = DATA[data]
    words = ["train", "--data", data, "--cell", cell, *options, "--free", "--seed", str(seed)]
    summary = run_json(words)
    test = summary["metrics"]["test"]
    row = {"data": data, "cell": cell, "seed": seed, "command": shown(words), "figure": figure, "value": test[figure]}
    log(row)
    return {**row, "mase": test.get("mase"), "parameters": summary["parameters"], "seconds": summary["seconds"]}


def main() -> None:
    parser = harness.arguments_parser(__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cells", nargs="*", help="run these cells again and keep the other rows")
    parser.add_argument("--results", type=Path, default=stored("defaults"), help="the file of all figures")
    arguments = parser.parse_args()
    jobs = [job for data, (cells, *_) in DATA.items() for job in product([data], cells, arguments.seeds)]
    jobs = [job for job in jobs if job[1] in (arguments.cells or [job[1]])]
    rows = {_key(row): row for row in read_results(arguments.results, {"runs": []})["runs"] if arguments.cells}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows |= {_key(row): row for row in pool.map(lambda job: train(*job), jobs)}
    runs = [rows[key] for key in sorted(rows)]
    write_results(arguments.results, {"conditions": harness.conditions("torch"), "runs": runs})


def _key(row: Row) -> tuple[int, str, int]:
    return list(DATA).index(row["data"]), row["cell"], row["seed"]


if __name__ == "__main__":
    main()
