"""MNIST and Fashion-MNIST from small files in their published formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from named_helpers import at_home, idx, images, lay, published
from stablernn.data import ClassificationData, load_data
from stablernn.data.named.entry import LazySplit
from stablernn.data.named.mnist import permutation
from stablernn.errors import ConfigError, DataError


def out_of_reach(address: str) -> Any:
    raise DataError(f"{address} cannot be reached (no network in this test).")


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """All names that are read from MNIST's files, with 24 training images of which the first 12 validate."""
    folder = at_home(monkeypatch, tmp_path)
    monkeypatch.setattr("stablernn.data.named.fetch._blocks", out_of_reach)
    found = images()
    for key in ("mnist", "pmnist", "mnist-rows", "fashion-mnist"):
        published(monkeypatch, key, found)
    lay(folder / "mnist", found, ".gz")
    return found


def loaded(key: str, **options: Any) -> ClassificationData:
    data = load_data(key, **options)
    assert isinstance(data, ClassificationData)
    return data


def raw(contents: dict[str, bytes], name: str, *shape: int) -> np.ndarray:
    return np.frombuffer(contents[name], np.uint8)[-int(np.prod(shape)) :].reshape(shape)


def test_mnist_is_read_pixel_by_pixel_from_0_to_1(digits: dict[str, bytes]) -> None:
    data = loaded("mnist")
    pixels = raw(digits, "train-images-idx3-ubyte", 24, 784)
    classes = raw(digits, "train-labels-idx1-ubyte", 24)
    assert data.validation.x.shape == (12, 784, 1)
    np.testing.assert_array_equal(data.validation.x[:, :, 0], pixels[:12].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(data.train.x[:, :, 0], pixels[12:].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(data.train.y, classes[12:])
    assert data.train.ids == tuple(str(i) for i in range(12, 24))
    assert data.test is not None
    np.testing.assert_array_equal(data.test.y, raw(digits, "t10k-labels-idx1-ubyte", 10))
    assert (data.labels, data.features) == (tuple("0123456789"), ("pixel",))
    assert data.notes["sequences"] == {"train": 12, "validation": 12, "test": 10}


@pytest.mark.parametrize(
    "name",
    [
        "urnn",
        "torch-12008",
    ],
)
def test_pmnist_reads_the_pixels_in_the_order_that_is_asked_for(digits: dict[str, bytes], name: str) -> None:
    plain, permuted = loaded("mnist"), loaded("pmnist", permutation=name)
    np.testing.assert_array_equal(permuted.train.x, plain.train.x[:, permutation(name, 784)])
    assert permuted.test is not None
    assert plain.test is not None
    np.testing.assert_array_equal(permuted.test.x, plain.test.x[:, permutation(name, 784)])
    assert permuted.notes["permutation"] == name


def test_pmnist_as_released_is_of_raw_values_in_the_order_of_that_code(digits: dict[str, bytes]) -> None:
    released = loaded("pmnist", variant="released")
    order = permutation("torch-12008", 784)
    expected = raw(digits, "train-images-idx3-ubyte", 24, 784)[12:, order]
    np.testing.assert_array_equal(released.train.x[:, :, 0], expected)
    assert released.notes["variant"] == "released"
    assert released.notes["permutation"] == "torch-12008"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("urnn", [319, 576, 323, 107, 355, 716, 197, 20, 625, 60]),
        ("nnrnn", [529, 511, 328, 133, 532, 378, 156, 305, 143, 582]),
        ("torch-12008", [91, 97, 471, 426, 157, 451, 312, 198, 117, 454]),
        ("torch-5544", [327, 72, 48, 129, 109, 101, 69, 569, 79, 263]),
    ],
)
def test_permutations_are_those_of_the_papers_code(name: str, first: list[int]) -> None:
    order = permutation(name, 784)
    assert order[:10].tolist() == first
    assert sorted(order.tolist()) == list(range(784))


@pytest.mark.parametrize(("length", "width"), [(None, 8), (98, 8), (28, 28)])
def test_mnist_rows_are_so_many_pixels_a_step(digits: dict[str, bytes], length: int | None, width: int) -> None:
    rows = loaded("mnist-rows", length=length)
    assert rows.train.x.shape == (12, 784 // width, width)
    np.testing.assert_array_equal(rows.train.x.reshape(12, 784, 1), loaded("mnist").train.x)
    assert len(rows.features) == width


def test_fingerprints_tell_forms_apart(digits: dict[str, bytes]) -> None:
    found = [
        loaded("mnist"),
        loaded("pmnist"),
        loaded("pmnist", permutation="nnrnn"),
        loaded("pmnist", variant="released"),
        loaded("mnist-rows"),
        loaded("mnist-rows", length=28),
    ]
    assert len({data.fingerprint for data in found}) == len(found)
    assert loaded("pmnist").fingerprint == loaded("pmnist", permutation="urnn").fingerprint


def test_a_lazy_split_gives_what_a_stored_one_gives(digits: dict[str, bytes]) -> None:
    split = loaded("mnist").train
    assert isinstance(split, LazySplit)
    samples = split.gather([3, 1])
    np.testing.assert_array_equal(samples.x, split.x[[3, 1]])
    np.testing.assert_array_equal(samples.y, split.y[[3, 1]])
    assert samples.x.dtype == np.float32
    for sequence, expected in zip(split.sequences(), split.x, strict=True):
        np.testing.assert_array_equal(sequence, expected)
    assert split.held_bytes == 12 * 784


def test_scaling_looks_at_sequences_drawn_from_a_large_split() -> None:
    def make(indices: np.ndarray) -> np.ndarray:
        return np.repeat(indices.astype(np.float32), 2**16).reshape(len(indices), -1, 2)

    split = LazySplit(make, 0, np.full(2000, 2**15), np.zeros(2000, np.int64), [""] * 2000)
    chosen = [int(values[0, 0]) for values in split.for_scaling()]
    # 2**25 numbers of sequences of 2**16.
    assert len(set(chosen)) == len(chosen) == 512
    assert chosen == [int(values[0, 0]) for values in split.for_scaling()]
    assert np.mean(chosen) == pytest.approx(1000, abs=100)


def test_fashion_mnist_is_never_taken_from_the_folder_of_mnist(digits: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^'fashion-mnist' is not here: train-images-idx3-ubyte, "):
        load_data("fashion-mnist")
    lay(tmp_path / "data" / "FashionMNIST" / "raw", digits)
    data = loaded("fashion-mnist")
    assert data.labels[:2] == ("T-shirt/top", "Trouser")
    np.testing.assert_array_equal(data.train.x, loaded("mnist").train.x)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x89PNG1234", r"'t' is not an IDX file of bytes \(it begins with 0x89504e47\)"),
        (idx(np.zeros((3, 2)))[:-1], r"'t' must contain \(3, 2\) values according to its header, got 5"),
    ],
)
def test_what_is_no_idx_file_is_refused(content: bytes, sentence: str) -> None:
    from stablernn.data.named.mnist import read_idx

    with pytest.raises(DataError, match=sentence):
        read_idx("t", content)


def test_a_changed_byte_is_refused(digits: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    changed = digits["t10k-labels-idx1-ubyte"][:-1] + b"\x0b"
    lay(path.parent, {"t10k-labels-idx1-ubyte": changed}, ".gz")
    with pytest.raises(DataError) as caught:
        load_data("mnist")
    assert str(caught.value).startswith("'mnist': 't10k-labels-idx1-ubyte.gz' is not what was published (sha256:")
    assert str(caught.value).endswith(f"Remove '{path}' and fetch it again.")


@pytest.mark.parametrize(
    ("key", "options", "sentence"),
    [
        ("mnist", {"permutation": "urnn"}, "permutation is not for 'mnist';"),
        (
            "pmnist",
            {"permutation": "urn"},
            r"permutation must be urnn, nnrnn, torch-SEED or numpy-SEED \(such",
        ),
        ("mnist-rows", {"length": 49}, "length of 'mnist-rows' must be 98 or 28, got 49"),
    ],
)
def test_options_that_are_not_for_the_dataset_are_refused(
    digits: dict[str, bytes], key: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_data(key, **options)


def test_features_may_be_named_as_a_trained_model_does_and_no_others(digits: dict[str, bytes]) -> None:
    assert loaded("mnist", channels=("pixel",)).features == ("pixel",)
    with pytest.raises(DataError, match=r"'mnist' has 1 feature \(pixel\), the model expects 2 \(row, column\)"):
        load_data("mnist", channels=("row", "column"))
