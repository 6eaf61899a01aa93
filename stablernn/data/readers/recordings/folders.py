"""Sequences from a folder with a file for each recording, labeled by subfolders or by a manifest."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from stablernn import errors
from stablernn.data.arrays import Resolution
from stablernn.data.messages import format_names
from stablernn.data.options import LABEL_COLUMN, Repairs
from stablernn.data.readers.cells import strip_cells
from stablernn.data.readers.recordings.formats import RECORDING_FORMATS, Recording, read_recording
from stablernn.data.readers.table_chunks import read_chunks, read_column_names
from stablernn.data.sequences import Sequences, plain_labels
from stablernn.data.types import Notes

#: Table in the folder that lists its recordings, with a column of this name.
MANIFEST, FILE_COLUMN = "manifest.csv", "file"


class _Listing(NamedTuple):
    """The recordings of a folder.

    Attributes:
        files: Paths relative to the folder.
        labels: Label of each; None where nothing gives any.
        groups: Group of each; None without groups.
        notes: Files that are not read.
    """

    files: list[str]
    labels: list[str] | None
    groups: tuple[str, ...] | None
    notes: Notes


def read_recordings(
    path: Path,
    *,
    label_column: str = LABEL_COLUMN,
    group_column: str | None = None,
    repairs: Repairs | None = None,
) -> Sequences:
    """Read a folder of recordings.

    With a table ``manifest.csv`` in the folder, its column ``file`` lists the recordings, by paths relative to the
    folder, and its column of labels gives their classes. Otherwise the subfolder directly below the folder is the class
    of all recordings in it; recordings in the folder itself have none, as those to predict.

    Args:
        path: The folder.
        label_column: Column of the manifest with the class of each recording.
        group_column: Column of the manifest with the group of each recording.
        repairs: Used are the marks of numbers, for recordings that are text.

    Raises:
        UnknownNameError: If the manifest lacks the column of groups, or names a file that does not exist.
        ConfigError: If groups are asked for without a manifest.
        DataError: If there are no recordings, they differ in channels or sampling rate, a channel
            loses its differences in float32, or one cannot be read.
    """
    listing = _list_files(path, label_column, group_column)
    if not listing.files:
        raise errors.DataError(
            f"'{path}' has no recordings; they are {', '.join(RECORDING_FORMATS)} files. Put them into a subfolder for "
            f"each class, or list them in {MANIFEST}."
        )
    # Recordings share the scale of a channel, so that what float32 loses is judged over all of them.
    resolutions: dict[str, Resolution] = {}
    recordings = [read_recording(path / file, file, resolutions, repairs) for file in listing.files]
    _check_alike(listing.files, recordings)
    for channel, resolution in resolutions.items():
        resolution.check(functools.partial("'{}': channel '{}'".format, path.name, channel))
    notes = dict(listing.notes)
    if recordings[0].sample_rate is not None:
        notes["sample_rate"] = recordings[0].sample_rate
    ignored = sorted({name for recording in recordings for name in recording.ignored})
    return Sequences(
        name=path.name,
        values=[recording.values for recording in recordings],
        labels=None if listing.labels is None else plain_labels(path.name, listing.labels),
        features=recordings[0].channels,
        notes={**notes, **({"ignored_columns": ignored} if ignored else {})},
        names=tuple(listing.files),
        locations=tuple(f"'{file}'" for file in listing.files),
        groups=listing.groups,
    )


def _list_files(path: Path, label_column: str, group_column: str | None) -> _Listing:
    files = sorted(
        file.relative_to(path)
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    recordings = [file.as_posix() for file in files if file.suffix.lower() in RECORDING_FORMATS]
    others = [file.as_posix() for file in files if file.suffix.lower() not in RECORDING_FORMATS]
    if (path / MANIFEST).is_file():
        return _read_manifest(path, recordings, others, label_column, group_column)
    if group_column is not None:
        raise errors.ConfigError(
            f"group_column of a folder names a column of its {MANIFEST}, and '{path}' has none. Write one with the "
            f"columns {FILE_COLUMN}, {label_column} and {group_column}."
        )
    labels = [file.partition("/")[0] if "/" in file else "" for file in recordings]
    return _Listing(recordings, labels if any(labels) else None, None, {"ignored_files": others} if others else {})


def _read_manifest(
    path: Path, recordings: Sequence[str], others: Sequence[str], label_column: str, group_column: str | None
) -> _Listing:
    manifest = path / MANIFEST
    names = read_column_names(manifest)
    for column in (FILE_COLUMN, *([group_column] if group_column is not None else [])):
        if column not in names:
            raise errors.unknown("column", column, names, f"'{MANIFEST}' has {format_names(names)}.")
    frame = pl.concat(list(read_chunks(manifest, names, verbatim=names)))
    cells = {name: strip_cells(frame[name], ()).fill_null("").to_list() for name in names}
    files = [str(file) for file in cells[FILE_COLUMN]]
    repeated, count = Counter(files).most_common(1)[0]
    if count > 1:
        raise errors.DataError(f"'{MANIFEST}' lists '{repeated}' twice. Remove one of the rows.")
    listed, existing = set(files), set(recordings)
    missing = [file for file in files if file not in existing]
    if missing:
        raise errors.unknown(
            "recording",
            missing[0],
            recordings,
            f"'{MANIFEST}' lists files that the folder must have, as {FILE_COLUMN}.",
        )
    unlisted = [file for file in recordings if file not in listed and file != MANIFEST]
    notes: Notes = {"ignored_files": [*others, *unlisted]} if others or unlisted else {}
    labels = cells.get(label_column)
    groups = None if group_column is None else tuple(cells[group_column])
    return _Listing(files, labels, groups, notes)


def _check_alike(files: Sequence[str], recordings: Sequence[Recording]) -> None:
    """Refuse recordings of other channels or another sampling rate than the first."""
    first = recordings[0]
    for file, recording in zip(files, recordings, strict=True):
        if recording.channels != first.channels:
            raise errors.DataError(
                f"'{file}' has the channels {format_names(recording.channels)}, '{files[0]}' has "
                f"{format_names(first.channels)}. All recordings must have the same."
            )
        if recording.sample_rate != first.sample_rate:
            rates = [f"{rate:g} Hz" if rate else "no rate" for rate in (recording.sample_rate, first.sample_rate)]
            raise errors.DataError(
                f"'{file}' has {rates[0]}, '{files[0]}' has {rates[1]}. Resample the recordings to one rate."
            )
