"""The .arff reader: one channel, several channels in a relational attribute, and what is no time series."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from stablernn.data import ClassificationData, load_data
from stablernn.data.readers.arff import read_arff
from stablernn.data.sequences import Sequences
from stablernn.errors import DataError

ONE = """% a comment
@RELATION Toy

@attribute att0 numeric
@attribute 'att 1' REAL
@attribute target {1,2, 'three words'}

@data
"""
MANY = """@relation 'Toy'
@attribute relationalAtt relational
  @attribute att0 numeric
  @attribute att1 numeric
@end relationalAtt
@attribute activity {Standing,Running}
@data
"""


def read(folder: Path, text: str) -> Sequences:
    path = folder / "a.arff"
    path.write_text(text)
    return read_arff(path)


def test_a_relational_attribute_holds_the_channels(tmp_path: Path) -> None:
    found = read(tmp_path, MANY + r"'1,2\n3,4\n5,6',Standing" + "\n" + r'"7,?\n8,?\n9,?",Running' + "\n")
    np.testing.assert_array_equal(found.values[0], [[1, 3, 5], [2, 4, 6]])
    np.testing.assert_array_equal(found.values[1], [[7, 8, 9]])
    assert found.labels == ["Standing", "Running"]
    assert found.features == ("channel_0", "channel_1", "channel_2")
    assert found.notes == {"trailing_missing_cut": 1}


def test_without_a_class_there_are_no_labels(tmp_path: Path) -> None:
    found = read(tmp_path, "@relation x\n@attribute a numeric\n@attribute b numeric\n@data\n1,2\n3,4\n")
    assert found.labels is None
    assert [one[:, 0].tolist() for one in found.values] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("packed", [".arff", ".arff.gz", ".arff.xz"])
def test_train_brings_test_in_every_packing(tmp_path: Path, packed: str) -> None:
    pack = {".arff": bytes, ".arff.gz": gzip.compress, ".arff.xz": lzma.compress}[packed]
    (tmp_path / f"A_TRAIN{packed}").write_bytes(pack((ONE + "1,2,1\n" * 3 + "3,4,2\n" * 3).encode()))
    (tmp_path / f"A_TEST{packed}").write_bytes(pack((ONE + "5,6,2\n").encode()))
    data = load_data(tmp_path / f"A_TRAIN{packed}")
    assert isinstance(data, ClassificationData)
    assert data.split("test").x.tolist() == [[[5], [6]]]
    assert data.split("test").y.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (ONE + "1,2\n", r"'a\.arff' line 9 has 1 value where its attributes are 2"),
        (
            ONE + "1,2,four\n",
            r"'a\.arff' line 9 has the label 'four', its attribute allows 1,",
        ),
        (ONE + "?,?,1\n", r"'a\.arff' line 9 has a label but no values"),
        (ONE + "{0 1, 2 1}\n", r"'a\.arff' line 9 is a sparse row, which is not read"),
        (MANY + r"'1,2\n3',Standing", r"'a\.arff' line 8 has 1 value where its attributes are 2"),
        (
            "@relation x\n@attribute when date\n@data\n1\n",
            r"'a\.arff' line 2: an attribute of type 'date' does not belong",
        ),
        (
            "@relation x\n@attribute c {a,b}\n@attribute x numeric\n@data\na,1\n",
            r"'a\.arff' line 3: the class must be the last attribute",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read(tmp_path, text)
