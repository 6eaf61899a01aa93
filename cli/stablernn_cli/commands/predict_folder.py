"""`stablernn predict` for a folder of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from stablernn_cli.errors import REFUSED, Reported, UsageError
from stablernn_cli.options import Device
from stablernn_cli.output import Output
from stablernn_cli.prediction.answers import FileOptions
from stablernn_cli.prediction.job import Entry, Job, Model, Shard, one_thread, run_job, worker_pool
from stablernn_cli.targets import open_target


def predict_folder(
    output: Output,
    source: Path,
    destination: Path,
    target: str,
    options: FileOptions,
    *,
    device: Device,
    engine: str | None,
    workers: int,
    shard: str | None,
    resume: bool,
    strict: bool,
) -> None:
    """Answer the files of a folder, and print what was done.

    Raises:
        UsageError: If an option does not fit the folder, or there is another job in the destination.
        Reported: If files could not be answered.
    """
    if destination.exists() and destination.samefile(source):
        raise UsageError(f"--output '{destination}' is the input itself. Choose another folder.")
    job = Job(
        source,
        destination,
        Model(target, "", device, engine),
        options,
        Shard() if shard is None else Shard.parse(shard),
        strict,
    )
    files = job.files()
    folders = sum(entry.is_dir() for entry in source.iterdir())
    if folders:
        output.warn(f"{folders} folders in '{source}' are left out: files are answered, not what folders hold.")
    with one_thread(), worker_pool(min(workers, len(files))) as pool:
        with output.status(f"Opening {target} ..."):
            model = open_target(target, device, engine)
        # What the words stand for here: an alias could move, and two processes could choose two devices.
        job = replace(job, model=Model(model.name, model.digest, model.device or device, model.engine))
        with job.open_destination(resume=resume) as entries:
            left = [file for file in files if not job.is_done(file, entries.get(file.name))]
            counts = _Counts(len(left), output)
            for entry in run_job(job, model, left, pool):
                counts.add(entry)
                if counts.failed and strict:
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
