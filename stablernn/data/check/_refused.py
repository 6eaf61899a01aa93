"""What can be told of data that loading refuses: each file on its own, and with guessed settings the whole."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stablernn import errors
from stablernn.data.check._loaded import columns_of_file, look_at_data, table_options
from stablernn.data.check._report import Column, Findings
from stablernn.data.check._sequences import Part, look_at_sequences, unseen_labels
from stablernn.data.check._series import look_at_series
from stablernn.data.check._tables import CellLook, look_at_cells
from stablernn.data.load import detect_task, load_source, read_sequences
from stablernn.data.options import TARGET_COLUMN, LoadOptions
from stablernn.data.readers.paths import TABLE_FORMATS, open_file
from stablernn.data.readers.tables import Table, open_table
from stablernn.data.sequences import Sequences, reorder_features
from stablernn.data.step_data import Data
from stablernn.data.time.frequency import infer_frequency
from stablernn.data.time.regular_grid import align_to_grid
from stablernn.data.types import Notes

_PREVIEW_LINES, _PREVIEW_WIDTH, _PREVIEW_BYTES = 5, 100, 1 << 14


@dataclass(frozen=True, eq=False)
class Told:
    """The parts of a report that there are."""

    task: str | None = None
    columns: tuple[Column, ...] = ()
    content: Notes = field(default_factory=dict)
    assumed: Notes = field(default_factory=dict)
    preview: tuple[str, ...] = ()
    data: Data | None = None


def look_at_refused(path: Path, test_path: Path | None, options: LoadOptions, findings: Findings) -> Told:
    """Looks at the parts of data that cannot be loaded.

    Args:
        path: The file.
        test_path: The file of its test split; None without one.
        options: All other settings of :func:`load_data`.
        findings: Where problems and warnings go.
    """
    task = options.task
    is_table = any(kind in path.suffixes for kind in TABLE_FORMATS)
    try:
        if task is None:
            task = detect_task(path, None, options.label_column)
    except errors.StableRNNError:
        if not is_table:
            hint_at_table(path, findings)
        return Told(task, preview=preview(path))
    told = Told()
    if is_table:
        told = _look_at_table(path, test_path, options, task, findings)
    elif task == "classify":
        told = _look_at_files(path, test_path, {}, findings)
    return replace(told, task=task, preview=() if told.columns else preview(path))


def hint_at_table(path: Path, findings: Findings) -> None:
    """A warning for text that has the same number of separators in each of its first lines."""
    lines = preview(path)
    for mark, name in ((",", "commas"), (";", "semicolons"), ("\t", "tabs")):
        counts = {line.count(mark) for line in lines}
        if len(lines) > 1 and len(counts) == 1 and counts != {0}:
            findings.warn(
                "looks_like_a_table",
                f"The text looks like {counts.pop() + 1} columns separated by {name}. Tables are read from .csv, with "
                "commas, names in the first row and a column of times.",
            )
            return


def preview(path: Path) -> tuple[str, ...]:
    """The first lines, where the file is text; also of one that is cut off."""
    try:
        with open_file(path) as file:
            # One piece as it comes: to ask for so many bytes would be to run into the end of a file that is cut off.
            begin = file.read1(_PREVIEW_BYTES) if isinstance(file, io.BufferedIOBase) else b""
    except errors.StableRNNError:
        return ()
    lines = begin.decode(errors="replace").splitlines()[:_PREVIEW_LINES]
    are_text = all(line.replace("\t", "").isprintable() and "\ufffd" not in line for line in lines)
    return tuple(line[:_PREVIEW_WIDTH] for line in lines) if are_text else ()


def _look_at_table(path: Path, test_path: Path | None, options: LoadOptions, task: str, findings: Findings) -> Told:
    roles: dict[str, Any] = {
        **table_options(options),
        "label_column": options.label_column if task == "classify" else None,
        "channels": options.channels,
        "static": options.static,
        "targets": options.target or (TARGET_COLUMN,),
    }
    look = look_at_cells(path, findings, **roles)
    if test_path is not None:
        look_at_cells(test_path, findings, **roles)
    if look is None:
        return Told()
    if task == "classify":
        columns = {**table_options(options), "label_column": roles["label_column"], "channels": roles["channels"]}
        content = _look_at_files(path, test_path, columns, findings).content if look.has_times else {}
        return Told(columns=look.columns, content=content)
    return _look_with_guesses(path, test_path, options, look, findings)


def _look_with_guesses(
    path: Path, test_path: Path | None, options: LoadOptions, look: CellLook, findings: Findings
) -> Told:
    """The series as they would be with guessed settings, else as they stand in the file, else the columns alone."""
    assumed = {**look.guessed, **_guessed_target(look, options)} if look.has_times else {}
    settings = LoadOptions.unchecked(**{**dict(options), "source": path, "test": test_path, **assumed})
    if assumed:
        try:
            data = load_source(settings)
        except errors.StableRNNError as error:
            findings.problem("refused_next", f"With the guessed settings: {error}")
        else:
            columns, content = look_at_data(data, findings)
            columns = columns_of_file(path, columns, data, settings)
            return Told(columns=_merged(look.columns, columns), content=content, assumed=assumed, data=data)
    try:
        table = open_table(path, **table_options(settings)).read(settings.channels)
    except errors.StableRNNError:
        return Told(columns=look.columns)
    targets = settings.target or ((TARGET_COLUMN,) if len(table.channels) > 1 else table.channels)
    known = tuple(name for name in targets if name in table.channels)
    notes = {**table.notes, **_grid_notes(table, settings.frequency)}
    columns, content = look_at_series(table.series, table.channels, known, notes, findings)
    return Told(columns=_merged(look.columns, columns), content=content, assumed=assumed)


def _guessed_target(look: CellLook, options: LoadOptions) -> Notes:
    channels = look.guessed.get("channels") or options.channels or look.readable
    taken = (*look.guessed.values(), *options.future)
    known = [name for name in channels if name not in taken]
    if options.target is not None or TARGET_COLUMN in known or len(known) < 2:
        return {}
    return {"target": known[-1]}


def _grid_notes(table: Table, frequency: str | None) -> Notes:
    """What the time grid says; how many series have which frequency where they have none in common."""
    try:
        _, grid, notes = align_to_grid(table.name, table.series, frequency)
    except errors.StableRNNError:
        found = [infer_frequency(one.ds) for one in table.series]
        return {"frequencies": dict(Counter("irregular" if one is None else one.alias for one in found))}
    return {**notes, "frequency": grid.alias if grid else None, "season": grid.season if grid else 1}


def _look_at_files(path: Path, test_path: Path | None, columns: Mapping[str, Any], findings: Findings) -> Told:
    """What can be told of files of sequences that are refused, each or both together."""
    found: dict[str, Sequences] = {}
    for word, file in (("train", path), ("test", test_path)):
        if file is None:
            continue
        try:
            found[word] = read_sequences(file, **columns)
        except errors.StableRNNError as error:
            findings.problem("unreadable", str(error))
    if "train" not in found:
        return Told()
    train = found["train"]
    if "test" in found:
        unseen_labels(train, found["test"], findings)
        test = reorder_features(found.pop("test"), train.features)
        if test is not None:
            found["test"] = test
    parts = {word: Part(sequences.values, sequences.labels) for word, sequences in found.items()}
    told, content = look_at_sequences(parts, train.features, findings)
    return Told(columns=told, content=content)


def _merged(cells: tuple[Column, ...], channels: tuple[Column, ...]) -> tuple[Column, ...]:
    """Columns of the file, with what is known of those that became channels."""
    known = {column.name: column for column in channels}
    return tuple(
        replace(known[column.name], unreadable=column.unreadable) if column.name in known else column
        for column in cells
    )
