"""The Free Spoken Digit Dataset."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, SplitName
from stablernn.data.named.entry import DatasetInfo, LazySplit, Request, classification_data
from stablernn.data.named.places import DataFile, check_digest
from stablernn.data.sequences import pad_sequences
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.data.types import ClassificationData
from stablernn_papers.datasets.audio import BINS, log_magnitudes, read_speech, scale_samples

_NAME = re.compile(r"(?:.*/)?recordings/(\d)_([a-z]+)_(\d+)\.wav")
_COMMIT = "26eb9aaf76e81b692f806f9140c2d2777410d7a1"
# Splits by the number of a recording of a speaker and digit; 0 to 4 are the published test set.
_TEST, _VALIDATION = range(5), range(5, 10)
_SPECTRUM = tuple(f"bin_{index}" for index in range(BINS))


def recordings(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names (``recordings/3_theo_7.wav``) and contents of the recordings in a folder or an archive.

    Raises:
        DataError: If the path is neither, or the archive is truncated.
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
        raise errors.DataError(f"'{path.name}' is truncated or not a tar archive ({error}). Fetch it again.") from error


def recordings_digest(path: Path) -> str:
    """Return a hash of all recordings, which does not depend on their archive format."""
    return _digest({Path(name).name: content for name, content in recordings(path)})


def _digest(contents: dict[str, bytes]) -> str:
    lines = (f"{hashlib.sha256(contents[name]).hexdigest()} {name}\n" for name in sorted(contents))
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def load(request: Request) -> ClassificationData:
    """Load the log-magnitude spectrum of each recording or, for ``waveform``, its samples from -1 to 1."""
    is_waveform = request.variant == "waveform"
    splits: dict[SplitName, LazySplit] = {
        name: _lazy_split(group) for name, group in _read_splits(request, waveform=is_waveform).items()
    }
    features = ("sample",) if is_waveform else _SPECTRUM
    return classification_data(request, tuple("0123456789"), features, splits)


def load_frames(request: Request) -> StepData:
    """Load the log-magnitude spectrum of each recording, whose next frame is to be predicted at every step."""
    groups = _read_splits(request, waveform=False)
    splits: dict[SplitName, StoredSteps] = {
        name: StoredSteps([x[:-1] for _, _, x in group], [x[1:] for _, _, x in group]) for name, group in groups.items()
    }
    return StepData(
        name=request.info.key,
        output="real",
        tokens=False,
        features=_SPECTRUM,
        outputs=_SPECTRUM,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        continuous=False,
        headline="mse",
        notes={
            "sequences": {name: len(split) for name, split in splits.items()},
            "frames": {name: int(split.lengths.sum()) for name, split in splits.items()},
            **request.notes(),
        },
        fingerprint=request.fingerprint(),
    )


_Recordings = list[tuple[str, int, Float32Array]]


def _read_splits(request: Request, *, waveform: bool) -> dict[SplitName, _Recordings]:
    """Return name, digit and values of the recordings of each split.

    Raises:
        DataError: If there are none, one has another name, or they are not the published ones.
    """
    (file,) = request.info.files
    path = request.paths[file.name]
    contents = {Path(name).name: content for name, content in recordings(path)}
    if not contents:
        raise errors.DataError(f"'{path}' has no recordings DIGIT_SPEAKER_NUMBER.wav. Fetch it again.")
    if file.checksum is not None:
        check_digest(request.info.key, file.checksum, _digest(contents), path)
    members: dict[SplitName, _Recordings] = {"train": [], "validation": [], "test": []}
    for name in sorted(contents):
        match = _NAME.fullmatch(f"recordings/{name}")
        if match is None:
            raise errors.DataError(f"'{path}': '{name}' is not named DIGIT_SPEAKER_NUMBER.wav.")
        digit, _, number = match.groups()
        samples, rate = read_speech(name, contents[name])
        # (samples, 1) or (frames, bins)
        x = scale_samples(samples).astype(np.float32)[:, None] if waveform else log_magnitudes(samples, rate)
        split: SplitName = "test" if int(number) in _TEST else "validation" if int(number) in _VALIDATION else "train"
        members[split].append((name.removesuffix(".wav"), int(digit), x))
    return members


def _lazy_split(recordings: _Recordings) -> LazySplit:
    names, digits, values = zip(*recordings, strict=True)

    # Recordings have different lengths, and padding all of them at once would take much more memory.
    def make(indices: Int64Array) -> Float32Array:
        return pad_sequences([values[index] for index in indices])[0]

    lengths = np.array([len(x) for x in values], np.int64)
    return LazySplit(make, sum(x.nbytes for x in values), lengths, np.array(digits, np.int64), names)


_ARCHIVE = DataFile(
    "recordings.tar",
    "sha256:44c8e2002eef7b944445e96603c78e68ce69f0a0156657cc7c92e6ed7828925f",
    f"https://github.com/Jakobovski/free-spoken-digit-dataset/archive/{_COMMIT}.tar.gz",
    also=("recordings",),
    digest=recordings_digest,
)
FSDD = DatasetInfo(
    key="fsdd",
    title="Free Spoken Digit Dataset, 6 speakers",
    task="classify",
    licence="CC BY-SA 4.0",
    source=f"Z. Jackson et al., Jakobovski/free-spoken-digit-dataset at {_COMMIT[:7]}",
    splits="recordings 0-4 of each speaker and digit are test, as published; 5-9 validate",
    files=(_ARCHIVE,),
    folders=("fsdd", "free-spoken-digit-dataset", "FSDD"),
    variants=("spectrogram", "waveform"),
    load=load,
)

FSDD_FRAMES = replace(
    FSDD,
    key="fsdd-frames",
    title="Free Spoken Digit Dataset, the next frame of 129 log-magnitudes",
    task="predict-next",
    variants=(),
    load=load_frames,
)
