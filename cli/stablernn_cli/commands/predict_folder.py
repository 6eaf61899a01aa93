"""`stablernn predict` for a folder of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from stablernn_cli.errors import REFUSED, Reported, UsageError
from stablernn_cli.options import Device
from stablernn_cli.output import Output
from stablernn_cli.prediction.answers import FileOptions
from stablernn_cli.prediction.job import Job, Model, Shard, one_thread, run_job, worker_pool
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
    failed: dict[str, str] = {}
    samples = rows = done = without_answer = 0
    with one_thread(), worker_pool(min(workers, len(files))) as pool:
        with output.status(f"Opening {target} ..."):
            model = open_target(target, device, engine)
        # What the words stand for here: an alias could move, and two processes could choose two devices.
        job = replace(job, model=Model(model.name, model.digest, model.device or device, model.engine))
        with job.open_destination(resume=resume) as entries:
            left = [file for file in files if not job.is_done(file, entries.get(file.name))]
            for number, entry in enumerate(run_job(job, model, left, pool), 1):
                if "error" in entry:
                    failed[entry["file"]] = entry["error"]
                    output.warn(f"{entry['file']}: {entry['error']}")
                    if strict:
                        break
                    continue
                done, samples, rows = done + 1, samples + entry["samples"], rows + entry["rows"]
                if entry["errors"]:
                    without_answer += entry["errors"]
                    output.warn(
                        f"{entry['file']}: {entry['errors']} series have no answer; the column 'error' says why."
                    )
                notes = f" ({'; '.join(entry['notes'])})" if entry["notes"] else ""
                output.note(f"{number} of {len(left)}: {entry['file']}, {entry['rows']} rows{notes}")
    document: dict[str, Any] = {
        "target": model.name,
        "digest": model.digest,
        "task": model.task,
        "engine": model.engine,
        "input": str(source),
        "output": str(destination),
        "files": len(files),
        "done": done,
        "done_before": len(files) - len(left),
        "failed": failed,
        "samples": samples,
        "without_answer": without_answer,
        "rows": rows,
    }
    if output.as_json:
        output.document(document)
    before = f", {document['done_before']} were done before" if document["done_before"] else ""
    output.note(f"Answered {done} of {len(files)} files ({rows} rows){before}; the answers are in {destination}.")
    if failed:
        output.note(f"{len(failed)} could not be answered. Mend them, and repeat the command with --resume.")
        raise Reported(REFUSED)
