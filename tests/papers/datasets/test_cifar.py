"""CIFAR-10 from small files in its published format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from named_helpers import at_home, batches, lay, published
from stablernn.data import ClassificationData, load_data
from stablernn.errors import DataError
from stablernn_papers.datasets.cifar import read_batch


def loaded(key: str, **options: Any) -> ClassificationData:
    data = load_data(key, **options)
    assert isinstance(data, ClassificationData)
    return data


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    folder = at_home(monkeypatch, tmp_path)
    monkeypatch.setattr("stablernn.data.named.fetch._blocks", out_of_reach)
    found = batches()
    for key in ("cifar10", "cifar10-noise-padded"):
        published(monkeypatch, key, found)
    lay(folder / "cifar-10" / "cifar-10-batches-bin", found, ".xz")
    return found


def out_of_reach(address: str) -> Any:
    raise DataError(f"{address} cannot be reached (no network in this test).")


def records(contents: dict[str, bytes], *names: str) -> np.ndarray:
    return np.concatenate([np.frombuffer(contents[name], np.uint8).reshape(-1, 3073) for name in names])


def test_cifar10_is_a_pixel_a_step(colours: dict[str, bytes]) -> None:
    data = loaded("cifar10")
    everything = records(colours, *(f"data_batch_{number}.bin" for number in range(1, 6)))
    assert data.notes["sequences"] == {"train": 90, "validation": 10, "test": 20}
    assert data.features == ("red", "green", "blue")
    # Step 33 is the second pixel of the second row.
    found = np.concatenate([data.train.x, data.validation.x])[:, 33]
    expected = everything[:, [1 + 33, 1 + 1024 + 33, 1 + 2048 + 33]].astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.concatenate([data.train.y, data.validation.y]), everything[:, 0])
    assert "partial" not in data.notes


def test_cifar10_as_released_is_three_neighbours_of_a_plane_a_step(colours: dict[str, bytes]) -> None:
    data = loaded("cifar10", variant="released")
    assert data.test is not None
    planes = records(colours, "test_batch.bin")[:, 1:]
    np.testing.assert_array_equal(data.test.x[:, 400], planes[:, 1200:1203].astype(np.float32) / np.float32(255))


def test_noise_padded_rows_come_first_and_the_noise_of_each_is_its_own(colours: dict[str, bytes]) -> None:
    data = loaded("cifar10-noise-padded")
    assert data.test is not None
    x = data.test.gather([0, 1, 2]).x
    assert x.shape == (3, 1000, 96)
    red = records(colours, "test_batch.bin")[:3, 1 : 1 + 1024].reshape(3, 32, 32)
    blue = records(colours, "test_batch.bin")[:3, 1 + 2048 :].reshape(3, 32, 32)
    np.testing.assert_allclose(x[:, :32, :32], (red / 255 - 0.4914) / 0.2023, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x[:, :32, 64:], (blue / 255 - 0.4465) / 0.2010, rtol=1e-5, atol=1e-6)
    noise = x[:, 32:]
    # 92,928 draws: mean and deviation within five standard errors.
    assert np.abs(noise.mean(axis=(1, 2))).max() < 0.02
    assert np.abs(noise.std(axis=(1, 2)) - 1).max() < 0.02
    assert np.abs(np.corrcoef(noise.reshape(3, -1))[np.triu_indices(3, 1)]).max() < 0.02
    np.testing.assert_array_equal(data.test.gather([2]).x[0], x[2])
    assert not np.array_equal(data.train.gather([0]).x[0, 32:], noise[0])
    assert not np.array_equal(loaded("cifar10-noise-padded", seed=1).test.gather([0]).x[0, 32:], noise[0])  # type: ignore[union-attr]


def test_noise_padded_as_released_has_one_noise_for_all(colours: dict[str, bytes]) -> None:
    data = loaded("cifar10-noise-padded", variant="released")
    assert data.test is not None
    first = data.train.gather([0]).x[0, 32:]
    for split in (data.train, data.validation, data.test):
        np.testing.assert_array_equal(split.gather([5]).x[0, 32:], first)


def test_missing_batches_are_named_and_may_be_done_without(colours: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-10" / "cifar-10-batches-bin"
    for number in (3, 5):
        (folder / f"data_batch_{number}.bin.xz").unlink()
    with pytest.raises(DataError, match=r"without data_batch_3\.bin, data_batch_5\.bin .*data\.partial=true"):
        load_data("cifar10")
    whole = loaded("cifar10-noise-padded", partial=True)
    assert whole.notes["partial"] == ["data_batch_3.bin", "data_batch_5.bin"]
    assert whole.notes["sequences"] == {"train": 54, "validation": 6, "test": 20}


def test_partial_data_has_another_fingerprint(colours: dict[str, bytes], tmp_path: Path) -> None:
    whole = loaded("cifar10", partial=True)
    assert "partial" not in whole.notes
    (tmp_path / "data" / "cifar-10" / "cifar-10-batches-bin" / "data_batch_4.bin.xz").unlink()
    assert loaded("cifar10", partial=True).fingerprint != whole.fingerprint


@pytest.mark.parametrize("content", [b"\0" * 3074, b"\x0b" + b"\0" * 3072], ids=["a byte more", "a class more"])
def test_what_is_no_batch_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^'b' .*(3074 bytes|class 11)"):
        read_batch("b", content)
