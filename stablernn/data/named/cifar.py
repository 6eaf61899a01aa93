"""CIFAR-10, pixel by pixel and noise-padded, from the binary version of its home."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, Int64Array, SplitName
from stablernn.data.named.assemble import labelled
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.lazy import LazySplit
from stablernn.data.named.places import MIB, DataFile
from stablernn.data.types import ClassificationData

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STEPS = 1000
# A record is the class and then three planes of 32 rows: red, green, blue.
_RECORD = 1 + 3 * 32 * 32
_ROWS, _ROW = 32, 96
_TEST = "test_batch.bin"
_FOLDERS = ("cifar-10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar-10", "cifar10", "CIFAR10")
_HOME = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


def read_batch(name: str, content: bytes) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    """Images (n, 3, 32, 32), by colour plane, and their classes.

    Raises:
        DataError: If it is not made of whole records with a class of 0 to 9.
    """
    if len(content) % _RECORD:
        raise errors.DataError(f"'{name}' must be made of records of {_RECORD} bytes, got {len(content)} bytes.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if int(records[:, 0].max()) >= len(LABELS):
        raise errors.DataError(f"'{name}' has the class {int(records[:, 0].max())}; classes are 0 to 9.")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _splits(request: Request) -> dict[SplitName, tuple[npt.NDArray[np.uint8], Int64Array]]:
    """Images and classes: of the training batches that are here the last tenth is validation."""
    names = [file.name for file in request.info.files if file.name != _TEST and file.name in request.paths]
    batches = [read_batch(name, request.content(name)) for name in names]
    images, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    kept = len(y) - len(y) // 10
    return {
        "train": (images[:kept], y[:kept]),
        "validation": (images[kept:], y[kept:]),
        "test": read_batch(_TEST, request.content(_TEST)),
    }


def load_pixels(request: Request) -> ClassificationData:
    """1,024 steps of a pixel's three colours, 0 to 1.

    The released form views the planes as triples without moving the colours: a step is three neighbours in one plane,
    red first. Its crops and flips are training's business and not done here.
    """
    planes = request.variant == "released"

    def split(images: npt.NDArray[np.uint8], y: Int64Array) -> LazySplit:
        def make(indices: Int64Array) -> Float32Array:
            chosen = images[indices]
            ordered = chosen if planes else chosen.transpose(0, 2, 3, 1)
            x = ordered.reshape(len(chosen), 1024, 3).astype(np.float32)
            x /= 255
            return x

        return LazySplit(make, images.nbytes, np.full(len(y), 1024), y, [str(i) for i in range(len(y))])

    splits: dict[SplitName, LazySplit] = {name: split(*pair) for name, pair in _splits(request).items()}
    return labelled(request, LABELS, ("first", "second", "third") if planes else ("red", "green", "blue"), splits)


def load_noise_padded(request: Request) -> ClassificationData:
    """32 steps of a row (red, green, blue one after the other), then 968 steps of N(0, 1).

    The noise of a sequence is its own and always the same, drawn from the seed, the split and its number; the released
    form has one noise for all sequences of all splits.
    """
    shared = _noise([request.options.seed]) if request.variant == "released" else None

    def split(images: npt.NDArray[np.uint8], y: Int64Array, number: int) -> LazySplit:
        def make(indices: Int64Array) -> Float32Array:
            x = np.empty((len(indices), STEPS, _ROW), np.float32)
            x[:, :_ROWS] = images[indices].transpose(0, 2, 1, 3).reshape(-1, _ROWS, _ROW)
            x[:, :_ROWS] /= 255
            for row, index in zip(x, indices, strict=True):
                row[_ROWS:] = shared if shared is not None else _noise([request.options.seed, number, int(index)])
            return x

        return LazySplit(make, images.nbytes, np.full(len(y), STEPS), y, [str(i) for i in range(len(y))])

    found = _splits(request)
    splits: dict[SplitName, LazySplit] = {name: split(*found[name], SPLITS.index(name)) for name in SPLITS}
    features = [f"{colour}_{column}" for colour in ("red", "green", "blue") for column in range(32)]
    noise = "one for all" if shared is not None else "one a sequence"
    return labelled(request, LABELS, features, splits, drawn=(request.options.seed,), notes={"noise": noise})


def _noise(seed: list[int]) -> Float32Array:
    # Eight times as fast as RandomState, whose stream alone numpy keeps for ever; other noise would be the same task.
    return np.random.default_rng(seed).standard_normal((STEPS - _ROWS, _ROW), dtype=np.float32)


def _batch(name: str, checksum: str) -> DataFile:
    return DataFile(
        name,
        f"md5:{checksum}",
        _HOME,
        most_bytes=256 * MIB,
        member=f"cifar-10-batches-bin/{name}",
        archive_checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
        may_miss=name != _TEST,
    )


_ENTRY = partial(
    DatasetInfo,
    task="classify",
    licence="none stated; cite Krizhevsky 2009",
    source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009, binary version, "
    "www.cs.toronto.edu/~kriz/cifar.html",
    splits="published test batch; the last tenth of the training batches validates",
    files=(
        _batch("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        _batch("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
        _batch("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        _batch("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        _batch("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
        _batch(_TEST, "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ),
    folders=_FOLDERS,
    variants=("paper", "released"),
    options=("partial",),
)

DATASETS = (
    _ENTRY(key="cifar10", title="CIFAR-10, pixel by pixel, 1,024 steps of 3 colours", load=load_pixels),
    _ENTRY(
        key="cifar10-noise-padded",
        title="CIFAR-10, 32 rows and then 968 steps of noise",
        load=load_noise_padded,
    ),
)
