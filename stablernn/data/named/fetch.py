"""Download of the files of a dataset: verified before they are moved in place, so that no partial file remains."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from stablernn import errors
from stablernn._version import __version__
from stablernn.data.files import read_bytes
from stablernn.data.messages import format_names
from stablernn.data.named.entry import DatasetInfo
from stablernn.data.named.places import (
    COMPRESSIONS,
    MIB,
    DataFile,
    cache_folder,
    digest,
    download_folder,
    find,
    user_folder,
)

#: Time without a byte after which a download fails.
TIMEOUT_SECONDS = 20.0

Report = Callable[[str], None]

_log = logging.getLogger(__name__)


def locate_files(info: DatasetInfo, *, partial: bool = False) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the path of each file, after downloading missing ones, and the names of files that ``partial`` skips.

    Raises:
        DataError: If files are missing and cannot be downloaded.
    """
    paths, missing = _find_files(info)
    if missing and not (partial and _is_usable_part(info, paths)):
        if any(file.address is None for file in missing):
            raise _missing_error(info, paths, missing, None)
        try:
            fetch(info)
        except errors.DataError as error:
            raise _missing_error(info, paths, missing, str(error)) from error
        paths, missing = _find_files(info)
    return paths, tuple(file.name for file in missing)


def fetch(info: DatasetInfo, *, base: str | None = None, report: Report | None = None) -> list[Path]:
    """Download the missing files of a dataset.

    Args:
        info: The dataset.
        base: URL of a mirror that has the files under their names; None: their original addresses.
        report: Function that is called with a sentence before each download.

    Returns:
        The downloaded files; empty if none was missing.

    Raises:
        DataError: If a server cannot be reached or does not have the file, or if the download is truncated, too large
            or differs from the published file. Nothing is left behind then.
    """
    _, missing = _find_files(info)
    if not missing:
        return []
    # Files whose terms do not allow an automatic download have no address.
    restricted = [file.name for file in missing if file.address is None]
    if restricted:
        raise errors.DataError(
            f"'{info.key}' cannot be downloaded automatically (license: {info.licence}). {info.obtain} "
            f"Put {format_names(restricted)} into {download_folder(info.folders)}."
        )
    folder = download_folder(info.folders)
    fetched: list[Path] = []
    # Several files may come from one archive, which is downloaded once.
    for address, group in groupby(missing, lambda file: file.address or ""):
        files = list(group)
        source = address if base is None else f"{base.rstrip('/')}/{address.rsplit('/', 1)[1]}"
        (report or _log.warning)(f"Fetching {source}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fetched += _fetch_address(source, files, folder)
        except OSError as error:
            raise errors.DataError(f"'{error.filename or folder}' cannot be written: {error.strerror}.") from error
    return fetched


def _fetch_address(address: str, files: Sequence[DataFile], folder: Path) -> list[Path]:
    """Download one address, which is a file or an archive of several files."""
    first = files[0]
    name = Path(urlsplit(address).path)
    # In the target folder, so that moving a file is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as staging:
        archive = Path(staging) / name.name
        _download(address, archive, first.max_bytes)
        if first.member is None:
            # Kept compressed: readers decompress by the ending.
            compression = name.suffix if name.suffix in COMPRESSIONS else ""
            archive = archive.rename(archive.with_name(first.name + compression))
            _verify(address, first, archive)
            return [_move(archive, folder)]
        if first.archive_checksum is not None:
            with archive.open("rb") as reader:
                algorithm = first.archive_checksum.partition(":")[0]
                checksum = f"{algorithm}:{hashlib.file_digest(reader, algorithm).hexdigest()}"
            _compare_checksums(address, name.name, first.archive_checksum, checksum)
        unpacked = [_unpack(address, archive, file) for file in files]
        return [_move(path, folder) for path in unpacked]


def _move(path: Path, folder: Path) -> Path:
    target = folder / path.name
    os.replace(path, target)
    return target


def _verify(address: str, file: DataFile, path: Path) -> None:
    # Read even without a checksum, because reading a truncated compressed file raises.
    content = read_bytes(path) if file.digest is None else b""
    if file.checksum is not None:
        checksum = digest(content, file.checksum) if file.digest is None else file.digest(path)
        _compare_checksums(address, file.name, file.checksum, checksum)


def _compare_checksums(address: str, name: str, expected: str, actual: str) -> None:
    if actual != expected:
        raise errors.DataError(
            f"What {address} gives for '{name}' is not what was published ({actual}, published {expected})."
        )


def _unpack(address: str, archive: Path, file: DataFile) -> Path:
    path = archive.with_name(file.name)
    try:
        with tarfile.open(archive) as members:
            reader = members.extractfile(file.member or file.name)
            if reader is None:
                raise KeyError(f"{file.member} is not a file")
            with path.open("wb") as writer:
                shutil.copyfileobj(reader, writer)
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise errors.DataError(
            f"'{file.member}' cannot be extracted from the archive of {address} ({error})."
        ) from error
    _verify(address, file, path)
    return path


def _download(address: str, path: Path, max_bytes: int) -> None:
    size = 0
    # Closed here, since an exception would keep the generator and its connection alive.
    with path.open("wb") as file, contextlib.closing(_blocks(address)) as blocks:
        for block in blocks:
            size += len(block)
            # Checked while reading, so that a wrong address cannot fill the disk.
            if size > max_bytes:
                raise errors.DataError(f"{address} has more than the expected {max_bytes:,} bytes.")
            file.write(block)


def _blocks(address: str) -> Generator[bytes, None, None]:
    if urlsplit(address).scheme not in ("http", "https"):
        raise errors.DataError(f"'{address}' is not an http or https address.")
    request = urllib.request.Request(address, headers={"User-Agent": f"stablernn/{__version__}"})
    size = 0
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            content_length = response.headers.get("Content-Length")
            while block := response.read(MIB):
                size += len(block)
                yield block
    except urllib.error.HTTPError as error:
        # The error is the response, too.
        error.close()
        raise errors.DataError(f"{address} answers {error.code} ({error.reason}).") from error
    except http.client.HTTPException as error:
        raise errors.DataError(f"{address} breaks off ({type(error).__name__}).") from error
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        raise errors.DataError(f"{address} cannot be reached ({reason}).") from error
    # urllib does not raise if the connection closes before the announced length.
    if content_length is not None and size != int(content_length):
        raise errors.DataError(f"{address} breaks off after {size:,} of {int(content_length):,} bytes.")


def _find_files(info: DatasetInfo) -> tuple[dict[str, Path], list[DataFile]]:
    """Return the paths of the files that are present, and the missing files."""
    paths = {file.name: find(file, info.folders) for file in info.files}
    return (
        {name: path for name, path in paths.items() if path is not None},
        [file for file in info.files if paths[file.name] is None],
    )


def _is_usable_part(info: DatasetInfo, paths: Mapping[str, Path]) -> bool:
    """Return True if all required files and at least one optional file are present."""
    has_required = all(file.name in paths for file in info.files if not file.is_optional)
    return has_required and any(file.name in paths for file in info.files if file.is_optional)


def _missing_error(
    info: DatasetInfo, paths: Mapping[str, Path], missing: Sequence[DataFile], reason: str | None
) -> errors.DataError:
    file_names = format_names([file.name for file in missing])
    endings = " (plain, .gz or .xz)" if all(file.packed for file in missing) else ""
    subfolders = "" if info.folders == (".",) else f", below {format_names(info.folders)}"
    state = "is here only in part, without" if paths else "is not here:"
    sentences = [
        f"'{info.key}' {state} {file_names}{endings}, looked for in {user_folder()} and {cache_folder()}{subfolders}.",
        f"Fetching failed: {reason}" if reason is not None else f"It cannot be downloaded automatically. {info.obtain}",
        f"Put what is missing into {download_folder(info.folders)}.",
    ]
    if _is_usable_part(info, paths) and "partial" in info.options:
        sentences.append("--set data.partial=true takes what is there.")
    return errors.DataError(" ".join(sentences))
