"""What is said of every named dataset: complete, checkable, and the same on its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stablernn.data import dataset_info, list_datasets
from stablernn.data.named.entry import DatasetInfo
from stablernn.data.options import NAMED_OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text(encoding="utf-8")
NAMES = (
    "adding cifar10 cifar10-noise-padded co2 copy digits etth1 etth2 ettm1 ettm2 fashion-mnist fsdd fsdd-frames jsb "
    "m4-hourly mnist mnist-rows musedata nottingham piano-midi pmnist ptb-char ptb-word timit"
)
ALL = pytest.mark.parametrize("info", list_datasets(), ids=lambda info: info.key)


def test_every_name_is_there() -> None:
    assert " ".join(info.key for info in list_datasets()) == NAMES
    assert [info.key for info in list_datasets("*mnist*")] == ["fashion-mnist", "mnist", "mnist-rows", "pmnist"]


@ALL
def test_a_dataset_says_what_it_is(info: DatasetInfo) -> None:
    assert all((info.title, info.licence, info.source, info.splits))
    assert info.task in ("classify", "forecast", "predict-next")
    assert (info.file is None) != (info.load is None)
    assert set(info.options) <= set(NAMED_OPTIONS) - {"variant"}
    assert bool(info.folders) == bool(info.files)
    # What cannot be fetched says where it is had.
    assert (info.obtain is not None) == any(file.address is None for file in info.files)


@ALL
def test_a_file_is_fetched_safely_and_checked(info: DatasetInfo) -> None:
    for file in info.files:
        if file.checksum is not None:
            assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.checksum)
        else:
            assert file.name in ("Nottingham.mat", "Piano_midi.mat", "timit")
        if file.address is not None:
            # Only the home of Fashion-MNIST speaks no https; checksums hold for all.
            assert file.address.startswith("http://fashion-mnist." if info.key == "fashion-mnist" else "https://")
            assert file.max_bytes <= 2**28


@ALL
def test_a_dataset_is_on_its_page(info: DatasetInfo) -> None:
    tables = [line for line in PAGE.splitlines() if line.startswith("|")]
    naming = [line for line in tables if f"`{info.key}`" in line.split("|")[1]]
    assert any(f"| {info.task} |" in line for line in naming)
    assert any(line.rstrip("| ").endswith(info.licence) for line in naming)
    for file in info.files:
        word = f"`{file.checksum}`" if file.checksum else "none published"
        assert any(f"| `{file.name}` | {word} |" in line for line in naming)
    for folder in info.folders:
        assert folder == "." or any(f"`{folder}`" in line for line in naming)
    for variant in info.variants:
        assert f"`{variant}`" in PAGE


def test_the_page_names_no_file_that_is_none() -> None:
    known = {file.checksum for info in list_datasets() for file in info.files}
    known |= {file.archive_checksum for file in dataset_info("cifar10").files}
    assert set(re.findall(r"`((?:md5|sha256):[0-9a-f]+)`", PAGE)) <= known
