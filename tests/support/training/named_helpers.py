"""Helpers for tests of named datasets: small files in the published formats, with their own checksums."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stablernn.data import catalog
from stablernn.data.named.entry import DatasetInfo

PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def at_home(monkeypatch: pytest.MonkeyPatch, root: Path) -> Path:
    """Let data lie and be cached below a folder of the test, and nowhere else."""
    monkeypatch.setenv("STABLERNN_DATA", str(root / "data"))
    monkeypatch.setenv("STABLERNN_CACHE", str(root / "cache"))
    (root / "data").mkdir(exist_ok=True)
    return root / "data"


def published(monkeypatch: pytest.MonkeyPatch, key: str, contents: Mapping[str, bytes]) -> DatasetInfo:
    """Let these contents be what was published of a dataset."""
    info = catalog.dataset_info(key)
    files = tuple(
        replace(file, checksum=sha256(contents[file.name]) if file.name in contents else file.checksum)
        for file in info.files
    )
    return entry(monkeypatch, replace(info, files=files))


def entry(monkeypatch: pytest.MonkeyPatch, info: DatasetInfo) -> DatasetInfo:
    monkeypatch.setitem(catalog._DATASETS, info.key, info)
    return info


def lay(folder: Path, contents: Mapping[str, bytes], packing: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / (name + packing)).write_bytes(PACK[packing](content))


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in the IDX format."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def images(train: int = 24, test: int = 10) -> dict[str, bytes]:
    """Four files as those of MNIST: random images and classes."""
    random = np.random.RandomState(0)
    return {
        f"{part}-{kind}": idx(random.randint(0, 256 if axes else 10, (count, *axes)))
        for part, count in (("train", train), ("t10k", test))
        for kind, axes in (("images-idx3-ubyte", (28, 28)), ("labels-idx1-ubyte", ()))
    }


def batches(count: int = 20) -> dict[str, bytes]:
    """Return six files in the format of CIFAR-10's binary version, by name."""
    random = np.random.RandomState(0)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    files = {}
    for name in names:
        records = random.randint(0, 256, (count, 3073)).astype(np.uint8)
        records[:, 0] %= 10
        files[name] = records.tobytes()
    return files
