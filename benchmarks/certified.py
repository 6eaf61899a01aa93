"""What staying certified costs: free and certified training on nine classification sets and three forecasting tasks.

    STABLERNN_DATA=... python benchmarks/certified.py --seeds 0 1 2
    STABLERNN_DATA=... python benchmarks/certified.py --regions --seeds 0 --epochs 15

trains through the command line, one thread a job, writes ``benchmarks/results/certified.json``, or with ``--regions``
``certified_regions.json``, after each run and prints tables of docs/background/stability.md, which ``--table`` does
alone. Runs that the file has are not repeated unless ``--again`` is given; ``--only`` takes some of the problems.
``--regions`` are the cells that are projected, on two sets; cells that are certified by construction train alike with
and without. ``--steps`` trains nothing, and times a streamed step of every cell instead; ``--timing`` a projection
beside a training step at 128 units.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import harness
from accuracy import problem_file
from harness import Row, log, mean_spread, read_results, run_json, shown, spread, stored, table, write_results

PROBLEMS = (
    *("digits", "ItalyPowerDemand", "GunPoint", "ECG200", "Coffee"),
    *("JapaneseVowels", "BasicMotions", "ECG5000", "FordA"),
)
FORECASTS = {
    "co2": ["--data", "co2"],
    "etth1-ot": ["--data", "etth1", "--set", "data.channels=OT"],
    "m4-hourly": ["--data", "m4-hourly"],
}
CELLS = {"lipschitz": (False, True), "rnn": (False, True), "exprnn": (True,), "lru": (True,)}
"""Cells, and whether they are trained certified; exprnn and lru cannot be anything else."""
REGION_PROBLEMS = ("digits", "ItalyPowerDemand")
REGIONS: dict[str, tuple[str, ...]] = {
    "spectral_rnn": (),
    "soft_orth": ("form=factored",),
    "kru": (),
    "nnrnn": (),
    "incremental": (),
    "neural_ode_rnn": (),
    "antisymmetric": ("damping=1",),
    "antisymmetric_g": ("damping=1",),
    "antisym_ablation": (),
    "fastgrnn_lsq": (),
    "lstm": (),
    "momentum_lstm": (),
    "sr_lstm": (),
    "ode_lstm": (),
    "slstm": (),
}
"""Cells, with options of theirs that are set for certified training; free training has the defaults."""
STEP_ROWS = {
    "onnx": "step of a stream in the server's runtime",
    "native": "engine native of serve, a stream in the runtime",
}
"""Rows of `stablernn bench --part step`, by the engine that they time."""
STEP_SIZES = ("--hidden-size", "64", "--batch-size", "1", "--length", "96", "--part", "step")
REFERENCE = "lipschitz"
"""The cell whose free training the others are compared with."""


def train(job: Row) -> Row:
    """Return a run through the command line: its test figure and what is proved of it."""
    is_region = "epochs" in job
    data = FORECASTS.get(job["data"]) or ["--data", problem_file(job["data"])]
    words = ["train", *data, "--cell", job["cell"], "--seed", str(job["seed"])]
    words.append("--certified" if job["certified"] else "--free")
    if is_region:
        words += ["--epochs", str(job["epochs"]), "--set", "training.plots=false"]
        options = REGIONS[job["cell"]] if job["certified"] else ()
        words += [word for option in options for word in ("--set", f"model.cell_options.{option}")]
    with tempfile.TemporaryDirectory() as folder:
        summary = run_json([*words, "--run-dir", "run"], folder)
        certificate = run_json(["certify", "run"], folder)
        commit = read_results(Path(folder) / "run" / "env.json")["commit"]
    test, proof, is_restricted = summary["metrics"]["test"], certificate, False
    figure = "mase" if job["data"] in FORECASTS else "accuracy"
    row = {**job, "figure": figure, "value": test[figure]}
    if is_region:
        # Proved within the range of training where nothing is proved for all inputs.
        is_restricted = certificate["kind"] == "none" and certificate["bounded_inputs"] is not None
        proof = certificate["bounded_inputs"] if is_restricted else certificate
        row = {**job, "accuracy": test["accuracy"], "within_range": is_restricted, "rate": proof["contraction_rate"]}
        row["radius"] = max((ball["radius"] for ball in proof["state_balls"]), default=None)
    else:
        row["contraction_rate"] = proof["contraction_rate"]
    row |= {"kind": proof["kind"], "seconds": summary["seconds"], "command": shown(words), "commit": commit}
    log({key: value for key, value in row.items() if key != "command"})
    return row


def time_steps(rounds: int = 5) -> dict[str, dict[str, float]]:
    """Return the processor time of a streamed step in microseconds, by cell and engine: medians of rounds in turn."""

    def measure(cell: str) -> dict[str, float]:
        document = run_json(["bench", "--cell", cell, *STEP_SIZES])
        by_row = {row["row"]: row["cpu_us"] for row in document["tables"][0]["rows"]}
        return {engine: by_row[row] for engine, row in STEP_ROWS.items() if row in by_row}

    times = harness.in_turn({cell: lambda cell=cell: measure(cell) for cell in CELLS}, rounds)
    return {cell: harness.medians(rows, 1) for cell, rows in times.items()}


def runs_of(rows: list[Row], data: str, cell: str, certified: bool) -> list[Row]:
    """Return the runs of a cell on a problem."""
    return [row for row in rows if (row["data"], row["cell"], row["certified"]) == (data, cell, certified)]


def figures_table(rows: list[Row]) -> str:
    """Return a line for each problem, a column for each cell, free and certified, and the seeds of their means."""
    columns = {
        (cell, certified): f"`{cell}`, {'certified' if certified else 'free'}"
        for cell, ways in CELLS.items()
        for certified in ways
    }
    lines = []
    for data in (*PROBLEMS, *FORECASTS):
        runs = {title: runs_of(rows, data, *column) for column, title in columns.items()}
        if any(runs.values()):
            seeds = {title: tuple(sorted(row["seed"] for row in part)) for title, part in runs.items() if part}
            ((usual, _),) = Counter(seeds.values()).most_common(1)
            others = [f"{title} {_numbers(found)}" for title, found in seeds.items() if found != usual]
            means = [mean_spread([row["value"] for row in part]) for part in runs.values()]
            figure = next(row["figure"] for part in runs.values() for row in part)
            lines.append((data, figure, "; ".join([_numbers(usual), *others]), *means))
    return table(("data", "figure", "seeds", *columns.values()), lines)


def _numbers(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def price_table(rows: list[Row], steps: dict[str, dict[str, float]]) -> str:
    """Return a line for each certified cell: its loss against the free reference, what is proved, and its speed.

    On each problem the means of both are over the seeds that both have: one more seed on one side alone would count as
    a difference of the cells. Problems without such a seed are left out.
    """
    lines = []
    for cell in CELLS:
        certified_runs = [row for row in rows if row["cell"] == cell and row["certified"]]
        points, ratios, seconds, counts = [], [], [], []
        for data in (*PROBLEMS, *FORECASTS):
            ours, free = runs_of(rows, data, cell, True), runs_of(rows, data, REFERENCE, False)
            common = {row["seed"] for row in ours} & {row["seed"] for row in free}
            if not common:
                continue
            ours, free = ([row for row in part if row["seed"] in common] for part in (ours, free))
            counts.append(len(common))
            value, reference = (fmean(row["value"] for row in part) for part in (ours, free))
            seconds.append(median(row["seconds"] for row in ours) / median(row["seconds"] for row in free))
            if data in FORECASTS:
                ratios.append(value / reference)
            else:
                points.append(100 * (value - reference))
        if certified_runs:
            pairs = [f"{count} on {number}" for count, number in sorted(Counter(counts).items(), reverse=True)]
            times = [f"{time:.1f} by `{engine}`" for engine, time in steps.get(cell, {}).items()]
            lines.append(
                (
                    f"`{cell}`",
                    ", ".join(pairs) or "none",
                    spread(points, "+.2f"),
                    spread(ratios, ".3f"),
                    " or ".join(sorted({row["kind"] for row in certified_runs})),
                    f"{max(row['contraction_rate'] for row in certified_runs):.4f}",
                    f"{median(seconds):.2f}" if seconds else "-",
                    ", ".join(times) or "-",
                )
            )
    accuracy = f"accuracy against free `{REFERENCE}`, points: median (range over sets)"
    columns = ("pairs of runs with the same seed", accuracy, "MASE against it: median (range)", "proved")
    header = ("cell, certified", *columns, "largest rate", "seconds against it: median", "a streamed step, us")
    return table(header, lines)


def regions_table(rows: list[Row]) -> str:
    """Return a line for each projected cell: accuracies on both sets, and the weakest proof of its runs."""
    lines = []
    for cell, options in REGIONS.items():
        places = list(product(REGION_PROBLEMS, (False, True)))
        runs = [runs_of(rows, data, cell, certified) for data, certified in places]
        certified = [row for (_, flag), part in zip(places, runs, strict=True) for row in part if flag]
        free = sum(row["seconds"] for (_, flag), part in zip(places, runs, strict=True) for row in part if not flag)
        if not certified:
            continue
        proof = " or ".join(sorted({row["kind"] for row in certified}))
        if "bounded" in proof:
            proof += f", by {max(row['radius'] or 0 for row in certified):,.0f}"
            proof += ", within the range of training" if any(row["within_range"] for row in certified) else ""
        else:
            proof += f", rate at most {max(row['rate'] for row in certified):.4f}"
        name = f"`{cell}`" + "".join(f", `{option.replace('=', ': ')}`" for option in options)
        means = [f"{fmean(row['accuracy'] for row in part):.3f}" if part else "-" for part in runs]
        lines.append((name, *means, proof, f"{sum(row['seconds'] for row in certified) / max(free, 1e-9):.2f}"))
    columns = [title for data in REGION_PROBLEMS for title in (f"{data}, free", "certified")]
    return table(("cell", *columns, "proved, certified", "seconds, certified to free"), lines)


def time_projections(cells: list[str], *, length: int = 784, batch_size: int = 32, repeats: int = 3) -> str:
    """Return the median CPU milliseconds of a training step and of the projection after it."""
    import torch

    from stablernn import Classifier
    from stablernn.certificates.input_range import InputRange
    from stablernn.certificates.projection import project_model

    lines = []
    x, y = torch.randn(batch_size, length, 1), torch.randint(0, 10, (batch_size,))
    for cell in cells:
        torch.manual_seed(0)
        options: dict[str, Any] = dict(option.split("=") for option in REGIONS[cell])
        typed = {name: float(value) if value[0].isdigit() else value for name, value in options.items()}
        model = Classifier(cell, 1, 10, 128, cell_options=typed)
        model.fit_scaling([x.reshape(-1, 1).numpy()])
        # A rate at which each step leaves the region.
        optimizer, times = torch.optim.Adam(model.parameters(), lr=0.01), []
        project_model(model, 1e-3, InputRange.of(5.0))
        for step in range(1, repeats + 2):
            started = time.process_time()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            model.after_step(step, repeats)
            trained = time.process_time()
            project_model(model, 1e-3, InputRange.of(5.0))
            times.append((1e3 * (trained - started), 1e3 * (time.process_time() - trained)))
        # The first step allocates buffers.
        step_time, projection_time = (median(values) for values in zip(*times[1:], strict=True))
        lines.append(
            (f"`{cell}`", *(f"{step_time:.0f}", f"{projection_time:.1f}", f"{projection_time / step_time:.3f}"))
        )
        log(lines[-1])
    return table(("cell", "training step, ms", "projection, ms", "projection / step"), lines)


def main() -> None:
    parser = harness.arguments_parser(__doc__)
    parser.add_argument("--regions", action="store_true", help="run the cells that are projected, on two sets")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="*", default=(0, 1, 2))
    parser.add_argument("--epochs", type=int, default=15, help="of --regions")
    parser.add_argument("--only", nargs="*", help="problems to run")
    parser.add_argument("--cells", nargs="*", help="cells to train")
    parser.add_argument("--again", action="store_true", help="repeat runs that the results have")
    parser.add_argument("--results", type=Path, help="file to write and to print the tables of")
    parser.add_argument("--table", action="store_true", help="only print the tables of the results")
    parser.add_argument("--steps", action="store_true", help="train nothing, and time a streamed step of each cell")
    parser.add_argument("--timing", action="store_true", help="train nothing, and time projections")
    arguments = parser.parse_args()
    if arguments.timing:
        print(time_projections(arguments.cells or [*REGIONS]))
        return
    path = arguments.results or stored("certified_regions" if arguments.regions else "certified")
    document = {"conditions": {}, "steps": {}, "runs": [], **read_results(path)}
    if arguments.steps:
        document["steps"] = time_steps()
        write_results(path, document)
    elif not arguments.table:
        problems = REGION_PROBLEMS if arguments.regions else (*PROBLEMS, *FORECASTS)
        cells = arguments.cells or [*(REGIONS if arguments.regions else CELLS)]
        more = {"epochs": arguments.epochs} if arguments.regions else {}
        jobs: list[Row] = [
            {"data": data, "cell": cell, "certified": way, "seed": seed, **more}
            for seed, data, cell in product(arguments.seeds, arguments.only or problems, cells)
            for way in ((False, True) if arguments.regions else CELLS[cell])
        ]
        # A run is known by its settings, which are the first keys of its row.
        runs = {_key(row): row for row in document["runs"]}
        jobs = [job for job in jobs if arguments.again or _key(job) not in runs]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for row in pool.map(train, jobs):
                runs[_key(row)] = row
                document |= {"conditions": harness.conditions("torch"), "runs": [runs[key] for key in sorted(runs)]}
                write_results(path, document)
    if arguments.regions:
        print(regions_table(document["runs"]))
    else:
        print(figures_table(document["runs"]), price_table(document["runs"], document["steps"]), sep="\n\n")


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key, 0) for key in ("data", "cell", "certified", "seed", "epochs"))


if __name__ == "__main__":
    main()
