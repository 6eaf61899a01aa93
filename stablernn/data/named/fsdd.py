"""The Free Spoken Digit Dataset."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, SplitName
from stablernn.data.named.assemble import labelled
from stablernn.data.named.audio import BINS, log_magnitudes, read_speech, scaled
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.lazy import LazySplit
from stablernn.data.named.places import DataFile, check
from stablernn.data.sequences import pad_sequences
from stablernn.data.types import ClassificationData

_NAME = re.compile(r"(?:.*/)?recordings/(\d)_([a-z]+)_(\d+)\.wav")
_COMMIT = "26eb9aaf76e81b692f806f9140c2d2777410d7a1"
# By the number of a speaker's recording of a digit: 0 to 4 are the publisher's test set.
_TEST, _VALIDATION = range(5), range(5, 10)


def recordings(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names (``recordings/3_theo_7.wav``) and contents of the recordings in a folder or an archive.

    Raises:
        DataError: If it is neither, or is cut off.
    """
    if path.is_dir():
        for file in sorted(path.glob("*.wav")):
            yield f"recordings/{file.name}", file.read_bytes()
        return
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                reader = archive.extractfile(member) if _NAME.fullmatch(member.name) else None
                if reader is not None:
                    yield member.name, reader.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise errors.DataError(f"'{path.name}' is cut off or is no tar archive ({error}). Fetch it again.") from error


def recordings_digest(path: Path) -> str:
    """Hash of all recordings, however they are packed."""
    return _digest({Path(name).name: content for name, content in recordings(path)})


def _digest(found: dict[str, bytes]) -> str:
    lines = (f"{hashlib.sha256(found[name]).hexdigest()} {name}\n" for name in sorted(found))
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def load(request: Request) -> ClassificationData:
    """Log-magnitudes of each recording, or its samples from -1 to 1."""
    (file,) = request.info.files
    path = request.paths[file.name]
    found = {Path(name).name: content for name, content in recordings(path)}
    if not found:
        raise errors.DataError(f"'{path}' has no recordings DIGIT_SPEAKER_NUMBER.wav. Fetch it again.")
    if file.checksum is not None:
        check(request.info.key, file.checksum, _digest(found), path)
    members: dict[SplitName, list[tuple[str, int, Float32Array]]] = {"train": [], "validation": [], "test": []}
    for name in sorted(found):
        match = _NAME.fullmatch(f"recordings/{name}")
        if match is None:
            raise errors.DataError(f"'{path}': '{name}' is not called DIGIT_SPEAKER_NUMBER.wav.")
        digit, _, number = match.groups()
        samples, rate = read_speech(name, found[name])
        if request.variant == "waveform":
            x = scaled(samples).astype(np.float32)[:, None]
        else:
            x = log_magnitudes(samples, rate)
        split: SplitName = "test" if int(number) in _TEST else "validation" if int(number) in _VALIDATION else "train"
        members[split].append((name.removesuffix(".wav"), int(digit), x))
    features = ("sample",) if request.variant == "waveform" else tuple(f"bin_{index}" for index in range(BINS))
    return labelled(request, tuple("0123456789"), features, {split: _split(part) for split, part in members.items()})


def _split(part: list[tuple[str, int, Float32Array]]) -> LazySplit:
    names, digits, values = zip(*part, strict=True)

    def make(indices: Int64Array) -> Float32Array:
        return pad_sequences([values[index] for index in indices])[0]

    held = sum(x.nbytes for x in values)
    return LazySplit(make, held, np.array([len(x) for x in values], np.int64), np.array(digits, np.int64), names)


DATASETS = (
    DatasetInfo(
        key="fsdd",
        title="Free Spoken Digit Dataset, 6 speakers",
        task="classify",
        licence="CC BY-SA 4.0",
        source=f"Z. Jackson et al., Jakobovski/free-spoken-digit-dataset at {_COMMIT[:7]}",
        splits="recordings 0-4 of each speaker and digit are test, as published; 5-9 validate",
        files=(
            DataFile(
                "recordings.tar",
                "sha256:44c8e2002eef7b944445e96603c78e68ce69f0a0156657cc7c92e6ed7828925f",
                f"https://github.com/Jakobovski/free-spoken-digit-dataset/archive/{_COMMIT}.tar.gz",
                also=("recordings",),
                digest=recordings_digest,
            ),
        ),
        folders=("fsdd", "free-spoken-digit-dataset", "FSDD"),
        variants=("spectrogram", "waveform"),
        load=load,
    ),
)
