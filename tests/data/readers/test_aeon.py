"""Our readers of the archives' files give what aeon's loaders give, on every file under STABLERNN_DATA/ucr-uea.

aeon does not go with the numpy of this project, so it gets an environment of its own, which pip fills. Where pip
cannot, these tests are skipped and say why.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stablernn.data.files import detect_format
from stablernn.data.load import read_sequences
from stablernn.data.sequences import plain_label

ROOT = os.environ.get("STABLERNN_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROOT, reason="STABLERNN_DATA does not say where the real files lie"),
]
FILES = sorted(
    path
    for path in (Path(ROOT) / "ucr-uea").glob("*/*")
    if path.name.removesuffix(".gz").endswith((".ts", ".tsv", ".arff"))
) if ROOT else []  # fmt: skip

LOADER = """
import sys
from pathlib import Path
import numpy as np
from aeon.datasets import load_from_arff_file, load_from_ts_file, load_from_tsv_file

for name in sys.argv[2:]:
    load = {".arff": load_from_arff_file, ".ts": load_from_ts_file, ".tsv": load_from_tsv_file}[Path(name).suffix]
    x, y = load(name)
    # (channels, time) each, of unequal length in some
    parts = [np.atleast_2d(np.asarray(one, dtype=np.float64)) for one in x]
    np.savez(
        Path(sys.argv[1]) / (Path(name).name + ".npz"),
        values=np.concatenate([part.T.ravel() for part in parts]),
        channels=parts[0].shape[0],
        lengths=[part.shape[1] for part in parts],
        labels=np.array([str(label) for label in y]),
    )
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what aeon read, an .npz a file."""
    folder = tmp_path_factory.mktemp("aeon")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, capture_output=True, timeout=120)
    python = str(folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    environment = {word: value for word, value in os.environ.items() if word != "PYTHONPATH"}
    pip = subprocess.run(
        [python, "-m", "pip", "install", "-q", "aeon==1.6.0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if pip.returncode:
        pytest.skip(f"pip cannot install aeon: {pip.stderr.strip().splitlines()[-1:]}")
    plain = []
    for path in FILES:
        copy = folder / path.name.removesuffix(".gz")
        copy.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        plain.append(str(copy))
    subprocess.run([python, "-c", LOADER, str(folder), *plain], env=environment, check=True, timeout=900)
    return folder


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_our_reader_gives_what_aeon_gives(path: Path, theirs: Path) -> None:
    ours = read_sequences(path)
    with np.load(theirs / f"{path.name.removesuffix('.gz')}.npz", allow_pickle=False) as found:
        channels, lengths, labels = int(found["channels"]), found["lengths"], found["labels"]
        values = found["values"].reshape(-1, channels).astype(np.float32)
    assert (len(ours.features), [len(one) for one in ours.values]) == (channels, lengths.tolist())
    np.testing.assert_array_equal(np.concatenate(ours.values), values)
    assert ours.labels is not None
    # aeon writes the words of .ts in lower case, whatever the file has.
    assert [label.lower() for label in ours.labels] == [plain_label(str(label)).lower() for label in labels]


def test_every_kind_of_file_is_among_them() -> None:
    assert {detect_format(path) for path in FILES} == {".ts", ".tsv", ".arff"}
