"""The datasets of the papers as they lie under STABLERNN_DATA: counts and values that their publishers state.

The files are not part of the project; without the variable, or without the files, these tests are skipped.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data import ClassificationData, ForecastData, dataset_info, load_data
from stablernn.data.named.places import find
from stablernn.data.step_data import StepData
from stablernn_papers.datasets.audio import log_magnitudes, read_speech
from stablernn_papers.datasets.timit import CORE, DEVELOPMENT

ROOT = os.environ.get("STABLERNN_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROOT, reason="STABLERNN_DATA does not say where the real files lie"),
]


def needs(key: str, *, partly: bool = False) -> None:
    here = dataset_info(key).presence
    if here != "yes" and not (partly and here == "partly"):
        pytest.skip(f"STABLERNN_DATA has not all files of {key}")


def labelled(key: str, **options: Any) -> ClassificationData:
    needs(key, partly=options.get("partial", False))
    data = load_data(key, **options)
    assert isinstance(data, ClassificationData)
    return data


def steps(key: str) -> StepData:
    needs(key)
    data = load_data(key)
    assert isinstance(data, StepData)
    return data


def forecast(key: str, **options: Any) -> ForecastData:
    needs(key)
    data = load_data(key, **options)
    assert isinstance(data, ForecastData)
    return data


@pytest.fixture(scope="module")
def mnist() -> ClassificationData:
    return labelled("mnist")


def counts(data: ClassificationData, *splits: str) -> list[int]:
    return [sum(data.notes["classes"][split][label] for split in splits) for label in data.labels]


def test_mnist_has_the_published_counts(mnist: ClassificationData) -> None:
    assert mnist.notes["sequences"] == {"train": 55_000, "validation": 5_000, "test": 10_000}
    assert counts(mnist, "train", "validation") == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(mnist, "test") == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_mnist_has_the_published_mean_and_deviation(mnist: ClassificationData) -> None:
    total = squares = count = 0.0
    for split in (mnist.train, mnist.validation):
        for start in range(0, len(split), 5000):
            x = split.gather(np.arange(start, min(start + 5000, len(split)))).x.astype(np.float64)
            total, squares, count = total + x.sum(), squares + (x**2).sum(), count + x.size
    mean = total / count
    assert mean == pytest.approx(0.1307, abs=5e-5)
    assert (squares / count - mean**2) ** 0.5 == pytest.approx(0.3081, abs=5e-5)


def test_what_scaling_sees_of_mnist_has_nearly_its_mean(mnist: ClassificationData) -> None:
    values = mnist.training_values()
    assert len(values) == 2**25 // 784
    assert np.mean([one.mean() for one in values]) == pytest.approx(0.1307, abs=1e-3)


def test_pmnist_and_rows_hold_the_same_pixels(mnist: ClassificationData) -> None:
    chosen = [0, 20_000, 54_999]
    plain = mnist.train.gather(chosen)
    permuted = labelled("pmnist").train.gather(chosen)
    rows = labelled("mnist-rows", length=28).train.gather(chosen)
    np.testing.assert_array_equal(np.sort(permuted.x, axis=1), np.sort(plain.x, axis=1))
    np.testing.assert_array_equal(permuted.x[:, :3, 0], plain.x[:, [319, 576, 323], 0])
    np.testing.assert_array_equal(rows.x.reshape(3, 784, 1), plain.x)
    assert rows.x.shape == (3, 28, 28)


def test_cifar10_in_part_has_the_published_counts_and_values() -> None:
    data = labelled("cifar10", partial=True)
    assert counts(data, "test") == [1000] * 10
    if data.notes.get("partial") == ["data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"]:
        assert data.notes["sequences"] == {"train": 18_000, "validation": 2_000, "test": 10_000}
        first = np.bincount(data.train.y[:10_000]).tolist()
        assert first == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    total = [
        data.train.gather(np.arange(i, i + 1000)).x.mean(axis=(0, 1), dtype=np.float64) for i in range(0, 9000, 1000)
    ]
    # Of all 50,000 images; 9,000 of them are within some thousandths.
    assert np.mean(total, axis=0) == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-3)


def test_noise_padded_cifar10_needs_no_more_memory_than_the_images() -> None:
    data = labelled("cifar10-noise-padded", partial=True)
    images = len(data.train) + len(data.validation)
    assert data.train.held_bytes <= images * 3072
    assert data.train.gather(np.arange(64)).x.shape == (64, 1000, 96)
    assert sum(values.nbytes for values in data.training_values()) <= 2**27 + 4 * 96_000


def test_ptb_by_characters_has_the_published_counts() -> None:
    data = steps("ptb-char")
    assert data.notes["tokens"] == {"train": 5_017_482, "validation": 393_042, "test": 442_423}
    assert len(data.features) == 50
    seen = data.test.gather([0])
    assert len({*seen.x[0].tolist(), int(seen.y[0, -1])}) == 48
    start = data.train.gather([0]).x[0, :23]
    assert "".join(data.features[token] for token in start) == "aer_banknote_berlitz_ca"


def test_ptb_by_words_has_the_published_counts() -> None:
    data = steps("ptb-word")
    assert data.notes["tokens"] == {"train": 929_589, "validation": 73_760, "test": 82_430}
    assert len(data.features) == 10_000
    end, unknown = data.features.index("<eos>"), data.features.index("<unk>")
    for split, sentences, unknowns in (("train", 42_068, 45_020), ("validation", 3_370, 3_485), ("test", 3_761, 4_794)):
        # The last token is a target only, and the end of a line.
        tokens = data.split(split).gather([0]).x[0]
        assert (int((tokens == end).sum()) + 1, int((tokens == unknown).sum())) == (sentences, unknowns)


MUSIC = [
    ("jsb", (229, 76, 77), (13_807, 4_602, 4_725), 3.898),
    ("musedata", (524, 135, 124), (245_202, 82_755, 64_339), 3.493),
]


@pytest.mark.parametrize(("key", "sequences", "frames", "notes"), MUSIC, ids=[row[0] for row in MUSIC])
def test_music_has_the_published_counts(
    key: str, sequences: tuple[int, ...], frames: tuple[int, ...], notes: float
) -> None:
    data = steps(key)
    assert tuple(data.notes["sequences"].values()) == sequences
    assert tuple(data.notes["frames"].values()) == frames
    keys = 0
    for index in range(len(data.train)):
        samples = data.train.gather([index])
        keys += int(samples.x.sum()) + int(samples.y[0, -1].sum())
    assert keys / frames[0] == pytest.approx(notes, abs=5e-4)


@pytest.mark.parametrize(("key", "file"), [("jsb", "JSB_Chorales"), ("musedata", "MuseData")])
def test_music_equals_the_lists_of_notes(key: str, file: str) -> None:
    data = steps(key)
    path = find(dataset_info(key).files[0], dataset_info(key).folders)
    assert path is not None
    other = path.with_name(f"{file}.json.gz")
    if not other.is_file():
        pytest.skip(f"STABLERNN_DATA has no {other.name}")
    lists = json.loads(gzip.decompress(other.read_bytes()))
    for split, word in (("train", "train"), ("validation", "valid"), ("test", "test")):
        for index in range(0, len(lists[word]), 25):
            samples = data.split(split).gather([index])
            frames = np.concatenate([samples.x[0], samples.y[0, -1:]])
            assert [(np.flatnonzero(frame) + 21).tolist() for frame in frames] == [
                sorted(f) for f in lists[word][index]
            ]


def test_fsdd_has_the_published_counts() -> None:
    data = labelled("fsdd")
    assert data.notes["sequences"] == {"train": 2_400, "validation": 300, "test": 300}
    assert counts(data, "train", "validation", "test") == [300] * 10
    assert data.test is not None
    speakers = {name.split("_")[1] for name in data.test.ids}
    assert speakers == {"george", "jackson", "lucas", "nicolas", "theo", "yweweler"}
    assert data.notes["lengths"]["max"] == 1 + (18_262 + 256) // 128


def test_ett_has_the_published_rows_and_the_usual_splits() -> None:
    for key, rows, used in (("etth1", 17_420, 14_400), ("etth2", 17_420, 14_400), ("ettm1", 69_680, 57_600)):
        data = forecast(key)
        assert data.notes["rows"] == rows
        assert len(data.series[0].ds) == used
        assert (len(data.channels), data.targets, data.horizon) == (7, ("OT",), 96)
        assert len(data.windows("test")) == data.test_steps - 96 + 1
    assert (data.season, data.context_length, data.validation_steps, data.test_steps) == (96, 336, 11_520, 11_520)
    assert str(forecast("etth1").series[0].ds[-1])[:13] == "2018-02-20T23"


def test_ett_with_all_channels_as_targets() -> None:
    data = forecast("etth1", target=dataset_channels())
    assert data.targets == dataset_channels()


def dataset_channels() -> tuple[str, ...]:
    return ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")


def test_m4_hourly_has_the_published_series() -> None:
    data = forecast("m4-hourly")
    assert len(data.series) == 414
    lengths = [len(one.ds) - 48 for one in data.series]
    assert (min(lengths), max(lengths)) == (700, 960)
    assert (data.horizon, data.season, data.test_steps, data.validation_steps) == (48, 24, 48, 48)
    assert len(data.windows("test")) == 414
    first = data.series[0]
    assert first.unique_id == "H1"
    assert first.values[:3, 0].tolist() == [605, 586, 586]
    assert first.values[-48:-45, 0].tolist() == [619, 565, 532]


def test_speech_goes_the_way_of_timit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs("fsdd")
    info = dataset_info("fsdd")
    path = find(info.files[0], info.folders)
    assert path is not None
    if path.is_dir():
        pytest.skip("the recordings are not packed")
    folders = {"train/dr1/fcjf0": "george", f"test/dr2/{min(DEVELOPMENT)}": "theo", f"test/dr3/{min(CORE)}": "lucas"}
    expected = {}
    with tarfile.open(path) as archive:
        for folder, speaker in folders.items():
            for digit in range(3):
                reader = archive.extractfile(f"recordings/{digit}_{speaker}_0.wav")
                assert reader is not None
                samples, rate = read_speech("s", reader.read())
                place = tmp_path / "timit" / folder.upper() / f"SX{digit}.WAV"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(as_sphere(samples, rate))
                expected[folder, digit] = log_magnitudes(samples, rate)
    monkeypatch.setenv("STABLERNN_DATA", str(tmp_path))
    data = load_data("timit", partial=True)
    assert isinstance(data, StepData)
    assert data.notes["sequences"] == {"train": 3, "validation": 3, "test": 3}
    for split, folder in zip((data.train, data.validation, data.test), folders, strict=True):
        for digit in range(3):
            found = split.gather([digit])
            np.testing.assert_array_equal(found.x[0], expected[folder, digit])
            np.testing.assert_array_equal(found.y[0, :-1], expected[folder, digit][1:])


def as_sphere(samples: np.ndarray, rate: int) -> bytes:
    written = io.BytesIO()
    written.write(f"NIST_1A\n   1024\nsample_count -i {len(samples)}\nsample_rate -i {rate}\nend_head\n".encode())
    return written.getvalue().ljust(1024) + samples.astype("<i2").tobytes()
