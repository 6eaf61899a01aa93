"""`stablernn predict`: a file of sequences or series in, a file of predictions out, without a server.

Of a large table, predictions are made in pieces, so that memory is that of a piece. A folder of files is a job of one
or several processes, which writes a file of answers for each, whole or not at all; then a line of the job's record says
so. A job that was killed at any moment goes on with the files that its record does not have.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from filelock import FileLock, Timeout

from stablernn_cli.errors import REFUSED, CommandError, Reported, UsageError
from stablernn_cli.options import (
    Device,
    DeviceOption,
    EngineOption,
    JsonOption,
    RepairsOption,
    Stamps,
    TargetArgument,
    option,
)
from stablernn_cli.output import Output
from stablernn_cli.prediction import (
    MAX_STEPS,
    FileOptions,
    Predictions,
    describe_notes,
    explain_file,
    forecast_steps,
    leave_out_faulty,
    predict_file,
    predict_inputs,
    predict_series,
    predict_sound_inputs,
    reading_options,
    with_errors,
    with_file_options,
)
from stablernn_cli.prediction_files import FORMATS, PredictionWriter, Table, check_format, table_rows
from stablernn_cli.targets import Target, open_target

if TYPE_CHECKING:
    from stablernn.data.prediction_inputs import InputPiece, PieceCheck


def predict(
    context: typer.Context,
    target: TargetArgument,
    source: Annotated[
        str,
        option(
            "Sequences (.npz, .ts, .tsv, .arff, a table, or a folder of recordings) to classify, series (.csv, "
            ".parquet, .xlsx) to forecast, or steps (.npz, .txt); labels are not needed.",
            "--input",
            metavar="FILE|FOLDER",
        ),
    ],
    destination: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="FILE|FOLDER",
            help="File to write: CSV, Parquet or JSON lines by the suffix .csv, .parquet, .jsonl; - is CSV on stdout. "
            "A folder of Parquet files for a folder of files.",
        ),
    ] = "-",
    horizon: Annotated[
        int | None,
        option("Steps to forecast, at most those that the model was trained for; default: all of them."),
    ] = None,
    id_column: Annotated[
        str | None,
        option("Column that identifies the series; default: that of the training data."),
    ] = None,
    time_column: Annotated[
        str | None,
        option("Column of timestamps; default: that of the training data."),
    ] = None,
    stamps: Annotated[
        Stamps | None,
        option("Meaning of whole numbers as times; default: that of the training data."),
    ] = None,
    repairs: RepairsOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Folders: processes, each with one thread.", show_default="1")
    ] = None,
    shard: Annotated[
        str | None,
        option(
            "Folders: every N-th file, from number I on, which is 0 to N - 1, for jobs on several machines.",
            metavar="I/N",
        ),
    ] = None,
    resume: Annotated[bool, option("Folders: leave out files whose answers are there already.")] = False,
    strict: Annotated[bool, option("Folders: stop at the first file of which a series cannot be answered.")] = False,
    explain: Annotated[
        Path | None,
        option(
            "Write explanation.csv and explanation.png here: what each channel and tenth of the time contributes.",
            metavar="FOLDER",
        ),
    ] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify or forecast a file, or a folder of files

    Classification writes a row for each sequence: id (its name in a table, its file in a folder, else its position in
    the file, from 0), label, and a column probability_LABEL for each class. Forecasting writes a row for each series
    and future timestamp: unique_id, ds (in UTC, with a Z, if the file's times have a zone), target (if there are
    several), mean, and a column q0.1, q0.5 ... for each quantile. The predictions are those that `eval` scores. A model
    of the task predict-next writes a row for each step: id, step, and label, probability, target and nll (the actual
    class and its negative log-likelihood), or a column probability_LABEL or mean_TARGET for each output. A simulation
    writes a row for each sample of the inputs, with its time and a column for each output. Columns of
    series and times that have other names in a table (--id-column, --time-column) keep them.

    With --explain, each tenth of each channel is left out as missing values are, and its contribution is what the
    probability of the answer loses, or the mean absolute change of the mean forecast.

    With --json, the rows are in the document unless --output names a file.

    For a folder, --output names a folder, which gets a Parquet file for each file, written whole or not at all. A file
    that cannot be answered is named with the reason, and the others are answered; the exit code is 3 then. A series
    that cannot be answered has a row at the end of its file, with the reason in the column error.

    Example: stablernn predict digits@production --input new.npz --output answers.csv
    """
    output = Output.of(context, as_json)
    options = FileOptions(horizon, id_column, time_column, stamps, tuple(repairs or ()))
    if _is_job(source, destination):
        if explain is not None:
            raise UsageError(
                "--explain is for one file, and --output names a folder of answers. Leave one of them out."
            )
        share = Shard() if shard is None else Shard.parse(shard)
        job = Job(Path(source), Path(destination), Model(target, "", device, engine), options, share, strict)
        _predict_folder(output, job, workers or 1, resume=resume)
        return
    for name, value in {"workers": workers, "shard": shard, "resume": resume, "strict": strict}.items():
        if value:
            raise UsageError(f"--{name} is for a folder of files whose answers go to a folder. Leave it out.")
    file = None if destination == "-" else Path(destination)
    if file is not None:
        # Two paths may name the same file.
        if file.exists() and file.samefile(source):
            raise UsageError(f"--output '{destination}' is the input itself. Choose another file.")
        # Before the model runs, whose answers would be lost.
        check_format(file)
    with _one_thread("POLARS_MAX_THREADS"), PredictionWriter(file) as writer:
        rows = None
        with output.status(f"Running {target} on {source} ..."):
            model = open_target(target, device, engine)
            if output.as_json and file is None:
                # The document holds all rows, so that pieces would save no memory.
                predictions = predict_file(model, source, options)
                samples, notes, rows = predictions.samples, predictions.notes, list(table_rows(predictions.table))
            else:
                summary = answer_file(model, source, options, writer)
                samples, notes = summary.samples, summary.notes
        for note in describe_notes(notes):
            output.note(f"Note: {note}")
        if rows is None:
            writer.commit()
        explanation = [] if explain is None else explain_file(model, source, options, explain)
        document: dict[str, Any] = {
            "target": model.name,
            "task": model.task,
            "engine": model.engine,
            "input": source,
            "samples": samples,
            "rows": len(writer) if rows is None else len(rows),
            "output": None if file is None else destination,
            **({"beyond_training": notes["beyond_training"]} if notes.get("beyond_training") else {}),
            **({"explanation": explanation} if explanation else {}),
        }
    if output.as_json:
        output.document(document if rows is None else {**document, "predictions": rows})
    elif file is not None:
        output.note(f"Wrote {document['rows']} rows to {destination}.")
    for path in explanation:
        output.note(f"Wrote {path}.")


def _is_job(source: str, destination: str) -> bool:
    """Return whether a folder of files is to be answered by a folder; a folder of recordings is one file of answers."""
    return destination != "-" and Path(source).is_dir() and Path(destination).suffix.lower() not in FORMATS


def _predict_folder(output: Output, job: Job, workers: int, *, resume: bool) -> None:
    """Answer the files of a folder, and print what was done.

    Raises:
        UsageError: If an option does not fit the folder, or there is another job in the destination.
        Reported: If files could not be answered.
    """
    source, destination, words = job.source, job.destination, job.model
    if destination.exists() and destination.samefile(source):
        raise UsageError(f"--output '{destination}' is the input itself. Choose another folder.")
    files = job.files()
    folders = sum(entry.is_dir() for entry in source.iterdir())
    if folders:
        output.warn(f"{folders} folders in '{source}' are left out: files are answered, not what folders hold.")
    with _one_thread(), _worker_pool(min(workers, len(files))) as pool:
        with output.status(f"Opening {words.target} ..."):
            model = open_target(words.target, words.device, words.engine)
        # What the words stand for here: an alias could move, and two processes could choose two devices.
        job = replace(job, model=Model(model.name, model.digest, model.device or words.device, model.engine))
        with job.open_destination(resume=resume) as entries:
            left = [file for file in files if not job.is_done(file, entries.get(file.name))]
            counts = _Counts(len(left), output)
            for entry in _run_job(job, model, left, pool):
                counts.add(entry)
                if counts.failed and job.strict:
                    break
    done_before = len(files) - len(left)
    document: dict[str, Any] = {
        "target": model.name,
        "digest": model.digest,
        "task": model.task,
        "engine": model.engine,
        "input": str(source),
        "output": str(destination),
        "files": len(files),
        "done": counts.done,
        "done_before": done_before,
        "failed": counts.failed,
        "samples": counts.samples,
        "without_answer": counts.without_answer,
        "rows": counts.rows,
    }
    if output.as_json:
        output.document(document)
    before = f", {done_before} were done before" if done_before else ""
    answered = f"Answered {counts.done} of {len(files)} files ({counts.rows} rows)"
    output.note(f"{answered}{before}; the answers are in {destination}.")
    if counts.failed:
        output.note(f"{len(counts.failed)} could not be answered. Mend them, and repeat the command with --resume.")
        raise Reported(REFUSED)


class _Counts:
    """Counts over the files of a job, each of which is printed as it is added.

    Args:
        total: Files to answer.
        output: Where to print.

    Attributes:
        failed: Reasons of the files that could not be answered, by name.
        done: Files that were answered.
        samples: Samples in them.
        rows: Rows of their answers.
        without_answer: Series in them that could not be answered.
    """

    def __init__(self, total: int, output: Output) -> None:
        self.failed: dict[str, str] = {}
        self.done = self.samples = self.rows = self.without_answer = 0
        self._total = total
        self._output = output

    def add(self, entry: Entry) -> None:
        """Count and print a file, by its entry in the record of the job."""
        file = entry["file"]
        if "error" in entry:
            self.failed[file] = entry["error"]
            self._output.warn(f"{file}: {entry['error']}")
            return
        self.done += 1
        self.samples += entry["samples"]
        self.rows += entry["rows"]
        if entry["errors"]:
            self.without_answer += entry["errors"]
            self._output.warn(f"{file}: {entry['errors']} series have no answer; the column 'error' says why.")
        notes = f" ({'; '.join(entry['notes'])})" if entry["notes"] else ""
        number = self.done + len(self.failed)
        self._output.note(f"{number} of {self._total}: {file}, {entry['rows']} rows{notes}")


def answer_file(
    model: Target,
    source: str,
    options: FileOptions,
    writer: PredictionWriter,
    *,
    has_errors: bool = False,
    strict: bool = False,
) -> Predictions:
    """Write the predictions of a model for a file to a writer, which is not committed, and return them without a table.

    Args:
        model: The model.
        source: File of sequences, series or steps.
        options: How the file is read and answered.
        writer: Gets the predictions; empty.
        has_errors: Whether series at fault cost no other its answer, and have rows with the reason, see
            :func:`predict_series`.
        strict: With ``has_errors``: whether the first series at fault costs all others their answers.

    Raises:
        UsageError: If an option does not fit the model or the file.
        CommandError: If the writer cannot write.
        stablernn.errors.DataError: If the file cannot be used, or none of its series can.
    """
    from stablernn.data.table.pieces import NotInPieces

    try:
        return _answer_in_pieces(model, source, options, writer, has_errors=has_errors, strict=strict)
    except NotInPieces as error:
        reason = str(error)
    writer.clear()
    if has_errors:
        predictions = predict_series(model, source, options, strict=strict)
    else:
        predictions = predict_file(model, source, options)
    writer.add(predictions.table)
    notes = {**predictions.notes, **({"read_whole": reason} if reason else {})}
    return replace(predictions, table={}, notes=notes)


def _answer_in_pieces(
    model: Target, source: str, options: FileOptions, writer: PredictionWriter, *, has_errors: bool, strict: bool
) -> Predictions:
    """Answer a table in pieces, with the bits that it has when it is read whole.

    Raises:
        NotInPieces: If it must be read whole.
    """
    from stablernn.data.files import is_table
    from stablernn.data.prediction_inputs import PieceCheck, read_input_pieces
    from stablernn.data.table.pieces import NotInPieces
    from stablernn.data.table.series import no_series_error

    # Answers of other engines depend, in their last bits, on what is run together.
    if (
        model.task in ("predict-next", "simulate")
        or not is_table(source)
        or (model.engine, model.device) != ("onnx", "cpu")
    ):
        raise NotInPieces
    model = with_file_options(model, source, options)
    answers = _PieceAnswers(model, source, forecast_steps(model, options.horizon), PieceCheck(), has_errors, strict)
    reading = {**reading_options(model, options), "max_steps": MAX_STEPS if has_errors else None}
    last: Table = {}
    faults: dict[str, str] = {}
    samples, notes = 0, dict[str, Any]()
    for predictions in map(answers.predict, read_input_pieces(source, **reading)):
        faults |= predictions.errors
        if not predictions.samples:
            continue
        if last:
            writer.add(with_errors(last, {}) if has_errors else last)
        last = predictions.table
        samples += predictions.samples
        notes = _add_notes(notes, predictions.notes)
    if not last:
        raise no_series_error(Path(source).name, faults)
    # Series without an answer stand at the end of the file.
    writer.add(with_errors(last, faults) if has_errors else last)
    return Predictions({}, samples, notes, faults)


@dataclass(frozen=True)
class _PieceAnswers:
    """Answers the pieces of a table one after the other."""

    model: Target
    source: str
    steps: int | None
    check: PieceCheck
    has_errors: bool
    strict: bool

    def predict(self, piece: InputPiece) -> Predictions:
        """Return the predictions for a piece, without samples if all of its series are at fault.

        Raises:
            NotInPieces: If the piece has other answers in the whole file, or may have.
            DataError: If the piece is the whole file, and cannot be used, or has a bad cell, and no series may lack its
                answer.
        """
        from stablernn.data.table.cells import CellError
        from stablernn.data.table.pieces import NotInPieces
        from stablernn.errors import DataError

        names: list[str] = []

        def predict(exclude: Mapping[str, str]) -> Predictions:
            if exclude and not piece.is_whole and not piece.has_series_besides(exclude):
                names[:] = exclude
                return Predictions({}, 0, {})
            inputs = piece.read(exclude)
            names[:] = [*inputs.ids, *exclude]
            self.check.add_times(inputs)
            if self.has_errors:
                return predict_sound_inputs(self.model, self.source, inputs, self.steps)
            return predict_inputs(self.model, inputs, self.steps)

        is_strict = self.strict or not self.has_errors
        try:
            predictions, faults = leave_out_faulty(predict, strict=is_strict)
        except DataError as error:
            # The whole file has the same error, since the rows of a piece have the numbers that they have in the file.
            if piece.is_whole or (is_strict and isinstance(error, CellError)):
                raise
            # Only the whole file says whether it is an error there, and in which words.
            raise NotInPieces from error
        self.check.add_names(names)
        return replace(predictions, errors=faults)


def _add_notes(notes: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes of two pieces as one: sums of counts, and all else as the first piece has it."""
    added = {**others, **notes}
    for name in notes.keys() & others.keys():
        value, other = notes[name], others[name]
        if isinstance(value, Mapping):
            added[name] = _add_notes(value, other)
        elif isinstance(value, int) and not isinstance(value, bool):
            added[name] = value + other
    return added


JOB = "_job.json"
"""What a job answers with which version; all shards have the same."""
RECORDS = "_done*.jsonl"
"""The records of all shards: a line for each file that is done or failed."""

Entry = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """The model of a job, which each process opens.

    Attributes:
        target: Run directory, or NAME:VERSION: an alias could move during the job.
        digest: Digest of the target; a process that finds another one refuses.
        device: Device to compute on.
        engine: Name of the engine that runs it.
    """

    target: str
    digest: str
    device: Device
    engine: str | None

    def open(self) -> Target:
        """Open it.

        Raises:
            CommandError: If it is not what the job began with.
        """
        from stablernn_cli.targets import open_target

        target = open_target(self.target, self.device, self.engine)
        if target.digest != self.digest:
            raise CommandError(
                f"'{self.target}' has changed: the job has {self.digest}, and here it is {target.digest}. Start "
                "another job in another folder."
            )
        return target


@dataclass(frozen=True)
class Shard:
    """A share of the files of a job.

    A file belongs to a shard by the hash of its name, so that files which come or go between the starts of two shards
    change nothing for the others.

    Attributes:
        number: Its number, from 0 on.
        count: Number of the shards.
    """

    number: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``I/N``, with I from 0 to N - 1.

        Raises:
            UsageError: If it is something else.
        """
        number, slash, count = text.partition("/")
        if slash and number.isdecimal() and count.isdecimal() and int(number) < int(count):
            return cls(int(number), int(count))
        raise UsageError(f"--shard must be I/N with I from 0 to N - 1, such as 0/4, got '{text}'.")

    @property
    def record(self) -> str:
        """The name of the file with a line for each file of the shard."""
        return "_done.jsonl" if self.count == 1 else f"_done-{self.number}-of-{self.count}.jsonl"

    def has(self, name: str) -> bool:
        """Return whether a file belongs to the shard."""
        return int(hashlib.sha256(os.fsencode(name)).hexdigest(), 16) % self.count == self.number


@dataclass(frozen=True)
class Job:
    """The predictions of a model for the files of a folder.

    Attributes:
        source: The folder.
        destination: The folder of the answers.
        model: The model.
        options: How files are read and answered.
        shard: The share of the files.
        strict: Whether a series at fault costs its file all answers.
    """

    source: Path
    destination: Path
    model: Model
    options: FileOptions
    shard: Shard
    strict: bool = False

    def files(self) -> list[Path]:
        """Return the files of the shard, sorted by name; those that begin with a dot or an underscore are left out.

        Raises:
            UsageError: If the folder has none, or two whose answers would have the same name.
        """
        names = sorted(entry.name for entry in os.scandir(self.source) if entry.is_file() and entry.name[0] not in "._")
        if not names:
            raise UsageError(f"There are no files in the folder '{self.source}'.")
        outputs: dict[str, str] = {}
        for name in names:
            other = outputs.setdefault(self.output(Path(name)).name, name)
            if other != name:
                raise UsageError(f"The answers to '{other}' and to '{name}' would be one file. Rename one of them.")
        return [self.source / name for name in names if self.shard.has(name)]

    def output(self, source: Path) -> Path:
        """Return the file of the answers to a file."""
        is_parquet = source.suffix.lower() == ".parquet"
        return self.destination / (source.name if is_parquet else f"{source.name}.parquet")

    @contextmanager
    def open_destination(self, *, resume: bool) -> Iterator[dict[str, Entry]]:
        """Make the folder, and keep other processes from the shard; the value has the entries of all records by file.

        Raises:
            UsageError: If there are answers in the folder and ``resume`` is not set, it is that of another job, or
                another process answers the shard.
            CommandError: If the folder cannot be written to.
        """
        document = {
            "target": self.model.target,
            "digest": self.model.digest,
            "engine": self.model.engine,
            "device": self.model.device,
            "input": self.source.resolve().name,
            **self.options.document(),
        }
        lock = FileLock(self.destination / f".{self.shard.record}.lock", timeout=0)
        try:
            self.destination.mkdir(parents=True, exist_ok=True)
            _create(self.destination / JOB, json.dumps(document, indent=2) + "\n")
            self._check(document)
            lock.acquire()
        except Timeout:
            raise UsageError(
                f"Another process answers this folder to '{self.destination}'. Wait for it, or take another --shard."
            ) from None
        except OSError as error:
            raise CommandError(f"Cannot write to the folder '{self.destination}': {error.strerror}.") from error
        try:
            entries = self._entries()
            answered = [file for file in map(self.output, self.files()) if file.exists()]
            if answered and not resume:
                raise UsageError(
                    f"There are answers in '{self.destination}' already, such as '{answered[0].name}'. Go on with "
                    "--resume, or choose another --output."
                )
            # What a process that was killed had begun to write.
            for source in self.files():
                for part in self.destination.glob(f".{glob.escape(self.output(source).name)}.*"):
                    part.unlink(missing_ok=True)
            yield entries
        finally:
            lock.release()

    def _check(self, document: Mapping[str, Any]) -> None:
        """Refuse a folder that is that of another job."""
        try:
            before = json.loads((self.destination / JOB).read_text(encoding="utf-8"))
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise CommandError(f"'{self.destination / JOB}' is damaged. Choose another --output.")
        for key in sorted({*before, *document}):
            if before.get(key) != document.get(key):
                raise UsageError(
                    f"The folder '{self.destination}' is that of another job: '{key}' was {before.get(key)!r}, and is "
                    f"now {document.get(key)!r}. Choose another --output."
                )

    def _entries(self) -> dict[str, Entry]:
        entries = {}
        for path in sorted(self.destination.glob(RECORDS)):
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
                try:
                    entry = json.loads(line)
                # The last line of a job that was killed.
                except ValueError:
                    continue
                entries[entry["file"]] = entry
        return entries

    def is_done(self, source: Path, entry: Entry | None) -> bool:
        """Return whether the record has the answers to a file as it is now, and they are there."""
        # Answers of an older version have no column of errors, which all files of a folder must have.
        if entry is None or "error" in entry or "errors" not in entry:
            return False
        try:
            return bool(
                entry["input_sha256"] == _sha256(source) and entry["output_sha256"] == _sha256(self.output(source))
            )
        except OSError:
            return False

    def record(self, entry: Entry) -> None:
        """Append an entry to the record.

        Raises:
            CommandError: If it cannot be written.
        """
        try:
            with (self.destination / self.shard.record).open("a", encoding="utf-8") as file:
                # A half line of a job that was killed must not swallow this one.
                file.write(("\n" if file.tell() else "") + json.dumps(entry))
        except OSError as error:
            raise CommandError(f"Cannot write to the folder '{self.destination}': {error.strerror}.") from error

    def answer(self, target: Target, source: Path) -> Entry:
        """Write the answers to a file, and return its entry: what it holds, or why it cannot be answered.

        Raises:
            CommandError: If the answers cannot be written.
        """
        output = self.output(source)
        with PredictionWriter(output) as writer:
            entry = self._answer(target, source, writer)
        return entry if "error" in entry else {**entry, "output": output.name, "output_sha256": _sha256(output)}

    def _answer(self, target: Target, source: Path, writer: PredictionWriter) -> Entry:
        from stablernn.errors import StableRNNError
        from stablernn_runtime.errors import InputError

        entry: Entry = {"file": source.name}
        try:
            state, digest = _file_state(source), _sha256(source)
            summary = answer_file(target, str(source), self.options, writer, has_errors=True, strict=self.strict)
            if _file_state(source) != state:
                return {**entry, "error": "It changed while it was read."}
        except (StableRNNError, InputError, UsageError, OSError) as error:
            return {**entry, "error": str(error)}
        writer.commit()
        return {
            **entry,
            "samples": summary.samples + len(summary.errors),
            "rows": len(writer),
            "errors": len(summary.errors),
            "notes": list(describe_notes(summary.notes)),
            "input_sha256": digest,
        }


def _run_job(job: Job, target: Target, files: Sequence[Path], pool: ProcessPoolExecutor | None) -> Iterator[Entry]:
    """Answer files, and yield the entry of each, which is in the record then.

    Args:
        job: The job.
        target: The opened model, which answers where there is no pool.
        files: The files.
        pool: Processes from :func:`_worker_pool`.

    Raises:
        CommandError: If answers cannot be written, or a process died.
    """
    if pool is None:
        for source in files:
            entry = job.answer(target, source)
            job.record(entry)
            yield entry
        return
    try:
        waiting: set[Future[Entry]] = {pool.submit(_answer, job, source) for source in files}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                entry = future.result()
                job.record(entry)
                yield entry
    except BrokenProcessPool:
        raise CommandError(
            "A process of the job ended without an answer; memory that ran out is the usual reason. What was done "
            "is kept: repeat the command with --resume, and with fewer --workers."
        ) from None


@contextmanager
def _worker_pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Start processes, which load their libraries while this one opens the model; the value is None for one worker."""
    if workers == 1:
        yield None
        return
    # A new interpreter instead of a fork, which the threads of ONNX Runtime would not survive.
    with _one_thread():
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _start)
        try:
            # A process starts with a task, and only now do all of them get the limits of threads.
            for _ in range(workers):
                pool.submit(_do_nothing)
            yield pool
        except BaseException:
            # After Ctrl-C nothing goes on.
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise
        else:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _one_thread(*names: str) -> Iterator[None]:
    """Let libraries that are loaded meanwhile, here or in a new process, compute and read with one thread.

    With more of them memory would grow with the number of files or pieces, since each thread keeps what it has freed.

    Args:
        names: Environment variables of these libraries; default: of all that predictions use.
    """
    names = names or ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start() -> None:
    """Load in a new process what opening a model and reading files needs."""
    # Ctrl-C reaches every process of a terminal; the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name in (
        "stablernn.data.prediction_inputs",
        "stablernn.training.settings.load",
        "stablernn_runtime.served_model",
    ):
        import_module(name)


def _do_nothing() -> None:
    pass


def _end_with_parent() -> None:
    """End this process as soon as the one that started it was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer(job: Job, source: Path) -> Entry:
    return job.answer(_open(job.model), source)


@cache
def _open(model: Model) -> Target:
    """Open the model of a job, once in a process."""
    return model.open()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_state(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is written to or replaced."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _create(path: Path, text: str) -> None:
    """Write a file whole that another shard may write at the same moment; the first one stays."""
    if path.exists():
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        # Some network file systems have no links; shards of one job write the same text.
        except OSError:
            os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
