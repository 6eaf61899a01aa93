"""The bundled datasets: equal to their originals, split as documented, fixed for ever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stablernn.data import ClassificationData, ForecastData, dataset_info, list_datasets, load_data

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


def test_digits_are_split_by_index(digits: ClassificationData) -> None:
    assert digits.test is not None
    assert digits.test.ids == tuple(str(i) for i in range(1797) if i % 5 == 0)
    assert digits.validation.ids == tuple(str(i) for i in range(1797) if i % 5 == 1)
    assert digits.train.ids == tuple(str(i) for i in range(1797) if i % 5 > 1)


def test_digits_are_read_pixel_by_pixel_in_raw_values(digits: ClassificationData) -> None:
    assert digits.train.x.shape == (1077, 64, 1)
    assert (digits.train.x.min(), digits.train.x.max()) == (0, 16)
    assert set(digits.train.lengths) == {64}
    assert digits.labels == tuple("0123456789")
    assert digits.features == ("pixel",)


def test_digits_notes_count_what_is_there(digits: ClassificationData) -> None:
    assert digits.notes["sequences"] == {"train": 1077, "validation": 360, "test": 360}
    assert digits.notes["missing_values"] == {"train": 0, "validation": 0, "test": 0}
    assert digits.notes["validation"] == {"how": "index % 5: 0 is test, 1 is validation, the rest is train"}
    assert sum(digits.notes["classes"]["test"].values()) == 360


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


def test_settings_of_co2_can_be_changed() -> None:
    data = load_data("co2", horizon=13, context_length=26, test_steps=52)
    assert isinstance(data, ForecastData)
    assert (data.horizon, data.context_length, data.validation_steps, data.test_steps) == (13, 26, 104, 52)
    assert data.fingerprint == CO2_FINGERPRINT


def test_a_file_of_the_same_content_has_the_same_fingerprint(tmp_path: Path, co2: ForecastData) -> None:
    (series,) = co2.series
    cells = ["" if np.isnan(value) else f"{value:.1f}" for value in series.values[:, 0]]
    rows = [f"{str(stamp)[:10]},{cell}" for stamp, cell in zip(series.ds, cells, strict=True)]
    path = tmp_path / "co2.csv"
    path.write_text("\n".join(["ds,co2", *rows]))
    assert load_data(path).fingerprint == CO2_FINGERPRINT


def test_list_names_what_is_shipped_with_its_licence() -> None:
    shipped = {info.key: info.licence for info in list_datasets() if info.file is not None}
    assert shipped == {"co2": "public domain", "digits": "CC BY 4.0"}
    assert [info.key for info in list_datasets("d*")] == ["digits"]


def test_every_bundled_file_is_described_beside_it() -> None:
    file = dataset_info("digits").file
    assert file is not None
    folder = file.parent
    readme = (folder / "README.md").read_text()
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["README.md", "co2.csv.gz", "digits.npz"]
    assert all(f"## {name}" in readme for name in files if name != "README.md")
