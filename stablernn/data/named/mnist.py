"""MNIST and Fashion-MNIST, pixel by pixel, in a fixed random order, or row by row."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array
from stablernn.data.named.entry import DatasetInfo, LazySplit, Request, classification_data
from stablernn.data.named.places import DataFile
from stablernn.data.types import ClassificationData

Pixels = npt.NDArray[np.uint8]

PIXELS = 784
HELD_OUT = 5000
# The validation split is that of the code of the unitary RNN.
_SPLITS = f"published test set; the first {HELD_OUT:,} training images validate"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
ROWS = (98, 28)

#: Permutations of the code of papers, as generator and seed.
PUBLISHED = {"urnn": "numpy-92916", "nnrnn": "numpy-1234"}
_SEEDED = re.compile(r"(numpy|torch)-(\d{1,9})")


def read_idx(name: str, content: bytes) -> Pixels:
    """Read an array in IDX format: two zero bytes, the type, the number of axes, their sizes, the values.

    Raises:
        DataError: If the type is not byte, or the length does not match the sizes.
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise errors.DataError(f"'{name}' is not an IDX file of bytes (it begins with 0x{content[:4].hex()}).")
    # The sizes of the axes are big-endian.
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != int(np.prod(shape)):
        raise errors.DataError(
            f"'{name}' must contain {shape} values according to its header, got {len(content) - start}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def load(request: Request, *, labels: tuple[str, ...]) -> ClassificationData:
    """Load images as sequences of ``length`` steps of 784 / ``length`` pixels each."""
    steps = request.options.length or request.info.settings.get("length", PIXELS)
    if request.options.length is not None and steps not in ROWS:
        raise errors.ConfigError(f"length of '{request.info.key}' must be {ROWS[0]} or {ROWS[1]}, got {steps}.")
    # The released code neither scales pixels nor uses the permutation of the paper.
    is_released = request.variant == "released"
    order_name = request.options.permutation or ("torch-12008" if is_released else "urnn")
    order = permutation(order_name, PIXELS) if "permutation" in request.info.options else np.arange(PIXELS)

    def split(images: Pixels, y: Int64Array, first_id: int) -> LazySplit:
        # Stored as bytes (n, steps, pixels), a quarter of the float32 batches.
        stored = images.reshape(len(images), PIXELS)[:, order].reshape(len(images), steps, -1)
        scale = np.float32(1 if is_released else 255)

        def make(indices: Int64Array) -> Float32Array:
            x = stored[indices].astype(np.float32)
            x /= scale
            return x

        return LazySplit(make, stored.nbytes, np.full(len(y), steps), y, [str(first_id + i) for i in range(len(y))])

    images, y = _read_pair(request, TRAIN_IMAGES, TRAIN_LABELS)
    test_images, test_y = _read_pair(request, TEST_IMAGES, TEST_LABELS)
    # A smaller file keeps at least half of its images for training.
    held_out = min(HELD_OUT, len(y) // 2)
    permutation_notes = {"permutation": order_name} if "permutation" in request.info.options else {}
    return classification_data(
        request,
        labels,
        ("pixel",) if steps == PIXELS else [f"pixel_{i}" for i in range(PIXELS // steps)],
        {
            "train": split(images[held_out:], y[held_out:], held_out),
            "validation": split(images[:held_out], y[:held_out], 0),
            "test": split(test_images, test_y, 0),
        },
        fingerprint_parts=(steps, *permutation_notes.values()),
        notes={**permutation_notes, "scaling": "none, 0 to 255" if is_released else "0 to 1"},
    )


def _read_pair(request: Request, images: str, labels: str) -> tuple[Pixels, Int64Array]:
    x = read_idx(images, request.content(images))
    y = read_idx(labels, request.content(labels))
    if x.ndim != 3 or x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or int(y.max(initial=0)) > 9:
        raise errors.DataError(
            f"'{request.info.key}': '{images}' and '{labels}' must contain 28x28 images and as many classes of 0 to 9, "
            f"got {x.shape} and {y.shape}."
        )
    return x, y.astype(np.int64)


def _files(home: str, checksums: tuple[str, str, str, str]) -> tuple[DataFile, ...]:
    names = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
    return tuple(
        DataFile(name, f"md5:{checksum}", f"{home}{name}.gz") for name, checksum in zip(names, checksums, strict=True)
    )


_MNIST_FILES = _files(
    _MNIST,
    (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)
_MNIST_ENTRY = partial(
    DatasetInfo,
    task="classify",
    licence="CC BY-SA 3.0, as commonly given",
    source="Y. LeCun, C. Cortes, C. Burges, The MNIST database, from the mirror that torchvision uses",
    splits=_SPLITS,
    files=_MNIST_FILES,
    folders=("mnist", "MNIST", "MNIST/raw"),
    load=partial(load, labels=tuple("0123456789")),
)

DATASETS = (
    _MNIST_ENTRY(key="mnist", title="MNIST digits, pixel by pixel, 784 steps"),
    _MNIST_ENTRY(
        key="pmnist",
        title="MNIST digits, pixel by pixel in a fixed random order",
        variants=("paper", "released"),
        options=("permutation",),
    ),
    _MNIST_ENTRY(
        key="mnist-rows",
        title="MNIST digits, 98 steps of 8 pixels or 28 of 28",
        settings={"length": ROWS[0]},
        options=("length",),
    ),
    DatasetInfo(
        key="fashion-mnist",
        title="Fashion-MNIST, pixel by pixel, 784 steps",
        task="classify",
        licence="MIT",
        source="H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, Zalando Research",
        splits=_SPLITS,
        files=_files(
            _FASHION,
            (
                "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                "9018921c3c673c538a1fc5bad174d6f9",
                "8181f5470baa50b63fa0f6fddb340f0a",
                "15d484375f8d13e6eb1aabb0c3f46965",
            ),
        ),
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
        load=partial(load, labels=_FASHION_LABELS),
    ),
)


def permutation(name: str, size: int) -> Int64Array:
    """Return a permutation by name: step t reads the pixel whose index is its t-th element.

    Args:
        name: ``urnn`` (also used by scoRNN and expRNN), ``nnrnn``, or a generator with its seed: ``torch-12008``
            (Lipschitz, noisy RNN, coRNN), ``torch-5544`` (UnICORNN, LEM), ``numpy-7``.
        size: Number of pixels of an image.

    Raises:
        ConfigError: If the name is unknown.
    """
    match = _SEEDED.fullmatch(PUBLISHED.get(name, name))
    if match is None:
        hint = errors.did_you_mean(name, (*PUBLISHED, "torch-12008", "torch-5544"))
        raise errors.ConfigError(
            f"permutation must be {', '.join(PUBLISHED)}, torch-SEED or numpy-SEED (such as torch-12008), "
            f"got '{name}'.{hint}"
        )
    generator, seed = match.groups()
    if generator == "numpy":
        return np.random.RandomState(int(seed)).permutation(size).astype(np.int64)
    # Imported here, because stablernn.data must not load torch unless it is needed.
    import torch

    order: Int64Array = torch.randperm(size, generator=torch.Generator().manual_seed(int(seed))).numpy()
    return order
