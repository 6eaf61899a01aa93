"""Fetching: from a real server on this machine, with everything that can go wrong on the way."""

from __future__ import annotations

import gzip
import io
import logging
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from named_helpers import at_home, batches, entry, images, lay, published, sha256
from stablernn.data import dataset_info, load_data
from stablernn.data.named.entry import DatasetInfo
from stablernn.data.named.fetch import fetch
from stablernn.errors import DataError

IMAGES = images()


@dataclass
class Home:
    """A server with some files.

    Attributes:
        address: Where it is.
        files: What it gives, by name.
        announce: What it says of the length of a file, if that is not the truth.
        asked: The names that it was asked for.
    """

    address: str
    files: dict[str, bytes]
    announce: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def home() -> Iterator[Home]:
    """A server with the files of MNIST."""
    files = {f"{name}.gz": gzip.compress(content) for name, content in IMAGES.items()}
    found = Home("", files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            found.asked.append(name)
            content = found.files.get(name)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(found.announce.get(name, len(content))))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Home) -> DatasetInfo:
    """MNIST, whose home is the server and whose files are not here."""
    at_home(monkeypatch, tmp_path)
    return moved(monkeypatch, published(monkeypatch, "mnist", IMAGES), home)


def moved(monkeypatch: pytest.MonkeyPatch, info: DatasetInfo, home: Home) -> DatasetInfo:
    """The dataset with its home there."""
    files = tuple(
        replace(file, address=f"{home.address}/{file.address.rsplit('/', 1)[1]}" if file.address else None)
        for file in info.files
    )
    return entry(monkeypatch, replace(info, files=files))


def left_behind(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_are_fetched_checked_and_used(mnist: DatasetInfo, home: Home, tmp_path: Path) -> None:
    assert mnist.presence == "no"
    told: list[str] = []
    fetched = fetch(mnist, report=told.append)
    assert [path.name for path in fetched] == [f"{name}.gz" for name in IMAGES]
    assert left_behind(tmp_path) == sorted(f"data/mnist/{name}.gz" for name in IMAGES)
    assert told == [f"Fetching {home.address}/{name}.gz" for name in IMAGES]
    assert mnist.presence == "yes"
    assert load_data("mnist").notes["sequences"]["test"] == 10
    assert fetch(mnist) == []
    assert len(home.asked) == 4


def test_loading_fetches_what_is_not_here(
    mnist: DatasetInfo, home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(tmp_path / "data" / "mnist", {name: IMAGES[name] for name in IMAGES if "t10k" in name})
    assert mnist.presence == "partly"
    with caplog.at_level(logging.WARNING):
        data = load_data("mnist")
    assert data.notes["sequences"] == {"train": 12, "validation": 12, "test": 10}
    assert home.asked == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    assert [record.message for record in caplog.records] == [f"Fetching {home.address}/{name}" for name in home.asked]


def test_files_of_another_content_are_refused_and_not_kept(mnist: DatasetInfo, home: Home, tmp_path: Path) -> None:
    other = IMAGES["train-images-idx3-ubyte"][:-1] + b"!"
    home.files["train-images-idx3-ubyte.gz"] = gzip.compress(other)
    with pytest.raises(DataError) as caught:
        fetch(mnist)
    assert str(caught.value) == (
        f"What {home.address}/train-images-idx3-ubyte.gz gives for 'train-images-idx3-ubyte' is not what was published "
        f"({sha256(other)}, published {sha256(IMAGES['train-images-idx3-ubyte'])})."
    )
    assert left_behind(tmp_path) == []


def test_a_transfer_that_breaks_off_is_refused_and_not_kept(mnist: DatasetInfo, home: Home, tmp_path: Path) -> None:
    name = "train-labels-idx1-ubyte.gz"
    whole = len(home.files[name])
    home.announce[name] = whole + 1000
    with pytest.raises(DataError) as caught:
        fetch(mnist)
    assert str(caught.value) in (
        f"{home.address}/{name} breaks off after {whole} of {whole + 1000:,} bytes.",
        f"{home.address}/{name} breaks off (IncompleteRead).",
    )
    # The file before it is whole, and stays.
    assert left_behind(tmp_path) == ["data/mnist/train-images-idx3-ubyte.gz"]
    del home.announce[name]
    assert len(fetch(mnist)) == 3
    assert mnist.presence == "yes"


def test_a_file_that_is_not_there_is_named(mnist: DatasetInfo, home: Home, tmp_path: Path) -> None:
    del home.files["train-images-idx3-ubyte.gz"]
    with pytest.raises(DataError) as caught:
        fetch(mnist)
    assert str(caught.value) == f"{home.address}/train-images-idx3-ubyte.gz answers 404 (Not Found)."
    assert left_behind(tmp_path) == []


def test_more_than_is_expected_is_not_read(
    mnist: DatasetInfo, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tuple(replace(file, max_bytes=100) for file in mnist.files)
    with pytest.raises(DataError) as caught:
        fetch(entry(monkeypatch, replace(mnist, files=files)))
    assert str(caught.value) == (f"{home.address}/train-images-idx3-ubyte.gz has more than the expected 100 bytes.")
    assert left_behind(tmp_path) == []


def test_an_address_that_is_none_of_the_web_is_refused(mnist: DatasetInfo, tmp_path: Path) -> None:
    lay(tmp_path / "elsewhere", IMAGES, ".gz")
    with pytest.raises(DataError) as caught:
        fetch(mnist, base=(tmp_path / "elsewhere").as_uri())
    assert str(caught.value).endswith("train-images-idx3-ubyte.gz' is not an http or https address.")


def test_offline_the_files_the_folders_and_the_home_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Home
) -> None:
    at_home(monkeypatch, tmp_path)
    # A port on which nobody listens.
    nowhere = replace(home, address="http://127.0.0.1:9")
    moved(monkeypatch, dataset_info("etth1"), nowhere)
    with pytest.raises(DataError) as caught:
        load_data("etth1")
    assert str(caught.value) == (
        f"'etth1' is not here: ETTh1.csv (plain, .gz or .xz), looked for in {tmp_path}/data and "
        f"{tmp_path}/cache/datasets, below forecasting/ETT-small, ETT-small, ETDataset/ETT-small, ETT, ett. "
        "Fetching failed: http://127.0.0.1:9/ETTh1.csv cannot be reached ([Errno 111] Connection refused). "
        f"Put what is missing into {tmp_path}/data/forecasting/ETT-small."
    )


def archive(contents: dict[str, bytes], folder: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, content in {**contents, "../../evil.bin": b"evil"}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Home) -> Callable[[bytes], DatasetInfo]:
    """CIFAR-10 with an archive at its home."""
    at_home(monkeypatch, tmp_path)
    info = moved(monkeypatch, published(monkeypatch, "cifar10", batches()), home)

    def put(content: bytes, checksum: str | None = None) -> DatasetInfo:
        home.files["cifar-10-binary.tar.gz"] = content
        files = tuple(replace(file, archive_checksum=checksum or sha256(content)) for file in info.files)
        return entry(monkeypatch, replace(info, files=files))

    return put


def test_an_archive_is_fetched_once_and_only_its_files_are_kept(
    cifar: Callable[..., DatasetInfo], home: Home, tmp_path: Path
) -> None:
    info = cifar(archive(batches(), "cifar-10-batches-bin"))
    assert len(fetch(info)) == 6
    assert home.asked == ["cifar-10-binary.tar.gz"]
    assert left_behind(tmp_path) == sorted(f"data/cifar-10/cifar-10-batches-bin/{name}" for name in batches())
    assert load_data("cifar10").notes["sequences"] == {"train": 90, "validation": 10, "test": 20}


def test_an_archive_of_another_content_is_refused(cifar: Callable[..., DatasetInfo], tmp_path: Path) -> None:
    info = cifar(archive(batches(), "cifar-10-batches-bin"), "md5:c32a1d4ab5d03f1284b67883e8d87530")
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz' is not what was published \(md5:"):
        fetch(info)
    assert left_behind(tmp_path) == []


def test_an_archive_without_a_file_is_refused_as_a_whole(cifar: Callable[..., DatasetInfo], tmp_path: Path) -> None:
    contents = batches()
    del contents["test_batch.bin"]
    with pytest.raises(
        DataError, match=r"^'cifar-10-batches-bin/test_batch.bin' cannot be extracted from the archive of http"
    ):
        fetch(cifar(archive(contents, "cifar-10-batches-bin")))
    assert left_behind(tmp_path) == []
