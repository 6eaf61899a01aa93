"""What is said of every named dataset: complete, checkable, and the same on its page."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stablernn.data import ClassificationData, ForecastData, list_datasets, load_data
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


@pytest.fixture(scope="module")
def digits() -> ClassificationData:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    return data


@pytest.fixture(scope="module")
def co2() -> ForecastData:
    data = load_data("co2")
    assert isinstance(data, ForecastData)
    return data


def test_digits_equal_those_of_scikit_learn(digits: ClassificationData) -> None:
    original = pytest.importorskip("sklearn.datasets").load_digits()
    for split in (digits.train, digits.validation, digits.test):
        assert split is not None
        index = np.array([int(i) for i in split.ids])
        np.testing.assert_array_equal(split.x[:, :, 0], original.images.reshape(-1, 64)[index])
        np.testing.assert_array_equal(split.y, original.target[index])


def test_co2_equals_that_of_statsmodels(co2: ForecastData) -> None:
    original = pytest.importorskip("statsmodels.datasets.co2").load_pandas().data
    (series,) = co2.series
    np.testing.assert_array_equal(series.values[:, 0], original["co2"].to_numpy().astype(np.float32))
    np.testing.assert_array_equal(series.ds, original.index.to_numpy().astype("datetime64[ns]"))
    assert co2.notes["missing_values"] == original["co2"].isna().sum()


def test_co2_holds_two_years_for_test_and_two_for_validation(co2: ForecastData) -> None:
    assert (co2.horizon, co2.season, co2.context_length) == (52, 52, 104)
    assert (co2.validation_steps, co2.test_steps) == (104, 104)
    assert co2.frequency == "W-SAT"
    assert (co2.channels, co2.targets) == (("co2",), ("co2",))
    assert [len(co2.windows(split)) for split in ("train", "validation", "test")] == [1921, 53, 53]
    assert len(co2.training_values()[0]) == 2284 - 208


@pytest.mark.parametrize(("name", "expected"), [("digits", DIGITS_FINGERPRINT), ("co2", CO2_FINGERPRINT)])
def test_fingerprint_is_fixed(name: str, expected: str) -> None:
    assert load_data(name).fingerprint == expected
