"""Fetching the files of a dataset from its home: checked before they are in place, and never there in part."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from stablernn import errors
from stablernn._version import __version__
from stablernn.data.messages import format_names
from stablernn.data.named.entry import DatasetInfo
from stablernn.data.named.places import (
    COMPRESSIONS,
    MIB,
    DataFile,
    cache_folder,
    digest,
    find,
    place_to_fetch,
    user_folder,
)
from stablernn.data.readers.paths import read_bytes

#: Without a byte for so long a home counts as out of reach.
TIMEOUT_SECONDS = 20.0

Report = Callable[[str], None]

_log = logging.getLogger(__name__)


def located(info: DatasetInfo, *, partial: bool = False) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Where each file lies, after fetching what is not here, and the names of those that ``partial`` does without.

    Raises:
        DataError: If files are not here and cannot be fetched.
    """
    paths, missing = _here(info)
    if missing and not (partial and _is_part(info, paths)):
        if any(file.address is None for file in missing):
            raise _absent(info, paths, missing, None)
        try:
            fetch(info)
        except errors.DataError as error:
            raise _absent(info, paths, missing, str(error)) from error
        paths, missing = _here(info)
    return paths, tuple(file.name for file in missing)


def fetch(info: DatasetInfo, *, base: str | None = None, report: Report | None = None) -> list[Path]:
    """Fetches the files of a dataset that are not here.

    Args:
        info: The dataset.
        base: An address that has the files under their names, in place of their home.
        report: Told of each file before it is fetched.

    Returns:
        The files that were fetched; none where all are here.

    Raises:
        DataError: If a home cannot be reached, does not have the file, or what it gives is cut off, too large or not
            what was published. Nothing is left behind then.
    """
    _, missing = _here(info)
    if not missing:
        return []
    closed = [file.name for file in missing if file.address is None]
    if closed:
        raise errors.DataError(
            f"'{info.key}' is not fetched for anybody (licence: {info.licence}). {info.obtain} Put "
            f"{format_names(closed)} into {place_to_fetch(info.folders)}."
        )
    place = place_to_fetch(info.folders)
    fetched: list[Path] = []
    for address, group in groupby(missing, lambda file: file.address or ""):
        files = list(group)
        source = address if base is None else f"{base.rstrip('/')}/{address.rsplit('/', 1)[1]}"
        (report or _log.warning)(f"Fetching {source}")
        try:
            place.mkdir(parents=True, exist_ok=True)
            fetched += _fetch(source, files, place)
        except OSError as error:
            raise errors.DataError(f"'{error.filename or place}' cannot be written: {error.strerror}.") from error
    return fetched


def _fetch(address: str, files: Sequence[DataFile], place: Path) -> list[Path]:
    """One address: a file, or an archive with several."""
    first = files[0]
    name = Path(urlsplit(address).path)
    # Beside its place, so that renaming it moves nothing; in a folder of its own, so that it has its name.
    with tempfile.TemporaryDirectory(dir=place, prefix=".fetching-") as folder:
        archive = Path(folder) / name.name
        _download(address, archive, first.most_bytes)
        if first.member is None:
            packing = name.suffix if name.suffix in COMPRESSIONS else ""
            archive = archive.rename(archive.with_name(first.name + packing))
            _verify(address, first, archive)
            return [_moved(archive, place)]
        if first.archive_checksum is not None:
            with archive.open("rb") as reader:
                kind = first.archive_checksum.partition(":")[0]
                found = f"{kind}:{hashlib.file_digest(reader, kind).hexdigest()}"
            _compare(address, name.name, first.archive_checksum, found)
        unpacked = [_unpack(address, archive, file) for file in files]
        return [_moved(path, place) for path in unpacked]


def _moved(path: Path, place: Path) -> Path:
    target = place / path.name
    os.replace(path, target)
    return target


def _verify(address: str, file: DataFile, path: Path) -> None:
    content = read_bytes(path) if file.digest is None else b""
    if file.checksum is not None:
        found = digest(content, file.checksum) if file.digest is None else file.digest(path)
        _compare(address, file.name, file.checksum, found)


def _compare(address: str, name: str, expected: str, found: str) -> None:
    if found != expected:
        raise errors.DataError(
            f"What {address} gives for '{name}' is not what was published ({found}, published {expected})."
        )


def _unpack(address: str, archive: Path, file: DataFile) -> Path:
    path = archive.with_name(file.name)
    try:
        with tarfile.open(archive) as opened:
            reader = opened.extractfile(file.member or file.name)
            if reader is None:
                raise KeyError(f"{file.member} is no file")
            with path.open("wb") as writer:
                shutil.copyfileobj(reader, writer)
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise errors.DataError(f"'{file.member}' cannot be taken out of what {address} gives ({error}).") from error
    _verify(address, file, path)
    return path


def _download(address: str, path: Path, most_bytes: int) -> None:
    got = 0
    with path.open("wb") as file:
        for block in _blocks(address):
            got += len(block)
            if got > most_bytes:
                raise errors.DataError(f"{address} gives more than the {most_bytes:,} bytes that are expected.")
            file.write(block)


def _blocks(address: str) -> Iterator[bytes]:
    if urlsplit(address).scheme not in ("http", "https"):
        raise errors.DataError(f"'{address}' is no address of http or https.")
    asked = urllib.request.Request(address, headers={"User-Agent": f"stablernn/{__version__}"})
    got = 0
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as answer:
            announced = answer.headers.get("Content-Length")
            while block := answer.read(MIB):
                got += len(block)
                yield block
    except urllib.error.HTTPError as error:
        raise errors.DataError(f"{address} answers {error.code} ({error.reason}).") from error
    except http.client.HTTPException as error:
        raise errors.DataError(f"{address} breaks off ({type(error).__name__}).") from error
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        raise errors.DataError(f"{address} cannot be reached ({reason}).") from error
    if announced is not None and got != int(announced):
        raise errors.DataError(f"{address} breaks off after {got:,} of {int(announced):,} bytes.")


def _here(info: DatasetInfo) -> tuple[dict[str, Path], list[DataFile]]:
    found = {file.name: find(file, info.folders) for file in info.files}
    return (
        {name: path for name, path in found.items() if path is not None},
        [file for file in info.files if found[file.name] is None],
    )


def _is_part(info: DatasetInfo, paths: Mapping[str, Path]) -> bool:
    """Whether what is here can be used alone: all that is needed, and some of what may be missing."""
    needed = all(file.name in paths for file in info.files if not file.may_miss)
    return needed and any(file.name in paths for file in info.files if file.may_miss)


def _absent(
    info: DatasetInfo, paths: Mapping[str, Path], missing: Sequence[DataFile], reason: str | None
) -> errors.DataError:
    names = format_names([file.name for file in missing])
    packed = " (plain, .gz or .xz)" if all(file.packed for file in missing) else ""
    below = "" if info.folders == (".",) else f", below {format_names(info.folders)}"
    state = "is here only in part, without" if paths else "is not here:"
    sentences = [
        f"'{info.key}' {state} {names}{packed}, looked for in {user_folder()} and {cache_folder()}{below}.",
        f"Fetching failed: {reason}" if reason is not None else f"It may not be fetched for you. {info.obtain}",
        f"Put what is missing into {place_to_fetch(info.folders)}.",
    ]
    if _is_part(info, paths) and "partial" in info.options:
        sentences.append("--set data.partial=true takes what is there.")
    return errors.DataError(" ".join(sentences))
