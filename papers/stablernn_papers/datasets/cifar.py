"""CIFAR-10, pixel by pixel and noise-padded, from the published binary version."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, Int64Array, SplitName
from stablernn.data.named.entry import DatasetInfo, LazySplit, Request, classification_data
from stablernn.data.named.places import MIB, DataFile
from stablernn.data.types import ClassificationData

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STEPS = 1000
# A record is the class, then a red, a green and a blue plane of 32 rows of 32 pixels.
_RECORD = 1 + 3 * 32 * 32
# As a sequence, an image has 32 steps, each a row in three colors.
_ROWS, _ROW_SIZE = 32, 96
# Mean and deviation of red, green and blue by which the Lipschitz RNN's released program (get_data.py) standardizes an
# image before the noise follows; the deviations are those of single images, averaged, below those of all pixels.
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_TEST = "test_batch.bin"
_FOLDERS = ("cifar-10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar-10", "cifar10", "CIFAR10")
_HOME = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


def read_batch(name: str, content: bytes) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    """Read images (n, 3, 32, 32) by color plane, and their classes (n,).

    Raises:
        DataError: If the content is not a whole number of records with classes 0 to 9.
    """
    if len(content) % _RECORD:
        raise errors.DataError(f"'{name}' must consist of records of {_RECORD} bytes, got {len(content)} bytes.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if int(records[:, 0].max()) >= len(LABELS):
        raise errors.DataError(f"'{name}' has the class {int(records[:, 0].max())}; classes are 0 to 9.")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _read_splits(request: Request) -> dict[SplitName, tuple[npt.NDArray[np.uint8], Int64Array]]:
    """Read the images and classes of each split; the last tenth of the training batches is validation."""
    # With data.partial, some training batches may be missing.
    names = [file.name for file in request.info.files if file.name != _TEST and file.name in request.paths]
    batches = [read_batch(name, request.content(name)) for name in names]
    images, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    train_count = len(y) - len(y) // 10
    return {
        "train": (images[:train_count], y[:train_count]),
        "validation": (images[train_count:], y[train_count:]),
        "test": read_batch(_TEST, request.content(_TEST)),
    }


def load_pixels(request: Request) -> ClassificationData:
    """Load images as 1,024 steps of the three colors of a pixel, 0 to 1.

    The released code reshapes the planes without moving the color axis: a step is three neighbors in one plane, red
    first. Its crops and flips are augmentation and not done here.
    """
    keeps_planes = request.variant == "released"

    def split(images: npt.NDArray[np.uint8], y: Int64Array) -> LazySplit:
        def make(indices: Int64Array) -> Float32Array:
            batch = images[indices]
            ordered = batch if keeps_planes else batch.transpose(0, 2, 3, 1)
            x = ordered.reshape(len(batch), 1024, 3).astype(np.float32)
            x /= 255
            return x

        return LazySplit(make, images.nbytes, np.full(len(y), 1024), y, [str(i) for i in range(len(y))])

    splits: dict[SplitName, LazySplit] = {name: split(*pair) for name, pair in _read_splits(request).items()}
    features = ("first", "second", "third") if keeps_planes else ("red", "green", "blue")
    return classification_data(request, LABELS, features, splits)


def load_noise_padded(request: Request) -> ClassificationData:
    """Load images as 32 steps of a row (red, then green, then blue), followed by 968 steps of N(0, 1) noise.

    The image is standardized, so that its pixels are as large as the noise. The noise of each sequence is reproducible:
    it is drawn from the seed, the split and the index. The released code uses the same noise for all sequences of all
    splits.
    """
    # Of the 96 values of a step: 32 of each color.
    mean, deviation = (np.repeat(np.array(values, np.float32), _ROW_SIZE // 3) for values in (_MEAN, _DEVIATION))
    shared_noise = _draw_noise([request.options.seed]) if request.variant == "released" else None

    def split(images: npt.NDArray[np.uint8], y: Int64Array, split_index: int) -> LazySplit:
        def make(indices: Int64Array) -> Float32Array:
            x = np.empty((len(indices), STEPS, _ROW_SIZE), np.float32)
            # (n, color, row, column) to (n, row, color and column)
            x[:, :_ROWS] = images[indices].transpose(0, 2, 1, 3).reshape(-1, _ROWS, _ROW_SIZE)
            x[:, :_ROWS] = (x[:, :_ROWS] / 255 - mean) / deviation
            for row, index in zip(x, indices, strict=True):
                noise = (
                    shared_noise
                    if shared_noise is not None
                    else _draw_noise([request.options.seed, split_index, int(index)])
                )
                row[_ROWS:] = noise
            return x

        return LazySplit(make, images.nbytes, np.full(len(y), STEPS), y, [str(i) for i in range(len(y))])

    arrays = _read_splits(request)
    splits: dict[SplitName, LazySplit] = {name: split(*arrays[name], SPLITS.index(name)) for name in SPLITS}
    features = [f"{color}_{column}" for color in ("red", "green", "blue") for column in range(32)]
    noise = "one for all" if shared_noise is not None else "one a sequence"
    return classification_data(
        request,
        LABELS,
        features,
        splits,
        fingerprint_parts=("standardized", request.options.seed),
        notes={"noise": noise},
    )


def _draw_noise(seed: list[int]) -> Float32Array:
    # Eight times as fast as RandomState. Only the stream of RandomState is frozen by numpy, but the task would be the
    # same with other noise.
    return np.random.default_rng(seed).standard_normal((STEPS - _ROWS, _ROW_SIZE), dtype=np.float32)


def _batch(name: str, checksum: str) -> DataFile:
    return DataFile(
        name,
        f"md5:{checksum}",
        _HOME,
        max_bytes=256 * MIB,
        member=f"cifar-10-batches-bin/{name}",
        archive_checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
        is_optional=name != _TEST,
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

CIFAR10 = _ENTRY(key="cifar10", title="CIFAR-10, pixel by pixel, 1,024 steps of 3 colours", load=load_pixels)
CIFAR10_NOISE_PADDED = _ENTRY(
    key="cifar10-noise-padded",
    title="CIFAR-10, 32 rows and then 968 steps of noise",
    load=load_noise_padded,
)
