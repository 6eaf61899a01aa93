"""Batch prediction of folders: processor time, memory and start-up next to a loop by hand, and equal answers.

    python benchmarks/batch_prediction.py --engines .venv-engines/bin/python

trains a small classifier, publishes it to a registry of its own, and answers folders of 10,000, 100,000 and 1,000,000
random sequences in files of 10,000: with a loop by hand, ``stablernn predict`` with one process and with two workers,
and the programs for Dask and Spark in ``examples/engines``. ``--engines`` is the interpreter of an environment that
has ``dask[dataframe,distributed] pyspark pandas pyarrow``, and Spark needs Java; without it their rows are left out.
Programs run in turn. Results are kept by size in ``benchmarks/results/batch_prediction.json``, so that ``--sizes
10000`` replaces those of one size and of start-up, and ``--sizes`` alone those of start-up. ``--one-file`` measures
``predict`` of the same sequences in one file alone. ``python benchmarks/scaling_page.py`` writes them into
``docs/scaling.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import given_command

from stablernn_registry import Registry

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "batch_prediction.json"
STEPS, HIDDEN = 64, 32
FILE_SEQUENCES = 10_000
SIZES = (10_000, 100_000, 1_000_000)
MOST_REPEATED = 1_000_000
"""Sequences above which programs run once."""
ONE_FILE_FORMATS = (".parquet", ".csv")
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
    environment: dict[str, str]
    is_engine: bool = False


class ProgramError(Exception):
    """A program failed, with the last line of what it printed."""


def measure(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Return seconds, processor seconds and the memory of the largest process of a program.

    Raises:
        ProgramError: If it fails.
    """
    wrapped = [sys.executable, str(ROOT / "benchmarks" / "process_use.py"), *command]
    process = subprocess.run(wrapped, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise ProgramError((process.stderr.strip().splitlines() or ["no message"])[-1])
    row: dict[str, float] = json.loads(process.stdout)
    return row


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}


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


def versions(python: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return the versions of the packages of another interpreter that the figures depend on."""
    code = "import dask, json, onnxruntime, pyspark; print(json.dumps({m.__name__: m.__version__ for m in "
    code += "(dask, pyspark, onnxruntime)}))"
    process = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True)
    numbers: dict[str, str] = json.loads(process.stdout)
    return numbers


def same_bits(first: Path, second: Path) -> bool:
    """Return whether two folders have the same labels and the same bits of probabilities for the same ids."""
    import polars as pl

    frame, other = (pl.read_parquet(folder / "*.parquet").sort("id") for folder in (first, second))
    # Scorers add a column with the reasons for missing answers.
    if "error" in other.columns and other["error"].null_count() < len(other):
        return False
    probabilities = [name for name in frame.columns if name.startswith("probability_")]
    return bool(
        len(frame)
        and len(frame) == len(other)
        and all(frame[name].cast(pl.String).equals(other[name].cast(pl.String)) for name in ("id", "label"))
        and all(frame.schema[name] == other.schema[name] == pl.Float32() for name in probabilities)
        and all(
            np.array_equal(frame[name].to_numpy().view(np.uint32), other[name].to_numpy().view(np.uint32))
            for name in probabilities
        )
    )


def engine_environment(python: Path, environment: dict[str, str], temporary: Path) -> dict[str, str]:
    """Return the environment of the engines: their own packages first, and those of this interpreter for the rest."""
    own = next(python.parents[1].glob("lib/python*/site-packages"))
    shared = [path for path in sys.path if path.endswith("site-packages")]
    packages = [ROOT, ROOT / "runtime", ROOT / "registry", own, *shared]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(temporary),
    }


class Workplace:
    """A temporary folder with a trained model in a registry, and the programs that use it."""

    def __init__(self, folder: Path, engines: Path | None) -> None:
        self.folder, self.engines = folder, engines
        self.environment = {**os.environ, "STABLERNN_REGISTRY": str(folder / "registry"), "OMP_NUM_THREADS": "1"}
        self.stablernn = [sys.executable, "-m", "stablernn_cli", "-q"]
        train = ["train", "--data", "digits", "--cell", "lipschitz", "--hidden-size", str(HIDDEN), "--epochs", "1"]
        for command in (["--run-dir", str(folder / "run")], ["--name", "digits"]):
            words = [*train, *command] if "--run-dir" in command else ["export", str(folder / "run"), *command]
            subprocess.run([*self.stablernn, *words], env=self.environment, check=True)
        version = Registry(folder / "registry").get("digits")
        self.graph, self.labels = version.path("sequence.onnx"), version.manifest.labels or ()

    def predict(self, source: Path, output: Path) -> list[str]:
        """Return the command that answers a folder with one process."""
        return [*self.stablernn, "predict", "digits:1", "--input", str(source), "--output", str(output)]

    def programs(self, source: Path) -> list[Program]:
        """Return the programs that answer a folder, the loop first."""
        outputs = {name: self.folder / f"out-{name}" for name in ("loop", "one", "two", "dask", "spark")}
        loop = [sys.executable, "-c", LOOP, str(self.graph), str(source), str(outputs["loop"])]
        loop += [",".join(self.labels), str(STEPS)]
        two = [*self.predict(source, outputs["two"]), "--workers", "2"]
        programs = [
            Program("loop", loop, outputs["loop"], self.environment),
            Program("predict", self.predict(source, outputs["one"]), outputs["one"], self.environment),
            Program("predict --workers 2", two, outputs["two"], self.environment),
        ]
        if self.engines is not None:
            environment = engine_environment(self.engines, self.environment, self.folder)
            for name, engine in (("Dask, two workers", "dask"), ("Spark local[2]", "spark")):
                script = ROOT / "examples" / "engines" / f"score_with_{engine}.py"
                words = [str(self.folder / "registry"), "digits:1", str(source), str(outputs[engine])]
                command = [str(self.engines), str(script), *words]
                programs.append(Program(name, command, outputs[engine], environment, is_engine=True))
        return programs


def measure_size(workplace: Workplace, sequences: int, rounds: int) -> dict[str, Any]:
    """Return the figures of all programs for a folder of ``sequences``."""
    source = workplace.folder / f"in-{sequences}"
    files = sequences // FILE_SEQUENCES
    write_sequences(source, files, FILE_SEQUENCES)
    programs = workplace.programs(source)
    rows: dict[str, list[dict[str, float]]] = {}
    equal: dict[str, bool] = {}
    left_out = {} if workplace.engines else {"Dask and Spark": "--engines was not given"}
    for number in range(rounds):
        for program in programs:
            # Engines are compared for their answers, and take minutes.
            if program.is_engine and number:
                continue
            shutil.rmtree(program.output, ignore_errors=True)
            try:
                rows.setdefault(program.name, []).append(measure(program.command, program.environment))
            except ProgramError as error:
                if not program.is_engine:
                    raise
                del rows[program.name]
                left_out[program.name] = f"failed: {error}"
                continue
            print(sequences, program.name, rows[program.name][-1], file=sys.stderr, flush=True)
    for program in programs[1:]:
        if program.name in rows:
            equal[program.name] = same_bits(programs[0].output, program.output)
    figures = {
        "command": given_command({"--engines": "PYTHON"}),
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "files": files,
        "input_bytes": sum(file.stat().st_size for file in source.iterdir()),
        "output_bytes": sum(file.stat().st_size for file in programs[0].output.iterdir()),
        "rounds": {name: len(values) for name, values in rows.items()},
        "programs": {name: medians(values) for name, values in rows.items()},
        "same_bits_as_loop": equal,
        "left_out": left_out,
    }
    if workplace.engines:
        environment = engine_environment(workplace.engines, workplace.environment, workplace.folder)
        figures["engine_packages"] = versions(workplace.engines, environment)
    for folder in (source, *(program.output for program in programs)):
        shutil.rmtree(folder, ignore_errors=True)
    return figures


def measure_one_file(workplace: Workplace, sequences: int, rounds: int) -> dict[str, Any]:
    """Return the figures of ``predict`` for one Parquet file, by the format of its answers."""
    import polars as pl

    folder, source = workplace.folder / "parts", workplace.folder / "one.parquet"
    write_sequences(folder, sequences // FILE_SEQUENCES, FILE_SEQUENCES)
    pl.scan_parquet(folder / "*.parquet").sink_parquet(source)
    shutil.rmtree(folder)
    rows: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for suffix in ONE_FILE_FORMATS:
            command = workplace.predict(source, workplace.folder / f"answers{suffix}")
            rows.setdefault(suffix, []).append(measure(command, workplace.environment))
            print(sequences, "in one file,", suffix, rows[suffix][-1], file=sys.stderr, flush=True)
    return {
        "command": given_command({"--engines": "PYTHON"}),
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "input_bytes": source.stat().st_size,
        "rounds": rounds,
        "formats": {suffix: medians(values) for suffix, values in rows.items()},
    }


def measure_start(workplace: Workplace) -> dict[str, Any]:
    """Return the time until ``predict`` has answered one sequence, next to that of its imports alone."""
    source, output = workplace.folder / "in-1", workplace.folder / "out-1"
    write_sequences(source, 1, 1)
    commands = {"imports": [sys.executable, "-c", IMPORTS], "predict": workplace.predict(source, output)}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(START_ROUNDS):
        for name, command in commands.items():
            shutil.rmtree(output, ignore_errors=True)
            rows[name].append(measure(command, workplace.environment))
    shutil.rmtree(output)
    # Python prints a line for each module that it imports.
    listing = {**workplace.environment, "PYTHONPROFILEIMPORTTIME": "1"}
    process = subprocess.run(commands["predict"], env=listing, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    return {
        "command": f"python -c '{IMPORTS}'",
        "rounds": START_ROUNDS,
        **{name: medians(values) for name, values in rows.items()},
        "imports_torch": "torch" in modules,
    }


def write_results(document: dict[str, Any]) -> None:
    """Write the results, the smallest folder first."""
    for name in ("sizes", "one_file"):
        document[name] = dict(sorted(document[name].items(), key=lambda pair: int(pair[0])))
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="sequences of a folder; default: all")
    parser.add_argument(
        "--rounds", type=int, default=3, help=f"up to {MOST_REPEATED:,} sequences; above them it is one"
    )
    parser.add_argument("--one-file", action="store_true", help="only predict of all sequences in one file")
    parser.add_argument("--engines", type=Path, metavar="PYTHON", help="interpreter that has Dask and pyspark")
    options = parser.parse_args()
    if any(size % FILE_SEQUENCES or size <= 0 for size in options.sizes):
        parser.error(f"--sizes must be multiples of {FILE_SEQUENCES:,}, the sequences of a file.")
    if options.engines and not options.engines.exists():
        parser.error(f"--engines: there is no '{options.engines}'.")
    document: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    document = {
        "packages": {name: import_module(name).__version__ for name in ("onnxruntime", "polars", "numpy")},
        "steps": STEPS,
        "hidden_size": HIDDEN,
        "start": document.get("start", {}),
        "sizes": document.get("sizes", {}),
        "one_file": document.get("one_file", {}),
    }
    with tempfile.TemporaryDirectory() as place:
        # The interpreter's own path: what it links to is not in the environment.
        workplace = Workplace(Path(place), options.engines and options.engines.absolute())
        if not options.one_file:
            document["start"] = measure_start(workplace)
            print("start", document["start"], file=sys.stderr, flush=True)
            write_results(document)
        for size in sorted(options.sizes):
            rounds = options.rounds if size <= MOST_REPEATED else 1
            if not options.one_file:
                document["sizes"][str(size)] = measure_size(workplace, size, rounds)
            document["one_file"][str(size)] = measure_one_file(workplace, size, rounds)
            write_results(document)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
