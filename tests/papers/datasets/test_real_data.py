"""The datasets of the papers as they lie under STABLERNN_DATA: counts and values that their publishers state.

The files are not part of the project; without the variable, or without the files, these tests are skipped.
"""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

import numpy as np
import pytest

from stablernn.data import dataset_info, load_data
from stablernn.data.named.places import find

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("STABLERNN_DATA" not in os.environ, reason="STABLERNN_DATA names no folder of real files"),
]


def loaded(key: str, **options: Any) -> Any:
    here = dataset_info(key).presence
    if here != "yes" and not (options.get("partial") and here == "partly"):
        pytest.skip(f"STABLERNN_DATA has not all files of {key}")
    return load_data(key, **options)


@pytest.mark.parametrize(
    ("key", "note", "counts"),
    [
        ("mnist", "sequences", (55_000, 5_000, 10_000)),
        ("fsdd", "sequences", (2_400, 300, 300)),
        ("ptb-char", "tokens", (5_017_482, 393_042, 442_423)),
        ("ptb-word", "tokens", (929_589, 73_760, 82_430)),
        ("jsb", "sequences", (229, 76, 77)),
        ("jsb", "frames", (13_807, 4_602, 4_725)),
        ("musedata", "sequences", (524, 135, 124)),
        ("musedata", "frames", (245_202, 82_755, 64_339)),
    ],
)
def test_published_counts(key: str, note: str, counts: tuple[int, ...]) -> None:
    assert tuple(loaded(key).notes[note].values()) == counts


def test_mnist_has_the_published_classes_and_mean_and_its_kinds_the_same_pixels() -> None:
    mnist = loaded("mnist")
    classes = mnist.notes["classes"]
    assert list(classes["test"].values()) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.mean([x.mean() for x in mnist.training_values()]) == pytest.approx(0.1307, abs=1e-3)
    chosen = [0, 20_000, 54_999]
    plain, permuted = mnist.train.gather(chosen).x, loaded("pmnist").train.gather(chosen).x
    np.testing.assert_array_equal(np.sort(permuted, axis=1), np.sort(plain, axis=1))
    np.testing.assert_array_equal(permuted[:, :3, 0], plain[:, [319, 576, 323], 0])
    rows = loaded("mnist-rows", length=28).train.gather(chosen).x
    np.testing.assert_array_equal(rows.reshape(3, 784, 1), plain)


def test_cifar10_has_the_published_mean_and_its_noise_takes_no_memory() -> None:
    data = loaded("cifar10", partial=True)
    assert set(data.notes["classes"]["test"].values()) == {1000}
    means = [data.train.gather(np.arange(i, i + 1000)).x.mean(axis=(0, 1)) for i in range(0, 9000, 1000)]
    # Of all 50,000 images; 9,000 of them are within some thousandths.
    assert np.mean(means, axis=0) == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-3)
    padded = loaded("cifar10-noise-padded", partial=True)
    assert padded.train.held_bytes <= (len(padded.train) + len(padded.validation)) * 3072


def test_texts_have_their_vocabularies() -> None:
    text, words = loaded("ptb-char"), loaded("ptb-word")
    start = text.train.gather([0]).x[0, :23]
    assert (len(text.features), "".join(text.features[token] for token in start)) == (50, "aer_banknote_berlitz_ca")
    assert len(words.features) == 10_000
    # The last token is a target only, and the end of a line.
    ends = (words.test.gather([0]).x[0] == words.features.index("<eos>")).sum() + 1
    assert ends == 3_761


@pytest.mark.parametrize(("key", "file"), [("jsb", "JSB_Chorales"), ("musedata", "MuseData")])
def test_music_equals_the_lists_of_notes(key: str, file: str) -> None:
    data = loaded(key)
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
            assert [(np.flatnonzero(frame) + 21).tolist() for frame in frames] == [*map(sorted, lists[word][index])]


def test_series_have_the_published_rows_and_the_usual_splits() -> None:
    for key, rows, used in (("etth1", 17_420, 14_400), ("ettm1", 69_680, 57_600)):
        data = loaded(key)
        assert (data.notes["rows"], len(data.series[0].ds)) == (rows, used)
        assert (len(data.channels), data.targets, data.horizon) == (7, ("OT",), 96)
    assert (data.season, data.context_length, data.validation_steps, data.test_steps) == (96, 336, 11_520, 11_520)
    hourly = loaded("m4-hourly")
    lengths = [len(one.ds) - 48 for one in hourly.series]
    assert (len(lengths), min(lengths), max(lengths)) == (414, 700, 960)
    assert hourly.series[0].values[-48:-45, 0].tolist() == [619, 565, 532]
