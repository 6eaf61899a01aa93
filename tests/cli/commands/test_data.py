"""`data list` and `data fetch`: what is here, and how it gets here."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cli_helpers import Workplace
from named_helpers import at_home, images, lay, published


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    published(monkeypatch, "mnist", images())
    return at_home(monkeypatch, tmp_path)


def test_list_says_what_is_here(empty: Workplace, data: Path) -> None:
    lay(data / "mnist", {"train-images-idx3-ubyte": b"not read"}, ".xz")
    rows = {row["name"]: row for row in empty.document("data list")}
    assert {name: rows[name]["here"] for name in ("digits", "copy", "mnist", "etth1")} == {
        "digits": "yes",
        "copy": "yes",
        "mnist": "partly",
        "etth1": "no",
    }
    assert rows["pmnist"]["variants"] == ["paper", "released"]
    assert rows["pmnist"]["options"] == ["variant", "permutation"]
    assert rows["etth1"]["settings"]["horizon"] == 96
    text = empty.ok("data list mnist").out
    assert "partly" in text
    assert "CC BY-SA 3.0" in text


def test_fetch_brings_files_and_says_where_they_are(empty: Workplace, data: Path, tmp_path: Path) -> None:
    lay(tmp_path / "mirror", images(), ".gz")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "mirror")))
    Thread(target=server.serve_forever, daemon=True).start()
    mirror = f"http://127.0.0.1:{server.server_port}"
    try:
        result = empty.ok(f"data fetch mnist digits --from {mirror} --json")
    finally:
        server.shutdown()
        server.server_close()
    assert result.json == [
        {"name": "mnist", "here": "yes", "fetched": [str(data / "mnist" / f"{name}.gz") for name in images()]},
        {"name": "digits", "here": "yes", "fetched": []},
    ]
    assert f"Fetching {mirror}/train-images-idx3-ubyte.gz\n" in result.err
    assert empty.ok("data fetch mnist").out == "mnist: nothing to fetch\n"


def test_fetch_refuses_unknown_names_before_it_begins(empty: Workplace, data: Path) -> None:
    assert (
        empty.refusal("data fetch mnist mnits")
        == "Unknown dataset or file 'mnits'. Did you mean 'mnist'? See 'stablernn data list'."
    )
    assert not list(data.iterdir())


def test_fetch_says_what_it_may_not_fetch(empty: Workplace, data: Path) -> None:
    assert empty.refusal("data fetch ptb-char", code=1) == (
        "'ptb-char' cannot be downloaded automatically (license: LDC99T42, research use, not to be passed on). T. "
        "Mikolov's simple-examples.tgz has its files in the folder 'data'. Put ptb.char.train.txt, ptb.char.valid.txt, "
        f"ptb.char.test.txt into {data}/ptb."
    )
