"""What is said of every named dataset: complete, checkable, and the same on its page."""

from __future__ import annotations

import re

import pytest

from stablernn.data import list_datasets, load_data
from stablernn.data.named.entry import DatasetInfo

NAMES = (
    "adding cifar10 cifar10-noise-padded co2 copy digits etth1 etth2 ettm1 ettm2 fashion-mnist fsdd fsdd-frames jsb "
    "m4-hourly mnist mnist-rows musedata nottingham piano-midi pmnist ptb-char ptb-word timit"
)
ALL = pytest.mark.parametrize("info", list_datasets(), ids=lambda info: info.key)


def test_every_name_is_there() -> None:
    assert " ".join(info.key for info in list_datasets()) == NAMES
    assert [info.key for info in list_datasets("*mnist*")] == ["fashion-mnist", "mnist", "mnist-rows", "pmnist"]


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


DIGITS_FINGERPRINT = "sha256:10dd37adc13af9a23ff9fb1d7277b6f4912c09717eaffe77af6806e9e6e319b6"
CO2_FINGERPRINT = "sha256:0d46e8bc8f6815f6b8341e745adf3ef8b5edc8fe81ee2d1b0b6ab0cf1bb81224"


@pytest.mark.parametrize(("name", "expected"), [("digits", DIGITS_FINGERPRINT), ("co2", CO2_FINGERPRINT)])
def test_fingerprint_is_fixed(name: str, expected: str) -> None:
    assert load_data(name).fingerprint == expected
