"""Batch prediction of folders: processor time, memory and start-up next to a loop by hand, and equal answers.

    python benchmarks/batch_prediction.py --engines .venv-engines/bin/python

trains a small classifier, publishes it to a registry of its own, and answers folders of 10,000, 100,000 and 1,000,000
random sequences in files of 10,000: with a loop by hand, ``stablernn predict`` with one process and with two workers,
and the programs for Dask and Spark in ``examples/engines``. ``--engines`` is the interpreter of an environment that
has ``dask[dataframe,distributed] pyspark pandas pyarrow``, and Spark needs Java; without it their rows are left out.
Programs run in turn. Results are kept by size in ``benchmarks/results/batch_prediction.json``, so that ``--sizes
10000`` replaces those of one size and of start-up, and ``--sizes`` alone those of start-up. ``--one-file`` measures
``predict`` of the same sequences in one file alone. ``--page`` prints the tables.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import ROOT, Row, log, measure_use, medians, megabytes, read_results, stored, table, write_results

from stablernn_registry import Registry

STORED = stored("batch_prediction")
STEPS, HIDDEN = 64, 32
FILE_SEQUENCES = 10_000
SIZES = (10_000, 100_000, 1_000_000)
ONE_FILE_FORMATS = {".parquet": "Parquet", ".csv": "CSV"}
MIB = 2**20
START_ROUNDS = 9
IMPORTS = "import onnxruntime, polars, typer"
"""What a command of its kind cannot do without: the measure of its start-up time."""
LOOP = """
import sys
from pathlib import Path
import numpy as np, onnxruntime as ort, polars as pl
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
labels = sys.argv[4].split(",")
Path(sys.argv[3]).mkdir()
for file in sorted(Path(sys.argv[2]).glob("*.parquet")):
    frame = pl.read_parquet(file)
    x = frame["pixel"].to_numpy().astype(np.float32).reshape(-1, int(sys.argv[5]), 1)
    names = frame["unique_id"].gather_every(int(sys.argv[5]))
    states = [argument for argument in session.get_inputs() if argument.name.startswith("state")]
    parts = []
    for start in range(0, len(x), 1024):
        batch = x[start : start + 1024]
        feeds = {"x": batch, "lengths": np.full(len(batch), batch.shape[1])}
        for state in states:
            dtype = np.int64 if "int64" in state.type else np.float32
            feeds[state.name] = np.zeros((len(batch), *state.shape[1:]), dtype)
        parts.append(session.run(["probabilities"], feeds)[0])
    shares = np.concatenate(parts)
    columns = {"id": names, "label": np.array(labels)[shares.argmax(axis=1)]}
    columns |= {f"probability_{label}": shares[:, number] for number, label in enumerate(labels)}
    pl.DataFrame(columns).write_parquet(Path(sys.argv[3]) / file.name)
"""


class Program(NamedTuple):
    """A program that answers the sequences of a folder, and the folder that it writes."""

    name: str
    command: list[str]
    output: Path
    environment: dict[str, str] = {}
    is_engine: bool = False


def write_sequences(folder: Path, files: int, sequences: int) -> None:
    """Write random sequences, a row for each step."""
    import polars as pl

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(files):
        names = [f"meter-{number}-{row:06d}" for row in range(sequences)]
        columns = {
            "unique_id": np.repeat(names, STEPS),
            "ds": np.tile(np.arange(STEPS), sequences),
            "pixel": rng.normal(size=sequences * STEPS).astype(np.float32),
        }
        pl.DataFrame(columns).write_parquet(folder / f"part-{number:03d}.parquet")


def same_bits(first: Path, second: Path) -> bool:
    """Return True if two folders have the same labels and the same bits of probabilities for the same ids."""
    import polars as pl

    frame, other = (pl.read_parquet(folder / "*.parquet").sort("id") for folder in (first, second))
    # Scorers add a column with the reasons for missing answers.
    if "error" in other.columns and other["error"].null_count() < len(other):
        return False
    frame, other = (part.with_columns(pl.col("id", "label").cast(pl.String)) for part in (frame, other))
    # Numbers as their bits; other types of numbers are other columns then.
    frame, other = (
        part.with_columns(pl.selectors.float().reinterpret(signed=False)).select(frame.columns)
        for part in (frame, other)
    )
    return bool(len(frame)) and frame.equals(other) and frame.schema == other.schema


class Workplace:
    """A temporary folder with a trained model in a registry, and the programs that use it."""

    def __init__(self, folder: Path, engines: Path | None) -> None:
        self.folder, self.engines = folder, engines
        os.environ["STABLERNN_REGISTRY"] = str(folder / "registry")
        train = ["train", "--data", "digits", "--cell", "lipschitz", "--hidden-size", str(HIDDEN), "--epochs", "1"]
        harness.run_json([*train, "--run-dir", "run"], folder)
        harness.run_json(["export", "run", "--name", "digits"], folder)
        version = Registry(folder / "registry").get("digits")
        self.graph, self.labels = version.path("sequence.onnx"), version.manifest.labels or ()

    def predict(self, source: Path, output: Path, *words: str) -> list[str]:
        """Return the command that answers a folder or a file."""
        paths = ["--input", str(source), "--output", str(output)]
        return harness.stablernn("-q", "predict", "digits:1", *paths, *words)

    def programs(self, source: Path) -> Iterator[Program]:
        """Yield the programs that answer a folder, the loop first."""
        loop, one, two, *outputs = (self.folder / f"out-{name}" for name in ("loop", "one", "two", "dask", "spark"))
        words = [str(self.graph), str(source), str(loop), ",".join(self.labels), str(STEPS)]
        yield Program("loop", [sys.executable, "-c", LOOP, *words], loop)
        yield Program("predict", self.predict(source, one), one)
        yield Program("predict --workers 2", self.predict(source, two, "--workers", "2"), two)
        for name, output in zip(("Dask, two workers", "Spark local[2]"), outputs if self.engines else (), strict=False):
            script = ROOT / "examples" / "engines" / f"score_with_{output.name.removeprefix('out-')}.py"
            command = [
                str(self.engines),
                str(script),
                str(self.folder / "registry"),
                "digits:1",
                str(source),
                str(output),
            ]
            yield Program(name, command, output, self.engine_environment(), is_engine=True)

    def engine_environment(self) -> dict[str, str]:
        """Return the variables of the engines: their own packages first, and those of this interpreter for the rest."""
        assert self.engines is not None
        own = next(self.engines.parents[1].glob("lib/python*/site-packages"))
        shared = [path for path in sys.path if path.endswith("site-packages")]
        packages = [ROOT, ROOT / "runtime", ROOT / "registry", own, *shared]
        return {
            "PYTHONPATH": os.pathsep.join(map(str, packages)),
            "PYSPARK_PYTHON": str(self.engines),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder),
        }

    def engine_versions(self) -> dict[str, str]:
        """Return the versions of the packages that the figures of the engines depend on."""
        code = "import dask, json, onnxruntime, pyspark; print(json.dumps({m.__name__: m.__version__ for m in "
        command = [str(self.engines), "-c", f"{code}(dask, pyspark, onnxruntime)}}))"]
        environment = {**os.environ, **self.engine_environment()}
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return dict(json.loads(process.stdout))


def measure_size(workplace: Workplace, sequences: int, rounds: int) -> Row:
    """Return the figures of all programs for a folder of ``sequences``."""
    source = workplace.folder / f"in-{sequences}"
    files = sequences // FILE_SEQUENCES
    write_sequences(source, files, FILE_SEQUENCES)
    programs = list(workplace.programs(source))
    rows: dict[str, list[dict[str, float]]] = {}
    left_out = {} if workplace.engines else {"Dask and Spark": "--engines was not given"}
    for number in range(rounds):
        for program in programs:
            # Engines are compared for their answers, and take minutes.
            if program.is_engine and number:
                continue
            shutil.rmtree(program.output, ignore_errors=True)
            try:
                row = measure_use(program.command, workplace.folder, **program.environment)
            except SystemExit as error:
                if not program.is_engine:
                    raise
                left_out[program.name] = f"failed: {error}"
                continue
            rows.setdefault(program.name, []).append(row)
            log(sequences, program.name, row)
    loop, *others = programs
    figures = {
        **harness.conditions(placeholders=PLACEHOLDERS),
        "files": files,
        "input_bytes": sum(file.stat().st_size for file in source.iterdir()),
        "rounds": {name: len(values) for name, values in rows.items()},
        "programs": {name: medians(values) for name, values in rows.items()},
        "same_bits_as_loop": {one.name: same_bits(loop.output, one.output) for one in others if one.name in rows},
        "left_out": left_out,
    }
    if workplace.engines:
        figures["engine_packages"] = workplace.engine_versions()
    for folder in (source, *(program.output for program in programs)):
        shutil.rmtree(folder, ignore_errors=True)
    return figures


PLACEHOLDERS = {"engines": "PYTHON"}


def measure_one_file(workplace: Workplace, sequences: int, rounds: int) -> Row:
    """Return the figures of ``predict`` for one Parquet file, by the format of its answers."""
    import polars as pl

    folder, source = workplace.folder / "parts", workplace.folder / "one.parquet"
    write_sequences(folder, sequences // FILE_SEQUENCES, FILE_SEQUENCES)
    pl.scan_parquet(folder / "*.parquet").sink_parquet(source)
    shutil.rmtree(folder)
    commands = {suffix: workplace.predict(source, workplace.folder / f"answers{suffix}") for suffix in ONE_FILE_FORMATS}
    runs = {suffix: lambda words=words: measure_use(words, workplace.folder) for suffix, words in commands.items()}
    return {
        **harness.conditions(placeholders=PLACEHOLDERS),
        "input_bytes": source.stat().st_size,
        "rounds": rounds,
        "formats": {suffix: medians(values) for suffix, values in harness.in_turn(runs, rounds).items()},
    }


def measure_start(workplace: Workplace) -> Row:
    """Return the time until ``predict`` has answered one sequence, next to that of its imports alone."""
    source, output = workplace.folder / "in-1", workplace.folder / "out-1"
    write_sequences(source, 1, 1)
    predict = workplace.predict(source, output)

    def run_predict() -> dict[str, float]:
        shutil.rmtree(output, ignore_errors=True)
        return measure_use(predict, workplace.folder)

    imports = [sys.executable, "-c", IMPORTS]
    runs = {"imports": lambda: measure_use(imports, workplace.folder), "predict": run_predict}
    rows = harness.in_turn(runs, START_ROUNDS)
    shutil.rmtree(output)
    # Python prints a line for each module that it imports.
    listing = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    process = subprocess.run(predict, env=listing, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    return {
        "command": f"python -c '{IMPORTS}'",
        "rounds": START_ROUNDS,
        **{name: medians(values) for name, values in rows.items()},
        "imports_torch": "torch" in modules,
    }


def page_tables(results: Row) -> dict[str, str]:
    """Return the tables of docs/guides/machines.md."""
    rows: list[Any] = []
    for size, figures in results["sizes"].items():
        answers = {name: "yes" if is_equal else "no" for name, is_equal in figures["same_bits_as_loop"].items()}
        for name, row in figures["programs"].items():
            title = "loop by hand" if name == "loop" else f"`{name}`" if name.startswith("predict") else name
            times = (f"{row[key]:.1f} s" for key in ("processor_seconds", "seconds"))
            rows.append((f"{int(size):,}", title, *times, megabytes(row["memory_mib"] * MIB), answers.get(name, "")))
        rows += [(f"{int(size):,}", name, reason, "", "", "") for name, reason in figures["left_out"].items()]
    folders = table(
        ("sequences", "program", "processor time", "time", "memory of the largest process", "bits of the loop"), rows
    )
    # The engines have an environment of their own, with versions of their own.
    packages = [_versions(results["packages"])]
    packages += sorted(
        {_versions(part["engine_packages"]) for part in results["sizes"].values() if "engine_packages" in part}
    )
    lines = [f"Measured with {'; engines with '.join(packages)}.", ""]
    for size, part in results["sizes"].items():
        rounds = ", ".join(f"{count} of {name}" for name, count in part["rounds"].items())
        lines.append(
            f"- {int(size):,} sequences on {part['date']}, {part['cores']} cores, load average "
            f"{part['load_average']:g} at the end; medians of rounds in turn: {rounds}."
        )
    start = results["start"]
    ratios = [f"{start['predict'][key] / start['imports'][key]:.2f}" for key in ("seconds", "processor_seconds")]
    torch = "imports" if start["imports_torch"] else "does not import"
    lines += [
        "",
        f"`predict` of one sequence takes {ratios[0]} times as long as `{start['command']}`, {ratios[1]} times its",
    ]
    lines.append(f"processor time, and {torch} torch ({start['rounds']} rounds).")
    one_file = table(
        ("sequences", "input", "answers", "processor time", "memory", "date", "rounds"),
        (
            (
                *(f"{int(size):,}", megabytes(part["input_bytes"]), ONE_FILE_FORMATS[suffix]),
                *(f"{row['processor_seconds']:.1f} s", megabytes(row["memory_mib"] * MIB)),
                *(part["date"], part["rounds"]),
            )
            for size, part in results["one_file"].items()
            for suffix, row in part["formats"].items()
        ),
    )
    return {"folders": "\n".join([folders, "", *lines]), "one file": one_file}


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in packages.items())


def main() -> None:
    parser = harness.page_parser(__doc__, STORED)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="sequences of a folder; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one-file", action="store_true", help="only predict of all sequences in one file")
    parser.add_argument("--engines", type=Path, metavar="PYTHON", help="interpreter that has Dask and pyspark")
    options = parser.parse_args()
    if any(size % FILE_SEQUENCES or size <= 0 for size in options.sizes):
        parser.error(f"--sizes must be multiples of {FILE_SEQUENCES:,}, the sequences of a file.")
    if not options.page:
        document = {"sizes": {}, "one_file": {}, **read_results(options.results)}
        document |= {"steps": STEPS, "hidden_size": HIDDEN}
        document["packages"] = {name: harness.installed(name) for name in ("onnxruntime", "polars", "numpy")}
        with tempfile.TemporaryDirectory() as place:
            # The interpreter's own path: what it links to is not in the environment.
            workplace = Workplace(Path(place), options.engines and options.engines.absolute())
            if not options.one_file:
                document["start"] = measure_start(workplace)
                log("start", document["start"])
            for size in sorted(options.sizes):
                if not options.one_file:
                    document["sizes"][str(size)] = measure_size(workplace, size, options.rounds)
                document["one_file"][str(size)] = measure_one_file(workplace, size, options.rounds)
                for name in ("sizes", "one_file"):
                    document[name] = dict(sorted(document[name].items(), key=lambda pair: int(pair[0])))
                write_results(options.results, document)
            write_results(options.results, document)
    if options.results == STORED:
        harness.print_tables(page_tables(read_results(STORED)))


if __name__ == "__main__":
    main()
