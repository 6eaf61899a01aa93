"""Predictions for a folder of files: a file of answers for each, by several processes, in a job that can be resumed.

The answers to a file are written whole or not at all; then a line of the record of the job says so. A job that was
killed at any moment goes on with the files that its record does not have.
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
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.options import Device
from stablernn_cli.prediction.answers import FileOptions, describe_notes
from stablernn_cli.prediction.files import PredictionWriter
from stablernn_cli.prediction.pieces import answer_file

if TYPE_CHECKING:
    from stablernn_cli.targets import Target

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


def run_job(job: Job, target: Target, files: Sequence[Path], pool: ProcessPoolExecutor | None) -> Iterator[Entry]:
    """Answer files, and yield the entry of each, which is in the record then.

    Args:
        job: The job.
        target: The opened model, which answers where there is no pool.
        files: The files.
        pool: Processes from :func:`worker_pool`.

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
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Start processes, which load their libraries while this one opens the model; the value is None for one worker."""
    if workers == 1:
        yield None
        return
    # A new interpreter instead of a fork, which the threads of ONNX Runtime would not survive.
    with one_thread():
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
def one_thread(*names: str) -> Iterator[None]:
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
